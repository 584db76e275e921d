"""Estimates of a sweep's duration, from its settings and sizes. Pure."""

from __future__ import annotations

from typing import Final

from rooflab.config import Timing
from rooflab.model.problem import Problem

PASSES: Final = 12
"""Approximate number of passes over the operands for filling, copying and verifying."""

BYTES_PER_S: Final = 5e9
"""Speed of such a pass on a slow device."""

LARGE_FLOP: Final = 1e10
"""Smaller problems do not bring a GPU to its power limit."""

START_S: Final = 0.3
"""Compiling or loading a kernel, and other small costs."""


def least_s(problem: Problem, timing: Timing) -> float:
    """Seconds of one kernel on one problem if it needs the fewest rounds."""
    passes = PASSES * problem.operand_bytes / BYTES_PER_S
    return START_S + passes + timing.warmup_s + timing.min_rounds * timing.round_s


def most_s(problem: Problem, timing: Timing) -> float:
    """Seconds if it needs the most rounds, and a launch is not slow."""
    extra = timing.energy_s + (timing.max_rounds - timing.min_rounds) * timing.round_s
    if problem.flops >= LARGE_FLOP:
        extra += timing.max_rounds * timing.own_clock_s
    return least_s(problem, timing) + min(extra, timing.max_s + timing.energy_s)


def between(least: float, most: float) -> str:
    """Such as ``40 s to 3 min``; one of them if both read the same."""
    return " to ".join(dict.fromkeys((text(least), text(most))))


def text(seconds: float) -> str:
    """Such as ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
