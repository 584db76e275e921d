"""Bars: how many times as fast as one kernel every other one is, by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.palette import KernelStyle
from rooflab.figures.selection import FigureData, Wanted, rows_of, select
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS

NOTE: Final = "Time of {} over the kernel's; above 1 the kernel is faster."
WHISKERS: Final = " Whiskers: the range that both times' 95 % intervals allow."
TICKS: Final = 24
"""Problems that can have a label below the axis."""

BARS: Final = 300
"""Bars that have room in a panel; of more points it has a line for each kernel."""

NAMED: Final = 6
"""Problems without a row of the base that the note names."""


@dataclass(frozen=True, slots=True)
class Ratio:
    """How many times as fast as the base, and the range that the intervals of both times allow."""

    row: Measurement
    value: float
    low: float
    high: float


def make(wanted: Wanted) -> model.Page:
    """A panel per precision, against the kernel that is wanted."""
    every, name = select(wanted, flops=False, every=True), wanted.value
    rows = every.rows()
    _check(every, rows, name)
    bases = {row.problem.key: row for row in rows if row.kernel == name}
    others = {
        precision: [row for row in rows_of(group) if row.kernel != name]
        for precision, group in every.panels.items()
    }
    panels = {
        precision: [_ratio(row, base) for row in some if (base := bases.get(row.problem.key))]
        for precision, some in others.items()
    }
    panels = {precision: ratios for precision, ratios in panels.items() if ratios}
    if not panels:
        raise UsageError(f"no other kernel has a row where {name} has one: nothing to compare")
    kernels = {ratio.row.kernel for ratios in panels.values() for ratio in ratios}
    data = every.only({precision: every.panels[precision] for precision in panels}, kernels)
    whiskers = WHISKERS * any(len(one) <= BARS for one in panels.values())
    missing = [row for some in others.values() for row in some if row.problem.key not in bases]
    several, square = len(panels) > 1, all(map(model.plain, rows)) and len(_settings(rows)) == 1
    text = _size if len(_settings(rows)) > 1 else model.size_text
    ticks = 0.24 if square else 0.03 + model.slanted_height(map(text, rows), theme().label)
    below, above = ticks + 0.26, several * (0.3 + ticks) + 0.06
    tall, first = 2.6 if several else 4.0, -several * ticks
    cells = grid(len(panels), apart=0.62, above=above, tall=tall, below=below, first=first)
    made = []
    for (precision, ratios), cell in zip(panels.items(), cells, strict=True):
        panel = _panel(cell, ratios, data.styles, square)
        panel.title, panel.titled = PRECISIONS[precision].title, several
        title = model.shortened(f"Times as fast as {name}", theme().type, cell.height)
        panel.y = replace(panel.y, title=title, titled=not cell.column)
        made.append(panel)
    notes = [NOTE.format(name) + whiskers, *_gaps(missing, name)]
    return page(data, f"speed-up against {name}", notes, made, below)


def _check(data: FigureData, rows: Sequence[Measurement], name: str) -> None:
    if len(data.workloads) > 1:
        names = ", ".join(data.workloads)
        raise UsageError(f"plot --per-kernel draws one workload: add --workload, one of {names}")
    if len(data.runs) > 1:
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
    problems = dict.fromkeys(f"{PRECISIONS[r.problem.precision].title} {_size(r)}" for r in missing)
    words = ", ".join(list(problems)[:NAMED])
    more = f" and {len(problems) - NAMED} more" if len(problems) > NAMED else ""
    return [f"No bars where {name} was not measured: {words}{more}."] * bool(problems)


def _settings(rows: Sequence[Measurement]) -> set[object]:
    return {tuple(row.problem.settings.values()) for row in rows}


def _size(row: Measurement) -> str:
    words = (value for value in row.problem.settings.values() if isinstance(value, str))
    return " ".join([model.size_text(row), *words])


def _panel(
    cell: model.Cell,
    ratios: Sequence[Ratio],
    styles: Mapping[str, KernelStyle],
    square: bool,
) -> model.Panel:
    rows = sorted((r.row for r in ratios), key=lambda row: (row.link_bytes or 0, row.flops or 0))
    names = {row.problem.key: row for row in rows}
    column = {key: i for i, key in enumerate(names)}
    text = _size if len(_settings(rows)) > 1 else model.size_text
    crowded = len(ratios) > BARS
    every = -(-len(names) // TICKS) if crowded else 1
    x = model.Axis(
        (-0.6, len(names) - 0.4),
        "Size",
        titled=cell.lowest,
        log=False,
        ticks=[(i, text(row)) for i, row in enumerate(names.values())][::every],
        turned=0 if square else 45,
        size=theme().label,
        grid=False,
    )
    values = [1.0, *(v for ratio in ratios for v in (ratio.low, ratio.high))]
    panel = model.Panel(cell, x, model.log_axis("", values, cell.height, 0.2, 0.25, 0.5))
    panel.lines.append(model.Line([(end, 1) for end in x.limits], theme().ink, avoided=False))
    kernels = [name for name in styles if any(r.row.kernel == name for r in ratios)]
    width = 0.8 / len(kernels)
    bars: list[tuple[float, Ratio, KernelStyle]] = []
    for order, kernel in enumerate(kernels):
        shift, style = (order - (len(kernels) - 1) / 2) * width, styles[kernel]
        mine = [(column[r.row.problem.key], r) for r in ratios if r.row.kernel == kernel]
        if crowded:
            points = sorted((float(x), ratio.value) for x, ratio in mine)
            look: tuple[str, str, float] = (style.colour, style.marker, 1.5)
            panel.marks.append(model.Marks(points, *look, around=-1, dash="-", width=0.8, z=2))
        else:
            shifted = [(x + shift, ratio) for x, ratio in mine]
            _bars(panel, shifted, style, 0.43 * width, len(names))
            bars += [(x, ratio, style) for x, ratio in shifted]
    gap = theme().marker / 2 + 2.5
    for at, ratio, style in sorted(bars, key=lambda bar: bar[0]):
        y, dy, va = (ratio.high, gap, "bottom") if ratio.value >= 1 else (ratio.low, -gap, "top")
        spot = model.Spot(at, y, 0, dy, va=va)
        panel.labels.append(model.Label(_times(ratio.value), [spot], style.ink, theme().small))
    return panel


def _bars(
    panel: model.Panel,
    ratios: Sequence[tuple[float, Ratio]],
    style: KernelStyle,
    half: float,
    columns: int,
) -> None:
    """The bars of one kernel, ``half`` as wide each, with whiskers, and markers at their ends."""
    points = [(x, ratio.value) for x, ratio in ratios]
    boxes = [(x - half, 1, 2 * half, y - 1) for x, y in points]
    panel.bars.append(model.Bars(boxes, style.colour))
    whiskers = ([(x, end) for end in (ratio.low, ratio.high)] for x, ratio in ratios)
    panel.lines.append(model.Line(_apart(whiskers), theme().ink, z=5, avoided=False))
    size = min(theme().marker, 2 * half * 72 * panel.cell.width / columns)
    paper, look = theme().palette.background, (style.colour, style.marker, size)
    panel.marks.append(model.Marks(points, *look, face=paper, edge=1, around=0))
    for edge in (-half, half):
        sides = ([(x + edge, 1), (x + edge, y)] for x, y in points)
        panel.lines.append(model.Line(_apart(sides), style.colour, 0.0, z=2))


def _apart(lines: Iterable[Sequence[model.DataPoint]]) -> list[model.DataPoint]:
    """Lines as one, with gaps between them."""
    return [point for line in lines for point in (*line, model.GAP)]


def _times(value: float) -> str:
    """Three digits, three places near 1 where the difference counts."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else model.number(value)


KIND: Final = model.Kind(
    "speedup",
    4,
    make,
    "per_kernel",
    "Draw the speed-up of the other kernels against NAME.",
    "NAME",
)
