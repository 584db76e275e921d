"""The tables of a fleet's page: a heat map, the suspects, what neighbours cost, all members.

Filters, sorting and the card of a point read the table of members: it is the data.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from rooflab.fleet.interference import costs
from rooflab.fleet.outliers import OUT, Finding, Rating
from rooflab.fleet.record import MemberRecord, Record
from rooflab.fleet.runs import (
    Assessment,
    Member,
    Resource,
    Standing,
    differing_versions,
    parsed,
    versions,
)
from rooflab.fleet.text import (
    SENSORS,
    interval,
    percent,
    phase_title,
    short_names,
    signed,
    whole,
)
from rooflab.model.grouping import grouped
from rooflab.report.html.frame import choice
from rooflab.report.html.markup import Markup, element, scrolled, section
from rooflab.runs.manifest import Manifest

ALWAYS: Final = ("rooflab", "driver")
"""Versions that have a column even if all members have the same."""

MOST_REASON: Final = 500
"""Characters of a reason that are shown."""

MOST_SUSPECTS: Final = 100

STEPS: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
"""Differences in percent from which on a colour is used."""


# Content -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MemberRow:
    """One member: ``id`` is its row in the page, ``short`` its name where there is little room.

    ``records`` are those of its processes; ``missing`` is what its runs lack, without paths.
    """

    id: str
    name: str
    short: str
    member: Member
    records: Sequence[MemberRecord]
    standings: Mapping[Resource, Standing]
    missing: Sequence[str]

    @property
    def verdict(self) -> str:
        """Everything that it is accused of; else whether it is undecided or even anywhere."""
        found = [one.finding for one in self.standings.values()]
        verdicts = {one.verdict for one in found if one.difference is not None}
        others = [v for v in (Rating.UNDECIDED, Rating.EVEN) if v in verdicts]
        return ", ".join([v for v in OUT if v in verdicts] or others[:1])

    @property
    def manifests(self) -> list[Manifest]:
        """Of its runs."""
        return [run.manifest for run in self.member.runs]


@dataclass(frozen=True, slots=True)
class Overview:
    """What the page is about: members by name, those without a run too.

    ``differing`` has the versions in which they differ.
    """

    found: Assessment
    record: Record
    members: Mapping[str, MemberRow]
    differing: Mapping[str, str]


def overview(found: Assessment, record: Record) -> Overview:
    """The content of a page."""
    records = grouped(record.members.values(), lambda one: parsed(one.name)[0])
    standings: dict[str, dict[Resource, Standing]] = {}
    for standing in found.standings:
        standings.setdefault(standing.member, {})[standing.resource] = standing
    members = {member.name: member for member in found.fleet.members}
    names = sorted({*members, *records})
    short, folder = short_names(names), f"{found.fleet.path}{os.sep}"
    rows = {}
    for i, name in enumerate(names, 1):
        member = members.get(name, Member(name))
        missing = [
            text.partition("; to continue: ")[0].replace(folder, "") for text in member.missing
        ]
        told, mine = records.get(name, ()), standings.get(name, {})
        rows[name] = MemberRow(f"r{i}", name, short[name], member, told, mine, missing)
    differing = differing_versions(one for row in rows.values() for one in row.manifests)
    return Overview(found, record, rows, differing)


def distinct(texts: Iterable[str]) -> str:
    """Texts in their order, each once."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


# Markup ------------------------------------------------------------------------------------------


def _link(row: MemberRow) -> Markup:
    """The short name, leading to the member's row."""
    whole = row.name if row.name != row.short else False
    return element("a", row.short, href=f"#{row.id}", title=whole)


def _typeset(number: str) -> str:
    """A number with a true minus, which the script cannot sort."""
    return number.replace("-", "\u2212")


class ColumnTexts(NamedTuple):
    """The texts under one heading. Readers may choose among those of a ``filter``."""

    name: str
    texts: Sequence[str]
    is_number: bool = True
    filter: bool = False


