"""The first figure: the roofline."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.figures.labels import LABELLED, Labels, Spot, around
from rooflab.figures.page import Cell, conditions, grid, open_page
from rooflab.figures.panel import (
    Limits,
    draw_roof,
    draw_series,
    log_limits,
    log_ticks,
    name_panel,
    number,
    plain,
    size_text,
)
from rooflab.figures.roofs import Roof, above_roof_cause, ceilings, device_roofs, roofs_over
from rooflab.figures.selection import Selection, Series, flop_rate, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling

XLABEL: Final = 0.5
"""Inches below the lowest panel, for the ticks' and the axis' labels."""

COSTS: Final = 1.0
"""Empty decades in a panel that a common y axis is worth."""

LONG_OWNER: Final = 15
"""A longer name of a device is on a separate line above its roof."""

Point = tuple[float, float]
Line = tuple[Ceiling, Point, Point]
"""A ceiling and the two data points that its line joins."""


@dataclass(frozen=True, slots=True)
class Outline:
    """One device's roof in one panel, in data coordinates; lines from the highest ceiling down."""

    roof: Roof
    flats: list[Line]
    slopes: list[Line]
    ridge: Point | None


def draw_roofline(selection: Selection) -> Figure:
    """One panel per precision, all with the same x axis, and rows with the same y axis."""
    several, points = selection.several, selection.rows()
    roofs = device_roofs(selection)
    notes = conditions(selection)
    if several or not all(map(plain, points)):
        notes.insert(0, "At the ends of each line: size · % of roof.")
    notes += _passed(selection, roofs)
    if above := _above(selection):
        notes.append(f"Above the roof: {'; '.join(above)}")
    what = "roofline by precision" if several else "roofline"
    panels = {name: _extent(group, roofs, name) for name, group in selection.panels.items()}
    shared = _shared(list(panels.values()))
    above_each, tall = (0.34, 3.1) if several else (0.06, 4.9)
    cells = grid(
        len(panels), apart=0.2 if shared else 0.62, above=above_each, tall=tall, below=XLABEL
    )
    page = open_page(selection, what, notes, cells[-1].top + cells[-1].height + XLABEL)
    most = max(max(extent.ys) for extent in panels.values())
    unit, scale = ("TFLOP/s", 1e12) if most >= 1e12 else ("GFLOP/s", 1e9)
    x_limits = _x_limits(selection, roofs, list(panels.values()), cells[0].width)
    for (precision, extent), cell in zip(panels.items(), cells, strict=True):
        axes = page.axes(cell.left, cell.top, cell.width, cell.height)
        beside = [e for e, c in zip(panels.values(), cells, strict=True) if c.row == cell.row]
        y_limits = _y_limits(beside if shared else [extent], cell, scale)
        axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
        log_ticks(axes.xaxis, x_limits)
        log_ticks(axes.yaxis, y_limits)
        axes.tick_params(labelbottom=cell.lowest, labelleft=cell.column == 0 or not shared)
        if cell.lowest:
            axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
        if cell.column == 0:
            axes.set_ylabel(f"Performance ({unit})")
        if several:
            name_panel(axes, PRECISIONS[precision].title, pad=4)
        _draw_panel(axes, selection, precision, roofs, scale)
    return page.figure


@dataclass(frozen=True, slots=True)
class Extent:
    """What the axes of one panel must include, in FLOP/byte and FLOP/s.

    ``flats`` is the greatest number of flat roofs of one device.
    """

    xs: list[float]
    ys: list[float]
    flats: int

    @property
    def decades(self) -> float:
        """Decades of FLOP/s."""
        return log10(max(self.ys) / min(self.ys))


