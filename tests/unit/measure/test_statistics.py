from __future__ import annotations

import random
from dataclasses import replace
from math import comb, exp, gamma, log, pi, sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.measure.statistics import T_975, by_rank, by_t, outliers, quantile, summarize

samples = st.floats(1, 1e6)


def t_below(t: float, degrees: int) -> float:
    """P(T < t), by Simpson's rule over the density."""
    factor = gamma((degrees + 1) / 2) / (sqrt(degrees * pi) * gamma(degrees / 2))
    count = 1000
    width = t / count
    heights: list[float] = [
        factor * (1 + (i * width) ** 2 / degrees) ** (-(degrees + 1) / 2) for i in range(count + 1)
    ]
    inner = 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2])
    return 0.5 + width / 3 * (heights[0] + inner + heights[-1])


@pytest.mark.parametrize(("degrees", "t"), list(enumerate(T_975, 1)))
def test_t_quantile_is_students(degrees: int, t: float) -> None:
    assert t_below(t, degrees) == pytest.approx(0.975, abs=1e-4)


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


def test_six_values_are_enough_for_ranks_and_five_are_not() -> None:
    """Of six values the extremes enclose 96.875 %, the next ones 78.125 %."""
    six = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]
    share = (0.96875 - 0.95) / (0.96875 - 0.78125)
    inward = 5 * share / (1 + 4 * share)
    summary = summarize([[value] for value in six])
    assert (summary.low, summary.high) == pytest.approx((10 + 10 * inward, 60 - 10 * inward))
    five = summarize([[value] for value in six[:5]])
    assert (five.low, five.high) == pytest.approx(by_t(six[:5]))
    assert five.high > 60


def test_fifteen_values_by_hand() -> None:
    """The 4th and the 12th enclose 96.48 %, the 5th and the 11th 88.15 %."""
    low, high = by_rank([float(i) for i in range(1, 16)])
    wide, narrow = (1 - 2 * sum(comb(15, i) for i in range(k)) / 2**15 for k in (4, 5))
    share = (wide - 0.95) / (wide - narrow)
    inward = 11 * share / (4 + 7 * share)
    assert (low, high) == pytest.approx((4 + inward, 12 - inward))


def test_a_time_of_zero_has_an_interval() -> None:
    low, high = by_t([0.0, 1.0, 2.0])
    assert 0 < low < 1 < high


def test_quantiles_by_hand() -> None:
    values = [4.0, 1.0, 2.0]
    found = [quantile(values, fraction) for fraction in (0, 0.25, 0.5, 0.75, 0.9, 1)]
    assert found == pytest.approx([1, 1.5, 2, 3, 3.6, 4])
    assert quantile([7.0], 0.3) == 7


def test_p05_and_p95_are_of_all_samples() -> None:
    summary = summarize([[float(i) for i in range(11)], [float(i) for i in range(11, 21)]])
    assert (summary.minimum, summary.p05, summary.p95) == (0, 1, 19)


def test_an_interval_in_percent_of_nothing_is_none() -> None:
    one = summarize([[1.0], [1.0]])
    assert replace(one, median=4.0, low=3.0, high=4.0).half_width_percent == 12.5
    assert replace(one, median=0.0).half_width_percent == 0


def test_outliers_are_ten_standard_deviations_off() -> None:
    """The median is 10, half of the samples are within 1 of it."""
    calm = [9.0, 9.0, 10.0, 11.0, 11.0]
    assert outliers([calm, [24.7], [-4.7]]) == 0
    assert outliers([calm, [24.9], [-4.9]]) == 2
    assert outliers([calm, [24.0], [-4.0]], limit=14) == 0
    assert outliers([calm, [30.0, 31.0, -40.0], calm]) == 3
    assert outliers([[1.0] * 9, [100.0]]) == 0


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
