"""The warm-up of a run: launches until the clock, and at the power limit the power, are steady."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from statistics import fmean
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device, Launch, Reading
from rooflab.errors import DeviceLost, KernelError
from rooflab.kernels.base import Kernel
from rooflab.measure import telemetry
from rooflab.measure.buffers import allocate
from rooflab.measure.protocol import Protocol, empty_launch_us
from rooflab.measure.settings import Own
from rooflab.model.problem import Problem

WINDOW_S: Final = 0.15
WINDOWS: Final = 3
STEADY_PERCENT: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Window:
    """Means of some readings: the clock in MHz, and the power."""

    clock: float
    power_w: float
    capped: bool = False

    @classmethod
    def of(cls, readings: Sequence[Reading]) -> _Window:
        """The means of readings that have a clock."""
        clocks = [one.clock for one in readings if one.clock]
        powers = [one.power_w or 0.0 for one in readings]
        return cls(fmean(clocks), fmean(powers), telemetry.capped(readings))


@dataclass(slots=True)
class _Able:
    """A kernel, its own settings of the process, its launch, and how long that takes."""

    kernel: Kernel
    own: Own
    launch: Launch = field(default=lambda: None)
    launch_us: float = inf

    @contextmanager
    def guarded(self, protocol: Protocol) -> Iterator[None]:
        """What it sets meanwhile holds for no other kernel, and a failure is told by its row.

        Raises ``DeviceLost`` if it has spoiled the device, or the process for others.
        """
        trusted = not self.kernel.untrusted
        try:
            with protocol.settings.of(self.own, trusted=trusted):
                yield
        except BaseException:  # a kernel's code may raise anything
            pass
        try:
            protocol.device.synchronize()
        except KernelError as error:
            raise DeviceLost(self.kernel.name, str(error)) from error
        if self.own.stays:
            raise DeviceLost(self.kernel.name, self.own.text)
        if trusted:
            protocol.settings.accept()


def probe(device: Device, seconds: float) -> float:
    """Time of an empty launch in this process, µs, after so many seconds of them."""
    started = perf_counter()
    while perf_counter() - started < seconds:
        empty_launch_us(device)
    return empty_launch_us(device)


def warm_up(protocol: Protocol, problem: Problem, kernels: Sequence[Kernel]) -> dict[str, Any]:
    """Run the fastest of ``kernels`` until three windows agree within 1 %: in their clock, and at
    the power limit in their power, which sensors average over a second.

    Returns seconds and the last clock and power, for the manifest. Returns nothing if the device
    has no sensors, because then nothing shows when it is warm. A kernel that fails is ignored here;
    its own row reports it.
    """
    device, limit_s = protocol.device, protocol.config.timing.device_warmup_s
    if limit_s == 0 or not _clock(device):
        return {}
    able = _able(protocol, problem, kernels)
    if not able:
        return {}
    fastest = min(able, key=lambda one: one.launch_us)
    started = perf_counter()
    windows: list[_Window] = []
    with fastest.guarded(protocol):
        windows = _until_steady(device, fastest, limit_s)
    last = windows[-1] if windows else _Window(0.0, 0.0)
    return {
        "seconds": round(perf_counter() - started, 1),
        "steady": _steady(windows),
        "sm_mhz": round(last.clock, 1),
        "power_w": round(last.power_w, 1),
    }


def _clock(device: Device) -> float | None:
    """The SM clock, None if the device has no sensor for it."""
    reading = device.time([device.nothing]).reading
    return reading.clock if reading else None


def _able(protocol: Protocol, problem: Problem, kernels: Sequence[Kernel]) -> list[_Able]:
    """The kernels that run, each with the time of a launch."""
    device = protocol.device
    operands = allocate(device, problem, protocol.config.seed, protocol.config.fill)
    found: list[_Able] = []
    protocol.settings.accept()
    for kernel in kernels:
        protocol.progress(kernel.name, "warming up the device with")
        one = _Able(kernel, protocol.settings.loaded.get(kernel.id, Own()).copy())
        with one.guarded(protocol):
            if kernel.refuses(problem):
                continue
            one.launch = kernel.prepare(device, operands)
            one.launch()  # loads its code, which could wait for a closed gate
            device.synchronize()
            one.launch_us = max(device.time([one.launch]).times_us[0], 0.1)
            found.append(one)
    return found


def _until_steady(device: Device, one: _Able, limit_s: float) -> list[_Window]:
    count = max(1, min(100, int(WINDOW_S * 1e6 / 10 / one.launch_us)))
    started = perf_counter()
    windows: list[_Window] = []
    while (elapsed := perf_counter() - started) < limit_s and not _steady(windows):
        readings: list[Reading] = []
        while perf_counter() - started < elapsed + WINDOW_S:
            reading = device.time([one.launch] * count).reading
            readings += [reading] if reading and reading.clock else []
        if readings:
            windows.append(_Window.of(readings))
    return windows


def _steady(windows: Sequence[_Window]) -> bool:
    """Whether the last windows agree."""
    last = windows[-WINDOWS:]
    if len(last) < WINDOWS:
        return False
    clocks, powers = [one.clock for one in last], [one.power_w for one in last]
    return _agree(clocks) and (_agree(powers) or not any(one.capped for one in last))


def _agree(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= STEADY_PERCENT / 100 * max(values)
