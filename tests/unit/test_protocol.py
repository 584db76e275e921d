"""Measuring on a device whose clock says exactly what its kernels declare."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import fake
import pytest

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Timed
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.problem import Problem
from rooflab.registry import Kernel, Launch

PROBLEM = Problem(64, 64, 64)
TIMING = Timing(warmup_s=0.0001, round_s=0.0005, min_rounds=3, max_rounds=8)


def select(*names: str) -> list[Kernel]:
    return fake.KERNELS.select(names, "exact")


def measure(
    device: Device, problem: Problem, kernels: list[Kernel], timing: Timing, seed: int, **more: str
) -> list[Outcome]:
    config = SweepConfig.model_validate({"timing": timing, "seed": seed, **more})
    return Protocol(device, config).measure(problem, kernels)


def test_exact_times_converge_at_once() -> None:
    fast, slow = measure(fake.FakeDevice(), PROBLEM, select("fast", "slow"), TIMING, seed=0)
    assert (fast.status, slow.status) == ("ok", "ok")
    assert fast.summary is not None
    assert slow.summary is not None
    assert slow.summary.median == pytest.approx(4 * fast.summary.median)
    assert fast.summary.low == pytest.approx(fast.summary.high)
    assert len(fast.rounds) == TIMING.min_rounds
    assert fast.flags == []
    assert fast.cache == "cold"


def test_each_kernel_answers_for_itself() -> None:
    names = ("nan", "fast", "broken", "wrong")
    outcomes = dict(
        zip(names, measure(fake.FakeDevice(), PROBLEM, select(*names), TIMING, 0), strict=True)
    )
    assert outcomes["fast"].status == "ok"
    assert outcomes["nan"].status == "incorrect"
    assert "1 of 4096 elements are NaN" in outcomes["nan"].reason
    assert outcomes["wrong"].status == "incorrect"
    assert "C[0, 0]" in outcomes["wrong"].reason
    assert outcomes["broken"].status == "failed"
    assert outcomes["broken"].reason == 'broken.cu(3): error: identifier "x" is undefined'
    assert "x = 1;" in outcomes["broken"].detail
    assert all(o.summary is None and not o.rounds for n, o in outcomes.items() if n != "fast")


def test_a_refused_problem_is_skipped_with_the_reason() -> None:
    from rooflab.problem import PRECISIONS

    (outcome,) = measure(
        fake.FakeDevice(), Problem(8, 8, 8, PRECISIONS["fp16"]), select("fast"), TIMING, 0
    )
    assert (outcome.status, outcome.reason) == ("skipped", "fast has no fp16")


def test_a_problem_beyond_memory_is_skipped_with_the_sizes() -> None:
    device = fake.FakeDevice()
    device.memory = 1_000_000
    (outcome,) = measure(device, Problem(512, 512, 512), select("fast"), TIMING, 0)
    assert outcome.status == "skipped"
    assert outcome.reason == "needs 0.00629 GB of memory, 0.001 GB are free"


def test_a_failure_while_timing_costs_one_row() -> None:
    calls = 0

    def prepare(device: Device, operands: Operands) -> Launch:
        compute = fake.product(operands)

        def launch() -> None:
            nonlocal calls
            calls += 1
            if calls > 5:
                raise KernelError("illegal address")
            compute()

        return launch

    dies = Kernel("dies", "exact", "exact", "", ("fp32",), prepare)
    bad, good = measure(fake.FakeDevice(), PROBLEM, [dies, *select("fast")], TIMING, 0)
    assert (bad.status, bad.reason, bad.summary, bad.rounds) == (
        "failed",
        "illegal address",
        None,
        [],
    )
    assert good.status == "ok"


class Drifting(fake.FakeDevice):
    """Slows down by one part in a thousand with every launch it times."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Callable[[], None]] = []

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = super().time(launches, before).times_us
        start = len(self.launched)
        self.launched += launches
        return Timed([t * 1.001 ** (start + i) for i, t in enumerate(times)])


def test_interleaving_hits_all_kernels_alike() -> None:
    device = Drifting()
    timing = Timing(warmup_s=0, round_s=1e-5, round_samples=1, min_rounds=40, max_rounds=40)
    fast, slow = measure(device, PROBLEM, select("fast", "slow"), timing, seed=3)
    assert fast.summary is not None
    assert slow.summary is not None
    assert slow.summary.median / fast.summary.median == pytest.approx(4, rel=0.005)
    assert "noisy" in fast.flags


def test_operands_rotate_through_three_caches() -> None:
    device = Drifting()
    timing = Timing(warmup_s=0, round_s=1, round_samples=100, min_rounds=2, max_rounds=2)
    measure(device, PROBLEM, select("fast"), timing, seed=0)
    launched = [launch for launch in device.launched if launch != device.nothing]
    sets = len(set(map(id, launched)))
    assert (sets - 1) * PROBLEM.operand_bytes >= 3 * device.last_level_cache_bytes()
    assert all(a is not b for a, b in pairwise(launched[1:]))


def test_slow_kernels_get_three_rounds_of_one_launch() -> None:
    timing = Timing(slow_s=1e-6)
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("slow"), timing, 0)
    assert [len(one) for one in outcome.rounds] == [1, 1, 1]


def test_time_allowed_ends_a_noisy_kernel() -> None:
    timing = Timing(warmup_s=0, round_samples=1, min_rounds=5, max_rounds=1000, max_s=1e-9)
    (outcome,) = measure(Drifting(), PROBLEM, select("slow"), timing, 0)
    assert len(outcome.rounds) == timing.slow_rounds