def _extent(group: Sequence[Series], roofs: Sequence[Roof], precision: str) -> Extent:
    rows = [row for series in group for row in series.rows]
    xs, ys, flats = [intensity(row) for row in rows], [flop_rate(row) for row in rows], 0
    least = min(xs)
    for roofline in (roof.roofline for roof in roofs_over(group, roofs)):
        bandwidth, ridge = roofline.bandwidth(), roofline.ridge(precision)
        compute = ceilings(roofline, "compute", precision)
        flats = max(flats, len(compute))
        xs += [ridge] if ridge else []
        ys += [ceiling.value for ceiling in compute]
        if bandwidth and not roofline.compute(precision):
            ys.append(bandwidth.value * least)
    return Extent(xs, ys, flats)


def _joined(extents: Sequence[Extent]) -> Extent:
    xs = [x for extent in extents for x in extent.xs]
    ys = [y for extent in extents for y in extent.ys]
    return Extent(xs, ys, max(extent.flats for extent in extents))


def _shared(extents: Sequence[Extent]) -> bool:
    """Whether panels side by side have the same y axis: it costs none of them many decades."""
    pairs = [extents[i : i + 2] for i in range(0, len(extents), 2)]
    return all(_joined(pair).decades - e.decades <= COSTS for pair in pairs for e in pair)


def _x_limits(
    selection: Selection, roofs: Sequence[Roof], extents: Sequence[Extent], width: float
) -> Limits:
    several = selection.several
    before, after = (0.98, 0.88) if several else (1.5, 1.5)
    if several and len(roofs) > 1:
        after = 1.4  # the labels of lower roofs are between the points and the frame
    every = [ceiling for roof in roofs for ceiling in roof.roofline.ceilings]
    if any(c.kind == "bandwidth" and c.provenance != "derived" for c in every):
        before = max(before, 1.25)  # the slope's label is longer: it has the provenance
    # A narrow panel has room for fewer labels.
    before, after = min(before, 0.36 * width), min(after, 0.28 * width)
    return log_limits(_joined(extents).xs, width, before, after, 1.0)


def _y_limits(extents: Sequence[Extent], cell: Cell, scale: float) -> Limits:
    """With room for the labels of the roofs above, and for that of the ridge below."""
    joined = _joined(extents)
    above = 0.14 + 0.14 * joined.flats
    return log_limits([y / scale for y in joined.ys], cell.height, 0.24, above, 1.0)


def _passed(selection: Selection, roofs: Sequence[Roof]) -> list[str]:
    """Why derived roofs are below measured ones, once for all precisions of a device."""
    notes = (
        (roof.owner, roof.roofline.passed(precision))
        for precision, group in selection.panels.items()
        for roof in roofs_over(group, roofs)
    )
    return list(dict.fromkeys(f"{owner}{note}" for owner, note in notes if note))


def _above(selection: Selection) -> list[str]:
    """Every cause of points above a roof, with the kernels."""
    causes: dict[str, dict[str, None]] = defaultdict(dict)
    for precision, group in selection.panels.items():
        for series in group:
            for row in series.rows:
                if cause := above_roof_cause(row, selection.runs[series.run]):
                    causes[cause][f"{series.kernel} {PRECISIONS[precision].title}"] = None
    return [f"{cause} ({', '.join(kernels)})" for cause, kernels in causes.items()]


def _draw_panel(
    axes: Axes, selection: Selection, precision: str, roofs: Sequence[Roof], scale: float
) -> None:
    labels, group = Labels(axes), selection.panels[precision]
    lines = [(s, [(intensity(row), flop_rate(row) / scale) for row in s.rows]) for s in group]
    draw_series(labels, lines, selection.styles)
    # All lines first: the labels of one device must not overlap another's roofs.
    outlines = [_outline(axes, roof, precision, scale) for roof in roofs_over(group, roofs)]
    for outline in outlines:
        _draw_outline(labels, outline)
    for outline in outlines:
        _label_outline(labels, outline, precision)
    _annotate(labels, selection, precision, scale)


