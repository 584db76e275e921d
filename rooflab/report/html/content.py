"""The content of a report: its runs, their rows with an id each, and how kernels look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import attrgetter
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures.palette import KernelStyle, kernel_styles
from rooflab.model.measurement import COLUMNS, Measurement, is_possible
from rooflab.report.html.frame import MANY
from rooflab.report.text import digits
from rooflab.runs.names import run_names
from rooflab.runs.program import is_program
from rooflab.runs.store import RunData

ABSURD: Final = 1e30
"""No number of a row is so large."""


@dataclass(frozen=True, slots=True)
class ReportRow:
    """One row: ``number`` is its place in the page, ``run`` that of its run, from 0."""

    number: int
    run: int
    row: Measurement

    @property
    def id(self) -> str:
        """Of its element."""
        return f"r{self.number}"


@dataclass(frozen=True)
class Report:
    """What a report is about; ``names`` are those of the runs."""

    runs: Sequence[RunData]
    names: Sequence[str]
    rows: Sequence[ReportRow]
    styles: dict[str, KernelStyle]

    @cached_property
    def classes(self) -> dict[str, str]:
        """The class of each kernel's colour."""
        return {kernel: f"k{i}" for i, kernel in enumerate(self.styles)}

    @cached_property
    def measured(self) -> list[ReportRow]:
        """The rows with a possible time, which have a place in figures."""
        return [one for one in self.rows if _measured(one.row)]

    @cached_property
    def of_programs(self) -> list[RunData]:
        """The runs of programs."""
        return [run for run in self.runs if is_program(run.measurements)]

    @cached_property
    def of(self) -> dict[int, ReportRow]:
        """Rows by the identity of their measurement."""
        return {id(one.row): one for one in self.rows}

    @property
    def drawn(self) -> list[RunData]:
        """The runs with only the rows that have a possible time."""
        rows: list[list[Measurement]] = [[] for _ in self.runs]
        for one in self.measured:
            rows[one.run].append(one.row)
        return [replace(run, measurements=rows[i]) for i, run in enumerate(self.runs)]

    @property
    def several(self) -> bool:
        """Whether there is more than one run."""
        return len(self.runs) > 1

    @property
    def many(self) -> bool:
        """Whether there are too many rows for an element each."""
        return len(self.rows) > MANY

    def owner(self, one: ReportRow) -> str:
        """The name of a row's run; empty if there is one run."""
        return self.names[one.run] if self.several else ""


def report(runs: Sequence[RunData]) -> Report:
    """The content of a report; raises ``UsageError`` if a run has no row."""
    for run in runs:
        if not run.measurements:
            raise UsageError(f"{run.path} has no row: there is nothing to report")
    pairs = [(i, row) for i, run in enumerate(runs) for row in run.measurements]
    rows = [ReportRow(number, i, row) for number, (i, row) in enumerate(pairs, 1)]
    return Report(runs, run_names(runs), rows, kernel_styles(row.kernel for _, row in pairs))


def number(value: float | None) -> float | None:
    """``value`` if it is one that a page can show."""
    return value if value is not None and abs(value) < ABSURD else None


def figure(row: Measurement, name: str) -> str:
    """A number of a row with its digits; empty if it is impossible."""
    return digits(number(getattr(row, name)), COLUMNS[name].digits)


_numbers: Final = attrgetter(*(n for n, column in COLUMNS.items() if column.type is not str))


def _measured(row: Measurement) -> bool:
    return (
        row.status == "ok"
        and is_possible(row.time_us)
        and all(value is None or abs(value) < ABSURD for value in _numbers(row))
    )
