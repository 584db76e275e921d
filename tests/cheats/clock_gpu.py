"""A right sum that changes what CuPy says of the time between two events."""

from __future__ import annotations

import cupy

import rooflab

kernel = rooflab.kernel(workload="add")
honest_time = cupy.cuda.get_elapsed_time


def launches_of(operands):
    """The honest launch."""
    return lambda: cupy.add(operands.a, operands.b, out=operands.c)


@kernel
def honest(operands, stream):
    """cupy.add"""
    return launches_of(operands)


@kernel
def short_times(operands, stream):
    """A hundredth of the time between two events"""
    cupy.cuda.get_elapsed_time = lambda start, end: honest_time(start, end) / 100
    return launches_of(operands)
