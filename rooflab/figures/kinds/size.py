"""The second figure: throughput and bandwidth against size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isclose
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.roofs import DeviceRoof, device_roofs, limit
from rooflab.figures.selection import (
    HOST,
    MEMORY,
    SEVERAL_GPUS,
    FigureData,
    Series,
    Wanted,
    having,
    intensity,
    possible,
    rows_of,
    select,
)
from rooflab.figures.style import theme
from rooflab.model.measurement import LOW_INTENSITY, Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Provenance, Roofline
from rooflab.runs.program import is_program
from rooflab.runs.store import RunData

Allowed = tuple[float, Provenance]

SHORT: Final = 1.2
"""How far a roof at only one size goes on to both sides, as a factor, beside others."""

PLACES: Final = {MEMORY: "", HOST: ", operands in host memory", SEVERAL_GPUS: ", several GPUs"}
"""Where operands are, and what the title says of it."""

SPOTS, FEW_SPOTS = 40, 10
"""Places along a roof where its label may be, also in the small panels of a web page."""

BETWEEN, TITLE = 0.13, 0.26
"""Inches between the two panels of a precision, and for the title of the x axis."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity against size: its value in a row, and the value that a roofline allows."""

    unit: str
    measured: Callable[[Measurement], float]
    allowed: Callable[[Roofline, Measurement], Allowed | None] = lambda roofline, row: None
    log: bool = True


def _allowed_gbps(roofline: Roofline, row: Measurement) -> Allowed | None:
    bandwidth, limited = roofline.bandwidth(), limit(roofline, row)
    if not row.flops:
        return (bandwidth.value / 1e9, bandwidth.provenance) if bandwidth else None
    if limited is None:
        return None
    ceiling, flops = limited
    return flops / (1e9 * intensity(row)), ceiling.provenance


BANDWIDTH: Final = Quantity("GB/s", lambda row: row.gbps or 0.0, _allowed_gbps)
TIME: Final = Quantity("Time (µs)", lambda row: row.time_us or 0.0)
POWER: Final = Quantity(
    "Power (W)", lambda row: row.power_w or 0.0 if possible(row.power_w) else 0.0, log=False
)


def _throughput(rows: Sequence[Measurement]) -> Quantity:
    """TFLOP/s if any point reaches 1, else GFLOP/s."""
    unit, scale = ("TFLOP/s", 1.0) if max(r.tflops or 0 for r in rows) >= 1 else ("GFLOP/s", 1e-3)

    def allowed(roofline: Roofline, row: Measurement) -> Allowed | None:
        limited = limit(roofline, row) if row.flops else None
        return (limited[1] / (1e12 * scale), limited[0].provenance) if limited else None

    return Quantity(unit, lambda row: (row.tflops or 0.0) / scale, allowed)


def make(wanted: Wanted) -> model.Page:
    """TFLOP/s and GB/s against size, intensity on top, one pair of panels per precision.

    Sizes of one number have a logarithmic axis, problems of several workloads an axis of bytes.
    Other shapes are in order of intensity, each with its name. Several workloads have no common
    scale of FLOP/s: they have only the panel of bandwidth.
    """
    data = select(wanted, flops=False)
    several, rows = data.several, data.rows()
    by_bytes = len(data.workloads) > 1
    square = by_bytes or all(map(model.plain, rows))
    both = not by_bytes and any(row.flops for row in rows)
    quantities = [_throughput(rows), BANDWIDTH] if both else [BANDWIDTH]
    ticks = 0.24 if square else model.slanted_height(map(model.size_text, rows), theme().small)
    single = _has_intensities(rows, by_bytes)
    twin = 0 if not single else 0.22 if square else 0.4
    above = twin + 0.08 + several * (ticks + 0.16)
    tall = (2.1 + both * 1.1 if several else 3.3 + both * 1.6) + BETWEEN
    first, below = 0.2 * single - several * ticks, TITLE + ticks
    cells = grid(len(data.panels), apart=0.78, above=above, tall=tall, below=below, first=first)
    roofs, panels = device_roofs(data), []
    for (precision, group), cell in zip(data.panels.items(), cells, strict=True):
        x, top, xs = _size_axis(group, square, by_bytes, cell.width)
        upper = (cell.height - BETWEEN) * 0.62 if both else cell.height
        heights = [(0.0, upper), (upper + BETWEEN, cell.height - upper - BETWEEN)]
        for i, (quantity, (down, height)) in enumerate(zip(quantities, heights, strict=False)):
            last = i + 1 == len(quantities)
            panel = model.Panel(
                replace(cell, top=cell.top + down, height=height),
                replace(x, titled=last and cell.lowest, numbers=last),
                model.Axis((1, 10), quantity.unit),
                titled=False,
            )
            if not i:
                panel.title, panel.titled = PRECISIONS[precision].title, several
                panel.pad = 72 * twin + 4
                panel.above = replace(top, titled=not cell.row) if top else None
            _fill(panel, quantity, data, group, roofs, xs, joined=x.log)
            panels.append(panel)
    what = f"{'throughput and ' if both else ''}bandwidth by size"
    return page(data, what, (), panels, below)


