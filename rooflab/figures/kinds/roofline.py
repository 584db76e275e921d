"""The first figure: the roofline."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log10
from typing import TYPE_CHECKING, Any, Final

from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.roofs import (
    Outline,
    Piece,
    Roof,
    above_roof_cause,
    ceilings,
    device_roofs,
    outline,
    roofs_over,
)
from rooflab.figures.selection import (
    Selection,
    Series,
    Wanted,
    counted,
    flop_rate,
    intensity,
    select,
)
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import COMPUTE, Ceiling

if TYPE_CHECKING:
    from rooflab.runs.store import Run

XLABEL: Final = 0.5
"""Inches below the lowest panel, for the ticks' and the axis' labels."""

COSTS: Final = 1.0
"""Empty decades in a panel that a common y axis is worth."""

LONG_SLOPE: Final = 1.3
"""Inches of the x axis below a slope that has its label in a panel of a web page."""

LONG_OWNER: Final = 15
"""A longer name of a device is on a separate line above its roof."""


def make(wanted: Wanted) -> model.Page:
    """One panel per precision, all with the same x axis, and rows with the same y axis."""
    selection = select(wanted)
    several, points = selection.several, selection.rows()
    roofs = device_roofs(selection)
    named = several or not all(map(model.plain, points))
    notes = ["At the ends of each line: size · % of roof."] if named else []
    after = _passed(selection, roofs)
    if above := _above(selection):
        after.append(f"Above the roof: {'; '.join(above)}")
    extents = {name: _extent(group, roofs, name) for name, group in selection.panels.items()}
    shared = _shared(list(extents.values()))
    above_each, tall = (0.34, 3.1) if several else (0.06, 4.9)
    cells = grid(
        len(extents), apart=0.2 if shared else 0.62, above=above_each, tall=tall, below=XLABEL
    )
    most = max(max(extent.ys) for extent in extents.values())
    unit, scale = ("TFLOP/s", 1e12) if most >= 1e12 else ("GFLOP/s", 1e9)
    x_limits = _x_limits(selection, roofs, list(extents.values()), cells[0].width)
    panels = []
    for (precision, extent), cell in zip(extents.items(), cells, strict=True):
        beside = [e for e, c in zip(extents.values(), cells, strict=True) if c.row == cell.row]
        panel = model.log_panel(
            cell,
            model.Axis(x_limits, "Arithmetic intensity (FLOP/byte)"),
            model.Axis(
                _y_limits(beside if shared else [extent], cell, scale), f"Performance ({unit})"
            ),
            precision,
            beside=not shared,
        )
        panel.titled = several
        _fill(panel, selection, precision, roofs, scale)
        panels.append(panel)
    what = "roofline by precision" if several else "roofline"
    return page(selection, what, notes, panels, cells[-1].top + cells[-1].height + XLABEL, after)


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
    selection: Selection, roofs: Sequence[Roof], extents: Sequence[Extent], width: float
) -> model.Limits:
    several = selection.several
    before, after = (0.98, 0.88) if several else (1.5, 1.5)
    if several and len(roofs) > 1:
        after = 1.4  # the labels of lower roofs are between the points and the frame
    every = [ceiling for roof in roofs for ceiling in roof.roofline.ceilings]
    if any(c.kind == "bandwidth" and c.provenance != "derived" for c in every):
        before = max(before, 1.25)  # the slope's label is longer: it has the provenance
    xs = _joined(extents).xs
    if theme().panel:
        before, after = _web_margins(selection, roofs, xs, width)
    # A narrow panel has room for fewer labels.
    before, after = min(before, 0.36 * width), min(after, 0.28 * width)
    return model.log_limits(xs, width, before, after, 1.0)


def _web_margins(
    selection: Selection, roofs: Sequence[Roof], xs: Sequence[float], width: float
) -> tuple[float, float]:
    """Beside all points; left of the first ridge a slope is long enough for its label."""
    before, after = 0.8, 0.5
    found = [roof.roofline.ridge(name) for roof in roofs for name in selection.panels]
    first = min((ridge for ridge in found if ridge), default=max(xs))
    inches = (width - before - after) * log10(first / min(xs)) / log10(max(xs) / min(xs))
    return max(before, LONG_SLOPE - inches), after


def _y_limits(extents: Sequence[Extent], cell: model.Cell, scale: float) -> model.Limits:
    """With room for the labels of the roofs above, and for that of the ridge below."""
    joined = _joined(extents)
    above = 0.14 + 0.14 * joined.flats
    return model.log_limits([y / scale for y in joined.ys], cell.height, 0.24, above, 1.0)


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


def _fill(
    panel: model.Panel, selection: Selection, precision: str, roofs: Sequence[Roof], scale: float
) -> None:
    group = selection.panels[precision]
    lines = [(s, [(intensity(row), flop_rate(row) / scale) for row in s.rows]) for s in group]
    panel.draw_series(lines, selection.styles)
    limits = panel.x.limits, panel.y.limits
    outlines = [
        (roof, outline(roof.roofline, precision, *limits, scale))
        for roof in roofs_over(group, roofs)
    ]
    for roof, one in outlines:
        for piece in (*one.flats, *one.slopes):
            ends = (piece.start, piece.end)
            provenance = piece.ceiling.provenance
            name = f"{piece.ceiling.amount} {provenance}"
            panel.lines.append(model.roof(ends, provenance, roof.colour, name))
        if one.ridge:
            low = (one.ridge[0], panel.y.limits[0])
            panel.lines.append(model.Line((low, one.ridge), roof.colour, dash=":", z=2))
            panel.marks.append(
                model.Marks([one.ridge], roof.colour, "o", 6, edge=1, z=5, name="_ridge")
            )
    parts: list[list[list[model.Label]]] = [
        [
            list(_ridge_label(panel, roof, one)),
            list(_slope_labels(panel, roof, one)),
            list(_flat_labels(panel, roof, one, precision)),
        ]
        for roof, one in outlines
    ]
    if theme().brief:  # a slope may go without its label on a slide; a flat roof may not
        parts = [[ridge, flats, slopes] for ridge, slopes, flats in parts]
    if theme().panel:  # nor beside those of another device, in a small panel
        parts = [[one[i] for one in parts] for i in (2, 1, 0)]
    panel.labels += [label for some in parts for labels in some for label in labels]
    panel.labels += _point_labels(selection, precision, scale)


def _ridge_label(panel: model.Panel, roof: Roof, drawn: Outline) -> Iterator[model.Label]:
    if drawn.ridge and not (theme().panel and roof.owner):
        text = f"ridge {model.number(drawn.ridge[0])} FLOP/B"
        yield model.Label(text, list(_ridge_spots(panel, *drawn.ridge)), roof.colour, required=True)


def _slope_labels(panel: model.Panel, roof: Roof, drawn: Outline) -> Iterator[model.Label]:
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
            text = f"{text} ({_source(ceiling, drawn.slopes)})"
            yield model.Label(text, spots, roof.colour, required=True, **look)


def _flat_labels(
    panel: model.Panel, roof: Roof, drawn: Outline, precision: str
) -> Iterator[model.Label]:
    for stack in _stacks(panel, drawn.flats):
        lines = (f"{flat.ceiling.amount} ({_source(flat.ceiling, stack)})" for flat in stack)
        text = f"{PRECISIONS[precision].title} " + "\n".join(lines)
        sources: list[str] = [flat.ceiling.provenance for flat in stack]
        owner = model.shortened(roof.owner, theme().label, 0.6 * panel.cell.width)
        text = f"{owner.strip()}\n{text}" if len(owner) > LONG_OWNER else f"{owner}{text}"
        yield model.Label(
            *(text, _flat_spots(panel, stack), roof.colour),
            required=True,
            align="right",
            roofs=[""] * (text.count("\n") + 1 - len(stack)) + sources,
        )


def _stacks(panel: model.Panel, levels: Sequence[Piece]) -> list[list[Piece]]:
    """Flat roofs, highest first, grouped if there is no room for a label between them.

    Observed roofs join the group above them: labels at their thin lines would overlap points.
    """
    stacks: list[list[Piece]] = []
    bottom = float("inf")
    for level in levels:
        _, y = panel.place(*level.start)
        if bottom - y < 0.22 * 72 or (stacks and level.ceiling.provenance == "observed"):
            stacks[-1].append(level)
        else:
            stacks.append([level])
        bottom = y
    return stacks


def _source(ceiling: Ceiling, stack: Sequence[Piece]) -> str:
    """The provenance, with the clock of an observed roof, and the line's style in a stack."""
    clock = re.search(r"\d+ MHz$", ceiling.formula) if ceiling.provenance == "observed" else None
    if theme().brief:
        return clock[0] if clock else ceiling.provenance
    look = {"measured": ", dashed", "observed": ", thin"} if len(stack) > 1 else {}
    at = f" at {clock[0]}" if clock else ""
    return ceiling.provenance + at + look.get(ceiling.provenance, "")