def _outline(axes: Axes, roof: Roof, precision: str, scale: float) -> Outline:
    """Flat roofs, right of the slope of their provenance, and slopes up to the highest of them."""
    (x_low, x_high), (y_low, y_high) = axes.get_xlim(), axes.get_ylim()
    roofline = roof.roofline
    compute = sorted(ceilings(roofline, "compute", precision), key=lambda c: -c.value)
    memory = ceilings(roofline, "bandwidth", roofline.memory)
    used: dict[Ceiling, float] = {}  # the upper end of each slope, in FLOP/s
    flats, slopes = [], []
    for ceiling in compute:
        same = (slope for slope in memory if slope.provenance == ceiling.provenance)
        slope = next(same, roofline.bandwidth())
        start = x_low
        if slope:
            start = max(ceiling.value / slope.value, x_low)
            used.setdefault(slope, ceiling.value)
        y = ceiling.value / scale
        flats.append((ceiling, (start, y), (x_high, y)))
    highest = compute[0].value if compute else float("inf")
    for ceiling in sorted(memory, key=lambda c: -c.value):
        per = ceiling.value / scale
        end = min(used.get(ceiling, highest) / ceiling.value, x_high, y_high / per)
        start = max(x_low, y_low / per)
        slopes.append((ceiling, (start, start * per), (end, end * per)))
    ridge, top = roofline.ridge(precision), roofline.compute(precision)
    return Outline(roof, flats, slopes, (ridge, top.value / scale) if ridge and top else None)


def _draw_outline(labels: Labels, outline: Outline) -> None:
    axes, colour = labels.axes, outline.roof.colour
    for ceiling, start, end in outline.flats + outline.slopes:
        xs, ys = zip(start, end, strict=True)
        draw_roof(labels, xs, ys, ceiling.provenance, colour)
    if outline.ridge:
        ridge, top = outline.ridge
        xs, ys = (ridge, ridge), (axes.get_ylim()[0], top)
        axes.plot([ridge], [top], "o", color=colour, markersize=6, zorder=5, label="_ridge")
        axes.plot(xs, ys, ":", color=colour, linewidth=0.9, zorder=2)
        labels.avoid_marker(ridge, top, 7)
        labels.avoid_line(xs, ys)


def _label_outline(labels: Labels, outline: Outline, precision: str) -> None:
    colour = outline.roof.colour
    if outline.ridge:
        text = f"ridge {number(outline.ridge[0])} FLOP/B"
        labels.place(text, _ridge_spots(labels, *outline.ridge), required=True, color=colour)
    # A slope may go without its label on a slide; a flat roof may not.
    parts = [_label_slopes, _label_flats]
    for part in reversed(parts) if theme().brief else parts:
        part(labels, outline, precision)


def _label_slopes(labels: Labels, outline: Outline, _precision: str) -> None:
    """Each beside its own line; if points are there, above the highest's with the line's style."""
    colour = outline.roof.colour
    for i, (ceiling, start, end) in enumerate(outline.slopes):
        angle, spots = labels.along(start, end, below=i > 0)
        brief = ceiling.provenance == "derived" or theme().brief
        text = f"{'' if i else f'{ceiling.key} '}{ceiling.amount}"
        own = text if brief else f"{text} ({ceiling.provenance})"
        first = i == 0 and not theme().brief
        look: dict[str, Any] = {"rotation": angle, "color": colour}
        if labels.place(own, spots, required=first, **look) or theme().brief:
            continue
        _, start, end = outline.slopes[0]
        _, spots = labels.along(start, end, gap=2.5 + 1.5 * theme().label)
        labels.place(f"{text} ({_source(ceiling, outline.slopes)})", spots, required=True, **look)


def _label_flats(labels: Labels, outline: Outline, precision: str) -> None:
    colour = outline.roof.colour
    for stack in _stacks(labels, outline.flats):
        lines = (f"{ceiling.amount} ({_source(ceiling, stack)})" for ceiling, _, _ in stack)
        text = f"{PRECISIONS[precision].title} " + "\n".join(lines)
        owner = outline.roof.owner
        text = f"{owner.strip()}\n{text}" if len(owner) > LONG_OWNER else f"{owner}{text}"
        spots = _flat_spots(labels, stack)
        labels.place(text, spots, required=True, color=colour, multialignment="right")


