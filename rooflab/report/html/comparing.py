"""Several runs side by side: races of devices, and verdicts on runs of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.errors import UsageError
from rooflab.report import races as race_report
from rooflab.report import verdicts
from rooflab.report.html.content import Report, ReportRow
from rooflab.report.html.frame import MANY
from rooflab.report.html.markup import Markup, element, section, table
from rooflab.report.html.rows import TextColumn
from rooflab.runs.compare import Comparison, Point, compare, same_device
from rooflab.runs.races import races
from rooflab.runs.store import Run

THRESHOLD_PERCENT: Final = 0.5


Compared = tuple[int, int, Comparison | UsageError]
"""The numbers of two runs of one device, and their comparison or why there is none."""


def compared(report: Report) -> list[Compared]:
    """Each later run of a device against its first one."""
    firsts: list[int] = []
    found: list[Compared] = []
    for i, run in enumerate(report.runs):
        first = next((j for j in firsts if same_device(report.runs[j], run)), None)
        if first is None:
            firsts.append(i)
            continue
        try:
            found.append((first, i, compare(report.runs[first], run, THRESHOLD_PERCENT)))
        except UsageError as error:
            found.append((first, i, error))
    return found


def columns(report: Report, found: Sequence[Compared]) -> Iterator[TextColumn]:
    """The verdict on each row of a later run, and how its time has changed."""
    points = {id(point.new): point for point in _points(found)}
    ones = [points.get(id(one.row)) for one in report.rows]
    yield TextColumn("verdict", [one.verdict if one else "" for one in ones])
    changes = [verdicts.signed(one.change_percent) if one else "" for one in ones]
    yield TextColumn("change %", changes)


def before(report: Report, found: Sequence[Compared]) -> dict[int, ReportRow]:
    """The row of the first run to each row of a later one, by the later one's number."""
    return {report.of[id(p.new)].number: report.of[id(p.base)] for p in _points(found)}


def _points(found: Sequence[Compared]) -> Iterator[Point]:
    for _, _, result in found:
        yield from result.points if isinstance(result, Comparison) else ()


def comparison(report: Report, found: Sequence[Compared]) -> Markup:
    """The section; nothing for one run."""
    if not report.several:
        return Markup()
    parts = [*_races(report.runs), *(part for one in found for part in _told(report, *one))]
    return section("comparison", "Comparison", *parts)


def _races(runs: Sequence[Run]) -> Iterator[Markup]:
    """Of different devices: the last run's against the others'."""
    if all(same_device(runs[0], run) for run in runs):
        return
    try:
        yield element("ul", *(element("li", race_report.sentence(race)) for race in races(runs)))
    except UsageError as error:
        yield element("p", f"The devices cannot be compared: {error}")


def _told(report: Report, base: int, new: int, result: Comparison | UsageError) -> Iterator[Markup]:
    names = f"{report.names[new]} against {report.names[base]}"
    if isinstance(result, UsageError):
        yield element("p", f"{names}: they cannot be compared: {result}")
        return
    yield element("h3", names)
    yield element("p", verdicts.sentence(result))
    if result.differences:
        heads = ("what", report.names[base], report.names[new])
        cells = [(each.name, each.base, each.new) for each in result.differences]
        differing = table(heads, cells, "Differences")
        yield element("details", element("summary", "What else differs"), differing)
    if result.points:
        body = verdicts.point_cells(result)
        yield table(verdicts.COLUMNS, body[:MANY], "Regressions first", f"Verdicts, {names}")
        if (rest := len(body) - MANY) > 0:
            yield element("p", f"And {rest} more: the table of all rows has the verdict on each.")
