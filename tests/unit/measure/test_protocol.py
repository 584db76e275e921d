"""Measuring on a device whose clock says exactly what its kernels declare."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import cycle, pairwise
from math import isclose
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch, MarkedLaunch, Reading, Timed
from rooflab.errors import DeviceLost, KernelError
from rooflab.kernels.base import Kernel, Operands, Variant
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
    assert (cool.sensed.nvml_mhz, len(cool.rounds)) == (1600.0, 5)
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
        same = isclose(own_us, self.last_us, rel_tol=1e-6)
        self.busy_us = sum(timed.times_us) + (self.busy_us if same else 0)
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


class Changed(fake.FakeDevice):
    """Its batches are what ``change`` makes of them, which is told whether sensors were read."""

    senses = True

    def __init__(self, change: Callable[[Timed, bool], Timed]) -> None:
        super().__init__()
        self._change = change

    def time_batch(self, *given: Any, sense: bool = True) -> Timed:
        timed = replace(super().time_batch(*given), reading=Reading())
        return self._change(timed, sense)


IN_BATCHES = Timing(warmup_s=0, batch_us=6000, min_rounds=3, max_rounds=3, energy_s=0)


@pytest.mark.parametrize("stretches", [(1.5, 1.5, 1.5), (1.5, 1.0, 1.5), (0.0, 0.0, 0.0)])
def test_events_that_another_clock_contradicts_each_time_give_no_figure(
    stretches: tuple[float, ...],
) -> None:
    """A single time may be longer because something else used the device."""
    left = cycle(stretches)

    def contradicted(timed: Timed, sense: bool) -> Timed:
        return replace(timed, stretch=next(left) if sense else 0.0)

    (outcome,) = measure(Changed(contradicted), PROBLEM, select("fast"), IN_BATCHES, 0)
    if min(stretches) > 1.1:
        assert (outcome.status, outcome.summary) == ("incorrect", None)
        assert outcome.reason.startswith("took 1.5 times as long by the device's cycles")
    else:
        assert outcome.status == "ok"


def test_a_batch_that_is_no_longer_than_others_contradicts_nothing() -> None:
    """Where the host works in the stream, times differ, and reading sensors takes its time."""
    factors = cycle((1.0, 1.0, 1.3))

    def uneven(timed: Timed, sense: bool) -> Timed:
        times_us = [timed.times_us[0] * (1.3 if sense else next(factors))]
        return replace(timed, times_us=times_us, stretch=float(sense))

    (outcome,) = measure(Changed(uneven), PROBLEM, select("fast"), IN_BATCHES, 0)
    assert outcome.status == "ok"


def test_events_are_contradicted_by_a_batch_in_which_they_are_right() -> None:
    """Batches in which cycles are counted are others than those that are timed."""

    def later(timed: Timed, sense: bool) -> Timed:
        times_us = [timed.times_us[0] * (1 if sense else 0.5)]
        return replace(timed, times_us=times_us, stretch=float(sense))

    (outcome,) = measure(Changed(later), PROBLEM, select("fast"), IN_BATCHES, 0)
    assert outcome.status == "incorrect"
    assert outcome.reason.startswith("took 2 times as long by the device's cycles")


def test_batches_are_timed_without_counting_the_clock() -> None:
    class Counting(Sensing):
        """Counting the clock makes a batch longer."""

        senses = True

        def time_batch(
            self,
            launches: Sequence[Callable[[], None]],
            before: Callable[[], None] | None = None,
            *,
            sense: bool = True,
        ) -> Timed:
            timed = super().time_batch(launches, before)
            reading = replace(timed.reading or Reading(), sm_mhz=1500.0 if sense else None)
            return replace(timed, times_us=[timed.times_us[0] * (1 + sense)], reading=reading)

    timing = Timing(warmup_s=0, batch_us=6000, min_rounds=3, max_rounds=3, energy_s=0)
    (outcome,) = measure(Counting(), PROBLEM, select("fast"), timing, 0)
    assert outcome.summary is not None
    assert outcome.summary.median == pytest.approx(2 * 64**3 / (0.8 * fake.PEAK) * 1e6)
    assert outcome.sensed.sm_mhz == 1500.0


def test_a_launch_that_blocks_the_gate_is_timed_in_batches_and_flagged() -> None:
    class Blocked(fake.FakeDevice):
        def time(
            self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
        ) -> Timed:
            return replace(super().time(launches, before), gated=False)

    (outcome,) = measure(Blocked(), PROBLEM, select("fast"), TIMING, 0)
    assert outcome.status == "ok"
    assert outcome.flags == ["ungated", "batch_timed"]


class Queue(fake.FakeDevice):
    """Its queue takes so many launches of a kernel."""

    def __init__(self, takes: int) -> None:
        super().__init__()
        self._takes = takes
        self.together: list[int] = []

    def queued(self, launch: Launch, host_us: float, most: int) -> int:
        assert host_us > 0
        return min(most, self._takes)

    def time_batch(self, launches: Sequence[Launch], *args: Any, **more: Any) -> Timed:
        if isinstance(launches[0], MarkedLaunch):  # and not an empty one
            self.together.append(len(launches))
        return super().time_batch(launches, *args, **more)


@pytest.mark.parametrize(
    ("takes", "most", "flags"), [(128, 128, []), (20, 9, []), (0, 128, ["host_timed"])]
)
def test_as_many_launches_of_several_kernels_wait_as_the_queue_takes(
    takes: int, most: int, flags: list[str]
) -> None:
    kernel = replace(select("fast")[0], composed=True)
    device = Queue(takes)
    (outcome,) = measure(device, PROBLEM, [kernel], IN_BATCHES, seed=0)
    assert outcome.status == "ok"
    assert 9 <= max(device.together) <= most
    assert set(outcome.flags) - {"batch_timed"} == set(flags)


def test_long_launches_that_block_the_gate_are_timed_two_by_two() -> None:
    class Blocked(Recorder):
        def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
            return replace(super().time(launches, before), gated=False)

    device = Blocked()
    assert timed(device).flags == ["ungated", "batch_timed", "l2_resident"]
    assert set(device.launched("batch")) == {1, 2}  # one where results are checked


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
    assert outcome.reason == (
        "reads C, which is only written here, so that NaN in it spreads; the results are right if "
        "it holds zeros (of a GEMM, read C only if beta is not 0)"
    )
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
    (warm,) = measure(Cacheless(), PROBLEM, select("fast"), TIMING, 0, cache="warm")
    assert warm.flags == []


def test_operands_in_host_memory_need_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CACHE", "0")
    streamed = gemm(8, 8, 8, batch=4, host="pinned")
    (outcome,) = measure(fake.Streaming(), streamed, select("fast"), BRIEF, 0)
    assert (outcome.status, outcome.cache, outcome.flags) == ("ok", "", [])


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


def check_that_it_is_not_slow(count: int, delay: Callable[[Any], object]) -> None:
    """A kernel whose first ``count`` launches ``delay`` the device has as many rounds as others."""
    launched = 0

    def prepare(device: Device, operands: Operands) -> Launch:
        work = select("fast")[0].prepare(device, operands)

        def launch() -> None:
            nonlocal launched
            launched += 1
            if launched <= count:
                delay(device)
            work()

        return launch

    kernel = Kernel("delayed", "exact", "exact", "", ("fp32",), prepare)
    timing = TIMING.model_copy(update={"min_rounds": 5})
    (outcome,) = measure(fake.FakeDevice(), PROBLEM, [kernel], timing, 0)
    assert outcome.summary
    assert outcome.summary.rounds == timing.min_rounds > timing.slow_rounds


def test_a_kernel_whose_first_launch_is_slow_is_not_slow() -> None:
    check_that_it_is_not_slow(1, lambda device: sleep(0.12))  # it loads its code


@pytest.mark.parametrize("delayed", [3, 4])
def test_a_kernel_that_only_seems_slow_at_first_is_checked_as_all_are(delayed: int) -> None:
    """Another program delays its first launches, or it does so itself to be checked less."""

    def delay(device: fake.FakeDevice) -> None:
        device.clock_us += 2e5

    check_that_it_is_not_slow(delayed, delay)


# By the numbers ----------------------------------------------------------------------------------


class Recorder(fake.FakeDevice):
    """Writes down what it times: how many launches, and whether they are a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.timed: list[tuple[str, int]] = []
        self.total_us = 0.0

    def _note(self, how: str, launches: Sequence[Launch], us: float) -> None:
        if self.nothing not in launches:
            self.timed.append((how, len(launches)))
            self.total_us += us

    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        timed = super().time(launches, before)
        self._note("single", launches, sum(timed.times_us))
        return timed

    def time_batch(
        self, launches: Sequence[Launch], before: Launch | None = None, *, sense: bool = True
    ) -> Timed:
        timed = fake.FakeDevice.time(self, launches)
        self._note("batch", launches, sum(timed.times_us))
        return replace(timed, times_us=[sum(timed.times_us) / len(launches)])

    def launched(self, how: str) -> list[int]:
        return [count for kind, count in self.timed if kind == how]


