"""A sweep's progress on the terminal: current step, finished points, time left."""

from __future__ import annotations

from time import perf_counter
from types import TracebackType
from typing import Self

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rooflab import estimate
from rooflab.cli import console
from rooflab.engine import Observer
from rooflab.errors import plain
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.planning import Plan
from rooflab.report.text import precision_title
from rooflab.runs.store import Run


class Terminal(Observer):
    """Shows progress on stderr; use it as a context manager."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._expected_s: dict[tuple[object, ...], float] = {}
        self._done_s = 0.0
        self._points = self._done = 0
        self._told: set[tuple[str, str]] = set()
        self._started = perf_counter()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console.err(),
            transient=True,
        )
        self._task = self._progress.add_task("measuring roofs", total=None, count="", left="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def planned(self, plan: Plan) -> None:
        """Print the plan's notes; estimate the time of every point."""
        for line in plan.notes:
            console.note(line)
        self._expected_s = {
            # Kernel, workload, precision, parameters: ``Measurement.key``.
            (kernel.name, *step.problem.key): estimate.least_s(step.problem, plan.config.timing)
            for step in plan.steps
            for kernel in step.kernels
        }

    def note(self, text: str) -> None:
        """Print a warning on stderr."""
        console.warn(text)

    def began(self, run: Run, points: int) -> None:
        """Print the device and its roofs; show the progress bar."""
        self.run = run
        manifest = run.manifest
        err = console.err()
        err.print(f"[bold]{escape(manifest.device.name)}[/] ({escape(manifest.device.id)})")
        console.note(self._roofs(run))
        if any(ceiling.disturbed for ceiling in manifest.roofline.ceilings):
            console.warn("measured roofs may be too low: other programs used the processor")
        self._started = perf_counter()
        self._points, self._done = points, 0
        self._progress.update(self._task, total=points or None, count=self._count())

    def _roofs(self, run: Run) -> str:
        roofline = run.manifest.roofline
        names = dict.fromkeys(str(key[2]) for key in self._expected_s)
        roofs = [("", roofline.bandwidth())]
        roofs += [(precision_title(name), roofline.compute(name)) for name in names]
        found = [
            f"{name or roof.key} {roof.amount} {roof.provenance}" for name, roof in roofs if roof
        ]
        return "; ".join(found) or "no ceiling is known (see: rooflab devices)"

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """Show the current step."""
        what = f"{step} {kernel} {problem.precision} {problem.size}"
        self._progress.update(self._task, description=what)

    def measured(self, row: Measurement, detail: str) -> None:
        """Advance the bar; estimate the time left from the pace so far."""
        self._done_s += self._expected_s.pop(row.key, 0.0)
        left = ""
        if self._done_s:
            pace = (perf_counter() - self._started) / self._done_s
            left = f"about {estimate.text(pace * sum(self._expected_s.values()))} left"
        self._done += 1
        self._progress.update(self._task, advance=1, count=self._count(), left=left)
        if "\n" in detail and (row.kernel, detail) not in self._told:
            self._told.add((row.kernel, detail))
            console.warn(f"{row.kernel} failed:\n{plain(detail)}")

    def _count(self) -> str:
        return f"{self._done}/{self._points}" if self._points else ""
