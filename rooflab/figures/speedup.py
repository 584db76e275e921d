"""Bars: how many times as fast as one kernel every other one is, by size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import nan
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rooflab.errors import UsageError
from rooflab.figures.labels import Labels, Spot
from rooflab.figures.page import conditions, grid, open_page, shortened
from rooflab.figures.palette import Style
from rooflab.figures.panel import (
    log_limits,
    log_ticks,
    name_panel,
    number,
    plain,
    size_text,
    slanted_height,
)
from rooflab.figures.selection import Selection
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS

NOTE: Final = "Time of {} over the kernel's; above 1 the kernel is faster."
WHISKERS: Final = "Whiskers: the range that both times' 95 % intervals allow."
TICKS: Final = 24
"""Problems that can have a label below the axis."""

BARS: Final = 300
"""Bars that have room in a panel; of more points it has a line for each kernel."""

THIN: Final[dict[str, Any]] = {"markersize": 1.5, "linewidth": 0.8}
"""Of a line through many points."""

NAMED: Final = 6
"""Problems without a row of the base that the note names."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as the base, and the range that the intervals of both times allow."""

    row: Measurement
    value: float
    low: float
    high: float


def draw_speedup(selection: Selection, name: str) -> Figure:
    """A panel per precision, against the kernel ``name``.

    Raises ``UsageError`` without such a kernel, or if there is nothing beside it.
    """
    rows = selection.rows()
    _check(selection, rows, name)
    bases = {row.problem.key: row for row in rows if row.kernel == name}
    others = [row for row in rows if row.kernel != name]
    missing = [row for row in others if row.problem.key not in bases]
    panels = {
        precision: [
            _ratio(row, bases[row.problem.key])
            for row in others
            if row.problem.precision == precision and row.problem.key in bases
        ]
        for precision in selection.panels
    }
    panels = {precision: ratios for precision, ratios in panels.items() if ratios}
    if not panels:
        raise UsageError(f"no other kernel has a row where {name} has one: nothing to compare")
    drawn = {ratio.row.kernel for ratios in panels.values() for ratio in ratios}
    selection = replace(
        selection,
        panels={precision: selection.panels[precision] for precision in panels},
        styles={kernel: style for kernel, style in selection.styles.items() if kernel in drawn},
    )
    whiskers = f" {WHISKERS}" if any(len(one) <= BARS for one in panels.values()) else ""
    notes = [NOTE.format(name) + whiskers, *_gaps(missing, name), *conditions(selection)]
    several, square = len(panels) > 1, all(map(plain, rows)) and len(_settings(rows)) == 1
    text = _size if len(_settings(rows)) > 1 else size_text
    ticks = 0.24 if square else 0.03 + slanted_height(map(text, rows), theme().label)
    cells = grid(
        len(panels),
        apart=0.62,
        above=several * (0.3 + ticks) + 0.06,
        tall=2.6 if several else 4.0,
        below=ticks + 0.26,
        first=-several * ticks,
    )
    body = cells[-1].top + cells[-1].height + ticks + 0.26
    page = open_page(selection, f"speed-up against {name}", notes, body)
    for (precision, ratios), cell in zip(panels.items(), cells, strict=True):
        axes = page.axes(cell.left, cell.top, cell.width, cell.height)
        if several:
            name_panel(axes, PRECISIONS[precision].title, pad=4)
        if cell.lowest:
            axes.set_xlabel("Size")
        if cell.column == 0:
            axes.set_ylabel(shortened(f"Times as fast as {name}", theme().type, cell.height))
        _draw_panel(axes, cell.height, ratios, selection.styles, square)
    return page.figure


def _check(selection: Selection, rows: Sequence[Measurement], name: str) -> None:
    if len(selection.workloads) > 1:
        names = ", ".join(selection.workloads)
        raise UsageError(f"plot --per-kernel draws one workload: add --workload, one of {names}")
    if len(selection.runs) > 1:
        raise UsageError("plot --per-kernel draws one run")
    kernels = dict.fromkeys(row.kernel for row in rows)
    if name not in kernels:
        raise UsageError(f"no row of kernel {name[:40]!r}: choose from {', '.join(kernels)}")


def _ratio(row: Measurement, base: Measurement) -> Ratio:
    time, base_time = row.time_us or 1.0, base.time_us or 1.0
    low = (base.time_lo_us or base_time) / (row.time_hi_us or time)
    high = (base.time_hi_us or base_time) / (row.time_lo_us or time)
    return Ratio(row, base_time / time, low, high)


