"""The first figure: the roofline."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any, Final

from rooflab.figures import bubbles, model
from rooflab.figures.page import grid, page
from rooflab.figures.roofs import (
    DeviceRoof,
    Outline,
    Segment,
    above_roof_cause,
    ceilings,
    device_roofs,
    outline,
    roofs_over,
)
from rooflab.figures.selection import (
    FigureData,
    Series,
    Wanted,
    counted,
    flop_rate,
    intensity,
    rows_of,
    select,
)
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import COMPUTE, Ceiling
from rooflab.runs.program import is_program
from rooflab.runs.store import RunData

COSTS: Final = 1.0
"""Empty decades in a panel that a common y axis is worth."""

LONG_SLOPE: Final = 1.1
"""Inches of the x axis below a slope that has its label in a panel of a web page."""

LONG_OWNER: Final = 15
"""A longer name of a device is on a separate line above its roof."""


def make(wanted: Wanted) -> model.Page:
    """One panel per precision, all with the same x axis, and rows with the same y axis.

    Of a program all is in one panel, with bubbles.
    """
    if wanted.runs and all(is_program(run.measurements) for run in wanted.runs):
        return bubbles.make(wanted)
    data = select(wanted)
    several, roofs = data.several, device_roofs(data)
    extents = {name: _extent(group, roofs, name) for name, group in data.panels.items()}
    every = list(extents.values())
    shared = _shared(every)
    above, tall = (0.34, 3.1) if several else (0.06, 4.9)
    cells = grid(len(extents), apart=0.2 if shared else 0.62, above=above, tall=tall)
    unit, scale = ("TFLOP/s", 1e12) if max(_joined(every).ys) >= 1e12 else ("GFLOP/s", 1e9)
    x_limits = _x_limits(data, roofs, _joined(every).xs, cells[0].width)
    panels = []
    for (precision, extent), cell in zip(extents.items(), cells, strict=True):
        row = [e for e, c in zip(every, cells, strict=True) if c.row == cell.row]
        y_limits = _y_limits(_joined(row) if shared else extent, cell, scale)
        panel = model.log_panel(
            cell,
            model.Axis(x_limits, "Arithmetic intensity (FLOP/byte)"),
            model.Axis(y_limits, f"Performance ({unit})"),
            precision,
            titled=several,
            own_y=not shared,
        )
        _fill(panel, data, precision, roofs, scale)
        panels.append(panel)
    named = several or not all(map(model.plain, data.rows()))
    notes = ["At the ends of each line: size · % of roof."] if named else []
    what = "roofline by precision" if several else "roofline"
    return page(data, what, notes, panels, after=[*_passed(data, roofs), *_above(data)])


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


def _extent(group: Sequence[Series], roofs: Sequence[DeviceRoof], precision: str) -> Extent:
    rows = rows_of(group)
    xs, ys, flats = [intensity(row) for row in rows], [flop_rate(row) for row in rows], 0
    if theme().panel:  # where a switch moves points
        xs += [x for row in rows if (x := counted(row))]
    least = min(xs)
    for roofline in (roof.roofline for roof in roofs_over(group, roofs)):
        bandwidth, ridge = roofline.bandwidth(), roofline.ridge(precision)
        compute = ceilings(roofline, COMPUTE, precision)
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
    data: FigureData, roofs: Sequence[DeviceRoof], xs: Sequence[float], width: float
) -> model.AxisLimits:
    before, after = (0.98, 0.88) if data.several else (1.5, 1.5)
    if data.several and len(roofs) > 1:
        after = 1.4  # the labels of lower roofs are between the points and the frame
    every = [ceiling for roof in roofs for ceiling in roof.roofline.ceilings]
    if any(c.kind == "bandwidth" and c.provenance != "derived" for c in every):
        before = max(before, 1.25)  # the slope's label is longer: it has the provenance
    if theme().panel:  # left of the first ridge a slope has room for its label
        before, after = 0.8, 0.5
        ridges = (roof.roofline.ridge(name) for roof in roofs for name in data.panels)
        first = min(filter(None, ridges), default=max(xs))
        low, high = log10(min(xs)), log10(max(xs))
        share = (log10(first) - low) / (high - low) if low < high else 0.5
        before = max(before, LONG_SLOPE - share * (width - before - after))
    # A narrow panel has room for fewer labels.
    return model.log_limits(xs, width, min(before, 0.36 * width), min(after, 0.28 * width), 1.0)


def _y_limits(extent: Extent, cell: model.Cell, scale: float) -> model.AxisLimits:
    above = 0.14 + 0.14 * extent.flats
    return model.log_limits([y / scale for y in extent.ys], cell.height, 0.24, above, 1.0)


def _passed(data: FigureData, roofs: Sequence[DeviceRoof]) -> list[str]:
    """Why derived roofs are below measured ones, once for all precisions of a device."""
    notes = (
        (roof.owner, roof.roofline.passed(precision))
        for precision, group in data.panels.items()
        for roof in roofs_over(group, roofs)
    )
    return list(dict.fromkeys(f"{owner}{note}" for owner, note in notes if note))


def _above(data: FigureData) -> list[str]:
    """Every cause of points above a roof, with the kernels, in one note."""
    causes: dict[str, dict[str, None]] = defaultdict(dict)
    for precision, group in data.panels.items():
        for series in group:
            for row in series.rows:
                if cause := above_roof_cause(row, data.runs[series.run]):
                    causes[cause][f"{series.kernel} {PRECISIONS[precision].title}"] = None
    told = "; ".join(f"{cause} ({', '.join(kernels)})" for cause, kernels in causes.items())
    return [f"Above the roof: {told}"] * bool(told)


def _fill(
    panel: model.Panel,
    data: FigureData,
    precision: str,
    roofs: Sequence[DeviceRoof],
    scale: float,
) -> None:
    group, (x_limits, y_limits) = data.panels[precision], (panel.x.limits, panel.y.limits)
    lines = [(s, [(intensity(row), flop_rate(row) / scale) for row in s.rows]) for s in group]
    panel.draw_series(lines, data.styles)
    parts: list[list[list[model.Label]]] = []
    for roof in roofs_over(group, roofs):
        drawn = outline(roof.roofline, precision, x_limits, y_limits, scale)
        used = roof.roofline.used([precision])
        for one in (*drawn.flats, *drawn.slopes):
            ends, provenance = (one.start, one.end), one.ceiling.provenance
            name = f"{one.ceiling.amount} {provenance}"
            line = model.roof(ends, provenance, roof.colour, name, used=one.ceiling in used)
            panel.lines.append(line)
        if drawn.ridge:
            low = (drawn.ridge[0], y_limits[0])
            panel.lines.append(model.Line((low, drawn.ridge), roof.colour, dash=":", z=2))
            panel.marks.append(
                model.Marks([drawn.ridge], roof.colour, "o", 6, edge=1, z=5, name="_ridge")
            )
        ridge, slopes = _ridge_label(panel, roof, drawn), _slope_labels(panel, roof, drawn)
        parts.append([list(ridge), list(slopes), list(_flat_labels(panel, roof, drawn, precision))])
    if theme().brief:  # a slope may go without its label on a slide; a flat roof may not
        parts = [[ridge, flats, slopes] for ridge, slopes, flats in parts]
    if theme().panel:  # nor beside those of another device, in a small panel
        parts = [[one[i] for one in parts] for i in (2, 1, 0)]
    panel.labels += [label for some in parts for labels in some for label in labels]
    panel.labels += _point_labels(data, precision, scale)


def _ridge_label(panel: model.Panel, roof: DeviceRoof, drawn: Outline) -> Iterator[model.Label]:
    """Beside the dotted line, from the axis upward."""
    if not drawn.ridge or (theme().panel and roof.owner):
        return
    x, high = panel.place(*drawn.ridge)
    spots = []
    for step in range(1, 40):
        point = panel.data(x, high * step / 40)
        spots += [model.Spot(*point, 4, 2, "left", "bottom")]
        spots += [model.Spot(*point, -4, 2, "right", "bottom")]
    text = f"ridge {model.number(drawn.ridge[0])} FLOP/B"
    yield model.Label(text, spots, roof.colour, required=True)


def _slope_labels(panel: model.Panel, roof: DeviceRoof, drawn: Outline) -> Iterator[model.Label]:
    """Each beside its own line; if points are there, above the highest's with the line's style."""
    for i, slope in enumerate(drawn.slopes):
        ceiling = slope.ceiling
        angle, spots = panel.along(slope.start, slope.end, below=i > 0)
        brief = ceiling.provenance == "derived" or theme().brief
        text = f"{'' if i else f'{ceiling.key} '}{ceiling.amount}"
        own = text if brief else f"{text} ({ceiling.provenance})"
        first, key = i == 0 and not theme().brief, (roof.owner, ceiling)
        look: dict[str, Any] = {"rotation": angle, "key": key, "roofs": [ceiling.provenance]}
        if theme().panel and own != text:  # the dash of the line says it too
            yield model.Label(own, spots, roof.colour, **look)
            own = text
        yield model.Label(own, spots, roof.colour, required=first, **look)
        if not theme().brief:
            highest = drawn.slopes[0]
            _, spots = panel.along(highest.start, highest.end, gap=2.5 + 1.5 * theme().label)
            if not theme().panel or len(drawn.slopes) > 1:
                text = f"{text} ({_source(ceiling, drawn.slopes)})"
            yield model.Label(text, spots, roof.colour, required=True, **look)


def _flat_labels(
    panel: model.Panel, roof: DeviceRoof, drawn: Outline, precision: str
) -> Iterator[model.Label]:
    """Above the highest roof, from right to left; then farther above; then below the lowest."""
    for stack in _stacks(panel, drawn.flats):
        lines = (f"{flat.ceiling.amount} ({_source(flat.ceiling, stack)})" for flat in stack)
        text = f"{PRECISIONS[precision].title} " + "\n".join(lines)
        owner = model.shortened(roof.owner, theme().label, 0.6 * panel.cell.width)
        text = f"{owner.strip()}\n{text}" if len(owner) > LONG_OWNER else f"{owner}{text}"
        start, end = stack[0].start, stack[0].end
        lowest = start[0], stack[-1].start[1]
        spots = panel.leftward(start, end, [(dy, "bottom") for dy in (2.5, 6, 13)])
        spots += panel.leftward(lowest, end, [(dy, "top") for dy in (-2.5, -6)])
        sources: list[str] = [flat.ceiling.provenance for flat in stack]
        sources = [""] * (text.count("\n") + 1 - len(stack)) + sources
        yield model.Label(text, spots, roof.colour, required=True, align="right", roofs=sources)


def _stacks(panel: model.Panel, levels: Sequence[Segment]) -> list[list[Segment]]:
    """Flat roofs, highest first, grouped if there is no room for a label between them.

    Observed roofs join the group above them: labels at their thin lines would overlap points.
    """
    stacks: list[list[Segment]] = []
    bottom = float("inf")
    for level in levels:
        _, y = panel.place(*level.start)
        if bottom - y < 0.22 * 72 or (stacks and level.ceiling.provenance == "observed"):
            stacks[-1].append(level)
        else:
            stacks.append([level])
        bottom = y
    return stacks


def _source(ceiling: Ceiling, stack: Sequence[Segment]) -> str:
    """The provenance, with the clock of an observed roof, and the line's style in a stack."""
    clock = re.search(r"\d+ MHz$", ceiling.formula) if ceiling.provenance == "observed" else None
    if theme().brief:
        return clock[0] if clock else ceiling.provenance
    look = {"measured": ", dashed", "observed": ", thin"} if len(stack) > 1 else {}
    at = f" at {clock[0]}" if clock else ""
    return ceiling.provenance + at + look.get(ceiling.provenance, "")


