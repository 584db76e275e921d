"""Measures one problem: verifies every kernel, then times all of them in turn.

docs/measurement.md explains each step and why; the constants are in ``config.Timing``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from math import ceil, inf, isnan, nan
from secrets import randbits
from statistics import median
from time import perf_counter, sleep
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import LEAST_BATCHES, MAX_BATCH, Device, Reading, Timed
from rooflab.errors import ALONE, DeviceLost, KernelError, UnavailableError, headline
from rooflab.kernels.base import Kernel, Launch
from rooflab.measure import search, telemetry
from rooflab.measure.buffers import Rotation, flusher, guard_bytes, poison, rotate
from rooflab.measure.energy import PowerMeter
from rooflab.measure.inspection import Inspector, Watch
from rooflab.measure.multi_gpu import Spread
from rooflab.measure.settings import Own, Settings
from rooflab.measure.settling import MINIMUM_US, settle
from rooflab.measure.statistics import Summary, outliers, summarize
from rooflab.measure.streaming import Streamed
from rooflab.measure.verify import WORKSPACE_BYTES, Accuracy, reads_output
from rooflab.model.measurement import BATCH_TIMED, CONTENDED
from rooflab.model.problem import Problem
from rooflab.model.timeline import Span

MICROSECONDS: Final = 1e6

FIRST: Final = 10
"""Launches that are timed at first, so that it is known how many make a second."""

SELF_TEST_SAMPLES: Final = 32
SELF_TEST_US: Final = 200.0
SELF_TEST_MOST_US: Final = 5000.0
SUSPECT_PERCENT: Final = 5.0

COOL_S: Final = 1.0
RETRIES: Final = 3

PAIRS: Final = 8
"""Launches per round that are timed singly if the headline comes from batches."""

LOADED_US: Final = 1e6
"""From this time on, loading code is a small part of a kernel's first launch."""

LATER: Final = "right at first, wrong while timed"
OTHER: Final = "right at first, wrong on other inputs"

SHORT_US: Final = 30.0
"""MAX_BATCH shorter launches end before the host has queued the next MAX_BATCH."""

REASON_LENGTH: Final = 300
"""Characters of a failure's headline in its row."""

BUSY_SHARE: Final = 0.9
"""The kernel must run for this share of the energy window; otherwise there is no figure."""

LAG_S: Final = 0.15
"""So long after a kernel has begun, the sensors may still show the one before it."""

STRETCHED: Final = 1.1
"""Times that are this much longer by another clock, in each round, are not those of the launches:
counting takes a few microseconds."""

AT_A_TIME: Final = 2
"""Rounds of a kernel at the power limit in its turn: it settles once for both."""

AGAIN: Final = 0.5
COOLER: Final = 0.25
"""A kernel settles in this part of ``own_clock_s`` if the launches before were its own, or if only
another one is at the power limit."""

BURSTS: Final = 3
BURST_US: Final = 20_000.0
"""Bursts, each after a rest, and the length of one: the power limit acts later."""


