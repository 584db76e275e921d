"""The CPU's kernels of one parallel loop, in Numba. Importing this module imports Numba.

Each loop runs in parallel over contiguous parts, so that every thread streams separate memory, and
LLVM vectorises its inner loop.
"""

from __future__ import annotations

from math import exp, inf, sqrt
from typing import Any

import numpy as np
from numba import njit, prange

from rooflab.devices.cpu._numba_peaks import copy as copy
from rooflab.devices.cpu._numba_peaks import triad as triad

VECTORS = {"reassoc", "contract"}
"""Sums may be reordered, and a*b + c may become one FMA; NaN and infinity are kept."""


@njit(parallel=True, cache=True)
def add(a: Any, b: Any, c: Any) -> None:
    """C = A + B over flat arrays."""
    for i in prange(c.size):
        c[i] = a[i] + b[i]


@njit(parallel=True, cache=True, fastmath=VECTORS)
def sum_parts(x: Any, partial: Any) -> None:
    """One partial sum for each element of ``partial``, over contiguous parts of ``x``."""
    parts = partial.size
    for part in prange(parts):
        first, last = part * x.size // parts, (part + 1) * x.size // parts
        total = partial.dtype.type(0)
        for i in range(first, last):
            total += x[i]
        partial[part] = total


@njit(parallel=True, cache=True, fastmath=VECTORS)
def gemv(a: Any, x: Any, y: Any) -> None:
    """y = A·x, a row at a time."""
    for i in prange(y.size):
        row = a[i]
        total = y.dtype.type(0)
        for j in range(row.size):
            total += row[j] * x[j]
        y[i] = total


@njit(parallel=True, cache=True, fastmath=VECTORS)
def softmax(x: Any, y: Any) -> None:
    """For each row: its maximum, the exponentials and their sum, the scaling."""
    for i in prange(x.shape[0]):
        row, out = x[i], y[i]
        largest = row[0]
        for j in range(row.size):
            largest = max(largest, row[j])
        total = np.float64(0)
        for j in range(row.size):
            out[j] = exp(row[j] - largest)
            total += out[j]
        scale = y.dtype.type(1 / total)
        for j in range(row.size):
            out[j] *= scale


@njit(parallel=True, cache=True, fastmath=VECTORS)
def rmsnorm(x: Any, w: Any, y: Any, epsilon: float) -> None:
    """For each row: its mean square, then the scaling."""
    for i in prange(x.shape[0]):
        row, out = x[i], y[i]
        total = np.float64(0)
        for j in range(row.size):
            total += row[j] * row[j]
        scale = y.dtype.type(1 / sqrt(total / row.size + epsilon))
        for j in range(row.size):
            out[j] = row[j] * scale * w[j]


@njit(inline="always")
def _column(above: Any, here: Any, below: Any, j: int) -> Any:
    """(1 2 1) down column ``j`` of three rows."""
    return above[j] + here[j] + here[j] + below[j]


@njit(parallel=True, cache=True, fastmath=VECTORS)
def blur(x: Any, y: Any) -> None:
    """For each row: (1 2 1) down the columns of three rows, then along the row."""
    _, rows, columns = x.shape
    sixteenth, last = y.dtype.type(1 / 16), columns - 1
    for i in prange(x.shape[0] * rows):
        image, row = x[i // rows], i % rows
        above, here, below = image[max(row - 1, 0)], image[row], image[min(row + 1, rows - 1)]
        out = y[i // rows, row]
        for j in range(1, last):
            left = _column(above, here, below, j - 1)
            middle = _column(above, here, below, j)
            right = _column(above, here, below, j + 1)
            out[j] = (left + middle + middle + right) * sixteenth
        for j in range(0, columns, max(last, 1)):  # the first and the last column
            left = _column(above, here, below, max(j - 1, 0))
            middle = _column(above, here, below, j)
            right = _column(above, here, below, min(j + 1, last))
            out[j] = (left + middle + middle + right) * sixteenth


@njit(parallel=True, cache=True, fastmath=VECTORS)
def attention(q: Any, k: Any, v: Any, o: Any, scale: Any, masked: bool) -> None:
    """A query at a time: its scores, their maximum and exponentials, the weighted sum of values.

    ``scale`` is 1 / √head_size in the type of the operands.
    """
    batch, heads, queries, size = q.shape
    group, keys = heads // k.shape[1], k.shape[2]
    for row in prange(batch * heads * queries):
        z, head, i = row // (heads * queries), row // queries % heads, row % queries
        asked, out = q[z, head, i], o[z, head, i]
        of_keys, values = k[z, head // group], v[z, head // group]
        seen = keys - queries + i + 1 if masked else keys
        scores = np.empty(seen, q.dtype)
        largest = q.dtype.type(-inf)
        for j in range(seen):
            total = q.dtype.type(0)
            for c in range(size):
                total += asked[c] * of_keys[j, c]
            scores[j] = total * scale
            largest = max(largest, scores[j])
        weights = np.float64(0)
        out[:] = 0
        for j in range(seen):
            weight = q.dtype.type(exp(scores[j] - largest))
            weights += weight
            for c in range(size):
                out[c] += weight * values[j, c]
        inverse = q.dtype.type(1 / weights)
        for c in range(size):
            out[c] *= inverse
