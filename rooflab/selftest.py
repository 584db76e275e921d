"""The differences that this machine can resolve: its timer, clocks, and a kernel against itself.

The ``judge_…`` functions and ``verdict`` are pure; the rest measures and passes plain values to
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import cycle, islice
from math import ceil
from statistics import median
from time import perf_counter
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import MAX_BATCH, Device, Launch, Reading
from rooflab.errors import KernelError, UsageError
from rooflab.kernels.base import Kernel
from rooflab.kernels.registry import Registry
from rooflab.measure.buffers import allocate, flusher, rotate
from rooflab.measure.protocol import SUSPECT_PERCENT, Protocol, empty_launch_us
from rooflab.measure.statistics import Summary
from rooflab.measure.telemetry import HARDWARE
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads.gemm import Gemm

SAME_PERCENT: Final = 0.5
WIDE_PERCENT: Final = 5.0
"""A wider interval (half-width) overlaps almost anything and is no evidence."""
TOUCHING_PERCENT: Final = 0.1
"""Intervals no further apart than this overlap: a GPU's events have a resolution, and if all rounds
have the same time the interval has no width."""

FLOOR_US: Final = 10.0
CLOCK_PERCENT: Final = 10.0
CLOCK_S: Final = 3.0

LARGE: Final = Gemm(m=4096, n=4096, k=4096, precision=PRECISIONS["fp16"])
MEDIUM: Final = Gemm(m=1024, n=1024, k=1024)
SMALL: Final = Gemm(m=512, n=512, k=512)
TINY: Final = Gemm(m=64, n=64, k=64)
SHORT: Final = Gemm(m=256, n=256, k=256)

TIMING: Final = Timing(energy_s=0, max_s=3)

QUIET: Final = "close other programs that use this device, then repeat"


@dataclass(frozen=True, slots=True)
class Property:
    """One property of the machine, measured and judged.

    ``ok`` is None if there was nothing to judge; ``remedy`` is what to do if it is False.
    ``resolution`` is the smallest difference in percent that an A/A check can resolve.
    """

    name: str
    found: str
    limit: str = ""
    ok: bool | None = None
    remedy: str = ""
    resolution: float | None = None


# --- judging -----------------------------------------------------------------------------------


def judge_gate(gated: bool, gated_us: float, paced_us: float) -> Property:
    """Whether queued launches ran back to back, not at the pace of the host."""
    ok = gated and gated_us < paced_us
    found = f"a short kernel takes {gated_us:.1f} µs queued, {paced_us:.1f} µs paced by the host"
    if not gated:
        found = f"launches did not wait behind the gate; paced by the host: {paced_us:.1f} µs"
    remedy = "unset CUDA_LAUNCH_BLOCKING and leave debuggers and profilers, then repeat"
    return Property("gate", found, "queued < paced", ok, remedy)


def judge_floor(pair_us: float, batch_us: float, least_us: float) -> Property:
    """Whether the time of an empty launch is small."""
    ok = pair_us <= FLOOR_US
    found = (
        f"an empty launch takes {pair_us:.2f} µs alone, {batch_us:.2f} µs in a batch; "
        f"timed one by one from {least_us:.0f} µs on"
    )
    return Property("timer floor", found, f"{FLOOR_US:g} µs", ok, QUIET)


def judge_clocks(readings: Sequence[Reading]) -> Property:
    """Whether the SM clock was constant under continuous work."""
    clocks = [reading.clock for reading in readings if reading.clock]
    powers = [reading.power_w for reading in readings if reading.power_w is not None]
    if not clocks:
        return Property("clocks", "no sensors")
    spread = 100 * (max(clocks) - min(clocks)) / median(clocks)
    throttled = sorted({reason for r in readings for reason in r.reasons} & HARDWARE)
    capped = 100 * sum("sw_power_cap" in reading.reasons for reading in readings) / len(readings)
    found = f"SM {_range(clocks)} MHz" + (f", {_range(powers)} W" if powers else "")
    found += f", power cap active {capped:.0f} % of the time" if capped else ", no power cap"
    found += f", throttled: {', '.join(throttled)}" if throttled else ""
    # At the power limit the clock follows the load: this is normal operation.
    steady = spread <= CLOCK_PERCENT or capped >= 50
    remedy = "" if steady else "wait until the GPU is idle and cool, then repeat"
    if throttled:
        remedy = "check the GPU's cooling and power supply, then repeat"
    return Property("clocks", found, f"{CLOCK_PERCENT:g} % spread", not remedy, remedy)


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.0f}/{median(values):.0f}/{max(values):.0f}"


def judge_same(name: str, a: Summary, b: Summary) -> Property:
    """Whether a kernel is as fast as itself."""
    shorter = min(a.median, b.median)
    apart = 100 * abs(a.median - b.median) / shorter
    overlap = 100 * max(a.low - b.high, b.low - a.high) / shorter <= TOUCHING_PERCENT
    widest = max(a.half_width_percent, b.half_width_percent)
    ok = apart <= SAME_PERCENT and overlap and widest <= WIDE_PERCENT
    intervals = "overlap" if overlap else "do not overlap"
    found = f"{apart:.2f} % apart; intervals of ±{widest:.2f} % {intervals}"
    limit = f"{SAME_PERCENT:g} %; ±{WIDE_PERCENT:g} %"
    return Property(name, found, limit, ok, QUIET, max(apart, widest))


def judge_cache(rotated_us: float, flushed_us: float) -> Property:
    """Whether rotated operands are as cold as after a flush of the cache."""
    change = 100 * (rotated_us / flushed_us - 1)
    ok = abs(change) <= SUSPECT_PERCENT
    found = f"rotated {rotated_us:.1f} µs, flushed {flushed_us:.1f} µs: {change:+.1f} %"
    return Property("cold cache", found, f"{SUSPECT_PERCENT:g} %", ok, QUIET)


def verdict(checks: Sequence[Property]) -> tuple[bool, str]:
    """Whether all checks passed, with the resolution; or the failed checks and their remedies."""
    wrong = [check for check in checks if check.ok is False]
    if wrong:
        remedies = dict.fromkeys(check.remedy for check in wrong if check.remedy)
        names = ", ".join(check.name for check in wrong)
        return False, f"not fit to compare kernels ({names}): {'; '.join(remedies)}"
    known = [check.resolution for check in checks if check.resolution is not None]
    if not known:
        return False, "not fit to compare kernels: none could be measured (see: rooflab kernels)"
    # Rounded up, and never to zero.
    percent = max(ceil(10 * max(known) - 1e-6), 1) / 10
    return True, f"differences of {percent:.1f} % or more can be resolved here, within one sweep"


# --- measuring ---------------------------------------------------------------------------------


def choose(device: Device, registry: Registry) -> Kernel:
    """The vendor library's GEMM if there is one, else the first kernel that can run."""
    kernels = [
        kernel
        for kernel in registry.all()
        if (kernel.device_kind, kernel.workload) == (device.kind, Gemm.workload)
    ]
    kernels.sort(key=lambda kernel: not kernel.library)
    for kernel in kernels:
        if not kernel.unavailable(device):
            return kernel
    raise UsageError(f"no kernel can run on {device.id} (see: rooflab kernels)")


