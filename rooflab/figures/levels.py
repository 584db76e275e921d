"""The hierarchical roofline: one roof and one marker per memory level, from counted bytes.

After Yang, Kurth, Williams, "Hierarchical Roofline Analysis for GPUs", 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.figures.labels import Labels, Spot, around
from rooflab.figures.page import conditions, grid, open_page
from rooflab.figures.palette import Style
from rooflab.figures.panel import draw_roof, log_limits, log_ticks, name_panel, size_text
from rooflab.figures.selection import Selection, flop_rate, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.runs.store import Run

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
    look: Mapping[str, Any]


LEVELS: Final = (
    Level("", "dram_bytes", {"marker": "o", "markersize": 6}),
    Level("L2", "l2_bytes", {"marker": "s", "markersize": 8, "markerfacecolor": "none"}),
    Level("L1", "l1_bytes", {"marker": "^", "markersize": 4.5}),
)


def draw_levels(selection: Selection) -> Figure:
    """A panel per precision, and one for kernels without FLOPs.

    Raises ``UsageError`` if no row has counted bytes.
    """
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
    notes = [NOTE, *conditions(selection)]
    body = cells[-1].top + cells[-1].height + 0.5
    page = open_page(selection, "hierarchical roofline", notes, body)

    def place(i: int) -> Axes:
        cell, shift = cells[i], 0.55 * (i >= len(panels) and cells[i].column > 0)
        return page.axes(cell.left + shift, cell.top, cell.width - shift, cell.height)

    roofline = selection.runs[0].manifest.roofline
    if panels:
        _draw_rooflines(
            [place(i) for i in range(len(panels))], roofline, panels, styles, named=count > 1
        )
    if moving:
        _draw_speeds(place(len(panels)), roofline, moving, styles)
    return page.figure


def _draw_rooflines(
    places: Sequence[Axes],
    roofline: Roofline,
    panels: dict[str, list[Measurement]],
    styles: Mapping[str, Style],
    *,
    named: bool,
) -> None:
    """A panel per precision, with the same axes."""
    xs, ys = _extent(roofline, panels)
    unit, scale = ("TFLOP/s", 1e12) if max(ys) >= 1e12 else ("GFLOP/s", 1e9)
    for i, (axes, (precision, rows)) in enumerate(zip(places, panels.items(), strict=True)):
        width, height = float(axes.bbox.width) / theme().dpi, float(axes.bbox.height) / theme().dpi
        x_limits = log_limits(xs, width, 0.9, 0.9, 1.0)
        y_limits = log_limits([y / scale for y in ys], height, 1.0, 0.45, 1.5)
        axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
        log_ticks(axes.xaxis, x_limits)
        log_ticks(axes.yaxis, y_limits)
        lowest = i + 2 >= len(places)
        axes.tick_params(labelbottom=lowest, labelleft=i % 2 == 0)
        if lowest:
            axes.set_xlabel("Arithmetic intensity (FLOP/byte of the level)")
        if i % 2 == 0:
            axes.set_ylabel(f"Performance ({unit})")
        if named:
            name_panel(axes, PRECISIONS[precision].title, pad=4)
        _draw_panel(axes, roofline, precision, rows, styles, scale)


def _draw_speeds(
    axes: Axes, roofline: Roofline, rows: Sequence[Measurement], styles: Mapping[str, Style]
) -> None:
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
    limits = log_limits(values, axes.bbox.height / theme().dpi, 0.4, 0.5, 1.0)
    axes.set(yscale="log", ylim=limits, xlim=(-0.6, 2.6), ylabel="TB/s (counted bytes / time)")
    axes.set_xticks(range(len(LEVELS)), names)
    workloads = ", ".join(dict.fromkeys(row.problem.workload for row in rows))
    axes.set_title(f"{workloads}: no FLOPs", loc="left", fontweight="bold", pad=4)
    log_ticks(axes.yaxis, limits)
    labels = Labels(axes)
    for i, roof in enumerate(roofs):
        if roof:
            y = roof.value / 1e12
            draw_roof(labels, (i - 0.4, i + 0.4), (y, y), roof.provenance, theme().ink)
            above = [Spot(i, y, 0, 3, va="bottom"), Spot(i, y, 0, -3, va="top")]
            labels.place(roof.amount, above, required=True, color=theme().ink)
    order = list(dict.fromkeys(row.kernel for row in rows))
    for row, i, level, speed in speeds:
        x = i + 0.16 * (order.index(row.kernel) - (len(order) - 1) / 2)
        axes.plot([x], [speed], color=styles[row.kernel].colour, zorder=5, **level.look)
        labels.avoid_marker(x, speed, 7)


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


def _draw_panel(
    axes: Axes,
    roofline: Roofline,
    precision: str,
    rows: Sequence[Measurement],
    styles: Mapping[str, Style],
    scale: float,
) -> None:
    labels = Labels(axes)
    for row in rows:
        _draw_kernel(labels, row, styles[row.kernel].colour, scale)
    lines = _draw_roofs(labels, roofline, precision, scale)
    for ceiling, start, end in lines:
        flat = ceiling.kind == "compute"
        angle, spots = labels.along(start, end)
        name = "" if flat else f"{ceiling.key} "
        text = f"{name}{ceiling.amount}"
        labels.place(text, spots, required=True, rotation=0 if flat else angle, color=theme().ink)
    for row in rows:
        text = f"{row.kernel} {size_text(row)}"
        beside = around(intensity(row), flop_rate(row) / scale, "right")
        labels.place(text, beside, color=styles[row.kernel].ink, fontsize=theme().small)


def _draw_kernel(labels: Labels, row: Measurement, colour: str, scale: float) -> None:
    axes, y = labels.axes, flop_rate(row) / scale
    modelled = intensity(row)
    for level, x in _points(row):
        axes.plot([x], [y], color=colour, zorder=5, **level.look)
        labels.avoid_marker(x, y, 7)
        if not level.key:
            axes.plot([modelled, x], [y, y], color=colour, linewidth=0.8, zorder=4)
            labels.avoid_line([modelled, x], [y, y])
    axes.plot([modelled], [y], "x", color=colour, markersize=5, zorder=5)
    labels.avoid_marker(modelled, y, 6)


def _draw_roofs(
    labels: Labels, roofline: Roofline, precision: str, scale: float
) -> list[tuple[Ceiling, tuple[float, float], tuple[float, float]]]:
    """The slope of each level up to the compute roof, and that roof; returns the lines."""
    (x_low, x_high), (y_low, y_high) = labels.axes.get_xlim(), labels.axes.get_ylim()
    compute = roofline.compute(precision)
    top = compute.value / scale if compute else y_high
    lines = []
    slopes = [slope for level in LEVELS if (slope := _ceiling(roofline, level))]
    for slope in slopes:
        per = slope.value / scale
        start, end = max(x_low, y_low / per), min(top / per, x_high)
        lines.append((slope, (start, start * per), (end, end * per)))
    if compute:
        steepest = max((slope.value for slope in slopes), default=compute.value / x_low)
        lines.append((compute, (max(x_low, compute.value / steepest), top), (x_high, top)))
    for ceiling, (x0, y0), (x1, y1) in lines:
        draw_roof(labels, (x0, x1), (y0, y1), ceiling.provenance, theme().ink)
    return lines


def of_one_device(runs: Sequence[Run]) -> Sequence[Run]:
    """The runs; raises ``UsageError`` if their devices differ: there is one set of roofs."""
    if len({run.manifest.device.name for run in runs}) > 1:
        raise UsageError("plot --levels draws runs of one device")
    return runs
