"""The CPU's kernel for attention, in Numba. Importing this module imports Numba."""

from __future__ import annotations

from math import exp, inf
from typing import Any

import numpy as np
from numba import njit, prange

VECTORS = {"reassoc", "contract"}
"""Sums may be reordered, and a*b + c may become one FMA; NaN and infinity are kept."""


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
