"""A program's run in sentences and pictures: roofline, step and timeline, as wide as the page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from math import isnan
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import programs
from rooflab.figures.kinds import FIGURES
from rooflab.figures.model import Key, Marks, Page, Panel
from rooflab.figures.page import run_conditions
from rooflab.figures.palette import DARK
from rooflab.figures.selection import Wanted
from rooflab.figures.style import PAGE, THEMES, styled, theme
from rooflab.report.html.content import Report
from rooflab.report.html.figure import Frame, grid, labels, line, place
from rooflab.report.html.markup import Markup, element, join, scrolled, section, table
from rooflab.report.program import cells_of, lines
from rooflab.report.ranks import sentences
from rooflab.report.text import reached
from rooflab.runs.ranks import of_runs
from rooflab.runs.store import RunData

PARTS: Final = tuple(dict.fromkeys([*programs.BINDS, *programs.TAKES]))

TITLES: Final = {
    "ranks": "A step of each rank",
    "changes": "Before → after",
    "roofline": "Roofline",
    "step": "Where the time goes",
    "timeline": "Timeline of one step",
}

BELOW: Final = 34
MARGIN: Final = 16
"""Pixels below the lowest panel, and left of all."""

CHARACTER: Final = 5.9
"""Pixels of a label's character in wide fonts."""


def colours() -> str:
    """The rules of the colours of parts, other ones on a dark page."""
    with styled(PAGE):
        light = _rules()
    with styled(replace(THEMES["dark"], palette=DARK)):
        dark = _rules()
    return f"{light}\n@media screen and (prefers-color-scheme:dark){{{dark}}}\n"


def _rules() -> str:
    return "".join(
        f".c{i}{{--c:{programs.colour(part)};--t:{programs.tint(part)}}}"
        for i, part in enumerate(PARTS)
    )


def _classes() -> dict[str, str]:
    style = theme()
    found = {style.ink: "ci", style.muted: "cs", style.palette.background: "cp"}
    for i, part in enumerate(PARTS):
        found.setdefault(programs.colour(part), f"c{i}")
    return found


def notebook(run: RunData) -> str:
    """What is to say of a program, and the table of its groups; all text of the run is escaped."""
    headings, rows = cells_of(run)
    title = f"{run.manifest.device.name}, {run.manifest.created:%Y-%m-%d %H:%M} UTC"
    return join([*(element("p", line) for line in lines(run)), table(headings, rows, title)])


def sections(report: Report) -> Iterator[Markup]:
    """A section with what is to say of all programs, and their pictures; nothing without one."""
    runs = report.of_programs
    if not runs:
        return
    parts: list[Markup] = []
    together = of_runs(runs) if len(runs) > 1 else None
    with styled(PAGE):
        if together:
            said = (element("li", text) for text in sentences(together))
            parts += [element("ul", *said), *_pictures(report, runs, ["ranks"])]
        elif len(runs) == 2:
            parts += _pictures(report, runs, ["changes"])
        for run in runs:
            if len(runs) > 1:
                parts.append(element("h3", report.names[report.runs.index(run)]))
            parts.append(element("ul", *(element("li", said) for said in lines(run))))
            parts += _pictures(report, [run], ["roofline", "step", "timeline"])
    if parts:
        yield section("program", "The program", *parts)


def _pictures(report: Report, runs: Sequence[RunData], names: Iterable[str]) -> Iterator[Markup]:
    conditions = set(map(run_conditions, runs))
    for name in names:
        try:
            page = FIGURES[name].make(Wanted(runs))
        except UsageError as error:
            if name == "timeline":  # a report may go to others: without the run's path
                told = str(error).replace(str(runs[0].path), runs[0].path.name)
                yield element("p", f"{told}.")
            continue
        linked = name in ("roofline", "changes")
        yield element(
            "figure",
            element("figcaption", TITLES[name]),
            _legend(page.legend),
            scrolled(_svg(report, page, TITLES[name], linked=linked), TITLES[name], "scroll"),
            *(element("p", note) for note in page.notes if note not in conditions),
            class_="whole",
        )


def _legend(keys: Sequence[Key]) -> Markup:
    known = _classes()
    items = [
        element("li", _sample(key, known.get(key.colour, "cs")), " ", key.name) for key in keys
    ]
    return element("ul", *items, class_="legend")