def parts(runs: Sequence[RunData]) -> dict[str, list[model.Panel]]:
    """Throughput, time and power of all rows: a panel per precision and place of the operands."""
    found: dict[str, list[model.Panel]] = {"Throughput": [], "Time": [], "Power": []}
    for place in PLACES:
        try:
            data = select(Wanted(runs, whole=True), flops=False, place=place)
        except UsageError:
            continue
        roofs = device_roofs(data) if place == MEMORY else []
        cells = grid(len(data.panels), apart=0, above=0, tall=0)
        for (precision, group), cell in zip(data.panels.items(), cells, strict=True):
            title = PRECISIONS[precision].title + PLACES[place]
            for name, quantity in zip(found, (_speed(group, place), TIME, POWER), strict=True):
                if measured := having(group, quantity.measured):
                    rows = rows_of(measured)
                    by_bytes = _several(rows) or not all(map(model.plain, rows))
                    x, _, xs = _size_axis(measured, True, by_bytes, cell.width)
                    panel = model.Panel(cell, x, model.Axis((1, 10), quantity.unit), title)
                    _fill(panel, quantity, data, measured, roofs, xs, joined=not by_bytes)
                    found[name].append(panel)
    return found


def _speed(group: Sequence[Series], place: str) -> Quantity:
    """FLOP/s, or bytes per second of workloads that move more than they compute."""
    rows = rows_of(group)
    computes = any((row.intensity or 0) >= LOW_INTENSITY for row in rows)
    flops = not _several(rows) and computes and all(possible(row.tflops) for row in rows)
    return _throughput(rows) if flops and place != HOST else BANDWIDTH


def _several(rows: Sequence[Measurement]) -> bool:
    return len({row.problem.workload for row in rows}) > 1


# A panel -----------------------------------------------------------------------------------------

PanelPlace = tuple[str, str]
"""Workload and size, which have one position on the x axis."""


def _place(row: Measurement) -> PanelPlace:
    return row.problem.workload, row.problem.size


def _fill(
    panel: model.Panel,
    quantity: Quantity,
    data: FigureData,
    group: Sequence[Series],
    roofs: Sequence[DeviceRoof],
    xs: Mapping[PanelPlace, float],
    *,
    joined: bool,
) -> None:
    """One quantity against size, with the roofs at each size."""
    lines = [
        line
        for line in _roof_lines(panel.x, quantity, group, roofs, xs)
        if joined or not panel.x.log or len({y for _, y in line[2]}) == 1
    ]
    group = having(group, quantity.measured)
    drawn = [(s, [(xs[_place(row)], quantity.measured(row)) for row in s.rows]) for s in group]
    ys = [y for _, points in drawn for _, y in points]
    ys += [y for _, _, points in lines for _, y in points]
    height = panel.cell.height
    limits = (0.0, 1.08 * max(ys))
    if quantity.log:
        limits = model.log_limits(ys, height, min(0.24, 0.22 * height), min(0.2, 0.2 * height), 1.0)
    panel.y = replace(panel.y, limits=limits, log=quantity.log)
    panel.draw_series(drawn, data.styles, joined)
    _roof_labels(panel, lines)
    right = max(xs.values())
    ends = [(s.rows[-1], points[-1], s.kernel) for s, points in drawn if points[-1][0] == right]
    for last, point, kernel in sorted(ends, key=lambda end: -end[1][1])[: model.LABELLED]:
        text = f"{model.number(point[1])} {data.words(last)}".strip()
        panel.labels.append(model.beside(point, text, data.styles[kernel].ink, tied=True))


RoofLine = tuple[DeviceRoof, Provenance, list[model.DataPoint]]


