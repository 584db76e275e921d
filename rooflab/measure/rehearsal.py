"""Compiles what is needed later, on small problems, before anything is measured.

A GPU's array library compiles a kernel for each operation and type when it is first used, a few
tenths of a second each, and kernels take seconds. What is made is kept on disk. So each of the
processes that are started rehearses some of it, all at the same time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress

from rooflab.devices.base import Device
from rooflab.kernels.base import Kernel
from rooflab.measure.buffers import allocate, rotate
from rooflab.measure.inspection import Inspector
from rooflab.measure.verify import right
from rooflab.model.problem import Problem


def rehearse(device: Device, problem: Problem, kernels: Sequence[Kernel] = ()) -> None:
    """Prepare these kernels; without any, check right results. Failures do not matter here."""
    device.time([device.nothing])
    with suppress(Exception):  # the kernels' rows will tell
        if kernels:
            operands = allocate(device, problem, 0)
            for kernel in kernels:
                kernel.prepare(device, operands)
        else:
            _check(device, problem)
    device.release()


def _check(device: Device, problem: Problem) -> None:
    rotation = rotate(device, problem, 0, cold=True)
    inspector = Inspector(device, rotation, random.Random(0))

    def run(_launches: object) -> None:
        for copy in rotation.copies:
            right(device, copy)

    launches = [lambda: None] * len(rotation.copies)
    inspector.poison(0)
    run(launches)
    inspector.judge(0)
    inspector.between(launches, run, close=True)
    inspector.after(launches, run, 1.0, 1, close=True)
    inspector.on_other_inputs(launches, run)
    device.synchronize()
