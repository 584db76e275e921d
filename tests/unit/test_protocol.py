"""Measuring on a device whose clock says exactly what its kernels declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from time import perf_counter, sleep
from typing import Any

import fake
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.device import Device, Reading, Timed
from rooflab.errors import DeviceLost, KernelError
from rooflab.kernels import Kernel, Launch, Operands
from rooflab.measure import protocol
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.model.problem import Problem

PROBLEM = gemm(64, 64, 64)
TIMING = Timing(warmup_s=0.0001, round_s=0.0005, min_rounds=3, max_rounds=8)


def select(*names: str) -> list[Kernel]:
    return fake.KERNELS.select(names, "exact", "gemm")


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
    assert "1 of 4096 elements of C are NaN" in outcomes["nan"].reason
    assert outcomes["wrong"].status == "incorrect"
    assert "C[0, 0]" in outcomes["wrong"].reason
    assert outcomes["broken"].status == "failed"
    assert outcomes["broken"].reason == 'broken.cu(3): error: identifier "x" is undefined'
    assert "x = 1;" in outcomes["broken"].detail
    assert all(o.summary is None and not o.rounds for n, o in outcomes.items() if n != "fast")


def test_a_refused_problem_is_skipped_with_the_reason() -> None:
    (outcome,) = measure(fake.FakeDevice(), gemm(8, 8, 8, "fp16"), select("fast"), TIMING, 0)
    assert (outcome.status, outcome.reason) == ("skipped", "fast does not support fp16")


def test_operands_of_one_byte_rotate_and_stay_right() -> None:
    kernel = fake.exact("bytes", 0.8, precisions=("fp8",))
    problem = gemm(65, 33, 129, "fp8")
    (outcome,) = measure(fake.FakeDevice(), problem, [kernel], TIMING, 0)
    assert (outcome.status, outcome.reason, outcome.cache) == ("ok", "", "cold")


def test_a_problem_beyond_memory_is_skipped_with_the_sizes() -> None:
    device = fake.FakeDevice()
    device.memory = 1_000_000
    (outcome,) = measure(device, gemm(512, 512, 512), select("fast"), TIMING, 0)
    assert outcome.status == "skipped"
    found = re.fullmatch(r"needs (\S+) GB of memory, 0.001 GB are free", outcome.reason)
    assert found
    # The operands, and what verification needs beside them.
    assert float(found[1]) * 1e9 > gemm(512, 512, 512).operand_bytes


def test_a_failure_while_timing_costs_one_row() -> None:
    calls = 0

    def prepare(device: Device, operands: Operands) -> Launch:
        compute = fake.compute(operands)

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
    """Slows down by one part in ten thousand with every launch it times."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: list[Callable[[], None]] = []
        self.rounds: list[Sequence[Callable[[], None]]] = []

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = super().time(launches, before).times_us
        start = len(self.launched)
        self.launched += launches
        self.rounds.append(launches)
        return Timed([t * 1.0001 ** (start + i) for i, t in enumerate(times)])


def test_interleaving_pays_when_the_clock_drifts() -> None:
    """4 % over the whole measurement: the ratio stays true, one after the other it does not."""
    timing = Timing(warmup_s=0, warmup_launches=0, round_samples=1, min_rounds=200, max_rounds=200)
    fast, slow = measure(Drifting(), PROBLEM, select("fast", "slow"), timing, seed=3)
    assert fast.summary is not None
    assert slow.summary is not None
    assert slow.summary.median / fast.summary.median == pytest.approx(4, rel=0.002)

    device = Drifting()
    (alone,) = measure(device, PROBLEM, select("fast"), timing, seed=3)
    (later,) = measure(device, PROBLEM, select("slow"), timing, seed=3)
    assert alone.summary is not None
    assert later.summary is not None
    assert later.summary.median / alone.summary.median > 4 * 1.015


