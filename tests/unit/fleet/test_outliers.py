"""Who is slow in simulated fleets whose answer is known."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from math import exp, expm1, inf, isfinite, log1p, nan, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.fleet import outliers
from rooflab.fleet.outliers import (
    ALONE,
    HALF,
    NO_NOISE,
    NOT_PROVEN,
    TWO,
    UNSURE,
    Finding,
    Judgement,
    Noise,
    Rating,
    RowsByPoint,
    discoveries,
    judge,
    others_medians,
    p_value,
    pooled,
    spread,
    t_975,
)
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord

POINTS = tuple(f"{kind}{size}" for kind in ("dram", "fp16") for size in (1, 2, 3))
RESOURCES = {point: point[:4] for point in POINTS}


def row(
    time_us: float | None, low_us: float | None = None, high_us: float | None = None
) -> Measurement:
    times: dict[str, Any] = {"time_us": time_us, "time_lo_us": low_us, "time_hi_us": high_us}
    return Measurement(problem=ProblemRecord("gemm", "fp32", "1", {}, {}), kernel="k", **times)


def timing(time_us: float, half: float = 0.001) -> Measurement:
    return row(time_us, time_us * (1 - half), time_us * (1 + half))


def fleet(
    seed: int = 0,
    count: int = 64,
    processes: int = 3,
    noise: float = 0.005,
    slow: Mapping[tuple[int, str], float] | None = None,
    half: float = 0.001,
    common: bool = False,
) -> dict[str, list[RowsByPoint]]:
    """Members whose processes vary by ``noise``; those in ``slow`` take longer on a resource.

    With ``common`` the noise is that of a process, the same for all of its points.
    """
    random = np.random.default_rng(seed)

    def process(member: int) -> RowsByPoint:
        shared = random.normal(0, noise)
        times: dict[Hashable, Measurement] = {}
        for i, point in enumerate(POINTS):
            planted = (slow or {}).get((member, RESOURCES[point]), 0.0)
            moved = shared if common else random.normal(0, noise)
            times[point] = timing(10.0 * 3**i * (1 + planted) * float(np.exp(moved)), half)
        return times

    return {f"gpu-{i}": [process(i) for _ in range(processes)] for i in range(count)}


def judged(
    members: Mapping[str, Sequence[RowsByPoint]], threshold_percent: float = 1.0
) -> Judgement:
    return judge(members, RESOURCES, threshold_percent)


def accused(found: Sequence[Finding]) -> set[tuple[str, Any, str]]:
    return {(one.member, one.subject, one.verdict.value) for one in found if one.outlier}


def of(found: Sequence[Finding], member: str, subject: str = "fp16") -> Finding:
    (one,) = (one for one in found if (one.member, one.subject) == (member, subject))
    return one


def equal(
    time_us: float = 100.0, count: int = 8, processes: int = 2
) -> dict[str, list[RowsByPoint]]:
    """Members of a device without noise."""
    times: RowsByPoint = dict.fromkeys(POINTS, timing(time_us, 0.0))
    return {f"gpu-{i}": [dict(times) for _ in range(processes)] for i in range(count)}


def slower(process: RowsByPoint, by: float) -> RowsByPoint:
    return {point: timing((one.time_us or 0) * (1 + by), 0.0) for point, one in process.items()}


# Large fleets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("common", [False, True])
@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize("planted", [0.03, -0.03])
def test_a_planted_member_is_found(planted: float, processes: int, common: bool) -> None:
    for seed in range(3):
        members = fleet(seed, processes=processes, slow={(7, "fp16"): planted}, common=common)
        found = judged(members).resources
        verdict = "SLOW" if planted > 0 else "FAST"
        # A single process with its own luck of 0.5 % may be near the threshold.
        if processes > 1 or not common:
            assert accused(found) == {("gpu-7", "fp16", verdict)}
        one = of(found, "gpu-7")
        assert one.low is not None and one.high is not None and one.difference is not None
        assert one.low < planted < one.high
        assert one.difference == pytest.approx(planted, abs=0.012)
        assert one.noise.known == (processes > 1)


@pytest.mark.parametrize(("by", "verdicts"), [(0.00995, set()), (0.01005, {"SLOW"})])
def test_the_threshold_is_exact(by: float, verdicts: set[str]) -> None:
    members = equal()
    members["gpu-7"] = [slower(process, by) for process in members["gpu-7"]]
    assert {verdict for _, _, verdict in accused(judged(members).resources)} == verdicts


def test_an_innocent_fleet_has_no_outlier() -> None:
    alarms = 0
    for seed in range(100):
        found = judged(fleet(seed, processes=1 + seed % 3, common=seed % 2 == 0))
        alarms += len(accused(found.resources)) + len(accused(found.points))
    assert alarms <= 5


def test_false_discoveries_are_held_without_a_threshold() -> None:
    """Ten of 64 members are slow: at most 5 % of the accused are innocent, on average."""
    shares = []
    guilty = {f"gpu-{i}" for i in range(10)}
    for seed in range(25):
        members = fleet(seed, noise=0.002, slow={(i, "fp16"): 0.02 for i in range(10)})
        found = [one for one in judged(members, 0.0).resources if one.outlier]
        wrong = [one for one in found if one.member not in guilty or one.subject != "fp16"]
        assert len(found) - len(wrong) == 10
        shares.append(len(wrong) / len(found))
    assert np.mean(shares) < 0.05


def test_intervals_contain_the_truth() -> None:
    inside = [
        one.low < 0 < one.high
        for seed in range(20)
        for one in judged(fleet(seed)).resources
        if one.low is not None and one.high is not None
    ]
    assert 0.94 < np.mean(inside) < 0.995


def test_small_differences_are_even() -> None:
    members = fleet(noise=0.0001, slow={(3, "dram"): 0.008})
    found = judged(members)
    assert accused(found.resources) == set()
    assert accused(judged(members, 0.5).resources) == {("gpu-3", "dram", "SLOW")}


def test_a_difference_must_exceed_the_noise() -> None:
    members = fleet(noise=0.05, slow={(3, "dram"): 0.04})
    assert of(judged(members).resources, "gpu-3", "dram").verdict != Rating.SLOW


def test_an_unsteady_member_is_not_slow_and_hides_nobody() -> None:
    """One process of three is 30 % slow; and another member always is, by 3 %."""
    members = fleet(slow={(5, "fp16"): 0.03})
    members["gpu-9"][1] = slower(members["gpu-9"][1], 0.3)
    found = judged(members).resources
    assert accused(found) == {("gpu-5", "fp16", "SLOW")}
    assert (of(found, "gpu-9").half or 0) > 0.1


def test_one_point_of_a_resource_is_accused_alone() -> None:
    members = fleet(noise=0.001)
    for process in members["gpu-4"]:
        assert isinstance(process, dict)
        process["fp162"] = timing((process["fp162"].time_us or 0) * 1.02)
    found = judged(members)
    assert accused(found.points) == {("gpu-4", "fp162", "SLOW")}
    assert accused(found.resources) == set()


# Small fleets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_members_with_repeats(count: int) -> None:
    found = judged(fleet(1, count, slow={(1, "fp16"): 0.04})).resources
    assert accused(found) == {("gpu-1", "fp16", "SLOW")}


@pytest.mark.parametrize("count", [3, 4])
def test_few_members_without_repeats_are_undecided(count: int) -> None:
    found = judged(fleet(1, count, processes=1, slow={(1, "fp16"): 0.04})).resources
    one = of(found, "gpu-1")
    assert (one.verdict, one.reason) == (Rating.UNDECIDED, UNSURE)
    assert not one.noise.known
    assert one.noise.repeats is None and one.noise.members is not None
    assert (one.detectable or 0) > 0.04


def test_the_normal_two_of_three_are_not_fast() -> None:
    """The median of the others of a normal one lies between a normal and a slow one."""
    found = judged(fleet(2, 3, slow={(0, "fp16"): 0.5})).resources
    assert accused(found) == {("gpu-0", "fp16", "SLOW")}
    assert abs(of(found, "gpu-1").difference or 0) < 0.02


def test_two_members_that_differ() -> None:
    found = judged(fleet(3, 2, slow={(0, "fp16"): 0.1})).resources
    for member, sign in (("gpu-0", 1), ("gpu-1", -1)):
        one = of(found, member)
        assert (one.verdict, one.reason) == (Rating.UNDECIDED, TWO)
        assert (one.difference or 0) * sign > 0.08
    assert of(found, "gpu-0", "dram").verdict == Rating.EVEN


def test_two_members_without_repeats() -> None:
    for one in judged(fleet(3, 2, processes=1)).resources:
        assert (one.verdict, one.reason) == (Rating.UNDECIDED, NO_NOISE)
        assert one.difference is not None
        assert one.low is one.high is one.p is one.half is one.detectable is None


@pytest.mark.parametrize("count", [4, 6])
def test_two_halves_accuse_nobody(count: int) -> None:
    slow = {(i, "fp16"): 0.2 for i in range(count // 2)}
    found = judged(fleet(4, count, slow=slow)).resources
    assert {(one.verdict, one.reason) for one in found if one.subject == "fp16"} == {
        (Rating.UNDECIDED, HALF)
    }


def test_a_majority_is_normal() -> None:
    found = judged(fleet(4, 5, slow={(i, "fp16"): 0.2 for i in range(3)})).resources
    assert accused(found) == {("gpu-3", "fp16", "FAST"), ("gpu-4", "fp16", "FAST")}


@pytest.mark.parametrize("processes", [1, 3])
def test_one_member_has_nobody_to_compare_with(processes: int) -> None:
    found = judged(fleet(5, 1, processes))
    for one in (*found.resources, *found.points):
        assert (one.verdict, one.reason, one.others) == (Rating.UNDECIDED, ALONE, 0)
        assert one.difference is None
        assert (one.processes, one.points) == (0, 1 if one in found.points else 3)
        assert one.noise == Noise(None, None, None, 1.0, known=False)
        assert one.p is one.half is None


def test_no_members_and_no_points() -> None:
    empty: list[dict[str, list[RowsByPoint]]] = [{}, {"a": []}, {"a": [{}], "b": [{}]}]
    for members in empty:
        assert judged(members) == Judgement((), ())
    assert judge(fleet(count=3), {}) == Judgement((), ())


# Missing points, no noise, damaged files ---------------------------------------------------------


def test_missing_points() -> None:
    members = fleet(6, 8, slow={(2, "fp16"): 0.05})
    members["gpu-0"] = [{"dram1": members["gpu-0"][0]["dram1"]}]
    members["gpu-2"][1] = {}
    members["gpu-3"] = []
    found = judged(members)
    assert accused(found.resources) == {("gpu-2", "fp16", "SLOW")}
    assert of(found.resources, "gpu-2").processes == 2
    assert of(found.resources, "gpu-0", "dram").points == 1
    assert {one.member for one in found.points if one.subject == "fp161"} == {
        f"gpu-{i}" for i in (1, 2, 4, 5, 6, 7)
    }


def test_a_missing_point_does_not_move_the_others() -> None:
    """Points differ in time by far; differences are taken point by point."""
    members = equal(count=5)
    for processes in members.values():
        for i, process in enumerate(processes):
            processes[i] = {p: timing(10.0**j, 0.0) for j, p in enumerate(process)}
    first = members["gpu-1"]
    first[0] = {p: time for p, time in first[0].items() if p != "fp163"}
    assert {one.difference for one in judged(members).resources} == {0.0}


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_equal_members_never_accuse(count: int, processes: int) -> None:
    found = judged(equal(count=count, processes=processes), 0.0)
    for one in (*found.resources, *found.points):
        assert not one.outlier
        assert one.difference == 0


@pytest.mark.parametrize("processes", [1, 2])
def test_constant_times(processes: int) -> None:
    members = equal(processes=processes)
    members["gpu-1"] = [slower(one, 0.02) for one in members["gpu-1"]]
    members["gpu-2"] = [slower(one, 0.005) for one in members["gpu-2"]]
    found = judged(members).resources
    assert accused(found) == {("gpu-1", "dram", "SLOW"), ("gpu-1", "fp16", "SLOW")}
    assert of(found, "gpu-1").difference == pytest.approx(0.02)


ABSURD = [0.0, -1.0, inf, -inf, nan, 1e-300, 1e300, None]


@pytest.mark.parametrize("absurd", ABSURD)
def test_absurd_times_count_as_missing(absurd: float | None) -> None:
    members = fleet(7, 8, slow={(2, "fp16"): 0.05})
    members["gpu-1"] = [dict.fromkeys(POINTS, row(absurd, absurd, absurd))] * 3
    found = judged(members)
    assert accused(found.resources) == {("gpu-2", "fp16", "SLOW")}
    assert "gpu-1" not in {one.member for one in (*found.resources, *found.points)}


@pytest.mark.parametrize("absurd", ABSURD)
def test_absurd_intervals_are_ignored(absurd: float | None) -> None:
    members = fleet(7, 8, slow={(2, "fp16"): 0.05})
    times = members["gpu-2"][0]
    members["gpu-2"][0] = {p: row(t.time_us, absurd, t.time_hi_us) for p, t in times.items()}
    assert accused(judged(members).resources) == {("gpu-2", "fp16", "SLOW")}


def test_a_member_with_wide_intervals_is_undecided_and_harms_nobody() -> None:
    members = fleet(8, 16, slow={(2, "fp16"): 0.05, (3, "fp16"): 0.05})
    members["gpu-3"] = [
        {p: row(t.time_us, 1e-5, 1e14) for p, t in one.items()} for one in members["gpu-3"]
    ]
    found = judged(members).resources
    assert accused(found) == {("gpu-2", "fp16", "SLOW")}
    assert of(found, "gpu-3").reason == UNSURE


any_time = st.sampled_from([0.0, -1.0, inf, nan, 2e-6, 1e14, 100.0, 101.0, 130.0, None])
any_process = st.dictionaries(st.sampled_from(POINTS), st.builds(row, any_time, any_time, any_time))
any_fleet = st.dictionaries(st.sampled_from("abcdef"), st.lists(any_process, max_size=3))


@given(any_fleet)
def test_any_file_has_finite_findings(members: dict[str, list[RowsByPoint]]) -> None:
    found = judged(members)
    for one in (*found.resources, *found.points):
        figures = (one.difference, one.low, one.high, one.half, one.p, one.detectable)
        assert all(figure is None or isfinite(figure) for figure in figures)
        assert one.verdict == Rating.UNDECIDED or one.reason == ""
        assert (one.verdict == Rating.UNDECIDED) == bool(one.reason)
        assert one.p is None or 0 <= one.p <= 1
        if one.low is not None and one.high is not None and one.difference is not None:
            assert one.low <= one.difference <= one.high


@given(st.integers(0, 10**6), st.integers(2, 7), st.integers(1, 3), st.sampled_from([0.25, 1024.0]))
def test_only_ratios_and_no_order_matter(
    seed: int, count: int, processes: int, factor: float
) -> None:
    members = fleet(seed, count, processes, slow={(0, "fp16"): 0.04})

    def scaled(process: RowsByPoint) -> RowsByPoint:
        return {p: timing((t.time_us or 0) * factor) for p, t in reversed(list(process.items()))}

    again = {name: list(map(scaled, them)) for name, them in reversed(members.items())}
    for one in judged(members).resources:
        other = of(judged(again).resources, one.member, str(one.subject))
        assert (one.verdict, one.reason) == (other.verdict, other.reason)
        assert one.difference == pytest.approx(other.difference, abs=1e-9)


# Statistics --------------------------------------------------------------------------------------

T_975 = {1: 12.706, 2: 4.303, 3: 3.182, 5: 2.571, 10: 2.228, 30: 2.042}


@pytest.mark.parametrize(("degrees", "exact"), T_975.items())
def test_students_t(degrees: int, exact: float) -> None:
    """Against NIST's table: conservative at one and two degrees, exact from five on."""
    assert p_value(t_975(degrees), degrees) == pytest.approx(0.05, abs=1e-6)
    assert 0.05 <= p_value(exact, degrees) < (0.066 if degrees == 1 else 0.054)
    if degrees >= 5:
        assert t_975(degrees) == pytest.approx(exact, rel=0.01)


