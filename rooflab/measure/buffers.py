"""Operands: allocated, filled with seeded random numbers, poisoned before every check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.problem import DataType, Problem

STORAGE: Final = {
    "fp64": "float64",
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "uint16",  # the bits: neither NumPy nor CuPy has the type
    "fp8_e4m3": "uint8",  # the same
}

ALIGNMENT: Final = 256
"""Bytes; what cudaMalloc promises at least, and vector loads and TMA rely on."""

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
    """FP32 or FP64 ``values`` rounded to nearest, ties to even, in ``data_type``'s storage.

    E4M3 has no infinity: what is too large becomes the largest number.
    """
    if data_type.name == "bf16":
        bits = values.astype(arrays.float32).view(arrays.uint32)
        return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(arrays.uint16)
    if data_type.name == "fp8_e4m3":
        return _encode_e4m3(arrays, values)
    return values.astype(STORAGE[data_type.name], copy=False)


def decode(arrays: Any, stored: Any, data_type: DataType) -> Any:
    """The FP64 values of ``stored``."""
    if data_type.name == "bf16":
        stored = (stored.astype(arrays.uint32) << 16).view(arrays.float32)
    if data_type.name == "fp8_e4m3":
        return arrays.asarray(E4M3)[stored]
    return stored.astype(arrays.float64)


def _e4m3(byte: int) -> float:
    """The number: sign, 4 bits of exponent, 3 of mantissa (Open Compute Project, OFP8, 2023)."""
    exponent, mantissa = (byte & 0x7F) >> 3, byte & 7
    if exponent == 15 and mantissa == 7:
        return nan
    # The lowest exponent has no hidden bit: steps of 2^-9, down to zero.
    size = (mantissa + (8 if exponent else 0)) * 2.0 ** (max(exponent, 1) - 10)
    return -size if byte & 0x80 else size


E4M3: Final = tuple(map(_e4m3, range(256)))
"""What each byte stands for."""

E4M3_MAX: Final = 448.0


def _encode_e4m3(arrays: Any, values: Any) -> Any:
    """The byte of the nearest E4M3 number, ties to even; beyond the largest, the largest."""
    sizes = arrays.fmin(arrays.abs(values), E4M3_MAX)
    # A size below 2^exponent counts in steps of 2^(exponent - 4): 8 to 15 of them make 8 bytes that
    # follow those of the exponent below, and 16 the first of the next. What is less than 2^-6
    # counts in the steps of 2^-6.
    _, exponents = arrays.frexp(arrays.maximum(sizes, 2.0**-6))
    steps = arrays.rint(arrays.ldexp(sizes, 4 - exponents)).astype(arrays.uint8)
    codes = steps + (8 * (exponents + 5)).astype(arrays.uint8)
    codes += arrays.isnan(values)  # fmin made it the largest: NaN's byte is the next
    return codes | (arrays.signbit(values).astype(arrays.uint8) << 7)


def allocate(device: Device, problem: Problem, seed: int, fill: str = "uniform") -> Operands:
    """Operands with A, B (and C, where it is read) filled from ``seed``.

    ``uniform`` in [-1, 1], ``normal`` with unit variance, ``ints`` from -2 to 2, or ``zeros``: what
    the numbers are changes how fast a chip computes, by more than 10 % between random and zero.
    """
    arrays = device.arrays
    random = arrays.random.default_rng(seed)

    def filled(shape: tuple[int, int, int], data_type: DataType) -> Any:
        wide = arrays.float64 if data_type.name == "fp64" else arrays.float32
        if fill == "zeros":
            values = arrays.zeros(shape, dtype=wide)
        elif fill == "normal":
            values = random.standard_normal(shape, dtype=wide)
        elif fill == "ints":
            values = arrays.floor(random.random(shape, dtype=wide) * 5) - 2
        else:
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


def poison(device: Device, operands: Operands, outputs: Any | None = None) -> None:
    """Set C to what a launch must find: NaN everywhere, or ``c_before`` where beta is not 0.

    ``outputs`` stands for several C of that problem, a row of elements each.
    """
    rows = operands.c.reshape(1, -1) if outputs is None else outputs
    if operands.c_before is not None:
        rows[...] = operands.c_before.reshape(-1)
    elif operands.problem.precision.output.name == "bf16":
        rows.fill(0x7FFF)  # a NaN
    else:
        rows.fill(device.arrays.nan)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Sets of operands to be used in turn, and what makes sure that they start cold.

    ``outputs`` is every C in one array, a row of elements per set. ``flush`` overwrites the cache;
    it runs before each launch, or before each batch, where the sets alone are too small to drive
    each other out. None where they are not, or where warm is wanted.
    """

    sets: list[Operands]
    outputs: Any
    flush: Callable[[], None] | None


def rotate(device: Device, operands: Operands, *, cold: bool) -> Rotation:
    """``operands`` and copies of it with the same numbers at other addresses.

    Three times the last-level cache passes between two uses of a set (CUTLASS profiler), as far as
    a quarter of the free memory and MAX_SETS allow; else the cache is flushed.
    """
    size, cache = operands.problem.operand_bytes, device.last_level_cache_bytes()
    wanted = max(2, -(-3 * cache // size) + 1) if cold else 1
    count = max(1, min(wanted, device.free_bytes() // 4 // size, MAX_SETS))
    problem, arrays = operands.problem, device.arrays
    a, b, c = (_rows(arrays, one, count) for one in (operands.a, operands.b, operands.c))
    sets = [
        Operands(
            problem,
            a[i].reshape(problem.a_shape),
            b[i].reshape(problem.b_shape),
            c[i].reshape(problem.c_shape),
            operands.c_before,
        )
        for i in range(count)
    ]
    return Rotation(sets, c, None if count == wanted else flusher(device))


def flusher(device: Device) -> Callable[[], None]:
    """Writes twice the last-level cache."""
    scratch = device.arrays.empty(2 * device.last_level_cache_bytes() + 1, dtype="uint8")
    return lambda: scratch.fill(0)


def _rows(arrays: Any, source: Any, count: int) -> Any:
    """``source`` as one of ``count`` rows of its elements, all alike, each on an ALIGNMENT.

    A single row is ``source`` itself: a large problem may have no room for a copy.
    """
    if count == 1:
        return source.reshape(1, -1)
    items = -(-source.nbytes // ALIGNMENT) * ALIGNMENT // source.itemsize
    block = arrays.empty((count, items), dtype=source.dtype)
    block[:, : source.size] = source.reshape(-1)
    return block[:, : source.size]
