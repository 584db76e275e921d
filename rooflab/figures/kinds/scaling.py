"""Several GPUs: how many times the speed of one, and the bandwidth of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.palette import kernel_styles
from rooflab.figures.selection import Selection, Series, Wanted
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import PEER
from rooflab.model.roofline import Roofline
from rooflab.runs.scaling import Scaling, scalings

if TYPE_CHECKING:
    from rooflab.runs.store import Run

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
    xs: tuple[float, ...]
    ys: tuple[float, ...]


def make(wanted: Wanted) -> model.Page:
    """A panel of speed-ups for each workload and precision, then one of bandwidths."""
    (run, *_) = wanted.runs
    times, rates = _times(scalings(run.ok)), _rates(run.ok)
    groups = {title: _series(group) for title, group in [*times, *rates]}
    if len(groups) == 1:  # the page's title names the precision of a single panel
        groups = {group[0].rows[0].problem.precision: group for group in groups.values()}
    if not groups:
        raise UsageError(
            f"{run.path} has no rows on one and on several GPUs: sweep with --gpus 1,2"
        )
    names = {series.kernel for group in groups.values() for series in group}
    selection = Selection([run], groups, kernel_styles(names, theme().palette), every=True)
    cells = grid(len(groups), apart=0.78, above=0.84, tall=2.6, below=0.5, first=-0.5)
    notes = [*([SCALING_NOTE] if times else []), *([LINK_NOTE] if rates else [])]
    panels = []
    for (title, group), cell in zip([*times, *rates], cells, strict=True):
        panel = _of_times(cell, group) if (title, group) in times else _of_rates(cell, group, run)
        panel.title = title
        _fill(panel, group, selection)
        panels.append(panel)
    body = cells[-1].top + cells[-1].height + 0.5
    return page(selection, "scaling over GPUs", notes, panels, body)


def _series(group: Sequence[Curve]) -> list[Series]:
    """The rows of a panel by kernel, each once."""
    rows: dict[str, dict[object, Measurement]] = defaultdict(dict)
    for curve in group:
        rows[curve.series.kernel] |= {row.key: row for row in curve.series.rows}
    return [Series(0, kernel, tuple(of.values())) for kernel, of in rows.items()]


def _fill(panel: model.Panel, group: Sequence[Curve], selection: Selection) -> None:
    lines = [(one.series, list(zip(one.xs, one.ys, strict=True))) for one in group]
    panel.draw_series(lines, selection.styles)
    for curve in group[: model.LABELLED]:
        ink = selection.styles[curve.series.kernel].ink
        spots = model.around(curve.xs[-1], curve.ys[-1], "right")
        panel.labels.append(model.Label(curve.name, spots, ink, theme().small))


# Speed-ups ---------------------------------------------------------------------------------------


def _times(found: Iterable[Scaling]) -> list[tuple[str, list[Curve]]]:
    panels: dict[str, list[Curve]] = defaultdict(list)
    for one in found:
        problem = one.base.problem
        title = f"{problem.workload} {PRECISIONS[problem.precision].title}"
        name = f"{problem.size}, {one.split}" + (" per GPU" if one.weak else "")
        series = Series(int(one.weak), one.base.kernel, one.rows)
        xs = tuple(map(float, one.gpus))
        each = (100 * times / gpus for times, gpus in zip(one.times_one, xs, strict=True))
        label = f"{model.number(one.times_one[-1])} times · {name}"
        panels[title].append(Curve(label, series, xs, tuple(each)))
    return list(panels.items())


def _of_times(cell: model.Cell, group: Sequence[Curve]) -> model.Panel:
    most = max(x for curve in group for x in curve.xs)
    ys = [y for curve in group for y in curve.ys]
    margin = max(2.0, 0.15 * (max(ys) - min(ys)))
    end = 1 + 2 * (most - 1)  # with room for names
    gpus = [(x, f"{x:g}") for x in sorted({x for curve in group for x in curve.xs})]
    panel = model.Panel(
        cell,
        model.Axis((1 - 0.1 * (most - 1), end), "GPUs", log=False, ticks=gpus),
        model.Axis((min(ys) - margin, max(ys) + margin), "% of one GPU, each", log=False),
    )
    panel.lines.append(model.roof([(1, 100), (most, 100)], "derived", theme().ink))
    return panel


# Bandwidths --------------------------------------------------------------------------------------


def _rates(rows: Sequence[Measurement]) -> list[tuple[str, list[Curve]]]:
    lines: dict[tuple[str, str], dict[tuple[str, int], list[Measurement]]] = {}
    for row in rows:
        problem = row.problem
        if row.bus_gbps and row.link_bytes and problem.gpus > 1:
            panel = lines.setdefault((problem.workload, problem.precision), defaultdict(list))
            panel[row.kernel, problem.gpus].append(row)
    return [
        (f"{workload} {PRECISIONS[precision].title}", [*_curves(panel)])
        for (workload, precision), panel in lines.items()
    ]


def _curves(panel: Mapping[tuple[str, int], list[Measurement]]) -> Iterable[Curve]:
    for (kernel, gpus), rows in sorted(panel.items()):
        rows.sort(key=lambda row: row.link_bytes or 0)
        xs = tuple((row.link_bytes or 0) / 1e6 for row in rows)
        ys = tuple(row.bus_gbps or 0 for row in rows)
        yield Curve(f"{model.number(ys[-1])} · {gpus} GPUs", Series(0, kernel, tuple(rows)), xs, ys)


def _of_rates(cell: model.Cell, group: Sequence[Curve], run: Run) -> model.Panel:
    roof = _link(run.manifest.roofline)
    ys = [y for curve in group for y in curve.ys] + ([roof] if roof else [])
    limits = model.log_limits([x for c in group for x in c.xs], cell.width, 0.3, 0.7, 1.0)
    panel = model.Panel(
        cell,
        model.Axis(limits, "MB that a GPU receives"),
        model.Axis(model.log_limits(ys, cell.height, 0.2, 0.35, 1.0), "Bus GB/s"),
    )
    if roof:
        low = limits[0]
        ends = [(x, roof) for x in limits]
        panel.lines.append(model.roof(ends, "measured", theme().ink))
        spots = [model.Spot(low, roof, 6, 3, "left", "bottom"), model.Spot(low, roof, 6, -3)]
        panel.labels.append(model.Label(f"PEER: {model.number(roof)} GB/s", spots, theme().ink))
    return panel


def _link(roofline: Roofline) -> float | None:
    """GB/s of copies between two GPUs."""
    ceiling = roofline.bandwidth(PEER)
    return ceiling.value / 1e9 if ceiling else None


def _suits(run: Run) -> bool:
    """Whether there is a row on several GPUs, and one to compare it with if it needs that."""
    several = any(row.problem.gpus > 1 for row in run.ok)
    return several and bool(_times(scalings(run.ok)) or _rates(run.ok))


KIND: Final = model.Kind("scaling", 6, make, suits=_suits)
