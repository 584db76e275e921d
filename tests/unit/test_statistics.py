from __future__ import annotations

import random
from math import gamma, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.measure.statistics import quantile, summarize, t_975

samples = st.floats(1, 1e6)


def t_below(t: float, degrees: int) -> float:
    """P(T < t), by Simpson's rule over the density."""
    factor = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2))
    count = 2000
    width = t / count
    heights = [
        factor * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(count + 1)
    ]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + width / 3 * (heights[0] + inner + heights[-1])


@pytest.mark.parametrize("degrees", [1, 2, 5, 9, 30, 31, 39, 100])
def test_t_quantile_is_students(degrees: int) -> None:
    assert t_below(t_975(degrees), degrees) == pytest.approx(0.975, abs=1e-4)


def test_the_interval_covers_the_truth_95_times_in_100() -> None:
    draw = random.Random(1)
    hits = 0
    for _ in range(2000):
        summary = summarize([[draw.gauss(100, 3)] for _ in range(10)])
        hits += summary.low <= 100 <= summary.high
    assert 0.94 < hits / 2000 < 0.98


def test_by_hand() -> None:
    summary = summarize([[10, 11, 30], [12, 10, 9], [10, 13, 12]])
    assert summary.median == 11
    assert (summary.samples, summary.rounds, summary.minimum) == (9, 3, 9)
    half = 4.303 * sqrt(pi / 2) * 1 / sqrt(3)
    assert (summary.low, summary.high) == pytest.approx((11 - half, 11 + half))
    assert summary.half_width_percent == pytest.approx(100 * half / 11)


def test_an_outlier_is_kept_and_does_not_move_the_median() -> None:
    summary = summarize([[10.0] * 9 + [1000.0]] * 4)
    assert summary.median == 10
    assert summary.p95 > 10
    assert summary.samples == 40


@given(st.lists(samples, min_size=1, max_size=50), st.floats(0, 1))
def test_quantiles_stay_within_and_rise(values: list[float], fraction: float) -> None:
    value = quantile(values, fraction)
    assert min(values) <= value <= max(values)
    assert quantile(values, 0) == min(values)
    assert quantile(values, 1) == max(values)


@given(st.lists(st.lists(samples, min_size=1, max_size=5), min_size=2, max_size=12))
def test_order_of_figures(rounds: list[list[float]]) -> None:
    summary = summarize(rounds)
    assert summary.low <= summary.median <= summary.high
    assert summary.minimum <= summary.p05 <= summary.p95
