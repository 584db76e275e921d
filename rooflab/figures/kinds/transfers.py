"""Streamed problems: throughput over the host link against the size of a chunk, and a roofline.

The roofline is that over the host link: performance against FLOPs per byte that cross it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import BELOW, LEFT, grid, page, page_width
from rooflab.figures.palette import KernelStyle, kernel_styles, readable
from rooflab.figures.selection import (
    FigureData,
    Series,
    Wanted,
    fastest,
    flop_rate,
    intensity,
    rows_of,
)
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Provenance, Roofline
from rooflab.runs.store import RunData

NOTE: Final = (
    "Bytes that cross the host link in both directions over time; the largest problem, the fastest "
    "kernel. Solid: copies both ways and kernels overlap. Dashed: one after the other."
)

LINK_NOTE: Final = (
    "Roofline over the host link: the fastest row of each problem. A problem's own roof is between "
    "the two slopes, by its bytes in and out; beside the point is the share of it."
)
LINK_TALL: Final = 3.0
"""Inches of the roofline over the link."""


def make(wanted: Wanted) -> model.Page:
    """A panel per workload and precision, a line per place of the operands and number of streams.

    Below, if there are rows with FLOPs, the roofline over the link of the first run's device.
    """
    runs = wanted.runs
    groups = _panels(runs)
    if not groups:
        raise UsageError(f"{runs[0].path} has no streamed row: sweep with --host pinned")
    names = {series.kernel for group in groups.values() for series in group}
    styles = kernel_styles(names, theme().palette)
    data = FigureData(runs, groups, styles, every=True)
    tall, above = (2.6, 0.34) if data.several else (3.6, 0.06)
    cells = grid(len(groups), apart=0.78, above=above + BELOW, tall=tall, first=-BELOW)
    panels = []
    for (title, group), cell in zip(groups.items(), cells, strict=True):
        panels.append(_panel(cell, group, styles))
        panels[-1].title, panels[-1].titled = title, data.several
    notes, below = [NOTE], BELOW
    streamed = (row for row in runs[0].ok if row.problem.streamed and row.link_bytes)
    if rows := fastest((row for row in streamed if row.flops and row.tflops), _problem):
        notes, below = [NOTE, LINK_NOTE], 0.56
        top, width = cells[-1].top + cells[-1].height + BELOW, page_width(len(groups)) - LEFT - 0.28
        cell = model.Cell(len(cells), 0, LEFT, top + 0.34, width, LINK_TALL)
        panels.append(_link_panel(cell, runs[0].manifest.roofline, rows))
    return page(data, "transfers by chunk", notes, panels, below)


def _panels(runs: Sequence[RunData]) -> dict[str, list[Series]]:
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
    there = (row for row in rows if row.problem.streamed and row.time_us and row.host_bytes)
    found = grouped(there, lambda row: (row.problem.workload, row.problem.precision))
    for key, group in found.items():
        extents = max(group, key=lambda row: row.host_bytes or 0).problem.extents
        found[key] = [row for row in group if row.problem.extents == extents]
    return found


def _lines(rows: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    """The fastest kernel at each chunk, by place, streams and form; small chunks first."""
    best = fastest(rows, lambda row: (_line(row), row.problem.settings["chunk"]))
    return dict(sorted(grouped(sorted(best, key=_chunk_mb), _line).items()))


def _line(row: Measurement) -> str:
    settings = row.problem.settings
    count = settings["streams"]
    graph = ", graph" if settings.get("graph") == "on" else ""
    return f"{settings['host']}, {count} stream{'s' * (count != 1)}{graph}"


def _chunk_mb(row: Measurement) -> float:
    return (row.link_bytes or 0) * row.problem.chunk_share / 1e6


def _rate(row: Measurement, us: float | None) -> float:
    return (row.link_bytes or 0) / us / 1e3 if us else 0.0


def _panel(
    cell: model.Cell, group: Sequence[Series], styles: Mapping[str, KernelStyle]
) -> model.Panel:
    rows = rows_of(group)
    bounds = {
        (row.problem.settings["host"], name): (_rate(row, us), line)
        for row in rows
        for name, us, line in (
            ("overlapped", row.roof_us, "derived"),
            ("serial", row.serial_us, "measured"),
        )
        if us
    }
    xs, title = [_chunk_mb(row) for row in rows], "Chunk (MB over the link, both ways)"
    ys = [_rate(row, row.time_us) for row in rows] + [rate for rate, _ in bounds.values()]
    panel = model.Panel(
        cell,
        model.log_axis(title, xs, cell.width, 0.3, 0.6),
        model.log_axis("GB/s over the link", ys, cell.height, 0.2, 0.3, 0.5),
    )
    lines = [(s, [(_chunk_mb(row), _rate(row, row.time_us)) for row in s.rows]) for s in group]
    panel.draw_series(lines, styles)
    left, right = panel.x.limits
    for (host, name), (rate, line) in bounds.items():
        panel.lines.append(model.roof([(left, rate), (right, rate)], line, theme().ink))
        spots = [
            model.Spot(x, rate, dx, dy, side, "bottom" if dy > 0 else "top")
            for x, dx, side in ((left, 6, "left"), (right, -6, "right"))
            for dy in (3, -3)
        ]
        text = f"{host}, {name}: {model.number(rate)} GB/s"
        panel.labels.append(model.Label(text, spots, theme().ink))
    for series, points in lines[: model.LABELLED]:
        text = model.number(points[-1][1])
        panel.labels.append(model.beside(points[-1], text, styles[series.kernel].ink))
    return panel


# The roofline over the host link ------------------------------------------------------------------

Slope = tuple[str, float, Provenance]
"""A title, bytes per second over the link, and whose line style it has."""


def _problem(row: Measurement) -> object:
    problem, extents = row.problem, tuple(row.problem.extents.values())
    return problem.workload, problem.precision, extents, problem.settings["host"]


def _link_panel(cell: model.Cell, roofline: Roofline, rows: Sequence[Measurement]) -> model.Panel:
    points = [(intensity(row), flop_rate(row) / 1e9) for row in rows]
    xs, ys = zip(*points, strict=True)
    panel = model.Panel(
        cell,
        model.log_axis("FLOP per byte over the link, both ways", xs, cell.width, 1.3, 3.2, 2.0),
        model.log_axis("Performance (GFLOP/s)", ys, cell.height, 0.4, 0.9, 2.0),
        "Roofline over the host link",
    )
    (low, high), y_limits, ink = panel.x.limits, panel.y.limits, theme().ink
    precisions = dict.fromkeys(row.problem.precision for row in rows)
    flats = [flat for precision in precisions if (flat := roofline.compute(precision))]
    top = max((flat.value / 1e9 for flat in flats), default=y_limits[1])
    slopes = _slopes(roofline, rows)
    sloping = [panel.slope(rate / 1e9, min(y_limits[1], top)) for _, rate, _ in slopes]
    for (_, _, line), ends in zip(slopes, sloping, strict=True):
        panel.lines.append(model.roof(ends, line, ink))
    steepest = max((rate for _, rate, _ in slopes), default=0.0)
    for flat in flats:
        y, start = flat.value / 1e9, flat.value / steepest if steepest else low
        if y <= y_limits[1] and start < high:
            ends = ((max(low, start), y), (high, y))
            panel.lines.append(model.roof(ends, flat.provenance, ink))
            spots = [model.Spot(high, y, -4, 3, "right", "bottom")]
            text = f"{PRECISIONS[flat.key].title} {flat.amount}"
            panel.labels.append(model.Label(text, spots, ink))
    colour = theme().palette.shades[0][0]
    panel.marks.append(model.Marks(points, colour, "o", 6, edge=1, z=6, rows=rows))
    dark = readable(colour, theme().palette.background)
    for row, point in list(zip(rows, points, strict=True))[:: -(-len(rows) // model.LABELLED)]:
        panel.labels.append(model.Label(_name(row), model.around(*point, "right"), dark))
    for (title, rate, line), ends in zip(slopes, sloping, strict=True):
        angle, spots = panel.along(*ends, below=line == "measured")
        text = f"{title}: {model.number(rate / 1e9)} GB/s"
        required = not theme().brief
        panel.labels.append(model.Label(text, spots, ink, required=required, rotation=angle))
    return panel


def _slopes(roofline: Roofline, rows: Sequence[Measurement]) -> list[Slope]:
    """The bounds of any mix of both directions, and of one direction, by kind of memory."""
    found: list[Slope] = []
    for host in dict.fromkeys(str(row.problem.settings["host"]) for row in rows):
        end = "" if host == "pinned" else f"_{host}"
        one = roofline.bandwidth(f"h2d{end}")
        both = [roofline.bandwidth(f"{way}_both") for way in ("h2d", "d2h")] if not end else []
        if one:
            found.append((f"{host}, one way", one.value, "measured"))
        if both and all(both):
            rate = sum(ceiling.value for ceiling in both if ceiling)
            found.append((f"{host}, both ways at once", rate, "derived"))
    return found


def _name(row: Measurement) -> str:
    problem = row.problem
    share = "" if row.roof_percent is None else f" · {model.number(row.roof_percent)} % of roof"
    precision = PRECISIONS[problem.precision].title
    return f"{problem.workload} {precision} {model.size_text(row)}{share}"


KIND: Final = model.Kind(
    "transfers", 5, make, suits=lambda run: any(row.problem.streamed for row in run.ok)
)