def _ridge_spots(panel: model.Panel, ridge: float, top: float) -> Iterator[model.Spot]:
    """Beside the dotted line, from the axis upward."""
    x, high = panel.place(ridge, top)
    for step in range(1, 40):
        px, py = panel.data(x, high * step / 40)
        yield model.Spot(px, py, 4, 2, "left", "bottom")
        yield model.Spot(px, py, -4, 2, "right", "bottom")


def _flat_spots(panel: model.Panel, stack: Sequence[Piece]) -> Iterator[model.Spot]:
    """Above the highest roof, from right to left; then farther above; then below the lowest."""
    (x0, y), (x1, _) = panel.place(*stack[0].start), panel.place(*stack[0].end)
    _, under = panel.place(*stack[-1].start)
    for at, dy in ((y, 2.5), (y, 6), (y, 13), (under, -2.5), (under, -6)):
        for step in range(0, 21, 2):
            px, py = panel.data(x1 - (x1 - x0) * step / 20, at)
            yield model.Spot(px, py, -4, dy, "right", "bottom" if dy > 0 else "top")


def _point_labels(selection: Selection, precision: str, scale: float) -> Iterator[model.Label]:
    """Causes for points above the roof, then sizes at the ends; the fastest kernels first."""
    group, several = selection.panels[precision], selection.several
    square = all(model.plain(row) for series in group for row in series.rows)

    def label(series: Series, row: Measurement, cause: str, side: str) -> model.Label:
        size = f"{model.size_text(row)} {selection.words(row)}".strip()
        share = "" if row.roof_percent is None else f" · {_percent(row.roof_percent)} %"
        of_roof = " of roof" if share and square and not several else ""
        point = intensity(row), flop_rate(row) / scale
        text = "\n".join(line for line in (f"{size}{share}{of_roof}", cause) if line)
        ink = selection.styles[series.kernel].ink
        size_pt = theme().small + (not several and not theme().brief)
        return model.Label(
            text, model.around(*point, side), ink, size_pt, point, key=(id(series), id(row))
        )

    fastest = sorted(group, key=lambda series: -max(map(flop_rate, series.rows)))
    for series in fastest[: model.LABELLED]:
        run, first, last = selection.runs[series.run], series.rows[0], series.rows[-1]
        causes: dict[str, Measurement] = {}
        for row in sorted(series.rows, key=lambda row: -(row.roof_percent or 0)):
            causes.setdefault(above_roof_cause(row, run), row)
        for cause, row in causes.items():
            if cause:
                yield label(series, row, cause, "left" if row is first else "right")
        yield label(series, last, "", "right")
        if first is not last:
            yield label(series, first, "", "left")


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _suits(run: Run) -> bool:
    return any(row.flops and row.problem.resident for row in run.ok)


KIND: Final = model.Kind("roofline", 0, make, suits=_suits)
