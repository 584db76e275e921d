"""Several GPUs: how many times the speed of one, and the bandwidth of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.palette import kernel_styles
from rooflab.figures.selection import FigureData, Series, Wanted
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import PEER, ProblemRecord
from rooflab.model.roofline import Roofline
from rooflab.runs.scaling import Scaling, scalings
from rooflab.runs.store import RunData

SCALING_NOTE: Final = (
    "Rate of work of a GPU over that of one alone; labels: of all GPUs. Filled: the same problem "
    "on more GPUs (strong scaling). Hollow: a problem that grows with them (weak scaling)."
)
LINK_NOTE: Final = (
    "Bus bandwidth, as NCCL's tests count it. Line: the rate of copies between two GPUs."
)


@dataclass(frozen=True, slots=True)
class Curve:
    """A line of a panel: its label, and its rows with their places."""

    name: str
    series: Series
    points: list[model.DataPoint]


Panels = dict[str, list[Curve]]


def make(wanted: Wanted) -> model.Page:
    """A panel of speed-ups for each workload and precision, then one of bandwidths."""
    (run, *_) = wanted.runs
    times, rates = _times(scalings(run.ok)), _rates(run.ok)
    drawn = [*times.items(), *rates.items()]
    if not drawn:
        raise UsageError(
            f"{run.path} has no rows on one and on several GPUs: sweep with --gpus 1,2"
        )
    groups = {title: _series(group) for title, group in drawn}
    if len(groups) == 1:  # the page's title names the precision of a single panel
        groups = {group[0].rows[0].problem.precision: group for group in groups.values()}
    names = {series.kernel for group in groups.values() for series in group}
    data = FigureData([run], groups, kernel_styles(names, theme().palette), every=True)
    cells = grid(len(groups), apart=0.78, above=0.84, tall=2.6, first=-0.5)
    panels = []
    for i, ((title, group), cell) in enumerate(zip(drawn, cells, strict=True)):
        of_times = i < len(times)
        panel = (
            _of_times(cell, group) if of_times else _of_rates(cell, group, run.manifest.roofline)
        )
        panel.title = title
        panel.draw_series([(one.series, one.points) for one in group], data.styles)
        for curve in group[: model.LABELLED]:
            ink = data.styles[curve.series.kernel].ink
            panel.labels.append(model.beside(curve.points[-1], curve.name, ink))
        panels.append(panel)
    notes = [SCALING_NOTE] * bool(times) + [LINK_NOTE] * bool(rates)
    return page(data, "scaling over GPUs", notes, panels)


def _series(group: Sequence[Curve]) -> list[Series]:
    """The rows of a panel by kernel, each once."""
    rows: dict[str, dict[object, Measurement]] = defaultdict(dict)
    for curve in group:
        rows[curve.series.kernel] |= {row.key: row for row in curve.series.rows}
    return [Series(0, kernel, tuple(of.values())) for kernel, of in rows.items()]


def _title(problem: ProblemRecord) -> str:
    return f"{problem.workload} {PRECISIONS[problem.precision].title}"


# Speed-ups ---------------------------------------------------------------------------------------


def _times(found: Iterable[Scaling]) -> Panels:
    panels: Panels = defaultdict(list)
    for one in found:
        name = f"{one.base.problem.size}, {one.split}" + (" per GPU" if one.weak else "")
        pairs = zip(one.gpus, one.times_one, strict=True)
        points = [(float(gpus), 100 * times / gpus) for gpus, times in pairs]
        label = f"{model.number(one.times_one[-1])} times · {name}"
        series = Series(int(one.weak), one.base.kernel, one.rows)
        panels[_title(one.base.problem)].append(Curve(label, series, points))
    return panels


def _of_times(cell: model.Cell, group: Sequence[Curve]) -> model.Panel:
    xs, ys = zip(*(point for curve in group for point in curve.points), strict=True)
    most, margin = max(xs), max(2.0, 0.15 * (max(ys) - min(ys)))
    end = 1 + 2 * (most - 1)  # with room for names
    gpus = [(x, f"{x:g}") for x in sorted(set(xs))]
    panel = model.Panel(
        cell,
        model.Axis((1 - 0.1 * (most - 1), end), "GPUs", log=False, ticks=gpus),
        model.Axis((min(ys) - margin, max(ys) + margin), "% of one GPU, each", log=False),
    )
    panel.lines.append(model.roof([(1, 100), (most, 100)], "derived", theme().ink))
    return panel


# Bandwidths --------------------------------------------------------------------------------------


def _rates(rows: Sequence[Measurement]) -> Panels:
    several = (row for row in rows if row.bus_gbps and row.link_bytes and row.problem.gpus > 1)
    panels: Panels = {}
    for title, some in grouped(several, lambda row: _title(row.problem)).items():
        lines = grouped(some, lambda row: (row.kernel, row.problem.gpus))
        panels[title] = [_curve(*line, lines[line]) for line in sorted(lines)]
    return panels


def _curve(kernel: str, gpus: int, rows: Sequence[Measurement]) -> Curve:
    ordered = sorted(rows, key=lambda row: row.link_bytes or 0)
    points = [((row.link_bytes or 0) / 1e6, row.bus_gbps or 0) for row in ordered]
    name = f"{model.number(points[-1][1])} · {gpus} GPUs"
    return Curve(name, Series(0, kernel, tuple(ordered)), points)


def _of_rates(cell: model.Cell, group: Sequence[Curve], roofline: Roofline) -> model.Panel:
    link = roofline.bandwidth(PEER)
    xs, ys = map(list, zip(*(point for curve in group for point in curve.points), strict=True))
    ys += [link.value / 1e9] if link else []
    panel = model.Panel(
        cell,
        model.log_axis("MB that a GPU receives", xs, cell.width, 0.3, 0.7),
        model.log_axis("Bus GB/s", ys, cell.height, 0.2, 0.35),
    )
    if link:
        roof, (low, high) = link.value / 1e9, panel.x.limits
        panel.lines.append(model.roof([(low, roof), (high, roof)], "measured", theme().ink))
        spots = [model.Spot(low, roof, 6, 3, "left", "bottom"), model.Spot(low, roof, 6, -3)]
        panel.labels.append(model.Label(f"PEER: {model.number(roof)} GB/s", spots, theme().ink))
    return panel


def _suits(run: RunData) -> bool:
    """Whether there is a row on several GPUs, and one to compare it with if it needs that."""
    several = any(row.problem.gpus > 1 for row in run.ok)
    return several and bool(_times(scalings(run.ok)) or _rates(run.ok))


KIND: Final = model.Kind("scaling", 6, make, suits=_suits)
