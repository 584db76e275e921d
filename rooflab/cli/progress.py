"""A sweep's progress on a terminal: current step, finished points, time left."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rooflab.cli import console
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.observers import Lines
from rooflab.runs.store import RunData


def observer() -> Lines:
    """A bar on a terminal, lines in a pipe."""
    return Terminal() if console.err().is_terminal else Lines(console.note, console.warn)


class Terminal(Lines):
    """A bar instead of lines."""

    bar: Progress

    def __init__(self) -> None:
        super().__init__(console.note, console.warn)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console.err(),
            transient=True,
        )
        self._task = self.bar.add_task("starting", total=None, count="", left="")

    def phase(self, text: str) -> None:
        """Show it beside the bar."""
        self.bar.update(self._task, description=text)

    def began(self, run: RunData, points: int) -> None:
        """Print the device and its roofs; show the progress bar."""
        super().began(run, points)
        self.bar.update(self._task, total=points or None, count=self._count())

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """Show the current step."""
        what = f"{step} {kernel} {problem.precision} {problem.size}"
        self.bar.update(self._task, description=what)

    def measured(self, row: Measurement, detail: str) -> None:
        """Advance the bar."""
        self._done += 1
        left = self._time_left(row)
        self.bar.update(self._task, advance=1, count=self._count(), left=left)
        self._detail(row, detail)

    def _count(self) -> str:
        return f"{self._done}/{self._points}" if self._points else ""
