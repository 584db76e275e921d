"""The hierarchical roofline: one roof and one marker per memory level, from counted bytes.

After Yang, Kurth, Williams, "Hierarchical Roofline Analysis for GPUs", 2020.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.plot.labels import Labels, around
from rooflab.plot.page import LEFT, cells, conditions, grid_rows, open_page
from rooflab.plot.panel import draw_roof, log_limits, log_ticks, name_panel, size_text
from rooflab.plot.selection import Selection, flop_rate, intensity
from rooflab.plot.style import Style
from rooflab.runs.store import Run

NOTE: Final = (
    "Counted bytes of the largest problem of each kernel: ○ device memory, □ L2, △ L1. "
    "Crosses: the compulsory bytes of the model, joined to the counted ones of device memory. "
    "Solid roofs are derived, dashed ones measured."
)


@dataclass(frozen=True, slots=True)
class Level:
    """One memory level: its marker, its ceiling's key and its column; "" is device memory."""

    key: str
    column: str
    marker: str


LEVELS: Final = (
    Level("", "dram_bytes", "o"),
    Level("L2", "l2_bytes", "s"),
    Level("L1", "l1_bytes", "^"),
)


def draw_levels(selection: Selection) -> Figure:
    """One panel per precision. Raises ``UsageError`` if no row has counted bytes."""
    (run,) = selection.runs
    chosen = {precision: _largest(selection, precision) for precision in selection.panels}
    chosen = {precision: rows for precision, rows in chosen.items() if rows}
    if not chosen:
        raise UsageError(f"{run.path} has no counted bytes: measure with rooflab sweep --counters")
    kernels = {row.kernel for rows in chosen.values() for row in rows}
    styles = {name: style for name, style in selection.styles.items() if name in kernels}
    selection = replace(
        selection,
        panels={precision: selection.panels[precision] for precision in chosen},
        styles={name: replace(style, marker="") for name, style in styles.items()},
    )
    several = selection.several
    width, height, gap = (3.95, 3.3, 0.34) if several else (8.05, 5.2, 0.06)
    notes = [NOTE, *conditions(selection)]
    rows = grid_rows(selection)
    page = open_page(selection, "hierarchical roofline", notes, rows * (height + gap) + 0.5)

    roofline = run.manifest.roofline
    xs, ys = _extent(roofline, chosen)
    unit, scale = ("TFLOP/s", 1e12) if max(ys) >= 1e12 else ("GFLOP/s", 1e9)
    x_limits = log_limits(xs, width, 0.9, 0.9, 1.0)
    y_limits = log_limits([y / scale for y in ys], height, 1.0, 0.45, 1.5)
    for precision, row, column, lowest in cells(selection):
        axes = page.axes(LEFT + column * (width + 0.2), gap + row * (height + gap), width, height)
        axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
        log_ticks(axes.xaxis, x_limits)
        log_ticks(axes.yaxis, y_limits)
        axes.tick_params(labelbottom=lowest, labelleft=column == 0)
        if lowest:
            axes.set_xlabel("Arithmetic intensity (FLOP/byte of the level)")
        if column == 0:
            axes.set_ylabel(f"Performance ({unit})")
        if several:
            name_panel(axes, precision, pad=4)
        _draw_panel(axes, roofline, precision, chosen[precision], styles, scale)
    return page.figure


def _largest(selection: Selection, precision: str) -> list[Measurement]:
    """The largest problem of each kernel that has counted bytes."""
    largest: dict[str, Measurement] = {}
    for series in selection.panels[precision]:
        for row in series.rows:
            counted = any(getattr(row, level.column) for level in LEVELS)
            other = largest.get(row.kernel)
            if counted and (other is None or (row.flops or 0) > (other.flops or 0)):
                largest[row.kernel] = row
    return list(largest.values())


def _ceiling(roofline: Roofline, level: Level) -> Ceiling | None:
    """The roof of a level; of device memory the one that percentages refer to."""
    if not level.key:
        return roofline.bandwidth()
    found = (c for c in roofline.ceilings if (c.kind, c.key) == ("bandwidth", level.key))
    return next(found, None)


def _points(row: Measurement) -> list[tuple[Level, float]]:
    """The intensity at each level with counted bytes."""
    flops = row.counted_flops or row.flops or 0
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
    styles: dict[str, Style],
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
        labels.place(text, spots, required=True, rotation=0 if flat else angle, color="#222222")
    for row in rows:
        text = f"{row.kernel} {size_text(row)}"
        beside = around(intensity(row), flop_rate(row) / scale, "right")
        labels.place(text, beside, color=styles[row.kernel].ink, fontsize=7.5)


def _draw_kernel(labels: Labels, row: Measurement, colour: str, scale: float) -> None:
    axes, y = labels.axes, flop_rate(row) / scale
    modelled = intensity(row)
    for level, x in _points(row):
        axes.plot([x], [y], level.marker, color=colour, markersize=6, zorder=5)
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
        draw_roof(labels, (x0, x1), (y0, y1), ceiling.provenance, "#222222")
    return lines


def only(runs: Sequence[Run]) -> Run:
    """The run of the figure; raises ``UsageError`` for several."""
    if len(runs) != 1:
        raise UsageError("plot --levels draws one run")
    return runs[0]
