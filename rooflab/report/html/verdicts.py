"""What holds each row back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rooflab.report.explain import (
    Explanation,
    explanations,
    gain,
    gist,
    others,
    paragraphs,
    time_text,
    title,
)
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.points import Content, Entry
from rooflab.report.html.rows import Column
from rooflab.report.text import digits, label

INTRO: Final = (
    "The cause of each row's time, the most time to save first. Rows of which the same can be said "
    "are one line: open it for the numbers, and for what to try."
)

SHOWN: Final = 10
"""Verdicts that are shown at once; each is on one or more rows."""


def explained(content: Content) -> list[tuple[Entry, Explanation]]:
    """Verdicts on the rows with possible figures in device memory; the largest gain first."""
    entries = {id(entry.row): entry for entry in content.measured}
    found: list[tuple[Entry, Explanation]] = []
    for run in content.runs:
        rows = [row for row in run.measurements if id(row) in entries]
        if any(row.problem.resident for row in rows):
            # A report may go to others: the folder's name says enough.
            sound = replace(run, path=Path(run.path.name), measurements=rows)
            found += [(entries[id(one.row)], one) for one in explanations(sound)]
    return sorted(found, key=lambda pair: -pair[1].gain_us)


def columns(content: Content, found: Sequence[tuple[Entry, Explanation]]) -> Iterator[Column]:
    """The cause of each row's time, and the time that it could take."""
    known = {entry.id: one for entry, one in found}
    ones = [known.get(entry.id) for entry in content.entries]
    yield Column("cause", [one.verdict.bound if one else "" for one in ones], False, "cause")
    yield Column(
        "could be µs", [digits(one.verdict.reachable_us, 4) if one else "" for one in ones]
    )


def verdicts(content: Content, found: Sequence[tuple[Entry, Explanation]]) -> Markup:
    """The section."""
    if not found:
        return Markup()
    table = " The table of all rows has the cause of each." if content.many else ""
    intro = element("p", INTRO + table)
    groups: dict[object, list[tuple[Entry, Explanation]]] = {}
    for entry, one in found:
        groups.setdefault((entry.run, gist(one)), []).append((entry, one))
    lines = [_verdict(content, group) for group in groups.values()]
    first, rest = lines[:SHOWN], lines[SHOWN:]
    if rest:
        more = element("summary", f"{len(rest)} more")
        first.append(element("details", more, *rest, id="more"))
    return section("diagnosis", "What holds each kernel back", intro, *first)


def _verdict(content: Content, group: Sequence[tuple[Entry, Explanation]]) -> Markup:
    """Rows of one cause: all about the first, then the others' times."""
    entry, one = group[0]
    owner = f"{content.names[entry.run]}: " if content.several else ""
    more = f" and {len(group) - 1} more" if len(group) > 1 else ""
    _, *lines = paragraphs(one)
    told = [element("p", line) for line in lines]
    if content.many:
        told += [element("p", text) for text in [others([one for _, one in group])] if text]
    elif len(group) > 1:
        told.append(element("ul", *(_line(entry, one) for entry, one in group)))
    return element(
        "details",
        element(
            "summary",
            element("b", f"{owner}{label(entry.row)}{more}"),
            f" {title(one).rstrip(':').lower()}; {_gain(one)}",
        ),
        *told,
        **{"data_any" if more else "data_row": " ".join(entry.id for entry, _ in group)},
    )


def _line(entry: Entry, one: Explanation) -> Markup:
    return element("li", f"{entry.row.problem.size}: {_gain(one)}", data_row=entry.id)


def _gain(one: Explanation) -> str:
    now, then = one.evidence.time_us, one.verdict.reachable_us
    return f"{time_text(now)} could be {time_text(then)}{gain(now, then)}"