def _stacks(labels: Labels, levels: Sequence[Line]) -> list[list[Line]]:
    """Flat roofs, highest first, grouped if there is no room for a label between them.

    Observed roofs join the group above them: labels at their thin lines would overlap points.
    """
    stacks: list[list[Line]] = []
    bottom = float("inf")
    for level in levels:
        _, y = labels.pixels(*level[1])
        if bottom - y < 0.22 * theme().dpi or (stacks and level[0].provenance == "observed"):
            stacks[-1].append(level)
        else:
            stacks.append([level])
        bottom = y
    return stacks


def _source(ceiling: Ceiling, stack: Sequence[Line]) -> str:
    """The provenance, with the clock of an observed roof, and the line's style in a stack."""
    clock = re.search(r"\d+ MHz$", ceiling.formula) if ceiling.provenance == "observed" else None
    if theme().brief:
        return clock[0] if clock else ceiling.provenance
    look = {"measured": ", dashed", "observed": ", thin"} if len(stack) > 1 else {}
    at = f" at {clock[0]}" if clock else ""
    return ceiling.provenance + at + look.get(ceiling.provenance, "")


def _ridge_spots(labels: Labels, ridge: float, top: float) -> list[Spot]:
    """Beside the dotted line, from the axis upward."""
    x, low = labels.pixels(ridge, labels.axes.get_ylim()[0])
    _, high = labels.pixels(ridge, top)
    heights = [low + (high - low) * step / 40 for step in range(1, 40)]
    points = [labels.data(x, y) for y in heights]
    return [
        Spot(px, py, 4 * sign, 2, "left" if sign > 0 else "right", "bottom")
        for px, py in points
        for sign in (1, -1)
    ]


def _flat_spots(labels: Labels, stack: Sequence[Line]) -> list[Spot]:
    """Above the highest roof, from right to left; then farther above; then below the lowest."""
    (_, start, end), (_, (_, lowest), _) = stack[0], stack[-1]
    (x0, y), (x1, _) = labels.pixels(*start), labels.pixels(*end)
    _, under = labels.pixels(end[0], lowest)
    spots = []
    for at, dy in ((y, 2.5), (y, 6), (y, 13), (under, -2.5), (under, -6)):
        for step in range(0, 21, 2):
            px, py = labels.data(x1 - (x1 - x0) * step / 20, at)
            spots.append(Spot(px, py, -4, dy, "right", "bottom" if dy > 0 else "top"))
    return spots


def _annotate(labels: Labels, selection: Selection, precision: str, scale: float) -> None:
    """Causes for points above the roof, then sizes at the ends; the fastest kernels first."""
    group, several = selection.panels[precision], selection.several
    square = all(plain(row) for series in group for row in series.rows)

    def write(series: Series, row: Measurement, cause: str, side: str) -> bool:
        size = f"{size_text(row)} {selection.words(row)}".strip()
        share = "" if row.roof_percent is None else f" · {_percent(row.roof_percent)} %"
        of_roof = " of roof" if share and square and not several else ""
        point = intensity(row), flop_rate(row) / scale
        text = "\n".join(line for line in (f"{size}{share}{of_roof}", cause) if line)
        ink = selection.styles[series.kernel].ink
        size_pt = theme().small + (not several and not theme().brief)
        spots = around(*point, side)
        return labels.place(text, spots, of=point, color=ink, fontsize=size_pt) is not None

    fastest = sorted(group, key=lambda series: -max(map(flop_rate, series.rows)))
    for series in fastest[:LABELLED]:
        run, first, last = selection.runs[series.run], series.rows[0], series.rows[-1]
        causes: dict[str, Measurement] = {}
        for row in sorted(series.rows, key=lambda row: -(row.roof_percent or 0)):
            causes.setdefault(above_roof_cause(row, run), row)
        labelled = [
            row
            for cause, row in causes.items()
            if cause and write(series, row, cause, "left" if row is first else "right")
        ]
        if last not in labelled:
            write(series, last, "", "right")
        if first not in (*labelled, last):
            write(series, first, "", "left")


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"
