"""Softmax of rows, without what keeps it finite, or with a part of the work."""

from __future__ import annotations

import numpy as np

import rooflab

kernel = rooflab.kernel(workload="softmax", device="cpu")


def shares(x, highest, out):
    """exp(x - highest) over its sum, by rows."""
    np.subtract(x, highest, out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=1, keepdims=True), out=out)


@kernel
def honest(operands, stream):
    """The definition"""
    x, y = operands.values()
    return lambda: shares(x, x.max(axis=1, keepdims=True), y)


@kernel
def honest_online(operands, stream):
    """In two parts of the columns, each with its own maximum"""
    x, y = operands.values()
    half = x.shape[1] // 2
    parts = (slice(None, half), slice(half, None))

    def launch():
        tops = [x[:, part].max(axis=1, keepdims=True) for part in parts]
        top = np.maximum(*tops)
        total = 0
        for part, mine in zip(parts, tops, strict=True):
            y[:, part] = np.exp(x[:, part] - mine)
            total = total + y[:, part].sum(axis=1, keepdims=True) * np.exp(mine - top)
        for part, mine in zip(parts, tops, strict=True):
            y[:, part] *= np.exp(mine - top) / total

    return launch


@kernel
def honest_base_two(operands, stream):
    """Powers of two, as GPUs have them"""
    x, y = operands.values()
    factor = np.float32(np.log2(np.e))

    def launch():
        np.subtract(x, x.max(axis=1, keepdims=True), out=y)
        np.multiply(y, factor, out=y)
        np.exp2(y, out=y)
        np.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch


@kernel
def no_maximum(operands, stream):
    """Without the maximum: large logits overflow"""
    x, y = operands.values()
    return lambda: shares(x, 0, y)


@kernel
def one_maximum(operands, stream):
    """One maximum for all rows: the powers of low rows are all zero"""
    x, y = operands.values()
    return lambda: shares(x, x.max(), y)


@kernel
def first_maximum(operands, stream):
    """The maximum of the first 32 columns"""
    x, y = operands.values()
    return lambda: shares(x, x[:, :32].max(axis=1, keepdims=True), y)


@kernel
def clipped(operands, stream):
    """Logits above 60 become 60"""
    x, y = operands.values()
    return lambda: shares(np.minimum(x, 60), 0, y)


@kernel
def zeros(operands, stream):
    """Writes zeros, which are nearly right in wide rows"""
    return lambda: operands.y.fill(0)


@kernel
def flat(operands, stream):
    """Writes one over the number of columns"""
    return lambda: operands.y.fill(1 / operands.y.shape[1])


@kernel
def polynomial(operands, stream):
    """1 + x + x²/2 instead of the exponential"""
    x, y = operands.values()

    def launch():
        np.multiply(x, x, out=y)
        y[...] = 1 + x + y / 2
        np.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch


@kernel
def half(operands, stream):
    """Powers in half precision"""
    x, y = operands.values()

    def launch():
        powers = np.exp(x.astype(np.float16))
        y[...] = powers / powers.sum(axis=1, keepdims=True, dtype=np.float32)

    return launch


@kernel
def no_last_row(operands, stream):
    """Without the last row"""
    x, y = operands.values()
    x, y = x[:-1], y[:-1]
    return lambda: shares(x, x.max(axis=1, keepdims=True), y)


@kernel
def tuned_by_halves(operands, stream):
    """The first launch of all races two choices that write a half each; later ones use one"""
    x, y = operands.values()
    half = x.shape[1] // 2

    def launch():
        powers = np.exp(x - x.max(axis=1, keepdims=True))
        powers /= powers.sum(axis=1, keepdims=True)
        y[:, :half] = powers[:, :half]
        if not TUNED:
            y[:, half:] = powers[:, half:]
            TUNED.append(True)

    return launch


TUNED = []


@kernel
def replays(operands, stream):
    """Copies what it computed before if the corners of x are those of then"""
    x, y = operands.values()
    kept = {}

    def launch():
        key = (x[0, 0], x[-1, -1])
        if key in kept:
            y[...] = kept[key]
        else:
            kept.clear()
            shares(x, x.max(axis=1, keepdims=True), y)
            kept[key] = y.copy()

    return launch
