"""The suspects of a fleet: outliers, and members of which it is undecided."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflab.fleet.outliers import Finding
from rooflab.fleet.page.members import Content, Entry, link, typeset
from rooflab.fleet.runs import Averages, PointFinding, Standing
from rooflab.fleet.text import interval, percent, resource_title, signed
from rooflab.report.html.markup import Markup, element, scrolled, section
from rooflab.report.text import label

MOST: Final = 100
"""Rows of the table."""

HEADINGS: Final = (
    *("member", "resource", "verdict", "difference %", "interval %", "p", "noise %"),
    *("SM MHz", "others", "W", "others", "°C", "others", "reason"),
)
_NUMBERS: Final = range(3, 13)
_SENSORS: Final = ("sm_mhz", "power_w", "temp_c")


def suspects(content: Content) -> Markup:
    """The section."""
    found, entries = content.found, content.by_name
    rows = [
        *(_standing(one, entries[one.member]) for one in found.outliers),
        *(_spot(spot, entries[spot.finding.member]) for spot in found.outlying_spots),
        *(_standing(one, entries[one.member]) for one in found.undecided),
    ]
    if not rows:
        return section("suspects", "Suspects", element("p", "None."))
    head = element("tr", *(_cell("th", i, name) for i, name in enumerate(HEADINGS)))
    table = element("table", element("thead", head), element("tbody", *rows[:MOST]))
    rest = len(rows) - MOST
    more = f"And {rest} more: rooflab fleet show --json has them."
    left = [element("p", more)] if rest > 0 else []
    return section("suspects", "Suspects", scrolled(table, "Suspects"), *left)


def _standing(one: Standing, entry: Entry) -> Markup:
    sensors = list(_sensors(one.level, one.others))
    return _row(entry, resource_title(one.resource), one.finding, sensors)


def _spot(spot: PointFinding, entry: Entry) -> Markup:
    what = f"{label(spot.row)} ({resource_title(spot.resource)})"
    return _row(entry, what, spot.finding, [""] * 2 * len(_SENSORS))


def _sensors(mine: Averages, theirs: Averages) -> Iterator[str]:
    for name in _SENSORS:
        for level in (mine, theirs):
            value = getattr(level, name)
            yield "" if value is None else f"{value:.0f}"


def _row(entry: Entry, what: str, found: Finding, sensors: list[str]) -> Markup:
    change = typeset(signed(found.difference or 0.0))
    cells = [
        *(link(entry), what, found.verdict.value, change, typeset(interval(found))),
        *(p_text(found.p), _noise(found), *sensors, found.reason),
    ]
    return element(
        "tr", *(_cell("td", i, text) for i, text in enumerate(cells)), data_rows=entry.id
    )


def _cell(name: str, column: int, text: str) -> Markup:
    scope = "col" if name == "th" else False
    return element(name, text, class_="n" if column in _NUMBERS else False, scope=scope)


def p_text(p: float | None) -> str:
    """A p-value: two digits, and no more zeros than make sense."""
    if p is None:
        return ""
    return "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _noise(found: Finding) -> str:
    """That of repeats; ``~`` if the spread of the members took its place."""
    noise = found.noise
    if noise.known:
        return percent(noise.repeats or 0.0)
    return "" if noise.members is None else f"~{percent(noise.members)}"
