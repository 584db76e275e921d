"""The rows of a report: each has an id, and one with possible figures has a place in figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures.palette import KernelStyle, kernel_styles
from rooflab.model.measurement import COLUMNS, POSSIBLE_US, Measurement
from rooflab.report.text import digits
from rooflab.runs.names import competitors, run_names
from rooflab.runs.store import Run

ABSURD: Final = 1e30
"""No number of a row is so large."""

MANY: Final = 500
"""A page with more rows has them and their points as data, of which its script makes a table and
marks. A page with fewer has elements, and needs no script."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: ``number`` is its place in the page, ``run`` that of its run, from 0."""

    number: int
    run: int
    row: Measurement

    @property
    def id(self) -> str:
        """Of its element."""
        return f"r{self.number}"


@dataclass(frozen=True)
class Content:
    """What a report is about: ``names`` and ``devices`` are those of the runs."""

    runs: Sequence[Run]
    names: Sequence[str]
    devices: Sequence[str]
    entries: Sequence[Entry]
    measured: Sequence[Entry]
    """The rows with a possible time."""
    styles: dict[str, KernelStyle]
    classes: dict[str, str]
    """The class of each kernel's colour."""

    @cached_property
    def entry_of(self) -> dict[int, Entry]:
        """Entries by the identity of their rows."""
        return {id(entry.row): entry for entry in self.entries}

    @property
    def drawn(self) -> list[Run]:
        """The runs with only the rows that have a possible time."""
        rows: list[list[Measurement]] = [[] for _ in self.runs]
        for entry in self.measured:
            rows[entry.run].append(entry.row)
        return [replace(run, measurements=rows[i]) for i, run in enumerate(self.runs)]

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    @property
    def many(self) -> bool:
        """Whether there are too many rows for an element each."""
        return len(self.entries) > MANY


def content(runs: Sequence[Run]) -> Content:
    """The content of a report; raises ``UsageError`` if a run has no row."""
    for run in runs:
        if not run.measurements:
            raise UsageError(f"{run.path} has no row: there is nothing to report")
    rows = [(i, row) for i, run in enumerate(runs) for row in run.measurements]
    entries = [Entry(number, i, row) for number, (i, row) in enumerate(rows, 1)]
    styles = kernel_styles(entry.row.kernel for entry in entries)
    return Content(
        runs,
        run_names(runs),
        competitors(runs),
        entries,
        [entry for entry in entries if measured(entry.row)],
        styles,
        {kernel: f"k{i}" for i, kernel in enumerate(styles)},
    )


def number(value: float | None) -> float | None:
    """``value`` if it is one that a page can show."""
    return value if value is not None and abs(value) < ABSURD else None


def figure(row: Measurement, name: str) -> str:
    """A number of a row with its digits; empty if it is impossible."""
    return digits(number(getattr(row, name)), COLUMNS[name].digits or 4)


_numbers: Final = attrgetter(*(n for n, column in COLUMNS.items() if column.type is not str))


def measured(row: Measurement) -> bool:
    """Whether the row has status ok, a possible time and no absurd number."""
    low, high = POSSIBLE_US
    return (
        row.status == "ok"
        and row.time_us is not None
        and low < row.time_us < high
        and all(value is None or abs(value) < ABSURD for value in _numbers(row))
    )
