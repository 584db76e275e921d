"""Operands: allocated, filled with seeded random numbers, poisoned before every check, guarded."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.kernels.base import Operands
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

GUARD: Final = 0xFFFF
"""What guard zones around inputs are filled with: NaN in every format, so that reading one shows in
the results too. Outputs have other bits around them, so that a copy from around an input shows."""

LEAST_GUARD: Final = 2**13
MOST_GUARD: Final = 2**16
"""Bytes of a guard zone: two pages, and more beside operands of which they are a small part."""

PARTS: Final = 64
"""Sums of a checksum: where signs change, a single one may stay the same. ALIGNMENT has words for
all of them."""


def allocate(device: Device, problem: Problem, seed: int, fill: str = "uniform") -> Operands:
    """Operands with inputs filled from ``seed``, without guards; outputs hold anything.

    ``fill`` is ``uniform`` in [-1, 1], ``normal`` with unit variance, ``ints`` from -2 to 2, or
    ``zeros``. The numbers change the speed of a chip (docs/measurement.md, Inputs).
    Integer operands are a hundred times as large, rounded. Operands with limits are ``uniform``
    between them, or with ``zeros`` at the lower one; those with a step are ``uniform`` always.
    Constant ones depend on neither of the two.
    """
    arrays = {operand.name: _empty(device, operand) for operand in problem.operands}
    operands = Operands(problem, arrays, _initial(device, problem))
    refill(device, operands, seed, fill)
    return operands


def _empty(device: Device, operand: Operand) -> Any:
    return device.arrays.empty(operand.shape, dtype=operand.type.storage)


def _initial(device: Device, problem: Problem) -> dict[str, Any]:
    """Room for the content, before a launch, of what is read and written."""
    return {one.name: _empty(device, one) for one in problem.operands if one.role == "inout"}


def refill(device: Device, operands: Operands, seed: int, fill: str) -> None:
    """Fill every input with new numbers from ``seed``."""
    random = device.arrays.random.default_rng(seed)
    for operand in operands.problem.operands:
        if operand.constant:
            _write_constant(device.arrays, operands[operand.name].reshape(-1), operand)
        elif operand.read:
            target = operands.initial.get(operand.name, operands[operand.name]).reshape(-1)
            _draw(device.arrays, random, target, operand, fill)
        if operand.role == "inout":  # timed launches must not read uninitialized memory
            operands[operand.name][...] = operands.initial[operand.name]


def _write_constant(arrays: Any, target: Any, operand: Operand) -> None:
    """Fill ``target``, which has one axis, with the same numbers as always."""
    if operand.numbers:
        target[...] = encode(arrays, arrays.asarray(operand.numbers), operand.type)
    else:
        _draw(arrays, arrays.random.default_rng(0), target, operand, "uniform")


def _draw(arrays: Any, random: Any, target: Any, operand: Operand, fill: str) -> None:
    """Fill ``target``, which has one axis, with random numbers."""
    if operand.step:
        _draw_rows(arrays, random, target.reshape(-1, operand.shape[-1]), operand)
        return
    for start in range(0, target.size, FILL_ELEMENTS):
        part = target[start : start + FILL_ELEMENTS]
        part[...] = _numbers(arrays, random, part.size, operand, fill)


def _draw_rows(arrays: Any, random: Any, rows: Any, operand: Operand) -> None:
    """Fill ``rows`` with numbers that differ within each."""
    count = max(1, FILL_ELEMENTS // _multiples(operand))
    for start in range(0, len(rows), count):
        part = rows[start : start + count]
        part[...] = encode(arrays, distinct(arrays, random, len(part), operand), operand.type)


def _multiples(operand: Operand) -> int:
    """How many multiples of its step an operand may have."""
    low, high = operand.within or (0.0, 0.0)
    return round((high - low) / operand.step) + 1


def distinct(arrays: Any, random: Any, count: int, operand: Operand) -> Any:
    """``count`` rows of an operand with a step: multiples of it, those of a row in random order."""
    shares = random.random((count, _multiples(operand)))
    places = arrays.argsort(shares, axis=1)[:, : operand.shape[-1]]
    low, _ = operand.within or (0.0, 0.0)
    return places * operand.step + low


def between(arrays: Any, shares: Any, operand: Operand) -> Any:
    """Numbers within the limits of an operand, from ``shares`` between 0 and 1."""
    low, high = operand.within or (0.0, 1.0)
    if operand.type.integer:
        return arrays.minimum(arrays.floor(shares * (high - low + 1)) + low, high)
    return low + shares * (high - low)


def _numbers(arrays: Any, random: Any, count: int, operand: Operand, fill: str) -> Any:
    """``count`` numbers as ``operand`` stores them."""
    data_type = operand.type
    wide = arrays.float64 if data_type.bytes == 8 else arrays.float32
    if operand.within:
        shares = random.random(count, dtype=arrays.float64) * (fill != "zeros")
        return encode(arrays, between(arrays, shares, operand), data_type)
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
        bits = operand.type.nan
        array.fill(float("nan") if bits is None else bits)


# Guards ------------------------------------------------------------------------------------------


Memory = Callable[[int], Any]
"""Allocates so many bytes, as an array."""


class Strip:
    """One operand of all buffer copies, in one ``memory``, with a guard zone around each copy.

    ``rows`` has a row of elements for each copy, ``zones`` the bytes outside of them. The zone past
    the end of a copy is that before the next one.
    """

    def __init__(
        self, device: Device, operand: Operand, count: int, memory: Memory | None = None
    ) -> None:
        arrays = device.arrays
        self.operand = operand
        guard = guard_bytes(operand)
        stride = -(-(operand.bytes + guard) // ALIGNMENT) * ALIGNMENT
        size = guard + count * stride + ALIGNMENT
        self.memory = memory(size) if memory else arrays.empty(size, dtype="uint8")
        start = guard + -(_address(self.memory) + guard) % ALIGNMENT
        block = self.memory[start : start + count * stride]
        # Odd numbers of bytes have no whole words.
        unit = "uint8" if operand.type.bytes == 1 else "uint16"
        content = operand.type.signalling if operand.written else GUARD
        self._guard = content >> (8 if unit == "uint8" else 0)
        end = operand.bytes // arrays.dtype(unit).itemsize
        self._words = block.view("uint32").reshape(PARTS, -1)
        size = arrays.dtype(operand.type.storage).itemsize
        self.rows = block.view(operand.type.storage).reshape(count, stride // size)
        self.rows = self.rows[:, : operand.elements]
        self.zones = {
            "past the end of": block.view(unit).reshape(count, -1)[:, end:],
            "before the start of": self.memory[start - guard : start].view(unit),
        }
        self.arm()

    @property
    def places(self) -> list[int]:
        """Where each copy begins in ``memory``, in bytes."""
        first = _address(self.rows) - _address(self.memory)
        return [first + i * self.rows.strides[0] for i in range(len(self.rows))]

    def differ(self, device: Device, seed: int, fill: str) -> None:
        """Fill each copy with numbers of its own."""
        arrays, count = device.arrays, max(1, FILL_ELEMENTS // self.operand.elements)
        random = arrays.random.default_rng(seed)
        for start in range(0, len(self.rows), count):
            rows = self.rows[start : start + count]
            numbers = arrays.empty(rows.shape, dtype=rows.dtype)
            _draw(arrays, random, numbers.reshape(-1), self.operand, fill)
            rows[...] = numbers

    def copies(self) -> list[Any]:
        """The operand of each copy, in its shape."""
        return [row.reshape(self.operand.shape) for row in self.rows]

    def arm(self) -> None:
        """Fill the guard zones."""
        for zone in self.zones.values():
            zone.fill(self._guard)

    def disarm(self, where: str) -> None:
        """Fill one of the guard zones with zeros."""
        self.zones[where].fill(0)

    def checksum(self) -> tuple[int, ...]:
        """Of all copies, and of the guards between them, which are fast to read in one piece."""
        return tuple(map(int, self._words.sum(axis=1, dtype="uint64").tolist()))

    def broken(self) -> str:
        """Where a launch has written outside this operand, empty if it has not."""
        for where, zone in self.zones.items():
            if bool((zone != self._guard).any()):
                return f"writes {where} {self.operand.title}"
        return ""


def guard_bytes(operand: Operand) -> int:
    """The size of a guard zone: a multiple of ALIGNMENT, at least two pages."""
    share = operand.bytes // 16 // ALIGNMENT * ALIGNMENT
    return min(MOST_GUARD, max(LEAST_GUARD, share))


def _address(memory: Any) -> int:
    """The address of an array's first byte, on the host or on a GPU."""
    for name in ("__cuda_array_interface__", "__array_interface__"):
        if interface := getattr(memory, name, None):
            return int(interface["data"][0])
    return 0


