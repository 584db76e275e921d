"""The warm-up of a run: until clock and power are steady, and never for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.device import Device, Reading, Timed
from rooflab.kernels import Kernel, Launch, Operands
from rooflab.measure import warmup
from rooflab.measure.protocol import Protocol
from rooflab.measure.warmup import warm_up

PROBLEM = gemm(16, 16, 16)


class Sensing(fake.FakeDevice):
    """Its clock comes down by a share of ``drift`` with each reading, its power by ``cooling``."""

    def __init__(self, drift: float = 0.0, cooling: float = 0.0, *, capped: bool = False) -> None:
        super().__init__()
        self.drift, self.mhz = drift, 10_000.0
        self.cooling, self.power_w = cooling, 100.0
        self.reasons = frozenset({"sw_power_cap"} if capped else ())

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        self.mhz *= 1 - self.drift
        self.power_w *= 1 - self.cooling
        reading = Reading(sm_mhz=self.mhz, power_w=self.power_w, reasons=self.reasons)
        return replace(super().time(launches, before), reading=reading)


def warm(device: fake.FakeDevice, *names: str, most_s: float = 5.0) -> dict[str, object]:
    config = SweepConfig(timing=Timing(device_warmup_s=most_s))
    kernels: list[Kernel] = fake.KERNELS.select(names, "exact", "gemm")
    return warm_up(Protocol(device, config), PROBLEM, kernels)


@pytest.fixture(autouse=True)
def short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "WINDOW_S", 0.001)


def test_it_ends_when_clock_and_power_are_steady() -> None:
    found = warm(Sensing(), "fast", "slow")
    assert found["steady"] is True
    assert (found["sm_mhz"], found["power_w"]) == (10_000.0, 100.0)


def test_a_clock_that_never_settles_ends_it_too() -> None:
    found = warm(Sensing(drift=0.05), "fast", most_s=0.02)
    assert found["steady"] is False


@pytest.mark.parametrize(("capped", "steady"), [(False, True), (True, False)])
def test_at_the_power_limit_the_power_must_be_steady_too(capped: bool, steady: bool) -> None:
    device = Sensing(cooling=0.05, capped=capped)
    assert warm(device, "fast", most_s=0.05)["steady"] is steady


def test_kernels_that_fail_are_passed_over() -> None:
    assert warm(Sensing(), "broken", "raises", "fast")["steady"] is True
    assert warm(Sensing(), "broken", "raises") == {}


def test_without_sensors_nothing_would_show_when_it_is_warm() -> None:
    assert warm(fake.FakeDevice(), "fast") == {}


def test_what_a_kernel_sets_meanwhile_is_undone() -> None:
    fast = fake.KERNELS.get("exact", "gemm", "fast")
    assert fast
    before, during = np.geterr(), []

    def prepare(device: Device, operands: Operands) -> Launch:
        np.seterr(all="ignore")
        launch = fast.prepare(device, operands)

        def launches() -> None:
            during.append(np.geterr()["over"])
            launch()

        return launches

    sets = replace(fast, prepare=prepare, untrusted=True)
    protocol = Protocol(Sensing(), SweepConfig(timing=Timing(device_warmup_s=5.0)))
    assert warm_up(protocol, PROBLEM, [sets])["steady"] is True
    assert set(during) == {"ignore"}  # it is measured as it wants to be
    assert np.geterr() == before


def test_it_can_be_left_out() -> None:
    assert warm(Sensing(), "fast", most_s=0) == {}
