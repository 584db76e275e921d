"""Several runs side by side: races of devices, and verdicts on runs of one device."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.errors import UsageError
from rooflab.report import races as race_report
from rooflab.report import verdicts
from rooflab.report.html.markup import Markup, element, section, table
from rooflab.report.html.points import Content
from rooflab.runs.compare import Comparison, Verdict, compare, same_device
from rooflab.runs.races import races
from rooflab.runs.store import Run

THRESHOLD_PERCENT: Final = 0.5


def comparison(content: Content) -> Markup:
    """The section; nothing for one run."""
    if not content.several:
        return Markup()
    parts = [*_races(content.runs), *_repeated(content)]
    return section("comparison", "Comparison", *parts)


def _races(runs: Sequence[Run]) -> Iterator[Markup]:
    """Of different devices: the last run's against the others'."""
    if all(same_device(runs[0], run) for run in runs):
        return
    try:
        yield element("ul", *(element("li", race_report.sentence(race)) for race in races(runs)))
    except UsageError as error:
        yield element("p", f"The devices cannot be compared: {error}")


def _repeated(content: Content) -> Iterator[Markup]:
    """Of one device: each later run against its first one."""
    firsts: list[int] = []
    for i, run in enumerate(content.runs):
        first = next((j for j in firsts if same_device(content.runs[j], run)), None)
        if first is None:
            firsts.append(i)
        else:
            yield from _compared(content, first, i)


def _compared(content: Content, base: int, new: int) -> Iterator[Markup]:
    names = f"{content.names[new]} against {content.names[base]}"
    try:
        result = compare(content.runs[base], content.runs[new], THRESHOLD_PERCENT)
    except UsageError as error:
        yield element("p", f"{names}: they cannot be compared: {error}")
        return
    yield element("h3", names)
    yield element("p", verdicts.sentence(result))
    if result.differences:
        cells = [(each.name, each.base, each.new) for each in result.differences]
        yield element(
            "details",
            element("summary", "What else differs"),
            table(("what", content.names[base], content.names[new]), cells, "Differences"),
        )
    if result.points:
        yield _points(result, names)


def _points(result: Comparison, names: str) -> Markup:
    body = verdicts.point_cells(result, tuple(Verdict))
    return table(verdicts.COLUMNS, body, "Regressions first", f"Verdicts, {names}")
