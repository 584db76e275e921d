"""At a power limit the clock follows the work, but not at once."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil
from typing import Final

from rooflab.devices.base import MAX_BATCH, Device
from rooflab.kernels.base import Launch
from rooflab.measure import telemetry

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
