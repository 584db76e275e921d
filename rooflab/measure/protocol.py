"""Measures one problem: verifies every kernel, then times all of them in turn.

docs/measurement.md explains each step and why; the constants are in ``config.Timing``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle, islice
from math import ceil, inf, isnan
from statistics import median
from time import perf_counter, sleep
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.device import LEAST_BATCHES, MAX_BATCH, Device, Reading, Timed
from rooflab.errors import DeviceLost, KernelError, UnavailableError
from rooflab.kernels import Kernel, Launch
from rooflab.measure import search, telemetry
from rooflab.measure.buffers import Rotation, allocate, flusher, poison, rotate
from rooflab.measure.energy import PowerMeter
from rooflab.measure.settling import MINIMUM_US, settle
from rooflab.measure.spreading import Spread
from rooflab.measure.statistics import Summary, outliers, summarize
from rooflab.measure.streaming import Streamed
from rooflab.measure.verify import WORKSPACE_BYTES, reads_output, unlike, verify
from rooflab.model.measurement import BATCH_TIMED
from rooflab.model.problem import Problem
from rooflab.model.timeline import Span

MICROSECONDS: Final = 1e6

FIRST: Final = 10
"""Launches that are timed at first, so that it is known how many make a second."""

SELF_TEST_SAMPLES: Final = 32
SELF_TEST_US: Final = 200.0
SUSPECT_PERCENT: Final = 5.0

COOL_S: Final = 1.0
RETRIES: Final = 3

PAIRS: Final = 8
"""Launches per round that are timed singly if the headline comes from batches."""

SHORT_US: Final = 30.0
"""MAX_BATCH shorter launches end before the host has queued the next MAX_BATCH."""

REASON_LENGTH: Final = 300
"""Characters of a failure's first line in its row."""

BUSY_SHARE: Final = 0.9
"""The kernel must run for this share of the energy window; otherwise there is no figure."""


@dataclass(slots=True)
class Outcome:
    """The result of one kernel on one problem.

    ``rounds`` are times in microseconds. ``pair_us`` is the median time between two events around a
    single launch, with the events' overhead. ``launch_us`` is the time of an empty launch in this
    process; ``voided`` counts rounds that were discarded because heat or a power brake lowered the
    clock. ``power_w`` and ``energy_mhz`` belong to the window of ``energy_j``. ``detail`` is a
    failure's whole message.
    """

    kernel: str
    variant: str = ""
    status: str = "ok"
    reason: str = ""
    detail: str = ""
    rel_error: float | None = None
    cache: str = ""
    rounds: list[list[float]] = field(default_factory=list)
    summary: Summary | None = None
    pair_us: float | None = None
    launch_us: float | None = None
    voided: int = 0
    readings: list[Reading] = field(default_factory=list)
    energy_j: float | None = None
    power_w: float | None = None
    energy_mhz: float | None = None
    spans: list[Span] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)

    def skip(self, reason: str) -> None:
        """Become ``skipped``."""
        self.status, self.reason = "skipped", reason

    def flag(self, name: str) -> None:
        """Add a flag once."""
        if name not in self.flags:
            self.flags.append(name)

    def fail(self, reason: str, status: str = "failed") -> None:
        """Become ``failed`` with the first line of ``reason``, and without figures."""
        self.status, self.detail = status, reason
        self.reason = reason.splitlines()[0][:REASON_LENGTH]
        self.summary = self.pair_us = self.energy_j = self.power_w = self.energy_mhz = None
        self.rounds.clear()


@dataclass(slots=True)
class Clock:
    """The wall time of a run by part, in seconds; ``device`` is the sum of all timed launches."""

    prepare: float = 0.0
    verify: float = 0.0
    timing: float = 0.0
    device: float = 0.0


@dataclass(slots=True)
class _Candidate:
    """A verified kernel and its state between rounds."""

    kernel: Kernel
    outcome: Outcome
    launches: list[Launch]
    estimate_us: float
    turn: int = 0
    spent_s: float = 0.0
    others_s: float = 0.0
    batch: int = 0
    placed: Streamed | Spread | None = None
    pairs: list[float] = field(default_factory=list)
    done: bool = False

    def next_launches(self, count: int) -> list[Launch]:
        """The next launches of the rotation, whose position is never reset."""
        start, self.turn = self.turn, (self.turn + count) % len(self.launches)
        return list(islice(cycle(self.launches), start, start + count))


