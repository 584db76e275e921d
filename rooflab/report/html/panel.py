"""One panel of a figure as SVG: frame, axes, and points that are links to their rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rooflab.figures.palette import MARKERS
from rooflab.report.html.markup import Markup, element, join
from rooflab.report.html.points import Content, Entry
from rooflab.report.html.scale import Scale, steps
from rooflab.report.text import digits, label, speed

WIDTH: Final = 380
HEIGHT: Final = 286
LEFT, RIGHT, TOP, BOTTOM = 54.0, 372.0, 44.0, 244.0
"""The frame within a panel, in pixels of the panel."""

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


RUN_LOOKS: Final = 4
"""Points of runs are full, hollow, ringed or pale."""


@dataclass(frozen=True, slots=True)
class Spot:
    """The place of an entry, in the units of the axes; ``counted`` is its x by counters."""

    entry: Entry
    x: float
    y: float
    counted: float | None = None


def markers() -> Markup:
    """The shapes that points of all panels use."""
    shapes = [
        element("path", d=SHAPES[marker], id=f"m{number}") for number, marker in enumerate(MARKERS)
    ]
    return element("svg", element("defs", *shapes), width=0, height=0, aria_hidden="true")


def place(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}"


def draw(
    title: str,
    axes: tuple[str, str],
    scales: tuple[Scale, Scale],
    below: Iterable[Markup],
    points: Iterable[Markup],
) -> Markup:
    """A panel: its title, grid, lines below the points, and the points."""
    parts = [element("text", title, class_="title", x=LEFT, y=16), *_grid(*scales)]
    middle_x, middle_y = (LEFT + RIGHT) / 2, (TOP + BOTTOM) / 2
    turned = f"translate(11,{place(middle_y)}) rotate(-90)"
    parts += [
        element("text", axes[0], class_="mid", x=middle_x, y=HEIGHT - 6),
        element("text", axes[1], class_="mid", transform=turned),
    ]
    return element(
        "svg",
        *parts,
        *below,
        *points,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="group",
        aria_label=f"{title}: {axes[1]} against {axes[0]}",
        class_="panel",
    )


def _grid(across: Scale, up: Scale) -> Iterable[Markup]:
    x_ticks, y_ticks = list(steps(across)), list(steps(up))
    lines = [f"M{place(x)} {TOP:g}V{BOTTOM:g}" for x, _ in x_ticks]
    lines += [f"M{LEFT:g} {place(y)}H{RIGHT:g}" for y, _ in y_ticks]
    yield element("path", d="".join(lines), class_="grid")
    for x, text in x_ticks:
        yield element("text", text, class_="mid", x=place(x), y=BOTTOM + 14)
    for y, text in y_ticks:
        yield element("text", text, class_="end", x=LEFT - 5, y=place(y + 3.5))


def line(points: Sequence[tuple[float, float]], **attributes: str) -> Markup:
    """A line through pixels."""
    path = "L".join(f"{place(x)} {place(y)}" for x, y in points)
    return element("path", d=f"M{path}", **attributes)


def roof(points: Sequence[tuple[float, float]], provenance: str) -> Markup:
    """The line of a roof; a switch hides those of a provenance."""
    return line(points, class_=f"roof {provenance}", data_roof=provenance)


def points(
    content: Content,
    spots: Sequence[Spot],
    scales: tuple[Scale, Scale],
    series: Callable[[Spot], object] | None = None,
) -> Iterator[Markup]:
    """The markers of a panel; those of one ``series`` are joined by a line."""
    families: dict[object, list[Spot]] = {}
    for spot in spots:
        key = (spot.entry.run, spot.entry.row.kernel, series and series(spot))
        families.setdefault(key, []).append(spot)
    if series:
        families = {key: sorted(some, key=lambda spot: spot.x) for key, some in families.items()}
    if content.many:
        for family in families.values():
            yield _dots(content, family, scales, joined=series is not None)
        return
    if series:
        for family in families.values():
            yield from _joined(content, family, scales)
    for spot in spots:
        yield _point(content, spot, scales)


def _joined(
    content: Content, family: Sequence[Spot], scales: tuple[Scale, Scale]
) -> Iterator[Markup]:
    kind = content.classes[family[0].entry.row.kernel]
    ids = " ".join(spot.entry.id for spot in family)
    pixels = [(scales[0](spot.x), scales[1](spot.y)) for spot in family]
    if len(pixels) > 1:
        yield line(pixels, class_=f"series {kind}", data_rows=ids)


def _dots(
    content: Content, family: Sequence[Spot], scales: tuple[Scale, Scale], *, joined: bool
) -> Markup:
    """Points of one kernel as one element: dots, of which the script makes markers.

    ``data-points`` are the numbers of their rows, ``data-counted`` their x by counters.
    """
    first, (across, up) = family[0].entry, scales
    counted = [place(across(spot.counted)) if spot.counted else "" for spot in family]
    given = {"data_counted": " ".join(x or "-" for x in counted)} if any(counted) else {}
    return element(
        "path",
        class_=f"dots {content.classes[first.row.kernel]} {_run_class(first.run)}",
        d="".join(f"M{place(across(spot.x))} {place(up(spot.y))}h0" for spot in family),
        data_points=" ".join(spot.entry.id[1:] for spot in family),
        data_shape=MARKERS.index(content.styles[first.row.kernel].marker),
        data_joined=joined,
        **given,
    )


def _point(content: Content, spot: Spot, scales: tuple[Scale, Scale]) -> Markup:
    """A marker that is a link to the row; its name says what the row reached."""
    row, across, up = spot.entry.row, *scales
    marker = MARKERS.index(content.styles[row.kernel].marker)
    y = place(up(spot.y))
    x = place(across(spot.x))
    moved = {"data_counted": f"{place(across(spot.counted))},{y}"} if spot.counted else {}
    return element(
        "a",
        element("title", _name(content, spot.entry)),
        element("use", href=f"#m{marker}"),
        href=f"#{spot.entry.id}",
        class_=f"pt {content.classes[row.kernel]} {_run_class(spot.entry.run)}",
        transform=f"translate({x},{y})",
        **moved,
    )


def _name(content: Content, entry: Entry) -> str:
    row = entry.row
    share = "" if row.roof_percent is None else f", {digits(row.roof_percent, 3)} % of roof"
    owner = f"{content.names[entry.run]}: " if content.several else ""
    return f"{owner}{label(row)}: {speed(row)}{share}"


def legend(content: Content, entries: Iterable[Entry]) -> Markup:
    """Each kernel with its marker; with several runs, how they differ."""
    kernels = {entry.row.kernel for entry in entries}
    items = [
        element("li", sample(style.marker, f"{content.classes[kernel]} run0"), " ", kernel)
        for kernel, style in content.styles.items()
        if kernel in kernels
    ]
    if content.several:
        items += [
            element("li", sample("o", _run_class(i)), " ", name)
            for i, name in enumerate(content.names)
        ]
    return element("ul", *items, class_="legend")


def _run_class(run: int) -> str:
    """The look of a run's points."""
    return f"run{run % RUN_LOOKS}"


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
