"""Measures one problem: verifies every kernel, then times all of them in turn.

docs/measurement.md explains each step and why; the constants are in ``config.Timing``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from math import ceil, inf, isnan
from secrets import randbits
from statistics import median
from time import perf_counter, sleep
from typing import Final

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import (
    LEAST_BATCHES,
    MAX_BATCH,
    Device,
    Launch,
    MarkedLaunch,
    Reading,
    Timed,
)
from rooflab.errors import ALONE, DeviceLost, KernelError, UnavailableError, headline
from rooflab.kernels.base import Kernel
from rooflab.measure import search, telemetry
from rooflab.measure.buffers import flusher
from rooflab.measure.energy import MINIMUM_US, PowerMeter, settle
from rooflab.measure.inspection import Inspector
from rooflab.measure.multi_gpu import Spread
from rooflab.measure.queue import queue_depth
from rooflab.measure.resident import Resident, allocate_copies
from rooflab.measure.settings import Own, Settings
from rooflab.measure.statistics import Summary, outliers, summarize
from rooflab.measure.streaming import Streamed
from rooflab.measure.subject import LATER, Runner, Subject, told
from rooflab.measure.verify import CONFIRMED
from rooflab.model.measurement import BATCH_TIMED, CONTENDED
from rooflab.model.problem import FromHost, OnGpus, Problem
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

FLUSHING_S: Final = 0.25
LEAST_FLUSHED: Final = 8
"""A round flushes for about so long where the host does it, but so often at least."""

PAIRS: Final = 8
"""Launches per round that are timed singly if the headline comes from batches."""

LOADED_US: Final = 1e6
"""From this time on, loading code is a small part of a kernel's first launch."""

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


FIGURES: Final = (
    *("pair_us", "launch_us", "burst_us", "burst_mhz", "burst_w"),
    *("energy_j", "power_w", "energy_mhz", "host_us"),
)
"""Fields of an outcome that its row has too, if it is ``ok``."""


