"""The heat map of a fleet: a row per member, a column per resource."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from typing import Final

from rooflab.fleet.outliers import Finding, Rating
from rooflab.fleet.page.members import Content, Entry, link, typeset
from rooflab.fleet.runs import Resource
from rooflab.fleet.text import resource_title, signed
from rooflab.report.html.markup import Markup, element, scrolled, section

STEPS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Differences in percent from which on a colour is used."""

_TOLD: Final = (
    "Difference of the time from the median of the others, in percent: + is slower, \u2212 is "
    "faster. SLOW and FAST are outliers, ? is undecided, – was not measured."
)
_MARKS: Final = {Rating.SLOW: " SLOW", Rating.FAST: " FAST", Rating.UNDECIDED: " ?"}


def heat(content: Content) -> Markup:
    """The section."""
    resources = content.found.resources
    heads = [element("th", resource_title(one), scope="col") for one in resources]
    table = element(
        "table",
        element("thead", element("tr", element("th", "member", scope="col"), *heads)),
        element("tbody", *(_row(entry, resources) for entry in content.entries)),
        class_="heat",
    )
    title = "Every member, every resource"
    return section("heat", title, element("p", _TOLD), _key(), scrolled(table, "Heat map"))


def _row(entry: Entry, resources: tuple[Resource, ...]) -> Markup:
    name = link(entry)
    cells = [_cell(entry, resource) for resource in resources]
    return element("tr", element("th", name, scope="row"), *cells, data_rows=entry.id)


def _cell(entry: Entry, resource: Resource) -> Markup:
    standing = entry.standings.get(resource)
    if standing is None or standing.finding.difference is None:
        return element("td", "–", class_="none")
    found = standing.finding
    text = typeset(signed(standing.finding.difference)) + _MARKS.get(found.verdict, "")
    return element("td", element("b", text) if found.outlier else text, class_=_class(found))


def _class(found: Finding) -> str:
    look = shade(100 * (found.difference or 0.0))
    return f"{look} out" if found.outlier else look


def shade(percent: float) -> str:
    """The class of a colour: ``s1`` to ``s5`` are slower, ``f1`` to ``f5`` faster, ``e`` even."""
    step = bisect_right(STEPS, abs(percent))
    return f"{'s' if percent > 0 else 'f'}{step}" if step else "e"


def _key() -> Markup:
    """The colours, each with the difference that it begins at."""
    return element("ul", *_shades(), class_="key", aria_label="Colours, in percent")


def _shades() -> Iterator[Markup]:
    for step in reversed(STEPS):
        yield element("li", f"\u2212{step:g}", class_=shade(-step))
    yield element("li", "0", class_=shade(0.0))
    for step in STEPS:
        yield element("li", f"+{step:g}", class_=shade(step))
