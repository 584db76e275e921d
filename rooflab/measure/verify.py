"""Is C right? A float64 product, computed on the device, against what the kernel left there."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.measure.buffers import Operands, decode

FULL_FLOPS: Final = 4e9
"""Up to this much work the whole product is compared, beyond it sampled rows and columns."""

BANDS: Final = 128
"""Sampled rows, and columns: one out of each of this many bands, and both edges."""

CHUNK_BYTES: Final = 256 * 2**20
"""Float64 workspace: operands are widened piece by piece."""

OUTLIER: Final = 16.0
"""No element may be off by more than this many tolerances; rounding stays below five."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``rel_error`` is ‖C - ref‖ / ‖ref‖ over what was compared; ``reason`` is empty if right."""

    rel_error: float
    reason: str = ""


def verify(device: Device, operands: Operands, seed: int) -> Verdict:
    """Compare C with alpha·A·B + beta·C in float64.

    ‖ref‖ is not allowed below its expected size, √K·rms(A)·rms(B), so that a reference which
    happens to cancel does not turn rounding into an error. Every element is checked for NaN, which
    C was poisoned with; single elements count too, so a wrong corner does not drown in the norm.
    """
    arrays, problem = device.arrays, operands.problem
    precision = problem.precision
    tolerance = precision.tolerance(problem.k)

    written = _count_nan(arrays, operands)
    if written:
        return Verdict(
            float("nan"),
            f"{written} of {operands.c.size} elements are NaN: not written, or not a number",
        )

    regions: list[tuple[int, list[int] | None, list[int] | None]]
    if problem.flops <= FULL_FLOPS:
        regions = [(batch, None, None) for batch in range(problem.batch)]
    else:
        batches = sorted({0, problem.batch // 2, problem.batch - 1})
        draw = random.Random(seed)
        some_rows, some_columns = _bands(draw, problem.m), _bands(draw, problem.n)
        regions = [(b, some_rows, None) for b in batches]
        regions += [(b, None, some_columns) for b in batches]

    squared_error = squared_reference = 0.0
    compared, worst, worst_at = 0, 0.0, (0, 0, 0)
    for batch, rows, columns in regions:
        difference, reference = _difference(arrays, operands, batch, rows, columns)
        squared_error += float((difference * difference).sum())
        squared_reference += float((reference * reference).sum())
        compared += difference.size
        at = int(arrays.abs(difference).argmax())
        largest = abs(float(difference.reshape(-1)[at]))
        if not largest <= worst:
            i, j = divmod(at, difference.shape[1])
            worst = largest
            worst_at = (
                batch,
                i if rows is None else int(rows[i]),
                j if columns is None else int(columns[j]),
            )

    expected = abs(problem.alpha) * sqrt(problem.k)
    for stored in (operands.a, operands.b):
        some = decode(arrays, stored.reshape(-1)[: 2**20], precision.input)
        expected *= sqrt(float((some * some).mean()))
    scale = max(sqrt(squared_reference / compared), expected)
    rel_error = sqrt(squared_error / compared) / scale if scale else sqrt(squared_error)
    where = f"C[{worst_at[1]}, {worst_at[2]}]" + (
        f" of batch {worst_at[0]}" if problem.batch > 1 else ""
    )
    if not rel_error <= tolerance:
        return Verdict(
            rel_error,
            f"relative error {rel_error:.2g} is above {tolerance:.2g}; worst at {where}",
        )
    if not worst <= OUTLIER * tolerance * scale:
        return Verdict(
            rel_error, f"{where} is off by {worst / scale:.2g} of a typical element's size"
        )
    return Verdict(rel_error)


def unlike(device: Device, outputs: Any, right: Operands) -> list[int]:
    """Which rows of ``outputs``, each a C for the inputs of ``right``, differ from its C.

    Up to rounding: sums may be taken in another order each time. Bits are compared first, at once.
    """
    arrays, precision = device.arrays, right.problem.precision
    different = (outputs != right.c.reshape(-1)).any(axis=1)
    suspects = [int(row) for row in arrays.flatnonzero(different)]
    if not suspects:
        return []
    expected = decode(arrays, right.c.reshape(-1), precision.output)
    limit = (2 * precision.tolerance(right.problem.k)) ** 2 * float((expected**2).sum())
    return [
        row
        for row in suspects
        if not float(((decode(arrays, outputs[row], precision.output) - expected) ** 2).sum())
        <= limit
    ]


def _count_nan(arrays: Any, operands: Operands) -> int:
    """How many elements of C are NaN."""
    c = operands.c
    if operands.problem.precision.output.name == "bf16":
        return int(((c & 0x7FFF) > 0x7F80).sum())
    return int(arrays.isnan(c).sum())


def _bands(draw: random.Random, extent: int) -> list[int]:
    """One index out of each of BANDS bands, with the first and the last."""
    edges = [extent * band // BANDS for band in range(BANDS + 1)]
    inner = {draw.randrange(low, high) for low, high in pairwise(edges) if low < high}
    return sorted(inner | {0, extent - 1})


def _difference(
    arrays: Any, operands: Operands, batch: int, rows: Any, columns: Any
) -> tuple[Any, Any]:
    """C - reference and the reference, float64, for some rows and columns (None: all)."""
    problem = operands.problem
    precision = problem.precision
    a, b = operands.a[batch], operands.b[batch]
    a = a.T if problem.layout[0] == "t" else a
    b = b.T if problem.layout[1] == "t" else b
    rows = slice(None) if rows is None else arrays.asarray(rows)
    columns = slice(None) if columns is None else arrays.asarray(columns)
    a, b = a[rows], b[:, columns]

    reference = arrays.zeros((a.shape[0], b.shape[1]), dtype=arrays.float64)
    step = max(1, CHUNK_BYTES // (8 * (a.shape[0] + b.shape[1])))
    for start in range(0, problem.k, step):
        part = slice(start, start + step)
        reference += decode(arrays, a[:, part], precision.input) @ decode(
            arrays, b[part], precision.input
        )
    reference *= problem.alpha
    if operands.c_before is not None:
        before = operands.c_before[batch][rows][:, columns]
        reference += problem.beta * decode(arrays, before, precision.output)
    written = decode(arrays, operands.c[batch][rows][:, columns], precision.output)
    return written - reference, reference