FAST_US = 2 * 64**3 / (0.8 * fake.PEAK) * 1e6  # 655.36
BRIEF = Timing(warmup_s=0, warmup_launches=1, min_rounds=3, max_rounds=3, batch_us=0, energy_s=0)


def timed(device: Recorder, **timing: Any) -> Outcome:
    (outcome,) = measure(
        device, PROBLEM, select("fast"), BRIEF.model_copy(update=timing), 0, cache="warm"
    )
    assert outcome.status == "ok", outcome.reason
    return outcome


@pytest.mark.parametrize(
    ("timing", "samples"),
    [
        ({"round_samples": 7}, 7),
        ({"round_s": 0.002}, 4),  # 3.05 launches
        ({"round_s": 1e-6}, 1),
        ({}, 32),
    ],
)
def test_a_round_has_as_many_samples_as_fit_or_are_wanted(
    timing: dict[str, Any], samples: int
) -> None:
    assert [len(times) for times in timed(Recorder(), **timing).rounds] == [samples] * 3


@pytest.mark.parametrize(
    ("batch_us", "batch"),
    [(655, None), (655.37, 2), (1311, 3), (6000, 10), (80_000, 123), (500_000, 128)],
)
def test_a_batch_is_as_long_as_wanted_and_has_at_most_128_launches(
    batch_us: float, batch: int | None
) -> None:
    device = Recorder()
    outcome = timed(device, batch_us=batch_us)
    assert ("batch_timed" in outcome.flags) == bool(batch)
    # With one copy of the operands results are checked after one launch.
    assert set(device.launched("batch")) == ({1, batch} if batch else set())
    if batch:
        each = max(4, -(-32 // batch))
        assert [len(times) for times in outcome.rounds] == [each] * 3
        # Beside them launches are timed alone: eight in a round, after the first estimates.
        assert device.launched("single")[-24:] == [1] * 24


def test_a_warm_up_has_its_time_and_its_launches() -> None:
    def before_rounds(**timing: Any) -> float:
        """Launches before the first of three rounds of 32."""
        device = Recorder()
        timed(device, **timing)
        return sum(count for _, count in device.timed) - 3 * 32

    least = before_rounds()
    assert before_rounds(warmup_launches=25) == least + 24
    long = before_rounds(warmup_s=0.1) - least + 1
    assert 0.1e6 <= long * FAST_US < 0.12e6


def test_a_warm_up_whose_launches_block_the_gate_is_short() -> None:
    """Each batch would wait until the gate opens by itself."""

    class Blocked(Recorder):
        def time_batch(self, launches: Sequence[Launch], *rest: Any, **more: Any) -> Timed:
            return replace(super().time_batch(launches, *rest, **more), gated=False)

    device, blocked = Recorder(), Blocked()
    for one in (device, blocked):
        timed(one, warmup_s=0.1)
    assert len(blocked.launched("batch")) < len(device.launched("batch")) / 2


def test_all_time_on_the_device_is_counted() -> None:
    device = Recorder()
    config = SweepConfig(timing=TIMING.model_copy(update={"batch_us": 6000}))
    protocol = Protocol(device, config)
    protocol.measure(PROBLEM, select("fast", "slow"))
    assert protocol.clock.device > 0
    # The device warms up and settles in other launches, which are not timed for a row.
    assert protocol.clock.device * 1e6 == pytest.approx(device.total_us, rel=0.2)


@pytest.mark.parametrize("placed", [False, True])
def test_the_parts_of_the_time_are_no_more_than_all_of_it(placed: bool) -> None:
    device = fake.Streaming()
    problem = gemm(8, 8, 8, batch=4, **({"host": "pinned"} if placed else {}))
    protocol = Protocol(device, SweepConfig(timing=BRIEF))
    started = perf_counter()
    protocol.measure(problem, select("fast", "slow"))
    took, clock = perf_counter() - started, protocol.clock
    assert min(clock.verify, clock.timing) > 0
    assert clock.prepare + clock.verify + clock.timing < took


class Noisy(Recorder):
    """Each round takes another time, ``share`` more or less."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share, self.rounds = share, 0

    def quiesce(self, launch: Launch) -> None:
        self.rounds += 1

    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        found = super().time(launches, before)
        factor = 1 + self.share * (-1) ** self.rounds * (self.rounds > 0)
        return replace(found, times_us=[factor * us for us in found.times_us])


def test_rounds_go_on_until_the_interval_is_narrow() -> None:
    calm = timed(Noisy(0.0001), min_rounds=4, max_rounds=9)
    assert (len(calm.rounds), calm.flags) == (4, ["l2_resident"])
    wide = timed(Noisy(0.02), min_rounds=4, max_rounds=9)
    assert (len(wide.rounds), "noisy" in wide.flags) == (9, True)
    assert wide.summary is not None
    assert wide.summary.half_width_percent > 0.5
    allowed = timed(Noisy(0.02), min_rounds=4, max_rounds=9, precision_percent=20)
    assert (len(allowed.rounds), allowed.flags) == (4, ["l2_resident"])


def test_a_slow_kernel_is_never_repeated_for_an_interval() -> None:
    found = timed(Noisy(0.02), slow_s=1e-4, slow_rounds=4, min_rounds=6, max_rounds=9)
    assert [len(times) for times in found.rounds] == [1] * 4
    assert found.flags == ["noisy", "l2_resident"]


def test_a_slow_kernel_is_not_warmed_up() -> None:
    device = Recorder()
    timed(device, slow_s=1e-6, warmup_launches=50, warmup_s=0.5)
    assert device.timed == [("single", 1)] * 4  # one shows how slow it is


def test_a_kernel_that_cannot_even_be_asked_costs_its_own_row() -> None:
    def choosy(problem: Problem) -> str:
        raise ZeroDivisionError

    (asked,) = select("fast")
    variant = Variant("only", asked.prepare, lambda device, problem: None, choosy)
    broken = replace(asked, name="broken", variants=(variant,))
    bad, good = measure(fake.FakeDevice(), PROBLEM, [broken, asked], BRIEF, 0)
    assert (bad.status, bad.reason) == ("failed", "ZeroDivisionError")
    assert good.status == "ok"


class Leaky(fake.FakeDevice):
    """Takes ``share`` longer after a flush of the cache."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        self.flushed = 0

    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        self.flushed += before is not None
        found = super().time(launches, before)
        return replace(
            found, times_us=[us * (1 + self.share * bool(before)) for us in found.times_us]
        )


@pytest.mark.parametrize(
    ("share", "suspect"), [(0.04, False), (0.06, True), (-0.04, False), (-0.06, True)]
)
def test_five_percent_make_a_cache_suspect(share: float, suspect: bool) -> None:
    device = Leaky(share)
    fast, slow = measure(device, PROBLEM, select("fast", "slow"), BRIEF, 0)
    assert fast.flags + slow.flags == ["cache_suspect"] * suspect  # asked once in a run
    assert device.flushed == protocol.SELF_TEST_SAMPLES


def test_what_is_short_slow_or_warm_does_not_show_the_state_of_a_cache() -> None:
    short = gemm(32, 32, 32)  # 154 µs
    for problem, timing, cache in (
        (short, BRIEF, "cold"),
        (PROBLEM, BRIEF.model_copy(update={"slow_s": 1e-4}), "cold"),
        (PROBLEM, BRIEF, "warm"),
    ):
        device = Leaky(0.5)
        measure(device, problem, select("fast"), timing, 0, cache=cache)
        assert device.flushed == 0


@pytest.mark.parametrize(
    ("extent", "beta", "needed"), [(512, 0.0, 9.125), (512, 1.0, 9.125 + 1 / 3)]
)
def test_memory_is_for_operands_guards_initial_values_and_verification(
    extent: int, beta: float, needed: float
) -> None:
    """Two guards of 64 KiB beside each MiB are an eighth."""
    problem = gemm(extent, extent, extent, beta=beta)
    device = fake.FakeDevice()
    device.memory = int(needed * problem.operand_bytes) - 1
    (outcome,) = measure(device, problem, select("fast"), BRIEF, 0)
    assert outcome.status == "skipped"
    gigabytes = needed * problem.operand_bytes / 1e9
    free = device.memory / 1e9
    assert outcome.reason == f"needs {gigabytes:.3g} GB of memory, {free:.3g} GB are free"
    device.memory += 2
    (outcome,) = measure(device, gemm(64, 64, 64), select("fast"), BRIEF, 0)
    assert outcome.status == "ok"


def test_operands_that_cannot_be_allocated_fail_all_kernels() -> None:
    class Full(fake.FakeDevice):
        @property
        def arrays(self) -> Any:
            def empty(*given: Any, **named: Any) -> Any:
                raise MemoryError("no room")

            return SimpleNamespace(empty=empty)

    outcomes = measure(Full(), PROBLEM, select("fast", "slow"), BRIEF, 0)
    assert [(one.status, one.reason) for one in outcomes] == [
        ("failed", "MemoryError: no room")
    ] * 2


def test_verification_of_a_large_problem_needs_half_a_gigabyte() -> None:
    (outcome,) = measure(fake.FakeDevice(), gemm(16384, 16384, 16384), select("fast"), BRIEF, 0)
    assert outcome.reason == "needs 3.76 GB of memory, 1 GB are free"


def test_a_reason_is_the_first_line_of_a_failure_and_not_too_long() -> None:
    outcome = Outcome("x", pair_us=1.0, energy_j=2.0, power_w=3.0, energy_mhz=4.0, rounds=[[1.0]])
    outcome.fail("a" * 400 + "\nsecond line", "timeout")
    assert (outcome.status, outcome.reason) == ("timeout", "a" * 300)
    assert outcome.detail == "a" * 400 + "\nsecond line"
    assert outcome.pair_us is outcome.energy_j is outcome.power_w is outcome.energy_mhz is None
    assert outcome.rounds == []


def test_an_empty_launch_is_timed_once_for_all_rows() -> None:
    class Counting(fake.FakeDevice):
        empty = 0

        def nothing(self) -> None:
            self.empty += 1
            self.clock_us += 2.0

    device = Counting()
    fast, slow = measure(device, PROBLEM, select("fast", "slow"), BRIEF, 0)
    assert fast.launch_us == slow.launch_us == 2.0
    assert device.empty == 21 * 64


class Metered(Recorder):
    """Draws 500 W."""

    def energy_j(self) -> float:
        return 500 * perf_counter()


def test_energy_needs_a_window_and_launches_that_are_not_short() -> None:
    with_energy = BRIEF.model_copy(update={"energy_s": 0.1})
    device = Metered()
    started = perf_counter()
    (counted,) = measure(device, PROBLEM, select("fast"), with_energy, 0)
    took = perf_counter() - started
    assert counted.power_w == pytest.approx(500, rel=0.2)
    assert counted.energy_j and counted.power_w
    batches = device.launched("batch")
    assert set(batches) == {20}  # an eighth of the window
    launched = sum(batches) + BRIEF.warmup_launches
    assert 0.1 < counted.energy_j * launched / counted.power_w < took
    (off,) = measure(Metered(), PROBLEM, select("fast"), BRIEF, 0)
    assert off.energy_j is None
    # The device's clock runs ahead: 0.3 s of it leave the meter some 30 ms to read.
    longer = BRIEF.model_copy(update={"energy_s": 0.3})
    for us, counts in ((25.0, False), (35.0, True)):
        (brief,) = measure(Metered(), gemm(1, 1, 1), [quick(us)], longer, 0)
        assert (brief.status, brief.energy_j is not None) == ("ok", counts)


def quick(us: float) -> Kernel:
    """One product, for which the host needs less time than the device says."""

    def prepare(device: Device, operands: Operands) -> Launch:
        a, b, c = operands.a, operands.b, operands.c

        def launch() -> None:
            assert isinstance(device, fake.FakeDevice)
            np.multiply(a, b, out=c)
            device.clock_us += us

        return launch

    return Kernel("quick", "exact", "exact", "", ("fp32",), prepare)


def test_energy_of_an_idle_device_is_no_figure() -> None:
    class Idle(Metered):
        """Its launches take a tenth of the time that the host needs for them."""

        def time_batch(
            self, launches: Sequence[Launch], before: Launch | None = None, *, sense: bool = True
        ) -> Timed:
            found = super().time_batch(launches, before, sense=sense)
            sleep(10e-6 * found.times_us[0] * len(launches))
            return found

    with_energy = BRIEF.model_copy(update={"energy_s": 0.05})
    (outcome,) = measure(Idle(), PROBLEM, select("fast"), with_energy, 0)
    assert (outcome.status, outcome.energy_j, outcome.power_w) == ("ok", None, None)


def test_kernels_take_turns_in_another_order_each_round() -> None:
    class Turns(fake.FakeDevice):
        def __init__(self) -> None:
            super().__init__()
            self.order: list[float] = []

        def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
            found = super().time(launches, before)
            if len(launches) == 5:
                self.order.append(round(found.times_us[0] / FAST_US))
            return found

    device = Turns()
    timing = BRIEF.model_copy(update={"round_samples": 5, "min_rounds": 20, "max_rounds": 20})
    measure(device, PROBLEM, select("fast", "slow"), timing, 3)
    rounds = [tuple(device.order[i : i + 2]) for i in range(0, 40, 2)]
    assert set(rounds) == {(1, 4), (4, 1)}
    again = Turns()
    measure(again, PROBLEM, select("fast", "slow"), timing, 3)
    assert again.order == device.order


def test_what_other_programs_used_during_the_rounds_is_judged() -> None:
    class Busy(fake.FakeDevice):
        """Others use a quarter of a second between two looks."""

        others = 100.0
        asked: tuple[float, float] = (0, 0)

        def others_s(self) -> float:
            self.others += 0.25
            return self.others

        def contended(self, others_s: float, wall_s: float) -> bool:
            self.asked = others_s, wall_s
            return others_s > 0.7

    device = Busy()
    (outcome,) = measure(device, PROBLEM, select("fast"), BRIEF, 0, cache="warm")
    assert outcome.flags == ["contended", "l2_resident"]
    assert device.asked[0] == pytest.approx(3 * 0.25)
    assert 0 < device.asked[1] < 60


@pytest.mark.parametrize(
    ("attributes", "flags"),
    [
        ({"padded": True}, ["padded"]),
        ({"gated": False}, ["host_timed"]),
        ({"gated": True, "padded": False}, []),
    ],
)
def test_a_launch_may_say_what_it_is(attributes: dict[str, Any], flags: list[str]) -> None:
    (exact,) = select("fast")

    def prepare(device: Device, operands: Operands) -> Launch:
        return MarkedLaunch(exact.prepare(device, operands), **attributes)

    (outcome,) = measure(fake.FakeDevice(), PROBLEM, [replace(exact, prepare=prepare)], BRIEF, 0)
    assert outcome.flags == flags
