from __future__ import annotations

import random
from math import exp, gamma, log, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.measure.statistics import by_rank, quantile, summarize, t_975

samples = st.floats(1, 1e6)


def t_below(t: float, degrees: int) -> float:
    """P(T < t), by Simpson's rule over the density."""
    factor = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2))
    count = 1000
    width = t / count
    heights = [
        factor * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(count + 1)
    ]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + width / 3 * (heights[0] + inner + heights[-1])


@pytest.mark.parametrize("degrees", [*range(1, 33), 39, 100])
def test_t_quantile_is_students(degrees: int) -> None:
    assert t_below(t_975(degrees), degrees) == pytest.approx(0.975, abs=1e-4)


@pytest.mark.parametrize(
    ("degrees", "exact"), [(31, 2.039513), (40, 2.021075), (60, 2.000298), (120, 1.979930)]
)
def test_t_of_many_degrees_is_right_to_four_digits(degrees: int, exact: float) -> None:
    assert t_975(degrees) == pytest.approx(exact, abs=1e-4)


def noise(kind: str, draw: random.Random) -> float:
    """A time whose median is 1, up to a constant factor."""
    if kind == "skewed":
        return 1 + 0.004 * (draw.expovariate(1) - log(2))
    if kind == "heavy":
        return exp(0.004 * draw.gauss(0, 1) / max(0.2, abs(draw.gauss(0, 1))))
    return exp(draw.gauss(0, 0.004))


@pytest.mark.parametrize("kind", ["normal", "skewed", "heavy"])
@pytest.mark.parametrize(("fewest", "most"), [(3, 3), (5, 12), (10, 40)])
def test_the_interval_covers_the_truth_95_times_in_100(kind: str, fewest: int, most: int) -> None:
    """Under the rule that stops: when the interval is within ±0.5 %."""
    draw = random.Random(1)
    hits = 0
    for _ in range(1000):
        rounds = [[noise(kind, draw)] for _ in range(fewest)]
        while summarize(rounds).half_width_percent > 0.5 and len(rounds) < most:
            rounds.append([noise(kind, draw)])
        summary = summarize(rounds)
        hits += summary.low <= 1 <= summary.high
    assert 0.925 < hits / 1000 < 0.995


def test_a_preempted_round_costs_no_precision() -> None:
    calm = [[100 + i / 10] for i in range(9)]
    summary = summarize([*calm, [600.0]])
    assert summary.half_width_percent < 0.5
    assert summary.samples == 10
    assert summary.p95 > 300


@pytest.mark.parametrize("rounds", [[1.0, 9.0], [1.0, 1.0, 50.0], [1.0, 2.0, 100.0, 3.0, 400.0]])
def test_an_interval_is_of_possible_times(rounds: list[float]) -> None:
    summary = summarize([[time] for time in rounds])
    assert 0 < summary.low <= summary.median <= summary.high


def test_three_rounds_that_agree_within_1_percent_say_so() -> None:
    assert summarize([[132_000.0], [132_672.0], [133_300.0]]).half_width_percent < 2


def test_ranks_by_hand() -> None:
    """Of ten values the 2nd and the 9th enclose 97.85 %, the 3rd and the 8th 89.06 %."""
    low, high = by_rank([float(i) for i in range(1, 11)])
    share = (0.978515625 - 0.95) / (0.978515625 - 0.890625)
    inward = 8 * share / (2 + 6 * share)
    assert (low, high) == pytest.approx((2 + inward, 9 - inward))
    assert by_rank([3.0] * 6) == (3.0, 3.0)


def test_by_hand() -> None:
    summary = summarize([[10, 11, 30], [12, 10, 9], [10, 13, 12]])
    assert summary.median == 11
    assert (summary.samples, summary.rounds, summary.minimum) == (9, 3, 9)
    deviation = sqrt(sum((log(x) - log(1320) / 3) ** 2 for x in (10, 11, 12)) / 2)
    factor = exp(4.303 * sqrt(pi / 2) * deviation / sqrt(3))
    assert (summary.low, summary.high) == pytest.approx((11 / factor, 11 * factor))
    assert summary.half_width_percent == pytest.approx(50 * (factor - 1 / factor))


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
