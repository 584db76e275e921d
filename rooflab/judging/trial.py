"""One submission on one problem: is it right, and how long does it take on inputs nobody knew?"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from secrets import randbits
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device, Launch, Shared
from rooflab.errors import UnavailableError
from rooflab.judging.sandbox import Enforced
from rooflab.judging.submission import Deadlines, Rejected, Submission
from rooflab.kernels.base import Kernel, Operands
from rooflab.measure.buffers import flusher, rotate
from rooflab.measure.inspection import SKIPS, Inspector
from rooflab.measure.protocol import Outcome
from rooflab.measure.resident import Resident
from rooflab.measure.statistics import summarize
from rooflab.measure.subject import LATER, OTHER, told
from rooflab.measure.verify import CONFIRMED, WORKSPACE_BYTES, Expected
from rooflab.model.encoding import count_nan
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem
from rooflab.model.roofline import Roofline
from rooflab.model.units import scaled
from rooflab.recording import record

COPIES: Final = 8
MANY: Final = 256
MANY_S: Final = 0.04
MANY_BYTES: Final = 2**33
"""Least buffer copies, if there is memory, and most: so many that they are looked through in this
time, and no more bytes. A round launches once on each, between two messages."""

ROUNDS, MOST_ROUNDS = 10, 40
QUICK_S: Final = 1.0
"""Rounds, and the most that there are within this time: each is a chance to see what is skipped."""

FLUSHES: Final = 200
DISTURBED: Final = 1.4
WATCHED: Final = 0.3
"""Flushes of the cache, which take so much longer beside another program. After this share of the
rounds a submission, which is stopped, must not be one."""

LINGERS: Final = "goes on working on the device after it has said that all is done"

CROWDED: Final = "another program computes on {}: judge again when it has ended"

TOO_SHORT: Final = "takes no longer than an empty launch, which is subtracted: give larger sizes"

JUDGED: Final = 4
"""Copies of each round whose results are compared; a submission does not know which."""


class Arena:
    """The operands of one problem, in memory that submissions can open, and their inspector."""

    def __init__(self, device: Device, problem: Problem) -> None:
        self.device, self.problem = device, problem
        self.draw = random.Random(randbits(64))
        self._shared: list[Shared] = []
        needed = COPIES * problem.operand_bytes + WORKSPACE_BYTES
        if needed > (free := device.free_bytes()):
            raise UnavailableError(
                f"{problem.size} needs {scaled(needed)}B for {COPIES} copies and the checks, "
                f"{scaled(free)}B are free: judge a smaller problem"
            )
        many = min(int(MANY_S * device.costs.checked_bytes_per_s), MANY_BYTES)
        least = max(COPIES, min(MANY, many // problem.operand_bytes))
        seed, memory = self.draw.getrandbits(32), self._allocated
        self.rotation = rotate(device, problem, seed, cold=True, least=least, memory=memory)
        self.inspector = Inspector(device, self.rotation, self.draw)
        self.flush: Launch = flusher(device)
        if device.evicts:
            arrays = [array for copy in self.rotation.copies for array in copy.values()]
            self.flush = device.evictor(arrays)

    def _allocated(self, size: int) -> Any:
        self._shared.append(self.device.shared(size))
        return self._shared[-1].array

    def open(self, job: Mapping[str, Any], folder: Path, deadlines: Deadlines) -> Submission:
        """A process for a kernel, which finds the operands by what ``job`` says."""
        strips = zip(self.rotation.strips.items(), self._shared, strict=True)
        memory = {
            name: {"handle": one.handle, "bytes": one.array.nbytes, "places": strip.places}
            for (name, strip), one in strips
        }
        inherited = [one.descriptor for one in self._shared if one.descriptor is not None]
        here = {"device": self.device.id, "problem": asdict(self.problem.record), "memory": memory}
        return Submission({**job, **here}, inherited, folder, deadlines, self.settle)

    def close(self) -> None:
        """No other process can open the operands from now on."""
        for one in self._shared:
            if one.descriptor is not None:
                os.close(one.descriptor)

    def settle(self) -> None:
        """Drop everything from the caches, and wait."""
        self.flush()
        self.device.synchronize()

    @cached_property
    def _undisturbed_s(self) -> float:
        return min(self._flushes_s() for _ in range(CONFIRMED))

    def _flushes_s(self) -> float:
        started = perf_counter()
        for _ in range(FLUSHES):
            self.flush()
        self.device.synchronize()
        return perf_counter() - started

    def disturbed(self) -> bool:
        """Whether something else runs on a device with its own memory, which halves its speed."""
        if not self.device.has_own_memory:
            return False
        limit_s = DISTURBED * self._undisturbed_s
        return all(self._flushes_s() > limit_s for _ in range(CONFIRMED))


class Trial:
    """One kernel in an arena: ``name`` is a file, or a kernel of rooflab.

    Of what is ``trusted`` only the first results are compared.
    """

    def __init__(
        self,
        arena: Arena,
        roofline: Roofline,
        job: Mapping[str, Any],
        deadlines: Deadlines,
        name: str,
        *,
        trusted: bool = False,
    ) -> None:
        self._arena, self._roofline, self._deadlines = arena, roofline, deadlines
        self._trusted = trusted
        self._job = {**job, "kernel": name}
        problem, kind = arena.problem, arena.device.kind
        self._kernel = Kernel(
            name=name.rpartition("/")[2],
            backend="judged",
            device_kind=kind,
            title=name,
            precisions=(problem.precision.name,),
            prepare=lambda device, operands: self._launches[0],
            workload=problem.workload,
        )
        self.outcome = Outcome(self._kernel.name, cache="cold")
        self.refused = Enforced()
        self._submission: Submission | None = None
        copies = range(len(arena.rotation.copies))
        self._launches: list[Launch] = [partial(self._launch, place) for place in copies]
        self._subject = Resident(arena.device, arena.inspector, self._kernel, self._launches)
        self._ends = ExitStack()

    def begin(self) -> None:
        """Start its process, load its file, compare its first results; raises ``Rejected``.

        Whatever happens, ``end`` must follow.
        """
        arena = self._arena
        folder = TemporaryDirectory(prefix="rooflab-", ignore_cleanup_errors=True)
        place = Path(self._ends.enter_context(folder))
        self._submission = arena.open(self._job, place, self._deadlines)
        self._ends.callback(self._submission.kill)
        self.refused = self._submission.refused
        arena.disturbed()  # how long flushes take now, before anything of it is loaded
        self._submission.load()
        self._verify()

    def end(self) -> None:
        """End its process."""
        with suppress(RecursionError):  # of folders in folders, which then stay
            self._ends.close()

    def row(self) -> Measurement:
        """As in a run."""
        arena = self._arena
        return record(arena.problem, self._kernel, self.outcome, self._roofline, arena.device)

    def _launched(self, places: Sequence[int], before: Callable[[], object]) -> float:
        assert self._submission
        return self._submission.launch(places, before)

    def _launch(self, place: int) -> None:
        self._launched([place], self._arena.device.synchronize)

    def _run(self, steps: Sequence[Launch]) -> None:
        for step in steps:
            step()

    def _verify(self) -> None:
        """The first launch, some others, and inputs that differ a little; raises ``Rejected``."""
        arena = self._arena
        arena.rotation.refill(arena.device)
        arena.inspector.renew()
        arena.inspector.poison(0)
        self._launch(0)
        verdict = self._subject.verify()
        self.outcome.rel_error = verdict.rel_error
        reason = verdict.reason
        reason = reason or arena.inspector.between(self._launches, self._run, close=True)
        _refuse(reason)

    def time(self, part: int = 1) -> None:
        """All rounds, or a ``part`` of them; raises ``Rejected`` if wrong, or not to be timed."""
        started, rounds = perf_counter(), 0
        while rounds < ROUNDS // part or (
            rounds < MOST_ROUNDS // part and perf_counter() - started < QUICK_S / part
        ):
            self.outcome.rounds.append([self._round()])
            rounds += 1
        summary = summarize(self.outcome.rounds)
        if summary.low <= 0:
            raise Rejected(TOO_SHORT, "failed")
        self.outcome.summary = summary

    def verify_again(self) -> None:
        """All copies, and inputs of other kinds; raises ``Rejected``."""
        arena, outcome = self._arena, self.outcome
        arena.rotation.refill(arena.device)
        arena.inspector.renew()
        assert outcome.summary
        each_us, inspector = outcome.summary.median, arena.inspector
        reason = inspector.after(self._launches, self._run, each_us, 1, close=False)
        _refuse(told(LATER, reason))
        _refuse(told(OTHER, inspector.on_other_inputs(self._launches, self._run)))

    def _round(self) -> float:
        """Microseconds of a launch, each on inputs of its own that are written just before.

        What is compared is copied at once: it does not get better while it is looked at.
        """
        arena, rotation = self._arena, self._arena.rotation
        places = arena.draw.sample(range(len(rotation.copies)), len(rotation.copies))
        fresh = _Fresh(arena, 0 if self._trusted else JUDGED)
        each_us = self._launched(places, fresh.write)
        fresh.keep()
        if not self._trusted and arena.draw.random() < WATCHED:
            self._watch()
        _refuse(told(LATER, fresh.wrong()))
        return each_us

    def _watch(self) -> None:
        """Raise ``Rejected`` if it works while it should stand still.

        What goes on when it has ended is another program's: ``UnavailableError``.
        """
        arena = self._arena
        if not arena.disturbed():
            return
        self.end()
        if arena.disturbed():
            raise UnavailableError(CROWDED.format(arena.device.name))
        raise Rejected(LINGERS, "incorrect")


class _Fresh:
    """Inputs of one round, and private copies of what ``count`` launches read and wrote."""

    def __init__(self, arena: Arena, count: int) -> None:
        self._arena = arena
        rotation, draw = arena.rotation, arena.draw
        self._judged = draw.sample(range(len(rotation.copies)), min(count, len(rotation.copies)))
        self._kept: dict[int, Operands] = {}
        self._inputs: object = None

    def write(self) -> None:
        """Other inputs in each copy, poisoned outputs, and nothing of them in a cache."""
        arena, rotation = self._arena, self._arena.rotation
        rotation.differ(arena.device, arena.draw.getrandbits(32))
        rotation.poison(arena.draw.randrange(2))
        self._kept = {place: _copied(rotation.copies[place]) for place in self._judged}
        self._inputs = rotation.inputs()
        arena.settle()

    def keep(self) -> None:
        """The results that will be compared."""
        for place, kept in self._kept.items():
            for operand in self._arena.problem.operands:
                if operand.written:
                    kept[operand.name][...] = self._arena.rotation.copies[place][operand.name]
        self._arena.device.synchronize()

    def wrong(self) -> str:
        """What a round did that it should not, empty if nothing."""
        arena, rotation = self._arena, self._arena.rotation
        with arena.device.checking():
            if reason := rotation.trespass():
                return reason
            if rotation.inputs() != self._inputs:
                return "changes its inputs"
            for kept in self._kept.values():
                expected = Expected(arena.device, kept, arena.draw.getrandbits(32))
                if reason := expected.verdict(kept).reason:
                    return reason
            only = [(one, rows) for one, rows in rotation.outputs() if one.role == "out"]
            if any(count_nan(arena.device.arrays, rows, one.type) for one, rows in only):
                return SKIPS
        return ""


def _copied(copy: Operands) -> Operands:
    """The same operands in memory that nobody else has."""
    initial = {name: array.copy() for name, array in copy.initial.items()}
    return Operands(copy.problem, {name: one.copy() for name, one in copy.items()}, initial)


def _refuse(reason: str) -> None:
    if reason:
        raise Rejected(reason, "incorrect")
