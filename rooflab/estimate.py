"""How long a sweep will take, from its settings and sizes. Pure."""

from __future__ import annotations

from typing import Final

from rooflab.config import Timing
from rooflab.model.problem import Problem

PASSES: Final = 12
"""Passes over the operands that filling, copying and verifying take, about."""

BYTES_PER_S: Final = 5e9
"""Speed of such a pass on a slow device."""

START_S: Final = 0.3
"""Compiling or loading a kernel, and the small things."""


def least_s(problem: Problem, timing: Timing) -> float:
    """Seconds of one kernel on one problem if its rounds agree at once."""
    passes = PASSES * problem.operand_bytes / BYTES_PER_S
    return START_S + passes + timing.warmup_s + timing.min_rounds * timing.round_s


def most_s(problem: Problem, timing: Timing) -> float:
    """Seconds if they never do, and a launch is not slow."""
    extra = timing.energy_s + (timing.max_rounds - timing.min_rounds) * timing.round_s
    return least_s(problem, timing) + min(extra, timing.max_s + timing.energy_s)


def text(seconds: float) -> str:
    """Such as ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
