"""The second figure: throughput and bandwidth against size."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rooflab.figures.labels import LABELLED, Labels, around
from rooflab.figures.page import conditions, grid, open_page
from rooflab.figures.panel import (
    draw_roof,
    draw_series,
    log_limits,
    log_ticks,
    name_panel,
    number,
    plain,
    size_text,
    slanted_height,
)
from rooflab.figures.roofs import Roof, device_roofs, limit
from rooflab.figures.selection import Selection, Series, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Provenance, Roofline

Allowed = tuple[float, Provenance]

SHORT: Final = 1.2
"""How far a roof at only one size goes on to both sides, as a factor, beside others."""

SPOTS: Final = 40
"""Places along a roof where its label may be."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity against size: its value in a row, and the value that a roofline allows."""

    unit: str
    measured: Callable[[Measurement], float]
    allowed: Callable[[Roofline, Measurement], Allowed | None]


def _names(rows: Collection[Measurement]) -> str:
    """``M = N = K``: the extents that are equal to the size in all rows."""
    names = next(iter(rows)).problem.extents
    equal = (n for n in names if all(r.problem.extents[n] == int(r.problem.size) for r in rows))
    return " = ".join(map(_title, equal))


def _title(name: str) -> str:
    return name.upper() if len(name) == 1 else name


def _bytes_text(row: Measurement) -> str:
    """Such as ``64M``."""
    count, unit = float(row.bytes or 0), ""
    for unit in ("", "K", "M", "G"):
        if count < 1000 or unit == "G":
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def _allowed_gbps(roofline: Roofline, row: Measurement) -> Allowed | None:
    """Bytes per second at the roof; without FLOPs this is the bandwidth."""
    bandwidth, limited = roofline.bandwidth(), limit(roofline, row)
    if not row.flops:
        return (bandwidth.value / 1e9, bandwidth.provenance) if bandwidth else None
    if limited is None:
        return None
    ceiling, flops = limited
    return flops / (1e9 * intensity(row)), ceiling.provenance


BANDWIDTH: Final = Quantity("GB/s", lambda row: row.gbps or 0.0, _allowed_gbps)


def _throughput(rows: Sequence[Measurement]) -> Quantity:
    """TFLOP/s if any point reaches 1, else GFLOP/s."""
    unit, scale = ("TFLOP/s", 1.0) if max(r.tflops or 0 for r in rows) >= 1 else ("GFLOP/s", 1e-3)

    def allowed(roofline: Roofline, row: Measurement) -> Allowed | None:
        limited = limit(roofline, row) if row.flops else None
        return (limited[1] / (1e12 * scale), limited[0].provenance) if limited else None

    return Quantity(unit, lambda row: (row.tflops or 0.0) / scale, allowed)


def draw_size(selection: Selection) -> Figure:
    """Two panels per precision, one above the other.

    Several workloads have no common scale of FLOP/s: they have only the panel of bandwidth, against
    bytes.
    """
    several, rows = selection.several, selection.rows()
    by_bytes = len(selection.workloads) > 1
    square = by_bytes or all(map(plain, rows))
    quantities = [_throughput(rows), BANDWIDTH]
    if by_bytes or not any(row.flops for row in rows):
        quantities = [BANDWIDTH]
    both = len(quantities) > 1
    between, label = 0.13, 0.26
    ticks = 0.24 if square else slanted_height(map(size_text, rows), theme().small)
    twin = 0 if by_bytes else 0.22 if square else 0.4
    above = twin + 0.08 + several * (ticks + 0.16)
    tall = (2.1 + both * 1.1 + between) if several else (3.3 + both * 1.6 + between)
    below = label + ticks
    first = (0 if by_bytes else 0.2) - several * ticks
    cells = grid(
        len(selection.panels), apart=0.78, above=above, tall=tall, below=below, first=first
    )
    what = f"{'throughput and ' if both else ''}bandwidth by size"
    body = cells[-1].top + cells[-1].height + below
    page = open_page(selection, what, conditions(selection), body)
    roofs = device_roofs(selection)
    for (precision, group), cell in zip(selection.panels.items(), cells, strict=True):
        first = (cell.height - between) * 0.62 if both else cell.height
        upper = lower = page.axes(cell.left, cell.top, cell.width, first)
        if both:
            low = cell.height - first - between
            top = cell.top + first + between
            lower = page.axes(cell.left, top, cell.width, low, sharex=upper)
        xs = _size_axis(upper, lower, group, square, by_bytes, cell.width, cell.row == 0)
        if not cell.lowest:
            lower.set_xlabel("")
        if several:
            name_panel(upper, PRECISIONS[precision].title, pad=72 * twin + 4)
        for axes, quantity in zip((upper, lower), quantities, strict=False):
            height = page.inches(axes)
            _draw_panel(axes, height, quantity, selection, group, roofs, xs)
    return page.figure


