"""How one problem is measured: every kernel verified, then all of them timed in turn.

The rounds of all kernels interleave in random order, so that a drifting clock touches all alike;
the operands rotate through more memory than the last-level cache holds, so that every launch
starts cold; a kernel stops when its interval is narrow enough.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from math import ceil
from statistics import median
from typing import Final

from rooflab.config import Timing
from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands, allocate, poison, rotation
from rooflab.measure.statistics import Summary, summarize
from rooflab.measure.verify import verify
from rooflab.problem import Problem
from rooflab.registry import Kernel, Launch

MICROSECONDS: Final = 1e6

MINIMUM_US: Final = 0.1
"""No launch is taken to be shorter, whatever a coarse clock says."""


@dataclass(slots=True)
class Outcome:
    """What became of one kernel on one problem.

    ``rounds`` are times in microseconds; ``detail`` is a failure's whole message.
    """

    kernel: Kernel
    status: str = "ok"
    reason: str = ""
    detail: str = ""
    rel_error: float | None = None
    cache: str = ""
    rounds: list[list[float]] = field(default_factory=list)
    flags: list[str] = field(default_factory=list)
    summary: Summary | None = None

    def fail(self, error: BaseException) -> None:
        """Become ``failed``, with the first line of the error as the reason and no figures."""
        self.status, self.detail = "failed", str(error) or type(error).__name__
        self.reason = self.detail.splitlines()[0]
        self.summary = None
        self.rounds.clear()


@dataclass(slots=True)
class _Candidate:
    """A verified kernel on its way through the rounds."""

    outcome: Outcome
    launches: list[Launch]
    estimate_us: float
    turn: int = 0
    spent_us: float = 0.0
    done: bool = False

    def next_launches(self, count: int) -> list[Launch]:
        """The next launches of the rotation, whose position is never reset."""
        start, self.turn = self.turn, (self.turn + count) % len(self.launches)
        return list(islice(cycle(self.launches), start, start + count))


Progress = Callable[[Kernel, str], None]
"""Told which kernel is being ``compiled``, ``verified`` or ``timed``."""


def measure(
    device: Device,
    problem: Problem,
    kernels: Sequence[Kernel],
    timing: Timing,
    seed: int,
    progress: Progress = lambda kernel, step: None,
) -> list[Outcome]:
    """One ``Outcome`` per kernel, in their order. Only ``KeyboardInterrupt`` gets out of here."""
    outcomes = [Outcome(kernel) for kernel in kernels]
    willing = []
    for outcome in outcomes:
        if reason := outcome.kernel.refuses(problem):
            outcome.status, outcome.reason = "skipped", reason
        else:
            willing.append(outcome)
    if not willing:
        return outcomes

    # Verification needs the inputs again in float64, piece by piece.
    needed = problem.operand_bytes + problem.bytes
    free = device.free_bytes()
    if needed > free:
        for outcome in willing:
            outcome.status = "skipped"
            outcome.reason = f"needs {needed / 1e9:.3g} GB of memory, {free / 1e9:.3g} GB are free"
        return outcomes

    try:
        operands = allocate(device, problem, seed)
        sets = rotation(device, operands)
    except (MemoryError, KernelError) as error:
        for outcome in willing:
            outcome.fail(error)
        device.release()
        return outcomes

    rotated = len(sets) * problem.operand_bytes >= 3 * device.last_level_cache_bytes() > 0
    candidates = []
    for outcome in willing:
        outcome.cache = "cold" if rotated and len(sets) > 1 else "warm"
        if candidate := _verified(device, sets, outcome, seed, progress):
            candidates.append(candidate)
    _time(device, candidates, timing, random.Random(seed), progress)
    del operands, sets, candidates
    device.release()
    return outcomes


def _verified(
    device: Device, sets: list[Operands], outcome: Outcome, seed: int, progress: Progress
) -> _Candidate | None:
    """Prepare the kernel and check its first result; None where that settles the outcome."""
    kernel = outcome.kernel
    try:
        progress(kernel, "compiling")
        launches = [kernel.prepare(device, operands) for operands in sets]
        progress(kernel, "verifying")
        poison(device, sets[0])
        device.synchronize()
        (estimate_us,) = device.time(launches[:1])
        verdict = verify(device, sets[0], seed)
        outcome.rel_error = verdict.rel_error
        if verdict.reason:
            outcome.status, outcome.reason = "incorrect", verdict.reason
            return None
    except (KernelError, MemoryError) as error:
        outcome.fail(error)
        return None
    return _Candidate(outcome, launches, max(estimate_us, MINIMUM_US))


def _time(
    device: Device,
    candidates: list[_Candidate],
    timing: Timing,
    order: random.Random,
    progress: Progress,
) -> None:
    for candidate in candidates:
        if candidate.estimate_us < timing.slow_s * MICROSECONDS:
            progress(candidate.outcome.kernel, "warming up")
            _guarded(_warm_up, device, candidate, timing)
    while running := [candidate for candidate in candidates if not candidate.done]:
        order.shuffle(running)
        for candidate in running:
            progress(candidate.outcome.kernel, "timing")
            _guarded(_round, device, candidate, timing)


def _guarded(
    step: Callable[[Device, _Candidate, Timing], None],
    device: Device,
    candidate: _Candidate,
    timing: Timing,
) -> None:
    """Run ``step``; a failure costs this kernel its own row and no other."""
    if candidate.done:
        return
    try:
        step(device, candidate, timing)
    except (KernelError, MemoryError) as error:
        candidate.outcome.fail(error)
        candidate.done = True


def _warm_up(device: Device, candidate: _Candidate, timing: Timing) -> None:
    """Launches until ``warmup_s`` have passed, ten at a time; the last ones give the estimate."""
    left_us = timing.warmup_s * MICROSECONDS
    while left_us > 0:
        times = device.time(candidate.next_launches(min(10, ceil(left_us / candidate.estimate_us))))
        candidate.estimate_us = max(median(times), MINIMUM_US)
        left_us -= sum(times)


def _round(device: Device, candidate: _Candidate, timing: Timing) -> None:
    outcome = candidate.outcome
    slow = candidate.estimate_us >= timing.slow_s * MICROSECONDS
    wanted = ceil(timing.round_s * MICROSECONDS / candidate.estimate_us)
    samples = 1 if slow else max(1, min(timing.round_samples, wanted))
    device.settle(candidate.launches[candidate.turn])
    times = device.time(candidate.next_launches(samples))
    outcome.rounds.append(times)
    candidate.spent_us += sum(times)

    count = len(outcome.rounds)
    overspent = candidate.spent_us >= timing.max_s * MICROSECONDS
    # Fewer rounds would leave nothing to form an interval from, whatever the time allowed.
    if count < (timing.slow_rounds if slow or overspent else timing.min_rounds):
        return
    summary = summarize(outcome.rounds)
    narrow = summary.half_width_percent <= timing.precision_percent
    if narrow or slow or overspent or count >= timing.max_rounds:
        outcome.summary = summary
        candidate.done = True
        if not narrow:
            outcome.flags.append("noisy")
