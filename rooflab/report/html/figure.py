"""A panel of a figure as SVG: frame, axes, roofs, labels, and points that are links to their rows.

Colours are those of the page's style sheet. The script moves, hides and shows points.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot, isnan
from typing import Final

from rooflab.figures.labels import Labels
from rooflab.figures.model import DataPoint, Label, Marks, Panel, Spot
from rooflab.figures.palette import MARKERS
from rooflab.figures.selection import counted
from rooflab.report.html.content import Report, ReportRow
from rooflab.report.html.markup import Markup, element, join
from rooflab.report.text import reached

WIDTH: Final = 380
HEIGHT: Final = 286
LEFT, TOP = 54.0, 44.0
"""The upper left corner of the frame, in pixels; they are the points of ``style.WEB``."""

SHAPES: Final = {
    "o": "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0z",
    "s": "M-3.5-3.5h7v7h-7z",
    "^": "M0-4.6l4.3 7.8h-8.6z",
    "v": "M0 4.6l-4.3-7.8h8.6z",
    "<": "M-4.6 0l7.8-4.3v8.6z",
    ">": "M4.6 0l-7.8-4.3v8.6z",
    "D": "M0-5l5 5-5 5-5-5z",
    "P": "M-1.6-4.6h3.2v3h3v3.2h-3v3h-3.2v-3h-3v-3.2h3z",
    "*": "M0-5l1.2 3.4 3.6.1-2.9 2.1 1 3.4-2.9-2-2.9 2 1-3.4-2.9-2.1 3.6-.1z",
    "X": "M-4.4-2.2l2.2-2.2 2.2 2.2 2.2-2.2 2.2 2.2-2.2 2.2 2.2 2.2-2.2 2.2-2.2-2.2-2.2 2.2-2.2-2.2"
    " 2.2-2.2z",
}
"""Outlines of the markers around 0, 0; after the first place all are relative to each other."""

SEEN: Final = 8.0
"""Pixels between two points from which on an arrow joins them."""

RUN_LOOKS: Final = 4
"""Points of runs are full, hollow, ringed or pale."""

CHARACTER, _LINE = 6.4, 11
"""Pixels of a label's character in wide fonts, with the larger type of narrow screens, and line."""

_ANCHORS: Final = {"left": "", "center": "mid ", "right": "end "}


def markers() -> Markup:
    """The shapes that points of all panels use."""
    shapes = [
        element("path", d=SHAPES[marker], id=f"m{number}") for number, marker in enumerate(MARKERS)
    ]
    return element("svg", element("defs", *shapes), width=0, height=0, aria_hidden="true")


def place(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}"


def line(points: Iterable[DataPoint], *children: str, **attributes: str) -> Markup:
    """A line through pixels."""
    path = "L".join(f"{place(x)} {place(y)}" for x, y in points)
    return element("path", *children, d=f"M{path}", **attributes)


Before = Mapping[int, ReportRow]
"""The earlier row of each row that has changed, by the row's number."""


def draw(report: Report, panel: Panel, before: Before, *, joined: bool) -> Markup:
    """A panel; ``joined`` says that points of a series have a line, else that they can move.

    Arrows lead from the point of a row ``before`` to that of the later run.
    """
    frame = Frame(panel)
    title, (across, up), (x, y) = panel.title, (panel.x.title, panel.y.title), frame.middle
    return element(
        "svg",
        element("text", title, class_="title", x=LEFT, y=16),
        *grid(frame),
        element("text", across, class_="mid", x=x, y=HEIGHT - 6),
        element("text", up, class_="mid", transform=f"translate(10,{place(y)}) rotate(-90)"),
        *_lines(frame),
        # Points have no labels, since the card shows their rows.
        *labels(frame, (one for one in panel.labels if one.of is None), CHARACTER, apart=True),
        *_points(report, frame, before, joined),
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="group",
        aria_label=f"{title}: {up} against {across}",
        class_="panel",
    )


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the data points of a panel are in pixels: ``left`` and ``top`` are its corner's."""

    panel: Panel
    left: float = LEFT
    top: float = TOP

    def __call__(self, point: DataPoint) -> DataPoint:
        """The pixel of a data point."""
        return self.pixel(*self.panel.place(*point))

    def pixel(self, x: float, y: float) -> DataPoint:
        """The pixel of a place in points from the lower left corner."""
        return self.left + x, self.top + 72 * self.panel.cell.height - y

    @property
    def corner(self) -> DataPoint:
        """The lower right corner."""
        cell = self.panel.cell
        return self.left + 72 * cell.width, self.top + 72 * cell.height

    @property
    def middle(self) -> DataPoint:
        """Of the frame."""
        (x, y), cell = self.corner, self.panel.cell
        return x - 36 * cell.width, y - 36 * cell.height


