"""A device that is kept busy, so that its clock becomes that of a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import fake
import pytest

from rooflab.devices.base import MAX_BATCH, Launch, Reading, Timed
from rooflab.measure.energy import settle


class Busy(fake.FakeDevice):
    """Counts launches; its power limit lowers the clock from the second queue on."""

    def __init__(self, gated: bool = True) -> None:
        super().__init__()
        self.gated = gated
        self.lengths: list[int] = []

    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        self.lengths.append(len(launches))
        reasons = frozenset({"sw_power_cap"} if len(self.lengths) > 1 else ())
        timed = super().time(launches, before)
        return replace(timed, gated=self.gated, reading=Reading(reasons=reasons))


def run(device: Busy, estimate_us: float, seconds: float, really_us: float = 0) -> bool:
    def launch() -> None:
        device.clock_us += really_us or estimate_us

    return settle(device, lambda count: [launch] * count, estimate_us, seconds)


@pytest.mark.parametrize(("launch_us", "queues", "each"), [(1000, 15, 20), (40_000, 8, 1)])
def test_it_takes_as_long_as_it_should(launch_us: float, queues: int, each: int) -> None:
    device = Busy()
    assert run(device, launch_us, 0.3)
    assert device.lengths == [each] * queues


def test_also_if_launches_take_half_of_what_was_expected() -> None:
    device = Busy()
    assert run(device, 1000, 0.3, really_us=500)
    assert device.lengths == [20] * 30


def test_a_queue_is_not_endless() -> None:
    device = Busy()
    assert run(device, 1.0, 0.001)
    assert device.lengths == [MAX_BATCH] * 8


def test_no_time_or_a_cool_device() -> None:
    device = Busy()
    assert not run(device, 1000, 0)
    assert not run(device, 1000, 0.02)


def test_a_launch_that_blocks_the_gate_is_not_repeated() -> None:
    device = Busy(gated=False)
    assert not run(device, 1000, 0.3)
    assert len(device.lengths) == 1
