"""A fleet on the terminal: progress of each member, and how they ended."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final, Self

from rich import box
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from rooflab import api
from rooflab.cli import console
from rooflab.errors import RunError
from rooflab.fleet import text
from rooflab.fleet.coordinate import Watcher
from rooflab.fleet.launch import LOCAL
from rooflab.fleet.ranks import load_ranks
from rooflab.fleet.record import DONE, REFUSED, MemberRecord, load
from rooflab.fleet.runs import Assessment, assess, differing_versions
from rooflab.model.measurement import Measurement
from rooflab.report import ranks
from rooflab.runs import store
from rooflab.runs.store import MEMBERS, runs_in
from rooflab.runs.text import clean

MOST_BARS: Final = 16
"""Members with a bar of their own; of more, one bar counts the rows of all."""


class Members(Watcher):
    """Shows progress on stderr; use it as a context manager. ``folder`` is the fleet's."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self._bars: dict[tuple[object, ...], TaskID] = {}
        self._together = False
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

    def __exit__(self, *error: object) -> None:
        self._progress.stop()

    def opened(self, folder: Path, count: int) -> None:
        """Make the bar of all, if they are many."""
        self.folder, self._together = folder, count > MOST_BARS
        if self._together:
            self._bars[()] = self._progress.add_task(f"{count} members", total=0)

    def _bar(self, member: MemberRecord) -> TaskID:
        place = () if self._together else member.place
        with self._change:
            if place not in self._bars:
                self._bars[place] = self._progress.add_task(_title(member), total=None)
            return self._bars[place]

    def joined(self, member: MemberRecord, points: int) -> None:
        """Now the number of its rows is known."""
        bar = self._bar(member)
        with self._change:
            self._points += points
        self._progress.update(bar, total=self._points if self._together else points)

    def heard(self, member: MemberRecord, text: str) -> None:
        """Show its current step."""
        bar = self._bar(member)
        if not self._together:
            self._progress.update(bar, description=f"{_title(member)} {clean(text)}")

    def noted(self, member: MemberRecord, text: str) -> None:
        """Print a note."""
        console.note(f"{_title(member)}: {clean(text)}")

    def measured(self, member: MemberRecord, row: Measurement) -> None:
        """Advance the bar."""
        self._progress.update(self._bar(member), advance=1)

    def left(self, member: MemberRecord) -> None:
        """Say why a member is not done."""
        if member.status != DONE:
            console.warn(f"{_title(member)}: {member.status}: {clean(member.reason)}")


def _title(member: MemberRecord) -> str:
    phase = member.phase.replace("-", " ", 1)
    return clean(f"{member.host} {member.device} {phase}".strip())


def report(folder: Path, found: Assessment | None = None) -> int:
    """Print the members of a fleet's folder and who is slow; returns the exit code.

    0 if all are done, 2 if all were refused, else 1. Of a program it says whom its ranks wait for.
    """
    if load(folder).ranks:
        program = load_ranks(folder)
        ranks.show(program, console.out())
        console.note(f"{folder}/{MEMBERS}/: a run of each rank")
        return int(len(program.ranks) < program.size)
    code = _summarize(folder)
    if found or measured(folder):
        text.show(found or assess(api.load_fleet(folder)), console.out())
    return code


def measured(folder: Path) -> bool:
    """Whether a member has begun to measure."""
    return bool(runs_in(folder / MEMBERS))


def _summarize(folder: Path) -> int:
    record = load(folder)
    runs = {}
    for path in runs_in(folder / MEMBERS):
        with suppress(RunError):  # what cannot be read is in the list of what is missing
            runs[path.name] = store.load(path)
    table = Table(box=box.SIMPLE_HEAD)
    for name in ("member", "device", "rows", "status"):
        table.add_column(name, justify="right" if name == "rows" else "left", overflow="fold")
    complete = True
    for member in record.members.values():
        run = runs.get(member.name)
        rows, points = (len(run.measurements), run.manifest.points) if run else (0, 0)
        complete &= member.status == DONE and rows == points
        status = member.status + (f": {member.reason}" if member.reason else "")
        count = f"{rows}/{points}" if points else "0"
        table.add_row(*map(escape, (member.name, member.title or member.device, count, status)))
    console.out().print(table)
    for name, told in differing_versions(run.manifest for run in runs.values()).items():
        console.warn(f"members differ in {name}: {told}")
    console.note(f"{folder}/")
    if not complete:
        way = "" if record.launch == LOCAL else ", and --hosts, --launch and --python as before"
        console.note(f"measure the rest with: rooflab fleet sweep --resume {folder}{way}")
    statuses = {member.status for member in record.members.values()}
    return 0 if statuses == {DONE} else 2 if statuses == {REFUSED} else 1
