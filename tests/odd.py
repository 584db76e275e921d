"""Exact devices with something more; each is for ``--device odd:NAME``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import fake

from rooflab.devices.base import Device, Launch, Reading
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.registry import BUILTIN


class Sensed(fake.FakeDevice):
    """Has sensors for clock and power, which stand still."""

    id = "odd:Sensed"

    def reading(self) -> Reading:
        return Reading(sm_mhz=1000.0, power_w=100.0)


class Recorded(fake.FakeDevice):
    """Its kernels say what they were built to, in the process that built them."""

    id = "odd:Recorded"
    kind = "recorded"


def recorded(name: str, then: Callable[[Device, Operands], Launch]) -> Kernel:
    """A kernel of ``Recorded`` that does as ``then`` does."""
    builds: list[dict[str, Any]] = []

    def prepare(device: Device, operands: Operands) -> Launch:
        build = {"precision": operands.problem.precision.name, "registers": 32}
        builds.extend([build] * (build not in builds))
        return then(device, operands)

    return Kernel(
        name,
        "recorded",
        Recorded.kind,
        "Keeps its builds",
        ("fp32", "fp64"),
        prepare,
        builds=lambda: list(builds),
    )


def _fast(device: Device, operands: Operands) -> Launch:
    return fake.exact("fast", 0.8).prepare(device, operands)


def _dies_in_fp64(device: Device, operands: Operands) -> Launch:
    if operands.problem.precision.name == "fp64":
        return lambda: os._exit(7)
    return _fast(device, operands)


for kernel in (recorded("steady", _fast), recorded("mortal", _dies_in_fp64)):
    BUILTIN.add(kernel)