def grid(frame: Frame) -> Iterator[Markup]:
    """The lines of ticks, and their numbers."""
    panel, (right, bottom) = frame.panel, frame.corner
    left, low = panel.x.limits[0], panel.y.limits[0]
    across, _ = panel.x.marks(panel.cell.width / 0.55)
    up, _ = panel.y.marks(panel.cell.height / 0.3)
    xs = [(place(frame((value, low))[0]), text) for value, text in across]
    ys = [(frame((left, value))[1], text) for value, text in up]
    lines = [f"M{x} {frame.top:g}V{bottom:g}" for x, _ in xs if panel.x.grid]
    lines += [f"M{frame.left:g} {place(y)}H{right:g}" for y, _ in ys if panel.y.grid]
    yield element("path", d="".join(lines), class_="grid")
    yield from (element("text", text, class_="mid", x=x, y=bottom + 14) for x, text in xs)
    for y, text in ys:
        yield element("text", text, class_="end", x=frame.left - 5, y=place(y + 3.5))


def _lines(frame: Frame) -> Iterator[Markup]:
    """Roofs, which a switch hides by their provenance, and the lines below ridges."""
    for one in frame.panel.lines:
        pixels = _thinned(list(map(frame, one.points)))
        if kind := one.provenance:
            name = element("title", one.name) if one.name else Markup()
            yield line(pixels, name, class_=f"roof {kind}", data_roof=kind)
        else:
            yield line(pixels, class_="ridge")


def _thinned(pixels: Sequence[DataPoint]) -> list[DataPoint]:
    """A line without the places that are within a pixel of the one before."""
    kept = list(pixels[:1])
    for one in pixels[1:-1]:
        if abs(one[0] - kept[-1][0]) >= 1:
            kept.append(one)
    return [*kept, *pixels[-1:]]


def labels(
    frame: Frame, wanted: Iterable[Label], character: float, *, apart: bool = False
) -> Iterator[Markup]:
    """Labels with characters of so many pixels, and lines to those far from their bubbles."""
    every, placed = Labels(frame.panel), set[object]()
    for one in wanted:
        lines = one.text.split("\n")
        size = character * max(map(len, lines)), _LINE * float(len(lines))
        if one.key in placed or not (spot := every.place(one, *size, apart=apart)):
            continue
        placed |= {one.key} - {None}
        if ends := every.leader(one, spot, *size):
            yield line((frame.pixel(*end) for end in ends), class_="ci s leader")
        yield from _label_lines(frame, one, spot, lines)


def _label_lines(frame: Frame, one: Label, spot: Spot, lines: Sequence[str]) -> Iterator[Markup]:
    """Each line of a label by itself: its roof may be hidden."""
    x, y = frame((spot.x, spot.y))
    x, y = x + spot.dx, y - spot.dy
    above = {"bottom": 1.0, "center": 0.5, "top": 0.0}[spot.va]
    for i, text in enumerate(lines):
        down = _LINE * (i + 0.8 - above * len(lines))
        at: dict[str, str] = {"x": place(x), "y": place(y + down)}
        if one.rotation:
            turned = f"translate({place(x)},{place(y)}) rotate({place(-one.rotation)})"
            at = {"transform": turned, "y": place(down)}
        roof = {"data_roof": one.roofs[i]} if i < len(one.roofs) and one.roofs[i] else {}
        yield element("text", text, class_=f"{_ANCHORS[spot.ha]}halo", **at, **roof)


# Points ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Mark:
    """The pixel of a row; ``counted`` is its x by counters, empty if unknown."""

    of: ReportRow
    x: float
    y: float
    counted: str


def _marks(report: Report, frame: Frame, marks: Marks, joined: bool) -> list[list[Mark]]:
    """The points of each line, or all together if they are not joined."""
    lines: list[list[Mark]] = [[]]
    rows = iter(marks.rows)
    for point in marks.points:
        if isnan(point[0]):
            lines += [[]] * joined
            continue
        row = next(rows)
        x = None if joined else counted(row)
        moved = place(frame((x, point[1]))[0]) if x else ""
        lines[-1].append(Mark(report.of[id(row)], *frame(point), moved))
    return lines


