"""What holds a kernel back: evidence in, one verdict out. Pure.

Each resource of the device is a load: the least time that the kernel's work takes there. Its share
is that time over the measured one. The verdict is the first that holds:

1. ``launch``      an empty launch takes LAUNCH_SHARE of the time
2. ``small grid``  there are fewer blocks than multiprocessors
3. the resource    (``compute``, ``dram``, ``l2``, ``l1``) whose share is largest and at least
                   AT_CEILING; ``balanced`` if another one is within BALANCED of it
4. ``wave``        the last wave of blocks leaves multiprocessors idle (efficiency at most
                   WAVE_EFFICIENCY), and without that a resource would be at its ceiling
5. the resource    whose share is at least LEANS: the time depends on it, among other things
6. ``latency``     nothing is busy: warps wait for each other, for memory or for results

Without counters the traffic is the model's compulsory part, a lower bound. A resource at its
ceiling is still proven, because more traffic would only make its share larger. ``latency`` never
is: the issue of instructions and waiting for results are not counted.

After Nsight Compute's SpeedOfLight rules (60 and 80 %) and Yang, Kurth, Williams, "Hierarchical
Roofline Analysis for GPUs", CCPE 32(20), 2020.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from rooflab.model.problem import DRAM, SFU
from rooflab.model.roofline import COMPUTE

LAUNCH: Final = "launch"
SMALL_GRID: Final = "small grid"
WAVE: Final = "wave"
BALANCED_BOUND: Final = "balanced"
LATENCY: Final = "latency"
BOUNDS: Final = (LAUNCH, SMALL_GRID, WAVE, DRAM, "l2", "l1", COMPUTE, SFU, BALANCED_BOUND, LATENCY)

IDLE: Final = (LAUNCH, SMALL_GRID, WAVE, LATENCY)
"""Causes that leave all resources idle for a part of the time."""

LAUNCH_SHARE: Final = 0.3
AT_CEILING: Final = 0.8
BALANCED: Final = 0.1
LEANS: Final = 0.6
WAVE_EFFICIENCY: Final = 0.9

LOW_CLOCK: Final = 0.97
"""Below this part of the nominal clock, or of NVML's, a clock is low."""

PADDING: Final = 1.02
TRAFFIC: Final = 1.5
"""Counted over modelled FLOPs and bytes from which on a flag is set."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a kernel asks of one resource: ``us`` is the least time at its ceiling.

    ``amount`` says how much at which ceiling. ``counted`` is False if the amount is the model's,
    which is a lower bound.
    """

    resource: str
    us: float
    amount: str
    counted: bool


@dataclass(frozen=True, slots=True)
class Grid:
    """Blocks of a launch, multiprocessors, and how many blocks fit on one of them."""

    blocks: int
    multiprocessors: int
    resident: int

    @property
    def per_multiprocessor(self) -> float:
        """Blocks over multiprocessors."""
        return self.blocks / self.multiprocessors

    @property
    def efficiency(self) -> float:
        """The mean over the largest number of blocks of a multiprocessor.

        If all blocks are resident at once, the busiest multiprocessor ends last; otherwise whole
        waves of blocks follow each other.
        """
        waves = self.per_multiprocessor / self.resident
        share = self.per_multiprocessor if waves <= 1 else waves
        return share / ceil(share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What is known of one row. Times in microseconds, clocks in MHz; None is unknown.

    ``capped`` says that NVML reported a power cap. ``executed`` and ``moved`` are the counted over
    the modelled FLOPs and bytes of device memory.
    """

    time_us: float
    launch_us: float | None = None
    loads: tuple[Load, ...] = ()
    grid: Grid | None = None
    clock_mhz: float | None = None
    nominal_mhz: float | None = None
    nvml_mhz: float | None = None
    capped: bool = False
    executed: float | None = None
    moved: float | None = None

    def share(self, load: Load) -> float:
        """The load's time over the measured one."""
        return load.us / self.time_us

    @property
    def ranked(self) -> list[Load]:
        """The loads, the largest first."""
        return sorted(self.loads, key=lambda load: -load.us)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """``bound`` is one of BOUNDS. ``firm`` is False for a resource that the time only leans on.

    ``proven`` is False if counters could show another cause. ``without_us`` is the time without
    this cause, and ``next_limit`` what limits it then, empty if that is unknown. ``reachable_us``
    is the least time for the same work: without idle multiprocessors, waits and launches.
    """

    bound: str
    firm: bool
    proven: bool
    without_us: float
    next_limit: str
    reachable_us: float
    flags: tuple[str, ...]


def diagnose(evidence: Evidence) -> Diagnosis:
    """The verdict on one row; ``time_us`` is above zero."""
    ranked = evidence.ranked
    top = ranked[0] if ranked else None
    share = evidence.share(top) if top else 0.0
    grid, launch_us = evidence.grid, evidence.launch_us or 0.0

    def verdict(
        bound: str, without_us: float, *, firm: bool = True, proven: bool = True
    ) -> Diagnosis:
        others = [load for load in ranked if load.resource != bound]
        least = max((load.us for load in others), default=0.0)
        floor = 0.0 if bound == LAUNCH else launch_us
        best = min(evidence.time_us, max(without_us, least, floor))
        limit = others[0].resource if others and least >= AT_CEILING * best else ""
        limit = limit if least >= floor else LAUNCH
        reachable = best if bound in IDLE or top is None else min(evidence.time_us, top.us)
        return Diagnosis(bound, firm, proven, best, limit, reachable, _flags(evidence))

    if launch_us >= LAUNCH_SHARE * evidence.time_us:
        return verdict(LAUNCH, evidence.time_us - launch_us)
    if grid and grid.blocks < grid.multiprocessors and share < AT_CEILING:
        return verdict(SMALL_GRID, evidence.time_us * grid.per_multiprocessor)
    if top and share >= AT_CEILING:
        second = evidence.share(ranked[1]) if len(ranked) > 1 else 0.0
        if share - second <= BALANCED:
            return verdict(BALANCED_BOUND, top.us)
        return verdict(top.resource, 0.0)
    if grid and grid.efficiency <= WAVE_EFFICIENCY and share >= AT_CEILING * grid.efficiency:
        return verdict(WAVE, evidence.time_us * grid.efficiency)
    if top and share >= LEANS:
        return verdict(top.resource, 0.0, firm=False)
    return verdict(LATENCY, top.us if top else evidence.time_us, proven=False)


def _flags(evidence: Evidence) -> tuple[str, ...]:
    clock = evidence.clock_mhz
    low = {
        name: bool(clock and other and clock < LOW_CLOCK * other)
        for name, other in (("nominal", evidence.nominal_mhz), ("nvml", evidence.nvml_mhz))
    }
    found = {
        "power-capped": evidence.capped and low["nominal"],
        "tensor clock": low["nvml"],
        "padding": (evidence.executed or 0.0) > PADDING,
        "traffic": (evidence.moved or 0.0) > TRAFFIC,
    }
    return tuple(name for name, holds in found.items() if holds)