def _draw_panel(
    axes: Axes,
    height: float,
    quantity: Quantity,
    selection: Selection,
    group: Sequence[Series],
    roofs: Sequence[Roof],
    xs: Mapping[Place, float],
) -> None:
    """One quantity against size, with the roofs at each size."""
    styles = selection.styles
    joined = axes.get_xscale() == "log"
    lines = list(_roof_lines(axes, quantity, group, roofs, xs))
    group = [series for series in group if all(quantity.measured(row) for row in series.rows)]
    ys = [quantity.measured(row) for series in group for row in series.rows]
    ys += [level for _, _, _, levels in lines for level in levels]
    limits = log_limits(ys, height, min(0.24, 0.22 * height), min(0.2, 0.2 * height), 1.0)
    axes.set(yscale="log", ylim=limits, ylabel=quantity.unit)
    log_ticks(axes.yaxis, limits)
    labels = Labels(axes)
    drawn = [(s, [(xs[_place(row)], quantity.measured(row)) for row in s.rows]) for s in group]
    draw_series(labels, drawn, styles, joined)
    for roof, provenance, at, levels in lines:
        draw_roof(labels, at, levels, provenance, roof.colour)
    named: dict[str, tuple[str, list[tuple[float, float]]]] = {}
    for roof, provenance, at, levels in lines:
        _, places = named.setdefault(f"{roof.owner}roof ({provenance})", (roof.colour, []))
        places += zip(at, levels, strict=True)
    for name, (colour, places) in named.items():
        along = sorted(places, key=lambda place: place[0])[:: -(-len(places) // SPOTS)]
        spots = [spot for x, y in along for spot in around(x, y, "left")]
        labels.place(name, spots, color=colour)
    right = max(xs.values())
    ends = [(series, series.rows[-1]) for series in group if xs[_place(series.rows[-1])] == right]
    fastest = sorted(ends, key=lambda end: -quantity.measured(end[1]))
    for series, last in fastest[:LABELLED]:
        point = right, quantity.measured(last)
        text = f"{number(point[1])} {selection.words(last)}".strip()
        look: dict[str, Any] = {"color": styles[series.kernel].ink, "fontsize": theme().small}
        labels.place(text, around(*point, "right"), of=point, **look)


def _roof_lines(
    axes: Axes,
    quantity: Quantity,
    group: Sequence[Series],
    roofs: Sequence[Roof],
    xs: Mapping[Place, float],
) -> Iterator[tuple[Roof, Provenance, list[float], list[float]]]:
    """Each roof's values at its sizes, and their provenance at the largest size.

    Workloads whose roof has another form have a line of their own.
    """
    lines: dict[tuple[int, object], dict[float, Allowed]] = {}
    for i, roof in enumerate(roofs):
        workloads: dict[str, dict[float, Allowed]] = {}
        for row in (row for series in group if series.run in roof.runs for row in series.rows):
            if level := quantity.allowed(roof.roofline, row):
                workloads.setdefault(row.problem.workload, {})[xs[_place(row)]] = level
        for workload, allowed in workloads.items():
            flat = len(set(allowed.values())) == 1
            form = next(iter(allowed.values())) if flat else workload
            lines.setdefault((i, form), {}).update(allowed)
    for (i, _), allowed in lines.items():
        roof, at = roofs[i], sorted(allowed)
        levels = [allowed[x][0] for x in at]
        provenance = allowed[at[-1]][1]
        if axes.get_xscale() != "log":  # one step per shape
            at = [x + half for x in at for half in (-0.5, 0.5)]
            levels = [level for level in levels for _ in range(2)]
        elif len(at) == 1:
            alone = sum(other == i for other, _ in lines) == 1
            ends = axes.get_xlim() if alone else (at[0] / SHORT, at[0] * SHORT)
            at, levels = list(ends), levels * 2
        yield roof, provenance, at, levels


Place = tuple[str, str]
"""Workload and size, which have one position on the x axis."""


def _place(row: Measurement) -> Place:
    return row.problem.workload, row.problem.size


def _size_axis(
    upper: Axes,
    lower: Axes,
    group: Sequence[Series],
    square: bool,
    by_bytes: bool,
    width: float,
    top_label: bool,
) -> dict[Place, float]:
    """Set the shared x axis and its twin on top; returns the position of each size."""
    rows = {_place(row): row for series in group for row in series.rows}
    if square:
        if by_bytes:
            places = {place: float(row.bytes or 1) for place, row in rows.items()}
            lower.set_xlabel("Compulsory bytes")
        else:
            places = {place: float(row.problem.size) for place, row in rows.items()}
            lower.set_xlabel(f"Size {_names(rows.values())}")
        upper.set(xscale="log", xlim=log_limits(places.values(), width, 0.3, 0.5, 0.6))
    else:
        order = sorted(rows, key=lambda shape: (intensity(rows[shape]), rows[shape].flops or 0))
        places = {shape: float(i) for i, shape in enumerate(order)}
        margin = max(len(order) - 1, 1) / (width - 0.8)
        upper.set_xlim(-0.3 * margin, len(order) - 1 + 0.5 * margin)
        names = "×".join(_title(name) for name in next(iter(rows.values())).problem.extents)
        lower.set_xlabel(f"Problem {names}, in order of intensity")
    sizes = {place: _bytes_text(row) if by_bytes else size_text(row) for place, row in rows.items()}
    intensities = {shape: number(intensity(row)) for shape, row in rows.items()}
    # Keep the ticks whose labels have room, from right to left.
    labels, kept, edge = Labels(upper), [], float("inf")
    across = labels.transformed(list(places.values()), [upper.get_ylim()[0]] * len(places))
    pixels = dict(zip(places, across[:, 0], strict=True))
    for shape in sorted(places, key=lambda shape: -places[shape]):
        x = pixels[shape]
        longest = max(len(sizes[shape]), len(intensities[shape]))
        half = (longest * 0.036 + 0.05 if square else 0.1) * theme().dpi
        if x + half <= edge:
            kept.append(shape)
            edge = x - half
    at = [places[shape] for shape in kept]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    upright: dict[str, Any] = {"rotation": 90}
    if square:
        slanted, upright = {}, {}
    else:
        lower.tick_params(axis="x", labelsize=theme().small)
    lower.set_xticks(at, [sizes[shape] for shape in kept], **slanted)
    lower.xaxis.set_minor_locator(NullLocator())
    if upper is not lower:
        upper.tick_params(labelbottom=False)
    if not by_bytes:  # several workloads have several intensities at one place
        top = upper.secondary_xaxis("top")
        top.set_xticks(at, [intensities[shape] for shape in kept], **upright)
        top.xaxis.set_minor_locator(NullLocator())
        top.tick_params(labelsize=theme().label, length=3)
        if top_label:
            # The panel's title is on the left.
            size = theme().type - 0.5
            top.set_xlabel("Intensity (FLOP/byte)", fontsize=size, labelpad=4, loc="right")
    return places