def _points(report: Report, frame: Frame, before: Before, joined: bool) -> Iterator[Markup]:
    """Lines of series, arrows, then all points in the order of rows; of many, paths of dots."""
    single: list[Mark] = []
    for marks in (marks for marks in frame.panel.marks if marks.rows):
        together = joined and bool(marks.dash)
        for some in _marks(report, frame, marks, together):
            single += some
            if report.many:
                yield _dots(report, some, joined=together)
            elif together and len(some) > 1:
                kind, ids = report.classes[marks.name], " ".join(one.of.id for one in some)
                yield line([(m.x, m.y) for m in some], class_=f"series {kind}", data_rows=ids)
    if not report.many:
        marks_of = {mark.of.number: mark for mark in sorted(single, key=lambda m: m.of.number)}
        for number, mark in marks_of.items():
            if (earlier := before.get(number)) and (start := marks_of.get(earlier.number)):
                yield from _arrow(report, start, mark)
        yield from (_point(report, mark) for mark in marks_of.values())


def _arrow(report: Report, start: Mark, end: Mark) -> Iterator[Markup]:
    """From one point to another, if they are so far apart that it is seen."""
    across, down = end.x - start.x, end.y - start.y
    length = hypot(across, down)
    if length < SEEN:
        return
    x, y = across / length, down / length
    sides = [(end.x - 7 * x - 3 * s * y, end.y - 7 * y + 3 * s * x) for s in (1, -1)]
    tip = end.x - 3 * x, end.y - 3 * y
    path = [(start.x, start.y), tip, sides[0], tip, sides[1]]
    kind, ids = report.classes[end.of.row.kernel], f"{start.of.id} {end.of.id}"
    yield line(path, class_=f"arrow {kind}", data_rows=ids)


def _dots(report: Report, some: Sequence[Mark], *, joined: bool) -> Markup:
    """Points of one kernel as one element: dots, of which the script makes markers.

    ``data-points`` are the numbers of their rows, ``data-counted`` their x by counters.
    """
    moved = any(mark.counted for mark in some)
    given = {"data_counted": " ".join(mark.counted or "-" for mark in some)} if moved else {}
    return element(
        "path",
        class_=f"dots {_look(report, some[0])}",
        d="".join(f"M{place(mark.x)} {place(mark.y)}h0" for mark in some),
        data_points=" ".join(str(mark.of.number) for mark in some),
        data_shape=_shape(report, some[0]),
        data_joined=joined,
        **given,
    )


def _point(report: Report, mark: Mark) -> Markup:
    row, y = mark.of.row, place(mark.y)
    owner = f"{report.owner(mark.of)}: " if report.several else ""
    moved = {"data_counted": f"{mark.counted},{y}"} if mark.counted else {}
    return element(
        "a",
        element("title", f"{owner}{reached(row)}"),
        element("use", href=f"#m{_shape(report, mark)}"),
        href=f"#{mark.of.id}",
        class_=f"pt {_look(report, mark)}",
        transform=f"translate({place(mark.x)},{y})",
        **moved,
    )


def _shape(report: Report, mark: Mark) -> int:
    return MARKERS.index(report.styles[mark.of.row.kernel].marker)


def _look(report: Report, mark: Mark) -> str:
    return f"{report.classes[mark.of.row.kernel]} run{mark.of.run % RUN_LOOKS}"


def legend(report: Report) -> Markup:
    """Each kernel with its marker; with several runs, how they differ."""
    kernels = {one.row.kernel for one in report.measured}
    samples = [
        (sample(style.marker, f"{report.classes[kernel]} run0"), kernel)
        for kernel, style in report.styles.items()
        if kernel in kernels
    ]
    if report.several:
        looks = (sample("o", f"run{i % RUN_LOOKS}") for i in range(len(report.runs)))
        samples += zip(looks, report.names, strict=True)
    items = (element("li", mark, " ", name) for mark, name in samples)
    return element("ul", *items, class_="legend")


def sample(marker: str, look: str) -> Markup:
    """A marker for a legend; ``look`` are its classes."""
    return element(
        "svg",
        element("use", href=f"#m{MARKERS.index(marker)}"),
        viewBox="-7 -7 14 14",
        width=14,
        height=14,
        aria_hidden="true",
        class_=f"pt {look}",
    )


def panels(drawn: Iterable[Markup]) -> Markup:
    """Panels side by side, as many as fit."""
    return element("div", join(drawn), class_="panels")


def brief(name: str, most: int = 28) -> str:
    """A name that fits beside a mark: its start and its end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end].rstrip()}…{name[-end:].lstrip()}"