def run(device: Device, kernel: Kernel, clock_s: float = CLOCK_S) -> Iterator[Property]:
    """Check the timing first, then the clocks, which warms up the device for the rest."""
    problems = _problems(device, kernel)
    gate = _guarded("gate", partial(_gate, device, kernel))
    yield gate
    if gate.ok is False:
        return  # behind a broken gate every launch would wait for the gate's time limit
    yield _guarded("timer floor", partial(_floor, device))
    yield _guarded("clocks", partial(_clocks, device, kernel, problems[-1], clock_s))
    for problem in problems:
        name = f"A/A {problem.precision.name} {problem.size}"
        yield _guarded(name, partial(_same, device, kernel, problem, name))
    yield _guarded("cold cache", partial(_cache, device, kernel, problems[0]))


def _problems(device: Device, kernel: Kernel) -> list[Problem]:
    """The problems of the A/A checks: large ones on devices that compute them fast."""
    if device.stream is not None:
        return [MEDIUM] if kernel.refuses(LARGE) else [MEDIUM, LARGE]
    return [SMALL if kernel.library else TINY]


def _guarded(name: str, check: Callable[[], Property]) -> Property:
    """The result of ``check``; an exception becomes a failed check."""
    try:
        return check()
    except (KernelError, MemoryError) as error:
        first = (str(error) or type(error).__name__).splitlines()[0]
        return Property(name, first, "", False, "see: rooflab doctor")


