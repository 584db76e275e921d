"""What kernels of ours take for the problems of a program's groups, in runs that are at hand.

Those are the runs beside the program's and in ``results``, of devices with the same name. Times are
settled ones, which a sweep measures under sustained load: a program's launches are between that and
a burst, so a kernel that is faster by its settled time is faster in either state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from rooflab.errors import RooflabError, UsageError
from rooflab.model.measurement import CONTENDED, Measurement, is_possible
from rooflab.model.problem import Problem
from rooflab.runs.compare_programs import uncertainty
from rooflab.runs.evidence import OWN_BACKEND, ladder, registry
from rooflab.runs.manifest import load_manifest
from rooflab.runs.notation import options, read
from rooflab.runs.program import Program, is_program
from rooflab.runs.store import MANIFEST, UNSAVED, RunData, load, runs_in

RESULTS: Final = Path("results")

MOST_RUNS: Final = 200
"""Runs in a folder that are read, the newest."""

RUNGS: Final = 4
"""Kernels of ours that a command measures: the last of the ladder that support a problem."""

_DOUBTFUL: Final = frozenset((CONTENDED, "throttled", "cache_suspect", "host_timed"))
"""Flags of times that are not compared."""


@dataclass(frozen=True, slots=True)
class OwnTime:
    """A row of one of our kernels, and the run that has it."""

    row: Measurement
    run: RunData

    @property
    def us(self) -> float:
        """Its settled time."""
        return self.row.time_us or 0.0

    @property
    def high_us(self) -> float:
        """The upper end of its interval."""
        high = self.row.time_hi_us
        return high if is_possible(high) else self.us


class OwnTimes:
    """The fastest of our kernels by problem, for a program's run. Runs are read when needed."""

    def __init__(self, run: RunData) -> None:
        self._run = run

    def of(self, group: Measurement) -> OwnTime | None:
        """The fastest for what each launch of a group computes; None if nothing is measured."""
        problem = problem_of(group)
        return self._known.get(problem.key) if problem else None

    @cached_property
    def _known(self) -> dict[object, OwnTime]:
        best: dict[object, OwnTime] = {}
        for run in _at_hand(self._run):
            for row in filter(_counts, run.ok):
                one, known = OwnTime(row, run), best.get(row.problem.key)
                if known is None or one.high_us < known.high_us:
                    best[row.problem.key] = one
        return best

    def command(self, group: Measurement) -> str:
        """What measures kernels of ours, and the library's, for a group; empty if there are none.

        Those that the GPU lacks features for are left out.
        """
        problem = problem_of(group)
        names = kernels_for(problem, self._capability) if problem else []
        if problem is None or not names:
            return ""
        return f"rooflab sweep {options(problem)} --kernel {','.join(names)}"

    @cached_property
    def overlap(self) -> bool:
        """Whether kernels of the program run at once, which slows them."""
        return Program.of(self._run).overlaps

    @property
    def _capability(self) -> str:
        """Such as ``9.0``; empty if it is not known."""
        text = str(self._run.manifest.device.fact("compute_capability"))
        return text if re.fullmatch(r"\d{1,2}\.\d", text) else ""


def problem_of(group: Measurement) -> Problem | None:
    """The problem of a workload that each launch of a group is; None if it is none.

    Arithmetic in another precision than that of the operands, such as TF32, is another problem.
    """
    text = group.problem.settings.get("same_as")
    if not isinstance(text, str) or not text or group.flops is None:
        return None
    try:
        problem = read(text)
    except UsageError:
        return None
    other = problem.precision.name != group.problem.precision or "tf32" in group.kernel.lower()
    return None if other else problem


def saved_us(group: Measurement, own: OwnTime) -> float:
    """By how much a launch would take less; 0 if both intervals do not say so."""
    launches = group.launches or 0.0
    if not is_possible(group.time_us) or not launches:
        return 0.0
    low = group.time_us - uncertainty(group) / launches
    return group.time_us - own.us if own.high_us < low else 0.0


def kernels_for(problem: Problem, capability: str = "") -> list[str]:
    """The last of our kernels that support a problem, and the vendor's; none without ours."""
    found = [
        kernel.name
        for kernel in ladder("cuda", problem.workload)
        if not kernel.refuses(problem) and not (capability and kernel.unfit(capability))
    ]
    library = registry().library("cuda", problem.workload)
    fits = library is not None and not library.refuses(problem)
    return [*found[-RUNGS:], *([library.name] if found and library and fits else [])]


def _at_hand(run: RunData) -> Iterator[RunData]:
    """Runs of sweeps on a device of the same name, that can be read."""
    folders = [RESULTS] if run.path == UNSAVED else [run.path.parent, RESULTS]
    newest = (path for folder in folders for path in runs_in(folder)[: -MOST_RUNS - 1 : -1])
    for path in {path.resolve(): path for path in newest}.values():
        try:
            if load_manifest(path / MANIFEST).device.name != run.manifest.device.name:
                continue
            found = load(path)
        except (RooflabError, OSError):  # nobody asked for it
            continue
        if not is_program(found.measurements):
            yield found


def _counts(row: Measurement) -> bool:
    """Whether a row is one of our own, and its time can be compared."""
    return (
        row.backend == OWN_BACKEND
        and row.problem.resident
        and row.cache != "warm"
        and is_possible(row.time_us)
        and not _DOUBTFUL.intersection(row.flag_names)
    )
