"""The power of a device, from its energy counter; its clock at a power limit, which follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import ceil
from statistics import fmean
from threading import Event, Thread
from time import perf_counter
from typing import Final, Self

from rooflab.devices.base import MAX_BATCH, Device, Launch
from rooflab.measure import telemetry

PERIOD_S: Final = 0.002
"""Between two readings of the counter."""

LEAST_INTERVALS: Final = 2
"""Fewer steps of the counter say too little."""

PowerStep = tuple[float, float]
"""Seconds and joules when the counter moved."""


class PowerMeter:
    """Reads an energy counter in a thread of its own, from the beginning of a ``with`` to its end.

    A GPU's counter moves in steps, on an H200 every 0.1 s. The difference of two readings in a
    second is therefore wrong by up to 10 %; the times of the steps tell the power.
    """

    def __init__(self, joules: Callable[[], float | None]) -> None:
        self._joules = joules
        self._steps: list[PowerStep] = []
        self._stop = Event()
        self._thread: Thread | None = None

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()

    def _read(self) -> None:
        last = self._joules()
        while last is not None and not self._stop.wait(PERIOD_S):
            now = self._joules()
            if now is not None and now != last:
                self._steps.append((perf_counter(), now))
                last = now

    @property
    def watts(self) -> float | None:
        """The mean power; None if the counter moved too seldom."""
        return slope(self._steps)

    def above_idle(self, busy_s: float) -> float | None:
        """Watts of work that took ``busy_s`` of the window, and for the rest of it none."""
        steps = self._steps
        rates = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(steps) if b[0] > a[0]]
        if len(rates) < LEAST_INTERVALS or not busy_s:
            return None
        idle_w = min(rates)
        seconds, joules = steps[-1][0] - steps[0][0], steps[-1][1] - steps[0][1]
        return (joules - idle_w * (seconds - busy_s)) / busy_s


def slope(steps: Sequence[PowerStep]) -> float | None:
    """Watts of a counter by least squares; None if it moved too seldom."""
    if len(steps) <= LEAST_INTERVALS:
        return None
    seconds, joules = (fmean(values) for values in zip(*steps, strict=True))
    above = sum((s - seconds) * (j - joules) for s, j in steps)
    below = sum((s - seconds) ** 2 for s, _ in steps)
    return above / below if below else None


QUEUE_US: Final = 20_000.0
"""Work that is queued at a time."""

MINIMUM_US: Final = 0.1
"""The shortest time of a launch; a coarse clock may report less."""


def settle(
    device: Device, launches: Callable[[int], list[Launch]], launch_us: float, seconds: float
) -> bool:
    """Keep the device busy for so long, untimed, until its clock is that of this kernel.

    ``launches`` returns the next ones. Ends early if a launch blocks the gate, which then takes
    seconds. Returns whether the device was at its power limit.
    """
    count = max(1, min(MAX_BATCH, ceil(QUEUE_US / launch_us)))
    left_us, readings = seconds * 1e6, []
    while left_us > 0:
        timed = device.time_batch(launches(count))
        readings += [timed.reading] if timed.reading else []
        left_us -= max(timed.times_us[0], MINIMUM_US) * count
        if not timed.gated:
            break
    return telemetry.capped(readings)