def _table(
    columns: Sequence[ColumnTexts],
    rows: Iterable[Mapping[str, str]],
    *caption: Markup,
    look: str = "",
) -> Markup:
    """``rows`` are the attributes of each row."""
    kinds = [{"class_": "n"} if one.is_number else {} for one in columns]
    heads = (
        element("th", one.name, scope="col", data_filter=one.filter and one.name, **kind)
        for one, kind in zip(columns, kinds, strict=True)
    )
    body = (
        element("tr", *(element("td", t, **k) for t, k in zip(cells, kinds, strict=True)), **given)
        for cells, given in zip(zip(*(c.texts for c in columns), strict=True), rows, strict=True)
    )
    parts = (*caption, element("thead", element("tr", *heads)), element("tbody", *body))
    return element("table", *parts, class_=look or False)


_TEXTS: Final = ("member", "resource", "verdict", "reason", "phase")
"""Headings of columns that are no numbers."""


def _of_members(
    headings: Sequence[str], lines: Sequence[tuple[MemberRow, Sequence[str]]], name: str
) -> Markup:
    texts = zip(*(cells for _, cells in lines), strict=True)
    columns = [
        ColumnTexts(heading, column, heading not in _TEXTS)
        for heading, column in zip(headings, texts, strict=True)
    ]
    return scrolled(_table(columns, [{"data_rows": row.id} for row, _ in lines]), name)


# The heat map ------------------------------------------------------------------------------------

_TOLD: Final = (
    "Difference of the time from the median of the others, in percent: + is slower, \u2212 is "
    "faster. SLOW and FAST are outliers, ? is undecided, – was not measured."
)
_MARKS: Final = {Rating.SLOW: " SLOW", Rating.FAST: " FAST", Rating.UNDECIDED: " ?"}


def heat(about: Overview) -> Markup:
    """The section: a row per member, a column per resource, and the key of its colours."""
    resources = about.found.resources
    names = ("member", *(one.title for one in resources))
    body = (
        element(
            "tr",
            element("th", _link(row), scope="row"),
            *(_shaded(row.standings.get(one)) for one in resources),
            data_rows=row.id,
        )
        for row in about.members.values()
    )
    head = element("tr", *(element("th", name, scope="col") for name in names))
    table = element("table", element("thead", head), element("tbody", *body), class_="heat")
    steps = [*(-step for step in reversed(STEPS)), 0.0, *STEPS]
    items = (
        element("li", _typeset(f"{step:+g}" if step else "0"), class_=shade(step)) for step in steps
    )
    key = element("ul", *items, class_="key", aria_label="Colours, in percent")
    title = "Every member, every resource"
    return section("heat", title, element("p", _TOLD), key, scrolled(table, "Heat map"))


def _shaded(one: Standing | None) -> Markup:
    if one is None or one.finding.difference is None:
        return element("td", "–", class_="none")
    text = _typeset(signed(one.finding.difference)) + _MARKS.get(one.finding.verdict, "")
    look = shade(100 * one.finding.difference)
    if one.finding.outlier:
        return element("td", element("b", text), class_=f"{look} out")
    return element("td", text, class_=look)


def shade(percent: float) -> str:
    """The class of a colour: ``s1`` to ``s5`` are slower, ``f1`` to ``f5`` faster, ``e`` even."""
    step = bisect_right(STEPS, abs(percent))
    return f"{'s' if percent > 0 else 'f'}{step}" if step else "e"


# Suspects and neighbours -------------------------------------------------------------------------


def suspects(about: Overview) -> Markup:
    """The section: outliers, and members of which it is undecided."""
    found = about.found
    suspected = [*found.outliers, *found.outlying_spots, *found.undecided]
    if not suspected:
        return section("suspects", "Suspects", element("p", "None."))
    headings = (
        *("member", "resource", "verdict", "difference %", "interval %", "p", "noise %"),
        *("SM MHz", "others", "W", "others", "°C", "others", "reason"),
    )
    lines = [
        (about.members[one.member], list(_suspect(about.members[one.member], one)))
        for one in suspected[:MOST_SUSPECTS]
    ]
    more = f"And {len(suspected) - MOST_SUSPECTS} more: rooflab fleet show --json has them."
    left = [element("p", more)] if len(suspected) > MOST_SUSPECTS else []
    return section("suspects", "Suspects", _of_members(headings, lines, "Suspects"), *left)


def _suspect(row: MemberRow, one: Standing) -> Iterator[str]:
    found = one.finding
    yield from (_link(row), one.title, found.verdict.value, _typeset(signed(found.difference)))
    yield from (_typeset(interval(found)), p_text(found.p), _noise(found))
    for name in SENSORS:
        yield from (whole(one.level.get(name)), whole(one.others.get(name)))
    yield found.reason


