"""Operands: allocated, filled with seeded random numbers, poisoned before every check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.problem import DataType, Problem

STORAGE: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "uint16",  # the bits: neither NumPy nor CuPy has the type
}

MAX_SETS: Final = 2048
"""Most copies of the operands: beyond, tiny problems would spend their time on being copied."""


@dataclass(frozen=True, slots=True)
class Operands:
    """Arrays of one problem on one device, in ``Problem``'s stored shapes.

    ``c_before`` is what C holds before a launch where beta is not 0, else None.
    """

    problem: Problem
    a: Any
    b: Any
    c: Any
    c_before: Any | None


def encode(arrays: Any, values: Any, data_type: DataType) -> Any:
    """FP32 or FP64 ``values`` rounded to nearest, ties to even, in ``data_type``'s storage."""
    if data_type.name == "bf16":
        bits = values.astype(arrays.float32).view(arrays.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(arrays.uint16)
    return values.astype(STORAGE[data_type.name], copy=False)


def decode(arrays: Any, stored: Any, data_type: DataType) -> Any:
    """The FP64 values of ``stored``."""
    if data_type.name == "bf16":
        stored = (stored.astype(arrays.uint32) << 16).view(arrays.float32)
    return stored.astype(arrays.float64)


def allocate(device: Device, problem: Problem, seed: int) -> Operands:
    """Operands with A, B (and C, where it is read) uniform in [-1, 1], all from ``seed``."""
    arrays = device.arrays
    random = arrays.random.default_rng(seed)

    def filled(shape: tuple[int, int, int], data_type: DataType) -> Any:
        wide = arrays.float64 if data_type.name == "fp64" else arrays.float32
        values = random.random(shape, dtype=wide)
        values *= 2
        values -= 1
        return encode(arrays, values, data_type)

    precision = problem.precision
    return Operands(
        problem,
        a=filled(problem.a_shape, precision.input),
        b=filled(problem.b_shape, precision.input),
        c=arrays.empty(problem.c_shape, dtype=STORAGE[precision.output.name]),
        c_before=filled(problem.c_shape, precision.output) if problem.beta else None,
    )


def poison(device: Device, operands: Operands) -> None:
    """Set C to what a launch must find: NaN everywhere, or ``c_before`` where beta is not 0."""
    if operands.c_before is not None:
        operands.c[...] = operands.c_before
    elif operands.problem.precision.output.name == "bf16":
        operands.c.fill(0x7FFF)  # a NaN
    else:
        operands.c.fill(device.arrays.nan)


def rotation(device: Device, operands: Operands) -> list[Operands]:
    """``operands`` and copies of it, enough that using them in turn finds none in the cache.

    That takes three times the last-level cache between two uses (CUTLASS profiler), and at least
    two sets; a quarter of the free memory is the limit. The copies hold the same numbers at other
    addresses.
    """
    size = operands.problem.operand_bytes
    wanted = max(2, -(-3 * device.last_level_cache_bytes() // size) + 1)
    affordable = device.free_bytes() // 4 // size
    copies = max(0, min(wanted - 1, affordable))
    return [operands] + [
        Operands(
            operands.problem,
            operands.a.copy(),
            operands.b.copy(),
            operands.c.copy(),
            operands.c_before,
        )
        for _ in range(copies)
    ]
