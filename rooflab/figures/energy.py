"""The energy roofline: FLOPs per joule against FLOPs per byte.

After Choi, Bedard, Fowler, Vuduc, "A Roofline Model of Energy", 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rooflab.errors import UsageError
from rooflab.figures.labels import LABELLED, Labels, Spot, around
from rooflab.figures.page import conditions, grid, open_page
from rooflab.figures.panel import (
    Limits,
    draw_roof,
    draw_series,
    log_limits,
    log_ticks,
    name_panel,
    number,
    size_text,
)
from rooflab.figures.selection import Selection, Series, intensity
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Roofline
from rooflab.runs.store import Run

NOTE: Final = (
    "Line: FLOP/s at the roof over the power limit. A kernel that draws less power may be above it."
)


def draw_energy(selection: Selection) -> Figure:
    """A panel per precision, all with the same axes.

    Raises ``UsageError`` if no row has an energy.
    """
    panels = {precision: _counted(group) for precision, group in selection.panels.items()}
    panels = {precision: group for precision, group in panels.items() if group}
    if not panels:
        (first, *_) = selection.runs
        raise UsageError(f"{first.path} has no energy in its rows: the device has no counter of it")
    every = len(selection.rows())
    names = {series.kernel for group in panels.values() for series in group}
    styles = {name: style for name, style in selection.styles.items() if name in names}
    selection = replace(selection, panels=panels, styles=styles)
    several, rows = selection.several, selection.rows()
    limits = {i: watts for i, run in enumerate(selection.runs) if (watts := _watts(run))}
    notes = [*([NOTE] if limits else []), *conditions(selection)]
    if without := every - len(rows):
        notes.append(f"{without} of {every} points have no energy and are not drawn.")
    above, label = (0.34, 0.5) if several else (0.06, 0.5)
    tall = 2.6 if several else 4.4
    cells = grid(len(panels), apart=0.2, above=above, tall=tall, below=label)
    body = cells[-1].top + cells[-1].height + label
    page = open_page(selection, "energy roofline", notes, body)
    xs, ys = [intensity(row) for row in rows], [_per_joule(row) for row in rows]
    roofs = _roofs(selection.runs, limits)
    for precision in panels:
        for roofline, watts in roofs:
            top, ridge = roofline.compute(precision), roofline.ridge(precision)
            ys += [top.value / watts / 1e9] if top else []
            xs += [ridge] if ridge else []
    side = min(0.9, 0.28 * cells[0].width)
    x_limits = log_limits(xs, cells[0].width, side, side, 1.0)
    y_limits = log_limits(ys, cells[0].height, 0.25, 0.3, 1.0)
    for (precision, group), cell in zip(panels.items(), cells, strict=True):
        axes = page.axes(cell.left, cell.top, cell.width, cell.height)
        axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
        log_ticks(axes.xaxis, x_limits)
        log_ticks(axes.yaxis, y_limits)
        axes.tick_params(labelbottom=cell.lowest, labelleft=cell.column == 0)
        if cell.lowest:
            axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
        if cell.column == 0:
            axes.set_ylabel("GFLOP/J")
        if several:
            name_panel(axes, PRECISIONS[precision].title, pad=4)
        _draw_panel(axes, selection, group, precision, roofs)
    return page.figure


def _counted(group: Sequence[Series]) -> list[Series]:
    """The series with only their rows that have an energy."""
    kept = [replace(s, rows=tuple(row for row in s.rows if row.energy_j)) for s in group]
    return [series for series in kept if series.rows]


def _per_joule(row: Measurement) -> float:
    """GFLOP/J of a row with an energy."""
    return (row.flops or 0) / (row.energy_j or 1) / 1e9


def _roofs(runs: Sequence[Run], limits: Mapping[int, float]) -> list[tuple[Roofline, float]]:
    """A roof and a power limit per device, from its first run."""
    of_device: dict[str, tuple[Roofline, float]] = {}
    for i, watts in limits.items():
        manifest = runs[i].manifest
        of_device.setdefault(manifest.device.name, (manifest.roofline, watts))
    return list(of_device.values())


def _watts(run: Run) -> float | None:
    """The power limit, None if it is unknown."""
    fact = run.manifest.device.facts.get("power_limit")
    return float(fact.value) if fact and isinstance(fact.value, int | float) else None


def _draw_panel(
    axes: Axes,
    selection: Selection,
    group: Sequence[Series],
    precision: str,
    roofs: Sequence[tuple[Roofline, float]],
) -> None:
    labels = Labels(axes)
    lines = [(s, [(intensity(row), _per_joule(row)) for row in s.rows]) for s in group]
    draw_series(labels, lines, selection.styles)
    for roofline, watts in roofs:
        _draw_roof(labels, roofline, precision, watts, axes.get_xlim())
    for series in group[:LABELLED]:
        last = series.rows[-1]
        text = f"{size_text(last)} · {number(_per_joule(last))}"
        spots = around(intensity(last), _per_joule(last), "right")
        ink = selection.styles[series.kernel].ink
        labels.place(text, spots, color=ink, fontsize=theme().small)


def _draw_roof(
    labels: Labels, roofline: Roofline, precision: str, watts: float, limits: Limits
) -> None:
    compute, ridge = roofline.compute(precision), roofline.ridge(precision)
    if compute is None or ridge is None:
        return
    top, lowest = compute.value / watts / 1e9, labels.axes.get_ylim()[0]
    start = max(limits[0], ridge * lowest / top)
    xs, ys = (start, ridge, limits[1]), (top * start / ridge, top, top)
    draw_roof(labels, xs, ys, "measured", theme().ink)
    spots = [Spot(limits[1], top, -4, 3, "right", "bottom"), Spot(limits[1], top, -4, -3, "right")]
    text = f"{number(top)} GFLOP/J (roof at {number(watts)} W)"
    labels.place(text, spots, required=True, color=theme().ink)
