"""A property of this machine: whether functions are called on arguments that are in no cache."""

from __future__ import annotations

from typing import Final

from rooflab.devices.base import Device
from rooflab.functions.bench import bench
from rooflab.model.units import scaled
from rooflab.selftest import QUIET, Property

SHARE: Final = 16
"""The argument has this part of the last-level cache, so that a warm one stays in it."""

COLDER: Final = 1.05
"""A cold call takes at least so much longer."""

NAME: Final = "cold function"


def judge_cold(size: int, cold_us: float, warm_us: float) -> Property:
    """Whether the time says that arguments came from memory."""
    found = f"-x of {scaled(size)}B takes {cold_us:.4g} µs cold, {warm_us:.4g} µs warm"
    ok = cold_us >= COLDER * warm_us
    return Property(NAME, found, f"{COLDER:g} times", ok, QUIET)


def cold(device: Device) -> Property:
    """Time one function on arguments that take turns, and on one that stays in the cache."""
    arrays, cache = device.arrays, device.last_level_cache_bytes()
    if not cache:
        return Property(NAME, "not compared: cache of unknown size")
    x = arrays.ones(cache // SHARE // 4, dtype="float32")
    cold_us, warm_us = (bench(arrays.negative, x, cache=one).time_us for one in ("cold", "warm"))
    if not cold_us or not warm_us:
        return Property(NAME, "no figure", "", False, "see: rooflab doctor")
    return judge_cold(x.nbytes, cold_us, warm_us)
