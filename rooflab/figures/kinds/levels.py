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
from rooflab.figures.palette import Style
from rooflab.figures.roofs import Piece
from rooflab.figures.selection import Selection, Wanted, flop_rate, intensity, select
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline

NOTE: Final = (
    "Counted bytes of the largest problem of each kernel: ○ device memory, □ L2, △ L1. "
    "Crosses: the compulsory bytes of the model, joined to the counted ones of device memory. "
    "Solid roofs are derived, dashed ones measured."
)


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

    def marks(self, place: tuple[float, float], colour: str) -> model.Marks:
        """Its marker at a place."""
        return model.Marks(
            [place],
            colour,
            self.marker,
            self.size,
            face=self.face,
            edge=1,
            around=7 - self.size,
            z=5,
        )


LEVELS: Final = (
    Level("", "dram_bytes", "o", 6),
    Level("L2", "l2_bytes", "s", 8, "none"),
    Level("L1", "l1_bytes", "^", 4.5),
)


def make(wanted: Wanted) -> model.Page:
    """A panel per precision, and one for kernels without FLOPs."""
    selection = select(_of_one_device(wanted), flops=False, every=True)
    chosen = {precision: _largest(selection, precision) for precision in selection.panels}
    chosen = {precision: rows for precision, rows in chosen.items() if rows}
    if not chosen:
        (first, *_) = selection.runs
        raise UsageError(f"{first.path} has no counted bytes: rooflab counters {first.path}")
    panels = {precision: [r for r in rows if r.flops] for precision, rows in chosen.items()}
    panels = {precision: rows for precision, rows in panels.items() if rows}
    moving = [row for rows in chosen.values() for row in rows if not row.flops]
    kernels = {row.kernel for rows in chosen.values() for row in rows}
    styles = {name: style for name, style in selection.styles.items() if name in kernels}
    selection = replace(
        selection,
        panels={precision: selection.panels[precision] for precision in chosen},
        styles={name: replace(style, marker="") for name, style in styles.items()},
    )
    count = len(panels) + bool(moving)
    tall, gap = (3.3, 0.34) if count > 1 else (5.2, 0.06)
    more = 0.4 * bool(moving)  # for the axis above another kind of panel
    cells = grid(count, apart=0.2, above=gap + more, tall=tall, below=0.5, first=-more)
    roofline = selection.runs[0].manifest.roofline
    drawn = _rooflines(cells, roofline, panels, styles, named=count > 1) if panels else []
    if moving:
        cell = cells[-1]
        shift = 0.55 * bool(cell.column)
        cell = replace(cell, left=cell.left + shift, width=cell.width - shift)
        drawn.append(_speeds(cell, roofline, moving, styles))
    body = cells[-1].top + cells[-1].height + 0.5
    return page(selection, "hierarchical roofline", [NOTE], drawn, body)


def _rooflines(
    cells: Sequence[model.Cell],
    roofline: Roofline,
    panels: dict[str, list[Measurement]],
    styles: Mapping[str, Style],
    *,
    named: bool,
) -> list[model.Panel]:
    """A panel per precision, with the same axes."""
    xs, ys = _extent(roofline, panels)
    unit, scale = ("TFLOP/s", 1e12) if max(ys) >= 1e12 else ("GFLOP/s", 1e9)
    drawn = []
    for i, (cell, (precision, rows)) in enumerate(zip(cells, panels.items(), strict=False)):
        x_limits = model.log_limits(xs, cell.width, 0.9, 0.9, 1.0)
        y_limits = model.log_limits([y / scale for y in ys], cell.height, 1.0, 0.45, 1.5)
        panel = model.log_panel(
            replace(cell, lowest=i + 2 >= len(panels)),
            model.Axis(x_limits, "Arithmetic intensity (FLOP/byte of the level)"),
            model.Axis(y_limits, f"Performance ({unit})"),
            precision,
        )
        panel.titled = named
        _fill(panel, roofline, precision, rows, styles, scale)
        drawn.append(panel)
    return drawn


