"""What neighbours cost: members beside others against the same members alone."""

from __future__ import annotations

from typing import Final

from rooflab.fleet.interference import Cost, costs
from rooflab.fleet.page.members import Content, Entry, link, typeset
from rooflab.fleet.text import cost_interval, phase_title, resource_title, signed
from rooflab.report.html.markup import Markup, element, scrolled, section

TITLE: Final = "Neighbours"
HEADINGS: Final = (
    *("phase", "resource", "member", "time %", "interval %"),
    *("SM MHz", "alone", "W", "alone"),
)
_NUMBERS: Final = range(3, 9)


def neighbours(content: Content) -> list[Markup]:
    """The section; nothing if the fleet has one phase."""
    found, entries = costs(content.found.fleet), content.by_name
    if not found:
        return []
    head = element("tr", *(_cell("th", i, name) for i, name in enumerate(HEADINGS)))
    rows = (_row(one, entries[one.member]) for one in found)
    table = element("table", element("thead", head), element("tbody", *rows))
    text = (
        "Change of the time beside others, against the median of the processes alone. Bold: the "
        "95 % interval, from the noise between processes, is clear of zero."
    )
    return [section("neighbours", TITLE, element("p", text), scrolled(table, TITLE))]


def _row(one: Cost, entry: Entry) -> Markup:
    change = typeset(signed(one.difference))
    sensors = (one.mhz, one.alone_mhz, one.watts, one.alone_w)
    cells = [
        *(phase_title(one.phase), resource_title(one.resource), link(entry)),
        element("strong", change) if one.proven else change,
        typeset(cost_interval(one)),
        *("" if value is None else f"{value:.0f}" for value in sensors),
    ]
    return element(
        "tr", *(_cell("td", i, text) for i, text in enumerate(cells)), data_rows=entry.id
    )


def _cell(name: str, column: int, text: str | Markup) -> Markup:
    scope = "col" if name == "th" else False
    return element(name, text, class_="n" if column in _NUMBERS else False, scope=scope)
