"""Estimates of a sweep's duration, from its settings, its problems and the roofs. Pure.

What a row costs depends little on the kernel, unless a launch is slow: then it is a few launches.
"""

from __future__ import annotations

from functools import cache
from math import inf
from typing import Final

from rooflab.config import Timing
from rooflab.devices.base import Costs
from rooflab.devices.registry import class_of
from rooflab.kernels.base import Kernel
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.planning import Plan

SHARE: Final = 0.15
"""Of its roof, for a kernel of which nothing is known; a library reaches more."""

LIBRARY_SHARE: Final = 0.6

CORRECTED: Final = 0.1
"""A share that differs by more from the last one corrects what is left."""

TELLING_US: Final = 100.0
"""What takes less may be limited by the launch, and says nothing about larger problems."""

AS_ESTIMATED_S: Final = 20.0
"""The rest is expected to be as much slower than estimated as what was measured, with so many
seconds more that were as estimated."""

CHECKS: Final = 3
"""Times that results are compared with references; each passes over the operands several times."""

PASSES: Final = 8
LARGE_FLOP: Final = 1e11
"""Smaller problems do not bring a GPU to its power limit, nor do cores for vectors."""


@cache
def _unknown(costs: Costs) -> Roofline:
    """Where no roof is known yet: any GPU, some cores of a CPU."""
    return Roofline(
        (
            *(Ceiling("compute", name, costs.flops, "derived", "a guess") for name in PRECISIONS),
            Ceiling("bandwidth", "DRAM", costs.bytes_per_s, "derived", "a guess"),
        )
    )


def launch_s(
    problem: Problem, kernel: Kernel, roofline: Roofline, share: float | None = None
) -> float:
    """Seconds of a launch that reaches this share of its roof."""
    share = share or (LIBRARY_SHARE if kernel.library else SHARE)
    for known in (roofline, _unknown(class_of(kernel.device_kind).costs)):
        if roof := known.of(problem):
            return roof.us * 1e-6 / share
    return 0.0


def row_s(
    problem: Problem,
    kernel: Kernel,
    timing: Timing,
    roofline: Roofline,
    share: float | None = None,
) -> float:
    """Seconds of one kernel on one problem."""
    costs = class_of(kernel.device_kind).costs
    launch = launch_s(problem, kernel, roofline, share)
    checks = CHECKS * (launch + PASSES * problem.operand_bytes / costs.checked_bytes_per_s)
    if launch >= timing.slow_s:
        return costs.row_s + checks + timing.slow_rounds * launch
    rounds = timing.min_rounds if costs.steady else timing.max_rounds
    each = max(launch, min(timing.round_s, timing.round_samples * max(launch, 1e-4)))
    warm = timing.warmup_s
    if costs.steady:
        warm = max(warm, timing.energy_s)
        if problem.flops >= LARGE_FLOP and problem.precision.tensor_cores:
            each += timing.own_clock_s
    return costs.row_s + checks + warm + min(rounds * each, timing.max_s)


class _Pace:
    """How many times as long as estimated rows take. Those of a problem come together."""

    def __init__(self) -> None:
        self.factor = 1.0
        self._problem: object = None
        self._took_s = self._estimated_s = 0.0

    def measured(self, row: Measurement, took_s: float, estimated_s: float) -> None:
        """A row was measured, ``took_s`` after all began."""
        if row.problem.key != self._problem:  # all of the last one have come
            took, estimated = self._took_s, self._estimated_s
            self.factor = (AS_ESTIMATED_S + took) / (AS_ESTIMATED_S + estimated)
        self._problem, self._took_s = row.problem.key, took_s
        self._estimated_s += estimated_s


class Left:
    """The rows of a plan that are not done, and how long they will take.

    Problems above ``memory`` bytes are skipped, which takes no time.
    """

    def __init__(self, plan: Plan, roofline: Roofline, memory: float | None = None) -> None:
        self._timing, self._roofline = plan.config.timing, roofline
        self._rows: dict[tuple[object, ...], tuple[Problem, Kernel]] = {
            (kernel.name, *step.problem.key): (step.problem, kernel)
            for step in plan.steps
            for kernel in step.kernels
            if not step.problem.record.resident or step.problem.operand_bytes <= (memory or inf)
        }
        self._each = {key: self._row_s(key, None) for key in self._rows}
        self._shares: dict[tuple[str, str], float] = {}
        self._pace = _Pace()

    def _row_s(self, key: tuple[object, ...], share: float | None) -> float:
        problem, kernel = self._rows[key]
        return row_s(problem, kernel, self._timing, self._roofline, share)

    def done(self, row: Measurement, took_s: float | None = None) -> None:
        """A row is known, and with it its kernel's share of the roof.

        ``took_s``: seconds in which it and all before it were measured; None if they were not now.
        """
        expected_s = self._each.pop(row.key, 0.0)
        if row.roof_percent and (row.time_us or 0) >= TELLING_US:
            share = min(1.0, row.roof_percent / 100)
            self._correct(row, share)
            if row.key in self._rows:
                expected_s = self._row_s(row.key, share)
        if took_s is not None and row.time_us:
            self._pace.measured(row, took_s, expected_s)

    def _correct(self, row: Measurement, share: float) -> None:
        one = row.kernel, row.problem.workload
        if abs(share / self._shares.get(one, inf) - 1) > CORRECTED:
            self._shares[one] = share
            for key in self._each:
                problem, kernel = self._rows[key]
                if (kernel.name, problem.workload) == one:
                    self._each[key] = self._row_s(key, share)

    @property
    def seconds(self) -> float:
        """Of all that are left."""
        return self._pace.factor * sum(self._each.values())


def total_s(
    plan: Plan, kind: str, roofline: Roofline, *, known: bool, memory: float | None = None
) -> float:
    """Seconds of the whole sweep; ``known`` whether an earlier run has measured the levels."""
    costs = class_of(kind).costs
    start = costs.start_s + (0.0 if known else costs.levels_s)
    rows = Left(plan, roofline, memory).seconds
    return start + min(rows, plan.config.max_time_s or rows)


def text(seconds: float) -> str:
    """Such as ``40 s``, ``3 min``, ``2.5 h``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
