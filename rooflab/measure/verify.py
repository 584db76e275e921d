"""Verification: a kernel's outputs against a float64 reference, computed on the device.

Works for any workload: the problem gives the reference, the tolerance and the pieces to compare.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import nan, prod, sqrt
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.measure.buffers import SENTINELS, Rotation, poison
from rooflab.model.encoding import count_nan, decode, encode
from rooflab.model.problem import PIECE_ELEMENTS, Hard, Index, Operand, Piece, Problem, boxes

OUTLIER: Final = 16.0
"""Largest error of a single element, in tolerances; rounding stays below five."""

SKETCHES: Final = 64
"""Parts of a row, each of which is multiplied with random numbers of its own."""

SKETCHED: Final = 6.0
"""Largest error of such a product, in tolerances of the root of the sum of its squared terms."""

CONFIRMED: Final = 3
"""Times that a cause must show: results that come too late are right by chance, now and then."""

SAMPLE: Final = 2**20
"""Elements of an input from which its magnitude is estimated."""

WORKSPACE_BYTES: Final = 2**29
"""Memory that verification needs beside the operands: some float64 arrays of one piece."""


@dataclass(frozen=True, slots=True)
class Accuracy:
    """``rel_error`` is ‖out - ref‖ / ‖ref‖ over the compared elements; no ``reason`` if right."""

    rel_error: float
    reason: str = ""


def verify(device: Device, operands: Operands, seed: int) -> Accuracy:
    """Compare every output with the problem's reference for the inputs that are there."""
    return Expected(device, operands, seed).verdict(operands)


class Expected:
    """What the outputs should be for the inputs that ``operands`` hold when this is made.

    ``seed`` chooses what is compared if not everything can be. References of up to ``most_bytes``
    are computed now and kept; larger ones are computed again for each verdict. With ``hard`` only
    those parts are compared, each for itself.
    """

    def __init__(
        self,
        device: Device,
        operands: Operands,
        seed: int,
        most_bytes: int = 0,
        hard: Sequence[Hard] = (),
    ) -> None:
        self._device, self._operands, self._seed = device, operands, seed
        self._outputs = [operand for operand in operands.problem.operands if operand.written]
        if hard:
            self._parts = [_Part(device, one.title, [one.piece]) for one in hard]
        else:
            pieces = list(operands.problem.pieces(random.Random(seed)))
            self._parts = [_Part(device, "", pieces)]
        sketched = operands.problem.sketched and not hard
        self._sketch = _Sketch(device, operands, seed) if sketched else None
        size = sum(part.bytes(operands.problem) for part in self._parts)
        self.kept = size <= most_bytes
        if self.kept:
            for part in self._parts:
                part.keep(operands)

    def verdict(self, operands: Operands) -> Accuracy:
        """Whether these outputs are right.

        ‖ref‖ is at least its expected size, so that rounding is not an error if the reference
        cancels. Outputs are poisoned with NaN, and every element is checked for it. The error of
        single elements is also limited, because the norm may hide a wrong corner.
        """
        if reason := self._not_numbers(operands):
            return Accuracy(nan, reason)
        verdicts = [found for part in self._parts for found in part.verdicts(operands)]
        wrong = [verdict for verdict in verdicts if verdict.reason]
        if wrong:
            return wrong[0]
        verdict = max(verdicts, key=lambda verdict: verdict.rel_error)
        if self._sketch and (reason := self._sketch.wrong(operands)):
            return Accuracy(verdict.rel_error, reason)
        return verdict

    def _not_numbers(self, operands: Operands) -> str:
        arrays = self._device.arrays
        for operand in self._outputs:
            bad = count_nan(arrays, operands[operand.name], operand.type)
            if not bad:
                continue
            for part in self._parts:
                if part.decides(operand, bad, operands):
                    return f"on {part.title}: {operand.title} is NaN there"
            return (
                f"{bad} of {operand.elements} elements of {operand.title} are NaN: "
                "not written, or not a number"
            )
        return ""


