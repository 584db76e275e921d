"""Bars: how many times as fast as one kernel every other one is, by size."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.palette import Style
from rooflab.figures.selection import Selection, Wanted, select
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS

NOTE: Final = "Time of {} over the kernel's; above 1 the kernel is faster."
WHISKERS: Final = "Whiskers: the range that both times' 95 % intervals allow."
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
    selection, name = select(wanted, flops=False, every=True), wanted.value
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
    notes = [NOTE.format(name) + whiskers, *_gaps(missing, name)]
    several, square = len(panels) > 1, all(map(model.plain, rows)) and len(_settings(rows)) == 1
    text = _size if len(_settings(rows)) > 1 else model.size_text
    ticks = 0.24 if square else 0.03 + model.slanted_height(map(text, rows), theme().label)
    cells = grid(
        len(panels),
        apart=0.62,
        above=several * (0.3 + ticks) + 0.06,
        tall=2.6 if several else 4.0,
        below=ticks + 0.26,
        first=-several * ticks,
    )
    made: list[model.Panel] = []
    for (precision, ratios), cell in zip(panels.items(), cells, strict=True):
        panel = _panel(cell, ratios, selection.styles, square)
        panel.title, panel.titled = PRECISIONS[precision].title, several
        title = model.shortened(f"Times as fast as {name}", theme().type, cell.height)
        panel.y = replace(panel.y, title=title, titled=not cell.column)
        made.append(panel)
    body = cells[-1].top + cells[-1].height + ticks + 0.26
    return page(selection, f"speed-up against {name}", notes, made, body)


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
    return " ".join([model.size_text(row), *words])


def _panel(
    cell: model.Cell, ratios: Sequence[Ratio], styles: Mapping[str, Style], square: bool
) -> model.Panel:
    rows = sorted((r.row for r in ratios), key=lambda row: (row.link_bytes or 0, row.flops or 0))
    sizes = list(dict.fromkeys(row.problem.key for row in rows))
    names = {row.problem.key: row for row in rows}
    text = _size if len(_settings(rows)) > 1 else model.size_text
    kernels = [name for name in styles if any(r.row.kernel == name for r in ratios)]
    crowded = len(ratios) > BARS
    at = range(0, len(sizes), -(-len(sizes) // TICKS) if crowded else 1)
    values = [1.0, *(v for ratio in ratios for v in (ratio.low, ratio.high))]
    limits = (-0.6, len(sizes) - 0.4)
    panel = model.Panel(
        cell,
        model.Axis(
            limits,
            "Size",
            titled=cell.lowest,
            log=False,
            ticks=[(i, text(names[sizes[i]])) for i in at],
            turned=0 if square else 45,
            size=theme().label,
            grid=False,
        ),
        model.Axis(model.log_limits(values, cell.height, 0.2, 0.25, 0.5)),
    )
    panel.lines.append(model.Line([(x, 1) for x in limits], theme().ink, avoided=False))
    width = 0.8 / len(kernels)
    size = min(theme().marker, 0.86 * width * 72 * cell.width / len(sizes))
    column = {key: i for i, key in enumerate(sizes)}
    places: list[tuple[float, Ratio, Style]] = []
    for order, kernel in enumerate(kernels):
        mine, style = [one for one in ratios if one.row.kernel == kernel], styles[kernel]
        shift = 0.0 if crowded else (order - (len(kernels) - 1) / 2) * width
        points = [(column[one.row.problem.key] + shift, one.value) for one in mine]
        if crowded:
            line = sorted(points)
            panel.marks.append(
                model.Marks(
                    line, style.colour, style.marker, 1.5, around=-1, dash="-", width=0.8, z=2
                )
            )
            continue
        half = 0.43 * width
        panel.bars.append(
            model.Bars([(x - half, 1, 2 * half, y - 1) for x, y in points], style.colour)
        )
        ends = ([(x, end) for end in (one.low, one.high)]
                for (x, _), one in zip(points, mine, strict=True))  # fmt: skip
        panel.lines.append(model.Line(_apart(ends), theme().ink, z=5, avoided=False))
        paper = theme().palette.background
        panel.marks.append(
            model.Marks(points, style.colour, style.marker, size, face=paper, edge=1, around=0)
        )
        for edge in (-half, half):
            sides = ([(x + edge, 1), (x + edge, y)] for x, y in points)
            panel.lines.append(model.Line(_apart(sides), style.colour, 0.0, z=2))
        places += [(x, one, style) for (x, _), one in zip(points, mine, strict=True)]
    gap = theme().marker / 2 + 2.5
    for x, ratio, style in sorted(places, key=lambda place: place[0]):
        up = ratio.value >= 1
        spot = model.Spot(x, ratio.high if up else ratio.low, 0, gap if up else -gap, va=_side(up))
        panel.labels.append(model.Label(_times(ratio.value), [spot], style.ink, theme().small))
    return panel


def _apart(lines: Iterable[Sequence[model.Point]]) -> list[model.Point]:
    """Lines as one, with gaps between them."""
    return [point for line in lines for point in (*line, model.GAP)]


def _times(value: float) -> str:
    """Three digits, three places near 1 where the difference counts."""
    return f"{value:.3f}" if 0.9 < value < 1.1 else model.number(value)


def _side(up: bool) -> str:
    return "bottom" if up else "top"


KIND: Final = model.Kind(
    "speedup",
    4,
    make,
    "per_kernel",
    "Draw the speed-up of the other kernels against NAME.",
    "NAME",
)
