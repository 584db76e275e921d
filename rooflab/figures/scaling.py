"""Several GPUs: how many times the speed of one, and the bandwidth of collectives."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from rooflab.errors import UsageError
from rooflab.figures.labels import LABELLED, Labels, Spot, around
from rooflab.figures.page import Cell, Page, conditions, grid, open_page
from rooflab.figures.palette import kernel_styles
from rooflab.figures.panel import draw_roof, draw_series, log_limits, log_ticks, name_panel, number
from rooflab.figures.selection import Selection, Series
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import PEER
from rooflab.model.roofline import Roofline
from rooflab.runs.scaling import Scaling, scalings
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


def draw_scaling(run: Run) -> Figure:
    """A panel of speed-ups for each workload and precision, then one of bandwidths.

    Raises ``UsageError`` if no row is on several GPUs.
    """
    times, rates = _times(scalings(run.ok)), _rates(run.ok)
    panels = {title: _series(group) for title, group in [*times, *rates]}
    if len(panels) == 1:  # the page's title names the precision of a single panel
        panels = {group[0].rows[0].problem.precision: group for group in panels.values()}
    if not panels:
        raise UsageError(
            f"{run.path} has no rows on one and on several GPUs: sweep with --gpus 1,2"
        )
    names = {series.kernel for group in panels.values() for series in group}
    selection = Selection([run], panels, kernel_styles(names, theme().palette), every=True)
    cells = grid(len(panels), apart=0.78, above=0.84, tall=2.6, below=0.0)
    notes = [*([SCALING_NOTE] if times else []), *([LINK_NOTE] if rates else [])]
    body = cells[-1].top + cells[-1].height
    page = open_page(selection, "scaling over GPUs", [*notes, *conditions(selection)], body)
    for (title, group), cell in zip([*times, *rates], cells, strict=True):
        axes = _axes(page, cell, title)
        if (title, group) in times:
            _draw_times(axes, cell, group, selection)
        else:
            _draw_rates(axes, cell, group, selection)
    return page.figure


def _series(group: Sequence[Curve]) -> list[Series]:
    """The rows of a panel by kernel, each once."""
    rows: dict[str, dict[object, Measurement]] = defaultdict(dict)
    for curve in group:
        rows[curve.series.kernel] |= {row.key: row for row in curve.series.rows}
    return [Series(0, kernel, tuple(of.values())) for kernel, of in rows.items()]


def _axes(page: Page, cell: Cell, title: str) -> Axes:
    axes = page.axes(cell.left, cell.top - 0.5, cell.width, cell.height)
    name_panel(axes, title, pad=4)
    return axes


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
        label = f"{number(one.times_one[-1])} times · {name}"
        panels[title].append(Curve(label, series, xs, tuple(each)))
    return list(panels.items())


def _draw_times(axes: Axes, _cell: Cell, group: Sequence[Curve], selection: Selection) -> None:
    most = max(x for curve in group for x in curve.xs)
    ys = [y for curve in group for y in curve.ys]
    margin = max(2.0, 0.15 * (max(ys) - min(ys)))
    end = 1 + 2 * (most - 1)  # with room for names
    axes.set(xlim=(1 - 0.1 * (most - 1), end), ylim=(min(ys) - margin, max(ys) + margin))
    axes.set(xlabel="GPUs", ylabel="% of one GPU, each")
    axes.xaxis.set_major_locator(FixedLocator(sorted({x for c in group for x in c.xs})))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    labels = Labels(axes)
    draw_roof(labels, (1, most), (100, 100), "derived", theme().ink)
    _draw(labels, group, selection)


def _draw(labels: Labels, group: Sequence[Curve], selection: Selection) -> None:
    lines = [(one.series, list(zip(one.xs, one.ys, strict=True))) for one in group]
    draw_series(labels, lines, selection.styles)
    for curve in group[:LABELLED]:
        ink = selection.styles[curve.series.kernel].ink
        x, y = curve.xs[-1], curve.ys[-1]
        labels.place(curve.name, around(x, y, "right"), color=ink, fontsize=theme().small)


# Bandwidths --------------------------------------------------------------------------------------


def _rates(rows: Sequence[Measurement]) -> list[tuple[str, list[Curve]]]:
    lines: dict[tuple[str, str], dict[tuple[str, int], list[Measurement]]] = {}
    for row in rows:
        problem = row.problem
        if row.bus_gbps and row.bytes and problem.gpus > 1:
            panel = lines.setdefault((problem.workload, problem.precision), defaultdict(list))
            panel[row.kernel, problem.gpus].append(row)
    return [
        (f"{workload} {PRECISIONS[precision].title}", [*_curves(panel)])
        for (workload, precision), panel in lines.items()
    ]


def _curves(panel: Mapping[tuple[str, int], list[Measurement]]) -> Iterable[Curve]:
    for (kernel, gpus), rows in sorted(panel.items()):
        rows.sort(key=lambda row: row.bytes or 0)
        xs = tuple((row.bytes or 0) / 1e6 for row in rows)
        ys = tuple(row.bus_gbps or 0 for row in rows)
        yield Curve(f"{number(ys[-1])} · {gpus} GPUs", Series(0, kernel, tuple(rows)), xs, ys)


def _draw_rates(axes: Axes, cell: Cell, group: Sequence[Curve], selection: Selection) -> None:
    roof = _link(selection.runs[0].manifest.roofline)
    ys = [y for curve in group for y in curve.ys] + ([roof] if roof else [])
    x_limits = log_limits([x for c in group for x in c.xs], cell.width, 0.3, 0.7, 1.0)
    y_limits = log_limits(ys, cell.height, 0.2, 0.35, 1.0)
    axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
    axes.set(xlabel="MB that a GPU receives", ylabel="Bus GB/s")
    log_ticks(axes.xaxis, x_limits)
    log_ticks(axes.yaxis, y_limits)
    labels = Labels(axes)
    if roof:
        draw_roof(labels, x_limits, (roof, roof), "measured", theme().ink)
        spots = [Spot(x_limits[0], roof, 6, 3, "left", "bottom"), Spot(x_limits[0], roof, 6, -3)]
        labels.place(f"PEER: {number(roof)} GB/s", spots, color=theme().ink)
    _draw(labels, group, selection)


def _link(roofline: Roofline) -> float | None:
    """GB/s of copies between two GPUs."""
    ceiling = roofline.bandwidth(PEER)
    return ceiling.value / 1e9 if ceiling else None
