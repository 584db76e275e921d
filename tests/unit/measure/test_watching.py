"""A kernel is watched while it is timed: no launch tells it when."""

from __future__ import annotations

import ctypes
import gc
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch, Setting
from rooflab.errors import ALONE, DeviceLost
from rooflab.kernels.base import Kernel, Operands
from rooflab.measure.inspection import KEEPS
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.measure.settings import Settings
from rooflab.measure.subject import LATER, OTHER

PROBLEM = gemm(32, 24, 40)
US = 20_000.0
TIMING = Timing(
    warmup_s=0, warmup_launches=1, round_samples=2, min_rounds=6, max_rounds=6, energy_s=0
)
SLOW = TIMING.model_copy(update={"slow_s": 0.01, "slow_rounds": 5})

Work = Callable[[Operands, int, Launch], None]
"""What a launch does: with the operands, its number from 1 on, and right work."""


def kernel(work: Work, **more: Any) -> Kernel:
    """A kernel that counts its launches over all buffer copies."""
    launched = [0]

    def prepare(device: Device, operands: Operands) -> Launch:
        right = fake.compute(operands)

        def launch() -> None:
            launched[0] += 1
            assert isinstance(device, fake.FakeDevice)
            device.clock_us += US
            work(operands, launched[0], right)

        return launch

    return Kernel("mine", "exact", "exact", "", ("fp32",), prepare, **more)


def measure(
    one: Kernel, timing: Timing = TIMING, entropy: int | None = None, **config: Any
) -> Outcome:
    given = SweepConfig.model_validate({"timing": timing, **config})
    device, settings = fake.FakeDevice(), known() if entropy is not None else None
    protocol = Protocol(device, given, entropy=entropy, settings=settings)
    (outcome,) = protocol.measure(PROBLEM, [one])
    return outcome


@cache
def known() -> Settings:
    """They take longer to make than a measurement takes."""
    return Settings(fake.FakeDevice())


class Sticky(fake.FakeDevice):
    """Has a setting that nothing restores."""

    stuck = False

    def settings(self) -> list[Setting]:
        return [
            Setting("stuck", lambda: self.stuck, lambda value: None, lambda old, new: "for ever")
        ]


@pytest.mark.parametrize("first", [1, 9])
@pytest.mark.parametrize("right", [True, False])
def test_what_cannot_be_undone_needs_a_process_of_its_own(first: int, right: bool) -> None:
    """Whether the kernel does so at first or later, and whether it is right."""
    device = Sticky()

    def stick(operands: Operands, number: int, compute: Launch) -> None:
        device.stuck = device.stuck or number >= first
        if right or number < first:
            compute()

    one = kernel(stick, untrusted=True)
    other = replace(kernel(lambda operands, number, compute: compute()), name="other")
    protocol = Protocol(device, SweepConfig(timing=TIMING))
    with pytest.raises(DeviceLost) as lost:
        protocol.measure(PROBLEM, [other, one])
    assert (lost.value.kernel, lost.value.status) == ("mine", ALONE)
    assert lost.value.reason == "stuck for ever"

    device = Sticky()
    one = kernel(stick, untrusted=True)
    (outcome,) = Protocol(device, SweepConfig(timing=TIMING)).measure(PROBLEM, [one])
    assert outcome.status == ("ok" if right else "incorrect")
    assert outcome.stays
    assert outcome.changed == "stuck for ever; in a process of its own, since this stays"


def reason(outcome: Outcome) -> str:
    assert outcome.status == "incorrect"
    assert outcome.summary is None
    assert outcome.rounds == []
    return outcome.reason


@pytest.mark.parametrize("timing", [TIMING, SLOW, TIMING.model_copy(update={"batch_us": 60_000.0})])
@pytest.mark.parametrize("foreign", [True, False])
@pytest.mark.parametrize("cache", ["cold", "warm"])
@pytest.mark.parametrize("fill", ["uniform", "normal"])
def test_right_work_passes(timing: Timing, foreign: bool, cache: str, fill: str) -> None:
    one = kernel(lambda operands, number, right: right(), foreign=foreign, untrusted=foreign)
    for entropy in range(3):
        outcome = measure(one, timing, entropy, cache=cache, fill=fill)
        assert (outcome.status, outcome.reason) == ("ok", "")


