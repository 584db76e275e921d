"""Sums that read or write outside their operands."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np

import rooflab

PAGE = mmap.PAGESIZE // 4
"""FP32 elements of a page."""


def launches_of(operands):
    """The honest launch."""
    return lambda: np.add(operands.a, operands.b, out=operands.c)


@rooflab.kernel(workload="add", device="cpu")
def honest(operands, stream):
    """numpy.add"""
    return launches_of(operands)


def element(array, index):
    """The element of a flat array at any index."""
    return ctypes.c_float.from_address(array.ctypes.data + 4 * index)


def writes(name, title, operand, place):
    """A kernel that also writes element ``place(n)`` of an operand."""

    def prepare(operands, stream):
        add, array = launches_of(operands), operands[operand]
        outside = element(array, place(array.size))

        def launch():
            add()
            outside.value = -1e30

        return launch

    prepare.__doc__ = title
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


def reads(name, title, operand, place):
    """A kernel whose last element depends on element ``place(n)`` of an input."""

    def prepare(operands, stream):
        add, array, c = launches_of(operands), operands[operand], operands.c.reshape(-1)
        outside = element(array, place(array.size))

        def launch():
            add()
            c[-1] += 0 * outside.value

        return launch

    prepare.__doc__ = title
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


writes("past_end", "One element past the end of C", "c", lambda n: n)
writes("before_start", "One element before C", "c", lambda n: -1)
writes("a_page_on", "A page past the end of C", "c", lambda n: n + PAGE)
writes("past_input", "One element past the end of A", "a", lambda n: n)
writes("far_away", "A terabyte past the end of C", "c", lambda n: n + 2**38)
reads("reads_past_end", "Reads one element past the end of A", "a", lambda n: n)
reads("reads_before", "Reads one element before B", "b", lambda n: -1)


@rooflab.kernel(workload="add", device="cpu")
def times_one_outside(operands, stream):
    """The last step in place, of eight elements too many"""
    add = launches_of(operands)
    longer = np.lib.stride_tricks.as_strided(operands.c.reshape(-1), (operands.c.size + 8,))

    def launch():
        add()
        with np.errstate(invalid="ignore"):
            np.multiply(longer, np.float32(1), out=longer)

    return launch
