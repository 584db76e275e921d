"""Of a kernel at the power limit a few launches are timed after a rest, before the limit acts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import fake
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Reading, Timed
from rooflab.measure import protocol
from rooflab.measure.protocol import Outcome, Protocol
from rooflab.model.problem import Problem

PROBLEM = gemm(64, 64, 64)
FAST_US = 2 * 64**3 / (0.8 * fake.PEAK) * 1e6  # 655.36
TIMING = Timing(
    warmup_s=0, own_clock_s=0.001, min_rounds=3, max_rounds=3, energy_s=0, batch_us=0, round_s=0.002
)
LIMITED = frozenset({"sw_power_cap"})
LAUNCHES = 31
"""Of 655 µs, in 20 ms."""


class Resting(fake.FakeDevice):
    """At its power limit; after a rest its next launches take four fifths of their time."""

    capped = True

    def __init__(self) -> None:
        super().__init__()
        self.rested_s: list[float] = []
        self.cool = False
        self.bursts: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.rested_s.append(seconds)
        self.cool = True

    def time_batch(self, launches: Any, before: Any = None, *, sense: bool = True) -> Timed:
        timed = super().time_batch(launches, before, sense=sense)
        if not self.cool:
            return timed
        self.bursts.append(len(launches))
        self.cool = False
        reading = timed.reading and replace(timed.reading, sm_mhz=1900.0)
        return replace(timed, times_us=[0.8 * timed.times_us[0]], reading=reading)

    def reading(self) -> Reading:
        return Reading(sm_mhz=1500.0, reasons=LIMITED if self.capped else frozenset())


class Meter:
    """Knows the power of the work, whatever it is."""

    made: list[Meter]

    def __init__(self, joules: object) -> None:
        self.busy_s = 0.0
        self.windows = 0
        Meter.made.append(self)

    def __enter__(self) -> Self:
        self.windows += 1
        return self

    def __exit__(self, *error: object) -> None:
        """Nothing to end."""

    def above_idle(self, busy_s: float) -> float:
        self.busy_s = busy_s
        return 800.0


@pytest.fixture(autouse=True)
def meters(monkeypatch: pytest.MonkeyPatch) -> list[Meter]:
    Meter.made = []
    monkeypatch.setattr(protocol, "PowerMeter", Meter)
    return Meter.made


def measured(
    device: fake.FakeDevice,
    monkeypatch: pytest.MonkeyPatch,
    problem: Problem = PROBLEM,
    name: str = "fast",
    **timing: Any,
) -> Outcome:
    if isinstance(device, Resting):
        monkeypatch.setattr(protocol, "sleep", device.sleep)
    config = SweepConfig(timing=TIMING.model_copy(update=timing))
    kernels = fake.KERNELS.select([name], "exact", "gemm")
    (outcome,) = Protocol(device, config).measure(problem, kernels)
    assert (outcome.status, outcome.reason) == ("ok", "")
    return outcome


def test_bursts_have_their_own_time_clock_and_power(
    monkeypatch: pytest.MonkeyPatch, meters: list[Meter]
) -> None:
    device = Resting()
    outcome = measured(device, monkeypatch, burst_rest_s=0.25)
    assert outcome.burst_us == pytest.approx(0.8 * FAST_US)
    assert (outcome.burst_mhz, outcome.burst_w) == (1900.0, 800.0)
    assert device.bursts == [LAUNCHES] * 3
    assert device.rested_s == [0.25] * 4  # and one until the counter has it all
    assert meters[-1].busy_s == pytest.approx(3 * LAUNCHES * 0.8 * FAST_US / 1e6)
    assert meters[-1].windows == 1
    # What was timed in rounds is as it was.
    assert outcome.summary is not None
    assert outcome.summary.median == pytest.approx(FAST_US)
    assert "power_capped" in outcome.flags


def test_a_burst_has_as_many_launches_as_a_batch_may_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device = Resting()
    measured(device, monkeypatch, gemm(16, 16, 16))
    assert device.bursts == [128] * 3


def test_without_a_clock_the_time_remains(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clockless(Resting):
        def time_batch(self, launches: Any, before: Any = None, *, sense: bool = True) -> Timed:
            timed = super().time_batch(launches, before, sense=sense)
            return replace(timed, reading=Reading(reasons=LIMITED))

    outcome = measured(Clockless(), monkeypatch)
    assert outcome.burst_us == pytest.approx(0.8 * FAST_US)
    assert outcome.burst_mhz is None


@pytest.mark.parametrize(
    ("problem", "capped", "timing"),
    [
        (PROBLEM, False, {}),
        (PROBLEM, True, {"burst_rest_s": 0.0}),
        (gemm(224, 224, 224), True, {}),  # 28 ms
        (gemm(224, 224, 224), True, {"slow_s": 0.01}),
    ],
)
def test_others_have_none(
    problem: Problem, capped: bool, timing: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Resting()
    device.capped = capped
    outcome = measured(device, monkeypatch, problem, **timing)
    assert (outcome.burst_us, outcome.burst_mhz, outcome.burst_w) == (None, None, None)
    assert device.rested_s == []


def test_operands_in_host_memory_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Streaming(fake.Streaming):
        def time(self, launches: Any, before: Any = None) -> Timed:
            return replace(super().time(launches, before), reading=Reading(reasons=LIMITED))

    monkeypatch.setattr(protocol, "sleep", pytest.fail)
    outcome = measured(Streaming(), monkeypatch, gemm(8, 8, 8, batch=4, host="pinned"))
    assert "power_capped" in outcome.flags
    assert outcome.burst_us is None


def test_a_failure_has_no_bursts() -> None:
    outcome = Outcome("x", burst_us=1.0, burst_mhz=2.0, burst_w=3.0)
    outcome.fail("why")
    assert (outcome.burst_us, outcome.burst_mhz, outcome.burst_w) == (None, None, None)
