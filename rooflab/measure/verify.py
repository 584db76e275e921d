"""Verification: a kernel's outputs against a float64 reference, computed on the device.

Works for any workload: the problem gives the reference, the tolerance and the pieces to compare.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import nan, sqrt
from typing import Any, Final

from rooflab.device import Device
from rooflab.errors import KernelError
from rooflab.kernels import Launch, Operands
from rooflab.measure.buffers import SENTINELS, Rotation
from rooflab.model.encoding import count_nan, decode, encode
from rooflab.model.problem import Index, Operand, Piece, Problem

OUTLIER: Final = 16.0
"""Largest error of a single element, in tolerances; rounding stays below five."""

SAMPLE: Final = 2**20
"""Elements of an input from which its magnitude is estimated."""

WORKSPACE_BYTES: Final = 2**29
"""Memory that verification needs beside the operands: some float64 arrays of one piece."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """``rel_error`` is ‖out - ref‖ / ‖ref‖ over the compared elements; no ``reason`` if right."""

    rel_error: float
    reason: str = ""


def verify(device: Device, operands: Operands, seed: int) -> Verdict:
    """Compare every output with the problem's reference.

    ‖ref‖ is at least its expected size, so that rounding is not an error if the reference cancels.
    Outputs are poisoned with NaN, and every element is checked for it. The error of single elements
    is also limited, because the norm may hide a wrong corner.
    """
    arrays, problem = device.arrays, operands.problem
    outputs = [operand for operand in problem.operands if operand.written]
    for operand in outputs:
        if bad := count_nan(arrays, operands[operand.name], operand.type):
            return Verdict(
                nan,
                f"{bad} of {operand.elements} elements of {_title(operand)} are NaN: "
                "not written, or not a number",
            )
    tallies = {operand.name: _Tally(operand) for operand in outputs}
    for piece in problem.pieces(random.Random(seed)):
        expected = problem.reference(arrays, _Inputs(device, operands, piece))
        if lacking := sorted(tallies.keys() - expected.keys()):
            returned = ", ".join(map(repr, expected)) or "nothing"
            raise KernelError(
                f"the reference of {problem.workload} returns {returned}, not {', '.join(lacking)}"
            )
        for operand in outputs:
            tallies[operand.name].add(arrays, operands, piece, expected[operand.name])
    magnitude = problem.magnitude(_sizes(device, operands))
    verdicts = [tally.verdict(problem, magnitude) for tally in tallies.values()]
    wrong = [verdict for verdict in verdicts if verdict.reason]
    return wrong[0] if wrong else max(verdicts, key=lambda verdict: verdict.rel_error)


def reads_output(device: Device, operands: Operands, launch: Launch, seed: int) -> Verdict | None:
    """A verdict if NaN results are right once the outputs held zeros: the kernel reads an output.

    Many GEMM kernels compute alpha·AB + beta·C without a test for beta = 0, and 0 · NaN is NaN.
    """
    outputs = [operand for operand in operands.problem.operands if operand.role == "out"]
    for operand in outputs:
        operands[operand.name].fill(0)
    launch()
    device.synchronize()
    if not outputs or verify(device, operands, seed).reason:
        return None
    names = " and ".join(map(_title, outputs))
    return Verdict(
        nan,
        f"reads {names}, which is only written here, so that NaN in it spreads; the results are "
        "right if it holds zeros (of a GEMM, read C only if beta is not 0)",
    )


def unlike(device: Device, rotation: Rotation, count: int) -> list[int]:
    """The buffer copies, of the first ``count``, with outputs that differ from those of copy 0.

    Differences by rounding are allowed: each launch may add in another order. All bits are compared
    first.
    """
    arrays, tolerance = device.arrays, rotation.problem.tolerance
    found: set[int] = set()
    for operand, rows in rotation.outputs(count):
        different = (rows != rows[0]).any(axis=1)
        suspects = [int(row) for row in arrays.flatnonzero(different)]
        if not suspects:
            continue
        expected = decode(arrays, rows[0], operand.type)
        limit = (2 * tolerance) ** 2 * float((expected.astype(arrays.float64) ** 2).sum())
        for row in suspects:
            off = (decode(arrays, rows[row], operand.type) - expected).astype(arrays.float64)
            if not float((off**2).sum()) <= limit:
                found.add(row)
    return sorted(found)


def _title(operand: Operand) -> str:
    return operand.name.upper() if len(operand.name) == 1 else operand.name


def _sizes(device: Device, operands: Operands) -> dict[str, float]:
    """The root mean square of each input, from its first elements."""
    sizes = {}
    for operand in operands.problem.operands:
        if operand.read:
            stored = operands.initial.get(operand.name, operands[operand.name])
            some = decode(device.arrays, stored.reshape(-1)[:SAMPLE], operand.type)
            some = some.astype(device.arrays.float64)
            sizes[operand.name] = sqrt(float((some * some).mean()))
    return sizes


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The inputs of one piece, decoded on demand."""

    device: Device
    operands: Operands
    piece: Piece

    def __getitem__(self, name: str) -> Any:
        return self.part(name, (...,))

    def part(self, name: str, index: Index) -> Any:
        return decode(self.device.arrays, self._stored(name)[index], self._type(name))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._stored(name).shape)

    def _stored(self, name: str) -> Any:
        stored = self.operands.initial.get(name, self.operands[name])
        return stored[_on(self.device.arrays, self.piece.select.get(name, (...,)))]

    def _type(self, name: str) -> Any:
        return next(o.type for o in self.operands.problem.operands if o.name == name)