def test_operands_rotate_through_three_caches() -> None:
    device = Drifting()
    timing = Timing(warmup_s=0, round_s=1, round_samples=100, min_rounds=3, max_rounds=3)
    measure(device, PROBLEM, select("fast"), timing, seed=0)
    launched = [launch for launch in device.launched if launch != device.nothing]
    sets = len(set(map(id, launched)))
    assert (sets - 1) * PROBLEM.operand_bytes >= 3 * device.last_level_cache_bytes()
    rounds = [one for one in device.rounds if len(one) == timing.round_samples]
    assert len(rounds) == timing.max_rounds
    assert all(a is not b for one in rounds for a, b in pairwise(one))


def test_slow_kernels_get_three_rounds_of_one_launch() -> None:
    timing = Timing(slow_s=1e-6)
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("slow"), timing, 0)
    assert [len(one) for one in outcome.rounds] == [1, 1, 1]


def test_time_allowed_ends_a_noisy_kernel() -> None:
    timing = Timing(warmup_s=0, round_samples=1, min_rounds=5, max_rounds=1000, max_s=1e-9)
    (outcome,) = measure(Drifting(), PROBLEM, select("slow"), timing, 0)
    assert len(outcome.rounds) == timing.slow_rounds


class Sensing(fake.FakeDevice):
    """Has sensors, and tells of heat in its first windows."""

    def __init__(self, hot: int = 0, capped: bool = False) -> None:
        super().__init__()
        self.heat, self.capped, self.joules = hot, capped, 0.0

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        self.heat -= len(launches) > 1
        reasons = {"hw_thermal"} if self.heat >= 0 else {"sw_power_cap"} if self.capped else set()
        reading = Reading(1500.0, 1600.0, 3000.0, 700.0, 60.0, frozenset(reasons))
        return replace(super().time(launches, before), reading=reading)

    def energy_j(self) -> float:
        self.joules += 100
        return self.joules


def test_heat_voids_a_round_and_the_power_cap_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "COOL_S", 0)
    timing = Timing(warmup_launches=0, warmup_s=0, min_rounds=5, max_rounds=5, energy_s=0)
    (cool,) = measure(Sensing(capped=True), PROBLEM, select("fast"), timing, 0)
    assert "power_capped" in cool.flags
    assert len(cool.readings) == len(cool.rounds) == 5
    (hot,) = measure(Sensing(hot=3), PROBLEM, select("fast"), timing, 0)
    assert hot.flags == ["voided"]
    assert len(hot.rounds) == 5
    (hotter,) = measure(Sensing(hot=100), PROBLEM, select("fast"), timing, 0)
    assert {"voided", "throttled"} <= set(hotter.flags)
    assert len(hotter.rounds) == 5


def test_energy_is_that_of_the_counter() -> None:
    class Drawing(fake.FakeDevice):
        """Draws 500 W."""

        def energy_j(self) -> float:
            return 500 * perf_counter()

    timing = Timing(warmup_s=0, energy_s=0.1, min_rounds=3, max_rounds=3)
    (outcome,) = measure(Drawing(), PROBLEM, select("fast"), timing, 0)
    assert outcome.power_w == pytest.approx(500, rel=0.05)
    assert outcome.energy_j is not None
    assert 0 < outcome.energy_j < 500


class Lagging(fake.FakeDevice):
    """At a power limit: in the first 0.1 s of a kernel its launches take half as long again."""

    LAG_US = 100_000.0

    def __init__(self) -> None:
        super().__init__()
        self.last_us = self.busy_us = 0.0

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        timed = super().time(launches, before)
        own_us = timed.times_us[0]
        self.busy_us = sum(timed.times_us) + (self.busy_us if own_us == self.last_us else 0)
        self.last_us = own_us
        factor = 1.0 if self.busy_us > self.LAG_US else 1.5
        reading = Reading(sm_mhz=1500.0, reasons=frozenset({"sw_power_cap"}))
        return replace(timed, times_us=[factor * us for us in timed.times_us], reading=reading)