@pytest.mark.parametrize("first", [2, 6, 12])
def test_launches_that_do_nothing_later_are_found(first: int) -> None:
    """Results of all buffer copies are right, from the launches before."""

    def lazy(operands: Operands, number: int, right: Launch) -> None:
        if number <= first:
            right()

    assert reason(measure(kernel(lazy), cache="warm")).startswith(f"{LATER}: ")


def test_the_round_of_an_inspection_is_another_one_each_time() -> None:
    """It finds results that were poisoned before the launch."""
    rounds: set[int] = set()
    for entropy in range(30):
        if len(rounds) == TIMING.min_rounds - 1:
            break
        checked: list[int] = []

        def note(operands: Operands, number: int, right: Launch, into: Any = checked) -> None:
            if np.isnan(operands.c).any():
                into.append(number)
            right()

        outcome = measure(kernel(note), entropy=entropy, cache="warm")
        assert outcome.status == "ok"
        rounds.add(checked[1])  # the first is the verification
    assert len(rounds) == TIMING.min_rounds - 1


@pytest.mark.parametrize("skipped", range(1, 6))
def test_any_launch_of_a_slow_kernel_may_be_judged(skipped: int) -> None:
    """One of the first four, and always the last, which has other inputs."""

    def lazy(operands: Operands, number: int, right: Launch) -> None:
        if number - BEFORE != skipped:
            right()

    found = set()
    for entropy in range(40 if skipped < 5 else 6):
        found.add(measure(kernel(lazy), SLOW, entropy, cache="warm").status)
        if len(found) > 1:
            break
    assert found == ({"incorrect"} if skipped == 5 else {"incorrect", "ok"})


BEFORE = 2
"""Launches before the rounds: one loads the code and is verified, one is timed."""


def test_a_slow_kernel_that_keeps_its_results_is_found() -> None:
    kept: dict[int, Any] = {}

    def keeps(operands: Operands, number: int, right: Launch) -> None:
        if id(operands) not in kept:
            right()
            kept[id(operands)] = operands.c.copy()
        operands.c[...] = kept[id(operands)]

    assert reason(measure(kernel(keeps), SLOW, cache="warm")) == f"{OTHER}: {KEEPS}"


def test_results_by_address_are_found_on_other_inputs() -> None:
    kept: dict[int, Any] = {}

    def keeps(operands: Operands, number: int, right: Launch) -> None:
        if id(operands) not in kept:
            right()
            kept[id(operands)] = operands.c.copy()
        operands.c[...] = kept[id(operands)]

    assert reason(measure(kernel(keeps))) == f"{OTHER}: {KEEPS}"
    kept.clear()
    foreign = kernel(keeps, foreign=True)
    assert reason(measure(foreign, cache="warm")) == f"{LATER}: {KEEPS}"


@pytest.mark.parametrize("timing", [TIMING, SLOW])
@pytest.mark.parametrize("number", [1, 5])
def test_a_launch_that_writes_elsewhere_is_found(timing: Timing, number: int) -> None:
    def strays(operands: Operands, count: int, right: Launch) -> None:
        right()
        if count >= number:
            end = operands.c.ctypes.data + operands.c.nbytes
            ctypes.c_ubyte.from_address(end).value = 7

    expected = "writes past the end of C"
    found = reason(measure(kernel(strays), timing))
    assert found == (expected if number == 1 else f"{LATER}: {expected}")


@pytest.mark.parametrize("number", [1, 8])
def test_a_users_kernel_that_changes_its_inputs_is_found(number: int) -> None:
    def spoils(operands: Operands, count: int, right: Launch) -> None:
        right()
        if count == number:
            operands.a.reshape(-1)[-1] += 1

    found = reason(measure(kernel(spoils, untrusted=True, foreign=True)))
    assert found.endswith("changes its inputs")


