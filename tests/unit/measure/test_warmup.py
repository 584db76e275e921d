"""The warm-up of a run: until clock and power are steady, and never for long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch, Reading, Setting, Timed
from rooflab.errors import DeviceLost
from rooflab.kernels.base import Kernel, Operands
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


class Stuck(Sensing):
    """With a setting that nobody can write."""

    stuck = 0

    def settings(self) -> Sequence[Setting]:
        return [Setting("stuck", lambda: self.stuck, lambda value: None)]


def sticking(device: Stuck, after: int, *, untrusted: bool) -> Kernel:
    """A kernel whose launch changes it, after so many others."""
    fast = fake.KERNELS.get("exact", "gemm", "fast")
    assert fast
    prepares = fast.prepare

    def prepare(on: Device, operands: Operands) -> Launch:
        launch, launched = prepares(on, operands), count()

        def launches() -> None:
            device.stuck = max(device.stuck, int(next(launched) >= after))
            launch()

        return launches

    return replace(fast, prepare=prepare, untrusted=untrusted)


@pytest.mark.parametrize("after", [0, 5])
def test_what_cannot_be_undone_ends_the_process(after: int) -> None:
    device = Stuck()
    protocol = Protocol(device, SweepConfig(timing=Timing(device_warmup_s=5.0)))
    with pytest.raises(DeviceLost, match="stuck from 0 to 1"):
        warm_up(protocol, PROBLEM, [sticking(device, after, untrusted=True)])


def test_what_a_kernel_of_ours_sets_is_as_it_should_be() -> None:
    device = Stuck()
    protocol = Protocol(device, SweepConfig(timing=Timing(device_warmup_s=5.0)))
    ours, other = (sticking(device, after, untrusted=after > 0) for after in (0, 10**9))
    assert warm_up(protocol, PROBLEM, [ours, other])["steady"] is True


@pytest.mark.parametrize("where", ["prepare", "unsupported"])
def test_a_kernel_that_ends_the_program_is_passed_over(where: str) -> None:
    def ends(*of: object) -> Any:
        raise SystemExit(1)

    fast = fake.KERNELS.get("exact", "gemm", "fast")
    assert fast
    how: dict[str, Any] = {where: ends}
    protocol = Protocol(Sensing(), SweepConfig(timing=Timing(device_warmup_s=5.0)))
    assert warm_up(protocol, PROBLEM, [replace(fast, **how), fast])["steady"] is True
    assert warm_up(protocol, PROBLEM, [replace(fast, **how)]) == {}


def test_it_can_be_left_out() -> None:
    assert warm(Sensing(), "fast", most_s=0) == {}
