"""Sums of a vector: too few elements, too few bits, or an output that is not set."""

from __future__ import annotations

import numpy as np

import rooflab

kernel = rooflab.kernel(workload="sum", device="cpu")


@kernel
def honest(operands, stream):
    """numpy.sum"""
    return lambda: np.sum(operands.x, out=operands.y[0, ...])


@kernel
def honest_wide(operands, stream):
    """In FP64"""
    return lambda: operands.y.fill(operands.x.sum(dtype=np.float64))


@kernel
def honest_parts(operands, stream):
    """Partial sums of 1000 elements"""
    starts = np.arange(0, operands.x.size, 1000)

    def launch():
        operands.y[0] = np.add.reduceat(operands.x, starts).sum()

    return launch


@kernel
def one_accumulator(operands, stream):
    """One element after the other"""

    def launch():
        operands.y[0] = np.cumsum(operands.x)[-1]

    return launch


@kernel
def half_parts(operands, stream):
    """Partial sums in half precision"""

    def launch():
        operands.y[0] = np.add.reduceat(
            operands.x.astype(np.float16), np.arange(0, operands.x.size, 64)
        ).sum(dtype=np.float32)

    return launch


@kernel
def some(operands, stream):
    """A hundred times every hundredth element"""

    def launch():
        operands.y[0] = 100 * operands.x[::100].sum()

    return launch


@kernel
def expected_value(operands, stream):
    """Writes 0, the mean of such sums"""
    return lambda: operands.y.fill(0)


@kernel
def no_last_element(operands, stream):
    """Without the last element"""
    return lambda: np.sum(operands.x[:-1], out=operands.y[0, ...])


@kernel
def whole_vectors(operands, stream):
    """Whole vectors of 16 only"""
    whole = operands.x.size // 16 * 16
    return lambda: np.sum(operands.x[:whole], out=operands.y[0, ...])


@kernel
def not_set(operands, stream):
    """Adds to what is in y"""

    def launch():
        operands.y[0] += operands.x.sum()

    return launch


@kernel
def not_reset(operands, stream):
    """Adds to a variable that nobody sets to zero again"""
    total = np.zeros(1, np.float32)

    def launch():
        total[0] += operands.x.sum()
        operands.y[0] = total[0]

    return launch


@kernel
def remembers_half(operands, stream):
    """Keeps the sum of the first half while its first and last elements are the same"""
    x = operands.x
    first, second = x[: x.size // 2], x[x.size // 2 :]
    kept = {}

    def launch():
        key = (first[0], first[-1])
        if key not in kept:
            kept.clear()
            kept[key] = first.sum()
        operands.y[0] = kept[key] + second.sum()

    return launch
