"""Two runs side by side, in words and cells: what every output of a comparison shares."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rich.markup import escape
from rich.table import Table

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.report import markdown
from rooflab.report.fitting import FigureTable
from rooflab.report.text import digits, heading, label
from rooflab.runs.compare import Comparison, Point, StatusChange, Verdict

_MENTIONED: Final = 4

COLUMNS: Final = ["verdict", "kernel", "problem", "size", "base µs", "new µs", "change %", "why"]
ALIGNED: Final = [":--", ":--", ":--", "--:", "--:", "--:", "--:", ":--"]
"""The columns of ``cells``, and their alignment in Markdown."""

DIFFERING: Final = ("what differs", "BASE", "NEW")


def headings(comparison: Comparison) -> list[str]:
    """A line about each run."""
    runs = (("BASE", comparison.base), ("NEW", comparison.new))
    return [
        f"{name}: {run.path}, {run.manifest.device.name}, {run.manifest.created:%Y-%m-%d %H:%M} UTC"
        for name, run in runs
    ]


def differing(comparison: Comparison) -> list[list[str]]:
    """Lines of a table of the environments' differences, below ``DIFFERING``."""
    return [[each.name, each.base, each.new] for each in comparison.differences]


def differing_table(comparison: Comparison) -> Table:
    """The same for a terminal."""
    table = FigureTable("")
    for name in DIFFERING:
        table.add_column(name, overflow="fold")
    for line in differing(comparison):
        table.add_row(*map(escape, line))
    return table


def differing_markdown(comparison: Comparison, escape: markdown.Escape = markdown.escape) -> str:
    """The same in Markdown."""
    return markdown.table(DIFFERING, [":--"] * 3, differing(comparison), escape)


def change_text(point: Point) -> str:
    """``+1.23 (+0.70…+1.76)``: the change, and its range within the intervals."""
    change, interval = change_texts(point)
    return change + (f" ({interval})" if interval else "")


def change_texts(point: Point) -> tuple[str, str]:
    """``+1.23`` and ``+0.70…+1.76``; empty if unknown."""
    low, high = point.change_lo_percent, point.change_hi_percent
    interval = "" if low is None or high is None else f"{signed(low)}…{signed(high)}"
    return signed(point.change_percent), interval


def times_text(point: Point) -> str:
    """``100.00 → 110.00 µs, +10.0 (+9.58…+10.4) %``."""
    before, after = (digits(row.time_us, 5) for row in (point.base, point.new))
    return f"{before} → {after} µs, {change_text(point)} %"


def signed(percent: float | None) -> str:
    """``+1.23``, with fewer places of a large change; empty for None."""
    if percent is None:
        return ""
    places = 2 if abs(percent) < 9.995 else 1 if abs(percent) < 99.95 else 0
    # Adding 0 turns a rounded -0.0 into 0.0.
    return f"{round(percent, places) + 0.0:+.{places}f}"


def _mentioned(rows: Sequence[Measurement]) -> list[str]:
    names = [label(row) for row in rows[:_MENTIONED]]
    return names + [f"and {len(rows) - _MENTIONED} more"] * (len(rows) > _MENTIONED)


def reasons(comparison: Comparison) -> list[str]:
    """One line per reason of AMBIGUOUS points, and one per change of status."""
    by_reason = grouped((point for point in comparison.points if point.reason), lambda p: p.reason)
    lines = [
        f"{Verdict.AMBIGUOUS}, {reason}: {'; '.join(_mentioned([p.base for p in points]))}"
        for reason, points in by_reason.items()
    ]
    changes = [
        ": ".join(filter(None, [statuses(change), label(change.base), why(change)]))
        for change in comparison.status_changes
    ]
    return lines + changes


def statuses(change: StatusChange) -> str:
    """``ok → incorrect``."""
    return f"{change.base.status} → {change.new.status}"


def why(change: StatusChange) -> str:
    """Why there is no figure in NEW, or was none in BASE."""
    return change.new.reason or change.base.reason


def unmatched(comparison: Comparison) -> list[tuple[str, list[str]]]:
    """The sides with points of their own, and the first of these."""
    sides = (("only in BASE", comparison.only_base), ("only in NEW", comparison.only_new))
    return [(what, _mentioned(rows)) for what, rows in sides if rows]


def sentence(comparison: Comparison) -> str:
    """The counts: ``12 points in common: 1 SLOW, 11 SAME; 1 broken, 2 only in BASE.``"""
    verdicts = [f"{count} {verdict}" for verdict, count in comparison.counts.items() if count]
    others = [
        f"{count} {what}"
        for count, what in (
            (comparison.broken, "broken"),
            (len(comparison.status_changes) - comparison.broken, "with another status"),
            (comparison.unmeasured, "without figures in both"),
            (len(comparison.only_base), "only in BASE"),
            (len(comparison.only_new), "only in NEW"),
        )
        if count
    ]
    common = len(comparison.points) + len(comparison.status_changes) + comparison.unmeasured
    parts = [", ".join(part) for part in (verdicts, others) if part]
    return f"{common} point{'s' * (common != 1)} in common: {'; '.join(parts)}."


def cells(comparison: Comparison, verdicts: Iterable[Verdict] = tuple(Verdict)) -> list[list[str]]:
    """Lines of a table: what broke, the points by verdict, other changes of status."""
    broken: dict[bool, list[list[str]]] = {True: [], False: []}
    for change in comparison.status_changes:
        broken[change.broken].append(_line(statuses(change), change, "", why(change)))
    return [*broken[True], *point_cells(comparison, verdicts), *broken[False]]


def point_cells(
    comparison: Comparison, verdicts: Iterable[Verdict] = tuple(Verdict)
) -> list[list[str]]:
    """Lines of a table: the points that both runs measured, by verdict."""
    return [
        _line(verdict, point, change_text(point), point.reason)
        for verdict in verdicts
        for point in comparison.points
        if point.verdict == verdict
    ]


def _line(verdict: str, pair: Point | StatusChange, change: str, reason: str) -> list[str]:
    base, new = pair.base, pair.new
    times = (digits(row.time_us, 5) for row in (base, new))
    problem = base.problem
    return [verdict, base.kernel, heading(problem), problem.size, *times, change, reason]
