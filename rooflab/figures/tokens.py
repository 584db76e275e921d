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
from rooflab.model.units import scaled

STEPS: Final = 4
"""Points of a curve for each doubling of the batch."""

ROOF: Final = "all operators at their roofs"


def make(
    of: LanguageModel, estimates: Sequence[Estimate], machine: Machine, stacks: Sequence[str]
) -> model.Page:
    """A panel of decode for each precision and context: roofs, their sum, what was measured."""
    decodes = [one for one in estimates if one.step.phase == "decode"]
    groups = [list(group) for _, group in groupby(decodes, key=_panel_of)]
    styles = _styles(stacks)
    cells = grid(len(groups), apart=0.78, above=0.56, tall=3.4, first=-0.26)
    panels = [
        _panel(of, group, machine, cell, styles) for group, cell in zip(groups, cells, strict=True)
    ]
    legend = [model.Key(name, style.colour, style.marker, "-") for name, style in styles.items()]
    body = max(one.cell.top + one.cell.height for one in panels) + 0.5
    title = f"{machine.name} — {of.name}: tokens per second by batch"
    return model.Page(
        title, legend, panels, _notes(of, decodes, stacks), body, page_width(len(panels))
    )


def _styles(stacks: Sequence[str]) -> dict[str, KernelStyle]:
    """A hue each."""
    palette = theme().palette
    looks = zip((ROOF, *stacks), palette.shades, MARKERS, strict=False)
    return {
        name: KernelStyle(shades[0], marker, readable(shades[0], palette.background))
        for name, shades, marker in looks
    }


def _panel_of(one: Estimate) -> tuple[object, ...]:
    return one.step.precision, one.step.context


def _notes(of: LanguageModel, estimates: Sequence[Estimate], stacks: Sequence[str]) -> list[str]:
    step, notes = estimates[0].step, []
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
    curve = [estimate.estimate(of, replace(step, batch=batch), machine) for batch in batches]
    roofs = _roofs(of, step, machine, batches)
    points = [(float(one.step.batch), one.tokens_per_s(one.roof_us)) for one in curve]
    limits = [y for line in roofs.values() for _, y in line if y <= 30 * points[-1][1]]
    x = model.log_axis("Batch", batches, cell.width, 0.15, 0.2)
    y = model.log_axis("Tokens/s", [*limits, *(y for _, y in points)], cell.height, 0.2, 0.35)
    title = f"decode {step.precision.title}, context {step.context}"
    x = replace(x, titled=cell.lowest)
    panel = model.Panel(cell, x, replace(y, titled=not cell.column), title)
    for name, line in roofs.items():
        _draw_roof(panel, name, line, machine)
    colour = styles[ROOF].colour
    panel.lines.append(model.Line(points, colour, 0.6 * theme().line))
    _draw_marks(panel, group, styles)
    ridge = estimate.ridge_batch(of, step, machine.roofline) or 0
    for batch, text in ((most, f"{scaled(machine.memory or 0)}B are full"), (ridge, "ridge")):
        if 1 <= batch <= batches[-1]:
            _draw_limit(panel, batch, f"{text}: {batch}")
    return panel


def _batches(most: int) -> list[int]:
    """From 1 to ``most``, evenly on a logarithmic axis."""
    found, i = [1], 0
    while found[-1] < most:
        i += 1
        found.append(min(most, max(found[-1] + 1, ceil(2 ** (i / STEPS)))))
    return found


def _roofs(
    of: LanguageModel, step: ModelStep, machine: Machine, batches: Sequence[int]
) -> dict[str, list[model.Point]]:
    """Tokens per second if there were only FLOPs, and if there were only bytes of memory."""
    compute, memory = [], []
    for batch in batches:
        one = replace(step, batch=batch)
        flops_s, bytes_s = estimate.seconds(operators(of, one), machine.roofline)
        compute.append((float(batch), one.tokens / flops_s))
        memory.append((float(batch), one.tokens / bytes_s))
    return {"compute": compute, "memory": memory}


def _draw_roof(
    panel: model.Panel, name: str, line: Sequence[model.Point], machine: Machine
) -> None:
    top = panel.y.limits[1]
    seen = [point for point in line if point[1] <= top]
    if len(seen) < 2:
        return
    roofline = machine.roofline
    ceiling = roofline.bandwidth()
    provenance = ceiling.provenance if ceiling else "derived"
    colour = theme().roofs[0]
    panel.lines.append(model.roof(seen, provenance, colour))
    spots = [
        spot for point in seen[:: max(1, len(seen) // 12)] for spot in model.around(*point, "left")
    ]
    panel.labels.append(model.Label(f"{name} roof", spots, colour, required=True))


def _draw_marks(
    panel: model.Panel, group: Sequence[Estimate], styles: Mapping[str, KernelStyle]
) -> None:
    """The batches that were asked for: at the roof, and by stack where something was measured."""
    for name, style in styles.items():
        points = []
        for one in group:
            us = one.roof_us if name == ROOF else one.us(name)
            if name != ROOF and len(one.unmeasured(name)) == len(one.operators):
                continue
            points.append((float(one.step.batch), one.tokens_per_s(us)))
        if points:
            dash: Dash = "" if name == ROOF else "-"
            panel.marks.append(
                model.Marks(
                    points,
                    style.colour,
                    style.marker,
                    theme().marker,
                    dash=dash,
                    width=theme().line,
                )
            )


def _draw_limit(panel: model.Panel, batch: int, text: str) -> None:
    """A batch at which something changes."""
    low, high = panel.y.limits
    panel.lines.append(model.Line([(batch, low), (batch, high)], theme().muted, 0.8, (0, (1, 2))))
    angle, spots = panel.along((batch, low), (batch, panel.y.value(0.6)))
    label = model.Label(text, spots, theme().muted, theme().small, rotation=angle)
    panel.labels.append(label)
