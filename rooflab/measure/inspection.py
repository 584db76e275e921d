"""Whether a kernel still does its work while it is timed.

A kernel may be right when it is verified and skip its work later: because the inputs, a pointer or
the number of the launch tell it that nothing has changed. So it is inspected at moments that it
cannot foresee, with launches that are timed like all others.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from math import log
from statistics import median
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands
from rooflab.measure.buffers import Rotation, Strip, between, distinct, poison
from rooflab.measure.subject import Runner, Watch
from rooflab.measure.verify import CONFIRMED, Accuracy, Expected, put, reads_output, unlike
from rooflab.model.encoding import decode, encode
from rooflab.model.problem import Hard, Operand, Piece, Problem, Turns

INSPECTED: Final = 8
"""Buffer copies of an inspection between two rounds; the last inspection takes all of them."""

POKED: Final = 64
"""Elements of an output, or of an input, that are overwritten where a kernel must not notice it."""

STIRRED: Final = 8.0
"""Size of the numbers that are written into inputs, in sizes of the others."""

OFTEN: Final = 66
OFTEN_S: Final = 0.1
"""Launches that are checked for having written anything, and the longest time for it: a kernel that
skips one launch in ten escapes once in a thousand times."""

STREAK_S: Final = 0.01
"""So long it is launched without a pause before them."""

REPLAYED: Final = 1.3
REPLAYED_US: Final = 3.0
"""By so much a launch takes longer on new inputs than on known ones if a kernel keeps results."""

REPLAYED_SHARE: Final = 0.85
CHANCE: Final = 0.5
SURE: Final = 1e-4
GIVEN_UP: Final = 1e-3
"""It does so in this share of pairs, or in half of them by chance. Pairs are timed until one is so
much less likely than the other (Wald's test)."""

KNOWN: Final = 256
KNOWN_US: Final = 20_000.0
TIMED: Final = 5
"""Launches on inputs until they are known, at most of so long together, and those timed then."""

WATCHED: Final = 4
"""Buffer copies whose outputs are changed before a round and looked at after it."""

JUDGED: Final = 0.3
"""Share of rounds and of further launches after which the results of one copy are compared."""

KEEPS: Final = "keeps the results of earlier inputs"
HIDES: Final = "protects the memory of its results, so that they are computed when they are read"
SKIPS: Final = "does not write its results in some launches"

TURNS_FLOPS: Final = 5e8
"""Up to this work hard inputs of all kinds are tried, above it those of one launch."""

KEPT_SHARE: Final = 8
MOST_KEPT: Final = 2**29
"""References are kept in this part of the free memory, at most so many bytes."""


class Inspector:
    """The checks of all kernels on one problem, whose operands are in ``rotation``.

    ``draw`` is drawn from entropy: it chooses what is compared, where and when.
    """

    # No kernel can hide a method by an attribute of the object.
    __slots__ = ("_device", "_draw", "_expected", "_inputs", "_most_bytes", "_others", "rotation")

    def __init__(self, device: Device, rotation: Rotation, draw: random.Random) -> None:
        self._device, self.rotation, self._draw = device, rotation, draw
        self._most_bytes = min(MOST_KEPT, device.free_bytes() // KEPT_SHARE)
        self._others: list[_Others] = []
        rotation.poison(0)
        self.renew()

    def fill(self, fill: str) -> None:
        """Give all copies other inputs."""
        self.rotation = self.rotation.filled(self._device, fill)
        self.renew()

    def renew(self) -> None:
        """The inputs are new."""
        with self._device.checking():
            self._expected = self._expect(self.rotation.copies[0])
            self._inputs = self.rotation.inputs()

    def _expect(self, operands: Operands) -> Expected:
        return Expected(self._device, operands, self._draw.getrandbits(32), self._most_bytes)

    # Single launches.

    def poison(self, place: int) -> None:
        """Before a launch on the copy ``place`` that will be judged."""
        poison(self.rotation.copies[place], self._draw.randrange(2))
        self._device.synchronize()

    def judge(self, place: int) -> Accuracy:
        """Of the launch that just ran on the copy ``place``, whose outputs were poisoned."""
        hidden = self._hidden()
        with self._device.checking():
            if reason := hidden or self._outside():
                return Accuracy(0.0, reason)
            return self._expected.verdict(self.rotation.copies[place])

    def _hidden(self) -> str:
        """What is wrong with memory that launches have written, before anything reads it."""
        self._device.synchronize()
        hides = self._device.hides([rows for _, rows in self.rotation.outputs()])
        return HIDES if hides else ""

    def unharmed(self) -> str:
        """What a kernel did beside its work since it was last asked, empty if nothing."""
        self._device.synchronize()
        return self._outside()

    def reads_outside(self, launch: Launch) -> str:
        """What a kernel reads if its results are wrong only while NaN is outside its operands."""
        for strip in self.rotation.strips.values():
            for where in strip.zones:
                if all(self._minds(strip, where, launch) for _ in range(CONFIRMED)):
                    return f"reads {where} {strip.operand.title}"
        return ""

    def _minds(self, strip: Strip, where: str, launch: Launch) -> bool:
        """Whether a launch is right while one of the guard zones holds zeros, and then is not."""
        strip.disarm(where)
        try:
            right = self._right(launch)
        finally:
            strip.arm()
        return right and not self._right(launch)

    def reads_output(self, launch: Launch) -> Accuracy | None:
        """A verdict if a kernel reads what it should only write."""
        return reads_output(self._device, self.rotation.copies[0], launch, self.rotation.seed)

    def _right(self, launch: Launch) -> bool:
        """Whether a launch on the first copy is right."""
        self.poison(0)
        launch()
        self._device.synchronize()
        return not self._expected.verdict(self.rotation.copies[0]).reason

    def _outside(self) -> str:
        """What a kernel did to anything but its outputs, empty if nothing; then it is undone."""
        reason = self.rotation.trespass()
        if self.rotation.inputs() != self._inputs:
            self.rotation.refill(self._device)
            reason = reason or "changes its inputs"
        return reason

    # Inspections.

    def between(self, launches: Sequence[Launch], run: Runner, *, close: bool) -> str:
        """What is wrong with some launches, empty if nothing is.

        ``close``: also on inputs that differ a little.
        """
        count = min(INSPECTED, len(launches))
        places = self._draw.sample(range(len(launches)), count)
        reason = self._launched(launches, places, run)
        return reason or (self._stirred(launches, run) if close else "")

    @contextmanager
    def watched(self, places: Sequence[int], *, judge: bool = False) -> Iterator[Watch]:
        """A round on inputs that nobody has seen; the value says later what is wrong with it.

        Each of these copies is launched at least once. ``judge``: compare the results of one.
        """
        marks, some = None, list(dict.fromkeys(places))
        some = self._draw.sample(some, min(WATCHED, len(some)))
        if self._writes_only:
            marks = self._marks()
            marks.write(some)
        with self.fresh() as renew:
            watch = Watch(renew)
            yield watch
            watch.reason = self._hidden()
            if marks and not watch.reason:
                with self._device.checking():
                    watch.reason = self._doubted(marks, some, self._expect, judge)

    def _doubted(
        self,
        marks: _Marks,
        places: Sequence[int],
        expect: Callable[[Operands], Expected],
        judge: bool = False,
    ) -> str:
        """What is wrong with copies that are still marked, and at times with another one."""
        left = marks.left(places)
        judge = judge or self._draw.random() < JUDGED
        for place in left or self._draw.sample(places, judge):
            copy = self.rotation.copies[place]
            expected = expect(copy)
            if reason := expected.verdict(copy).reason:
                if left:
                    return SKIPS
                return reason if expected is self._expected else self._stale(copy, reason)
        return ""

    def _stale(self, copy: Operands, reason: str) -> str:
        """Why results are wrong after inputs were changed."""
        if not self._expected.verdict(copy).reason:
            return KEEPS
        return f"after a change of some numbers of its inputs: {reason}"

    @property
    def _writes_only(self) -> bool:
        return all(operand.role == "out" for operand, _ in self.rotation.outputs())

    @contextmanager
    def fresh(self) -> Iterator[Callable[[], None]]:
        """Each copy has other numbers at a few places of its inputs meanwhile; the value: again."""
        arrays, old = self._device.arrays, []
        numbers = arrays.random.default_rng(self._draw.getrandbits(32))
        for strip in self.rotation.strips.values():
            if strip.operand.role == "in" and not strip.operand.constant:
                where = _some(self._draw, strip.operand)
                where = where if isinstance(where, slice) else arrays.asarray(where)
                old.append((strip, where, strip.rows[:, where].copy()))

        def renew() -> None:
            for strip, where, _ in old:
                values = _others(arrays, numbers, len(strip.rows), where, strip.operand)
                strip.rows[:, where] = encode(arrays, values, strip.operand.type)

        def restore() -> None:
            for strip, where, stored in old:
                strip.rows[:, where] = stored

        renew()
        self._device.synchronize()
        with _undone(restore):
            yield renew

    def after(
        self,
        launches: Sequence[Launch],
        run: Runner,
        launch_us: float,
        together: int,
        *,
        close: bool,
    ) -> str:
        """What is wrong with a launch on each copy, empty if nothing is.

        ``close``: launch more often, and ask whether known inputs are faster. A launch takes about
        ``launch_us``, and so many are timed ``together``.
        """
        places = self._draw.sample(range(len(launches)), len(launches))
        reason = self._launched(launches, places, run)
        if close and not reason:
            together = min(together, int(STREAK_S * 1e6 / launch_us))
            reason = self._often(launches, run, together) or self._replays(launches, launch_us)
        return reason

    def _launched(self, launches: Sequence[Launch], places: Sequence[int], run: Runner) -> str:
        """Poison one copy's outputs, change some elements of the others', launch on each."""
        first, *others = places
        marks = self._marks()
        marks.write(others)
        self.poison(first)
        run([launches[place] for place in self._draw.sample(places, len(places))])
        if reason := self.judge(first).reason:
            return reason
        with self._device.checking():
            if left := marks.left(others, first):
                return f"does not write its results in {len(left)} of {len(places)} launches"
            if wrong := unlike(self._device, self.rotation, places):
                return f"wrong on {len(wrong)} of {len(places)} copies of the operands"
        return ""

    def _often(self, launches: Sequence[Launch], run: Runner, together: int) -> str:
        """Change some elements of outputs before a launch, as often as there is time for it.

        It happens on the device, after up to so many launches: a kernel may skip its work only if
        it is launched without a pause. What is read and written stays as those have left it.
        """
        started, left = perf_counter(), OFTEN
        marks = self._marks() if self._writes_only else _Kept(self._device.arrays, self.rotation)
        while left > 0 and perf_counter() - started < OFTEN_S:
            places = self._draw.sample(range(len(launches)), min(left, len(launches)))
            marks.write(places)  # loads its code
            first = self._draw.randrange(len(launches))
            count = self._draw.randrange(together + 1)
            steps = list(islice(cycle(launches), first, first + count))
            for place in places:
                steps += [partial(marks.write, [place]), launches[place]]
            run(steps)
            self._device.synchronize()
            with self._device.checking():
                if isinstance(marks, _Kept):
                    reason = self._onward(marks)
                else:
                    reason = self._doubted(marks, places, lambda copy: self._expected)
            if reason:
                return reason
            left -= len(places)
        return ""

    def _onward(self, marks: _Kept) -> str:
        """What is wrong with a launch on the results of earlier ones, if those did not grow."""
        copy = marks.last()
        if not marks.overflow():
            return self._expect(copy).verdict(copy).reason
        self.rotation.poison(0)  # begin anew
        return ""

    def _marks(self) -> _Marks:
        return _Marks(self._device, self.rotation, self._draw)

    def _stirred(self, launches: Sequence[Launch], run: Runner) -> str:
        """Change a few numbers of the inputs and leave the outputs as they are."""
        place = self._draw.randrange(len(launches))
        copy = self.rotation.copies[place]
        stir = _stir(self._device.arrays, copy.problem, self._draw)
        run([launches[place]])  # now it may keep something of the inputs
        old = put(self._device, copy, stir)
        with _undone(partial(put, self._device, copy, stir, old)):
            _begin_anew(copy)
            expected = self._expect(copy)
            run([launches[place]])
            self._device.synchronize()
            reason = expected.verdict(copy).reason
            return self._stale(copy, reason) if reason else ""

    def _replays(self, launches: Sequence[Launch], launch_us: float) -> str:
        """Whether a kernel is faster on inputs that it has seen: it keeps results by their content.

        Rounds have inputs of their own, so only what pays within a round pays at all. New inputs
        and known ones are timed in turns, each launch after the same steps, which may slow it.
        """
        place = self._draw.randrange(len(launches))
        marks = self._marks() if self._writes_only else None
        count = max(1, min(KNOWN, int(KNOWN_US / launch_us)))
        slower: list[tuple[float, float]] = []
        odds = 0.0  # their logarithm
        while odds < -log(SURE):
            pair = self._pair(launches[place], place, marks, count)
            if pair is None:
                return KEEPS
            new_us, known_us = pair
            if new_us > REPLAYED * known_us + REPLAYED_US:
                slower.append(pair)
                odds += log(REPLAYED_SHARE / CHANCE)
            else:
                odds += log((1 - REPLAYED_SHARE) / (1 - CHANCE))
            if odds < log(GIVEN_UP):  # or other programs made the others slower
                return ""
        new_us, known_us = (median(times) for times in zip(*slower, strict=True))
        return f"takes {new_us:.4g} µs on new inputs, and {known_us:.4g} on those it has seen"

    def _pair(
        self, launch: Launch, place: int, marks: _Marks | None, count: int
    ) -> tuple[float, float] | None:
        """Times on new inputs and, ``count`` launches later, known ones; None if results stay."""
        copy, flush = self.rotation.copies[place], self.rotation.flush
        stir = _stir(self._device.arrays, copy.problem, self._draw)

        def time_us(inputs: dict[str, Any], *, marked: bool) -> float:
            put(self._device, copy, stir, inputs)
            _begin_anew(copy)
            if marks:
                marks.swap(place, marked)
            (one,) = self._device.time([launch], flush).times_us
            return one

        old = put(self._device, copy, stir)
        new = put(self._device, copy, stir, old)
        if flush is None:  # a round begins with it
            self._device.quiesce(launch)
        with _undone(partial(put, self._device, copy, stir, old)):
            time_us(old, marked=False)
            unchanged = self._unchanged(place)
            new_us = time_us(new, marked=True)
            if unchanged():
                return None
            for _ in range(count):
                launch()
            known_us = [time_us(new, marked=False) for _ in range(min(count, TIMED))]
        return new_us, median(known_us)

    def _unchanged(self, place: int) -> Callable[[], bool]:
        """Whether a launch on new inputs gives what the last one gave for others, wrongly."""
        outputs = [rows[place] for _, rows in self.rotation.outputs()]
        if sum(rows.nbytes for rows in outputs) > self._most_bytes:
            return lambda: False
        before = [rows.copy() for rows in outputs]

        def unchanged() -> bool:
            if not all(map(self._device.arrays.array_equal, before, outputs)):
                return False
            with self._device.checking():
                copy = self.rotation.copies[place]
                return bool(self._expect(copy).verdict(copy).reason)

        return unchanged

    # Other inputs.

    def on_other_inputs(self, launches: Sequence[Launch], run: Runner) -> str:
        """What is wrong with launches on inputs that nobody has seen before."""
        for others in self._all_others():
            place = self._draw.randrange(len(launches))
            with self._on(others, place) as verdict:
                run([launches[place]])
                if reason := verdict():
                    return reason
        return ""

    @contextmanager
    def other_inputs(self, place: int) -> Iterator[Callable[[], str]]:
        """The copy ``place`` has others meanwhile; the value says what is wrong with a launch."""
        with self._on(self._draw.choice(self._all_others()), place) as verdict:
            yield verdict

    def _all_others(self) -> list[_Others]:
        """Inputs of all kinds, those for which a launch has room together."""
        if not self._others:
            copy, draw = self.rotation.copies[0], self._draw
            with self._device.checking():
                turns = list(_turns(self._device.arrays, copy.problem, draw))
                most_bytes = self._most_bytes // len(turns)
                make = partial(_Others, self._device, copy, draw, most_bytes)
                self._others = [make(hard) for hard in turns]
        return self._others

    @contextmanager
    def _on(self, others: _Others, place: int) -> Iterator[Callable[[], str]]:
        """The copy ``place`` has these meanwhile."""
        copy = self.rotation.copies[place]
        old = others.put(copy)
        self.poison(place)

        def verdict() -> str:
            hidden = self._hidden()
            with self._device.checking():
                return hidden or self.rotation.trespass() or others.wrong(copy)

        with _undone(partial(others.restore, copy, old)):
            yield verdict


def _turns(arrays: Any, problem: Problem, draw: random.Random) -> Iterator[list[Hard]]:
    """Hard inputs of all kinds, which take several launches if there is little room in one."""
    turns = Turns(draw.getrandbits(32))
    yield list(problem.hard(arrays, turns))
    while turns.left and problem.flops <= TURNS_FLOPS:
        yield list(problem.hard(arrays, turns))


class _Others:
    """Inputs that differ from those of the timing in some parts, and what they lead to."""

    def __init__(
        self,
        device: Device,
        operands: Operands,
        draw: random.Random,
        most_bytes: int,
        hard: list[Hard],
    ) -> None:
        self._device, seed = device, draw.getrandbits(32)
        self._parts = hard or [_stir(device.arrays, operands.problem, draw)]
        self._before = Expected(device, operands, seed, most_bytes, hard)
        old = self.put(operands)
        self._after = Expected(device, operands, seed, most_bytes, hard)
        self.restore(operands, old)

    def put(self, operands: Operands) -> list[dict[str, Any]]:
        """Write them; returns what was there."""
        return [put(self._device, operands, one) for one in self._parts]

    def restore(self, operands: Operands, old: Sequence[dict[str, Any]]) -> None:
        """Write what was there."""
        for one, parts in zip(reversed(self._parts), reversed(old), strict=True):
            put(self._device, operands, one, parts)

    def wrong(self, operands: Operands) -> str:
        """What is wrong with the outputs, empty if nothing is."""
        reason = self._after.verdict(operands).reason
        if reason and self._before.kept and not self._before.verdict(operands).reason:
            return KEEPS
        return reason


class _Marks:
    """Elements of each output that hold something else before a launch, spread over all of it."""

    def __init__(self, device: Device, rotation: Rotation, draw: random.Random) -> None:
        self._outputs: list[tuple[Any, slice, Any, Any]] = []
        self._writes: list[tuple[Any, slice, Any]] = []
        for operand, rows in rotation.outputs():
            step = max(1, operand.elements // POKED)
            step = draw.randrange(step // 2, step) | 1  # coprime to tiles and vectors
            some = slice(draw.randrange(min(step, operand.elements)), None, step)
            known = rows[0, some].copy()
            if operand.role == "inout":  # all of it is as before a launch
                content = rotation.copies[0].initial[operand.name].reshape(-1)
                self._writes.append((rows, slice(None), content))
                self._outputs.append((rows, some, known, content[some]))
            else:
                mark = _unlike(device.arrays, known, operand)
                self._writes.append((rows, some, mark))
                self._outputs.append((rows, some, known, mark))

    def write(self, places: Sequence[int]) -> None:
        """On these copies."""
        for rows, where, content in self._writes:
            for place in places:
                rows[place, where] = content

    def swap(self, place: int, marked: bool) -> None:
        """Write marks, or what is there; either takes the same steps."""
        kept = [rows[place, where].copy() for rows, where, _ in self._writes]
        for restores in (marked, not marked):
            if restores:
                for (rows, where, _), content in zip(self._writes, kept, strict=True):
                    rows[place, where] = content
            else:
                self.write([place])

    def left(self, places: Sequence[int], right: int | None = None) -> list[int]:
        """Copies where one is as it was written; the results on ``right`` are known to be right."""
        found: set[int] = set()
        for rows, some, known, mark in self._outputs if places else ():
            known = known if right is None else rows[right, some]
            still = (rows[list(places), some] == mark) & (known != mark)
            found |= {places[i] for i, one in enumerate(still.any(axis=1).tolist()) if one}
        return sorted(found)


class _Kept:
    """What was in outputs before the last launch, where that is read too."""

    def __init__(self, arrays: Any, rotation: Rotation) -> None:
        self._arrays, self._rotation, self._place = arrays, rotation, 0
        self._before = {
            operand.name: rotation.copies[0][operand.name].copy()
            for operand, _ in rotation.outputs()
            if operand.role == "inout"
        }

    def write(self, places: Sequence[int]) -> None:
        """Note it, of the last of these copies."""
        self._place = places[-1]
        for name, before in self._before.items():
            before[...] = self._rotation.copies[self._place][name]

    def last(self) -> Operands:
        """That copy, as if it had begun so."""
        copy = self._rotation.copies[self._place]
        return Operands(copy.problem, dict(copy), {**copy.initial, **self._before})

    def overflow(self) -> bool:
        """Whether it is so large that the next results could: those of beta = 2 always grow."""

        def most(operand: Operand) -> float:
            return float(abs(decode(self._arrays, self._before[operand.name], operand.type)).max())

        outputs = [one for one, _ in self._rotation.outputs() if one.name in self._before]
        return not all(one.type.integer or most(one) <= one.type.scale**2 for one in outputs)


def _begin_anew(copy: Operands) -> None:
    """What is read and written is as before the first launch."""
    for name, content in copy.initial.items():
        copy[name][...] = content


def _unlike(arrays: Any, known: Any, operand: Operand) -> Any:
    """A number as large as known ones, and none of them, as it is stored."""
    numbers = decode(arrays, known, operand.type)
    numbers = arrays.where(numbers == numbers, numbers, 0)  # it may still be poisoned
    size = float((numbers.astype(arrays.float64) ** 2).mean()) ** 0.5
    off = 3 if operand.type.integer else 3 * (size or 1.0)
    return encode(arrays, numbers.reshape(-1)[:1] + off, operand.type).tolist()[0]


@contextmanager
def _undone(restore: Callable[[], object]) -> Iterator[None]:
    """``restore`` comes after it; a failure is told as it is, though nothing can be restored."""
    try:
        yield
    except BaseException:
        with suppress(Exception):
            restore()
        raise
    restore()


def _some(draw: random.Random, operand: Operand) -> slice | list[int]:
    """A few elements by their place in the flat operand, or a row if its numbers differ.

    The fewer change, the less a kernel notices it.
    """
    if operand.step:
        length = operand.shape[-1]
        first = draw.randrange(operand.elements // length) * length
        return slice(first, first + length)
    count = min(1 << draw.randrange(POKED.bit_length()), operand.elements)
    return sorted({draw.randrange(operand.elements) for _ in range(count)})


def _others(arrays: Any, random: Any, rows: int, where: Any, operand: Operand) -> Any:
    """``rows`` of numbers that are written there into an input, as rounds and checks do alike."""
    if operand.step:
        return distinct(arrays, random, rows, operand)
    shares = random.random((rows, len(where)))
    if operand.within:
        return between(arrays, shares, operand)
    return STIRRED * (100 if operand.type.integer else 1) * (2 * shares - 1)


def _stir(arrays: Any, problem: Problem, draw: random.Random) -> Hard:
    """Other numbers at a few places of each input, and everything to compare."""
    numbers = arrays.random.default_rng(draw.getrandbits(32))
    values = {}
    for operand in problem.operands:
        if operand.role == "in" and not operand.constant:
            where = _some(draw, operand)
            values[operand.name] = ((where,), _others(arrays, numbers, 1, where, operand)[0])
    return Hard("", values, Piece())
