"""The page of a fleet: its title and sections."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rooflab.files import write_named
from rooflab.fleet.interference import costs
from rooflab.fleet.outliers import THRESHOLD_PERCENT
from rooflab.fleet.page import tables
from rooflab.fleet.page.strips import strips
from rooflab.fleet.page.tables import Overview, distinct, overview
from rooflab.fleet.record import Record
from rooflab.fleet.runs import Assessment
from rooflab.fleet.text import cost_sentences, many, sentences
from rooflab.report.html import figure, frame
from rooflab.report.html.markup import Markup, element, section
from rooflab.runs.names import short_name

OPEN: Final = 12
"""Remarks that are shown at once; more of them open by a click."""

METHOD: Final = (
    "Every member measured the same points. Its time is compared with the median of all others, "
    "point by point; the difference on a resource is the geometric mean over the points that the "
    "resource limits.",
    "A member is slow or fast if its 95 % interval is clear of the others by more than the noise "
    "between processes and by more than the threshold of {threshold:g} %, and if it stands out "
    "among all tests (Benjamini and Hochberg, 5 % of false discoveries).",
    "Formulas, thresholds and sources are in docs/fleet.md of rooflab.",
)


def write(found: Assessment, record: Record, path: Path) -> None:
    """Write the page of a fleet; raises ``UsageError`` if it cannot be written."""
    write_named(path, to_html(found, record))


def to_html(found: Assessment, record: Record) -> str:
    """The page of a fleet."""
    about = overview(found, record)
    manifests = [manifest for row in about.members.values() for manifest in row.manifests]
    devices = distinct(short_name(manifest.device.name) for manifest in manifests)
    method = (text.format(threshold=found.threshold_percent) for text in METHOD)
    title = f"rooflab: fleet of {len(about.members)}, {devices}"
    body = [
        figure.markers(),
        element("header", element("h1", title), _origin(about)),
        element(
            "main",
            _summary(about),
            tables.filters(about),
            tables.heat(about),
            strips(about),
            tables.suspects(about),
            *tables.neighbours(about),
            tables.members(about),
            section("method", "Method", *(element("p", text) for text in method)),
            _again(about),
        ),
    ]
    style = frame.own_file("fleet.css", Path(__file__).resolve().parent)
    return frame.document(title, body, style)


def _origin(about: Overview) -> Markup:
    """When and how it was measured."""
    record = about.record
    hosts = len({one.host for one in record.members.values() if one.host})
    parts = [
        f"{record.created:%Y-%m-%d %H:%M} UTC",
        many(len(about.members), "member") + (f" on {many(hosts, 'host')}" if hosts else ""),
        f"{many(record.repeats, 'process', 'processes')} on each",
        f"phases: {', '.join(record.phases)}",
    ]
    return element("p", ", ".join(parts))


def _summary(about: Overview) -> Markup:
    """The sentences that matter, what differs, and what is missing."""
    differing = [f"{name}: {told}" for name, told in about.differing.items()]
    told = [*sentences(about.found), *cost_sentences(costs(about.found.fleet))]
    return section(
        "summary",
        "Summary",
        _list(told),
        *_closable("Members differ in version", differing),
        *_closable("Missing", remarks(about)),
    )


def _list(lines: Sequence[str]) -> Markup:
    return element("ul", *(element("li", line) for line in lines))


def _closable(title: str, lines: Sequence[str]) -> list[Markup]:
    """A list that can be closed; nothing if it is empty."""
    head = element("summary", element("strong", f"{title}: {len(lines)}"))
    return [element("details", head, _list(lines), open=len(lines) <= OPEN)] if lines else []


def remarks(about: Overview) -> list[str]:
    """How processes ended early, then what is missing for other reasons."""
    ended = {
        one.name: f"{one.name}: {one.status}{f': {one.reason}' if one.reason else ''}"
        for one in about.record.members.values()
        if one.reason or one.status not in ("", "done")
    }
    found = [
        f"{row.name}: {text}"
        for row in about.members.values()
        for text in row.missing
        if row.manifests or row.name not in ended
    ]
    return [*ended.values(), *found]


def _again(about: Overview) -> Markup:
    """The command that made the fleet, as it was recorded."""
    threshold = about.found.threshold_percent
    which = [] if threshold == THRESHOLD_PERCENT else ["--threshold", f"{threshold:g}"]
    name = about.found.fleet.path.resolve().name
    commands = {
        "Made by the command": about.record.command,
        "Every figure, for programs": ["rooflab", "fleet", "show", name, *which, "--json"],
    }
    parts: list[Markup] = []
    for text, words in commands.items():
        if words:
            parts += [element("p", text), element("pre", shlex.join(words), tabindex=0)]
    return section("reproduce", "Reproduce", *parts)
