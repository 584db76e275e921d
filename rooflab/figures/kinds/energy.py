"""The energy roofline: FLOPs per joule against FLOPs per byte.

After Choi, Bedard, Fowler, Vuduc, "A Roofline Model of Energy", 2013.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import grid, page
from rooflab.figures.selection import Wanted, having, intensity, select
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Roofline
from rooflab.runs.store import RunData

NOTE: Final = (
    "Line: FLOP/s at the roof over the power limit. A kernel that draws less power may be above it."
)


def make(wanted: Wanted) -> model.Page:
    """GFLOP/J against FLOP/byte, a panel per precision, all with the same axes."""
    every = select(wanted, every=True)
    panels = {name: having(group, lambda row: row.energy_j) for name, group in every.panels.items()}
    panels = {precision: group for precision, group in panels.items() if group}
    if not panels:
        (first, *_) = every.runs
        raise UsageError(f"{first.path} has no energy in its rows: the device has no counter of it")
    data = every.only(panels, {series.kernel for group in panels.values() for series in group})
    several, rows, roofs = data.several, data.rows(), _roofs(data.runs)
    above, tall = (0.34, 2.6) if several else (0.06, 4.4)
    cells = grid(len(panels), apart=0.2, above=above, tall=tall)
    xs, ys = [intensity(row) for row in rows], [_per_joule(row) for row in rows]
    for precision in panels:
        for roofline, watts in roofs:
            top, ridge = roofline.compute(precision), roofline.ridge(precision)
            ys += [top.value / watts / 1e9] if top else []
            xs += [ridge] if ridge else []
    width, height = cells[0].width, cells[0].height
    side = min(0.9, 0.28 * width)
    x = model.log_axis("Arithmetic intensity (FLOP/byte)", xs, width, side, side)
    y = model.log_axis("GFLOP/J", ys, height, 0.25, 0.3)
    drawn = []
    for (precision, group), cell in zip(panels.items(), cells, strict=True):
        panel = model.log_panel(cell, x, y, precision, titled=several)
        lines = [(s, [(intensity(row), _per_joule(row)) for row in s.rows]) for s in group]
        panel.draw_series(lines, data.styles)
        for roofline, watts in roofs:
            _draw_roof(panel, roofline, precision, watts)
        for series, points in lines[: model.LABELLED]:
            text = f"{model.size_text(series.rows[-1])} · {model.number(points[-1][1])}"
            panel.labels.append(model.beside(points[-1], text, data.styles[series.kernel].ink))
        drawn.append(panel)
    without, notes = len(every.rows()) - len(rows), [NOTE] if roofs else []
    after = [f"{without} of {without + len(rows)} points have no energy and are not drawn."]
    return page(data, "energy roofline", notes, drawn, after=after * bool(without))


def _per_joule(row: Measurement) -> float:
    return (row.flops or 0) / (row.energy_j or 1) / 1e9


def _roofs(runs: Sequence[RunData]) -> list[tuple[Roofline, float]]:
    """A roof and a power limit per device, from its first run whose limit is known."""
    of_device: dict[str, tuple[Roofline, float]] = {}
    for manifest in (run.manifest for run in runs):
        fact = manifest.device.facts.get("power_limit")
        if fact and isinstance(fact.value, int | float) and fact.value:
            of_device.setdefault(manifest.device.name, (manifest.roofline, float(fact.value)))
    return list(of_device.values())


def _draw_roof(panel: model.Panel, roofline: Roofline, precision: str, watts: float) -> None:
    compute, ridge = roofline.compute(precision), roofline.ridge(precision)
    if compute is None or ridge is None:
        return
    top, right = compute.value / watts / 1e9, panel.x.limits[1]
    points = [panel.slope(top / ridge, top)[0], (ridge, top), (right, top)]
    panel.lines.append(model.roof(points, "measured", theme().ink))
    spots = [
        model.Spot(right, top, -4, 3, "right", "bottom"),
        model.Spot(right, top, -4, -3, "right"),
    ]
    text = f"{model.number(top)} GFLOP/J (roof at {model.number(watts)} W)"
    panel.labels.append(model.Label(text, spots, theme().ink, required=True))


KIND: Final = model.Kind("energy", 3, make, "energy", "Draw GFLOP/J against FLOP/byte.")
