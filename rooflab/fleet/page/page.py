"""The page of a fleet: its title and sections."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rooflab.fleet.interference import costs
from rooflab.fleet.outliers import THRESHOLD_PERCENT
from rooflab.fleet.page.heat import heat
from rooflab.fleet.page.interference import neighbours
from rooflab.fleet.page.members import Content, content, distinct, filters, members
from rooflab.fleet.page.strips import strips
from rooflab.fleet.page.suspects import suspects
from rooflab.fleet.record import Record
from rooflab.fleet.runs import Assessment
from rooflab.fleet.text import cost_sentences, sentences
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
    frame.save(to_html(found, record), path)


def to_html(found: Assessment, record: Record) -> str:
    """The page of a fleet."""
    about = content(found, record)
    title = _title(about)
    style = frame.own_file("fleet.css", Path(__file__).resolve().parent)
    return frame.document(title, _body(about, title), style)


def _title(about: Content) -> str:
    manifests = [manifest for entry in about.entries for manifest in entry.manifests]
    devices = distinct(short_name(manifest.device.name) for manifest in manifests)
    return f"rooflab: fleet of {len(about.entries)}, {devices}"


def _body(about: Content, title: str) -> list[Markup]:
    return [
        figure.markers(),
        element("header", element("h1", title), _origin(about)),
        element(
            "main",
            _summary(about),
            filters(about),
            heat(about),
            strips(about),
            suspects(about),
            *neighbours(about),
            members(about),
            _method(about),
            _again(about),
        ),
    ]


def _origin(about: Content) -> Markup:
    """When and how it was measured."""
    record = about.record
    hosts = len({one.host for one in record.members.values() if one.host})
    parts = [f"{record.created:%Y-%m-%d %H:%M} UTC", f"{_many(len(about.entries), 'member')}"]
    parts[-1] += f" on {_many(hosts, 'host')}" if hosts else ""
    parts += [f"{_many(record.repeats, 'process', 'processes')} on each"]
    parts += [f"phases: {', '.join(record.phases)}"]
    return element("p", ", ".join(parts))


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or f'{one}s'}"


def _summary(about: Content) -> Markup:
    """The sentences that matter, what differs, and what is missing."""
    differing = [f"{name}: {told}" for name, told in about.differing.items()]
    told = [*sentences(about.found), *cost_sentences(costs(about.found.fleet))]
    parts = [element("ul", *(element("li", text) for text in told))]
    parts += _listed("Members differ in version", differing)
    parts += _listed("Missing", remarks(about))
    return section("summary", "Summary", *parts)


def _listed(title: str, lines: Sequence[str]) -> list[Markup]:
    """A list that can be closed; nothing if it is empty."""
    if not lines:
        return []
    items = element("ul", *(element("li", line) for line in lines))
    head = element("summary", element("strong", f"{title}: {len(lines)}"))
    return [element("details", head, items, open=len(lines) <= OPEN)]


def remarks(about: Content) -> list[str]:
    """How processes ended early, then what is missing for other reasons."""
    ended = {
        one.name: f"{one.name}: {one.status}{f': {one.reason}' if one.reason else ''}"
        for one in about.record.members.values()
        if one.reason or one.status not in ("", "done")
    }
    found = [
        f"{entry.name}: {text}"
        for entry in about.entries
        for text in entry.missing
        if entry.manifests or entry.name not in ended
    ]
    return [*ended.values(), *found]


def _method(about: Content) -> Markup:
    threshold = about.found.threshold_percent
    texts = [text.format(threshold=threshold) for text in METHOD]
    return section("method", "Method", *(element("p", text) for text in texts))


def _again(about: Content) -> Markup:
    """The command that made the fleet, as it was recorded."""
    made = element("p", "Made by the command")
    command = element("pre", shlex.join(about.record.command), tabindex=0)
    judged = element("p", "Every figure, for programs")
    name = about.found.fleet.path.resolve().name
    threshold = about.found.threshold_percent
    which = [] if threshold == THRESHOLD_PERCENT else ["--threshold", f"{threshold:g}"]
    words = ["rooflab", "fleet", "show", name, *which, "--json"]
    show = element("pre", shlex.join(words), tabindex=0)
    first = [made, command] if about.record.command else []
    return section("reproduce", "Reproduce", *first, judged, show)
