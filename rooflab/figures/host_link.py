"""The roofline of streamed problems: performance against FLOPs per byte over the host link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes

from rooflab.figures.labels import LABELLED, Labels, Spot, around
from rooflab.figures.palette import readable
from rooflab.figures.panel import draw_roof, log_limits, log_ticks, name_panel, number, size_text
from rooflab.figures.selection import flop_rate, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, Provenance, Roofline

TITLE: Final = "Roofline over the host link"


@dataclass(frozen=True, slots=True)
class _Slope:
    """Bytes per second over the link. One way is a lower roof than both ways at once."""

    title: str
    rate: float
    line: Provenance
    """Whose line style it has."""


def link_rows(rows: Sequence[Measurement]) -> list[Measurement]:
    """Of each streamed problem with FLOPs the fastest row."""
    best: dict[object, Measurement] = {}
    for row in rows:
        if row.problem.streamed and row.flops and row.tflops and row.bytes:
            problem = row.problem
            place = (problem.workload, problem.precision, tuple(problem.extents.values()))
            key = (*place, problem.settings["host"])
            if key not in best or flop_rate(row) > flop_rate(best[key]):
                best[key] = row
    return list(best.values())


def draw_link(
    axes: Axes, inches: tuple[float, float], roofline: Roofline, rows: Sequence[Measurement]
) -> None:
    """``rows`` from ``link_rows`` in axes of this size, below the roofs of their device."""
    xs, ys = [intensity(row) for row in rows], [flop_rate(row) / 1e9 for row in rows]
    x_limits = log_limits(xs, inches[0], 1.3, 3.2, 2.0)
    y_limits = log_limits(ys, inches[1], 0.4, 0.9, 2.0)
    axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
    axes.set(xlabel="FLOP per byte over the link, both ways", ylabel="Performance (GFLOP/s)")
    name_panel(axes, TITLE, pad=4)
    log_ticks(axes.xaxis, x_limits)
    log_ticks(axes.yaxis, y_limits)
    labels = Labels(axes)
    precisions = dict.fromkeys(row.problem.precision for row in rows)
    flats = [flat for precision in precisions if (flat := roofline.compute(precision))]
    top = max((flat.value / 1e9 for flat in flats), default=y_limits[1])
    lines = [_draw_slope(labels, slope, top) for slope in _slopes(roofline, rows)]
    steepest = max((slope.rate for slope, _, _ in lines), default=0.0)
    for flat in flats:
        _draw_flat(labels, flat, flat.value / steepest if steepest else x_limits[0])
    axes.plot(xs, ys, "o", color=theme().palette.shades[0][0], markersize=6, zorder=6)
    labels.avoid_markers(xs, ys, 7)
    ink = readable(theme().palette.shades[0][0], theme().palette.background)
    some = list(zip(rows, xs, ys, strict=True))[:: -(-len(rows) // LABELLED)]
    for row, x, y in some:
        labels.place(_name(row), around(x, y, "right"), color=ink)
    for slope, start, end in lines:
        angle, spots = labels.along(start, end, below=slope.line == "measured")
        text = f"{slope.title}: {number(slope.rate / 1e9)} GB/s"
        labels.place(text, spots, required=not theme().brief, rotation=angle, color=theme().ink)


def _slopes(roofline: Roofline, rows: Sequence[Measurement]) -> list[_Slope]:
    """The bounds of any mix of both directions, and of one direction, by kind of memory."""
    found = []
    for host in dict.fromkeys(str(row.problem.settings["host"]) for row in rows):
        end = "" if host == "pinned" else f"_{host}"
        one = roofline.bandwidth(f"h2d{end}")
        both = [roofline.bandwidth(f"{way}_both") for way in ("h2d", "d2h")] if not end else []
        if one:
            found.append(_Slope(f"{host}, one way", one.value, "measured"))
        if both and all(both):
            rate = sum(ceiling.value for ceiling in both if ceiling)
            found.append(_Slope(f"{host}, both ways at once", rate, "derived"))
    return found


def _draw_slope(
    labels: Labels, slope: _Slope, top: float
) -> tuple[_Slope, tuple[float, float], tuple[float, float]]:
    (x_low, x_high), (y_low, y_high) = labels.axes.get_xlim(), labels.axes.get_ylim()
    per = slope.rate / 1e9
    low, high = max(x_low, y_low / per), min(x_high, min(y_high, top) / per)
    start, end = (low, low * per), (high, high * per)
    draw_roof(labels, (low, high), (start[1], end[1]), slope.line, theme().ink)
    return slope, start, end


def _draw_flat(labels: Labels, ceiling: Ceiling, start: float) -> None:
    (low, high), top = labels.axes.get_xlim(), labels.axes.get_ylim()[1]
    y = ceiling.value / 1e9
    if y <= top and start < high:
        draw_roof(labels, (max(low, start), high), (y, y), ceiling.provenance, theme().ink)
        spots = [Spot(high, y, -4, 3, "right", "bottom")]
        labels.place(f"{PRECISIONS[ceiling.key].title} {ceiling.amount}", spots, color=theme().ink)


def _name(row: Measurement) -> str:
    problem = row.problem
    share = "" if row.roof_percent is None else f" · {number(row.roof_percent)} % of roof"
    precision = PRECISIONS[problem.precision].title
    return f"{problem.workload} {precision} {size_text(row)}{share}"
