"""Whether a kernel still does its work while it is timed.

A kernel may be right when it is verified and skip its work later: because the inputs, a pointer or
the number of the launch tell it that nothing has changed. So it is inspected at moments that it
cannot foresee, with launches that are timed like all others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from rooflab.device import Device
from rooflab.kernels import Launch, Operands
from rooflab.measure.buffers import Rotation, poison
from rooflab.measure.verify import Expected, Verdict, put, unlike
from rooflab.model.encoding import decode, encode
from rooflab.model.problem import PIECE_ELEMENTS, Hard, Piece, Problem

Run = Callable[[list[Launch]], object]
"""Launches what it is given as in a round."""

INSPECTED: Final = 8
"""Buffer copies of an inspection between two rounds; the last inspection takes all of them."""

POKED: Final = 64
"""Elements of an output that are overwritten, where a kernel must not notice it."""

KEPT_SHARE: Final = 8
MOST_KEPT: Final = 2**29
"""References are kept in this part of the free memory, at most so many bytes."""


class Inspector:
    """The checks of all kernels on one problem, whose operands are in ``rotation``.

    ``draw`` is drawn from entropy: it chooses what is compared, where and when.
    """

    def __init__(self, device: Device, rotation: Rotation, draw: random.Random) -> None:
        self._device, self.rotation, self._draw = device, rotation, draw
        self._most_bytes = min(MOST_KEPT, device.free_bytes() // KEPT_SHARE)
        self._hard: _Others | None = None
        self.renew()

    def renew(self) -> None:
        """The inputs are new."""
        copy = self.rotation.copies[0]
        seed = self._draw.getrandbits(32)
        self._expected = Expected(self._device, copy, seed, self._most_bytes)
        self._inputs = self.rotation.inputs()

    def first(self) -> Verdict:
        """Of the first launch, on the first copy, whose outputs were poisoned."""
        self._device.synchronize()
        if reason := self._outside():
            return Verdict(0.0, reason)
        return self._expected.verdict(self.rotation.copies[0])

    def moment(self, rounds: int) -> int:
        """After how many of so many rounds a kernel is inspected."""
        return self._draw.randrange(1, max(2, rounds))

    def between(self, launches: Sequence[Launch], run: Run) -> str:
        """What is wrong with some launches, empty if nothing is."""
        count = min(INSPECTED, len(launches))
        return self._launched(launches, self._draw.sample(range(len(launches)), count), run)

    def after(self, launches: Sequence[Launch], run: Run) -> str:
        """What is wrong with a launch on each copy, empty if nothing is."""
        places = self._draw.sample(range(len(launches)), len(launches))
        return self._launched(launches, places, run)

    def on_other_inputs(self, launches: Sequence[Launch], run: Run) -> str:
        """What is wrong with a launch on inputs that nobody has seen before."""
        place = self._draw.randrange(len(launches))
        with self.other_inputs(place) as verdict:
            run([launches[place]])
            return verdict()

    def single(self, place: int) -> str:
        """What is wrong with the launch that just ran on the copy ``place``, once poisoned."""
        self._device.synchronize()
        return self._outside() or self._expected.verdict(self.rotation.copies[place]).reason

    def poison(self, place: int) -> None:
        """Before a launch on the copy ``place`` that will be judged."""
        poison(self.rotation.copies[place], self._draw.randrange(2))
        self._device.synchronize()

    @contextmanager
    def other_inputs(self, place: int) -> Iterator[Callable[[], str]]:
        """The copy ``place`` has others meanwhile; the value says what is wrong with a launch."""
        copy = self.rotation.copies[place]
        if self._hard is None:
            self._hard = _Others(self._device, copy, self._draw, self._most_bytes)
        old = self._hard.put(copy)
        self.poison(place)

        def verdict() -> str:
            self._device.synchronize()
            assert self._hard
            return self._hard.wrong(copy)

        try:
            yield verdict
        finally:
            self._hard.restore(copy, old)

    def _launched(self, launches: Sequence[Launch], places: Sequence[int], run: Run) -> str:
        """Poison one copy's outputs, change some elements of the others', launch on each."""
        first, *others = places
        skipped = self._poke(first, others)
        self.poison(first)
        run([launches[place] for place in places])
        if reason := self.single(first):
            return reason
        if left := skipped():
            return f"does not write its results in {left} of {len(places)} launches"
        if wrong := unlike(self._device, self.rotation, places):
            return f"wrong on {len(wrong)} of {len(places)} copies of the operands"
        return ""

    def _poke(self, right: int, places: Sequence[int]) -> Callable[[], int]:
        """Overwrite a few elements of outputs; the value counts copies where one still is so.

        Then the results on the copy ``right`` are known to be right.
        """
        arrays = self._device.arrays
        poked: list[tuple[Any, Any, Any]] = []
        if places:
            rows_of = arrays.asarray(list(places))[:, None]
            for operand, rows in self.rotation.outputs():
                count = min(POKED, operand.elements)
                places_of = [self._draw.randrange(operand.elements) for _ in range(count)]
                targets = arrays.asarray(places_of)
                old = decode(arrays, rows[places[0]][targets], operand.type)
                size = float((old.astype(arrays.float64) ** 2).mean()) ** 0.5
                new = encode(arrays, old + 3 * (size or 1.0), operand.type)
                if operand.role == "out":
                    rows[rows_of, targets] = new
                    poked.append((rows, targets, new))
                else:
                    rows[list(places)] = self.rotation.copies[0].initial[operand.name].reshape(-1)
            self._device.synchronize()

        def skipped() -> int:
            still = [
                ((rows[rows_of, targets] == new) & (rows[right][targets] != new)).any(axis=1)
                for rows, targets, new in poked
            ]
            return int(sum(still[1:], start=still[0]).astype(bool).sum()) if still else 0

        return skipped

    def _outside(self) -> str:
        """What a kernel did to anything but its outputs, empty if nothing."""
        if reason := self.rotation.trespass():
            return reason
        if self.rotation.inputs() != self._inputs:
            return "changes its inputs"
        return ""


class _Others:
    """Inputs that differ from those of the timing in some parts, and what they lead to."""

    def __init__(
        self, device: Device, operands: Operands, draw: random.Random, most_bytes: int
    ) -> None:
        arrays, problem = device.arrays, operands.problem
        self._device, self._seed = device, draw.getrandbits(32)
        self._hard = list(problem.hard(arrays, draw)) or [_new_numbers(arrays, problem, draw)]
        titled = self._hard if self._hard[0].title else []
        self._before = Expected(device, operands, self._seed, most_bytes, titled)
        old = self.put(operands)
        self._after = Expected(device, operands, self._seed, most_bytes, titled)
        self.restore(operands, old)

    def put(self, operands: Operands) -> list[dict[str, Any]]:
        """Write them; returns what was there."""
        return [put(self._device, operands, one) for one in self._hard]

    def restore(self, operands: Operands, old: Sequence[dict[str, Any]]) -> None:
        """Write what was there."""
        for one, parts in zip(reversed(self._hard), reversed(old), strict=True):
            put(self._device, operands, one, parts)

    def wrong(self, operands: Operands) -> str:
        """What is wrong with the outputs, empty if nothing is."""
        reason = self._after.verdict(operands).reason
        if reason and self._before.kept and not self._before.verdict(operands).reason:
            return "keeps the results of earlier inputs"
        return reason


def _new_numbers(arrays: Any, problem: Problem, draw: random.Random) -> Hard:
    """For a workload without hard inputs: new numbers in a part of each."""
    numbers = arrays.random.default_rng(draw.getrandbits(32))
    values = {}
    for operand in problem.operands:
        if operand.role == "in":
            size = 100 if operand.type.integer else 1
            count = max(
                1, min(operand.shape[0], PIECE_ELEMENTS * operand.shape[0] // operand.elements)
            )
            index = (slice(0, count), *(slice(None),) * (len(operand.shape) - 1))
            values[operand.name] = (
                index,
                size * (2 * numbers.random((count, *operand.shape[1:])) - 1),
            )
    return Hard("", values, Piece())
