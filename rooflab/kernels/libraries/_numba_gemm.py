"""GEMM kernels in Numba for the CPU, in the order to read them: ``naive``, then ``tiled``.

C = alpha * A * B + beta * C over arrays of shape (batch, rows, columns). A and B may be strided
views, so a transposed operand is a view with M, N or K as its rows. Importing this module imports
Numba; ``compiled`` compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numba import float32, float64, njit, prange, void

TILE_M = 64
TILE_N = 512
TILE_K = 64
"""A tile of B (FP64: 264 KiB) stays in L2 while rows of A and of the sums pass through L1."""

PADDING = 16
"""Without it rows are a power of two apart and compete for the same lines of the L1 cache."""

ROWS = 4
DEPTH = 4
"""16 FMAs per 8 vector loads and 4 stores: enough to keep two FMA pipes busy from L1."""

CONTRACT = {"contract"}
"""a*b + c may become one FMA; NaN and infinity are kept."""


WORKSPACE = TILE_M * TILE_K + (TILE_K + TILE_M) * (TILE_N + PADDING)
"""Numbers per thread of ``tiled`` for its tiles of A, of B and of the sums."""


@cache
def compiled(
    kernel: Callable[..., None], precision: str, *, workspace: bool = False
) -> Callable[..., None]:
    """``kernel`` compiled for ``fp32`` or ``fp64``, or from Numba's disk cache.

    One signature with any strides is used for all four layouts: a second one would take seconds to
    compile.
    """
    number: Any = {"fp32": float32, "fp64": float64}[precision]
    operand, result = number[:, :, :], number[:, :, ::1]
    arguments = [operand, operand, result, number, number]
    if workspace:
        arguments.append(number[:, ::1])
    function: Callable[..., None] = njit(
        void(*arguments), parallel=True, cache=True, fastmath=CONTRACT
    )(kernel)
    return function


@cache
def shared_workspace(threads: int, dtype: Any) -> Any:
    """A row of WORKSPACE numbers for each thread, aligned to cache lines.

    A vector across two lines would need two accesses. All launches share the workspace: a new one
    would cause page faults during the timed launch.
    """
    row_bytes = WORKSPACE * dtype.itemsize
    memory = np.zeros(threads * row_bytes + 64, dtype=np.uint8)
    start = -memory.ctypes.data % 64
    return memory[start : start + threads * row_bytes].view(dtype).reshape(threads, WORKSPACE)


def naive(a: Any, b: Any, c: Any, alpha: float, beta: float) -> None:
    """One thread per row of C, one scalar sum per element.

    Each step of the inner loop reads the next row of a column of B: a new cache line for one
    number. And each FMA waits for the previous one, because there is one sum.
    """
    batch, M, N = c.shape
    K = a.shape[2]
    for row in prange(batch * M):
        z, i = row // M, row % M
        for j in range(N):
            total = c.dtype.type(0)
            for k in range(K):
                total += a[z, i, k] * b[z, k, j]
            if beta == 0:
                c[z, i, j] = alpha * total
            else:
                c[z, i, j] = alpha * total + beta * c[z, i, j]


def tiled(a: Any, b: Any, c: Any, alpha: float, beta: float, workspace: Any) -> None:
    """Each thread computes TILE_M×TILE_N tiles of C, in steps of TILE_K along K."""
    batch, M, N = c.shape
    tiles_m = (M + TILE_M - 1) // TILE_M
    tiles_n = (N + TILE_N - 1) // TILE_N
    threads = workspace.shape[0]
    for thread in prange(threads):
        for tile in range(thread, batch * tiles_m * tiles_n, threads):
            z = tile // (tiles_m * tiles_n)
            i = tile // tiles_n % tiles_m * TILE_M
            j = tile % tiles_n * TILE_N
            compute_tile(
                a[z, i : i + TILE_M],
                b[z, :, j : j + TILE_N],
                c[z, i : i + TILE_M, j : j + TILE_N],
                alpha,
                beta,
                workspace[thread],
            )


@njit(fastmath=CONTRACT)
def compute_tile(a: Any, b: Any, c: Any, alpha: float, beta: float, workspace: Any) -> None:
    """C = alpha * A * B + beta * C for one tile of C, a row panel of A and a column panel of B."""
    rows, columns = c.shape
    K = a.shape[1]
    stride = TILE_N + PADDING
    end_a = TILE_M * TILE_K
    end_b = end_a + TILE_K * stride
    a_tile = workspace[:end_a].reshape((TILE_M, TILE_K))
    b_tile = workspace[end_a:end_b].reshape((TILE_K, stride))
    sums = workspace[end_b:WORKSPACE].reshape((TILE_M, stride))
    sums[:] = 0
    for k in range(0, K, TILE_K):
        depth = min(TILE_K, K - k)
        pack(a[:, k : k + depth], a_tile)
        pack(b[k : k + depth], b_tile)
        # Steps are computed in whole groups: old numbers past the last step must not count.
        a_tile[:, depth:] = 0
        b_tile[depth:] = 0
        multiply(a_tile, b_tile, sums, rows, columns, depth)
    for i in range(rows):
        for j in range(columns):
            if beta == 0:
                c[i, j] = alpha * sums[i, j]
            else:
                c[i, j] = alpha * sums[i, j] + beta * c[i, j]


@njit
def pack(source: Any, tile: Any) -> None:
    """Copy ``source`` into the corner of ``tile``, whose rows are contiguous.

    A transposed source is read 16 rows at a time, so that each cache line is fetched once.
    """
    rows, columns = source.shape
    if source.strides[1] == source.itemsize:
        for i in range(rows):
            for j in range(columns):
                tile[i, j] = source[i, j]
    else:
        for first in range(0, rows, 16):
            for j in range(columns):
                for i in range(first, min(first + 16, rows)):
                    tile[i, j] = source[i, j]


@njit(fastmath=CONTRACT)
def multiply(a: Any, b: Any, sums: Any, rows: int, columns: int, depth: int) -> None:
    """Add A * B to ``sums``, ROWS rows and DEPTH steps of K at a time.

    The inner loop runs along rows of B and of the sums, so the compiler vectorises it: each loaded
    vector of B is used for ROWS rows, each vector of sums gets DEPTH FMAs per load and store.
    """
    for i in range(0, rows, ROWS):
        for k in range(0, depth, DEPTH):
            a00, a01, a02, a03 = a[i, k], a[i, k + 1], a[i, k + 2], a[i, k + 3]
            a10, a11, a12, a13 = a[i + 1, k], a[i + 1, k + 1], a[i + 1, k + 2], a[i + 1, k + 3]
            a20, a21, a22, a23 = a[i + 2, k], a[i + 2, k + 1], a[i + 2, k + 2], a[i + 2, k + 3]
            a30, a31, a32, a33 = a[i + 3, k], a[i + 3, k + 1], a[i + 3, k + 2], a[i + 3, k + 3]
            for j in range(columns):
                b0, b1, b2, b3 = b[k, j], b[k + 1, j], b[k + 2, j], b[k + 3, j]
                s0, s1, s2, s3 = sums[i, j], sums[i + 1, j], sums[i + 2, j], sums[i + 3, j]
                # Evaluated from the left, each term is one FMA.
                sums[i, j] = s0 + a00 * b0 + a01 * b1 + a02 * b2 + a03 * b3
                sums[i + 1, j] = s1 + a10 * b0 + a11 * b1 + a12 * b2 + a13 * b3
                sums[i + 2, j] = s2 + a20 * b0 + a21 * b1 + a22 * b2 + a23 * b3
                sums[i + 3, j] = s3 + a30 * b0 + a31 * b1 + a32 * b2 + a33 * b3
