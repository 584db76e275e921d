"""The report of runs: its title and sections."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rooflab.errors import UsageError
from rooflab.figures.kinds import FIGURES, size
from rooflab.figures.model import Panel
from rooflab.figures.palette import DARK, kernel_styles
from rooflab.figures.selection import Wanted, counted
from rooflab.figures.style import WEB, styled
from rooflab.files import write_named
from rooflab.report.html import comparing, figure, findings, frame, machine, program, rows
from rooflab.report.html.content import Report, report
from rooflab.report.html.markup import Markup, element, section
from rooflab.runs.names import short_name
from rooflab.runs.program import is_program
from rooflab.runs.store import RunData


def write(runs: Sequence[RunData], path: Path) -> None:
    """Write the report of ``runs``; raises ``UsageError`` without a row, or if it cannot write."""
    write_named(path, to_html(runs))


def to_html(runs: Sequence[RunData]) -> str:
    """The report of ``runs``; raises ``UsageError`` if one of them has no row."""
    about = report(runs)
    names = dict.fromkeys(short_name(run.manifest.device.name) for run in runs)
    title = f"rooflab: {', '.join(names)}"
    with styled(WEB):
        return frame.document(title, _body(about, title), _colours(about))


def _colours(about: Report) -> str:
    light = [style.colour for style in about.styles.values()]
    dark = [style.colour for style in kernel_styles(about.styles, DARK).values()]

    def rules(colours: Iterable[str]) -> str:
        return "".join(f".k{i}{{color:{colour}}}" for i, colour in enumerate(colours))

    own = f"{rules(light)}\n@media screen and (prefers-color-scheme:dark){{{rules(dark)}}}\n"
    return own + program.colours() if about.of_programs else own


def _body(about: Report, title: str) -> list[Markup]:
    found = findings.explained(about)
    compared = comparing.compared(about)
    # Of many rows the sections below show only a part: the table has it for each.
    more = (*comparing.columns(about, compared), *findings.columns(about, found))
    shown = rows.columns(about, more if about.many else ())
    swept = [run for run in about.drawn if not is_program(run.measurements)]
    sizes, rooflines = (size.parts(swept), _rooflines(swept)) if swept else ({}, ())
    every = [*rooflines, *(panel for some in sizes.values() for panel in some)]
    provenances = {line.provenance for panel in every for line in panel.lines if line.provenance}
    moved = any(counted(row) for panel in rooflines for one in panel.marks for row in one.rows)
    legend = figure.legend(about)
    before = comparing.before(about, compared)

    def drawn(panels: Iterable[Panel], *, joined: bool) -> Markup:
        return figure.panels(figure.draw(about, one, before, joined=joined) for one in panels)

    against = [  # throughput is open; time and power open by a click
        element("details", element("summary", name), drawn(panels, joined=True), open=not i)
        for i, (name, panels) in enumerate(sizes.items())
        if panels
    ]
    return [
        figure.markers(),
        element("header", element("h1", title), *map(_origin, about.runs)),
        element(
            "main",
            findings.summary(about, found),
            rows.controls(shown, provenances, moved),
            *program.sections(about),
            section("rooflines", "Rooflines", legend, drawn(rooflines, joined=False))
            if rooflines
            else Markup(),
            section("sizes", "Against the size", legend, *against) if against else Markup(),
            comparing.comparison(about, compared),
            findings.verdicts(about, found),
            rows.rows(about, shown),
            machine.devices(about),
            machine.method(about),
            machine.again(about),
        ),
    ]


def _origin(run: RunData) -> Markup:
    manifest = run.manifest
    return element(
        "p",
        f"{manifest.device.name}, {manifest.created:%Y-%m-%d %H:%M} UTC, "
        f"{len(run.measurements)} rows, rooflab {manifest.versions.get('rooflab', 'unknown')}",
    )


def _rooflines(runs: Sequence[RunData]) -> Sequence[Panel]:
    try:
        return FIGURES["roofline"].make(Wanted(runs, whole=True)).panels
    except UsageError:  # no row has FLOPs
        return ()