def _gaps(missing: Sequence[Measurement], name: str) -> list[str]:
    """Where the base has no row, in one line."""
    problems = dict.fromkeys(
        f"{PRECISIONS[row.problem.precision].title} {_size(row)}" for row in missing
    )
    if not problems:
        return []
    words = ", ".join(list(problems)[:NAMED])
    more = f" and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    return [f"No bars where {name} was not measured: {words}{more}."]


def _settings(rows: Sequence[Measurement]) -> set[object]:
    return {tuple(row.problem.settings.values()) for row in rows}


def _size(row: Measurement) -> str:
    words = (value for value in row.problem.settings.values() if isinstance(value, str))
    return " ".join([size_text(row), *words])


def _draw_panel(
    axes: Axes,
    inches: float,
    ratios: Sequence[Ratio],
    styles: Mapping[str, Style],
    square: bool,
) -> None:
    rows = sorted((r.row for r in ratios), key=lambda row: (row.bytes or 0, row.flops or 0))
    sizes = list(dict.fromkeys(row.problem.key for row in rows))
    names = {row.problem.key: row for row in rows}
    text = _size if len(_settings(rows)) > 1 else size_text
    kernels = [name for name in styles if any(r.row.kernel == name for r in ratios)]
    slanted: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    look: dict[str, Any] = {} if square else slanted
    crowded = len(ratios) > BARS
    at = range(0, len(sizes), -(-len(sizes) // TICKS) if crowded else 1)
    axes.set_xticks(at, [text(names[sizes[i]]) for i in at], **look)
    axes.tick_params(axis="x", labelsize=theme().label)
    axes.xaxis.set_minor_locator(NullLocator())
    values = [1.0, *(v for ratio in ratios for v in (ratio.low, ratio.high))]
    limits = log_limits(values, inches, 0.2, 0.25, 0.5)
    axes.set(yscale="log", ylim=limits, xlim=(-0.6, len(sizes) - 0.4))
    log_ticks(axes.yaxis, limits)
    axes.grid(visible=False, axis="x")
    axes.axhline(1, color=theme().ink, linewidth=0.9, zorder=3)
    labels, width = Labels(axes), 0.8 / len(kernels)
    size = min(theme().marker, 0.86 * width * 72 * _inches(axes))
    column = {key: i for i, key in enumerate(sizes)}
    places = []
    for order, kernel in enumerate(kernels):
        mine, style = [one for one in ratios if one.row.kernel == kernel], styles[kernel]
        shift = 0.0 if crowded else (order - (len(kernels) - 1) / 2) * width
        xs = [column[one.row.problem.key] + shift for one in mine]
        tops = [one.value for one in mine]
        face: dict[str, Any] = {"color": style.colour}
        if crowded:
            line = sorted(zip(xs, tops, strict=True))
            axes.plot(*zip(*line, strict=True), marker=style.marker, **THIN, **face)
            continue
        heights = [top - 1 for top in tops]
        axes.bar(xs, heights, 0.86 * width, bottom=1, color=style.colour, zorder=2)
        ends = _apart(xs, xs), _apart([one.low for one in mine], [one.high for one in mine])
        axes.plot(*ends, color=theme().ink, linewidth=0.9, zorder=5)
        face["markerfacecolor"] = theme().palette.background
        axes.plot(xs, tops, style.marker, markersize=size, zorder=4, **face)
        labels.avoid_markers(xs, tops, size)
        for edge in (-0.43 * width, 0.43 * width):
            sides = [x + edge for x in xs]
            labels.avoid_line(_apart(sides, sides), _apart([1.0] * len(xs), tops))
        places += [(x, one, style) for x, one in zip(xs, mine, strict=True)]
    gap = theme().marker / 2 + 2.5
    for x, ratio, style in sorted(places, key=lambda place: place[0]):
        up = ratio.value >= 1
        spot = Spot(x, ratio.high if up else ratio.low, 0, gap if up else -gap, va=_side(up))
        labels.place(_times(ratio.value), [spot], color=style.ink, fontsize=theme().small)


def _apart(starts: Sequence[float], ends: Sequence[float]) -> list[float]:
    """One coordinate of some lines, with gaps between them."""
    return [value for pair in zip(starts, ends, strict=True) for value in (*pair, nan)]


def _times(value: float) -> str:
    """Three digits, three places near 1 where the difference counts."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else number(value)


def _side(up: bool) -> str:
    return "bottom" if up else "top"


def _inches(axes: Axes) -> float:
    """Inches of one unit of the x axis."""
    low, high = axes.get_xlim()
    return float(axes.bbox.width) / theme().dpi / (high - low)