def _gate(device: Device, kernel: Kernel) -> Property:
    if device.stream is None:
        return Property("gate", "not needed")
    operands = allocate(device, SHORT, 0)
    launch = kernel.prepare(device, operands)
    _load(device, launch)
    queued = device.time([launch] * 32)
    paced_us = []
    for _ in range(32):
        started = perf_counter()
        launch()
        device.synchronize()
        paced_us.append((perf_counter() - started) * 1e6)
    return judge_gate(queued.gated, median(queued.times_us), median(paced_us))


def _load(device: Device, launch: Launch) -> None:
    """The first launch of a kernel loads its code, which could wait for a closed gate."""
    launch()
    device.synchronize()


def _floor(device: Device) -> Property:
    pairs = device.time([device.nothing] * 32).times_us
    return judge_floor(median(pairs), empty_launch_us(device), TIMING.batch_us)


def _clocks(device: Device, kernel: Kernel, problem: Problem, clock_s: float) -> Property:
    operands = allocate(device, problem, 0)
    launch = kernel.prepare(device, operands)
    _load(device, launch)
    first = device.time([launch, launch])
    if first.reading is None:
        return judge_clocks([])
    count = max(1, min(MAX_BATCH, ceil(50_000 / max(first.times_us[1], 1.0))))
    readings: list[Reading] = []
    started, elapsed = perf_counter(), -1.0
    while elapsed < clock_s * 4 / 3:
        reading = device.time_batch([launch] * count).reading
        elapsed = perf_counter() - started
        if reading and elapsed >= clock_s / 3:  # before, the clock may still rise from idle
            readings.append(reading)
    return judge_clocks(readings)


def _same(device: Device, kernel: Kernel, problem: Problem, name: str) -> Property:
    protocol = Protocol(device, SweepConfig(timing=TIMING))
    a, b = protocol.measure(problem, [replace(kernel, name=each) for each in "AB"])
    if a.summary and b.summary:
        return judge_same(name, a.summary, b.summary)
    failed = b if a.summary else a
    ok = None if failed.status == "skipped" else False
    return Property(name, f"{failed.status}: {failed.reason}", "", ok, "see: rooflab doctor")


def _cache(device: Device, kernel: Kernel, problem: Problem) -> Property:
    rotation = rotate(device, problem, 0, cold=True)
    if device.evicts:
        return Property("cold cache", "not compared: operands are dropped from caches one by one")
    if not device.last_level_cache_bytes() or rotation.flush:
        reason = "too little memory to rotate" if rotation.flush else "cache of unknown size"
        return Property("cold cache", f"not compared: {reason}")
    launches = [kernel.prepare(device, operands) for operands in rotation.copies]
    device.time(launches)
    turns, flush = cycle(launches), flusher(device)
    rotated: list[float] = []
    flushed: list[float] = []
    for times, before in [(rotated, None), (flushed, flush)] * 5:  # drift affects both equally
        device.quiesce(next(turns))
        times += device.time(list(islice(turns, 8)), before).times_us
    return judge_cache(median(rotated), median(flushed))
