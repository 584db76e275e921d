"""What a sweep says while it runs, line by line: for pipes, logs, scripts and notebooks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter

from rooflab import estimate
from rooflab.engine import Observer
from rooflab.errors import plain
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.planning import Plan
from rooflab.report.text import digits, half_width, interval_percent, label, precision_title
from rooflab.runs.store import RunData

PATIENCE_S = 5.0
"""A step that lasts longer is named while it lasts."""


def roofs_text(run: RunData, precisions: list[str]) -> str:
    """The roofs that the rows of these precisions refer to, in one line."""
    roofline = run.manifest.roofline
    roofs = [("", roofline.bandwidth())]
    roofs += [(precision_title(name), roofline.compute(name)) for name in precisions]
    found = [f"{name or roof.key} {roof.amount} {roof.provenance}" for name, roof in roofs if roof]
    return "; ".join(found) or "no ceiling is known (see: rooflab devices)"


class Lines(Observer):
    """A line per point, and one for what takes long or goes wrong; on stderr by default.

    ``bar`` is shown while the sweep runs: nothing here.
    """

    bar: AbstractContextManager[object] = nullcontext()

    def __init__(
        self,
        say: Callable[[str], None] = lambda text: print(text, file=sys.stderr, flush=True),
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.run: RunData | None = None
        self._say, self._warn = say, warn or (lambda text: say(f"warning: {text}"))
        self._points = self._done = 0
        self._precisions: list[str] = []
        self._told: set[tuple[str, str]] = set()
        self._plan: Plan | None = None
        self._left: estimate.Left | None = None
        self._started = self._spoken = perf_counter()

    def planned(self, plan: Plan) -> None:
        """The plan's notes."""
        for line in plan.notes:
            self._say(line)
        self._plan = plan
        self._precisions = list(dict.fromkeys(step.problem.precision.name for step in plan.steps))

    def note(self, text: str) -> None:
        """A warning."""
        self._warn(text)

    def phase(self, text: str) -> None:
        """What takes seconds before the first point."""
        self._say(f"{text} …")
        self._spoken = perf_counter()

    def began(self, run: RunData, points: int) -> None:
        """The device and its roofs."""
        self.run, self._points, self._started = run, points, perf_counter()
        device = run.manifest.device
        if self._plan:
            memory = float(device.fact("memory_total") or 0) or None
            self._left = estimate.Left(self._plan, run.manifest.roofline, memory)
            for row in run.measurements:
                self._left.done(row)
        self._say(f"{device.name} ({device.id})")
        self._say(roofs_text(run, self._precisions))
        if any(one.disturbed for one in run.manifest.roofline.used(self._precisions)):
            self._warn("measured roofs may be too low: other programs used the processor")

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """Name a step that lasts long."""
        if perf_counter() - self._spoken > PATIENCE_S:
            self._say(f"{step} {kernel} {problem.precision} {problem.size} …")
            self._spoken = perf_counter()

    def failed(self, problem: ProblemRecord, kernel: str, status: str, reason: str) -> None:
        """Say so at once: the row comes later."""
        if (kernel, reason) not in self._told:
            self._told.add((kernel, reason))
            self._warn(f"{status}: {kernel} {problem.precision} {problem.size}: {reason}")
            self._spoken = perf_counter()

    def measured(self, row: Measurement, detail: str) -> None:
        """The row's time, and how long the rest will take."""
        self._done += 1
        what = row.status
        if row.status == "ok" and row.time_us is not None:
            half = half_width(interval_percent(row))
            what = f"{digits(row.time_us, 4)} µs{half and f' ± {half} %'}"
            what += f", {digits(row.roof_percent, 3)} % of its roof" if row.roof_percent else ""
        left = self._time_left(row)
        self._say(f"{self._done}/{self._points} {label(row)}: {what}{left and f'; {left}'}")
        self._spoken = perf_counter()
        self._detail(row, detail)

    def _time_left(self, row: Measurement) -> str:
        """After this row; empty if nothing is left, or known."""
        if self._left is None:
            return ""
        self._left.done(row, perf_counter() - self._started)
        seconds = self._left.seconds
        return f"about {estimate.text(seconds)} left" if seconds else ""

    def _detail(self, row: Measurement, detail: str) -> None:
        """A message of several lines, once for all sizes."""
        if "\n" in detail and (row.kernel, detail) not in self._told:
            self._told.add((row.kernel, detail))
            self._warn(f"{row.kernel} failed:\n{plain(detail)}")