def _on(arrays: Any, index: Index) -> Index:
    """``index`` with its lists of positions as arrays on the device."""
    return tuple(arrays.asarray(part) if isinstance(part, list) else part for part in index)


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
        """Compare one piece."""
        operand = self.operand
        index = piece.select.get(operand.name, (slice(None),) * len(operand.shape))
        stored = operands[operand.name][_on(arrays, index)]
        reference = arrays.asarray(reference)
        if operand.type.integer:  # results wrap around, as in the kernel
            reference = decode(arrays, encode(arrays, reference, operand.type), operand.type)
        difference = (decode(arrays, stored, operand.type) - reference).astype(arrays.float64)
        if operand.type.integer:
            self.wrong += int((difference != 0).sum())
            sentinels = (stored == SENTINELS[0]) | (stored == SENTINELS[1])
            self.unwritten += int((sentinels & (difference != 0)).sum())
        reference = reference.astype(arrays.float64)
        self.squared_error += float((difference * difference).sum())
        self.squared_reference += float((reference * reference).sum())
        self.compared += difference.size
        at = int(arrays.abs(difference).argmax())
        largest = abs(float(difference.reshape(-1)[at]))
        if not largest <= self.worst or not self.worst_at:
            self.worst, self.worst_at = largest, _place(index, difference.shape, at)

    def verdict(self, problem: Problem, magnitude: float) -> Verdict:
        """Whether the whole output is right."""
        tolerance = problem.tolerance
        scale = max(sqrt(self.squared_reference / self.compared), magnitude)
        error = sqrt(self.squared_error / self.compared)
        rel_error = error / scale if scale else error
        name, shape = _title(self.operand), self.operand.shape
        # Leading axes with one element are left out of the message.
        skipped = next((i for i, n in enumerate(shape) if n > 1), len(shape) - 1)
        where = f"{name}[{', '.join(map(str, self.worst_at[skipped:]))}]"
        if self.unwritten:
            return Verdict(
                rel_error, f"{self.unwritten} of {self.compared} elements of {name} are not written"
            )
        if self.wrong:
            return Verdict(
                rel_error, f"{self.wrong} of {self.compared} elements are wrong; worst at {where}"
            )
        if not rel_error <= tolerance:
            return Verdict(
                rel_error,
                f"relative error {rel_error:.2g} is above {tolerance:.2g}; worst at {where}",
            )
        if not self.worst <= OUTLIER * tolerance * scale:
            off = self.worst / scale if scale else self.worst
            return Verdict(rel_error, f"{where} is off by {off:.2g} of a typical element's size")
        return Verdict(rel_error)


def _place(index: Index, shape: Sequence[int], at: int) -> list[int]:
    """The indices, within the operand, of element ``at`` of a piece."""
    places: list[int] = []
    for part, length in zip(reversed(index), reversed(shape), strict=True):
        at, offset = divmod(at, length)
        places.append(part[offset] if isinstance(part, list) else (part.start or 0) + offset)
    return places[::-1]
