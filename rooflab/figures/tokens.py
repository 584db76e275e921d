"""Tokens per second of a language model against the batch, under its roofs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from math import ceil
from typing import Final

from rooflab.figures import model
from rooflab.figures.page import grid, page_width
from rooflab.figures.palette import MARKERS, KernelStyle, readable
from rooflab.figures.style import Dash, theme
from rooflab.llm import estimate
from rooflab.llm.config import LanguageModel
from rooflab.llm.estimate import Estimate
from rooflab.llm.machine import Machine
from rooflab.llm.operators import ModelStep, operators
from rooflab.model.roofline import COMPUTE, Roofline
from rooflab.model.units import scaled

STEPS: Final = 4
"""Points of a curve for each doubling of the batch."""

FAR: Final = 30
"""A roof that is so many times as high as the curve ends is not drawn."""

SPOTS: Final = 12
"""Places along a roof where its label may be."""

MEMORY: Final = "memory"
ROOF: Final = "all operators at their roofs"


def make(
    of: LanguageModel, estimates: Sequence[Estimate], machine: Machine, stacks: Sequence[str]
) -> model.Page:
    """A panel of decode for each precision and context: roofs, their sum, what was measured."""
    decodes = [one for one in estimates if one.step.phase == "decode"]
    by_panel = groupby(decodes, key=lambda one: (one.step.precision, one.step.context))
    groups = [list(group) for _, group in by_panel]
    styles = _styles(stacks)
    cells = grid(len(groups), apart=0.78, above=0.56, tall=3.4, first=-0.26)
    panels = [
        _panel(of, group, machine, cell, styles) for group, cell in zip(groups, cells, strict=True)
    ]
    legend = [model.Key(name, style.colour, style.marker, "-") for name, style in styles.items()]
    body = max(one.cell.top + one.cell.height for one in panels) + 0.5
    title = f"{machine.name} — {of.name}: tokens per second by batch"
    return model.Page(
        title, legend, panels, _notes(of, decodes, stacks, machine), body, page_width(len(panels))
    )


def _styles(stacks: Sequence[str]) -> dict[str, KernelStyle]:
    """A hue each."""
    palette = theme().palette
    looks = zip((ROOF, *stacks), palette.shades, MARKERS, strict=False)
    return {
        name: KernelStyle(shades[0], marker, readable(shades[0], palette.background))
        for name, shades, marker in looks
    }


def _notes(
    of: LanguageModel, estimates: Sequence[Estimate], stacks: Sequence[str], machine: Machine
) -> list[str]:
    step, notes = estimates[0].step, []
    if not any(one.fits for one in estimates):
        least = min(one.needs for one in estimates)
        room = scaled(machine.memory or 0)
        notes.append(f"No batch here fits in {room}B: the smallest needs {scaled(least)}B.")
    if step.gpus > 1:
        notes.append(f"{step.gpus} GPUs: modelled, one operator after the other.")
    if of.experts:
        notes.append("Experts: modelled as if each token chose at random.")
    if any(one.unmeasured(name) for one in estimates for name in stacks):
        notes.append(
            "Operators that were not measured are at their roofs: the points are upper bounds."
        )
    return notes


def _panel(
    of: LanguageModel,
    group: Sequence[Estimate],
    machine: Machine,
    cell: model.Cell,
    styles: Mapping[str, KernelStyle],
) -> model.Panel:
    step = group[0].step
    most = min(estimate.largest_batch(of, step, machine.memory) or 0, estimate.MOST)
    batches = _batches(max(2, most, *(one.step.batch for one in group)))
    steps = [replace(step, batch=batch) for batch in batches]
    curve = [_point(one, one.roof_us) for one in (estimate.estimate(of, s, machine) for s in steps)]
    roofs, marks = _roofs(of, steps, machine.roofline), _marks(group, styles)
    shown = [*curve, *(point for some in marks.values() for point in some)]
    shown += [one for line in roofs.values() for one in line if one[1] <= FAR * curve[-1][1]]
    x = model.log_axis("Batch", batches, cell.width, 0.15, 0.2)
    y = model.log_axis("Tokens/s", [y for _, y in shown], cell.height, 0.2, 0.35)
    title = f"decode {step.precision.title}, context {step.context}"
    x, y = replace(x, titled=cell.lowest), replace(y, titled=not cell.column)
    panel = model.Panel(cell, x, y, title)
    limits = machine.roofline.compute(step.precision.name), machine.roofline.bandwidth()
    for (name, line), ceiling in zip(roofs.items(), limits, strict=True):
        _draw_roof(panel, name, line, ceiling.provenance if ceiling else "derived")
    panel.lines.append(model.Line(curve, styles[ROOF].colour, 0.6 * theme().line))
    for name, some in marks.items():
        look = (styles[name].colour, styles[name].marker, theme().marker)
        dash: Dash = "" if name == ROOF else "-"
        panel.marks.append(model.Marks(some, *look, dash=dash, width=theme().line))
    ridge = estimate.ridge_batch(of, step, machine.roofline) or 0
    for batch, text in ((most, f"{scaled(machine.memory or 0)}B are full"), (ridge, "ridge")):
        if 1 <= batch <= batches[-1]:
            _draw_limit(panel, batch, f"{text}: {batch}")
    return panel


def _point(one: Estimate, us: float) -> model.DataPoint:
    """The batch, and tokens per second of a step of ``us``."""
    return float(one.step.batch), one.tokens_per_s(us)


def _batches(most: int) -> list[int]:
    """From 1 to ``most``, evenly on a logarithmic axis."""
    found, i = [1], 0
    while found[-1] < most:
        i += 1
        found.append(min(most, max(found[-1] + 1, ceil(2 ** (i / STEPS)))))
    return found


def _roofs(
    of: LanguageModel, steps: Sequence[ModelStep], roofline: Roofline
) -> dict[str, list[model.DataPoint]]:
    """Tokens per second if there were only FLOPs, and if there were only bytes of memory."""
    pairs = [(one, estimate.seconds(operators(of, one), roofline)) for one in steps]
    return {
        name: [(float(one.batch), one.tokens / seconds[i]) for one, seconds in pairs]
        for i, name in enumerate((COMPUTE, MEMORY))
    }


def _draw_roof(panel: model.Panel, name: str, line: Sequence[model.DataPoint], source: str) -> None:
    seen = [point for point in line if point[1] <= panel.y.limits[1]]
    if len(seen) < 2:
        return
    colour = theme().roofs[0]
    panel.lines.append(model.roof(seen, source, colour))
    places = seen[:: max(1, len(seen) // SPOTS)]
    spots = [spot for point in places for spot in model.around(*point, "left")]
    panel.labels.append(model.Label(f"{name} roof ({source})", spots, colour, required=True))


def _marks(
    group: Sequence[Estimate], styles: Mapping[str, KernelStyle]
) -> dict[str, list[model.DataPoint]]:
    """The batches that were asked for: at the roof, and by stack where something was measured."""
    found: dict[str, list[model.DataPoint]] = {}
    for one in sorted(group, key=lambda one: one.step.batch):
        for name in styles:
            if name == ROOF or one.measured(name):
                us = one.roof_us if name == ROOF else one.us(name)
                found.setdefault(name, []).append(_point(one, us))
    return found


def _draw_limit(panel: model.Panel, batch: int, text: str) -> None:
    """A batch at which something changes."""
    low, high = panel.y.limits
    panel.lines.append(model.Line([(batch, low), (batch, high)], theme().muted, 0.8, (0, (1, 2))))
    angle, spots = panel.along((batch, low), (batch, panel.y.value(0.6)))
    panel.labels.append(model.Label(text, spots, theme().muted, theme().small, rotation=angle))
