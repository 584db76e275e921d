"""The warm-up of a run: launches until clock and power are steady."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Any, Final

from rooflab.device import Device
from rooflab.errors import DeviceLost, KernelError
from rooflab.kernels import Kernel, Launch
from rooflab.measure.buffers import allocate
from rooflab.measure.protocol import Protocol, empty_launch_us
from rooflab.model.problem import Problem

WINDOW_S: Final = 0.15
WINDOWS: Final = 3
STEADY_PERCENT: Final = 1.0


def probe(device: Device, seconds: float) -> float:
    """Time of an empty launch in this process, µs, after so many seconds of them."""
    started = perf_counter()
    while perf_counter() - started < seconds:
        empty_launch_us(device)
    return empty_launch_us(device)


def warm_up(protocol: Protocol, problem: Problem, kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Run the fastest of ``kernels`` until three windows agree within 1 %.

    Returns seconds and the last clock and power, for the manifest. Returns nothing if the device
    has no sensors, because then nothing shows when it is warm. A kernel that fails is ignored here;
    its own row reports it.
    """
    device, limit_s = protocol.device, protocol.config.timing.device_warmup_s
    if limit_s == 0 or not _clock(device):
        return {}
    launch_us, launch = _fastest(protocol, problem, kernels)
    if launch is None:
        return {}
    count = max(1, min(100, int(WINDOW_S * 1e6 / 10 / launch_us)))
    started = perf_counter()
    windows: list[tuple[float, float]] = []
    while (elapsed := perf_counter() - started) < limit_s and not _steady(windows):
        clocks, powers = [], []
        while perf_counter() - started < elapsed + WINDOW_S:
            reading = device.time([launch] * count).reading
            if reading is not None and reading.clock:
                clocks.append(reading.clock)
                powers.append(reading.power_w or 0.0)
        if clocks:
            windows.append((sum(clocks) / len(clocks), sum(powers) / len(powers)))
    clock, power = windows[-1] if windows else (0.0, 0.0)
    return {
        "seconds": round(perf_counter() - started, 1),
        "steady": _steady(windows),
        "sm_mhz": round(clock, 1),
        "power_w": round(power, 1),
    }


def _clock(device: Device) -> float | None:
    """The SM clock, None if the device has no sensor for it."""
    reading = device.time([device.nothing]).reading
    return reading.clock if reading else None


def _fastest(
    protocol: Protocol, problem: Problem, kernels: Sequence[Kernel]
) -> tuple[float, Launch | None]:
    """The fastest kernel's time, µs, and its launch; None if none runs."""
    device = protocol.device
    operands = allocate(device, problem, protocol.config.seed, protocol.config.fill)
    found: list[tuple[float, Launch]] = []
    for kernel in kernels:
        if kernel.refuses(problem):
            continue
        protocol.progress(kernel.name, "warming up the device with")
        with suppress(Exception):  # a kernel's code may raise anything
            launch = kernel.prepare(device, operands)
            launch()  # loads its code, which could wait for a closed gate
            device.synchronize()
            found.append((max(device.time([launch]).times_us[0], 0.1), launch))
        try:
            device.synchronize()
        except KernelError as error:
            raise DeviceLost(kernel.name, str(error)) from error
    return min(found, key=lambda pair: pair[0]) if found else (0.0, None)


def _steady(windows: Sequence[tuple[float, float]]) -> bool:
    """Whether the last windows agree in clock and in power."""
    if len(windows) < WINDOWS:
        return False
    for values in zip(*windows[-WINDOWS:], strict=True):
        if max(values) - min(values) > STEADY_PERCENT / 100 * max(values):
            return False
    return True
