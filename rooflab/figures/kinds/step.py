"""A bar of a program's step: the part at the roofs, and what the rest is; below it the groups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.figures import model, programs
from rooflab.figures.page import time_panel
from rooflab.figures.programs import IDLE, TAKES, TimedGroup
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.roofline import COMPUTE
from rooflab.runs.program import Program, is_program

LONGEST: Final = 21
"""Characters of a group's name."""

GROUPS: Final = (0.0, 0.42)
WHOLE: Final = (0.64, 1.06)
TOP: Final = 1.42
"""Inches above the names: the ends of both bars, and of the panel."""

AT_ROOFS: Final = (COMPUTE, programs.MEMORY)

LEAST: Final = 0.003
"""A part of the time that has room for a line before the next group."""


def make(wanted: Wanted) -> model.Page:
    """Of one run."""
    [found], [run] = programs.chosen(wanted), wanted.runs
    found = programs.once(found)
    parts = grouped((pair for one in found for pair in one.parts), lambda pair: pair[0])
    times = {part: sum(us for _, us in parts.get(part, ())) for part in TAKES}
    sums = {part: us for part, us in times.items() if us}
    total = sum(sums.values())
    whole = max(total, programs.step_us(run))
    below = 0.1 + 0.71 * (0.61 * LONGEST + 1.6) * theme().small / 72
    what = "whole" if Program.of(run).whole else "step"
    ticks = [((WHOLE[0] + WHOLE[1]) / 2, what), ((GROUPS[0] + GROUPS[1]) / 2, "groups")]
    y = model.Axis((-below, TOP), log=False, ticks=ticks, grid=False)
    panel, scale = time_panel("Time ({})", whole, below + TOP, y)
    _draw_step(panel, sums, scale, total)
    _draw_groups(panel, found, scale)
    legend = [
        model.Key(f"{text}: {programs.percent(sums[part] / total)}", programs.colour(part))
        for part, text in TAKES.items()
        if part in sums
    ]
    notes = _overlap(programs.step_us(run), total)
    return programs.page([run], "where the time goes", legend, [panel], notes, wide=True)


def _draw_step(panel: model.Panel, sums: dict[str, float], scale: float, total: float) -> None:
    """The whole bar, and above it a bracket over what is at the roofs."""
    low, high = WHOLE
    x = roofs = 0.0
    for part, us in sums.items():
        box = (x / scale, low, us / scale, high - low)
        panel.bars.append(model.Bars([box], *programs.look(part)))
        x += us
        if part in AT_ROOFS:
            roofs = x
    if roofs:
        top = high + 0.08
        points = [(0, high), (0, top), (roofs / scale, top), (roofs / scale, high)]
        panel.lines.append(model.Line(points, theme().ink, 0.8))
        text = f"at the roofs: {programs.time_text(roofs)}, {programs.percent(roofs / total)}"
        spots = [
            model.Spot(roofs / scale / 2, top, 0, 2, va="bottom"),
            model.Spot(0, top, 2, 2, "left", "bottom"),
        ]
        panel.labels.append(model.Label(text, spots, theme().ink, required=True))


def _draw_groups(panel: model.Panel, found: Sequence[TimedGroup], scale: float) -> None:
    """A segment for each, those of one kind together; the names slant down from them."""
    low, high = GROUPS
    boxes: dict[str, list[tuple[float, float, float, float]]] = defaultdict(list)
    ends: list[model.DataPoint] = []
    x, whole = 0.0, sum(one.us for one in found)
    for group in _in_order(found):
        start = x
        for part, us in group.parts:
            boxes[part].append((x / scale, low, us / scale, high - low))
            x += us
        if group.us > LEAST * whole and x < 0.999 * whole:
            ends += [(x / scale, low), (x / scale, high), model.GAP]
        panel.labels += _named(panel, group, (start + group.us / 2) / scale, whole)
    panel.bars += [model.Bars(some, *programs.look(part)) for part, some in boxes.items()]
    if ends:
        panel.lines.append(model.Line(ends, theme().palette.background, 1.2, avoided=False))


def _in_order(found: Sequence[TimedGroup]) -> list[TimedGroup]:
    """By roof, the longest first; what is no launch is at the end."""
    unrated = (programs.UNRATED, programs.UNKNOWN)
    order = [COMPUTE, programs.MEMORY, *unrated, programs.COPIES, IDLE]

    def rank(group: TimedGroup) -> int:
        return order.index(group.roof if group.binds == programs.LATENCY else group.binds)

    return sorted(found, key=lambda one: (rank(one), -one.us))


def _named(panel: model.Panel, group: TimedGroup, x: float, whole: float) -> Iterator[model.Label]:
    if group.us * 72 * panel.cell.width / whole < theme().small:
        return
    name = group.name if len(group.name) <= LONGEST else group.shortened(LONGEST - 3)
    spots = [model.Spot(x, GROUPS[0] - 0.03, dx, -2, "left", "center") for dx in (0, 2, -2, 4, -4)]
    yield model.Label(name, spots, theme().ink, theme().small, rotation=-45)


def _overlap(step_us: float, total_us: float) -> Iterator[str]:
    over = total_us - step_us
    if step_us and over > 0.005 * step_us:
        yield f"Kernels overlap: they take {programs.time_text(over)} more than the step."


KIND: Final = model.Kind(
    "step",
    8,
    make,
    "step",
    "Draw where the time of a program's step goes.",
    suits=lambda run: is_program(run.measurements) and bool(programs.groups(run)),
)
