"""A file whose import slows the clock down a hundred times, and a right sum."""

from __future__ import annotations

import numpy as np

import rooflab
from rooflab.devices.cpu import device

honest_clock = device.perf_counter_ns
device.perf_counter_ns = lambda: honest_clock() // 100


@rooflab.kernel(workload="add", device="cpu")
def slow_clock(operands, stream):
    """numpy.add"""
    return lambda: np.add(operands.a, operands.b, out=operands.c)