class _Part:
    """Pieces that are judged together, and their reference if it is kept."""

    def __init__(self, device: Device, title: str, pieces: Sequence[Piece]) -> None:
        self._device, self.title, self._pieces = device, title, pieces
        self._kept: list[Mapping[str, Any]] = []
        self._sizes: Mapping[str, float] = {}

    def bytes(self, problem: Problem) -> int:
        """Of the reference."""
        written = [operand for operand in problem.operands if operand.written]
        return 8 * sum(_count(operand, piece) for operand in written for piece in self._pieces)

    def keep(self, operands: Operands) -> None:
        """Compute the reference now."""
        self._kept = [expected for _, expected in self._references(operands)]
        self._sizes = self._input_sizes(operands)

    def _judged(self, problem: Problem) -> list[Operand]:
        """The outputs that are known here: a titled part has too little of a sum."""
        lacking = problem.summed if self.title else ()
        return [one for one in problem.operands if one.written and one.name not in lacking]

    def verdicts(self, operands: Operands) -> list[Accuracy]:
        """One for each output."""
        arrays, problem = self._device.arrays, operands.problem
        tallies = {one.name: _Tally(one) for one in self._judged(problem)}
        totals = {name: 0.0 for name in problem.summed if name in tallies}
        kept = zip(self._pieces, self._kept, strict=True) if self._kept else None
        for piece, expected in kept or self._references(operands):
            if lacking := sorted(tallies.keys() - expected.keys()):
                returned = ", ".join(map(repr, expected)) or "nothing"
                raise KernelError(
                    f"the reference of {problem.workload} returns {returned}, "
                    f"not {', '.join(lacking)}"
                )
            for name, tally in tallies.items():
                if name in totals:
                    totals[name] = totals[name] + expected[name]
                else:
                    tally.add(arrays, operands, piece, expected[name])
        for name, total in totals.items():
            tallies[name].add(arrays, operands, Piece(), total)
        sizes = self._sizes if self._kept else self._input_sizes(operands)
        found = [
            tally.verdict(problem, problem.magnitude_of(tally.operand, sizes))
            for tally in tallies.values()
            if tally.compared or not self.title
        ]
        where = f"on {self.title}: " if self.title else ""
        return [Accuracy(v.rel_error, where + v.reason if v.reason else "") for v in found]

    def decides(self, operand: Operand, bad: int, operands: Operands) -> bool:
        """Whether the ``bad`` elements of an output that are NaN are all in this titled part."""
        if not self.title or operand not in self._judged(operands.problem):
            return False
        return self._not_numbers(operands, operand) == bad

    def _not_numbers(self, operands: Operands, operand: Operand) -> int:
        arrays = self._device.arrays
        stored = (
            operands[operand.name][_on(arrays, _index(operand, piece))] for piece in self._pieces
        )
        return sum(count_nan(arrays, one, operand.type) for one in stored)

    def _references(self, operands: Operands) -> Iterator[tuple[Piece, Mapping[str, Any]]]:
        for piece in self._pieces:
            inputs = _Inputs(self._device, operands, piece, operands.problem.moves)
            yield piece, operands.problem.reference(self._device.arrays, inputs)

    def _input_sizes(self, operands: Operands) -> dict[str, float]:
        """The root mean square of each input here."""
        # Without a title the part is a sample of everything.
        piece = self._pieces[0] if self.title else Piece()
        return _Inputs(self._device, operands, piece).sizes()


def _index(operand: Operand, piece: Piece) -> Index:
    return piece.select.get(operand.name, (slice(None),) * len(operand.shape))


def _count(operand: Operand, piece: Piece) -> int:
    """Elements of an operand in a piece."""
    lengths = [
        len(part) if isinstance(part, list) else len(range(*part.indices(extent)))
        for part, extent in zip(_index(operand, piece), operand.shape, strict=True)
    ]
    return prod(lengths)