# Rotation ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Rotation:
    """Buffer copies of a problem's operands, used in turn, and a flush of the cache if needed.

    ``flush`` runs before each launch that is timed alone, and before a batch, if the copies are too
    few to evict each other. It is None if they are enough, or the cache should be warm.
    ``refill`` gives all copies the same inputs, from ``seed`` and ``fill``.
    """

    copies: list[Operands]
    strips: Mapping[str, Strip]
    flush: Callable[[], None] | None
    seed: int
    fill: str

    @property
    def problem(self) -> Problem:
        """The problem of all copies."""
        return self.copies[0].problem

    def outputs(self) -> Iterator[tuple[Operand, Any]]:
        """Each output operand, with a row of elements for each copy."""
        for strip in self.strips.values():
            if strip.operand.written:
                yield strip.operand, strip.rows

    def poison(self, pattern: int) -> None:
        """Poison the outputs of all copies."""
        for operand, rows in self.outputs():
            _poison(operand, rows, self.copies[0].initial, pattern)

    def filled(self, device: Device, fill: str) -> Rotation:
        """The same copies with other inputs."""
        other = replace(self, fill=fill)
        other.refill(device)
        return other

    def refill(self, device: Device) -> None:
        """Give all copies their inputs again."""
        refill(device, self.copies[0], self.seed, self.fill)
        for strip in self.strips.values():
            if strip.operand.role != "out" and len(self.copies) > 1:
                strip.rows[1:] = strip.rows[0]

    def operands(self) -> list[Operands]:
        """The copies for one kernel, which may do to these objects what it likes."""
        problem = replace(self.problem)
        return [Operands(problem, dict(copy), dict(copy.initial)) for copy in self.copies]

    def differ(self, device: Device, seed: int) -> None:
        """Give each copy inputs of its own; what is read and written starts as in all others."""
        replace(self, seed=seed).refill(device)
        for i, strip in enumerate(self.strips.values()):
            if strip.operand.role == "in" and not strip.operand.constant:
                strip.differ(device, seed + i, self.fill)

    def trespass(self) -> str:
        """Which guard zone a launch has written to, empty if none; they are whole afterwards."""
        found = [reason for strip in self.strips.values() if (reason := strip.broken())]
        if found:
            self.arm()
        return found[0] if found else ""

    def arm(self) -> None:
        """Make all guard zones as they should stay."""
        for strip in self.strips.values():
            strip.arm()

    def inputs(self) -> tuple[tuple[int, ...], ...]:
        """A checksum of each input, over all copies; the guards must be whole."""
        read = (strip for strip in self.strips.values() if strip.operand.role == "in")
        initial = (int(checksum(one)) for one in self.copies[0].initial.values())
        return (*(strip.checksum() for strip in read), tuple(initial))


