"""What the page of a fleet is about, and the table of its members.

Filters, sorting and the card of a point read this table: it is the data.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rooflab.fleet.outliers import Rating
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
from rooflab.fleet.text import resource_title, short_names, signed
from rooflab.report.html.frame import choice
from rooflab.report.html.markup import Markup, element, scrolled, section
from rooflab.runs.manifest import Manifest

ALWAYS: Final = ("rooflab", "driver")
"""Versions that have a column even if all members have the same."""

MOST_REASON: Final = 500
"""Characters of a reason that are shown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One member: ``id`` is its row in the page, ``short`` its name where there is little room."""

    id: str
    name: str
    short: str
    member: Member | None
    told: Sequence[MemberRecord]
    standings: Mapping[Resource, Standing]
    missing: Sequence[str]
    """What its runs lack, without paths."""

    @property
    def verdict(self) -> str:
        """Everything that it is accused of; else whether it is undecided or even anywhere."""
        found = [one.finding for one in self.standings.values()]
        verdicts = {one.verdict for one in found if one.difference is not None}
        accused = [v for v in (Rating.SLOW, Rating.FAST) if v in verdicts]
        others = [v for v in (Rating.UNDECIDED, Rating.EVEN) if v in verdicts]
        return ", ".join(accused or others[:1])

    @property
    def manifests(self) -> list[Manifest]:
        """Of its runs."""
        return [run.manifest for run in self.member.runs] if self.member else []


@dataclass(frozen=True, slots=True)
class Content:
    """What the page is about."""

    found: Assessment
    record: Record
    entries: Sequence[Entry]
    differing: Mapping[str, str]
    """The versions in which members differ."""

    @property
    def by_name(self) -> dict[str, Entry]:
        """The members."""
        return {entry.name: entry for entry in self.entries}


def content(found: Assessment, record: Record) -> Content:
    """The content of a page; members without a run are in it too."""
    told: dict[str, list[MemberRecord]] = {}
    for one in record.members.values():
        told.setdefault(parsed(one.name)[0], []).append(one)
    members = {member.name: member for member in found.fleet.members}
    names = sorted({*members, *told})
    short = short_names(names)
    standings: dict[str, dict[Resource, Standing]] = {}
    for standing in found.standings:
        standings.setdefault(standing.member, {})[standing.resource] = standing
    entries = [
        Entry(
            f"r{i}",
            name,
            short[name],
            members.get(name),
            told.get(name, ()),
            standings.get(name, {}),
            _missing(members.get(name), found.fleet.path),
        )
        for i, name in enumerate(names, 1)
    ]
    manifests = (manifest for entry in entries for manifest in entry.manifests)
    return Content(found, record, entries, differing_versions(manifests))


def _missing(member: Member | None, folder: Path) -> list[str]:
    start = f"{folder}{os.sep}"
    texts = member.missing if member else ()
    return [text.partition("; to continue: ")[0].replace(start, "") for text in texts]


# Columns -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """The text of a member. Readers choose among the values of a column with a ``filter``."""

    text: Callable[[Entry], str]
    is_number: bool = False
    filter: str = ""


def columns(content: Content) -> list[tuple[str, Column]]:
    """The columns that have any text, with their headings."""
    every = [
        ("member", Column(lambda entry: entry.name)),
        ("host", Column(_host, filter="host")),
        ("device", Column(_device, filter="device")),
        ("verdict", Column(lambda entry: entry.verdict, filter="verdict")),
        ("processes", Column(_processes, is_number=True)),
        ("rows", Column(_rows, is_number=True)),
        ("status", Column(_status, filter="status")),
        ("reason", Column(_reason)),
        *((f"{resource_title(one)} %", _difference(one)) for one in content.found.resources),
        *((name, _version(name)) for name in dict.fromkeys((*ALWAYS, *content.differing))),
        ("missing", Column(lambda entry: "; ".join(entry.missing)[:MOST_REASON])),
    ]
    return [(name, one) for name, one in every if any(map(one.text, content.entries))]


def distinct(texts: Iterable[str]) -> str:
    """Texts in their order, each once."""
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _host(entry: Entry) -> str:
    return distinct(one.host for one in entry.told)


def _device(entry: Entry) -> str:
    measured = distinct(manifest.device.name for manifest in entry.manifests)
    return measured or distinct(one.title or one.device for one in entry.told)


def _processes(entry: Entry) -> str:
    return str(len(entry.manifests))


def _rows(entry: Entry) -> str:
    """Those that are there, of those to come if that is known."""
    runs = entry.member.runs if entry.member else ()
    rows, points = (
        sum(len(run.measurements) for run in runs),
        sum(m.points for m in entry.manifests),
    )
    return f"{rows}/{points}" if points else str(rows)


def _status(entry: Entry) -> str:
    return distinct(one.status for one in entry.told)


def _reason(entry: Entry) -> str:
    return distinct(one.reason for one in entry.told)[:MOST_REASON]


def _difference(resource: Resource) -> Column:
    def text(entry: Entry) -> str:
        one = entry.standings.get(resource)
        known = one is not None and one.finding.difference is not None
        return signed(one.finding.difference or 0.0) if known and one else ""

    return Column(text, is_number=True)


def _version(name: str) -> Column:
    return Column(lambda entry: distinct(versions(m).get(name, "") for m in entry.manifests))


# Markup ------------------------------------------------------------------------------------------


def link(entry: Entry) -> Markup:
    """The short name, leading to the member's row."""
    whole = entry.name if entry.name != entry.short else False
    return element("a", entry.short, href=f"#{entry.id}", title=whole)


def typeset(number: str) -> str:
    """A number with a true minus, which the script cannot sort."""
    return number.replace("-", "\u2212")


def members(content: Content) -> Markup:
    """The section."""
    shown = columns(content)
    body = [
        element("tr", *(_cell(one, one.text(entry)) for _, one in shown), id=entry.id)
        for entry in content.entries
    ]
    table = element(
        "table",
        element("caption", f"{len(body)} members; differences from the median of the others, in %"),
        element("thead", element("tr", *(_heading(name, one) for name, one in shown))),
        element("tbody", *body),
        class_="rows",
    )
    return section("members", "All members", scrolled(table, "All members"))


def _heading(name: str, one: Column) -> Markup:
    number = "n" if one.is_number else False
    return element("th", name, scope="col", class_=number, data_filter=one.filter or False)


def _cell(one: Column, text: str) -> Markup:
    return element("td", text, class_="n" if one.is_number else False)


def filters(content: Content) -> Markup:
    """A choice for each column with several values; shown only if the script runs."""
    choices = []
    for _, one in columns(content):
        values = dict.fromkeys(filter(None, map(one.text, content.entries)))
        choices += [choice(one.filter, values)] if one.filter and len(values) > 1 else []
    shown = element("p", element("output", id="shown"))
    return element("form", *choices, shown, id="controls", aria_label="Filters", hidden=True)