def _speeds(
    cell: model.Cell, roofline: Roofline, rows: Sequence[Measurement], styles: Mapping[str, Style]
) -> model.Panel:
    """Counted bytes per second of kernels without FLOPs, and the roof of each level."""
    roofs = [_ceiling(roofline, level) for level in LEVELS]
    names = [level.key or roofline.memory for level in LEVELS]
    speeds = [
        (row, i, level, moved / row.time_us / 1e6)
        for row in rows
        for i, level in enumerate(LEVELS)
        if (moved := getattr(row, level.column)) and row.time_us
    ]
    values = [speed for *_, speed in speeds] + [roof.value / 1e12 for roof in roofs if roof]
    limits = model.log_limits(values, cell.height, 0.4, 0.5, 1.0)
    workloads = ", ".join(dict.fromkeys(row.problem.workload for row in rows))
    panel = model.Panel(
        cell,
        model.Axis((-0.6, 2.6), log=False, ticks=list(enumerate(names))),
        model.Axis(limits, "TB/s (counted bytes / time)"),
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


def _largest(selection: Selection, precision: str) -> list[Measurement]:
    """The largest problem of each kernel that has counted bytes."""
    largest: dict[str, Measurement] = {}
    for series in selection.panels[precision]:
        for row in series.rows:
            counted = any(getattr(row, level.column) for level in LEVELS)
            other = largest.get(row.kernel)
            if counted and (other is None or (row.bytes or 0) > (other.bytes or 0)):
                largest[row.kernel] = row
    return list(largest.values())


def _ceiling(roofline: Roofline, level: Level) -> Ceiling | None:
    """The roof of a level; of device memory the one that percentages refer to."""
    if not level.key:
        return roofline.bandwidth()
    return roofline.cache(level.key)


def _points(row: Measurement) -> list[tuple[Level, float]]:
    """The intensity at each level with counted bytes."""
    flops = row.flops or 0
    counted = [(level, getattr(row, level.column)) for level in LEVELS]
    return [(level, flops / moved) for level, moved in counted if moved and flops]


def _extent(
    roofline: Roofline, chosen: dict[str, list[Measurement]]
) -> tuple[list[float], list[float]]:
    """Everything that the axes must include."""
    rows = [row for group in chosen.values() for row in group]
    xs = [intensity(row) for row in rows]
    xs += [x for row in rows for _, x in _points(row)]
    ys = [flop_rate(row) for row in rows]
    for precision in chosen:
        compute = roofline.compute(precision)
        if compute is None:
            continue
        ys.append(compute.value)
        slopes = (_ceiling(roofline, level) for level in LEVELS)
        xs += [compute.value / slope.value for slope in slopes if slope]
    return xs, ys


def _fill(
    panel: model.Panel,
    roofline: Roofline,
    precision: str,
    rows: Sequence[Measurement],
    styles: Mapping[str, Style],
    scale: float,
) -> None:
    for row in rows:
        _add_kernel(panel, row, styles[row.kernel].colour, scale)
    for piece in _roofs(panel, roofline, precision, scale):
        ceiling, ends = piece.ceiling, (piece.start, piece.end)
        panel.lines.append(model.roof(ends, ceiling.provenance, theme().ink))
        flat = ceiling.kind == "compute"
        angle, spots = panel.along(*ends)
        text = ceiling.amount if flat else f"{ceiling.key} {ceiling.amount}"
        turn = 0 if flat else angle
        panel.labels.append(model.Label(text, spots, theme().ink, required=True, rotation=turn))
    for row in rows:
        text = f"{row.kernel} {model.size_text(row)}"
        beside = model.around(intensity(row), flop_rate(row) / scale, "right")
        panel.labels.append(model.Label(text, beside, styles[row.kernel].ink, theme().small))


def _add_kernel(panel: model.Panel, row: Measurement, colour: str, scale: float) -> None:
    modelled, y = intensity(row), flop_rate(row) / scale
    for level, x in _points(row):
        panel.marks.append(level.marks((x, y), colour))
        if not level.key:
            panel.lines.append(model.Line([(modelled, y), (x, y)], colour, 0.8, z=4))
    panel.marks.append(model.Marks([(modelled, y)], colour, "x", 5, edge=1, z=5))


def _roofs(panel: model.Panel, roofline: Roofline, precision: str, scale: float) -> list[Piece]:
    """The slope of each level up to the compute roof, and that roof."""
    (x_low, x_high), (y_low, y_high) = panel.x.limits, panel.y.limits
    compute = roofline.compute(precision)
    top = compute.value / scale if compute else y_high
    slopes = [slope for level in LEVELS if (slope := _ceiling(roofline, level))]
    pieces = []
    for slope in slopes:
        per = slope.value / scale
        start, end = max(x_low, y_low / per), min(top / per, x_high)
        pieces.append(Piece(slope, (start, start * per), (end, end * per)))
    if compute:
        steepest = max((slope.value for slope in slopes), default=compute.value / x_low)
        pieces.append(Piece(compute, (max(x_low, compute.value / steepest), top), (x_high, top)))
    return pieces


def _of_one_device(wanted: Wanted) -> Wanted:
    """Raises ``UsageError`` if the runs' devices differ: there is one set of roofs."""
    if len({run.manifest.device.name for run in wanted.runs}) > 1:
        raise UsageError("plot --levels draws runs of one device")
    return wanted


KIND: Final = model.Kind(
    "levels",
    2,
    make,
    "levels",
    "Draw DRAM, L2 and L1 from counted bytes (--counters).",
)
