"""A fleet on the terminal: how it is measured, progress of each member, and how they ended."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Final, Self

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rooflab import api
from rooflab.cli import console
from rooflab.errors import UsageError
from rooflab.fleet import text as fleet
from rooflab.fleet.coordinate import Watcher
from rooflab.fleet.launch import LOCAL
from rooflab.fleet.outliers import THRESHOLD_PERCENT
from rooflab.fleet.phases import Target
from rooflab.fleet.record import DONE, REFUSED, MemberRecord, load
from rooflab.fleet.runs import MEMBERS, Assessment, assess, differing_versions, load_fleet
from rooflab.fleet.session import Setup
from rooflab.model.measurement import Measurement
from rooflab.options import Chosen
from rooflab.runs import store
from rooflab.runs.manifest import MANIFEST, clean

MOST_BARS: Final = 16
"""Members with a bar of their own; of more, one bar counts the rows of all."""


class Members(Watcher):
    """Shows progress on stderr; use it as a context manager."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._bars: dict[Target, TaskID] = {}
        self._together: TaskID | None = None
        self._change = Lock()
        self._points = 0
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.completed}/{task.total}"),
            TimeElapsedColumn(),
            console=console.err(),
            transient=True,
        )

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

    def opened(self, folder: Path, count: int) -> None:
        """Make the bar of all, if they are many."""
        self._folder = folder
        if count > MOST_BARS:
            self._together = self._progress.add_task(f"{count} members", total=0)

    def _bar(self, target: Target) -> TaskID:
        if self._together is not None:
            return self._together
        with self._change:
            if target not in self._bars:
                self._bars[target] = self._progress.add_task(_title(target), total=None)
            return self._bars[target]

    def joined(self, target: Target, member: MemberRecord, points: int) -> None:
        """Now the number of its rows is known."""
        bar = self._bar(target)
        with self._change:
            self._points += points
        self._progress.update(bar, total=self._points if self._together is not None else points)

    def heard(self, target: Target, text: str) -> None:
        """Show its current step."""
        bar = self._bar(target)
        if self._together is None:
            self._progress.update(bar, description=f"{_title(target)} {clean(text)}")

    def noted(self, target: Target, text: str) -> None:
        """Print a note."""
        console.note(f"{_title(target)}: {clean(text)}")

    def measured(self, target: Target, row: Measurement) -> None:
        """Advance the bar."""
        self._progress.update(self._bar(target), advance=1)

    def left(self, target: Target, member: MemberRecord) -> None:
        """Say why a member is not done."""
        if member.status != DONE:
            console.warn(f"{_title(target)}: {member.status}: {clean(member.reason)}")

    def finish(self) -> int:
        """Print the table of members; returns the exit code."""
        return report(self._folder) if self._folder and self._folder.exists() else 1


def _title(target: Target) -> str:
    return clean(f"{target.host} {target.device} {target.phase.replace('-', ' ', 1)}".strip())


def report(folder: Path, threshold_percent: float = THRESHOLD_PERCENT) -> int:
    """Print the members of a fleet's folder and who is slow; returns the exit code.

    0 if all are done, 2 if all were refused, else 1.
    """
    code = _summarize(folder)
    if measured(folder):
        fleet.show(judged(folder, threshold_percent), console.out())
    return code


def measured(folder: Path) -> bool:
    """Whether a member has begun to measure."""
    return any((folder / MEMBERS).glob(f"*/{MANIFEST}"))


def judged(folder: Path, threshold_percent: float) -> Assessment:
    """Who is slow. Raises ``UsageError`` if nothing was measured."""
    members = load(folder).members.values()
    first = [member.name for member in members if member.first]
    return assess(load_fleet(folder, first), threshold_percent)


def _summarize(folder: Path) -> int:
    record = load(folder)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("member", "device", "rows"):
        table.add_column(name, justify="right" if name == "rows" else "left", overflow="fold")
    table.add_column("status", overflow="fold")
    complete = True
    for member in record.members.values():
        rows, points = _rows(folder / MEMBERS / member.name)
        complete &= member.status == DONE and rows == points
        status = member.status + (f": {member.reason}" if member.reason else "")
        count = f"{rows}/{points}" if points else "0"
        table.add_row(*map(escape, (member.name, member.title or member.device, count, status)))
    console.out().print(table)
    _print_versions(folder)
    console.note(f"{folder}/")
    if not complete:
        way = "" if record.launch == LOCAL else ", and --hosts, --launch and --python as before"
        console.note(f"measure the rest with: rooflab fleet sweep --resume {folder}{way}")
    statuses = {member.status for member in record.members.values()}
    return 0 if statuses == {DONE} else 2 if statuses == {REFUSED} else 1


def _rows(folder: Path) -> tuple[int, int]:
    """Rows of a member, and how many there will be."""
    if not (folder / MANIFEST).is_file():
        return 0, 0
    run = store.load(folder)
    return len(run.measurements), run.manifest.points


def _print_versions(folder: Path) -> None:
    """Warn of versions in which members differ."""
    paths = sorted((folder / MEMBERS).glob(f"*/{MANIFEST}"))
    for name, told in differing_versions(store.load(p.parent).manifest for p in paths).items():
        console.warn(f"members differ in {name}: {told}")


# Measuring ---------------------------------------------------------------------------------------


def measure(
    wanted: Setup, chosen: Chosen, out: Path, command: list[str], folder: Path | None = None
) -> int:
    """Measure, or the rest of ``folder``, and show the members; returns the exit code."""
    given = chosen.options
    if "threads" in given:
        if len(given["threads"]) > 1:
            raise UsageError("several devices take one number of --threads")
        (given["threads"],) = given["threads"]
    if folder and (given.keys() - {"kernels"} or chosen.workload or chosen.config != "default"):
        raise UsageError(
            "--resume uses the fleet's settings: the other options are --launch, --on, --hosts, "
            "--python, --device, --mixed, and --kernel with its kernel files"
        )
    watcher, code = Members(), 0
    try:
        with watcher:
            if folder:
                api.resume_fleet(folder, wanted, chosen, watcher)
            else:
                api.start_fleet(wanted, chosen, out, watcher, command)
    except KeyboardInterrupt:
        console.ignore_interrupts()
        code = 130
    return code or watcher.finish()
