"""The warm-up of a run: work until clock and power stand still."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.measure.buffers import allocate
from rooflab.measure.protocol import Protocol, empty_launch_us
from rooflab.problem import Problem
from rooflab.registry import Kernel

WINDOW_S: Final = 1.0
WINDOWS: Final = 3
STEADY_PERCENT: Final = 1.0

PROBE_S: Final = 0.3


def probe(device: Device) -> float:
    """What an empty launch takes in this process, µs, once the clock has come up from rest."""
    started = perf_counter()
    while perf_counter() - started < PROBE_S:
        empty_launch_us(device)
    return empty_launch_us(device)


def settle(protocol: Protocol, problem: Problem, kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Run the fastest of ``kernels`` until three windows of a second agree within 1 %.

    Returns seconds and the last clock and power, for the manifest; nothing where the device has no
    sensors, as there would be nothing to wait for.
    """
    device, limit_s = protocol.device, protocol.config.timing.settle_s
    if limit_s == 0:
        return {}
    launches = []
    operands = allocate(device, problem, protocol.config.seed, protocol.config.fill)
    for kernel in kernels:
        if not kernel.refuses(problem):
            protocol.progress(kernel.name, "warming up the device with")
            launch = kernel.prepare(device, operands)
            launch()  # loads its code, which could wait for a closed gate
            device.synchronize()
            timed = device.time([launch])
            if timed.reading is None or timed.reading.sm_mhz is None:
                return {}
            launches.append((timed.times_us[0], launch))
    if not launches:
        return {}
    launch_us, launch = min(launches, key=lambda pair: pair[0])
    count = max(1, min(100, int(WINDOW_S * 1e6 / 10 / launch_us)))
    started = perf_counter()
    windows: list[tuple[float, float]] = []
    while (elapsed := perf_counter() - started) < limit_s and not _steady(windows):
        clocks, powers = [], []
        while perf_counter() - started < elapsed + WINDOW_S:
            reading = device.time([launch] * count).reading
            if reading is not None and reading.sm_mhz is not None:
                clocks.append(reading.sm_mhz)
                powers.append(reading.power_w or 0.0)
        windows.append((sum(clocks) / len(clocks), sum(powers) / len(powers)))
    return {
        "seconds": round(perf_counter() - started, 1),
        "steady": _steady(windows),
        "sm_mhz": round(windows[-1][0], 1),
        "power_w": round(windows[-1][1], 1),
    }


def _steady(windows: Sequence[tuple[float, float]]) -> bool:
    """Whether the last windows agree in clock and in power."""
    if len(windows) < WINDOWS:
        return False
    for values in zip(*windows[-WINDOWS:], strict=True):
        if max(values) - min(values) > STEADY_PERCENT / 100 * max(values):
            return False
    return True
