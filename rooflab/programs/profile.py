"""``rooflab.profile``: the roofline of a function, or of a part of a program, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from rooflab.api import Run
from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.devices.registry import open_device
from rooflab.engine import manifest_of
from rooflab.errors import UsageError
from rooflab.measure.levels import roofs
from rooflab.programs.rows import PROGRAM, rows, step_of
from rooflab.programs.session import SKIP, STEPS, Findings, Steps
from rooflab.programs.timeline import first_step
from rooflab.report.program import lines
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
        folder = save(Path(path), self.manifest, self.measurements, step=self.recorded)
        return Run(folder, self.manifest, self.measurements)


def profile(
    work: Callable[..., Any] | str,
    *args: Any,
    steps: int = STEPS,
    skip: int = SKIP,
    counters: bool = True,
    **kwargs: Any,
) -> Any:
    """The roofline of all kernels that a function launches, or a part of a program.

    A function is called ``skip`` times, then at least ``steps`` times without and as often with
    recording, then until its launches are counted; returns a ``Profile``. A name makes a part: a
    context manager to enter for each step of a loop, whose ``result`` is a ``Profile`` as soon as
    there were enough steps. ``counters``: whether hardware counters are read.

    Raises ``UsageError`` if nothing is launched, ``UnavailableError`` without a GPU or CUPTI, and
    what the function raises.
    """
    if isinstance(work, str):
        return part(work, steps=steps, skip=skip, counters=counters)
    if not callable(work):
        raise UsageError(f"profile takes a function or a name, not {type(work).__name__}")
    recorder = Steps(_name(work), steps=steps, skip=skip, counters=counters)
    while not recorder.done:
        with recorder:
            work(*args, **kwargs)
    return result(recorder.name, recorder.found)


class Part(Steps):
    """A part of a program: what ``profile("name")`` returns."""

    @property
    def result(self) -> Profile | None:
        """The profile, if there were enough steps."""
        return result(self.name, self.found) if self.done and self.found else None


_PARTS: Final[dict[str, Part]] = {}


def part(name: str, **options: Any) -> Part:
    """The part with this name: the same one each time."""
    if name not in _PARTS:
        _PARTS[name] = Part(name, **options)
    return _PARTS[name]


def _name(work: Callable[..., Any]) -> str:
    name = getattr(work, "__name__", type(work).__name__)
    return "function" if name == "<lambda>" else str(name)


def result(name: str, found: Findings | None, command: tuple[str, ...] = ()) -> Profile:
    """The run of what was found; raises ``UsageError`` if nothing was launched."""
    if found is None or not found.recording.launches:
        raise UsageError(
            f"{name} launched nothing on a GPU while it was recorded: is its data there "
            "(x.cuda(), cupy arrays)?"
        )
    number = found.recording.launches[0].device
    return built(found, open_device(f"cuda:{number}"), name, command)


def built(found: Findings, device: Device, name: str, command: tuple[str, ...] = ()) -> Profile:
    """The run of what was found on a device."""
    roofline = roofs(device)
    nominal = device.facts.get("sm_clock_max")
    clock = nominal.value if nominal else None
    made = rows(found.recording, found.groups, roofline, float(clock) if clock else None)
    manifest = manifest_of(device, SweepConfig(), [], [PROGRAM], len(made), command or sys.argv)
    manifest.roofline, manifest.finished = roofline, datetime.now(UTC)
    step = step_of(found.recording)
    manifest.program = {
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
    }
    recorded = first_step(found.recording, found.groups, made)
    return Profile(UNSAVED, manifest, made, recorded=recorded)
