"""What holds each row back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from rooflab.report.explain import Explanation, explanations, gain, paragraphs, time_text, title
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.points import Content, Entry
from rooflab.report.text import label

SHOWN: Final = 10
"""Verdicts that are shown at once."""


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


def verdicts(content: Content, found: Sequence[tuple[Entry, Explanation]]) -> Markup:
    """The section."""
    if not found:
        return Markup()
    intro = element(
        "p",
        "The cause of each row's time, the most time to save first. "
        "Open a line for the numbers, and for what to try.",
    )
    lines = [_verdict(content, entry, one) for entry, one in found]
    first, rest = lines[:SHOWN], lines[SHOWN:]
    if rest:
        more = element("summary", f"{len(rest)} more")
        first.append(element("details", more, *rest, id="more"))
    return section("diagnosis", "What holds each kernel back", intro, *first)


def _verdict(content: Content, entry: Entry, one: Explanation) -> Markup:
    now, then = one.evidence.time_us, one.verdict.reachable_us
    owner = f"{content.names[entry.run]}: " if content.several else ""
    _, *others = paragraphs(one)
    return element(
        "details",
        element(
            "summary",
            element("b", f"{owner}{label(entry.row)}"),
            f" {title(one).rstrip(':').lower()}; {time_text(now)} could be {time_text(then)}"
            f"{gain(now, then)}",
        ),
        *(element("p", line) for line in others),
        data_row=entry.id,
    )
