"""A bar of the step for each rank of a program: kernels, collectives, what it waits, idle time."""

from __future__ import annotations

from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model, programs
from rooflab.figures.page import time_panel
from rooflab.figures.selection import Wanted
from rooflab.model.roofline import COMPUTE
from rooflab.runs.ranks import Ranks, RankStep, of_runs

KERNELS: Final = "kernels and copies"
COLLECTIVES: Final = "collectives beside no kernel"
WAITS: Final = "waiting in collectives"
IDLE: Final = "idle"

LOOKS: Final = {
    KERNELS: COMPUTE,
    COLLECTIVES: programs.COPIES,
    WAITS: programs.LATENCY,
    IDLE: programs.IDLE,
}
"""The parts of a program's step that have the same colours."""

EACH: Final = 0.3
"""Inches of a rank."""

SHOWN: Final = 24
"""Ranks: of more, those that are waited for most."""


def make(wanted: Wanted) -> model.Page:
    """Of the runs of ranks."""
    found = of_runs(wanted.runs)
    if not found:
        raise UsageError("--ranks draws the ranks of one launch: rooflab plot FOLDER")
    ranks = sorted(found.most_waited_for(SHOWN), key=lambda one: one.number)
    longest = max(one.step_us for one in ranks)
    height = EACH * len(ranks) + 0.1
    rows = {one.number: height - 0.05 - EACH * (i + 0.5) for i, one in enumerate(ranks)}
    ticks = [(y, f"rank {number}") for number, y in rows.items()]
    y = model.Axis((0, height), log=False, ticks=ticks, grid=False)
    panel, scale = time_panel("Time of a step ({})", longest, height, y)
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for rank in ranks:
        x, low = 0.0, rows[rank.number] - 0.37 * EACH
        for part, us in parts(found, rank).items():
            boxes.setdefault(part, []).append((x / scale, low, us / scale, 0.74 * EACH))
            x += us
    panel.bars += [
        model.Bars(some, *programs.look(LOOKS[part])) for part, some in boxes.items() if some
    ]
    legend = [model.Key(part, programs.colour(LOOKS[part])) for part in boxes]
    what, less = f"a step of {len(found.ranks)} ranks", len(found.ranks) - len(ranks)
    notes = [f"{less} ranks that are waited for less are left out."] * bool(less)
    return programs.page([found.slowest.run], what, legend, [panel], notes, wide=True)


def parts(found: Ranks, rank: RankStep) -> dict[str, float]:
    """Microseconds of each part of a rank's step."""
    idle = min(rank.idle_us, rank.step_us)
    alone = min(rank.exposed_us, rank.step_us - idle)
    waits = min(found.waits_us(rank.number), alone)
    return {
        KERNELS: rank.step_us - idle - alone,
        COLLECTIVES: alone - waits,
        WAITS: waits,
        IDLE: idle,
    }


KIND: Final = model.Kind(
    "ranks", 10, make, "ranks", "Draw a step of each rank of a program: the folder's, or runs'."
)