def _sample(key: Key, look: str) -> Markup:
    shape = (
        element(
            "circle", cx=7, cy=7, r=5, class_=f"{look} {'hollow' if key.fill != 'full' else 'f'}"
        )
        if key.marker
        else element("rect", x=1, y=2, width=12, height=10, class_=f"{look} f")
    )
    return element("svg", shape, viewBox="0 0 14 14", width=14, height=14, aria_hidden="true")


def _svg(report: Report, page: Page, title: str, *, linked: bool) -> Markup:
    """All panels of a page. With links it is one of the panels that the script knows."""
    drawn = [part for panel in page.panels for part in _panel(report, panel)]
    lowest = max(panel.cell.top + panel.cell.height for panel in page.panels)
    height = round(72 * lowest) + BELOW + 4
    return element(
        "svg",
        *drawn,
        viewBox=f"{-MARGIN} 0 {round(72 * page.width) + MARGIN} {height}",
        role="group" if linked else "img",
        aria_label=f"{title}: {page.title}",
        class_="panel whole" if linked else "whole",
    )


def _panel(report: Report, panel: Panel) -> Iterator[Markup]:
    cell = panel.cell
    frame = Frame(panel, 72 * cell.left, 72 * cell.top)
    (right, bottom), (x, y) = frame.corner, frame.middle
    yield from grid(frame)
    yield element(
        "rect",
        x=place(frame.left),
        y=place(frame.top),
        width=place(right - frame.left),
        height=place(bottom - frame.top),
        class_="frame",
    )
    yield element("text", panel.x.title, class_="mid", x=place(x), y=place(bottom + 30))
    turned = f"translate({place(frame.left - 44)},{place(y)}) rotate(-90)"
    if panel.y.title:
        yield element("text", panel.y.title, class_="mid", transform=turned)
    known = _classes()
    yield from _bars(frame, known)
    yield from _lines(frame, known, above=False)
    for marks in sorted(panel.marks, key=lambda one: one.z):
        yield from _marks(report, frame, marks, known)
    yield from _lines(frame, known, above=True)
    yield from labels(frame, panel.labels, CHARACTER)


def _bars(frame: Frame, known: dict[str, str]) -> Iterator[Markup]:
    """The bars of one colour are one path, which is short."""
    for bars in frame.panel.bars:
        parts = []
        for left, low, width, height in bars.boxes:
            (x0, y0), (x1, y1) = frame((left, low)), frame((left + width, low + height))
            parts.append(
                f"M{place(x0)} {place(y1)}H{place(max(x1, x0 + 0.3))}V{place(y0)}H{place(x0)}z"
            )
        edge = known.get(bars.edge, "")
        look = {"cp": " gap", "cs": " edged"}.get(edge, "")
        yield element("path", d="".join(parts), class_=f"{known.get(bars.colour, 'cn')} f{look}")


def _lines(frame: Frame, known: dict[str, str], *, above: bool) -> Iterator[Markup]:
    """Roofs and, ``above`` bubbles, arrows."""
    for one in frame.panel.lines:
        if (one.z > 4) != above or not one.width:
            continue
        look = f"roof {one.provenance}" if one.provenance else f"{known.get(one.colour, 'ci')} s"
        for gap, points in groupby(one.points, key=lambda point: isnan(point[0])):
            if not gap:
                yield line(map(frame, points), class_=look)


def _marks(report: Report, frame: Frame, marks: Marks, known: dict[str, str]) -> Iterator[Markup]:
    radius, look = marks.size / 2, known.get(marks.colour, "cs")
    for i, point in enumerate(marks.points):
        if isnan(point[0]):
            continue
        x, y = frame(point)
        if marks.marker == "x":
            size = f"{radius:.1f}"
            cross = f"M{x - radius:.1f} {y - radius:.1f}l{2 * radius:.1f} {2 * radius:.1f}"
            cross += f"m{-2 * radius:.1f} 0l{2 * radius:.1f} {-2 * radius:.1f}"
            yield element("path", d=cross, class_=f"{look} s", data_size=size)
            continue
        hollow = marks.face == theme().palette.background
        circle = element(
            "circle", r=f"{radius:.2f}", class_=f"{look} {'hollow' if hollow else 'bubble'}"
        )
        of = report.of.get(id(marks.rows[i])) if i < len(marks.rows) else None
        moved = f"translate({place(x)},{place(y)})"
        if of is None:
            yield element("g", circle, transform=moved)
            continue
        yield element(
            "a",
            element("title", reached(of.row)),
            circle,
            href=f"#{of.id}",
            class_="pt",
            transform=moved,
        )