def _roof_labels(panel: model.Panel, lines: Iterable[RoofLine]) -> None:
    """The lines, and one label for those of a device and provenance."""
    named: dict[tuple[str, str], tuple[str, list[model.DataPoint]]] = {}
    for roof, provenance, points in lines:
        panel.lines.append(model.roof(points, provenance, roof.colour))
        named.setdefault((roof.owner, provenance), (roof.colour, []))[1].extend(points)
    small = theme().panel is not None
    for (owner, source), (colour, places) in named.items():
        step = -(-len(places) // (FEW_SPOTS if small else SPOTS))
        along = sorted(places, key=lambda place: place[0])[::step]
        spots = [spot for point in along for spot in model.around(*point, "left")]
        text = f"{model.shortened(owner, theme().label, 0.55 * panel.cell.width)}roof ({source})"
        panel.labels.append(model.Label(text, spots, colour, required=small, roofs=[source]))


def _roof_lines(
    axis: model.Axis,
    quantity: Quantity,
    group: Sequence[Series],
    roofs: Sequence[DeviceRoof],
    xs: Mapping[PanelPlace, float],
) -> Iterator[RoofLine]:
    """Each roof's values at its sizes, and their provenance at the largest size.

    Workloads whose roof has another form have a line of their own; one without the same roof for
    all problems at a place has none.
    """
    lines: dict[tuple[int, object], dict[float, Allowed]] = {}
    for i, roof in enumerate(roofs):
        workloads: dict[str, dict[float, Allowed]] = {}
        several: set[str] = set()
        for row in rows_of(series for series in group if series.run in roof.runs):
            if level := quantity.allowed(roof.roofline, row):
                allowed = workloads.setdefault(row.problem.workload, {})
                known, _ = allowed.setdefault(xs[_place(row)], level)
                several |= {row.problem.workload} if not isclose(known, level[0]) else set()
        for workload, allowed in workloads.items():
            if workload in several:
                continue
            flat = len(set(allowed.values())) == 1
            form = next(iter(allowed.values())) if flat else workload
            lines.setdefault((i, form), {}).update(allowed)
    for (i, _), allowed in lines.items():
        points = [(x, allowed[x][0]) for x in sorted(allowed)]
        provenance = allowed[points[-1][0]][1]
        if not axis.log:  # one step per shape
            points = [(x + half, y) for x, y in points for half in (-0.5, 0.5)]
        elif len(points) == 1:
            [(x, y)] = points
            alone = sum(other == i for other, _ in lines) == 1
            points = [(end, y) for end in (axis.limits if alone else (x / SHORT, x * SHORT))]
        yield roofs[i], provenance, points


# The axis of sizes -------------------------------------------------------------------------------


def _size_axis(
    group: Sequence[Series], square: bool, by_bytes: bool, width: float
) -> tuple[model.Axis, model.Axis | None, dict[PanelPlace, float]]:
    rows = {_place(row): row for row in rows_of(group)}
    if square:
        places = {
            p: float(max(row.link_bytes or 1, 1) if by_bytes else p[1]) for p, row in rows.items()
        }
        title = "Compulsory bytes" if by_bytes else f"Size {_names(rows.values())}"
        axis = model.log_axis(title, places.values(), width, 0.3, 0.5, 0.6)
    else:
        order = sorted(rows, key=lambda shape: (intensity(rows[shape]), rows[shape].flops or 0))
        places = {shape: float(i) for i, shape in enumerate(order)}
        margin = max(len(order) - 1, 1) / (width - 0.8)
        names = "×".join(map(_title, next(iter(rows.values())).problem.extents))
        limits = (-0.3 * margin, len(order) - 1 + 0.5 * margin)
        title = f"Problem {names}, in order of intensity"
        axis = model.Axis(limits, title, log=False, turned=45, size=theme().small)
    text = _bytes_text if by_bytes else model.size_text
    texts = {p: (text(row), model.number(intensity(row))) for p, row in rows.items()}
    # Keep the ticks whose labels have room, from right to left.
    kept: list[PanelPlace] = []
    edge = float("inf")
    for shape in sorted(places, key=lambda shape: -places[shape]):
        x = width * axis.share(places[shape])
        half = max(map(len, texts[shape])) * 0.004 * theme().type + 0.05 if square else 0.1
        if x + half <= edge:
            kept.append(shape)
            edge = x - half
    axis = replace(axis, ticks=[(places[shape], texts[shape][0]) for shape in kept])
    if not _has_intensities(rows.values(), by_bytes):
        return axis, None, places
    ticks = [(places[shape], texts[shape][1]) for shape in kept]
    turned = 0 if square else 90
    return axis, model.Axis(axis.limits, "Intensity (FLOP/byte)", axis.log, ticks, turned), places


def _has_intensities(rows: Iterable[Measurement], by_bytes: bool) -> bool:
    """One at each place: several workloads have several there, and functions may have none."""
    return not by_bytes and all(row.intensity is not None for row in rows)


def _names(rows: Iterable[Measurement]) -> str:
    """``M = N = K``: the extents that are equal to the size in all rows."""
    given = list(rows)
    names = given[0].problem.extents
    equal = (n for n in names if all(r.problem.extents[n] == int(r.problem.size) for r in given))
    return " = ".join(map(_title, equal))


def _title(name: str) -> str:
    return name.upper() if len(name) == 1 else name


def _bytes_text(row: Measurement) -> str:
    """Such as ``64M``."""
    count, unit = float(row.link_bytes or 0), ""
    for unit in ("", "K", "M", "G"):
        if count < 1000 or unit == "G":
            break
        count /= 1000
    return f"{count:.3g}{unit}"


def _suits(run: RunData) -> bool:
    """Whether there are several sizes, or no FLOPs for a roofline."""
    if is_program(run.measurements):
        return False
    rows = [row for row in run.ok if row.problem.resident]
    workloads = {row.problem.workload for row in rows}
    sizes = set(map(_place, rows))
    return len(sizes) > len(workloads) or (bool(rows) and not any(row.flops for row in rows))


KIND: Final = model.Kind(
    "size", 1, make, "by_size", "Draw throughput and bandwidth against size.", suits=_suits
)