def p_text(p: float | None) -> str:
    """A p-value: two digits, and no more zeros than make sense."""
    return "" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.2g}"


def _noise(found: Finding) -> str:
    """That of repeats; ``~`` if the spread of the members took its place."""
    noise = found.noise
    if noise.known:
        return percent(noise.repeats or 0.0)
    return "" if noise.members is None else f"~{percent(noise.members)}"


def neighbours(about: Overview) -> list[Markup]:
    """The section: what neighbours cost; nothing if the fleet has one phase."""
    lines = []
    for one in costs(about.found.fleet):
        row, text = about.members[one.member], _typeset(signed(one.difference))
        text = element("strong", text) if one.proven else text
        names = (phase_title(one.phase), one.resource.title, _link(row))
        sensors = map(whole, one.sensors.values())
        lines.append((row, [*names, text, _typeset(interval(one)), *sensors]))
    if not lines:
        return []
    headings = ("phase", "resource", "member", "time %", "interval %", "SM MHz", "alone")
    title = "Neighbours"
    told = (
        "Change of the time beside others, against the median of the processes alone. Bold: the "
        "95 % interval, from the noise between processes, is clear of zero."
    )
    table = _of_members((*headings, "W", "alone"), lines, title)
    return [section("neighbours", title, element("p", told), table)]


# Members -----------------------------------------------------------------------------------------


def columns(about: Overview) -> list[ColumnTexts]:
    """The columns of all members that have any text."""
    rows = about.members.values()

    def column(name: str, text: Callable[[MemberRow], str], **kind: bool) -> ColumnTexts:
        return ColumnTexts(name, list(map(text, rows)), **{"is_number": False, **kind})

    def version(name: str) -> ColumnTexts:
        return column(
            name, lambda row: distinct(versions(one).get(name, "") for one in row.manifests)
        )

    def difference(resource: Resource) -> ColumnTexts:
        found = [row.standings.get(resource) for row in rows]
        differences = [one.finding.difference if one else None for one in found]
        texts = ["" if one is None else signed(one) for one in differences]
        return ColumnTexts(f"{resource.title} %", texts, is_number=True)

    every = [
        column("member", lambda row: row.name),
        column("host", lambda row: distinct(one.host for one in row.records), filter=True),
        column("device", _device, filter=True),
        column("verdict", lambda row: row.verdict, filter=True),
        column("processes", lambda row: str(len(row.manifests)), is_number=True),
        column("rows", _rows, is_number=True),
        column("status", lambda row: distinct(one.status for one in row.records), filter=True),
        column("reason", lambda row: distinct(r.reason for r in row.records)[:MOST_REASON]),
        *map(difference, about.found.resources),
        *map(version, dict.fromkeys((*ALWAYS, *about.differing))),
        column("missing", lambda row: "; ".join(row.missing)[:MOST_REASON]),
    ]
    return [one for one in every if any(one.texts)]


def _device(row: MemberRow) -> str:
    measured = distinct(manifest.device.name for manifest in row.manifests)
    return measured or distinct(one.title or one.device for one in row.records)


def _rows(row: MemberRow) -> str:
    """Those that are there, of those to come if that is known."""
    count = sum(len(run.measurements) for run in row.member.runs)
    points = sum(manifest.points for manifest in row.manifests)
    return f"{count}/{points}" if points else str(count)


def members(about: Overview) -> Markup:
    """The section."""
    count = len(about.members)
    caption = f"{count} members; differences from the median of the others, in %"
    table = _table(
        columns(about),
        [{"id": row.id} for row in about.members.values()],
        element("caption", caption),
        look="rows",
    )
    return section("members", "All members", scrolled(table, "All members"))


def filters(about: Overview) -> Markup:
    """A choice for each column with several values; shown only if the script runs."""
    filtered = [one for one in columns(about) if one.filter]
    values = {one.name: dict.fromkeys(filter(None, one.texts)) for one in filtered}
    choices = [choice(name, some) for name, some in values.items() if len(some) > 1]
    shown = element("p", element("output", id="shown"))
    return element("form", *choices, shown, id="controls", aria_label="Filters", hidden=True)
