"""The report of runs: its title and sections."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from rooflab.errors import UsageError
from rooflab.figures.kinds import FIGURES, size
from rooflab.figures.model import Panel
from rooflab.figures.palette import DARK, kernel_styles
from rooflab.figures.selection import Wanted, counted
from rooflab.figures.style import WEB, styled
from rooflab.report.html import (
    comparing,
    figure,
    frame,
    machine,
    points,
    summary,
    verdicts,
)
from rooflab.report.html.controls import controls
from rooflab.report.html.markup import Markup, element, section
from rooflab.report.html.points import Content
from rooflab.report.html.rows import columns, rows
from rooflab.runs.names import short_name
from rooflab.runs.store import Run


def write(runs: Sequence[Run], path: Path) -> None:
    """Write the report of ``runs``; raises ``UsageError`` without a row, or if it cannot write."""
    frame.save(to_html(runs), path)


def to_html(runs: Sequence[Run]) -> str:
    """The report of ``runs``; raises ``UsageError`` if one of them has no row."""
    content = points.content(runs)
    names = dict.fromkeys(short_name(run.manifest.device.name) for run in runs)
    title = f"rooflab: {', '.join(names)}"
    return frame.document(title, _body(content, title), _colours(content))


def _colours(content: Content) -> str:
    """Each kernel's colour, another shade on a dark page."""
    light = [style.colour for style in content.styles.values()]
    dark = [style.colour for style in kernel_styles(content.styles, DARK).values()]

    def rules(colours: Iterable[str]) -> str:
        return "".join(f".k{i}{{color:{colour}}}" for i, colour in enumerate(colours))

    return f"{rules(light)}\n@media screen and (prefers-color-scheme:dark){{{rules(dark)}}}\n"


def _body(content: Content, title: str) -> list[Markup]:
    found = verdicts.explained(content)
    compared = comparing.compared(content)
    # Of many rows the sections below show only a part: the table has it for each.
    more = (*comparing.columns(content, compared), *verdicts.columns(content, found))
    shown = columns(content, more if content.many else ())
    rooflines, sizes = _figures(content)
    legend = figure.legend(content, content.measured)
    every = [*rooflines, *(panel for some in sizes.values() for panel in some)]
    provenances = {line.provenance for panel in every for line in panel.lines if line.provenance}
    moved = any(counted(row) for panel in rooflines for one in panel.marks for row in one.rows)
    figures = [
        section("rooflines", "Rooflines", legend, _panels(content, rooflines, joined=False))
        if rooflines
        else Markup(),
        *_by_size(content, legend, sizes),
    ]
    return [
        figure.markers(),
        element("header", element("h1", title), *map(_origin, content.runs)),
        element(
            "main",
            summary.summary(content, found),
            controls(shown, provenances, moved),
            *figures,
            comparing.comparison(content, compared),
            verdicts.verdicts(content, found),
            rows(content, shown),
            machine.devices(content),
            machine.method(content),
            machine.again(content),
        ),
    ]


def _origin(run: Run) -> Markup:
    manifest = run.manifest
    return element(
        "p",
        f"{manifest.device.name}, {manifest.created:%Y-%m-%d %H:%M} UTC, "
        f"{len(run.measurements)} rows, rooflab {manifest.versions.get('rooflab', 'unknown')}",
    )


def _figures(content: Content) -> tuple[list[Panel], dict[str, list[Panel]]]:
    """The panels of the rooflines, and of throughput, time and power against the size."""
    with styled(WEB):
        sizes = size.parts(content.drawn)
        try:
            return list(FIGURES["roofline"].make(Wanted(content.drawn, whole=True)).panels), sizes
        except UsageError:  # no row has FLOPs
            return [], sizes


def _panels(content: Content, given: Iterable[Panel], *, joined: bool) -> Markup:
    with styled(WEB):
        return figure.panels([figure.draw(content, panel, joined=joined) for panel in given])


def _by_size(
    content: Content, legend: Markup, parts: Mapping[str, Sequence[Panel]]
) -> list[Markup]:
    """Throughput is open; time and power open by a click."""
    drawn = [
        element(
            "details",
            element("summary", name),
            _panels(content, panels, joined=True),
            open=name == "Throughput",
        )
        for name, panels in parts.items()
        if panels
    ]
    return [section("sizes", "Against the size", legend, *drawn)] if drawn else []
