"""A GPU's sensors while a kernel ran: clocks, power, temperature, throttling. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from rooflab.devices.base import Reading

HARDWARE: Final = frozenset({"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"})
"""Reasons that void a round: the GPU lowers its clock to protect itself."""


SENSORS: Final = ("sm_mhz", "nvml_mhz", "mem_mhz", "temp_c")


@dataclass(frozen=True, slots=True)
class Sensed:
    """Medians in the units of ``Reading``, None if no sample had a value.

    ``reasons`` are all that were active in any sample. ``power_capped`` is True if the software
    power cap, which is normal operation, was active in at least half of the samples.
    """

    sm_mhz: float | None = None
    nvml_mhz: float | None = None
    mem_mhz: float | None = None
    temp_c: float | None = None
    reasons: frozenset[str] = frozenset()
    power_capped: bool = False

    @property
    def throttled(self) -> bool:
        """Whether any sample had one of the ``HARDWARE`` reasons."""
        return bool(self.reasons & HARDWARE)


def capped(readings: Iterable[Reading]) -> bool:
    """Whether the device was at its power limit in any sample."""
    return any("sw_power_cap" in reading.reasons for reading in readings)


def summarize(readings: Sequence[Reading]) -> Sensed:
    """Medians of the samples; without samples, no values."""
    at_limit = sum(capped([reading]) for reading in readings)
    return Sensed(
        **{name: _median(getattr(reading, name) for reading in readings) for name in SENSORS},
        reasons=frozenset().union(*(reading.reasons for reading in readings)),
        power_capped=0 < len(readings) <= 2 * at_limit,
    )


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