@pytest.mark.parametrize("batch_us", [0, 6000])
def test_at_a_power_limit_a_kernel_is_timed_at_its_own_clock(batch_us: int) -> None:
    timing = Timing(warmup_s=0.001, batch_us=batch_us, min_rounds=3, max_rounds=3, energy_s=0)
    own_us = 2 * 64**3 / (0.8 * fake.PEAK) * 1e6
    fast, _ = measure(Lagging(), PROBLEM, select("fast", "slow"), timing, 0)
    assert fast.summary is not None
    assert fast.summary.median == pytest.approx(own_us)
    off = timing.model_copy(update={"own_clock_s": 0})
    fast, _ = measure(Lagging(), PROBLEM, select("fast", "slow"), off, 0)
    assert fast.summary is not None
    assert fast.summary.median == pytest.approx(1.5 * own_us)


def test_at_a_power_limit_samples_last_as_long_as_a_round() -> None:
    class Limited(fake.FakeDevice):
        launches = 0

        def time(self, launches: Sequence[Launch], *more: Any) -> Timed:
            self.launches += len(launches)
            limited = Reading(reasons=frozenset({"sw_power_cap"}))
            return replace(super().time(launches, *more), reading=limited)

    timing = Timing(
        warmup_s=0, warmup_launches=1, own_clock_s=1e-9, round_s=0.1, min_rounds=3, max_rounds=3
    )
    wanted = 153  # of 655 µs
    alone = timing.model_copy(update={"batch_us": 0})
    (outcome,) = measure(Limited(), PROBLEM, select("fast"), alone, 0)
    assert [len(times) for times in outcome.rounds] == [wanted] * 3
    device, batched = Limited(), timing.model_copy(update={"batch_us": 6000})
    (outcome,) = measure(device, PROBLEM, select("fast"), batched, 0)
    assert [len(times) for times in outcome.rounds] == [4] * 3
    assert device.launches > 3 * wanted
    shared = timing.model_copy(update={"batch_us": 0, "own_clock_s": 0})
    (outcome,) = measure(Limited(), PROBLEM, select("fast"), shared, 0)
    assert [len(times) for times in outcome.rounds] == [32] * 3


def test_a_warm_up_without_pauses_shows_the_power_limit() -> None:
    class Pausing(Lagging):
        """At its limit in batches only: between the others it rests."""

        def time(self, *given: Any, **named: Any) -> Timed:
            return replace(super().time(*given, **named), reading=Reading())

        def time_batch(self, *given: Any, **named: Any) -> Timed:
            limited = Reading(reasons=frozenset({"sw_power_cap"}))
            return replace(super().time_batch(*given, **named), reading=limited)

    timing = Timing(batch_us=0, min_rounds=3, max_rounds=3, energy_s=0)
    fast, _ = measure(Pausing(), PROBLEM, select("fast", "slow"), timing, 0)
    assert fast.summary is not None
    assert fast.summary.median == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)


def test_without_a_power_limit_no_time_goes_into_the_clock() -> None:
    class Counting(fake.FakeDevice):
        launched = 0

        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            self.launched += len(launches)
            return super().time(launches, before)

    free, never = Counting(), Counting()
    timing = Timing(min_rounds=3, max_rounds=3)
    measure(free, PROBLEM, select("fast"), timing, 0)
    measure(never, PROBLEM, select("fast"), timing.model_copy(update={"own_clock_s": 0}), 0)
    assert free.launched == never.launched


def test_short_kernels_are_timed_in_batches() -> None:
    timing = Timing(warmup_s=0, batch_us=6000, min_rounds=3, max_rounds=3)
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("fast"), timing, 0)
    assert outcome.flags == ["batch_timed"]
    assert outcome.summary is not None
    assert outcome.summary.median == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)
    assert outcome.pair_us == pytest.approx(outcome.summary.median)


def test_batches_are_timed_without_counting_the_clock() -> None:
    class Counting(Sensing):
        """Counting the clock makes a batch longer."""

        def time_batch(
            self,
            launches: Sequence[Callable[[], None]],
            before: Callable[[], None] | None = None,
            *,
            clock: bool = True,
        ) -> Timed:
            timed = super().time_batch(launches, before)
            reading = replace(timed.reading or Reading(), sm_mhz=1500.0 if clock else None)
            return replace(timed, times_us=[timed.times_us[0] * (1 + clock)], reading=reading)

    timing = Timing(warmup_s=0, batch_us=6000, min_rounds=3, max_rounds=3, energy_s=0)
    (outcome,) = measure(Counting(), PROBLEM, select("fast"), timing, 0)
    assert outcome.summary is not None
    assert outcome.summary.median == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)
    assert [reading.sm_mhz for reading in outcome.readings] == [1500.0] * 3


