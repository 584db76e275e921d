"""Streamed problems: throughput over the host link against the size of a chunk, and a roofline.

The roofline is that over the host link: performance against FLOPs per byte that cross it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import LEFT, grid, page, page_width
from rooflab.figures.palette import Style, kernel_styles, readable
from rooflab.figures.selection import Selection, Series, Wanted, flop_rate, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Provenance, Roofline

if TYPE_CHECKING:
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
    selection = Selection(runs, groups, styles, every=True)
    several, points = selection.several, _link_rows(runs[0].ok)
    tall, above = (2.6, 0.34) if several else (3.6, 0.06)
    label = 0.5  # of the x axis
    cells = grid(len(groups), apart=0.78, above=above + label, tall=tall, below=label, first=-label)
    panels = []
    for (title, group), cell in zip(groups.items(), cells, strict=True):
        panels.append(_panel(cell, group, styles))
        panels[-1].title, panels[-1].titled = title, several
    body = cells[-1].top + cells[-1].height + label
    if points:
        width = page_width(len(groups)) - LEFT - 0.28
        cell = model.Cell(len(cells), 0, LEFT, body + 0.34, width, LINK_BODY - 0.9)
        panels.append(_link_panel(cell, runs[0].manifest.roofline, points))
    notes = [NOTE, *([LINK_NOTE] if points else [])]
    return page(selection, "transfers by chunk", notes, panels, body + bool(points) * LINK_BODY)


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
        if problem.streamed and row.time_us and row.link_bytes:
            places = found.setdefault((problem.workload, problem.precision), defaultdict(list))
            places[tuple(problem.extents.values())].append(row)
    return {
        key: max(places.values(), key=lambda group: group[0].link_bytes or 0)
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
    return (row.link_bytes or 0) * row.problem.chunk_share / 1e6


def _rate(row: Measurement, us: float | None) -> float:
    """GB/s over the host link in ``us``."""
    return (row.link_bytes or 0) / us / 1e3 if us else 0.0


def _panel(cell: model.Cell, group: Sequence[Series], styles: Mapping[str, Style]) -> model.Panel:
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
    limits = model.log_limits([_chunk_mb(row) for row in rows], cell.width, 0.3, 0.6, 1.0)
    ys = [_rate(row, row.time_us) for row in rows] + [rate for rate, _ in bounds.values()]
    panel = model.Panel(
        cell,
        model.Axis(limits, "Chunk (MB over the link, both ways)"),
        model.Axis(model.log_limits(ys, cell.height, 0.2, 0.3, 0.5), "GB/s over the link"),
    )
    lines = [(s, [(_chunk_mb(row), _rate(row, row.time_us)) for row in s.rows]) for s in group]
    panel.draw_series(lines, styles)
    for (host, name), (rate, line) in bounds.items():
        panel.lines.append(model.roof([(x, rate) for x in limits], line, theme().ink))
        spots = [
            model.Spot(x, rate, dx, dy, side, "bottom" if dy > 0 else "top")
            for x, dx, side in ((limits[0], 6, "left"), (limits[1], -6, "right"))
            for dy in (3, -3)
        ]
        panel.labels.append(
            model.Label(f"{host}, {name}: {model.number(rate)} GB/s", spots, theme().ink)
        )
    for series in group[: model.LABELLED]:
        last = series.rows[-1]
        value = _rate(last, last.time_us)
        spots_at = model.around(_chunk_mb(last), value, "right")
        panel.labels.append(
            model.Label(model.number(value), spots_at, styles[series.kernel].ink, theme().small)
        )
    return panel


# The roofline over the host link ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Slope:
    """Bytes per second over the link. One way is a lower roof than both ways at once."""

    title: str
    rate: float
    line: Provenance
    """Whose line style it has."""


def _link_rows(rows: Sequence[Measurement]) -> list[Measurement]:
    """Of each streamed problem with FLOPs the fastest row."""
    best: dict[object, Measurement] = {}
    for row in rows:
        if row.problem.streamed and row.flops and row.tflops and row.link_bytes:
            problem = row.problem
            place = (problem.workload, problem.precision, tuple(problem.extents.values()))
            key = (*place, problem.settings["host"])
            if key not in best or flop_rate(row) > flop_rate(best[key]):
                best[key] = row
    return list(best.values())


def _link_panel(cell: model.Cell, roofline: Roofline, rows: Sequence[Measurement]) -> model.Panel:
    """``rows`` from ``_link_rows`` below the roofs of their device."""
    points = [(intensity(row), flop_rate(row) / 1e9) for row in rows]
    xs, ys = zip(*points, strict=True)
    panel = model.Panel(
        cell,
        model.Axis(
            model.log_limits(xs, cell.width, 1.3, 3.2, 2.0),
            "FLOP per byte over the link, both ways",
        ),
        model.Axis(model.log_limits(ys, cell.height, 0.4, 0.9, 2.0), "Performance (GFLOP/s)"),
        "Roofline over the host link",
    )
    low, high = panel.x.limits
    precisions = dict.fromkeys(row.problem.precision for row in rows)
    flats = [flat for precision in precisions if (flat := roofline.compute(precision))]
    top = max((flat.value / 1e9 for flat in flats), default=panel.y.limits[1])
    slopes = [(slope, _ends(panel, slope.rate / 1e9, top)) for slope in _slopes(roofline, rows)]
    for slope, ends in slopes:
        panel.lines.append(model.roof(ends, slope.line, theme().ink))
    steepest = max((slope.rate for slope, _ in slopes), default=0.0)
    for flat in flats:
        y, start = flat.value / 1e9, flat.value / steepest if steepest else low
        if y <= panel.y.limits[1] and start < high:
            ends = ((max(low, start), y), (high, y))
            panel.lines.append(model.roof(ends, flat.provenance, theme().ink))
            spots = [model.Spot(high, y, -4, 3, "right", "bottom")]
            text = f"{PRECISIONS[flat.key].title} {flat.amount}"
            panel.labels.append(model.Label(text, spots, theme().ink))
    colour = theme().palette.shades[0][0]
    panel.marks.append(model.Marks(points, colour, "o", 6, edge=1, z=6, rows=rows))
    ink = readable(colour, theme().palette.background)
    for row, point in list(zip(rows, points, strict=True))[:: -(-len(rows) // model.LABELLED)]:
        panel.labels.append(model.Label(_name(row), model.around(*point, "right"), ink))
    for slope, ends in slopes:
        angle, spots = panel.along(*ends, below=slope.line == "measured")
        text = f"{slope.title}: {model.number(slope.rate / 1e9)} GB/s"
        required = not theme().brief
        panel.labels.append(
            model.Label(text, spots, theme().ink, required=required, rotation=angle)
        )
    return panel


def _ends(panel: model.Panel, per: float, top: float) -> tuple[model.Point, model.Point]:
    """Of a slope within the panel, up to ``top``."""
    (x_low, x_high), (y_low, y_high) = panel.x.limits, panel.y.limits
    low, high = max(x_low, y_low / per), min(x_high, min(y_high, top) / per)
    return (low, low * per), (high, high * per)


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


def _name(row: Measurement) -> str:
    problem = row.problem
    share = "" if row.roof_percent is None else f" · {model.number(row.roof_percent)} % of roof"
    precision = PRECISIONS[problem.precision].title
    return f"{problem.workload} {precision} {model.size_text(row)}{share}"


def _suits(run: Run) -> bool:
    return any(row.problem.streamed for row in run.ok)


KIND: Final = model.Kind("transfers", 5, make, suits=_suits)
