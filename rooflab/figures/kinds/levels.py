"""The hierarchical roofline: one roof and one marker per memory level, from counted bytes.

After Yang, Kurth, Williams, "Hierarchical Roofline Analysis for GPUs", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.palette import KernelStyle
from rooflab.figures.roofs import Segment
from rooflab.figures.selection import Series, Wanted, flop_rate, intensity, rows_of, select
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline

NOTE: Final = (
    "Counted bytes of the largest problem of each kernel: ○ device memory, □ L2, △ L1. "
    "Crosses: the compulsory bytes of the model, joined to the counted ones of device memory. "
    "Solid roofs are derived, dashed ones measured."
)

Styles = Mapping[str, KernelStyle]


@dataclass(frozen=True, slots=True)
class Level:
    """One memory level: its marker, its ceiling's key and its column; "" is device memory.

    The markers can be told apart where they coincide.
    """

    key: str
    column: str
    marker: str
    size: float
    face: str = ""

    def marks(self, point: model.DataPoint, colour: str) -> model.Marks:
        """Its marker at a point."""
        look = (colour, self.marker, self.size)
        return model.Marks([point], *look, face=self.face, edge=1, around=7 - self.size, z=5)

    def moved(self, row: Measurement) -> float:
        """Its counted bytes."""
        return getattr(row, self.column) or 0.0

    def ceiling(self, roofline: Roofline) -> Ceiling | None:
        """Its roof; of device memory the one that percentages refer to."""
        return roofline.cache(self.key) if self.key else roofline.bandwidth()


LEVELS: Final = (
    Level("", "dram_bytes", "o", 6),
    Level("L2", "l2_bytes", "s", 8, "none"),
    Level("L1", "l1_bytes", "^", 4.5),
)


def make(wanted: Wanted) -> model.Page:
    """A panel per precision, and one for kernels without FLOPs."""
    if len({run.manifest.device.name for run in wanted.runs}) > 1:
        raise UsageError("plot --levels draws runs of one device")
    every = select(wanted, flops=False, every=True)
    chosen = {name: rows for name, group in every.panels.items() if (rows := _largest(group))}
    if not chosen:
        (first, *_) = every.runs
        raise UsageError(f"{first.path} has no counted bytes: rooflab counters {first.path}")
    panels = {name: [row for row in rows if row.flops] for name, rows in chosen.items()}
    panels = {name: rows for name, rows in panels.items() if rows}
    moving = [row for rows in chosen.values() for row in rows if not row.flops]
    kernels = {row.kernel for rows in chosen.values() for row in rows}
    data = every.only({name: every.panels[name] for name in chosen}, kernels)
    data = replace(data, styles={n: replace(style, marker="") for n, style in data.styles.items()})
    count = len(panels) + bool(moving)
    tall, gap = (3.3, 0.34) if count > 1 else (5.2, 0.06)
    more = 0.4 * bool(moving)  # for the axis above another kind of panel
    cells = grid(count, apart=0.2, above=gap + more, tall=tall, first=-more)
    roofline = data.runs[0].manifest.roofline
    drawn = _rooflines(cells, roofline, panels, data.styles) if panels else []
    for panel in drawn:
        panel.titled = count > 1
    if moving:
        cell = cells[-1]
        shift = 0.55 * bool(cell.column)
        cell = replace(cell, left=cell.left + shift, width=cell.width - shift)
        drawn.append(_speeds(cell, roofline, moving, data.styles))
    return page(data, "hierarchical roofline", [NOTE], drawn)


def _largest(group: Sequence[Series]) -> list[Measurement]:
    """The largest problem of each kernel that has counted bytes."""
    having = (row for row in rows_of(group) if any(level.moved(row) for level in LEVELS))
    kernels = grouped(having, lambda row: row.kernel).values()
    return [max(rows, key=lambda row: row.bytes or 0) for rows in kernels]


def _rooflines(
    cells: Sequence[model.Cell],
    roofline: Roofline,
    panels: Mapping[str, list[Measurement]],
    styles: Styles,
) -> list[model.Panel]:
    xs, ys = _extent(roofline, panels)
    unit, scale = ("TFLOP/s", 1e12) if max(ys) >= 1e12 else ("GFLOP/s", 1e9)
    heights = [y / scale for y in ys]
    drawn = []
    for i, (cell, (precision, rows)) in enumerate(zip(cells, panels.items(), strict=False)):
        title = "Arithmetic intensity (FLOP/byte of the level)"
        panel = model.log_panel(
            replace(cell, lowest=i + 2 >= len(panels)),
            model.log_axis(title, xs, cell.width, 0.9, 0.9),
            model.log_axis(f"Performance ({unit})", heights, cell.height, 1.0, 0.45, 1.5),
            precision,
        )
        _fill(panel, roofline, precision, rows, styles, scale)
        drawn.append(panel)
    return drawn


def _extent(
    roofline: Roofline, panels: Mapping[str, list[Measurement]]
) -> tuple[list[float], list[float]]:
    rows = [row for group in panels.values() for row in group]
    xs = [intensity(row) for row in rows] + [x for row in rows for _, x in _points(row)]
    ys = [flop_rate(row) for row in rows]
    for compute in filter(None, map(roofline.compute, panels)):
        ys.append(compute.value)
        slopes = (level.ceiling(roofline) for level in LEVELS)
        xs += [compute.value / slope.value for slope in slopes if slope]
    return xs, ys


def _points(row: Measurement) -> list[tuple[Level, float]]:
    """The intensity at each level with counted bytes."""
    counted = ((level, level.moved(row)) for level in LEVELS)
    return [(level, row.flops / moved) for level, moved in counted if moved and row.flops]


def _fill(
    panel: model.Panel,
    roofline: Roofline,
    precision: str,
    rows: Sequence[Measurement],
    styles: Styles,
    scale: float,
) -> None:
    for row in rows:
        (x, y), colour = (intensity(row), flop_rate(row) / scale), styles[row.kernel].colour
        for level, counted in _points(row):
            panel.marks.append(level.marks((counted, y), colour))
            if not level.key:
                panel.lines.append(model.Line([(x, y), (counted, y)], colour, 0.8, z=4))
        panel.marks.append(model.Marks([(x, y)], colour, "x", 5, edge=1, z=5))
    for piece in _roofs(panel, roofline, precision, scale):
        ceiling, ends = piece.ceiling, (piece.start, piece.end)
        panel.lines.append(model.roof(ends, ceiling.provenance, theme().ink))
        flat = ceiling.kind == "compute"
        angle, spots = panel.along(*ends)
        text = ceiling.amount if flat else f"{ceiling.key} {ceiling.amount}"
        turn = 0 if flat else angle
        panel.labels.append(model.Label(text, spots, theme().ink, required=True, rotation=turn))
    for row in rows:
        point = intensity(row), flop_rate(row) / scale
        text = f"{row.kernel} {model.size_text(row)}"
        panel.labels.append(model.beside(point, text, styles[row.kernel].ink))


def _roofs(panel: model.Panel, roofline: Roofline, precision: str, scale: float) -> list[Segment]:
    """The slope of each level up to the compute roof, and that roof."""
    x_low, x_high = panel.x.limits
    compute = roofline.compute(precision)
    top = compute.value / scale if compute else panel.y.limits[1]
    slopes = [slope for level in LEVELS if (slope := level.ceiling(roofline))]
    segments = [Segment(slope, *panel.slope(slope.value / scale, top)) for slope in slopes]
    if compute:
        steepest = max((slope.value for slope in slopes), default=compute.value / x_low)
        start = max(x_low, compute.value / steepest)
        segments.append(Segment(compute, (start, top), (x_high, top)))
    return segments


def _speeds(
    cell: model.Cell, roofline: Roofline, rows: Sequence[Measurement], styles: Styles
) -> model.Panel:
    """Counted bytes per second of kernels without FLOPs, and the roof of each level."""
    roofs = [level.ceiling(roofline) for level in LEVELS]
    names = [level.key or roofline.memory for level in LEVELS]
    speeds = [
        (row, i, level, moved / row.time_us / 1e6)
        for row in rows
        for i, level in enumerate(LEVELS)
        if (moved := level.moved(row)) and row.time_us
    ]
    values = [speed for *_, speed in speeds] + [roof.value / 1e12 for roof in roofs if roof]
    workloads = ", ".join(dict.fromkeys(row.problem.workload for row in rows))
    panel = model.Panel(
        cell,
        model.Axis((-0.6, 2.6), log=False, ticks=list(enumerate(names))),
        model.log_axis("TB/s (counted bytes / time)", values, cell.height, 0.4, 0.5),
        f"{workloads}: no FLOPs",
    )
    for i, roof in enumerate(roofs):
        if roof:
            y = roof.value / 1e12
            ends = [(i - 0.4, y), (i + 0.4, y)]
            panel.lines.append(model.roof(ends, roof.provenance, theme().ink))
            above = [model.Spot(i, y, 0, 3, va="bottom"), model.Spot(i, y, 0, -3, va="top")]
            panel.labels.append(model.Label(roof.amount, above, theme().ink, required=True))
    order = list(dict.fromkeys(row.kernel for row in rows))
    for row, i, level, speed in speeds:
        x = i + 0.16 * (order.index(row.kernel) - (len(order) - 1) / 2)
        panel.marks.append(level.marks((x, speed), styles[row.kernel].colour))
    return panel


KIND: Final = model.Kind(
    "levels", 2, make, "levels", "Draw DRAM, L2 and L1 from counted bytes (--counters)."
)