def test_a_launch_that_blocks_the_gate_is_timed_in_batches_and_flagged() -> None:
    class Blocked(fake.FakeDevice):
        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            return replace(super().time(launches, before), gated=False)

    (outcome,) = measure(Blocked(), PROBLEM, select("fast"), TIMING, 0)
    assert outcome.status == "ok"
    assert outcome.flags == ["ungated", "batch_timed"]


def test_results_that_go_wrong_later_are_found() -> None:
    """On one copy of the operands only."""

    def prepare(device: Device, operands: Operands) -> Launch:
        compute = fake.compute(operands)
        prepared.append(operands)
        bad = len(prepared) == 3

        def launch() -> None:
            compute()
            assert isinstance(device, fake.FakeDevice)
            device.clock_us += 1000
            if bad:
                operands.c[0, 0, 0] += 1

        return launch

    prepared: list[Operands] = []
    turns = Kernel("turns", "exact", "exact", "", ("fp32",), prepare)
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, [turns], TIMING, 0)
    assert outcome.status == "incorrect"
    assert outcome.reason.startswith("right at first, wrong while timed: ")
    assert outcome.summary is None


def test_a_cache_that_stays_warm_is_suspected() -> None:
    class Leaky(fake.FakeDevice):
        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            timed = super().time(launches, before)
            return replace(timed, times_us=[t * (1.2 if before else 1) for t in timed.times_us])

    (outcome,) = measure(Leaky(), PROBLEM, select("fast"), TIMING, 0)
    assert outcome.flags == ["cache_suspect"]


def test_warm_uses_one_set_and_says_so() -> None:
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("fast"), TIMING, 0, cache="warm")
    assert outcome.cache == "warm"
    assert outcome.flags == ["l2_resident"]


@pytest.mark.parametrize("fill", ["uniform", "normal", "zeros", "ints"])
def test_every_fill_is_verified(fill: str) -> None:
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("fast"), TIMING, 0, fill=fill)
    assert outcome.status == "ok"


def test_a_lost_device_names_the_kernel_that_lost_it() -> None:
    class Fragile(fake.FakeDevice):
        lost = False

        def synchronize(self) -> None:
            if self.lost:
                raise KernelError("illegal address")

    def prepare(device: Device, operands: Operands) -> Launch:
        def launch() -> None:
            assert isinstance(device, Fragile)
            device.lost = True

        return launch

    kills = Kernel("kills", "exact", "exact", "", ("fp32",), prepare)
    with pytest.raises(DeviceLost, match="kills: illegal address"):
        measure(Fragile(), PROBLEM, [*select("fast"), kills], TIMING, 0)


def test_a_launch_outside_its_stream_is_incorrect() -> None:
    class Watchful(fake.FakeDevice):
        """Sees that the launch writes although the stream is held."""

        def escapes(self, launch: Callable[[], None], outputs: Sequence[object]) -> str:
            assert len(outputs) == 1
            return "launches outside the given stream"

    (trusted,) = measure(Watchful(), PROBLEM, select("fast"), TIMING, 0)
    assert trusted.status == "ok"
    stray = replace(fake.exact("stray", 0.8), untrusted=True)
    with pytest.raises(DeviceLost, match="outside the given stream") as lost:
        measure(Watchful(), PROBLEM, [stray], TIMING, 0)
    assert (lost.value.kernel, lost.value.status) == ("stray", "incorrect")


