"""Several runs side by side: races of devices, and verdicts on runs of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rooflab.errors import UsageError
from rooflab.report import program_comparison, verdicts
from rooflab.report import races as race_report
from rooflab.report.html.content import Report, ReportRow
from rooflab.report.html.frame import MANY
from rooflab.report.html.markup import Markup, element, section, table
from rooflab.report.html.rows import TextColumn
from rooflab.runs.compare import Comparison, Point, same_device
from rooflab.runs.compare_programs import ProgramComparison, comparable, compare_any
from rooflab.runs.matching import Pair
from rooflab.runs.program import is_program
from rooflab.runs.races import races
from rooflab.runs.store import RunData

Compared = tuple[int, int, Comparison | UsageError]
"""The numbers of two runs that are comparable, and their comparison or why there is none."""


def compared(report: Report) -> list[Compared]:
    """Each later run of a device, or of a program, against the first one."""
    firsts: list[int] = []
    found: list[Compared] = []
    for i, run in enumerate(report.runs):
        first = next((j for j in firsts if _alike(report.runs[j], run)), None)
        if first is None:
            firsts.append(i)
            continue
        try:
            found.append((first, i, compare_any(report.runs[first], run)))
        except UsageError as error:
            found.append((first, i, error))
    return found


def _alike(base: RunData, new: RunData) -> bool:
    kinds = {is_program(run.measurements) for run in (base, new)}
    return len(kinds) == 1 and comparable(base, new)


def columns(report: Report, found: Sequence[Compared]) -> Iterator[TextColumn]:
    """The verdict on each row of a later run, and how its time has changed."""
    points = {id(row): point for point, pair in _points(found) for row in pair.new_rows}
    ones = [points.get(id(one.row)) for one in report.rows]
    yield TextColumn("verdict", [one.verdict if one else "" for one in ones])
    changes = [verdicts.signed(one.change_percent) if one else "" for one in ones]
    yield TextColumn("change %", changes)


def before(report: Report, found: Sequence[Compared]) -> dict[int, ReportRow]:
    """The row of the first run to each row of a later one, by the later one's number."""
    pairs = [pair for _, pair in _points(found)]
    return {
        report.of[id(row)].number: report.of[id(pair.base_rows[0])]
        for pair in pairs
        for row in pair.new_rows
    }


def _points(found: Sequence[Compared]) -> Iterator[tuple[Point, Pair]]:
    for _, _, result in found:
        if isinstance(result, ProgramComparison):
            yield from zip(result.groups, result.pairs, strict=True)
        elif isinstance(result, Comparison):
            yield from ((point, Pair.of([point.base], [point.new])) for point in result.points)


def comparison(report: Report, found: Sequence[Compared]) -> Markup:
    """The section; nothing for one run."""
    if not report.several:
        return Markup()
    parts = [*_races(report.runs), *(part for one in found for part in _told(report, *one))]
    return section("comparison", "Comparison", *parts)


def _races(runs: Sequence[RunData]) -> Iterator[Markup]:
    """Of different devices: the last run's against the others'."""
    runs = [run for run in runs if not is_program(run.measurements)]
    if not runs or all(same_device(runs[0], run) for run in runs):
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
    if isinstance(result, ProgramComparison):
        names = f"{report.names[new]} (NEW) against {report.names[base]} (BASE)"
        said = program_comparison.sentences(result)
        heads: Sequence[str] = program_comparison.COLUMNS
        body, order = program_comparison.lines_of(result), "Largest changes first"
    else:
        said, heads = [verdicts.sentence(result)], verdicts.COLUMNS
        body, order = verdicts.point_cells(result), "Regressions first"
    yield element("h3", names)
    yield from (element("p", line) for line in said)
    if result.differences:
        yield _differing(result, (report.names[base], report.names[new]))
    if result.points:
        yield table(heads, body[:MANY], order, f"Verdicts, {names}")
        if (rest := len(body) - MANY) > 0:
            yield element("p", f"And {rest} more: the table of all rows has the verdict on each.")


def _differing(result: Comparison, names: tuple[str, str]) -> Markup:
    differing = table(("what", *names), verdicts.differing(result), "Differences")
    return element("details", element("summary", "What else differs"), differing)
