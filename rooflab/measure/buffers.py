"""Operands: allocated, filled with seeded random numbers, poisoned before every check."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from rooflab.device import Device
from rooflab.kernels import Operands
from rooflab.model.dtypes import DataType
from rooflab.model.encoding import encode
from rooflab.model.problem import Operand, Problem

ALIGNMENT: Final = 256
"""Bytes; the least that cudaMalloc guarantees, and enough for vector loads and TMA."""

MAX_COPIES: Final = 2048
"""Most buffer copies; with more, copying tiny problems would take too long."""

FILL_ELEMENTS: Final = 2**24
"""Random numbers are drawn in chunks of this size, to need little additional memory."""

SENTINELS: Final = (0x5A5A5A5A, -0x3C3C3C3C)
"""Poison of integers, which have no NaN: an element that keeps both values was not written."""

_NAN_BITS: Final = {"bf16": 0x7FFF, "fp8_e4m3": 0x7F}


def allocate(device: Device, problem: Problem, seed: int, fill: str = "uniform") -> Operands:
    """Operands with inputs filled from ``seed``; the content of outputs is undefined.

    ``fill`` is ``uniform`` in [-1, 1], ``normal`` with unit variance, ``ints`` from -2 to 2, or
    ``zeros``. The numbers change the speed of a chip (docs/measurement.md, Inputs).
    Integer operands are a hundred times as large, rounded.
    """
    arrays = {
        operand.name: device.arrays.empty(operand.shape, dtype=operand.type.storage)
        for operand in problem.operands
    }
    initial = {
        operand.name: device.arrays.empty(operand.shape, dtype=operand.type.storage)
        for operand in problem.operands
        if operand.role == "inout"
    }
    operands = Operands(problem, arrays, initial)
    refill(device, operands, seed, fill)
    return operands


def refill(device: Device, operands: Operands, seed: int, fill: str) -> None:
    """Fill every input with new numbers from ``seed``."""
    random = device.arrays.random.default_rng(seed)
    for operand in operands.problem.operands:
        if operand.read:
            target = operands.initial.get(operand.name, operands[operand.name]).reshape(-1)
            for start in range(0, target.size, FILL_ELEMENTS):
                part = target[start : start + FILL_ELEMENTS]
                part[...] = _numbers(device.arrays, random, part.size, operand.type, fill)
        if operand.role == "inout":  # timed launches must not read uninitialized memory
            operands[operand.name][...] = operands.initial[operand.name]


def _numbers(arrays: Any, random: Any, count: int, data_type: DataType, fill: str) -> Any:
    """``count`` numbers in the storage of ``data_type``."""
    wide = arrays.float64 if data_type.bytes == 8 else arrays.float32
    if fill == "zeros":
        values = arrays.zeros(count, dtype=wide)
    elif fill == "normal":
        values = random.standard_normal(count, dtype=wide)
    elif fill == "ints":
        values = arrays.floor(random.random(count, dtype=wide) * 5) - 2
    else:
        values = random.random(count, dtype=wide)
        values *= 2
        values -= 1
    if data_type.integer and fill != "ints":
        values = arrays.rint(values * 100)
    return encode(arrays, values, data_type)


# Poison ------------------------------------------------------------------------------------------


def poison(operands: Operands, pattern: int = 0) -> None:
    """Set every output to its content before a launch: NaN, a sentinel, or the initial values."""
    for operand in operands.problem.operands:
        if operand.written:
            _poison(operand, operands[operand.name], operands.initial, pattern)


def _poison(operand: Operand, array: Any, initial: Mapping[str, Any], pattern: int) -> None:
    """``array`` has the operand's shape, or one row of its elements per buffer copy."""
    if operand.role == "inout":
        content = initial[operand.name]
        array[...] = content if array.shape == content.shape else content.reshape(-1)
    else:
        poison_array(operand, array, pattern)


def poison_array(operand: Operand, array: Any, pattern: int = 0) -> None:
    """Set ``array``, or a part of it, to NaN or a sentinel."""
    if operand.type.integer:
        array.fill(SENTINELS[pattern])
    else:
        array.fill(_NAN_BITS.get(operand.type.name, float("nan")))


# Rotation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rotation:
    """Buffer copies of a problem's operands, used in turn, and a flush of the cache if needed.

    ``blocks`` holds each operand of all copies in one array, a row of elements per copy. ``flush``
    overwrites the cache; it runs before each launch or batch if the copies are too small to evict
    each other. It is None if they are large enough, or the cache should be warm.
    """

    copies: list[Operands]
    blocks: Mapping[str, Any]
    flush: Callable[[], None] | None

    @property
    def problem(self) -> Problem:
        """The problem of all copies."""
        return self.copies[0].problem

    def outputs(self, count: int) -> Iterator[tuple[Operand, Any]]:
        """Each output operand, with a row of elements for each of the first ``count`` copies."""
        for operand in self.problem.operands:
            if operand.written:
                yield operand, self.blocks[operand.name][:count]

    def poison(self, count: int, pattern: int) -> None:
        """Poison the outputs of the first ``count`` copies."""
        for operand, rows in self.outputs(count):
            _poison(operand, rows, self.copies[0].initial, pattern)

    def refill(self, device: Device, seed: int, fill: str) -> None:
        """Give all copies the same new inputs."""
        refill(device, self.copies[0], seed, fill)
        for operand in self.problem.operands:
            if operand.role == "in" and len(self.copies) > 1:
                self.blocks[operand.name][1:] = self.blocks[operand.name][0]


def rotate(device: Device, operands: Operands, *, cold: bool) -> Rotation:
    """``operands`` and copies of them with the same numbers at other addresses.

    Three times the last-level cache is used between two uses of a copy (CUTLASS profiler), within a
    quarter of the free memory and MAX_COPIES; otherwise the cache is flushed.
    """
    problem = operands.problem
    size, cache = problem.operand_bytes, device.last_level_cache_bytes()
    wanted = max(2, -(-3 * cache // size) + 1) if cold else 1
    count = max(1, min(wanted, device.free_bytes() // 4 // size, MAX_COPIES))
    blocks = {name: _rows(device.arrays, operands[name], count) for name in operands}
    copies = [
        Operands(
            problem,
            {
                operand.name: blocks[operand.name][i].reshape(operand.shape)
                for operand in problem.operands
            },
            operands.initial,
        )
        for i in range(count)
    ]
    return Rotation(copies, blocks, None if count == wanted else flusher(device))


def flusher(device: Device) -> Callable[[], None]:
    """A function that overwrites twice the last-level cache."""
    scratch = device.arrays.empty(2 * device.last_level_cache_bytes() + 1, dtype="uint8")
    return lambda: scratch.fill(0)


def _rows(arrays: Any, source: Any, count: int) -> Any:
    """``count`` equal rows with the elements of ``source``, each at a multiple of ALIGNMENT.

    A single row is ``source`` itself: a copy of a large problem may not fit in memory.
    """
    if count == 1:
        return source.reshape(1, -1)
    items = -(-source.nbytes // ALIGNMENT) * ALIGNMENT // source.itemsize
    block = arrays.empty((count, items), dtype=source.dtype)
    block[:, : source.size] = source.reshape(-1)
    return block[:, : source.size]