def test_small_p_values_are_not_rounded_to_zero() -> None:
    assert 0 < p_value(20, 1000) < 1e-50
    assert p_value(0, 3) == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_spread_is_a_standard_deviation(seed: int) -> None:
    values = np.random.default_rng(seed).normal(5, 2, 20_001).tolist()
    assert spread(values) == pytest.approx(2, rel=0.05)
    assert spread([*values, 1e9, -1e9]) == pytest.approx(2, rel=0.05)
    assert spread([1.0]) is None


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("count", [4, 2000])
def test_pooled_noise(size: int, count: int) -> None:
    random = np.random.default_rng(size)
    found = [pooled(random.normal(0, 2, (count, size)).tolist()) for _ in range(400 // count + 2)]
    assert np.mean([one[0] ** 2 for one in found if one]) == pytest.approx(4, rel=0.15)
    assert pooled([[1.0], [2.0]]) is None


def test_benjamini_and_hochbergs_example() -> None:
    """The p-values of section 4 of their paper: four of fifteen are discoveries."""
    values = [0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459]
    values += [0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000]
    assert discoveries(values, 0.05) == 0.0095
    assert discoveries([0.9, 0.8]) == -1
    assert discoveries([]) == -1


FACTORS = {
    2: 1.196,
    3: 1.495,
    4: 1.363,
    5: 1.206,
    6: 1.200,
    7: 1.140,
    8: 1.129,
    9: 1.107,
    10: 10 / 9.2,
    25: 25 / 24.2,
}
"""Croux and Rousseeuw, table 1 and the rule below it."""


@pytest.mark.parametrize(("count", "factor"), FACTORS.items())
def test_a_spread_of_few_values_by_hand(count: int, factor: float) -> None:
    values = [float(i) for i in range(count)]
    deviations = sorted(abs(value - (count - 1) / 2) for value in values)
    middle = (deviations[(count - 1) // 2] + deviations[count // 2]) / 2
    assert spread(values) == pytest.approx(1.4826 * factor * middle)


def test_pooled_noise_by_hand() -> None:
    """Variances of 3 and 2, with two and one degree of freedom."""
    sd, degrees = pooled([[0, 0, 3], [5], [0, 2]]) or (0, 0)
    assert sd**2 == pytest.approx((3 * 2 + 2 * 1) / 3)
    assert degrees == 3
    pairs = [[0.0, 2.0 * i] for i in range(8)]  # variances of 2 i²
    sd, degrees = pooled(pairs[:7]) or (0, 0)
    assert sd**2 == pytest.approx(2 * sum(i * i for i in range(7)) / 7)
    assert degrees == 7
    sd, degrees = pooled(pairs) or (0, 0)
    middle = (2 * 9 + 2 * 16) / 2
    assert sd**2 == pytest.approx(middle / (1 - 2 / 9) ** 3)
    assert degrees == pytest.approx(0.37 * 8)


def test_a_p_value_at_the_limit_is_a_discovery() -> None:
    assert discoveries([0.05], 0.05) == 0.05
    assert discoveries([0.025, 0.06], 0.05) == 0.025
    assert discoveries([0.026, 0.06], 0.05) == -1
    assert discoveries([0.04, 0.05], 0.05) == 0.05


# One point by hand -------------------------------------------------------------------------------


def logs(*values: float, half: float = 0.0) -> list[RowsByPoint]:
    """Processes with these logarithms of their time, and of half of their interval."""
    return [{"p": row(exp(v), exp(v - half), exp(v + half))} for v in values]


def judged_point(
    members: Mapping[str, Sequence[RowsByPoint]], percent: float = 1.0
) -> list[Finding]:
    return list(judge(members, {"p": "dram"}, percent).points)


def variance_of_median(count: float) -> float:
    """Over that of one value: Cramér's π/2 for many of them."""
    return (pi / 2) / (count - 1 + pi / 2)


def test_an_interval_by_hand() -> None:
    a, b, c = judged_point(
        {"a": logs(0.11, 0.09), "b": logs(0.02, 0.0), "c": logs(0.01, -0.01)}, 1.0
    )
    noise = sqrt((0.02**2 / 2 + 0.02**2 / 2 + 0.02**2 / 2) / 3)
    assert a.noise.known
    assert a.noise.repeats == a.noise.used == pytest.approx(noise)
    assert a.noise.degrees == 3
    assert (a.others, a.points, a.processes) == (2, 1, 2)
    # Of the others, at 0.01 and 0.00, the nearer one counts.
    assert a.difference == pytest.approx(expm1(0.10 - 0.01))
    assert b.difference == pytest.approx(expm1(0.01 - 0.01), abs=1e-12)
    own = noise * sqrt(variance_of_median(2))
    error = sqrt(own**2 + noise**2 * variance_of_median(2) * variance_of_median(2))
    t = t_975(3)
    assert a.half == pytest.approx(expm1(t * own))
    assert a.low == pytest.approx(expm1(0.09 - t * error))
    assert a.high == pytest.approx(expm1(0.09 + t * error))
    assert a.p == pytest.approx(p_value(0.09 / error, 3))
    assert a.detectable == pytest.approx(expm1(max(log1p(0.01), noise) + t * error))
    assert (a.verdict, b.verdict, c.verdict) == (Rating.SLOW, Rating.EVEN, Rating.EVEN)


def test_without_repeats_the_members_are_the_noise() -> None:
    values = {"a": 0.0, "b": 0.01, "c": 0.02, "d": 0.04}
    found = judged_point({name: logs(value) for name, value in values.items()})
    # Their places: less the median, 0.015.
    noise = spread([-0.015, -0.005, 0.005, 0.025])
    assert [one.noise.used for one in found] == [pytest.approx(noise)] * 4
    assert [one.noise.degrees for one in found] == [pytest.approx(0.37 * 3)] * 4
    assert not any(one.noise.known or one.noise.repeats for one in found)


def test_repeats_are_believed_from_five_degrees_on_or_from_as_many_as_members_give() -> None:
    many = {f"m{i}": logs(0.01 * i) for i in range(20)}
    few = {**many, **{f"m{i}": logs(0.0, 0.001) for i in range(4)}}
    enough = {**many, **{f"m{i}": logs(0.0, 0.001) for i in range(5)}}
    assert not any(one.noise.known for one in judged_point(few))
    assert all(one.noise.known for one in judged_point(enough))
    # Three members give one degree of freedom themselves.
    assert all(
        one.noise.known
        for one in judged_point({"a": logs(0.0, 0.01), "b": logs(0.0), "c": logs(0.01)})
    )


def test_no_noise_is_smaller_than_the_error_of_a_process() -> None:
    """Half of a 95 % interval is 1.96 standard errors; of two points the mean has less."""
    found = judged_point({name: logs(0.0, 0.0, half=0.0196) for name in "abc"})
    assert [one.noise.used for one in found] == [pytest.approx(0.01, rel=1e-4)] * 3
    both: RowsByPoint = dict.fromkeys("pq", row(1.0, exp(-0.0196), exp(0.0196)))
    together = judge({name: [both, both] for name in "abc"}, {"p": "dram", "q": "dram"}).resources
    error = pytest.approx(0.01 / sqrt(2), rel=1e-4)
    assert [one.noise.used for one in together] == [error] * 3
    exact = judged_point({name: logs(0.0, 0.0) for name in "abc"})
    assert {one.noise.used for one in exact} == {1e-6}


def test_an_unsteady_member_has_its_own_noise() -> None:
    steady = {name: logs(0.001, -0.001) for name in "bcdefgh"}
    one = judged_point({"a": logs(0.1, -0.1), **steady})[0]
    own = sqrt(2 * 0.1**2) * sqrt(variance_of_median(2))
    assert one.half == pytest.approx(expm1(t_975(one.noise.degrees) * own))


@pytest.mark.parametrize(("percent", "verdict"), [(0.99, "EVEN"), (1.01, "SLOW")])
def test_the_threshold_is_of_times(percent: float, verdict: str) -> None:
    members = {name: logs(0.0, 0.0) for name in "bcdefgh"}
    one = judged_point({"a": logs(*[log1p(percent / 100)] * 2), **members})[0]
    assert one.verdict == verdict


def test_what_may_be_chance_among_many_tests_is_not_proven() -> None:
    """One of many points is clear of noise and threshold, but not by as much as so many need."""
    random = np.random.default_rng(3)
    points = {f"p{i}": "dram" for i in range(400)}
    members: dict[str, list[RowsByPoint]] = {
        f"m{i}": [{p: row(float(exp(random.normal(0, 0.01)))) for p in points} for _ in range(2)]
        for i in range(4)
    }
    found = judge(members, points, 0.0).points
    assert NOT_PROVEN in {one.reason for one in found}
    assert not any(one.outlier for one in found)


def test_an_interval_without_end_is_finite() -> None:
    far: list[RowsByPoint] = [{"p": row(1.1e-6)}, {"p": row(0.9e15)}]
    for one in judged_point({"a": far, "b": logs(0.0)}):
        assert (one.high, one.low) == (expm1(700.0), -1)


@given(st.lists(st.integers(0, 20), min_size=2, max_size=9))
def test_the_median_of_the_others(values: list[int]) -> None:
    found = others_medians({str(i): float(value) for i, value in enumerate(values)})
    for i, value in enumerate(values):
        others = sorted(values[:i] + values[i + 1 :])
        middle = others[(len(others) - 1) // 2], others[len(others) // 2]
        assert found[str(i)] == min(max(value, middle[0]), middle[1])


def test_the_page_has_the_thresholds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "fleet.md").read_text()
    for text in (
        f"| threshold | {outliers.THRESHOLD_PERCENT:g} % |",
        f"| false discoveries | {outliers.FALSE_DISCOVERIES:.0%} |".replace("%", " %"),
        f"| degrees of freedom for the noise | {outliers.ENOUGH:g} |",
        f"| members for a robust noise | {outliers.ROBUST_FROM} |",
        f"| degrees of freedom of a median | {outliers.ROBUST_SHARE:g} |",
    ):
        assert text in page
