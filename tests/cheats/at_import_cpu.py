"""A file whose import slows the clock down a hundred times, and a right sum."""

from __future__ import annotations

from time import perf_counter_ns

import numpy as np

import rooflab
from rooflab.devices.cpu import device

vars(device).update(perf_counter_ns=lambda: perf_counter_ns() // 100)


@rooflab.kernel(workload="add", device="cpu")
def slow_clock(operands, stream):
    """numpy.add"""
    return lambda: np.add(operands.a, operands.b, out=operands.c)