def checksum(content: Any) -> Any:
    """The sum of an array's bits, element by element as unsigned integers, modulo 2**64."""
    return content.view(f"uint{8 * content.itemsize}").sum(dtype="uint64")


def rotate(
    device: Device,
    problem: Problem,
    seed: int,
    fill: str = "uniform",
    *,
    cold: bool,
    least: int = 1,
    memory: Memory | None = None,
) -> Rotation:
    """Operands filled as by ``allocate``, and copies with the same numbers at other addresses.

    Launches touch three times the last-level cache between two uses of a copy (CUTLASS profiler),
    within a quarter of the free memory and MAX_COPIES; otherwise the cache is flushed. A device
    that can evict single operands from its caches needs one copy. There are at least so many copies
    if they fit; ``memory`` is where they are.
    """
    size, cache = problem.operand_bytes, device.last_level_cache_bytes()
    touched = max(1, min(size, problem.bytes))  # a launch may need few rows of a table
    wanted = max(2, -(-3 * cache // touched) + 1) if cold and not device.evicts else 1
    most = max(1, min(device.free_bytes() // 4 // size, MAX_COPIES))
    count = min(max(wanted, least), most)
    strips = {one.name: Strip(device, one, count, memory) for one in problem.operands}
    each = {name: strip.copies() for name, strip in strips.items()}
    initial = _initial(device, problem)
    copies = [
        Operands(problem, {name: arrays[i] for name, arrays in each.items()}, initial)
        for i in range(count)
    ]
    flush = None
    if cold and device.evicts:
        flush = device.evictor(list(copies[0].values()))
    elif count < wanted:
        flush = flusher(device)
    rotation = Rotation(copies, strips, flush, seed, fill)
    rotation.refill(device)
    return rotation


def flusher(device: Device) -> Callable[[], None]:
    """A function that overwrites twice the last-level cache."""
    scratch = device.arrays.empty(2 * device.last_level_cache_bytes() + 1, dtype="uint8")

    def flush() -> None:
        scratch.fill(0)

    flush()  # loads its code, which would wait for a closed gate
    return flush
