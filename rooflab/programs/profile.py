"""``rooflab.profile``: the roofline of a function, or of a part of a program, in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import index
from pathlib import Path
from typing import Any, Final

from rooflab.api import Run
from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.devices.registry import open_device
from rooflab.engine import manifest_of
from rooflab.errors import UsageError
from rooflab.fleet.ranks import member_path, shared
from rooflab.measure.levels import roofs
from rooflab.model.problem import PROGRAM
from rooflab.model.roofline import Roofline
from rooflab.model.traffic import Chip
from rooflab.programs.collectives import collectives, communication
from rooflab.programs.groups import OTHERS, limited, varies
from rooflab.programs.place import given_place
from rooflab.programs.rows import ProgramGroup, rows, step_of
from rooflab.programs.session import SKIP, STEPS, Findings, Steps
from rooflab.programs.timeline import first_step
from rooflab.report.program import lines
from rooflab.runs.manifest import DeviceRecord, Manifest, WorkloadRecord
from rooflab.runs.store import UNSAVED, save


class Profile(Run):
    """What ``profile`` returns: a run with a row for each group of launches.

    It is not on disk until it is saved.
    """

    def __str__(self) -> str:
        return "\n".join(lines(self))

    __repr__ = __str__

    def save(self, path: str | Path = "results") -> Run:
        """Write it as a run folder: a new one inside ``results``, or ``path`` if that is new.

        Raises ``RunError`` if it cannot be written.
        """
        folder = save(
            Path(path),
            self.manifest,
            self.measurements,
            step=self.recorded,
            collectives=self.communicated,
        )
        return Run(folder, self.manifest, self.measurements)

    def save_rank(
        self, folder: str | Path, rank: int | None = None, ranks: int | None = None
    ) -> Run:
        """Write it as the run of one rank in a folder that all ranks of a program name.

        ``rank`` of ``ranks`` is that of this process, by RANK and WORLD_SIZE, unless it is given.
        ``rooflab show FOLDER`` says whom the others wait for. Raises ``UsageError`` if the folder
        has this rank already or something else, and ``RunError`` if it cannot be written.
        """
        place = given_place(rank, ranks, os.environ)
        shared(Path(folder), place.size, self.manifest.command)
        path = member_path(Path(folder), place.number)
        self.manifest.program |= {"rank": place.number, "ranks": place.size}
        return self.save(path)


def profile(
    work: Callable[..., Any] | str,
    *args: Any,
    steps: int = STEPS,
    skip: int = SKIP,
    counters: bool = True,
    modules: bool = False,
    **kwargs: Any,
) -> Any:
    """The roofline of all kernels that a function launches, or a part of a program.

    A function is called ``skip`` times, then at least ``steps`` times without, with and without
    recording, then until its launches are counted; returns a ``Profile``. A name makes a part: a
    context manager to enter for each step of a loop, whose ``result`` is a ``Profile`` in the end.
    ``counters``: whether hardware counters are read. ``modules``: whether the groups say which of
    PyTorch's modules launched them.

    Raises ``UsageError`` for impossible numbers of steps and if nothing is launched,
    ``UnavailableError`` without a GPU or CUPTI, and what the function raises.
    """
    options: dict[str, Any] = {"steps": _count("steps", steps, 1), "skip": _count("skip", skip, 0)}
    options |= {"counters": counters, "modules": modules}
    if isinstance(work, str):
        return part(work, **options)
    if not callable(work):
        raise UsageError(f"profile takes a function or a name, not {type(work).__name__}")
    recorder = Steps(_name(work), **options)
    while not recorder.done:
        with recorder:
            work(*args, **kwargs)
    return result(recorder.name, recorder.found)


def _count(name: str, value: Any, least: int) -> int:
    """A number of steps; raises ``UsageError`` for anything else."""
    whole = not isinstance(value, bool) and hasattr(type(value), "__index__")
    if not whole or index(value) < least:
        shown = repr(value)[:40]
        raise UsageError(f"{name} = {shown}: give a whole number of at least {least}")
    return index(value)


class Part(Steps):
    """A part of a program: what ``profile("name")`` returns."""

    @property
    def result(self) -> Profile | None:
        """The profile of the steps until now, which ends it; None while they are too few."""
        if self.has_recorded:
            self.finish()
        return result(self.name, self.found) if self.found else None


_PARTS: Final[dict[str, Part]] = {}


def part(name: str, **options: Any) -> Part:
    """The part with this name: the same one each time."""
    if name not in _PARTS:
        _PARTS[name] = Part(name, **options)
    return _PARTS[name]


def _name(work: Callable[..., Any]) -> str:
    name = getattr(work, "__name__", type(work).__name__)
    return "function" if name == "<lambda>" else str(name)


def result(name: str, found: Findings | None, command: Sequence[str] = ()) -> Profile:
    """The run of what was found; raises ``UsageError`` if nothing was launched."""
    if found is None or not found.recording.launches:
        raise UsageError(
            f"{name} launched nothing on a GPU while it was recorded: is its data there "
            "(x.cuda(), cupy arrays)?"
        )
    number = found.recording.launches[0].device
    device = open_device(f"cuda:{number}")
    return built(found, Roofs.of(device, roofs(device)), name, command)


@dataclass(frozen=True)
class Roofs:
    """A device as a manifest knows it, with its roofs."""

    device: DeviceRecord
    roofline: Roofline
    versions: dict[str, str]
    host: dict[str, str]

    @classmethod
    def of(cls, device: Device, roofline: Roofline) -> Roofs:
        """Of a device that is here."""
        manifest = manifest_of(device, SweepConfig(), [], [], 0)
        return cls(manifest.device, roofline, manifest.versions, manifest.host)


def built(
    found: Findings, known: Roofs, name: str, command: Sequence[str] = (), roofs_of: str = ""
) -> Profile:
    """The run of what was found on a device; ``roofs_of`` says whose roofs hold if not its own."""
    nominal = known.device.facts.get("sm_clock_max")
    clock = float(nominal.value) if nominal and nominal.value else None
    graph = (found.graphs[0], found.graph_launches) if found.graphs else None
    if differ := sum(map(varies, found.groups)):
        found.notes[f"the counts of {differ} groups differ between launches: they are means"] = None
    groups = limited(found.groups)
    if (rest := len(found.groups) - len(groups)) > 0:
        found.notes[f"the {rest + 1} groups with the least time are one: {OTHERS}"] = None
    made = rows(found.recording, groups, known.roofline, clock, graph, Chip.of(known.device.facts))
    step = step_of(found.recording)
    manifest = Manifest(
        created=datetime.now(UTC),
        finished=datetime.now(UTC),
        command=list(command or sys.argv),
        versions=known.versions,
        host=known.host,
        device=known.device,
        roofline=known.roofline,
        config={},
        kernels={},
        workloads={PROGRAM: WorkloadRecord.of(ProgramGroup)},
        points=len(made),
        program={
            "name": name,
            "steps": step.steps,
            "step_us": step.us,
            "busy_us": step.busy_us,
            "kernels_us": step.kernels_us,
            "plain_us": found.plain_us,
            "overhead_percent": found.overhead_percent,
            "source": found.recording.source,
            "counting_s": round(found.counting_s, 3),
            "notes": list(found.notes),
            "whole": not found.recording.steps,
            **({"roofs_of": roofs_of} if roofs_of else {}),
            **communication(found.recording),
        },
    )
    recorded = first_step(found.recording, groups, made)
    met = collectives(found, groups)
    return Profile(UNSAVED, manifest, made, recorded=recorded, communicated=met)