def test_what_one_kernel_spoils_the_others_do_not_see() -> None:
    def spoils(operands: Operands, count: int, right: Launch) -> None:
        right()
        operands.a.fill(0)
        operands.b.fill(0)

    bad = kernel(spoils, untrusted=True)
    good = fake.KERNELS.select(["fast"], "exact", "gemm")
    config = SweepConfig(timing=TIMING)
    for kernels in ([bad, *good], [*good, bad]):
        outcomes = Protocol(fake.FakeDevice(), config).measure(PROBLEM, kernels)
        assert {one.kernel: one.status for one in outcomes} == {"mine": "incorrect", "fast": "ok"}


# Settings of the process -------------------------------------------------------------------------


def test_a_changed_setting_is_told_and_others_do_not_have_it() -> None:
    seen: list[tuple[str, bool]] = []

    def meddles(operands: Operands, number: int, right: Launch) -> None:
        seen.append(("mine", gc.isenabled()))
        gc.disable()
        os.environ["ROOFLAB_A"] = "1"
        right()

    (honest,) = fake.KERNELS.select(["fast"], "exact", "gemm")

    def prepare(device: Device, operands: Operands) -> Launch:
        right = honest.prepare(device, operands)

        def launch() -> None:
            seen.append(("fast", gc.isenabled() and "ROOFLAB_A" not in os.environ))
            right()

        return launch

    kernels = [kernel(meddles, untrusted=True), replace(honest, prepare=prepare)]
    mine, fast = Protocol(fake.FakeDevice(), SweepConfig(timing=TIMING)).measure(PROBLEM, kernels)
    assert (mine.status, fast.status) == ("ok", "ok")
    assert mine.changed == ("the environment (ROOFLAB_A); garbage collection from True to False")
    assert ("changed_settings" in mine.flags, "changed_settings" in fast.flags) == (True, False)
    assert fast.changed == ""
    assert {enabled for name, enabled in seen if name == "fast"} == {True}
    mine_seen = [enabled for name, enabled in seen if name == "mine"]
    assert (mine_seen[0], set(mine_seen[1:])) == (True, {False})  # it keeps what it has set
    assert gc.isenabled()
    assert "ROOFLAB_A" not in os.environ


@pytest.mark.parametrize("number", [1, 9])
def test_a_kernel_that_replaces_a_clock_has_no_result(number: int) -> None:
    clock = time.perf_counter

    def tampers(operands: Operands, count: int, right: Launch) -> None:
        right()
        if count == number:
            time.perf_counter = lambda: 0.0

    outcome = measure(kernel(tampers, untrusted=True))
    assert reason(outcome) == "functions or constants are replaced: time.perf_counter"
    assert outcome.changed == "functions or constants are replaced: time.perf_counter"
    assert time.perf_counter is clock


def test_a_failing_kernel_keeps_what_it_changed_to_itself() -> None:
    def fails(operands: Operands, number: int, right: Launch) -> None:
        gc.disable()
        raise ZeroDivisionError

    outcome = measure(kernel(fails, untrusted=True))
    assert (outcome.status, outcome.reason) == ("failed", "ZeroDivisionError")
    assert gc.isenabled()


def test_a_launch_is_looked_at_where_it_writes() -> None:
    seen: list[bool] = []

    class Watchful(fake.FakeDevice):
        def escapes(self, launch: Callable[[], None], outputs: Any) -> str:
            before = [output.tobytes() for output in outputs]
            launch()
            seen.append(not any(a == b.tobytes() for a, b in zip(before, outputs, strict=True)))
            return ""

    right = kernel(lambda operands, number, right: right(), untrusted=True)
    Protocol(Watchful(), SweepConfig(timing=TIMING)).measure(PROBLEM, [right])
    assert seen == [True, True]


def test_a_launch_that_ends_early_loses_the_process() -> None:
    class Watchful(fake.FakeDevice):
        """Sees it from the third look on."""

        looks = 0

        def escapes(self, launch: Callable[[], None], outputs: Any) -> str:
            self.looks += 1
            return "returns early" if self.looks == 2 else ""

    right = kernel(lambda operands, number, right: right(), untrusted=True)
    device = Watchful()
    with pytest.raises(DeviceLost) as lost:
        Protocol(device, SweepConfig(timing=TIMING)).measure(PROBLEM, [right])
    assert (lost.value.kernel, lost.value.reason) == ("mine", "returns early")
    assert lost.value.status == "incorrect"
    assert device.looks == 2  # after the first launch, and at an inspection
