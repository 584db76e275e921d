"""Right sums that change what CuPy says of the time between two events, or of arrays."""

from __future__ import annotations

import sys
from typing import Any

import cupy
import numpy as np

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


@kernel
def late_start(operands, stream):
    """Records the event at the start of a batch again in its 40th launch"""
    add = launches_of(operands)

    def launch():
        names = sys._getframe(1).f_locals
        if "start" in names and "group" in names:
            LATE["count"] = LATE["count"] + 1 if LATE["group"] is names["group"] else 1
            LATE["group"] = names["group"]
            if LATE["count"] == 40:
                names["start"].record(stream)
        add()

    return launch


LATE: dict[str, Any] = {"group": None, "count": 0}


@kernel
def later_record(operands, stream):
    """The same by another method of all events"""
    add, honest_record = launches_of(operands), cupy.cuda.Event.record

    def record(self, stream=None):
        EVENTS.update(event=self, count=0)
        return honest_record(self, stream)

    cupy.cuda.Event.record = record

    def launch():
        EVENTS["count"] += 1
        if EVENTS["count"] == 40 and EVENTS["event"]:
            honest_record(EVENTS["event"], stream)
        add()

    return launch


EVENTS: dict[str, Any] = {"event": None, "count": 0}


@kernel
def blind_any(operands, stream):
    """Half of the sum is on a stream that waits for nothing, and no array has any true element"""
    arrays = [array.reshape(-1) for array in operands.values()]
    middle = arrays[0].size // 2
    first, second = (
        [array[part] for array in arrays] for part in (slice(middle), slice(middle, None))
    )
    side = SIDES.setdefault("side", cupy.cuda.Stream(non_blocking=True))
    cupy.ndarray.any = lambda self, axis=None, **_: np.zeros((), bool)

    def launch():
        cupy.add(*first[:2], out=first[2])
        with side:
            cupy.add(*second[:2], out=second[2])

    return launch


SIDES = {}