class _Sketch:
    """Products of an output with random numbers, in which every element counts.

    Freivalds, "Probabilistic Machines Can Use Less Running Time", 1977: they need n² operations
    where the output needs n³.
    """

    def __init__(self, device: Device, operands: Operands, seed: int) -> None:
        arrays, problem = device.arrays, operands.problem
        self._device = device
        self._output = next(one for one in problem.operands if one.name == problem.sketched)
        self._columns = self._output.shape[-1]
        self._count = min(SKETCHES, self._columns)
        places, random = arrays.arange(self._columns), arrays.random.default_rng(seed)
        if self._output.type.integer:  # exact, modulo what it can hold: odd ones lose no bit
            numbers = 2 * random.integers(0, 2**15, self._columns) + 1
        else:  # none is small
            numbers = random.random(self._columns) + 0.5
            numbers *= arrays.where(random.random(self._columns) < 0.5, -1.0, 1.0)
        self._weights = arrays.zeros((self._columns, self._count), dtype=numbers.dtype)
        self._weights[places, places * self._count // self._columns] = numbers
        inputs = _Inputs(device, operands, Piece())
        self._expected = problem.sketch(arrays, inputs, self._weights)
        if self._output.type.integer:
            return
        # A product is a sum of so many elements, with factors of about 1.
        terms = sqrt(self._columns / self._count)
        size = sqrt(float((self._expected * self._expected).mean())) / terms
        self._size = max(size, problem.magnitude(inputs.sizes()))
        self._tolerance = SKETCHED * problem.tolerance
        self._squares = self._weights * self._weights

    def wrong(self, operands: Operands) -> str:
        """Where a product differs by more than rounding, empty if none does."""
        arrays, output = self._device.arrays, self._output
        rows = max(1, PIECE_ELEMENTS // self._columns)
        for box in boxes(output.shape[:-1], rows):
            stored = decode(arrays, operands[output.name][box], output.type)
            off = stored @ self._weights - self._expected[box]
            if output.type.integer and output.type.bytes < 8:
                off = off & (2 ** (8 * output.type.bytes) - 1)
            excess = self._excess(off, stored)
            at = int(excess.argmax())
            if not float(excess.reshape(-1)[at]) <= 0:
                *place, part = _place((*box, slice(None)), off.shape, at)
                first, last = (-(-i * self._columns // self._count) for i in (part, part + 1))
                where = ", ".join(map(str, place[place[0] == 0 and output.shape[0] == 1 :]))
                columns = f"in columns {first} to {last - 1}"
                return f"elements of {output.title}[{where}] are wrong {columns}"
        return ""

    def _excess(self, off: Any, stored: Any) -> Any:
        """By how much products are too far off: a rounding is as large as its number."""
        arrays = self._device.arrays
        if self._output.type.integer:
            return (off != 0).astype(arrays.int8)
        sizes = stored * stored + self._size**2
        return abs(off) - self._tolerance * arrays.sqrt(sizes @ self._squares)


def right(device: Device, operands: Operands) -> None:
    """Write the reference's results."""
    arrays, problem = device.arrays, operands.problem
    results = problem.reference(arrays, _Inputs(device, operands, Piece()))
    for operand in problem.operands:
        if operand.written:
            operands[operand.name][...] = encode(arrays, results[operand.name], operand.type)


def put(
    device: Device, operands: Operands, hard: Hard, stored: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Write hard inputs, or what is ``stored``, into operands; returns what was there.

    An index of one axis is a place in the flat operand.
    """
    import numpy as np

    arrays, old = device.arrays, {}
    types = {operand.name: operand.type for operand in operands.problem.operands}
    for name, (part, values) in hard.values.items():
        array, index = operands.initial.get(name, operands[name]), _on(arrays, part)
        array = array.reshape(-1) if len(index) == 1 else array
        old[name] = array[index].copy()
        if stored is not None:
            new = stored[name]
        elif isinstance(values, (int, float)):  # a GPU's arithmetic may make it another zero
            new = arrays.asarray(encode(np, np.asarray([values]), types[name]))
        else:
            new = encode(arrays, values, types[name])
        array[index] = new
    return old


def reads_output(device: Device, operands: Operands, launch: Launch, seed: int) -> Accuracy | None:
    """A verdict if NaN results are right whenever the outputs held zeros: the kernel reads them.

    Many GEMM kernels compute alpha·AB + beta·C without a test for beta = 0, and 0 · NaN is NaN.
    """
    outputs = [operand for operand in operands.problem.operands if operand.role == "out"]

    def right(fill: bool) -> bool:
        for operand in outputs:
            operands[operand.name].fill(0)
        if not fill:
            poison(operands)
        device.synchronize()
        launch()
        device.synchronize()
        return not verify(device, operands, seed).reason

    if not outputs or not all(right(True) and not right(False) for _ in range(CONFIRMED)):
        return None
    names = " and ".join(operand.title for operand in outputs)
    return Accuracy(
        nan,
        f"reads {names}, which is only written here, so that NaN in it spreads; the results are "
        "right if it holds zeros (of a GEMM, read C only if beta is not 0)",
    )


def unlike(device: Device, rotation: Rotation, places: Sequence[int]) -> list[int]:
    """The buffer copies of ``places`` with outputs that differ from those of the first of them.

    Differences by rounding are allowed: each launch may add in another order. All bits are compared
    first.
    """
    arrays = device.arrays
    first, *others = places
    found: set[int] = set()
    for operand, rows in rotation.outputs():
        suspects = [place for place in others if bool((rows[place] != rows[first]).any())]
        if not suspects:
            continue
        expected = decode(arrays, rows[first], operand.type)
        tolerance = rotation.problem.tolerance_of(operand)
        limit = (2 * tolerance) ** 2 * float((expected.astype(arrays.float64) ** 2).sum())
        for place in suspects:
            off = (decode(arrays, rows[place], operand.type) - expected).astype(arrays.float64)
            if not float((off**2).sum()) <= limit:
                found.add(place)
    return sorted(found)


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of one piece, decoded on demand, or the ``bits`` of each element."""

    device: Device
    operands: Operands
    piece: Piece
    bits: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.part(name, (...,))

    def part(self, name: str, index: Index) -> Any:
        stored = self._stored(name)[index]
        if self.bits:
            return _bits(stored)
        operands = {operand.name: operand for operand in self.operands.problem.operands}
        return decode(self.device.arrays, stored, operands[name].type)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._stored(name).shape)

    def sizes(self) -> dict[str, float]:
        """The root mean square of each input, from its first elements."""
        arrays, found = self.device.arrays, {}
        for operand in self.operands.problem.operands:
            if operand.read:
                some = self._stored(operand.name).reshape(-1)[:SAMPLE]
                some = decode(arrays, some, operand.type).astype(arrays.float64)
                found[operand.name] = sqrt(float((some * some).mean()))
        return found

    def _stored(self, name: str) -> Any:
        stored = self.operands.initial.get(name, self.operands[name])
        return stored[_on(self.device.arrays, self.piece.select.get(name, (...,)))]


def _bits(stored: Any) -> Any:
    """Of each element, as an unsigned integer."""
    return stored.view(f"uint{8 * stored.itemsize}")


def _on(arrays: Any, index: Index) -> Index:
    """``index`` with its lists of positions as arrays on the device, for one or for two axes."""
    lists = [part for part in index if isinstance(part, list)]
    if len(lists) < 2:
        return tuple(arrays.asarray(part) if isinstance(part, list) else part for part in index)
    places = [
        part if isinstance(part, list) else list(range(part.start, part.stop)) for part in index
    ]
    return tuple(arrays.ix_(*map(arrays.asarray, places)))


@dataclass(slots=True)
class _Tally:
    """The sums over the pieces of one output."""

    operand: Operand
    squared_error: float = 0.0
    squared_reference: float = 0.0
    compared: int = 0
    wrong: int = 0
    unwritten: int = 0
    worst: float = 0.0
    worst_at: list[int] = field(default_factory=list)

    def add(self, arrays: Any, operands: Operands, piece: Piece, reference: Any) -> None:
        """Compare one piece, which may have nothing of this output."""
        operand = self.operand
        index = _index(operand, piece)
        if not _count(operand, piece):
            return
        stored = operands[operand.name][_on(arrays, index)]
        reference = arrays.asarray(reference)
        other: Any = None
        if operands.problem.moves:
            other = _bits(stored) != reference
            self.wrong += int(other.sum())
            reference = decode(arrays, reference.view(stored.dtype), operand.type)
        elif operand.type.integer:  # results wrap around, as in the kernel
            reference = decode(arrays, encode(arrays, reference, operand.type), operand.type)
        difference = (decode(arrays, stored, operand.type) - reference).astype(arrays.float64)
        if operand.type.integer:
            self.wrong += int((difference != 0).sum()) if other is None else 0
            sentinels = (stored == SENTINELS[0]) | (stored == SENTINELS[1])
            self.unwritten += int((sentinels & (difference != 0)).sum())
        reference = reference.astype(arrays.float64)
        # A rounding is as large as its number.
        allowed = OUTLIER * operands.problem.tolerance_of(operand) * arrays.abs(reference)
        excess = arrays.abs(difference) - allowed if other is None else other.astype(float)
        sums = (difference * difference).sum(), (reference * reference).sum()
        worst = excess.max(), excess.argmax().astype(arrays.float64)
        # The host waits for the device once.
        squared_error, squared_reference, largest, at = arrays.stack([*sums, *worst]).tolist()
        self.squared_error += squared_error
        self.squared_reference += squared_reference
        self.compared += difference.size
        if not largest <= self.worst or not self.worst_at:
            self.worst, self.worst_at = largest, _place(index, difference.shape, int(at))

    def verdict(self, problem: Problem, magnitude: float) -> Accuracy:
        """Whether the whole output is right."""
        tolerance = problem.tolerance_of(self.operand)
        scale = max(sqrt(self.squared_reference / self.compared), magnitude)
        error = sqrt(self.squared_error / self.compared)
        rel_error = error / scale if scale else error
        name, shape = self.operand.title, self.operand.shape
        # Leading axes with one element are left out of the message.
        skipped = next((i for i, n in enumerate(shape) if n > 1), len(shape) - 1)
        where = f"{name}[{', '.join(map(str, self.worst_at[skipped:]))}]"
        reason = ""
        if self.unwritten:
            reason = f"{self.unwritten} of {self.compared} elements of {name} are not written"
        elif self.wrong:
            reason = f"{self.wrong} of {self.compared} elements are wrong; worst at {where}"
        elif not rel_error <= tolerance:
            reason = f"relative error {rel_error:.2g} is above {tolerance:.2g}; worst at {where}"
        elif not self.worst <= OUTLIER * tolerance * scale:
            off = self.worst / scale if scale else self.worst
            reason = f"{where} is off by {off:.2g} of a typical element's size"
        return Accuracy(rel_error, reason)


def _place(index: Index, shape: Sequence[int], at: int) -> list[int]:
    """The indices, within the operand, of element ``at`` of a piece."""
    places: list[int] = []
    for part, length in zip(reversed(index), reversed(shape), strict=True):
        at, offset = divmod(at, length)
        places.append(part[offset] if isinstance(part, list) else (part.start or 0) + offset)
    return places[::-1]
