"""A bar of the step for each rank of a program: kernels, collectives, what it waits, idle time."""

from __future__ import annotations

from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model, programs
from rooflab.figures.page import BELOW, LEFT, RIGHT
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.roofline import COMPUTE
from rooflab.runs.ranks import Ranks, RankStep, of_runs

KERNELS: Final = "kernels and copies"
COLLECTIVES: Final = "collectives beside no kernel"
WAITS: Final = "waiting in collectives"
IDLE: Final = "idle"

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
    name, scale = ("ms", 1e3) if longest >= 1e3 else ("µs", 1.0)
    height, width = EACH * len(ranks) + 0.1, theme().width
    rows = {one.number: height - 0.05 - EACH * (i + 0.5) for i, one in enumerate(ranks)}
    panel = model.Panel(
        model.Cell(0, 0, LEFT, 0.06, width - LEFT - RIGHT, height),
        model.Axis((0, longest / scale), f"Time of a step ({name})", log=False, grid=False),
        model.Axis(
            (0, height),
            log=False,
            ticks=[(y, f"rank {number}") for number, y in rows.items()],
            grid=False,
        ),
    )
    boxes: dict[str, list[tuple[float, float, float, float]]] = {}
    for rank in ranks:
        x, low = 0.0, rows[rank.number] - 0.37 * EACH
        for part, us in parts(found, rank).items():
            boxes.setdefault(part, []).append((x / scale, low, us / scale, 0.74 * EACH))
            x += us
    panel.bars += [model.Bars(some, *_look(part)) for part, some in boxes.items() if some]
    legend = [model.Key(part, _look(part)[0]) for part in boxes]
    title = programs.title([found.slowest.run], f"a step of {len(found.ranks)} ranks")
    notes = programs.notes([found.slowest.run], _notes(found, ranks))
    return model.Page(title, legend, [panel], notes, height + BELOW + 0.06, width)


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


def _look(part: str) -> tuple[str, str]:
    """Colour and edge."""
    background = theme().palette.background
    colours = {
        KERNELS: programs.colour(COMPUTE),
        COLLECTIVES: programs.colour(programs.COPIES),
        WAITS: programs.colour(programs.LATENCY),
    }
    return (
        (colours[part], background) if part in colours else (programs.colour(IDLE), theme().muted)
    )


def _notes(found: Ranks, shown: list[RankStep]) -> str:
    less = len(found.ranks) - len(shown)
    return f"{less} ranks that are waited for less are left out." if less else ""


KIND: Final = model.Kind(
    "ranks", 10, make, "ranks", "Draw a step of each rank of a program: the folder's, or runs'."
)