def _point_labels(data: FigureData, precision: str, scale: float) -> Iterator[model.Label]:
    """Causes for points above the roof, then sizes at the ends; the fastest kernels first."""
    group, several = data.panels[precision], data.several
    square = all(map(model.plain, rows_of(group)))

    def label(series: Series, row: Measurement, cause: str, side: str) -> model.Label:
        size = f"{model.size_text(row)} {data.words(row)}".strip()
        share = "" if row.roof_percent is None else f" · {_percent(row.roof_percent)} %"
        of_roof = " of roof" if share and square and not several else ""
        point = intensity(row), flop_rate(row) / scale
        text = "\n".join(line for line in (f"{size}{share}{of_roof}", cause) if line)
        ink = data.styles[series.kernel].ink
        size_pt = theme().small + (not several and not theme().brief)
        key = (id(series), id(row))
        return model.Label(text, model.around(*point, side), ink, size_pt, point, key=key)

    for series in sorted(group, key=lambda s: -max(map(flop_rate, s.rows)))[: model.LABELLED]:
        first, last = series.rows[0], series.rows[-1]
        causes: dict[str, Measurement] = {}
        for row in sorted(series.rows, key=lambda row: -(row.roof_percent or 0)):
            causes.setdefault(above_roof_cause(row, data.runs[series.run]), row)
        for cause, row in causes.items():
            if cause:
                yield label(series, row, cause, "left" if row is first else "right")
        yield label(series, last, "", "right")
        if first is not last:
            yield label(series, first, "", "left")


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _suits(run: RunData) -> bool:
    if is_program(run.measurements):
        return bubbles.suits(run)
    return any(row.flops and row.problem.resident for row in run.ok)


KIND: Final = model.Kind("roofline", 0, make, suits=_suits)