def test_what_compiles_at_its_first_launch_does_so_before_it_is_timed() -> None:
    """For each buffer copy of the operands, as a user's file may do."""
    exact = fake.exact("lazy", 0.8)
    compiled: list[bool] = []

    class Timer(fake.FakeDevice):
        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            count = len(compiled)
            timed = super().time(launches, before)
            assert len(compiled) == count
            return timed

    def prepare(device: Device, operands: Operands) -> Launch:
        launch = exact.prepare(device, operands)
        first = [True]

        def lazy() -> None:
            if first:
                compiled.append(first.pop())
            launch()

        return lazy

    lazy = replace(exact, prepare=prepare, untrusted=True)
    (outcome,) = measure(Timer(), PROBLEM, [lazy], TIMING, 0)
    assert (outcome.status, outcome.cache) == ("ok", "cold")
    assert len(compiled) > 1


def test_a_kernel_that_reads_c_at_beta_0_is_told_so() -> None:
    def prepare(device: Device, operands: Operands) -> Launch:
        old = operands.c.copy()
        work = fake.compute(operands)

        def launch() -> None:
            old[...] = operands.c
            work()
            operands.c[...] += 0 * old

        return launch

    reads = Kernel("reads", "exact", "exact", "", ("fp32",), prepare)
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, [reads], TIMING, 0)
    assert outcome.status == "incorrect"
    assert outcome.reason.startswith("reads C, which is only written here")
    (other,) = measure(fake.FakeDevice(), PROBLEM, select("nan"), TIMING, 0)
    assert "not written, or not a number" in other.reason


def test_a_kernel_that_computed_ahead_is_found_on_other_inputs() -> None:
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, select("ahead"), TIMING, 0)
    assert outcome.status == "incorrect"
    assert outcome.reason == (
        "right at first, wrong on other inputs: keeps the results of earlier inputs"
    )
    assert outcome.summary is None


def test_what_is_read_and_written_is_restored_before_each_check() -> None:
    """Otherwise beta would feed one launch's result into the next."""
    problem = gemm(64, 64, 64, beta=0.5)
    (outcome,) = measure(fake.FakeDevice(), problem, select("fast"), TIMING, 0)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.flags == []


def test_an_error_of_another_kind_is_named_with_its_type() -> None:
    raises, good = measure(fake.FakeDevice(), PROBLEM, select("raises", "fast"), TIMING, 0)
    assert (raises.status, raises.reason) == ("failed", "ValueError: an error of its own")
    assert good.status == "ok"


def test_an_unknown_cache_is_told() -> None:
    class Cacheless(fake.FakeDevice):
        def last_level_cache_bytes(self) -> int:
            return 0

    (outcome,) = measure(Cacheless(), PROBLEM, select("fast"), TIMING, 0)
    assert outcome.flags == ["cache_unknown"]


def test_too_little_memory_to_rotate_flushes_the_cache_instead() -> None:
    flushed: list[bool] = []

    class Small(fake.FakeDevice):
        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            flushed.append(before is not None)
            return super().time(launches, before)

    device = Small()
    device.memory = 600_000
    (outcome,) = measure(device, PROBLEM, select("fast"), TIMING, 0)
    assert (outcome.status, outcome.cache) == ("ok", "cold")
    assert any(flushed)


def test_a_budget_ends_the_rounds() -> None:
    timing = Timing(warmup_s=0, round_samples=1, min_rounds=50, max_rounds=1000)
    config = SweepConfig(timing=timing)
    (outcome,) = Protocol(fake.FakeDevice(), config).measure(PROBLEM, select("slow"), most_s=1e-9)
    assert len(outcome.rounds) == timing.slow_rounds


def test_a_kernel_whose_first_launch_is_slow_is_not_slow() -> None:
    launched = 0

    def prepare(device: Device, operands: Operands) -> Launch:
        work = select("fast")[0].prepare(device, operands)

        def launch() -> None:
            nonlocal launched
            launched += 1
            if launched == 1:
                sleep(0.12)  # it loads its code
            work()

        return launch

    loads = Kernel("loads", "exact", "exact", "", ("fp32",), prepare)
    timing = TIMING.model_copy(update={"min_rounds": 5})
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, [loads], timing, 0)
    assert outcome.summary
    assert outcome.summary.rounds == timing.min_rounds > timing.slow_rounds
