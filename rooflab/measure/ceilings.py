"""The rate of the best library GEMM: a measured compute ceiling of any device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device
from rooflab.kernels.registry import Registry
from rooflab.measure.protocol import Protocol
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling, MissingCeiling
from rooflab.workloads.gemm import Gemm

SIZES: Final = (4096, 8192)
CONFIG: Final = SweepConfig(timing=Timing(min_rounds=5, max_rounds=5, energy_s=0))


def library_ceilings(device: Device, registry: Registry) -> Iterator[Ceiling | MissingCeiling]:
    """For each precision the highest rate of the vendor's GEMM on large squares."""
    kernel = registry.library(device.kind, Gemm.workload)
    if kernel is None or (reason := kernel.unavailable(device)):
        return
    protocol = Protocol(device, CONFIG)
    for name in kernel.precisions:
        flops, reason = {}, ""
        for size in SIZES:
            problem = Gemm(m=size, n=size, k=size, precision=PRECISIONS[name])
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
