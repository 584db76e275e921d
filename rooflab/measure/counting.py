"""The counting pass: launches of one kernel on rotated operands, whose counters are read.

It has its own operands and comes after timing, so that it costs no time a figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle, islice
from time import perf_counter
from typing import Final

from rooflab.config import SweepConfig
from rooflab.devices.base import Counters, Device, Launch
from rooflab.kernels.base import Kernel
from rooflab.measure.buffers import rotate
from rooflab.model.problem import Problem

MOST_LAUNCHES: Final = 16
"""Of one pass. What the cache holds at the end is then a small part of the traffic."""

PASS_S: Final = 0.02
"""Length of a pass; counters need several."""


def launches(
    device: Device, problem: Problem, kernel: Kernel, variant: str, config: SweepConfig
) -> list[Launch]:
    """The launches to count, each of which ran once. Cold operands are cold here too.

    Raises what the kernel raises.
    """
    cold = config.cache == "cold"
    rotation = rotate(device, problem, config.seed, config.fill, cold=cold)
    named = (one.prepare for one in kernel.variants if one.name == variant)
    prepare = next(named, kernel.prepare)
    return alike(device, [prepare(device, copy) for copy in rotation.copies])


def alike(device: Device, ready: Sequence[Launch]) -> list[Launch]:
    """As many launches as make a pass, in turn; each of ``ready`` runs once before."""
    for launch in ready:  # the first use may compile or load code
        launch()
    device.synchronize()
    started = perf_counter()
    ready[0]()
    device.synchronize()
    count = max(1, min(MOST_LAUNCHES, int(PASS_S / (perf_counter() - started))))
    return list(islice(cycle(ready), count))


def count(
    device: Device, problem: Problem, kernel: Kernel, variant: str, config: SweepConfig
) -> Counters | None:
    """Counters of one launch, None if the device has none.

    Raises ``UnavailableError`` if they cannot be read here.
    """
    counted = device.count(launches(device, problem, kernel, variant, config))
    device.release()
    return counted
