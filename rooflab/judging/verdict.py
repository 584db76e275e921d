"""The verdict on a submission, over all problems, and the document that says it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from hashlib import sha256
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.errors import RooflabError, UsageError
from rooflab.judging.sandbox import Enforced
from rooflab.judging.submission import Deadlines, OutOfTime, Rejected
from rooflab.judging.trial import Arena, Trial
from rooflab.kernels.base import is_file
from rooflab.measure.levels import best_roofline
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem
from rooflab.model.units import scaled
from rooflab.planning import plan
from rooflab.version import __version__
from rooflab.worker.process import module_path

SCHEMA: Final = 1

MOST_BYTES: Final = 10**7
"""Of a submission's file."""

FIGURES: Final = (
    *("workload", "precision", "size", "about", "status", "reason", "rel_error", "cache"),
    *("time_us", "time_lo_us", "time_hi_us", "tflops", "gbps", "roof_us", "roof_percent", "bound"),
)
"""Fields of a problem in the document, as in the rows of a run."""


@dataclass(frozen=True, slots=True)
class Judged:
    """A submission on one problem; the times of what it is compared with, in ``against``."""

    row: Measurement
    against: Measurement | None = None

    @property
    def speedup(self) -> tuple[float, float, float] | None:
        """How many times as fast it is, and between which limits that is certain to 95 %."""
        row, other = self.row, self.against
        if not other or row.status != "ok" or not (row.time_us and other.time_us):
            return None
        low = (other.time_lo_us or 0.0) / (row.time_hi_us or 1.0)
        high = (other.time_hi_us or 0.0) / (row.time_lo_us or 1.0)
        return other.time_us / row.time_us, low, high

    @property
    def document(self) -> dict[str, Any]:
        """Plain values."""
        problem = asdict(self.row.problem)
        values = {name: problem.get(name, getattr(self.row, name, None)) for name in FIGURES}
        none = {n for n, one in values.items() if isinstance(one, float) and not isfinite(one)}
        found = {name: None if name in none else one for name, one in values.items()}
        if self.against:
            found["against_us"] = self.against.time_us
            names = ("speedup", "speedup_lo", "speedup_hi")
            found |= dict(zip(names, self.speedup or (None,) * 3, strict=True))
        return found


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict on a submission: ``accepted``, or the ``reason`` why not."""

    file: str
    digest: str
    device: Device
    against: str
    problems: list[Judged] = field(default_factory=list)
    refused: Enforced = field(default_factory=Enforced)

    @property
    def reason(self) -> str:
        """Why it is not accepted, empty if it is."""
        wrong = [one.row for one in self.problems if one.row.status != "ok"]
        if not wrong:
            return ""
        problem = wrong[0].problem
        return f"{problem.workload} {problem.precision} {problem.size}: {wrong[0].reason}"

    @property
    def accepted(self) -> bool:
        """Whether all problems were solved, with every check."""
        return not self.reason

    @property
    def document(self) -> dict[str, Any]:
        """Everything, as plain values; docs/judge.md has the schema."""
        return {
            "schema": SCHEMA,
            "rooflab": __version__,
            "accepted": self.accepted,
            "reason": self.reason,
            "submission": {"file": self.file, "sha256": self.digest},
            "against": self.against,
            "device": {"id": self.device.id, "name": self.device.name},
            "refused": asdict(self.refused),
            "problems": [one.document for one in self.problems],
        }


def judge(
    file: str,
    config: SweepConfig,
    device: Device,
    against: str = "",
    *,
    trusted: Sequence[str] = (),
    timeout_s: float = 60.0,
    max_time_s: float = 1800.0,
    note: Callable[[str], object] = lambda text: None,
) -> Decision:
    """Judge the kernel in ``file`` on all problems of ``config``, beside the kernel ``against``.

    ``trusted`` are files that define the workload, ``timeout_s`` the seconds for each request and
    ``max_time_s`` those for everything. Raises ``UsageError`` before anything is
    measured if there is no such file or kernel, and ``RooflabError`` if what it is compared with is
    wrong itself.
    """
    found = Decision(file, digest(file), device, against)
    problems = list(_problems(config))
    other = _other(against, config, device, problems) if against else ""
    roofline = device.roofline().raised(best_roofline(device))
    device.claim()
    deadlines = Deadlines(timeout_s, max_time_s)
    job = {"threads": config.threads, "trusted": list(trusted), "path": module_path()}
    for problem in problems:
        note(f"judging {problem.workload} {problem.precision.name} {problem.size}")
        arena = Arena(device, problem)
        with closing(arena):
            trial = partial(Trial, arena, roofline, job, deadlines)
            judged, refused = _beside(trial, file, other)
        found.problems.append(judged)
        found = replace(found, refused=refused)
        device.release()
    return found


def digest(file: str) -> str:
    """Of the submission's content; raises ``UsageError`` if it cannot be read."""
    path = Path(f"{file.partition('.py:')[0]}.py" if ".py:" in file else file)
    if not is_file(file):
        raise UsageError(f"{file[:200]} is no submission: name a .py or .cu file, or mine.py:NAME")
    name = str(path)[:200]
    try:
        content = None
        if stat.S_ISREG(path.stat().st_mode):  # reading others may never end
            with path.open("rb") as opened:
                content = opened.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"{name} cannot be read: {why}") from error
    if content is None:
        raise UsageError(f"{name} is no ordinary file: name a .py or .cu file, or mine.py:NAME")
    if len(content) > MOST_BYTES:
        most = scaled(MOST_BYTES)
        raise UsageError(f"{name} has more than {most}B: a submission is one file of source code")
    return sha256(content).hexdigest()


