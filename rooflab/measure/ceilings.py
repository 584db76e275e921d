"""What the best library GEMM reaches: a measured compute ceiling of any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device
from rooflab.measure.protocol import Protocol
from rooflab.problem import PRECISIONS, Problem
from rooflab.registry import Kernel
from rooflab.roofline import Ceiling, MissingCeiling

SIZES: Final = (4096, 8192)
CONFIG: Final = SweepConfig(timing=Timing(min_rounds=5, max_rounds=5, energy_s=0))


def library_ceilings(device: Device, kernel: Kernel) -> Iterator[Ceiling | MissingCeiling]:
    """For each precision the best that ``kernel`` reaches on large squares, named as what it is."""
    protocol = Protocol(device, CONFIG)
    for name, precision in PRECISIONS.items():
        flops, reason = {}, ""
        for size in SIZES:
            problem = Problem(size, size, size, precision)
            (outcome,) = protocol.measure(problem, [kernel])
            if outcome.summary:
                flops[size] = problem.flops / (outcome.summary.median * 1e-6)
            reason = reason or outcome.reason
        if flops:
            best = max(flops, key=flops.__getitem__)
            formula = f"{kernel.name} at n = {best}, the better of {' and '.join(map(str, SIZES))}"
            yield Ceiling("compute", name, flops[best], "measured", formula)
        else:
            yield MissingCeiling("compute", name, f"{kernel.name} not measured: {reason}")
