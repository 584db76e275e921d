"""Streamed problems: throughput over the host link against the size of a chunk."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.figures.host_link import draw_link, link_rows
from rooflab.figures.labels import LABELLED, Labels, Spot, around
from rooflab.figures.page import LEFT, conditions, grid, open_page
from rooflab.figures.palette import Style, kernel_styles
from rooflab.figures.panel import draw_series, log_limits, log_ticks, name_panel, number
from rooflab.figures.selection import Selection, Series
from rooflab.figures.style import PROVENANCE_LINES, theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.runs.store import Run

NOTE: Final = (
    "Bytes that cross the host link in both directions over time; the largest problem, the fastest "
    "kernel. Solid: copies both ways and kernels overlap. Dashed: one after the other."
)

LINK_NOTE: Final = (
    "Roofline over the host link: the fastest row of each problem. A problem's own roof is between "
    "the two slopes, by its bytes in and out; beside the point is the share of it."
)
LINK_BODY: Final = 3.9
"""Inches of the roofline over the link, with its title and axis."""


def draw_transfers(runs: Sequence[Run]) -> Figure:
    """A panel per workload and precision, a line per place of the operands and number of streams.

    Below, if there are rows with FLOPs, the roofline over the link of the first run's device.
    Raises ``UsageError`` if no row is streamed.
    """
    panels = _panels(runs)
    if not panels:
        raise UsageError(f"{runs[0].path} has no streamed row: sweep with --host pinned")
    names = {series.kernel for group in panels.values() for series in group}
    styles = kernel_styles(names, theme().palette)
    selection = Selection(runs, panels, styles, every=True)
    several, points = selection.several, link_rows(runs[0].ok)
    tall, above = (2.6, 0.34) if several else (3.6, 0.06)
    label = 0.5  # of the x axis
    cells = grid(len(panels), apart=0.78, above=above + label, tall=tall, below=0.0)
    body = cells[-1].top + cells[-1].height
    notes = [NOTE, *([LINK_NOTE] if points else []), *conditions(selection)]
    page = open_page(selection, "transfers by chunk", notes, body + bool(points) * LINK_BODY)
    for (title, group), cell in zip(panels.items(), cells, strict=True):
        axes = page.axes(cell.left, cell.top - label, cell.width, cell.height)
        if several:
            name_panel(axes, title, pad=4)
        _draw_panel(axes, (cell.width, cell.height), group, styles)
    if points:
        size = (page.width - LEFT - 0.28, LINK_BODY - 0.9)
        axes = page.axes(LEFT, body + 0.34, *size)
        draw_link(axes, size, runs[0].manifest.roofline, points)
    return page.figure


def _panels(runs: Sequence[Run]) -> dict[str, list[Series]]:
    """By precision, or by workload and precision if there are several workloads."""
    found: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for i, run in enumerate(runs):
        for key, rows in _largest(run.ok).items():
            found[key] += [Series(i, name, tuple(line)) for name, line in _lines(rows).items()]
    if len({workload for workload, _ in found}) == 1:
        return {precision: group for (_, precision), group in found.items()}
    return {f"{w} {PRECISIONS[p].title}": group for (w, p), group in found.items()}


def _largest(rows: Sequence[Measurement]) -> dict[tuple[str, str], list[Measurement]]:
    """By workload and precision, the streamed rows of the problem with the most bytes."""
    found: dict[tuple[str, str], dict[object, list[Measurement]]] = {}
    for row in rows:
        problem = row.problem
        if problem.streamed and row.time_us and row.bytes:
            places = found.setdefault((problem.workload, problem.precision), defaultdict(list))
            places[tuple(problem.extents.values())].append(row)
    return {
        key: max(places.values(), key=lambda group: group[0].bytes or 0)
        for key, places in found.items()
    }


def _lines(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The fastest kernel at each chunk, by place, streams and form; small chunks first."""
    best: dict[tuple[str, object], Measurement] = {}
    for row in rows:
        settings = row.problem.settings
        count = settings["streams"]
        name = f"{settings['host']}, {count} stream{'s' * (count != 1)}"
        name += ", graph" if settings.get("graph") == "on" else ""
        key = (name, settings["chunk"])
        if key not in best or (row.time_us or 0) < (best[key].time_us or 0):
            best[key] = row
    lines: dict[str, list[Measurement]] = defaultdict(list)
    for (name, _), row in sorted(best.items(), key=lambda item: _chunk_mb(item[1])):
        lines[name].append(row)
    return dict(sorted(lines.items()))


def _chunk_mb(row: Measurement) -> float:
    return (row.bytes or 0) * row.problem.chunk_share / 1e6


def _rate(row: Measurement, us: float | None) -> float:
    """GB/s over the host link in ``us``."""
    return (row.bytes or 0) / us / 1e3 if us else 0.0


def _draw_panel(
    axes: Axes, inches: tuple[float, float], group: Sequence[Series], styles: Mapping[str, Style]
) -> None:
    rows = [row for series in group for row in series.rows]
    bounds = {
        (row.problem.settings["host"], name): (_rate(row, us), line)
        for row in rows
        for name, us, line in (
            ("overlapped", row.roof_us, "derived"),
            ("serial", row.serial_us, "measured"),
        )
        if us
    }
    x_limits = log_limits([_chunk_mb(row) for row in rows], inches[0], 0.3, 0.6, 1.0)
    ys = [_rate(row, row.time_us) for row in rows] + [rate for rate, _ in bounds.values()]
    y_limits = log_limits(ys, inches[1], 0.2, 0.3, 0.5)
    axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
    axes.set(xlabel="Chunk (MB over the link, both ways)", ylabel="GB/s over the link")
    log_ticks(axes.xaxis, x_limits)
    log_ticks(axes.yaxis, y_limits)
    labels = Labels(axes)
    lines = [(s, [(_chunk_mb(row), _rate(row, row.time_us)) for row in s.rows]) for s in group]
    draw_series(labels, lines, styles)
    for (host, name), (rate, line) in bounds.items():
        axes.plot(x_limits, [rate, rate], color=theme().ink, zorder=3, **PROVENANCE_LINES[line])
        labels.avoid_line(list(x_limits), [rate, rate])
        spots = [
            Spot(x_limits[0], rate, 6, 3, "left", "bottom"),
            Spot(x_limits[0], rate, 6, -3, "left", "top"),
            Spot(x_limits[1], rate, -6, 3, "right", "bottom"),
            Spot(x_limits[1], rate, -6, -3, "right", "top"),
        ]
        labels.place(f"{host}, {name}: {number(rate)} GB/s", spots, color=theme().ink)
    for series in group[:LABELLED]:
        last = series.rows[-1]
        value = _rate(last, last.time_us)
        spots_at = around(_chunk_mb(last), value, "right")
        labels.place(
            number(value), spots_at, color=styles[series.kernel].ink, fontsize=theme().small
        )
