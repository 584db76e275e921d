"""Power from a counter that moves in steps."""

from __future__ import annotations

from threading import Event
from time import sleep

import pytest

from rooflab.measure import energy
from rooflab.measure.energy import LEAST_STEPS, PowerMeter, slope


@pytest.mark.parametrize("watts", [70.0, 700.0])
def test_steps_late_by_a_tenth_change_little(watts: float) -> None:
    late = [0.0, 0.01, -0.01, 0.0, 0.01, -0.01, 0.0, 0.01, -0.01, 0.0]
    steps = [(5 + 0.1 * i + late[i], 1e6 + watts * 0.1 * i) for i in range(10)]
    assert slope(steps) == pytest.approx(watts, rel=0.02)


def test_too_few_steps_tell_nothing() -> None:
    steps = [(0.1 * i, 70.0 * i) for i in range(LEAST_STEPS)]
    assert slope(steps) == pytest.approx(700)
    assert slope(steps[1:]) is None


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