def _problems(config: SweepConfig) -> Iterator[Problem]:
    for selection in config.workloads:
        for precision in selection.precisions:
            for problem in selection.build(precision):
                if not problem.record.resident:
                    raise UsageError("only operands in the memory of one device are judged")
                yield problem


def _other(against: str, config: SweepConfig, device: Device, problems: Sequence[Problem]) -> str:
    """The kernel of ``config``, as its process finds it; raises ``UsageError`` if it cannot run."""
    kernels = plan(config, device).kernels
    if len(kernels) != 1:
        names = ", ".join(kernel.name for kernel in kernels)
        raise UsageError(f"--against {against[:200]} has several kernels: name one of {names}")
    for problem in problems:
        if reason := kernels[0].refuses(problem):
            raise UsageError(f"--against {against[:200]}: {reason}: name another kernel")
    return against if is_file(against) else kernels[0].name


def _beside(trial: Callable[..., Trial], file: str, against: str) -> tuple[Judged, Enforced]:
    """The submission runs alone: what it is compared with is timed before and after it."""
    submission, other = trial(file), None
    try:
        first = _half(trial, against) if against else None
        _alone(submission)
        if first:
            other = _half(trial, against, first.outcome.rounds).row()
    except OutOfTime as late:
        if submission.outcome.status == "ok":
            submission.outcome.fail(late.reason, late.status)
    return Judged(submission.row(), other), submission.refused


def _half(trial: Callable[..., Trial], against: str, before: Sequence[list[float]] = ()) -> Trial:
    """Half of its rounds, after those ``before``, in a process that no submission has seen."""
    other = trial(against, trusted=True)
    try:
        other.begin()
        other.outcome.rounds += before
        other.time(2)
    except OutOfTime:
        raise
    except Rejected as refusal:
        raise RooflabError(f"{against} cannot be compared with: {refusal.reason}") from refusal
    finally:
        other.end()
    return other


def _alone(trial: Trial) -> None:
    """A submission, with all its checks."""
    mine = _scheduled()
    try:
        trial.begin()
        trial.time()
        trial.verify_again()
    except Rejected as refusal:
        trial.outcome.fail(refusal.reason, refusal.status)
    finally:
        trial.end()
    if _scheduled() != mine:
        os.sched_setaffinity(0, mine[0])
        trial.outcome.fail("changes the processors or the priority of the judge", "incorrect")


def _scheduled() -> tuple[set[int], int]:
    """What other processes may change of this one, and its children take over."""
    return set(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0)