@dataclass(slots=True)
class Outcome:
    """The result of one kernel on one problem.

    ``rounds`` are times in microseconds. ``pair_us`` is the median time between two events around a
    single launch, with the events' overhead. ``launch_us`` is the time of an empty launch in this
    process; ``voided`` counts rounds that were discarded because heat or a power brake lowered the
    clock. ``power_w`` and ``energy_mhz`` belong to the window of ``energy_j``. ``detail`` is a
    failure's whole message. ``burst_us``, with clock and power, is the time of a few launches after
    a rest, where the power limit lowers the clock later. ``changed`` says which settings of the
    process the kernel changed; if ``stays``, some could not be undone, and the process is of no use
    for others.
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
    burst_us: float | None = None
    burst_mhz: float | None = None
    burst_w: float | None = None
    changed: str = ""
    stays: bool = False
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
        """Become ``failed`` with the headline of ``reason``, and without figures."""
        self.status, self.detail = status, reason
        self.reason = headline(reason)[:REASON_LENGTH]
        self.summary = self.pair_us = self.energy_j = self.power_w = self.energy_mhz = None
        self.burst_us = self.burst_mhz = self.burst_w = None
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
    """A verified kernel and its state between rounds; ``quick``: it only seemed slow at first."""

    kernel: Kernel
    outcome: Outcome
    launches: list[Launch]
    estimate_us: float
    own: Own = field(default_factory=Own)
    turn: int = 0
    inspect_at: int = 0
    judge_at: int = 0
    capped: bool = False
    quick: bool = False
    settled_w: float | None = None
    spent_s: float = 0.0
    others_s: float = 0.0
    batch: int = 0
    placed: Streamed | Spread | None = None
    pairs: list[float] = field(default_factory=list)
    stretches: list[float] = field(default_factory=list)
    done: bool = False

    def places(self, count: int) -> list[int]:
        """The buffer copies of the next launches."""
        return [(self.turn + i) % len(self.launches) for i in range(count)]

    def next_launches(self, count: int) -> list[Launch]:
        """The next launches of the rotation, whose position is never reset."""
        start, self.turn = self.turn, (self.turn + count) % len(self.launches)
        return list(islice(cycle(self.launches), start, start + count))


@dataclass(slots=True)
class _Work:
    """Continuous work of one kernel: readings of its own clock, and how long it was."""

    started: float = field(default_factory=perf_counter)
    launched: int = 0
    busy_s: float = 0.0
    wall_s: float = 0.0
    readings: list[Reading] = field(default_factory=list)

    def add(self, timed: Timed, launches: int, each: int) -> None:
        """``each`` of the times is that of so many launches."""
        self.launched += launches
        self.busy_s += sum(timed.times_us) * each / MICROSECONDS
        self.wall_s = perf_counter() - self.started
        if timed.reading and max(self.wall_s, self.busy_s) >= LAG_S:
            self.readings.append(timed.reading)


Progress = Callable[[str, str], None]
"""Called with the name of a kernel and the current step."""

Failed = Callable[[Outcome], None]
"""Called with an outcome that is not ``ok``, as soon as that is known."""


class Protocol:
    """Measures problems on one device, one after the other."""

    def __init__(
        self,
        device: Device,
        config: SweepConfig,
        progress: Progress = lambda kernel, step: None,
        failed: Failed = lambda outcome: None,
        entropy: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        self.device = device
        self.config = config
        self.timing: Timing = config.timing
        self.progress = progress
        self.clock = Clock()
        self.settings = settings or Settings(device, config)
        self._failed = failed
        self._order = random.Random(config.seed)
        # What is checked, and when: no kernel can foresee it.
        self._draw = random.Random(randbits(64) if entropy is None else entropy)
        self._last: _Candidate | None = None
        self._launch_us: float | None = None
        self._self_tested = False
        self._loaded: set[tuple[object, ...]] = set()
        self._shared = False
        self._most_s = config.timing.max_s

    def measure(
        self, problem: Problem, kernels: Sequence[Kernel], most_s: float = inf
    ) -> list[Outcome]:
        """One ``Outcome`` per kernel, in their order. Failures are outcomes, not exceptions.

        ``most_s`` limits the seconds that the rounds of each kernel may take, as ``max_s`` does.
        The only exception is ``DeviceLost``: after it this process cannot continue.
        """
        self._most_s = min(most_s, self.timing.max_s)
        self._shared = len(kernels) > 1
        outcomes = {kernel.name: Outcome(kernel.name) for kernel in kernels}
        self.settings.accept()
        able = []
        for kernel in kernels:
            try:
                reason = next(filter(None, map(kernel.refuses, problem.launched)), "")
                reason = reason or search.lacks(kernel, self.config.variant)
            except Exception as error:  # a kernel's code may raise anything
                outcomes[kernel.name].fail(_text(error))
                self._failed(outcomes[kernel.name])
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
        guards = sum(2 * guard_bytes(operand) for operand in problem.operands)
        needed = problem.operand_bytes + guards + initial + workspace
        free = self.device.free_bytes()
        if needed > free:
            for kernel in kernels:
                outcomes[kernel.name].skip(
                    f"needs {needed / 1e9:.3g} GB of memory, {free / 1e9:.3g} GB are free"
                )
            return
        started = perf_counter()
        try:
            cold = self.config.cache == "cold"
            rotation = rotate(self.device, problem, self.config.seed, cold=cold)
            inspector = Inspector(self.device, rotation, self._draw)
            self.settings.accept()  # with the memory that is free now
        except Exception as error:
            for kernel in kernels:
                outcomes[kernel.name].fail(_text(error))
                self._failed(outcomes[kernel.name])
            return
        self.clock.prepare += perf_counter() - started
        candidates = [
            candidate
            for kernel in kernels
            if (candidate := self._verified(kernel, outcomes[kernel.name], inspector))
        ]
        if candidates and self.config.fill != "uniform":
            inspector.rotation = rotation.filled(self.device, self.config.fill)
            inspector.renew()
        self._time(candidates, inspector)

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
                outcome.fail(verdict.reason, "incorrect")
                self._failed(outcome)
                return None
            placed.load(self.config.fill)
            estimate_us = self._host_us(placed.launch)
        except UnavailableError as error:
            outcome.skip(str(error))
            return None
        except Exception as error:  # a kernel's code may raise anything
            outcome.fail(_text(error))
            self._failed(outcome)
            self._check_device(kernel, error)
            return None
        estimate_us = max(estimate_us, MINIMUM_US)
        return _Candidate(kernel, outcome, [placed.launch], estimate_us, placed=placed)

    # Before timing ------------------------------------------------------------------------------

    def _verified(
        self, kernel: Kernel, outcome: Outcome, inspector: Inspector
    ) -> _Candidate | None:
        """Prepare the kernel and check its first result; None if the outcome is then final."""
        outcome.cache = self.config.cache
        own = self.settings.loaded.get(kernel.id, Own()).copy()
        try:
            with self.settings.of(own, trusted=not kernel.untrusted):
                candidate = self._first(kernel, outcome, inspector)
            if not kernel.untrusted:
                self.settings.accept()
        except DeviceLost:
            raise
        except BaseException as error:  # a kernel's code may raise anything
            outcome.fail(_text(error))
            self._failed(outcome)
            self._check_device(kernel, error)
            self._note(kernel, outcome, own)
            return None
        self._note(kernel, outcome, own)
        if own.tampered:
            outcome.fail(own.tampered, "incorrect")
            candidate = None
        if candidate is None:
            self._failed(outcome)
            return None
        candidate.own = own
        return candidate

    def _note(self, kernel: Kernel, outcome: Outcome, own: Own) -> None:
        """What a kernel changed; raises ``DeviceLost`` if it stays and others work here."""
        outcome.changed, outcome.stays = own.text, own.stays
        if not own.stays:
            return
        if self._shared:
            raise DeviceLost(kernel.name, own.text, ALONE)
        outcome.changed += "; in a process of its own, since this stays"

    def _first(self, kernel: Kernel, outcome: Outcome, inspector: Inspector) -> _Candidate | None:
        rotation = inspector.rotation
        started = perf_counter()
        self.progress(kernel.name, "compiling")
        prepare, outcome.variant = kernel.prepare, kernel.variant
        if len(kernel.variants) > 1:
            best = search.choose(
                self.device, kernel, rotation, self.config, partial(self.progress, kernel.name)
            )
            prepare, outcome.variant = best.prepare, best.name
        launches = [prepare(self.device, operands) for operands in rotation.operands()]
        self.clock.prepare += perf_counter() - started
        started = perf_counter()
        self.progress(kernel.name, "verifying")
        inspector.poison(0)
        code = self._code(kernel, outcome, rotation.problem, launches[0])
        first = self._at_once(launches[0], rotation) if code in self._loaded else None
        estimate_us = first.times_us[0] if first else self._host_us(launches[0])
        verdict = inspector.judge(0)
        outcome.rel_error = verdict.rel_error
        if verdict.reason and isnan(verdict.rel_error):
            outcome.rel_error, reason = nan, verdict.reason
            if kernel.untrusted:
                self._check_place(kernel, launches[0], rotation)
            outside = inspector.reads_outside(launches[0])
            reads = None if outside else self._reads(launches[0], inspector)
            verdict = reads or replace(verdict, reason=outside or reason)
        elif not verdict.reason and kernel.untrusted:
            for launch in launches[1:]:  # it may compile for each copy of the operands
                launch()
            self._check_place(kernel, launches[0], rotation)
            verdict = replace(verdict, reason=inspector.unharmed())
        if verdict.reason:
            self.clock.verify += perf_counter() - started
            outcome.fail(verdict.reason, "incorrect")
            return None
        if first is None and estimate_us < LOADED_US:
            (estimate_us,) = self._timed(self.device.time(launches[:1], rotation.flush))
        if not (kernel.untrusted or kernel.library):  # a library has other code for each size
            self._loaded.add(code)
        self.clock.verify += perf_counter() - started
        if getattr(launches[0], "padded", False):
            outcome.flag("padded")
        candidate = _Candidate(kernel, outcome, launches, max(estimate_us, MINIMUM_US))
        if first and self._slow(candidate):  # it takes its time: the launch was a round
            outcome.rounds.append(self._timed(first))
            outcome.readings += [first.reading] if first.reading else []
        return candidate

    def _code(
        self, kernel: Kernel, outcome: Outcome, problem: Problem, launch: Launch
    ) -> tuple[object, ...]:
        """What a launch loads the first time."""
        padded = getattr(launch, "padded", False)
        kind = (problem.precision.name, problem.record.about, padded)
        return (kernel.id, outcome.variant, *kind)

    def _at_once(self, launch: Launch, rotation: Rotation) -> Timed | None:
        """The first launch on an operand, whose code is there; None if it was not after all."""
        timed = self.device.time([launch], rotation.flush)
        return timed if timed.gated else None

    def _reads(self, launch: Launch, inspector: Inspector) -> Accuracy | None:
        return reads_output(self.device, inspector.rotation.copies[0], launch, self.config.seed)

    def _host_us(self, launch: Launch) -> float:
        """A launch by the host's clock: the first one loads code, which could wait for a gate."""
        started = perf_counter()
        launch()
        self.device.synchronize()
        return (perf_counter() - started) * MICROSECONDS

    def _check_place(self, kernel: Kernel, launch: Launch, rotation: Rotation) -> None:
        """Raise ``DeviceLost`` if a launch works elsewhere: on another stream, or later.

        Then its work may go on beside that of other kernels, which need a new process.
        """
        poison(rotation.copies[0], pattern=1)
        outputs = [rows[0] for operand, rows in rotation.outputs() if operand.role == "out"]
        if reason := self.device.escapes(launch, outputs):
            raise DeviceLost(kernel.name, reason, "incorrect")

    def _time(self, candidates: list[_Candidate], inspector: Inspector | None) -> None:
        started, verified_s = perf_counter(), self.clock.verify
        for candidate in candidates:
            self._guarded(self._begin, candidate, inspector)
        while running := [candidate for candidate in candidates if not candidate.done]:
            self._order.shuffle(running)
            capped = any(candidate.capped for candidate in candidates)
            for candidate in running:
                for _ in range(AT_A_TIME if candidate.capped else 1):
                    self._guarded(partial(self._round, capped=capped), candidate, inspector)
                if candidate.done and candidate.outcome.status == "ok":
                    candidate.done = False
                    self._guarded(self._finish, candidate, inspector)
                    candidate.done = True
        checks_s = self.clock.verify - verified_s
        self.clock.timing += perf_counter() - started - checks_s

    def _guarded(
        self,
        step: Callable[[_Candidate, Inspector | None], None],
        candidate: _Candidate,
        inspector: Inspector | None,
    ) -> None:
        """Run ``step``; a failure fails only this kernel's row."""
        if candidate.done:
            return
        outcome, trusted = candidate.outcome, not candidate.kernel.untrusted
        try:
            with self.settings.of(candidate.own, trusted=trusted):
                step(candidate, inspector)
            harm = inspector.unharmed() if inspector and not trusted else ""
            if harm and not candidate.done:
                self._refuse(candidate, f"{LATER}: {harm}")
        except DeviceLost:
            raise
        except BaseException as error:  # a kernel's code may raise anything
            outcome.fail(_text(error))
            candidate.done = True
            self._failed(outcome)
            self._check_device(candidate.kernel, error)
        self._note(candidate.kernel, outcome, candidate.own)
        if candidate.own.tampered and outcome.status in ("ok", "incorrect"):
            self._refuse(candidate, candidate.own.tampered)

    def _refuse(self, candidate: _Candidate, reason: str) -> None:
        """The kernel's results are wrong."""
        candidate.outcome.fail(reason, "incorrect")
        candidate.done = True
        self._failed(candidate.outcome)

    def _inspect(self, candidate: _Candidate, inspector: Inspector) -> None:
        """Check a few launches like those that are timed."""
        started, self._last = perf_counter(), None
        self.progress(candidate.kernel.name, "checking")
        run = self._runner(candidate, inspector)
        reason = inspector.between(candidate.launches, run, close=candidate.kernel.foreign)
        if not reason and candidate.kernel.untrusted:
            self._check_place(candidate.kernel, candidate.launches[0], inspector.rotation)
        if reason:
            self._refuse(candidate, f"{LATER}: {reason}")
        self.clock.verify += perf_counter() - started

    def _runner(
        self, candidate: _Candidate, inspector: Inspector
    ) -> Callable[[list[Launch]], object]:
        """Launches of an inspection run as those of a round do."""
        flush = inspector.rotation.flush
        if candidate.batch:
            return lambda launches: [
                self._timed(self.device.time_batch(launches[i : i + MAX_BATCH], flush, sense=False))
                for i in range(0, len(launches), MAX_BATCH)
            ]
        return lambda launches: self._timed(self.device.time(launches, flush))

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

    def _begin(self, candidate: _Candidate, inspector: Inspector | None) -> None:
        """Draw when the kernel is inspected, and warm up."""
        slow = self._slow(candidate)
        rounds = self.timing.slow_rounds if slow else self.timing.min_rounds
        if inspector:
            candidate.inspect_at, candidate.judge_at = map(inspector.moment, (rounds, rounds))
        self._warm_up(candidate, inspector)

    def _warm_up(self, candidate: _Candidate, inspector: Inspector | None) -> None:
        """Launch until the clock is steady; estimate the time of a launch, and count energy.

        Energy is not counted for short kernels, because the device waits for the host between their
        batches.
        """
        if self._slow(candidate):
            return
        self.progress(candidate.kernel.name, "warming up")
        counts = candidate.placed is None or candidate.placed.counts_energy
        counts = counts and candidate.estimate_us >= SHORT_US and self.timing.energy_s > 0
        counts = counts and self.device.energy_j() is not None
        meter = PowerMeter(self.device.energy_j)
        work = _Work()
        with meter if counts else nullcontext():
            left_us = self._first_launches(candidate, work)
            together = not inspector or inspector.rotation.batches
            if candidate.estimate_us < self.timing.batch_us and not candidate.placed and together:
                self._use_batches(candidate)
            if counts or not candidate.placed:
                seconds = self.timing.energy_s if counts else 0.0
                self._run_alone(candidate, work, max(seconds, left_us / MICROSECONDS), counts)
        if counts and (watts := meter.watts) and work.busy_s >= BUSY_SHARE * work.wall_s:
            candidate.outcome.energy_j = watts * work.wall_s / work.launched
            candidate.outcome.power_w = watts
            candidate.outcome.energy_mhz = telemetry.summarize(work.readings).sm_mhz
        if counts and candidate.capped:  # again, now at its own clock
            with PowerMeter(self.device.energy_j) as meter:
                self._run_alone(candidate, _Work(), self.timing.energy_s, counts)
            candidate.settled_w = meter.watts

    def _first_launches(self, candidate: _Candidate, work: _Work) -> float:
        """A few single launches; the microseconds that the warm-up still wants."""
        timing = self.timing
        left_us, left = timing.warmup_s * MICROSECONDS, timing.warmup_launches
        left = max(left, min(FIRST, ceil(left_us / candidate.estimate_us)))
        while left > 0 or (candidate.placed and left_us > 0):
            count = left if left > 0 else ceil(left_us / candidate.estimate_us)
            timed = self.device.time(candidate.next_launches(min(FIRST, count)))
            times = self._timed(timed)
            work.add(timed, len(times), 1)
            candidate.capped = telemetry.capped(filter(None, [timed.reading]))
            candidate.estimate_us = max(median(times), MINIMUM_US)
            left_us -= sum(times)
            left -= len(times)
        return left_us

    def _run_alone(self, candidate: _Candidate, work: _Work, seconds: float, counts: bool) -> None:
        """Only this kernel, without pauses, until its work has lasted so long."""
        per_queue = min(MAX_BATCH, ceil(seconds * MICROSECONDS / candidate.estimate_us / 8))
        while (work.wall_s if counts else max(work.wall_s, work.busy_s)) < seconds:
            timed = self.device.time_batch(candidate.next_launches(max(1, per_queue)))
            self._timed(timed, per_queue)
            work.add(timed, per_queue, per_queue)
            if not timed.gated:
                break
        if work.readings:
            candidate.capped = telemetry.capped(work.readings)

    def _slow(self, candidate: _Candidate) -> bool:
        return not candidate.quick and candidate.estimate_us >= self.timing.slow_s * MICROSECONDS

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

    # Rounds -------------------------------------------------------------------------------------

    def _round(
        self, candidate: _Candidate, inspector: Inspector | None, *, capped: bool = False
    ) -> None:
        timing, outcome = self.timing, candidate.outcome
        slow = self._slow(candidate)
        if inspector and not slow and len(outcome.rounds) == candidate.inspect_at:
            candidate.inspect_at = 0
            self._inspect(candidate, inspector)
            if candidate.done:
                return
        self.progress(candidate.kernel.name, "timing")
        settled = capped and not slow and not candidate.placed and timing.own_clock_s > 0
        samples = 1 if slow else self._samples(candidate, settled)
        flush = inspector.rotation.flush if inspector else None
        started, others_s = perf_counter(), self.device.others_s()
        self.device.quiesce(candidate.launches[candidate.turn - 1])
        if settled:
            self._settle(candidate)
        times: list[float] = []
        pairs: list[float] = []
        judged = self._judged(candidate, inspector if slow else None)
        with judged, self._watched(candidate, inspector, samples) as watch:
            if not candidate.batch:
                before = watch.before(flush) if watch and self.device.evicts else flush
                timed, times = self._singly(candidate, before, samples)
                stretch = timed.stretch
            if candidate.batch:
                timed, times, stretch = self._batched(candidate, flush, samples, settled)
                # The device idles between them.
                pairs = self._alone(candidate, flush, min(PAIRS, samples))
        if candidate.done:
            return
        if slow and min(times) < timing.slow_s * MICROSECONDS:
            # Something else delayed its first launches, or it pretended: it is one like others.
            candidate.quick, candidate.estimate_us = True, max(min(times), MINIMUM_US)
            outcome.rounds.clear()
            self._begin(candidate, inspector)
            return
        # With flushes and pauses, which take most of a round on a large cache.
        candidate.spent_s += perf_counter() - started
        if others_s is not None:
            candidate.others_s += (self.device.others_s() or others_s) - others_s
        reason = watch.reason if watch else ""
        if inspector and (reason := reason or inspector.rotation.trespass()):
            self._refuse(candidate, f"{LATER}: {reason}")
            return

        reading = timed.reading
        if reading and reading.reasons & telemetry.HARDWARE and outcome.voided < RETRIES:
            outcome.voided += 1
            sleep(COOL_S)
            return
        if reading:
            outcome.readings.append(reading)
        outcome.rounds.append(times)
        candidate.pairs += pairs
        candidate.stretches.append(stretch)
        self._decide(candidate, slow)

    def _singly(
        self, candidate: _Candidate, before: Launch | None, samples: int
    ) -> tuple[Timed, list[float]]:
        """Launches between events of their own; batches are next if the gate opened early."""
        timed = self.device.time(candidate.next_launches(samples), before)
        times = self._timed(timed)
        if not getattr(candidate.launches[0], "gated", True):
            candidate.outcome.flag("host_timed")
        elif not timed.gated:
            candidate.outcome.flag("ungated")
            if not candidate.placed and not self._slow(candidate):
                self._use_batches(candidate)
        return timed, times

    def _batched(
        self, candidate: _Candidate, flush: Launch | None, samples: int, settled: bool
    ) -> tuple[Timed, list[float], float]:
        """Batches: the last one, times of a launch, and by how much cycles exceed events."""
        times: list[float] = []
        stretch, batch = 0.0, candidate.batch
        if settled:
            batch = min(MAX_BATCH, max(batch, ceil(samples / LEAST_BATCHES)))
        while len(times) < max(LEAST_BATCHES, samples / batch):
            launches = candidate.next_launches(batch)
            timed = self.device.time_batch(launches, flush, sense=False)
            times += self._timed(timed, len(launches))
            if not timed.gated:
                candidate.outcome.flag("ungated")
        if self.device.senses:  # one more: reading sensors makes a batch longer
            timed = self.device.time_batch(launches, flush)
            stretch = timed.stretch * timed.times_us[0] / max(times)
        return timed, times, stretch

    def _settle(self, candidate: _Candidate) -> None:
        """Run until the clock is the kernel's own, without the pauses of a timing."""
        again = AGAIN if self._last is candidate else 1.0
        seconds = self.timing.own_clock_s * (again if candidate.capped else COOLER)
        self._last = candidate
        settle(self.device, candidate.next_launches, candidate.estimate_us, seconds)
        self.clock.device += seconds

    def _watched(
        self, candidate: _Candidate, inspector: Inspector | None, samples: int
    ) -> AbstractContextManager[Watch | None]:
        """A round of a kernel from a user's file is watched, if its launches are short."""
        if inspector and not self._slow(candidate) and candidate.kernel.foreign:
            places = candidate.places(max(samples, candidate.batch))
            judge = len(candidate.outcome.rounds) == candidate.judge_at
            return inspector.watched(places, judge=judge)
        return nullcontext()

    @contextmanager
    def _judged(self, candidate: _Candidate, inspector: Inspector | None) -> Iterator[None]:
        """A slow launch is judged itself, the last on other inputs, or on new ones not judged."""
        if inspector is None:
            yield
            return
        place, last = candidate.turn, len(candidate.outcome.rounds) + 1 >= self.timing.slow_rounds
        if last:
            with inspector.other_inputs(place) as verdict:
                yield
                reason = verdict()
        elif len(candidate.outcome.rounds) + 1 == candidate.inspect_at:
            inspector.poison(place)
            yield
            reason = inspector.judge(place).reason
        else:
            with inspector.fresh():
                yield
            reason = ""
        if reason:
            self._refuse(candidate, f"{OTHER if last else LATER}: {reason}")

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
            (launch,) = candidate.next_launches(1)
            timed = self.device.time_alone(launch, flush)
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

    def _finish(self, candidate: _Candidate, inspector: Inspector | None) -> None:
        """Check all buffer copies and other inputs; measure bursts; set flags."""
        outcome, self._last = candidate.outcome, None
        assert outcome.summary is not None
        if (stretch := min(candidate.stretches, default=0.0)) > STRETCHED:
            reason = f"took {stretch:.3g} times as long by the device's cycles as by its events"
            self._refuse(candidate, reason)
            return
        outcome.pair_us = median(candidate.pairs) if candidate.pairs else outcome.summary.median
        outcome.launch_us = self.launch_us()
        started = perf_counter()
        self.progress(candidate.kernel.name, "checking again")
        if reason := self._spoiled(candidate, inspector):
            self._refuse(candidate, reason)
            return
        self.clock.verify += perf_counter() - started
        sensed = telemetry.summarize(outcome.readings)
        if sensed.power_capped:
            outcome.flag("power_capped")
            self._burst(candidate)
        if (watts := candidate.settled_w) and sensed.power_capped:
            outcome.power_w = watts
            outcome.energy_j = watts * outcome.summary.median / MICROSECONDS
            outcome.energy_mhz = sensed.sm_mhz
        if inspector:
            self._test_cache(candidate, inspector.rotation)
        if candidate.placed:
            outcome.spans = list(candidate.placed.timeline())
        self._flag(candidate, inspector, throttled=sensed.throttled)

    def _flag(self, candidate: _Candidate, inspector: Inspector | None, *, throttled: bool) -> None:
        """What a reader of the row must know."""
        outcome = candidate.outcome
        if outcome.voided:
            outcome.flag("voided")
        if throttled:
            outcome.flag("throttled")
        if self.device.contended(candidate.others_s, candidate.spent_s):
            outcome.flag(CONTENDED)
        if outliers(outcome.rounds):
            outcome.flag("outliers")
        if candidate.own.text:
            outcome.flag("changed_settings")
        cache = self.device.last_level_cache_bytes()
        small = inspector and inspector.rotation.problem.operand_bytes < cache
        if outcome.cache == "warm" and small:
            outcome.flag("l2_resident")
        if outcome.cache == "cold" and not cache and not self.device.evicts:
            outcome.flag("cache_unknown")

    def _spoiled(self, candidate: _Candidate, inspector: Inspector | None) -> str:
        """What is wrong with the results now, empty if all are right."""
        if candidate.placed:
            candidate.placed.refill()
            reason = candidate.placed.verify().reason
            return f"{OTHER}: {reason}" if reason else ""
        assert inspector
        if self._slow(candidate):
            return ""  # each of its launches was judged
        run = self._runner(candidate, inspector)
        close, launch_us = candidate.kernel.foreign, candidate.estimate_us
        together = candidate.batch or self._samples(candidate, False)
        if reason := inspector.after(candidate.launches, run, launch_us, together, close=close):
            return f"{LATER}: {reason}"
        reason = inspector.on_other_inputs(candidate.launches, run)
        return f"{OTHER}: {reason}" if reason else ""

    def _burst(self, candidate: _Candidate) -> None:
        """Time a few launches on a chip that has rested, before the power limit acts."""
        rest_s, outcome = self.timing.burst_rest_s, candidate.outcome
        if not rest_s or candidate.placed or candidate.estimate_us > BURST_US:
            return
        self.progress(candidate.kernel.name, "timing bursts of")
        count = max(1, min(MAX_BATCH, round(BURST_US / candidate.estimate_us)))
        times_us: list[float] = []
        clocks: list[float] = []
        with PowerMeter(self.device.energy_j) as meter:
            for _ in range(BURSTS):
                sleep(rest_s)
                timed = self.device.time_batch(candidate.next_launches(count))
                times_us += self._timed(timed, count)
                clocks += [timed.reading.sm_mhz] if timed.reading and timed.reading.sm_mhz else []
            sleep(rest_s)  # until the counter has it all
        outcome.burst_us = median(times_us)
        outcome.burst_mhz = median(clocks) if clocks else None
        outcome.burst_w = meter.above_idle(sum(times_us) * count / MICROSECONDS)

    def _test_cache(self, candidate: _Candidate, rotation: Rotation) -> None:
        """Once per run: is the cache as cold after a rotation as after a flush?"""
        outcome = candidate.outcome
        rotated = len(rotation.copies) > 1 and rotation.flush is None
        if self._self_tested or not rotated or not outcome.pair_us:
            return
        # After a flush, dirty lines delay a short kernel; and during a flush, a device at its power
        # limit cools down.
        telling = SELF_TEST_US <= candidate.estimate_us < SELF_TEST_MOST_US
        if not telling or self._slow(candidate):
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
    batches = [device.time_batch([device.nothing] * 64, sense=False) for _ in range(21)]
    return median(time_us for batch in batches for time_us in batch.times_us)


def _text(error: BaseException) -> str:
    """The message of a failure; with the type of the exception if it is not rooflab's."""
    if isinstance(error, KernelError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
