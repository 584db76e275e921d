"""The energy roofline: FLOPs per joule against FLOPs per byte.

After Choi, Bedard, Fowler, Vuduc, "A Roofline Model of Energy", 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.selection import Selection, Series, Wanted, intensity, select
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Roofline

if TYPE_CHECKING:
    from rooflab.runs.store import Run

NOTE: Final = (
    "Line: FLOP/s at the roof over the power limit. A kernel that draws less power may be above it."
)


def make(wanted: Wanted) -> model.Page:
    """GFLOP/J against FLOP/byte, a panel per precision, all with the same axes."""
    selection = select(wanted, every=True)
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
    without = every - len(rows)
    after = [f"{without} of {every} points have no energy and are not drawn."] * bool(without)
    above, label = (0.34, 0.5) if several else (0.06, 0.5)
    tall = 2.6 if several else 4.4
    cells = grid(len(panels), apart=0.2, above=above, tall=tall, below=label)
    xs, ys = [intensity(row) for row in rows], [_per_joule(row) for row in rows]
    roofs = _roofs(selection.runs, limits)
    for precision in panels:
        for roofline, watts in roofs:
            top, ridge = roofline.compute(precision), roofline.ridge(precision)
            ys += [top.value / watts / 1e9] if top else []
            xs += [ridge] if ridge else []
    side = min(0.9, 0.28 * cells[0].width)
    x_limits = model.log_limits(xs, cells[0].width, side, side, 1.0)
    y_limits = model.log_limits(ys, cells[0].height, 0.25, 0.3, 1.0)
    drawn = []
    for (precision, group), cell in zip(panels.items(), cells, strict=True):
        x, y = (
            model.Axis(x_limits, "Arithmetic intensity (FLOP/byte)"),
            model.Axis(y_limits, "GFLOP/J"),
        )
        panel = model.log_panel(cell, x, y, precision)
        panel.titled = several
        _fill(panel, selection, group, precision, roofs)
        drawn.append(panel)
    body = cells[-1].top + cells[-1].height + label
    notes = [NOTE] if limits else []
    return page(selection, "energy roofline", notes, drawn, body, after)


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


def _fill(
    panel: model.Panel,
    selection: Selection,
    group: Sequence[Series],
    precision: str,
    roofs: Sequence[tuple[Roofline, float]],
) -> None:
    lines = [(s, [(intensity(row), _per_joule(row)) for row in s.rows]) for s in group]
    panel.draw_series(lines, selection.styles)
    for roofline, watts in roofs:
        _draw_roof(panel, roofline, precision, watts)
    for series in group[: model.LABELLED]:
        last = series.rows[-1]
        text = f"{model.size_text(last)} · {model.number(_per_joule(last))}"
        spots = model.around(intensity(last), _per_joule(last), "right")
        panel.labels.append(
            model.Label(text, spots, selection.styles[series.kernel].ink, theme().small)
        )


def _draw_roof(panel: model.Panel, roofline: Roofline, precision: str, watts: float) -> None:
    compute, ridge = roofline.compute(precision), roofline.ridge(precision)
    if compute is None or ridge is None:
        return
    top, (left, right) = compute.value / watts / 1e9, panel.x.limits
    start = max(left, ridge * panel.y.limits[0] / top)
    points = [(start, top * start / ridge), (ridge, top), (right, top)]
    panel.lines.append(model.roof(points, "measured", theme().ink))
    spots = [
        model.Spot(right, top, -4, 3, "right", "bottom"),
        model.Spot(right, top, -4, -3, "right"),
    ]
    text = f"{model.number(top)} GFLOP/J (roof at {model.number(watts)} W)"
    panel.labels.append(model.Label(text, spots, theme().ink, required=True))


KIND: Final = model.Kind("energy", 3, make, "energy", "Draw GFLOP/J against FLOP/byte.")