Progress = Callable[[str, str], None]
"""Called with the name of a kernel and the current step."""


class Protocol:
    """Measures problems on one device, one after the other."""

    def __init__(
        self, device: Device, config: SweepConfig, progress: Progress = lambda kernel, step: None
    ) -> None:
        self.device = device
        self.config = config
        self.timing: Timing = config.timing
        self.progress = progress
        self.clock = Clock()
        self._order = random.Random(config.seed)
        self._launch_us: float | None = None
        self._self_tested = False
        self._capped = False  # the device, by a kernel of this problem
        self._most_s = config.timing.max_s

    def measure(
        self, problem: Problem, kernels: Sequence[Kernel], most_s: float = inf
    ) -> list[Outcome]:
        """One ``Outcome`` per kernel, in their order. Failures are outcomes, not exceptions.

        ``most_s`` limits the seconds that the rounds of each kernel may take, as ``max_s`` does.
        The only exception is ``DeviceLost``: after it this process cannot continue.
        """
        self._most_s = min(most_s, self.timing.max_s)
        outcomes = {kernel.name: Outcome(kernel.name) for kernel in kernels}
        able = []
        for kernel in kernels:
            try:
                reason = next(filter(None, map(kernel.refuses, problem.launched)), "")
                reason = reason or search.lacks(kernel, self.config.variant)
            except Exception as error:  # a kernel's code may raise anything
                outcomes[kernel.name].fail(_text(error))
                continue
            if reason:
                outcomes[kernel.name].skip(reason)
            else:
                able.append(kernel)
        if able:
            self._measure(problem, able, outcomes)
            self.device.release()
        return list(outcomes.values())

    def _measure(
        self, problem: Problem, kernels: list[Kernel], outcomes: dict[str, Outcome]
    ) -> None:
        if problem.placement or problem.collective:
            self._measure_placed(problem, kernels, outcomes)
            return
        initial = sum(operand.bytes for operand in problem.operands if operand.role == "inout")
        # A piece of a small problem is the whole problem, in a few wider arrays.
        workspace = min(WORKSPACE_BYTES, 8 * problem.operand_bytes)
        needed, free = problem.operand_bytes + initial + workspace, self.device.free_bytes()
        if needed > free:
            for kernel in kernels:
                outcomes[kernel.name].skip(
                    f"needs {needed / 1e9:.3g} GB of memory, {free / 1e9:.3g} GB are free"
                )
            return
        started = perf_counter()
        try:
            operands = allocate(self.device, problem, self.config.seed, self.config.fill)
            rotation = rotate(self.device, operands, cold=self.config.cache == "cold")
        except Exception as error:
            for kernel in kernels:
                outcomes[kernel.name].fail(_text(error))
            return
        self.clock.prepare += perf_counter() - started
        candidates = [
            candidate
            for kernel in kernels
            if (candidate := self._verified(kernel, outcomes[kernel.name], rotation))
        ]
        self._time(candidates, rotation)

    def _measure_placed(
        self, problem: Problem, kernels: list[Kernel], outcomes: dict[str, Outcome]
    ) -> None:
        started = perf_counter()
        found = [self._verified_place(problem, one, outcomes[one.name]) for one in kernels]
        candidates = [candidate for candidate in found if candidate]
        self.clock.verify += perf_counter() - started
        self._time(candidates, None)

    def _verified_place(
        self, problem: Problem, kernel: Kernel, outcome: Outcome
    ) -> _Candidate | None:
        """A streamed or spread problem, verified; None if the outcome is then final."""
        try:
            self.progress(kernel.name, "verifying")
            kind = Streamed if problem.streamed else Spread
            placed = kind(self.device, problem, kernel.prepare, self.config)
            verdict = placed.verify()
            outcome.rel_error = verdict.rel_error
            if verdict.reason:
                outcome.status, outcome.reason = "incorrect", verdict.reason
                return None
            estimate_us = self._host_us(placed.launch)
        except UnavailableError as error:
            outcome.skip(str(error))
            return None
        except Exception as error:  # a kernel's code may raise anything
            outcome.fail(_text(error))
            self._check_device(kernel, error)
            return None
        estimate_us = max(estimate_us, MINIMUM_US)
        return _Candidate(kernel, outcome, [placed.launch], estimate_us, placed=placed)

    # Before timing ------------------------------------------------------------------------------

    def _verified(self, kernel: Kernel, outcome: Outcome, rotation: Rotation) -> _Candidate | None:
        """Prepare the kernel and check its first result; None if the outcome is then final."""
        outcome.cache = self.config.cache
        first = rotation.copies[0]
        try:
            started = perf_counter()
            self.progress(kernel.name, "compiling")
            prepare, outcome.variant = kernel.prepare, kernel.variant
            if len(kernel.variants) > 1:
                best = search.choose(
                    self.device, kernel, rotation, self.config, partial(self.progress, kernel.name)
                )
                prepare, outcome.variant = best.prepare, best.name
            launches = [prepare(self.device, operands) for operands in rotation.copies]
            self.clock.prepare += perf_counter() - started
            started = perf_counter()
            self.progress(kernel.name, "verifying")
            poison(first)
            self.device.synchronize()
            estimate_us = self._host_us(launches[0])
            verdict = verify(self.device, first, self.config.seed)
            if isnan(verdict.rel_error):
                verdict = reads_output(self.device, first, launches[0], self.config.seed) or verdict
            if not verdict.reason and kernel.untrusted:
                for launch in launches[1:]:  # it may compile for each copy of the operands
                    launch()
                if self._escapes(launches[0], rotation):
                    outcome.fail("launches outside the given stream", "incorrect")
                    return None
            if estimate_us >= self.timing.slow_s * MICROSECONDS:
                estimate_us = self._host_us(launches[0])  # the first one may have loaded code
            if estimate_us < self.timing.slow_s * MICROSECONDS:
                (estimate_us,) = self._timed(self.device.time(launches[:1]))
            self.clock.verify += perf_counter() - started
        except Exception as error:  # a kernel's code may raise anything
            outcome.fail(_text(error))
            self._check_device(kernel, error)
            return None
        outcome.rel_error = verdict.rel_error
        if verdict.reason:
            outcome.status, outcome.reason = "incorrect", verdict.reason
            return None
        if getattr(launches[0], "padded", False):
            outcome.flag("padded")
        return _Candidate(kernel, outcome, launches, max(estimate_us, MINIMUM_US))

    def _host_us(self, launch: Launch) -> float:
        """A launch by the host's clock: the first one loads code, which could wait for a gate."""
        started = perf_counter()
        launch()
        self.device.synchronize()
        return (perf_counter() - started) * MICROSECONDS

    def _escapes(self, launch: Launch, rotation: Rotation) -> bool:
        """Whether the launch does its work on another stream than the device's."""
        poison(rotation.copies[0], pattern=1)
        outputs = [rows[0] for operand, rows in rotation.outputs(1) if operand.role == "out"]
        return self.device.escapes(launch, outputs)

    def _time(self, candidates: list[_Candidate], rotation: Rotation | None) -> None:
        started, verified_s = perf_counter(), self.clock.verify
        self._capped = False
        for candidate in candidates:
            self._guarded(self._warm_up, candidate, rotation)
        while running := [candidate for candidate in candidates if not candidate.done]:
            self._order.shuffle(running)
            for candidate in running:
                self._guarded(self._round, candidate, rotation)
        # A kernel that computed its result beforehand now returns a wrong one.
        if candidates and rotation:
            rotation.refill(self.device, self.config.seed + 1, self.config.fill)
        for candidate in candidates:
            if candidate.outcome.status == "ok":
                candidate.done = False
                self._guarded(self._finish, candidate, rotation)
        again_s = self.clock.verify - verified_s
        self.clock.timing += perf_counter() - started - again_s

    def _guarded(
        self,
        step: Callable[[_Candidate, Rotation | None], None],
        candidate: _Candidate,
        rotation: Rotation | None,
    ) -> None:
        """Run ``step``; a failure fails only this kernel's row."""
        if candidate.done:
            return
        try:
            step(candidate, rotation)
        except Exception as error:  # a kernel's code may raise anything
            candidate.outcome.fail(_text(error))
            candidate.done = True
            self._check_device(candidate.kernel, error)

    def _check_device(self, kernel: Kernel, error: BaseException) -> None:
        """Raise ``DeviceLost`` if the device fails after an error of ``kernel``."""
        try:
            self.device.synchronize()
        except KernelError:
            raise DeviceLost(kernel.name, _text(error)) from error

    def _timed(self, timed: Timed, launches: int = 1) -> list[float]:
        """The times; adds them to the device's busy time."""
        self.clock.device += sum(timed.times_us) * launches / MICROSECONDS
        return timed.times_us

    def _warm_up(self, candidate: _Candidate, rotation: Rotation | None) -> None:
        """Launch until the clock is steady, and estimate the time of a launch."""
        timing = self.timing
        if candidate.estimate_us >= timing.slow_s * MICROSECONDS:
            return
        self.progress(candidate.kernel.name, "warming up")
        left_us, left = timing.warmup_s * MICROSECONDS, timing.warmup_launches
        left = max(left, min(FIRST, ceil(left_us / candidate.estimate_us)))
        while left > 0 or (candidate.placed and left_us > 0):
            count = left if left > 0 else ceil(left_us / candidate.estimate_us)
            timed = self.device.time(candidate.next_launches(min(FIRST, count)))
            times = self._timed(timed)
            self._sense(timed.reading)
            candidate.estimate_us = max(median(times), MINIMUM_US)
            left_us -= sum(times)
            left -= len(times)
        self._settle(candidate, left_us / MICROSECONDS)
        if candidate.estimate_us < timing.batch_us and not candidate.placed:
            self._use_batches(candidate)
        self._count_energy(candidate)

    def _settle(self, candidate: _Candidate, seconds: float) -> None:
        """Run for so long, without the pauses that a timing needs between launches."""
        if seconds > 0 and not candidate.placed:
            self._capped |= settle(
                self.device, candidate.next_launches, candidate.estimate_us, seconds
            )

    def _sense(self, reading: Reading | None) -> None:
        """Remember if the device was at its power limit."""
        self._capped |= reading is not None and telemetry.capped([reading])

    def launch_us(self) -> float:
        """Time of an empty launch in a batch, in microseconds; measured once."""
        if self._launch_us is None:
            self._launch_us = empty_launch_us(self.device)
        return self._launch_us

    def _use_batches(self, candidate: _Candidate) -> None:
        """Time launches in batches, long enough that the timer's overhead is negligible."""
        wanted = ceil(self.timing.batch_us / candidate.estimate_us)
        candidate.batch = min(MAX_BATCH, max(2, wanted))
        candidate.outcome.flag(BATCH_TIMED)

    def _count_energy(self, candidate: _Candidate) -> None:
        """Energy of a launch, power and clock over a window of continuous work of this kernel.

        The window comes before the rounds, because it also warms up the chip. Slow kernels are
        skipped to save time, short ones because the device waits for the host between their
        batches.
        """
        counted = candidate.placed is None or candidate.placed.counts_energy
        known = self.timing.energy_s and counted and self.device.energy_j() is not None
        if not known or candidate.estimate_us < SHORT_US:
            return
        self.progress(candidate.kernel.name, "counting energy")
        launch_us = candidate.estimate_us
        per_queue = min(MAX_BATCH, ceil(self.timing.energy_s * MICROSECONDS / launch_us / 4))
        launched, busy_us, started, wall_s = 0, 0.0, perf_counter(), 0.0
        readings: list[Reading] = []
        with PowerMeter(self.device.energy_j) as meter:
            while wall_s < self.timing.energy_s:
                timed = self.device.time_batch(candidate.next_launches(per_queue))
                busy_us += sum(self._timed(timed, per_queue)) * per_queue
                readings += [timed.reading] if timed.reading else []
                self._sense(timed.reading)
                launched += per_queue
                wall_s = perf_counter() - started
        watts = meter.watts
        if watts is not None and busy_us >= BUSY_SHARE * wall_s * MICROSECONDS:
            candidate.outcome.energy_j = watts * wall_s / launched
            candidate.outcome.power_w = watts
            candidate.outcome.energy_mhz = telemetry.summarize(readings).sm_mhz

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, candidate: _Candidate, rotation: Rotation | None) -> None:
        timing, outcome = self.timing, candidate.outcome
        self.progress(candidate.kernel.name, "timing")
        slow = candidate.estimate_us >= timing.slow_s * MICROSECONDS
        settled = self._capped and not slow and not candidate.placed and timing.own_clock_s > 0
        samples = 1 if slow else self._samples(candidate, settled)
        flush = rotation.flush if rotation else None
        started, others_s = perf_counter(), self.device.others_s()
        self.device.quiesce(candidate.launches[candidate.turn - 1])
        if settled:
            self._settle(candidate, timing.own_clock_s)
        times: list[float] = []
        pairs: list[float] = []
        if not candidate.batch:
            timed = self.device.time(candidate.next_launches(samples), flush)
            times = self._timed(timed)
            if not getattr(candidate.launches[0], "gated", True):
                outcome.flag("host_timed")
            elif not timed.gated:
                outcome.flag("ungated")
                if not candidate.placed:
                    self._use_batches(candidate)
        if candidate.batch:
            times, batch = [], candidate.batch
            if settled:
                batch = min(MAX_BATCH, max(batch, ceil(samples / LEAST_BATCHES)))
            while len(times) < max(LEAST_BATCHES, samples / batch):
                launches = candidate.next_launches(batch)
                timed = self.device.time_batch(launches, flush, clock=False)
                times += self._timed(timed, len(launches))
                if not timed.gated:
                    outcome.flag("ungated")
            if timed.reading:  # one more: counting the clock makes a batch a few µs longer
                timed = self.device.time_batch(launches, flush)
            pairs = self._alone(candidate, flush, min(PAIRS, samples))  # the device idles between
        # With flushes and pauses, which take most of a round on a large cache.
        candidate.spent_s += perf_counter() - started
        if others_s is not None:
            candidate.others_s += (self.device.others_s() or others_s) - others_s

        reading = timed.reading
        if reading and reading.reasons & telemetry.HARDWARE and outcome.voided < RETRIES:
            outcome.voided += 1
            sleep(COOL_S)
            return
        if reading:
            outcome.readings.append(reading)
        self._sense(reading)
        outcome.rounds.append(times)
        candidate.pairs += pairs
        self._decide(candidate, slow)

    def _samples(self, candidate: _Candidate, settled: bool) -> int:
        """Launches of a round. At a power limit they take all of its time: the clock swings."""
        wanted = ceil(self.timing.round_s * MICROSECONDS / candidate.estimate_us)
        return wanted if settled else min(self.timing.round_samples, wanted)

    def _alone(
        self, candidate: _Candidate, flush: Callable[[], None] | None, count: int
    ) -> list[float]:
        """Times of single launches, each behind a separate gate.

        Without separate gates, pairs of events are close together and measure a longer time.
        """
        times: list[float] = []
        for _ in range(count):
            timed = self.device.time(candidate.next_launches(1), flush)
            times += self._timed(timed)
            if not timed.gated:
                candidate.outcome.flag("ungated")
        return times

    def _decide(self, candidate: _Candidate, slow: bool) -> None:
        """Finish the kernel if it has had enough rounds."""
        timing, outcome = self.timing, candidate.outcome
        count = len(outcome.rounds)
        overspent = candidate.spent_s >= self._most_s
        # Fewer rounds give no interval, even if the time is used up.
        if count < (timing.slow_rounds if slow or overspent else timing.min_rounds):
            return
        summary = summarize(outcome.rounds)
        narrow = summary.half_width_percent <= timing.precision_percent
        if narrow or slow or overspent or count >= timing.max_rounds:
            outcome.summary = summary
            candidate.done = True
            if not narrow:
                outcome.flag("noisy")

    # After timing -------------------------------------------------------------------------------

    def _finish(self, candidate: _Candidate, rotation: Rotation | None) -> None:
        """Verify again, on all buffer copies; test the cache; set flags."""
        outcome = candidate.outcome
        assert outcome.summary is not None
        outcome.pair_us = median(candidate.pairs) if candidate.pairs else outcome.summary.median
        outcome.launch_us = self.launch_us()
        started = perf_counter()
        self.progress(candidate.kernel.name, "verifying again")
        if reason := self._spoiled(candidate, rotation):
            outcome.fail(reason, "incorrect")
            return
        self.clock.verify += perf_counter() - started
        if rotation:
            self._test_cache(candidate, rotation)
        if candidate.placed:
            outcome.spans = list(candidate.placed.timeline())
        sensed = telemetry.summarize(outcome.readings)
        if sensed.power_capped:
            outcome.flag("power_capped")
        if outcome.voided:
            outcome.flag("voided")
        if sensed.throttled:
            outcome.flag("throttled")
        if self.device.contended(candidate.others_s, candidate.spent_s):
            outcome.flag("contended")
        if outliers(outcome.rounds):
            outcome.flag("outliers")
        cache = self.device.last_level_cache_bytes()
        if outcome.cache == "warm" and rotation and rotation.problem.operand_bytes < cache:
            outcome.flag("l2_resident")
        if outcome.cache == "cold" and not cache:
            outcome.flag("cache_unknown")

    def _spoiled(self, candidate: _Candidate, rotation: Rotation | None) -> str:
        """What is wrong with the results on any buffer copy, empty if all are right.

        The inputs and the poison of integers differ from those of the first check.
        """
        if candidate.placed:
            candidate.placed.refill()
            if reason := candidate.placed.verify().reason:
                return f"right at first, wrong after timing, on other inputs: {reason}"
            return ""
        assert rotation is not None
        slow = candidate.estimate_us >= self.timing.slow_s * MICROSECONDS
        count = 1 if slow else len(rotation.copies)
        rotation.poison(count, pattern=1)
        for launch in candidate.launches[:count]:
            launch()
        self.device.synchronize()
        verdict = verify(self.device, rotation.copies[0], self.config.seed)
        if verdict.reason:
            return f"right at first, wrong after timing, on other inputs: {verdict.reason}"
        if wrong := unlike(self.device, rotation, count):
            return f"right at first, wrong on {len(wrong)} of {count} copies of the operands"
        return ""

    def _test_cache(self, candidate: _Candidate, rotation: Rotation) -> None:
        """Once per run: is the cache as cold after a rotation as after a flush?"""
        outcome = candidate.outcome
        rotated = len(rotation.copies) > 1 and rotation.flush is None
        if self._self_tested or not rotated or not outcome.pair_us:
            return
        # After a flush, dirty lines delay a short kernel; and during a flush, a device at its power
        # limit cools down.
        if not SELF_TEST_US <= candidate.estimate_us < self.timing.slow_s * MICROSECONDS:
            return
        if telemetry.summarize(outcome.readings).power_capped:
            return
        self._self_tested = True
        self.device.quiesce(candidate.launches[candidate.turn - 1])  # the check used a library
        flushed = median(self._alone(candidate, flusher(self.device), SELF_TEST_SAMPLES))
        if abs(flushed / outcome.pair_us - 1) * 100 > SUSPECT_PERCENT:
            outcome.flag("cache_suspect")


def empty_launch_us(device: Device) -> float:
    """Time of an empty launch in a batch, in microseconds: a part of every launch's time."""
    batches = [device.time_batch([device.nothing] * 64, clock=False) for _ in range(21)]
    return median(time_us for batch in batches for time_us in batch.times_us)


def _text(error: BaseException) -> str:
    """The message of a failure; with the type of the exception if it is not rooflab's."""
    if isinstance(error, KernelError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
