"""Power from a counter that moves in steps."""

from __future__ import annotations

from threading import Event
from time import sleep

import pytest

from rooflab.measure import energy
from rooflab.measure.energy import PowerMeter, slope


@pytest.mark.parametrize("watts", [70.0, 700.0])
def test_steps_late_by_a_tenth_change_little(watts: float) -> None:
    late = [0.0, 0.01, -0.01, 0.0, 0.01, -0.01, 0.0, 0.01, -0.01, 0.0]
    steps = [(5 + 0.1 * i + late[i], 1e6 + watts * 0.1 * i) for i in range(10)]
    assert slope(steps) == pytest.approx(watts, rel=0.02)


def test_too_few_steps_tell_nothing() -> None:
    steps = [(0.1 * i, 70.0 * i) for i in range(3)]
    assert slope(steps) == pytest.approx(700)
    assert slope(steps[1:]) is None
    assert slope([]) is None


def test_work_between_rests_has_its_own_power(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three bursts of 20 ms at 800 W beside 130 W of an idle chip, read every 0.1 s."""

    def joules(seconds: float) -> float:
        whole, part = divmod(seconds, 0.17)
        busy_s = 0.02 * whole + max(0.0, part - 0.15)
        return 130 * seconds + 670 * busy_s

    meter = PowerMeter(lambda: None)
    with meter:
        pass
    meter._steps += [(0.1 * i, joules(0.1 * i)) for i in range(7)]
    assert meter.above_idle(3 * 0.02) == pytest.approx(800, rel=0.01)
    assert meter.above_idle(0) is None


def test_a_stepping_counter_gives_the_power_of_the_window(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The difference of the last and the first reading, over 0.302 s, would say 397 W."""
    now, read = 0.099, Event()

    def joules() -> float:
        nonlocal now
        now = min(now + 0.002, 0.401)
        if now == 0.401:
            read.set()
        return 30.0 * int(now / 0.1)

    monkeypatch.setattr(energy, "perf_counter", lambda: now)
    monkeypatch.setattr(energy, "PERIOD_S", 0)
    with PowerMeter(joules) as meter:
        assert read.wait(10)
    assert meter.watts == pytest.approx(300, rel=0.02)


def test_a_counter_that_stops_answering() -> None:
    answers = iter([0.0, 1.0, None])
    with PowerMeter(lambda: next(answers, None)) as meter:
        sleep(0.05)
    assert meter.watts is None
    with PowerMeter(lambda: None) as meter:
        sleep(0.01)
    assert meter.watts is None
