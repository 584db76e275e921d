"""A sweep's progress on a terminal: current step, finished points, time left."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rooflab.cli import console
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.observers import Lines
from rooflab.runs.store import Run


def observer() -> Piped:
    """A bar on a terminal, lines in a pipe."""
    return Terminal() if console.err().is_terminal else Piped()


class Piped(Lines):
    """Lines on stderr; use it as a context manager."""

    def __init__(self) -> None:
        super().__init__(console.note, console.warn)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left to do."""

    def began(self, run: Run, points: int) -> None:
        """Warn of roofs that may be too low."""
        super().began(run, points)
        if any(one.disturbed for one in run.manifest.roofline.used(self._precisions)):
            console.warn("measured roofs may be too low: other programs used the processor")


class Terminal(Piped):
    """A bar instead of lines."""

    def __init__(self) -> None:
        super().__init__()
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.fields[count]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
            console=console.err(),
            transient=True,
        )
        self._task = self._progress.add_task("starting", total=None, count="", left="")

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

    def phase(self, text: str) -> None:
        """Beside the bar."""
        self._progress.update(self._task, description=text)

    def began(self, run: Run, points: int) -> None:
        """Print the device and its roofs; show the progress bar."""
        super().began(run, points)
        self._progress.update(self._task, total=points or None, count=self._count())

    def progress(self, problem: ProblemRecord, kernel: str, step: str) -> None:
        """Show the current step."""
        what = f"{step} {kernel} {problem.precision} {problem.size}"
        self._progress.update(self._task, description=what)

    def measured(self, row: Measurement, detail: str) -> None:
        """Advance the bar."""
        self._done += 1
        left = self._time_left(row)
        self._progress.update(self._task, advance=1, count=self._count(), left=left)
        self._detail(row, detail)

    def _count(self) -> str:
        return f"{self._done}/{self._points}" if self._points else ""