@dataclass(slots=True)
class Outcome:
    """The result of one kernel on one problem.

    ``rounds`` are times in microseconds. ``pair_us`` is the median time between two events around a
    single launch, with the events' overhead. ``launch_us`` is the time of an empty launch in this
    process; ``sensed`` is what the sensors said in all rounds. ``power_w`` and ``energy_mhz``
    belong to the window of ``energy_j``. ``detail`` is a failure's whole message. ``burst_us``,
    with clock and power, is the time of a few launches after a rest, where the power limit lowers
    the clock later. ``changed`` says which settings of the process the kernel changed; if
    ``stays``, some could not be undone, and the process is of no use for others.
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
    host_us: float | None = None
    sensed: telemetry.Sensed = field(default_factory=telemetry.Sensed)
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

    def fail(self, reason: str, status: str = "failed") -> None:
        """Become ``failed`` with the headline of ``reason``, and without figures."""
        self.status, self.detail = status, reason
        self.reason = headline(reason)[:REASON_LENGTH]
        self.summary = None
        for name in FIGURES:
            setattr(self, name, None)
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
    """A verified kernel and its state between rounds.

    ``quick``: it only seemed slow at first. ``gated``: no launch has waited for the host.
    ``flush_s``: seconds of the host for a flush.
    ``voided`` counts rounds that were discarded because heat or a power brake lowered the clock.
    """

    kernel: Kernel
    outcome: Outcome
    subject: Subject
    estimate_us: float
    own: Own = field(default_factory=Own)
    inspect_at: int = -1
    judge_at: int = -1
    capped: bool = False
    quick: bool = False
    gated: bool = True
    voided: int = 0
    suspect: bool = False
    settled_w: float | None = None
    spent_s: float = 0.0
    others_s: float = 0.0
    batch: int = 0
    readings: list[Reading] = field(default_factory=list)
    pairs: list[float] = field(default_factory=list)
    stretches: list[float] = field(default_factory=list)
    done: bool = False
    flush_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.flush_s = _flush_s(self.subject.flush)

    @property
    def most(self) -> int:
        """Launches that fit into the stream's queue together."""
        return max(1, MAX_BATCH // MarkedLaunch.of(self.subject.launch).depth)


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


OnProgress = Callable[[str, str], None]
"""Called with the name of a kernel and the current step."""

PrepareCandidate = Callable[[Kernel, Outcome], _Candidate | None]
"""Prepares and verifies a kernel; None if its outcome is then final."""

OnFailure = Callable[[Outcome], None]
"""Called with an outcome that is not ``ok``, as soon as that is known."""


class Protocol:
    """Measures problems on one device, one after the other."""

    def __init__(
        self,
        device: Device,
        config: SweepConfig,
        progress: OnProgress = lambda kernel, step: None,
        failed: OnFailure = lambda outcome: None,
        entropy: int | None = None,
        settings: Settings | None = None,
        subject: Callable[[Kernel], Subject] | None = None,
    ) -> None:
        self.device = device
        self.config = config
        self.timing: Timing = config.timing
        self.progress = progress
        self.clock = Clock()
        self.settings = settings or Settings(device, config)
        self._failed = failed
        self._subject = subject
        self._order = random.Random(config.seed)
        # What is checked, and when: no kernel can foresee it.
        self._draw = random.Random(randbits(64) if entropy is None else entropy)
        self._last: _Candidate | None = None
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
        able = [one for one in kernels if self._accepts(problem, one, outcomes[one.name])]
        if able:
            self._measure(problem, able, outcomes)
            self.device.release()
        return list(outcomes.values())

    def _accepts(self, problem: Problem, kernel: Kernel, outcome: Outcome) -> bool:
        try:
            reason = next(filter(None, map(kernel.refuses, problem.placement.launched)), "")
            reason = reason or search.lacks(kernel, self.config.variant)
        except Exception as error:  # a kernel's code may raise anything
            self._fail(outcome, _text(error))
            return False
        if reason:
            outcome.skip(reason)
        return not reason

    def _measure(
        self, problem: Problem, kernels: list[Kernel], outcomes: dict[str, Outcome]
    ) -> None:
        started = perf_counter()
        try:
            prepare = self._preparation(problem)
        except UnavailableError as error:
            for kernel in kernels:
                outcomes[kernel.name].skip(str(error))
            return
        except Exception as error:
            for kernel in kernels:
                self._fail(outcomes[kernel.name], _text(error))
            return
        self.clock.prepare += perf_counter() - started
        verified = [self._verified(kernel, outcomes[kernel.name], prepare) for kernel in kernels]
        candidates = [candidate for candidate in verified if candidate]
        for candidate in candidates:
            candidate.subject.load(self.config.fill)
        self._time(candidates)
        for candidate in candidates:
            candidate.outcome.flags = list(self._flags(candidate))

    def _preparation(self, problem: Problem) -> PrepareCandidate:
        """How the kernels of this problem are prepared."""
        if self._subject:
            return partial(self._pipeline, self._subject)
        kinds: dict[type, type[Streamed | Spread]] = {FromHost: Streamed, OnGpus: Spread}
        if kind := kinds.get(type(problem.placement)):
            return partial(
                self._pipeline,
                lambda kernel: kind(self.device, problem, kernel.prepare, self.config),
            )
        inspector = allocate_copies(self.device, problem, self.config, self._draw)
        self.settings.accept()  # with the memory that is free now
        return partial(self._resident, inspector)

    def _fail(self, outcome: Outcome, reason: str, status: str = "failed") -> None:
        outcome.fail(reason, status)
        self._failed(outcome)

    # Before timing ------------------------------------------------------------------------------

    def _verified(
        self, kernel: Kernel, outcome: Outcome, prepare: PrepareCandidate
    ) -> _Candidate | None:
        """Prepare the kernel and check its first result; None if the outcome is then final."""
        own = self.settings.loaded.get(kernel.id, Own()).copy()
        candidate = None
        with self._apart(kernel, own, outcome):
            candidate = prepare(kernel, outcome)
            if not kernel.untrusted:
                self.settings.accept()
        if own.tampered and outcome.status != "failed":
            outcome.fail(own.tampered, "incorrect")
        if outcome.status == "incorrect":
            self._failed(outcome)
        if candidate is None or outcome.status != "ok":
            return None
        candidate.own = own
        return candidate

    @contextmanager
    def _apart(self, kernel: Kernel, own: Own, outcome: Outcome) -> Iterator[None]:
        """What a kernel does meanwhile: its settings are its own, a failure fails only its row.

        Raises ``DeviceLost`` if the device, or the process, is of no use for others after it.
        """
        try:
            with self.settings.of(own, trusted=not kernel.untrusted):
                yield
        except DeviceLost:
            raise
        except self.settings.catches as error:  # a kernel's code may raise anything
            self._fail(outcome, _text(error))
            try:
                self.device.synchronize()
            except KernelError:
                raise DeviceLost(kernel.name, _text(error)) from error
        self._note(kernel, outcome, own)

    def _note(self, kernel: Kernel, outcome: Outcome, own: Own) -> None:
        """What a kernel changed; raises ``DeviceLost`` if it stays and others work here."""
        outcome.changed, outcome.stays = own.text, own.stays
        if not own.stays:
            return
        if self._shared:
            raise DeviceLost(kernel.name, own.text, ALONE)
        outcome.changed += "; in a process of its own, since this stays"

    def _pipeline(
        self, make: Callable[[Kernel], Subject], kernel: Kernel, outcome: Outcome
    ) -> _Candidate | None:
        """A launch of many operations, which places the operands itself."""
        started = perf_counter()
        self.progress(kernel.name, "verifying")
        try:
            subject = make(kernel)
            verdict = subject.verify()
        except UnavailableError as error:
            outcome.skip(str(error))
            return None
        outcome.cache = subject.cache
        outcome.rel_error = None if isnan(verdict.rel_error) else verdict.rel_error
        if verdict.reason:
            outcome.fail(verdict.reason, "incorrect")
            return None
        estimate_us = self._host_us(subject.launch)
        self.clock.verify += perf_counter() - started
        return _Candidate(kernel, outcome, subject, max(estimate_us, MINIMUM_US))

    def _resident(
        self, inspector: Inspector, kernel: Kernel, outcome: Outcome
    ) -> _Candidate | None:
        """A kernel on the copies of operands that all kernels share."""
        started, rotation = perf_counter(), inspector.rotation
        outcome.cache = self.config.cache
        self.progress(kernel.name, "compiling")
        prepare, outcome.variant = kernel.prepare, kernel.variant
        if len(kernel.variants) > 1:
            best = search.choose(
                self.device, kernel, rotation, self.config, partial(self.progress, kernel.name)
            )
            prepare, outcome.variant = best.prepare, best.name
        launches = [prepare(self.device, operands) for operands in rotation.operands()]
        subject = Resident(self.device, inspector, kernel, launches)
        self.clock.prepare += perf_counter() - started
        started = perf_counter()
        self.progress(kernel.name, "verifying")
        inspector.poison(0)
        # What it loads the first time.
        padded, problem = MarkedLaunch.of(subject.launch).padded, rotation.problem
        kind = (problem.precision.name, problem.record.about, padded)
        code = (kernel.id, outcome.variant, *kind)
        first = self.device.time([subject.launch], subject.flush) if code in self._loaded else None
        if first and not first.gated:  # something was loaded after all
            first = None
        estimate_us = first.times_us[0] if first else self._host_us(subject.launch)
        verdict = subject.verify()
        outcome.rel_error = verdict.rel_error
        if kernel.composed and not verdict.reason:
            self._mark(subject)
        if not verdict.reason and first is None and estimate_us < LOADED_US:
            (estimate_us,) = self._timed(self.device.time([subject.launch], subject.flush))
        self.clock.verify += perf_counter() - started
        if verdict.reason:
            outcome.fail(verdict.reason, "incorrect")
            return None
        if not (kernel.untrusted or kernel.library):  # a library has other code for each size
            self._loaded.add(code)
        candidate = _Candidate(kernel, outcome, subject, max(estimate_us, MINIMUM_US))
        if first and self._slow(candidate):  # it takes its time: the launch was a round
            outcome.rounds.append(self._timed(first))
            candidate.readings += [first.reading] if first.reading else []
        return candidate

    def _mark(self, subject: Subject) -> None:
        """How many of the launches fit into a queue; those that block the host are not gated."""
        launch_us, host_us = min(self._host_times(subject.launch) for _ in range(CONFIRMED))
        depth = queue_depth(self.device, subject.launch, max(launch_us, MINIMUM_US), host_us)
        subject.launches = [
            replace(MarkedLaunch.of(one), depth=max(1, depth), gated=depth > 0)
            for one in subject.launches
        ]

    def _host_us(self, launch: Launch) -> float:
        """A launch by the host's clock: the first one loads code, which could wait for a gate."""
        return self._host_times(launch)[0]

    def _host_times(self, launch: Launch) -> tuple[float, float]:
        """How long a launch takes by the host's clock, and how long the host is busy with it."""
        started = perf_counter()
        launch()
        launched = perf_counter()
        self.device.synchronize()
        ended = perf_counter()
        return (ended - started) * MICROSECONDS, (launched - started) * MICROSECONDS

    # Timing -------------------------------------------------------------------------------------

    def _time(self, candidates: list[_Candidate]) -> None:
        started, verified_s = perf_counter(), self.clock.verify
        for candidate in candidates:
            self._guarded(self._begin, candidate)
        while running := [candidate for candidate in candidates if not candidate.done]:
            self._order.shuffle(running)
            capped = any(candidate.capped for candidate in candidates)
            for candidate in running:
                for _ in range(AT_A_TIME if candidate.capped else 1):
                    self._guarded(partial(self._round, capped=capped), candidate)
                if candidate.done and candidate.outcome.status == "ok":
                    candidate.done = False
                    self._guarded(self._finish, candidate)
                    candidate.done = True
        self._last = None  # its operands are not needed any more
        checks_s = self.clock.verify - verified_s
        self.clock.timing += perf_counter() - started - checks_s

    def _guarded(self, step: Callable[[_Candidate], None], candidate: _Candidate) -> None:
        """Run ``step``; a failure fails only this kernel's row."""
        if candidate.done:
            return
        outcome, own = candidate.outcome, candidate.own
        with self._apart(candidate.kernel, own, outcome):
            step(candidate)
            if (harm := candidate.subject.harm()) and not candidate.done:
                self._refuse(candidate, f"{LATER}: {harm}")
        candidate.done = candidate.done or outcome.status == "failed"
        if own.tampered and outcome.status in ("ok", "incorrect"):
            self._refuse(candidate, own.tampered)

    def _refuse(self, candidate: _Candidate, reason: str) -> None:
        """The kernel's results are wrong."""
        candidate.done = True
        self._fail(candidate.outcome, reason, "incorrect")

    def _inspect(self, candidate: _Candidate) -> None:
        """Check a few launches like those that are timed."""
        started, self._last = perf_counter(), None
        self.progress(candidate.kernel.name, "checking")
        if reason := candidate.subject.inspect(self._runner(candidate)):
            self._refuse(candidate, f"{LATER}: {reason}")
        self.clock.verify += perf_counter() - started

    def _runner(self, candidate: _Candidate) -> Runner:
        """Launches of an inspection run as those of a round do."""
        flush, most = candidate.subject.flush, candidate.most
        if candidate.batch:
            return lambda launches: [
                self._timed(self.device.time_batch(launches[i : i + most], flush, sense=False))
                for i in range(0, len(launches), most)
            ]
        return lambda launches: self._timed(self.device.time(launches, flush))

    def _timed(self, timed: Timed, launches: int = 1) -> list[float]:
        """The times; adds them to the device's busy time."""
        self.clock.device += sum(timed.times_us) * launches / MICROSECONDS
        return timed.times_us

    # Warm-up ------------------------------------------------------------------------------------

    def _begin(self, candidate: _Candidate) -> None:
        """Draw when the kernel is inspected, and warm up."""
        slow = self._slow(candidate)
        rounds = self.timing.slow_rounds if slow else self.timing.min_rounds
        candidate.inspect_at, candidate.judge_at = self._moment(rounds), self._moment(rounds)
        if not slow:
            self._warm_up(candidate)

    def _moment(self, rounds: int) -> int:
        """After how many of so many rounds a kernel is inspected."""
        return self._draw.randrange(1, max(2, rounds))

    def _warm_up(self, candidate: _Candidate) -> None:
        """Launch until the clock is steady; estimate the time of a launch, and count energy.

        Energy is not counted for short kernels, because the device waits for the host between their
        batches.
        """
        self.progress(candidate.kernel.name, "warming up")
        subject, timing, outcome = candidate.subject, self.timing, candidate.outcome
        counts = subject.counts_energy and candidate.estimate_us >= SHORT_US
        counts = counts and timing.energy_s > 0 and self.device.energy_j() is not None
        meter = PowerMeter(self.device.energy_j)
        work = _Work()
        with meter if counts else nullcontext():
            left_us = self._first_launches(candidate, work)
            batches = subject.queues and subject.flush is None
            if batches and candidate.estimate_us < timing.batch_us:
                self._use_batches(candidate)
            if counts or subject.queues:
                seconds = timing.energy_s if counts else 0.0
                self._run_alone(candidate, work, max(seconds, left_us / MICROSECONDS), counts)
        if counts and (watts := meter.watts) and work.busy_s >= BUSY_SHARE * work.wall_s:
            outcome.energy_j = watts * work.wall_s / work.launched
            outcome.power_w = watts
            outcome.energy_mhz = telemetry.summarize(work.readings).sm_mhz
        if counts and candidate.capped:  # again, now at its own clock
            with PowerMeter(self.device.energy_j) as meter:
                self._run_alone(candidate, _Work(), timing.energy_s, counts)
            candidate.settled_w = meter.watts

    def _first_launches(self, candidate: _Candidate, work: _Work) -> float:
        """A few single launches; the microseconds that the warm-up still wants."""
        timing, subject = self.timing, candidate.subject
        left_us, left = timing.warmup_s * MICROSECONDS, timing.warmup_launches
        left = max(left, min(FIRST, ceil(left_us / candidate.estimate_us)))
        while left > 0 or (not subject.queues and left_us > 0):
            count = left if left > 0 else ceil(left_us / candidate.estimate_us)
            timed = self.device.time(subject.next_launches(min(FIRST, count)))
            times = self._timed(timed)
            work.add(timed, len(times), 1)
            candidate.capped = telemetry.capped(filter(None, [timed.reading]))
            candidate.estimate_us = max(median(times), MINIMUM_US)
            left_us -= sum(times)
            left -= len(times)
        return left_us

    def _run_alone(self, candidate: _Candidate, work: _Work, seconds: float, counts: bool) -> None:
        """Only this kernel, without pauses, until its work has lasted so long."""
        per_queue = min(candidate.most, ceil(seconds * MICROSECONDS / candidate.estimate_us / 8))
        while (work.wall_s if counts else max(work.wall_s, work.busy_s)) < seconds:
            timed = self.device.time_batch(candidate.subject.next_launches(max(1, per_queue)))
            self._timed(timed, per_queue)
            work.add(timed, per_queue, per_queue)
            if not timed.gated:
                break
        if work.readings:
            candidate.capped = telemetry.capped(work.readings)

    def _slow(self, candidate: _Candidate) -> bool:
        return not candidate.quick and candidate.estimate_us >= self.timing.slow_s * MICROSECONDS

    @cached_property
    def _launch_us(self) -> float:
        """Time of an empty launch in a batch, in microseconds; measured once."""
        return empty_launch_us(self.device)

    def _use_batches(self, candidate: _Candidate) -> None:
        """Time launches in batches, long enough that the timer's overhead is negligible."""
        wanted = ceil(self.timing.batch_us / candidate.estimate_us)
        candidate.batch = min(candidate.most, max(2, wanted))

    # Rounds -------------------------------------------------------------------------------------

    def _round(self, candidate: _Candidate, *, capped: bool = False) -> None:
        timing, outcome, subject = self.timing, candidate.outcome, candidate.subject
        slow, number = self._slow(candidate), len(outcome.rounds)
        if not slow and subject.queues and number == candidate.inspect_at:
            candidate.inspect_at = -1
            self._inspect(candidate)
            if candidate.done:
                return
        self.progress(candidate.kernel.name, "timing")
        settled = capped and not slow and subject.queues and timing.own_clock_s > 0
        samples = 1 if slow else self._samples(candidate, settled)
        started, others_s = perf_counter(), self.device.others_s()
        self.device.quiesce(subject.last)
        if settled:
            self._settle(candidate)
        pairs: list[float] = []
        if slow:
            last, inspected = number + 1 >= timing.slow_rounds, number + 1 == candidate.inspect_at
            checked = subject.judged(last=last, inspected=inspected)
        else:
            launches = max(samples, candidate.batch)
            checked = subject.watched(launches, judge=number == candidate.judge_at)
        with checked as watch:
            if not candidate.batch:
                evicts = self.device.evicts
                before = watch.before(subject.flush) if evicts else subject.flush
                timed, times, stretch = self._singly(candidate, before, samples)
            if candidate.batch:
                timed, times, stretch = self._batched(candidate, samples, settled)
                # The device idles between them.
                pairs = self._alone(candidate, subject.flush, min(PAIRS, samples))
        if reason := watch.reason or told(LATER, subject.trespass()):
            self._refuse(candidate, reason)
            return
        if slow and min(times) < timing.slow_s * MICROSECONDS:
            # Something else delayed its first launches, or it pretended: it is one like others.
            candidate.quick, candidate.estimate_us = True, max(min(times), MINIMUM_US)
            outcome.rounds.clear()
            self._begin(candidate)
            return
        # With flushes and pauses, which take most of a round on a large cache.
        candidate.spent_s += perf_counter() - started
        if others_s is not None:
            candidate.others_s += (self.device.others_s() or others_s) - others_s
        reading = timed.reading
        if reading and reading.reasons & telemetry.HARDWARE and candidate.voided < RETRIES:
            candidate.voided += 1
            sleep(COOL_S)
            return
        if reading:
            candidate.readings.append(reading)
        outcome.rounds.append(times)
        candidate.pairs += pairs
        candidate.stretches.append(stretch)
        self._decide(candidate, slow)

    def _singly(
        self, candidate: _Candidate, before: Launch | None, samples: int
    ) -> tuple[Timed, list[float], float]:
        """Launches between events of their own; batches are next if the gate opened early."""
        timed = self.device.time(candidate.subject.next_launches(samples), before)
        times = self._timed(timed)
        candidate.gated = candidate.gated and timed.gated
        if not (timed.gated or self._slow(candidate)) and candidate.subject.queues:
            self._use_batches(candidate)
        return timed, times, timed.stretch

    def _batched(
        self, candidate: _Candidate, samples: int, settled: bool
    ) -> tuple[Timed, list[float], float]:
        """Batches: the last one, times of a launch, and by how much cycles exceed events."""
        times: list[float] = []
        stretch, batch, flush = 0.0, candidate.batch, candidate.subject.flush
        if settled:
            batch = min(candidate.most, max(batch, ceil(samples / LEAST_BATCHES)))
        while len(times) < max(LEAST_BATCHES, samples / batch):
            launches = candidate.subject.next_launches(batch)
            timed = self.device.time_batch(launches, flush, sense=False)
            times += self._timed(timed, len(launches))
            candidate.gated = candidate.gated and timed.gated
        if self.device.senses:  # one more: reading sensors makes a batch longer
            timed = self.device.time_batch(launches, flush)
            stretch = timed.stretch * timed.times_us[0] / max(times)
        return timed, times, stretch

    def _settle(self, candidate: _Candidate) -> None:
        """Run until the clock is the kernel's own, without the pauses of a timing."""
        again = AGAIN if self._last is candidate else 1.0
        seconds = self.timing.own_clock_s * (again if candidate.capped else COOLER)
        self._last = candidate
        settle(self.device, candidate.subject.next_launches, candidate.estimate_us, seconds)
        self.clock.device += seconds

    def _samples(self, candidate: _Candidate, settled: bool) -> int:
        """Launches of a round. At a power limit they take all of its time: the clock swings."""
        wanted = ceil(self.timing.round_s * MICROSECONDS / candidate.estimate_us)
        if settled:
            return wanted
        most = self.timing.round_samples
        if candidate.flush_s * most > FLUSHING_S:
            most = min(most, max(LEAST_FLUSHED, int(FLUSHING_S / candidate.flush_s)))
        return min(most, wanted)

    def _alone(self, candidate: _Candidate, flush: Launch | None, count: int) -> list[float]:
        """Times of single launches, each behind a separate gate.

        Without separate gates, pairs of events are close together and measure a longer time.
        """
        times: list[float] = []
        for _ in range(count):
            (launch,) = candidate.subject.next_launches(1)
            timed = self.device.time_alone(launch, flush)
            times += self._timed(timed)
            candidate.gated = candidate.gated and timed.gated
        return times

    def _decide(self, candidate: _Candidate, slow: bool) -> None:
        """Finish the kernel if it has had enough rounds."""
        timing, count = self.timing, len(candidate.outcome.rounds)
        overspent = candidate.spent_s >= self._most_s
        # Fewer rounds give no interval, even if the time is used up.
        if count < (timing.slow_rounds if slow or overspent else timing.min_rounds):
            return
        summary = summarize(candidate.outcome.rounds)
        narrow = summary.half_width_percent <= timing.precision_percent
        if narrow or slow or overspent or count >= timing.max_rounds:
            candidate.outcome.summary = summary
            candidate.done = True

    # After timing -------------------------------------------------------------------------------

    def _finish(self, candidate: _Candidate) -> None:
        """Check all buffer copies and other inputs; measure bursts."""
        outcome, subject, self._last = candidate.outcome, candidate.subject, None
        assert outcome.summary is not None
        if (stretch := min(candidate.stretches, default=0.0)) > STRETCHED:
            reason = f"took {stretch:.3g} times as long by the device's cycles as by its events"
            self._refuse(candidate, reason)
            return
        outcome.pair_us = median(candidate.pairs) if candidate.pairs else outcome.summary.median
        outcome.launch_us, outcome.host_us = self._launch_us, subject.host_us
        started = perf_counter()
        self.progress(candidate.kernel.name, "checking again")
        run, slow = self._runner(candidate), self._slow(candidate)
        together = candidate.batch or self._samples(candidate, False)
        if reason := subject.spoiled(run, candidate.estimate_us, together, slow=slow):
            self._refuse(candidate, reason)
            return
        self.clock.verify += perf_counter() - started
        outcome.sensed = telemetry.summarize(candidate.readings)
        if outcome.sensed.power_capped:
            self._burst(candidate)
            if watts := candidate.settled_w:
                outcome.power_w = watts
                outcome.energy_j = watts * outcome.summary.median / MICROSECONDS
                outcome.energy_mhz = outcome.sensed.sm_mhz
        if not self._self_tested:
            self._test_cache(candidate)
        outcome.spans = list(subject.timeline())

    def _flags(self, candidate: _Candidate) -> Iterator[str]:
        """What a reader of the row must know."""
        outcome, sensed = candidate.outcome, candidate.outcome.sensed
        launch, summary = MarkedLaunch.of(candidate.subject.launch), outcome.summary
        cache, cold = self.device.last_level_cache_bytes(), outcome.cache == "cold"
        flags = {
            "padded": launch.padded,
            "host_timed": not launch.gated,
            "ungated": launch.gated and not candidate.gated,
            BATCH_TIMED: candidate.batch > 0,
        }
        if summary:
            flags |= {
                "noisy": summary.half_width_percent > self.timing.precision_percent,
                "power_capped": sensed.power_capped,
                "cache_suspect": candidate.suspect,
                "voided": candidate.voided > 0,
                "throttled": sensed.throttled,
                CONTENDED: self.device.contended(candidate.others_s, candidate.spent_s),
                "outliers": outliers(outcome.rounds) > 0,
                "changed_settings": bool(candidate.own.text),
                "l2_resident": outcome.cache == "warm" and candidate.subject.fits_cache,
                "cache_unknown": cold and not cache and not self.device.evicts,
            }
        return (name for name, holds in flags.items() if holds)

    def _burst(self, candidate: _Candidate) -> None:
        """Time a few launches on a chip that has rested, before the power limit acts."""
        rest_s, outcome = self.timing.burst_rest_s, candidate.outcome
        if not rest_s or not candidate.subject.queues or candidate.estimate_us > BURST_US:
            return
        self.progress(candidate.kernel.name, "timing bursts of")
        count = max(1, min(candidate.most, round(BURST_US / candidate.estimate_us)))
        times_us: list[float] = []
        clocks: list[float] = []
        with PowerMeter(self.device.energy_j) as meter:
            for _ in range(BURSTS):
                sleep(rest_s)
                timed = self.device.time_batch(candidate.subject.next_launches(count))
                times_us += self._timed(timed, count)
                clocks += [timed.reading.sm_mhz] if timed.reading and timed.reading.sm_mhz else []
            sleep(rest_s)  # until the counter has it all
        outcome.burst_us = median(times_us)
        outcome.burst_mhz = median(clocks) if clocks else None
        outcome.burst_w = meter.above_idle(sum(times_us) * count / MICROSECONDS)

    def _test_cache(self, candidate: _Candidate) -> None:
        """Once per run: is the cache as cold after a rotation as after a flush?"""
        outcome = candidate.outcome
        # After a flush, dirty lines delay a short kernel; and during a flush, a device at its power
        # limit cools down.
        telling = SELF_TEST_US <= candidate.estimate_us < SELF_TEST_MOST_US
        telling = telling and candidate.subject.rotates and not self._slow(candidate)
        if not telling or not outcome.pair_us or outcome.sensed.power_capped:
            return
        self._self_tested = True
        self.device.quiesce(candidate.subject.last)  # the check used a library
        flushed = median(self._alone(candidate, flusher(self.device), SELF_TEST_SAMPLES))
        candidate.suspect = abs(flushed / outcome.pair_us - 1) * 100 > SUSPECT_PERCENT


def _flush_s(flush: Launch | None) -> float:
    """Seconds of the host; a device's own flush only waits in its queue."""
    if flush is None:
        return 0.0
    started = perf_counter()
    flush()
    return perf_counter() - started


def empty_launch_us(device: Device) -> float:
    """Time of an empty launch in a batch, in microseconds: a part of every launch's time."""
    batches = [device.time_batch([device.nothing] * 64, sense=False) for _ in range(21)]
    return median(time_us for batch in batches for time_us in batch.times_us)


def _text(error: BaseException) -> str:
    """The message of a failure; with the type of the exception if it is not rooflab's."""
    if isinstance(error, KernelError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
