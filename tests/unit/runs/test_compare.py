from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from math import exp, inf
from typing import Any

import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from rooflab.errors import UsageError
from rooflab.measure.statistics import summarize
from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.report.comparison import comparison_json
from rooflab.report.text import interval_percent
from rooflab.report.verdicts import sentence
from rooflab.runs.compare import Comparison, Difference, Verdict, compare
from rooflab.runs.manifest import KernelRecord
from rooflab.runs.store import RunData
from rooflab.workloads import build
from rooflab.workloads.gemm import Gemm

ROOFLINE = synthetic.h200_roofline()
ROW = Measurement(problem=synthetic.gemm(64, 64, 64).record, kernel="tiled", cache="cold")


def run(*rows: Measurement, facts: dict[str, Fact] | None = None, **manifest: Any) -> RunData:
    return synthetic.run("NVIDIA H200", ROOFLINE, list(rows), facts, **manifest)


def timed(time: float, half: float, sm_mhz: float | None = None, **other: Any) -> Measurement:
    """A row of ``time`` ± ``half`` microseconds."""
    figures = {"time_us": time, "time_lo_us": time - half, "time_hi_us": time + half}
    return replace(ROW, sm_mhz=sm_mhz, **(figures | other))


def judge(base: Measurement, new: Measurement, threshold: float = 0.5) -> tuple[Verdict, str]:
    (point,) = compare(run(base), run(new), threshold).points
    assert bool(point.reason) == (point.verdict == Verdict.AMBIGUOUS)
    return point.verdict, point.reason


# --- the rule, by hand -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "new", "verdict", "reason"),
    [
        ((100, 0.2), (101, 0.2), Verdict.SLOW, ""),
        ((101, 0.2), (100, 0.2), Verdict.FAST, ""),
        # A gap of exactly the threshold counts.
        ((100, 0.25), (101, 0.25), Verdict.SLOW, ""),
        # Wide intervals show a large change all the same.
        ((100, 5), (150, 5), Verdict.SLOW, ""),
        ((100, 0.5), (100.9, 0.5), Verdict.SAME, ""),
        ((100, 0.5), (101, 0.5), Verdict.SAME, ""),  # they touch
        ((100, 0.1), (100.4, 0.1), Verdict.SAME, ""),  # apart, yet under the threshold
        ((100, 0), (100, 0), Verdict.SAME, ""),
        (
            (100, 0.4),
            (101.2, 0.4),
            Verdict.AMBIGUOUS,
            "intervals apart, but by less than 0.5 %",
        ),
        ((100, 0.6), (100, 0.1), Verdict.AMBIGUOUS, "interval wider than ±0.5 %"),
        ((100, 0.1), (100, 0.6), Verdict.AMBIGUOUS, "interval wider than ±0.5 %"),
        ((100, 3), (104, 3), Verdict.AMBIGUOUS, "interval wider than ±0.5 %"),
    ],
)
def test_time_alone(
    base: tuple[float, float], new: tuple[float, float], verdict: Verdict, reason: str
) -> None:
    assert judge(timed(*base), timed(*new)) == (verdict, reason)


def test_the_threshold_is_the_users() -> None:
    base, new = timed(100, 0.4), timed(103, 0.4)
    assert judge(base, new, 2)[0] == Verdict.SLOW
    assert judge(base, new, 5)[0] == Verdict.SAME
    assert judge(base, new, 2.5) == (Verdict.AMBIGUOUS, "intervals apart, but by less than 2.5 %")
    assert judge(base, new, 0)[0] == Verdict.SLOW
    assert judge(timed(100, 0), timed(100, 0), 0)[0] == Verdict.SAME


@pytest.mark.parametrize(
    ("base_mhz", "new_mhz", "new_time", "reason"),
    [
        (1980, 1800, 110, "slower in time, the same in cycles (1980 → 1800 MHz)"),
        (1980, 1500, 110, "slower in time, faster in cycles (1980 → 1500 MHz)"),
        (1800, 1980, 100 / 1.1, "faster in time, the same in cycles (1800 → 1980 MHz)"),
        (1800, 1980, 100, "the same in time, slower in cycles (1800 → 1980 MHz)"),
    ],
)
def test_clocks_that_differ(base_mhz: float, new_mhz: float, new_time: float, reason: str) -> None:
    base, new = timed(100, 0.1, base_mhz), timed(new_time, 0.1, new_mhz)
    assert judge(base, new) == (Verdict.AMBIGUOUS, reason)


ODD_CLOCKS = [None, 0, -1980, float("nan"), float("inf")]


@pytest.mark.parametrize(
    ("base_mhz", "new_mhz"),
    [(1980, 1980), (1980, 1990), (None, 1980), (-1980, 1980), *((1980, mhz) for mhz in ODD_CLOCKS)],
)
def test_alike_clocks_and_one_that_makes_no_sense_decide_nothing(
    base_mhz: float | None, new_mhz: float | None
) -> None:
    assert judge(timed(100, 0.1, base_mhz), timed(110, 0.1, new_mhz)) == (Verdict.SLOW, "")


@pytest.mark.parametrize(
    "missing",
    [
        {"time_us": None},
        {"time_lo_us": None},
        {"time_hi_us": float("inf")},
        {"time_us": float("nan")},
        {"time_us": 0.0},
    ],
)
def test_no_interval_no_verdict(missing: dict[str, Any]) -> None:
    whole, torn = timed(100, 0.1), timed(200, 0.1, **missing)
    assert judge(whole, torn) == (Verdict.AMBIGUOUS, "no interval in NEW")
    assert judge(torn, whole) == (Verdict.AMBIGUOUS, "no interval in BASE")
    assert judge(torn, torn) == (Verdict.AMBIGUOUS, "no interval in BASE and NEW")


def test_what_an_empty_launch_explains_is_no_change() -> None:
    base, new = timed(4.8, 0.01, launch_us=1.29), timed(5.0, 0.01, launch_us=1.38)
    assert judge(base, new) == (
        Verdict.AMBIGUOUS,
        "an empty launch changed too: 1.29 → 1.38 µs",
    )
    assert judge(base, replace(new, launch_us=1.31))[0] == Verdict.SLOW
    assert judge(base, timed(5.1, 0.01, launch_us=1.38))[0] == Verdict.SLOW
    assert judge(timed(480, 1), timed(500, 1))[0] == Verdict.SLOW
    assert compare(run(base), run(new), 0.5).differences == [
        Difference("an empty launch", "1.29 µs", "1.38 µs")
    ]


def test_an_empty_launch_explains_up_to_three_times_its_change() -> None:
    base = timed(4.0, 0.01, launch_us=1.0)
    assert judge(base, timed(4.375, 0.01, launch_us=1.125))[0] == Verdict.AMBIGUOUS
    assert judge(base, timed(4.376, 0.01, launch_us=1.125))[0] == Verdict.SLOW
    assert judge(base, timed(3.625, 0.01, launch_us=0.875))[0] == Verdict.AMBIGUOUS
    assert judge(base, timed(3.624, 0.01, launch_us=0.875))[0] == Verdict.FAST
    assert judge(base, timed(4.375, 0.01))[0] == Verdict.SLOW


def test_a_tenth_of_an_empty_launch_is_no_change() -> None:
    base = timed(4.0, 0.01, launch_us=1.5)
    for other in (4.149, 3.851):
        verdict, reason = judge(base, timed(other, 0.01, launch_us=1.5))
        assert verdict == Verdict.AMBIGUOUS
        assert reason == "0.15 µs apart: one launch differs from itself by as much"
    assert judge(base, timed(4.151, 0.01, launch_us=1.5))[0] == Verdict.SLOW
    assert judge(base, timed(3.849, 0.01, launch_us=1.5))[0] == Verdict.FAST
    assert judge(base, timed(4.001, 0.01, launch_us=1.5))[0] == Verdict.SAME


@pytest.mark.parametrize(
    ("now", "named"), [(1.019, False), (1.021, True), (0.979, True), (0.985, False)]
)
def test_a_launch_that_changed_by_two_percent_is_named(now: float, named: bool) -> None:
    """The median over the points."""
    kernels = ("a", "b", "c")
    base = [replace(timed(100, 0.1, launch_us=2.0), kernel=name) for name in kernels]
    times = (2 * now, 2 * now, 9.0)
    new = [replace(row, launch_us=us) for row, us in zip(base, times, strict=True)]
    found = compare(run(*base), run(*new), 0.5).differences
    assert [one.name for one in found] == ["an empty launch"] * named


@pytest.mark.parametrize(
    ("base", "new", "verdict"),
    [
        # An old run has NVML's clock in ``sm_mhz``: it is compared with NVML's.
        ((1980, None), (1500, 1980), Verdict.SLOW),
        ((1500, 1980), (1980, None), Verdict.SLOW),
        ((1980, None), (1980, 1500), Verdict.AMBIGUOUS),
        ((1980, 1500), (1980, 1980), Verdict.SLOW),
        ((1980, 1980), (1500, 1980), Verdict.AMBIGUOUS),
    ],
)
def test_clocks_of_one_kind_are_compared(
    base: tuple[float, float | None], new: tuple[float, float | None], verdict: Verdict
) -> None:
    before = timed(100, 0.1, base[0], nvml_mhz=base[1])
    after = timed(110, 0.1, new[0], nvml_mhz=new[1])
    assert judge(before, after)[0] == verdict


@pytest.mark.parametrize(
    ("change", "half", "unclear"),
    [(0.5, 0.6, 1), (0.4, 0.6, 0), (5, 9, 1), (-5, 9, 0), (0.5, 0.25, 0)],
)
def test_unclear_points_may_be_slower(change: float, half: float, unclear: int) -> None:
    found = compare(run(timed(100, half)), run(timed(100 + change, half)), 0.5)
    assert found.unclear == unclear
    lost = compare(run(timed(100, half)), run(timed(100, half, time_us=None)), 0)
    assert (lost.counts[Verdict.AMBIGUOUS], lost.unclear) == (1, 1)


def test_every_verdict_is_counted() -> None:
    times = {"a": 100, "b": 110, "c": 90, "d": 90}
    base = [replace(timed(100, 0.1), kernel=name) for name in times]
    new = [replace(timed(us, 0.1), kernel=name) for name, us in times.items()]
    counts = compare(run(*base), run(*new), 0.5).counts
    assert counts == {
        Verdict.SLOW: 1,
        Verdict.AMBIGUOUS: 0,
        Verdict.FAST: 2,
        Verdict.SAME: 1,
    }


def test_the_change_comes_with_what_the_intervals_leave_possible() -> None:
    (point,) = compare(run(timed(200, 1)), run(timed(210, 2)), 0.5).points
    assert point.change_percent == pytest.approx(5)
    assert point.change_lo_percent == pytest.approx(100 * (208 / 201 - 1))
    assert point.change_hi_percent == pytest.approx(100 * (212 / 199 - 1))


def test_no_time_falls_by_more_than_all_of_it() -> None:
    (point,) = compare(run(timed(200, 190)), run(timed(100, 95)), 0.5).points
    assert point.change_lo_percent is not None
    assert -100 < point.change_lo_percent < -98
    (old,) = compare(run(timed(200, 200)), run(timed(100, 95)), 0.5).points
    assert (old.change_lo_percent, old.change_hi_percent) == (None, None)


# --- the rule, for every input -----------------------------------------------------------------

TIMES = st.floats(0.5, 1e7)
CLOCKS = st.none() | st.floats(100, 4000)
THRESHOLDS = st.sampled_from([0.0, 0.1, 0.5, 5.0, 200.0])
ODD = st.none() | st.floats() | st.just(0.0)


@st.composite
def rows(draw: st.DrawFn) -> Measurement:
    time = draw(TIMES)
    low, high = (draw(st.sampled_from([0, 1e-4, 0.004, 0.005, 0.006, 1])) for _ in "lh")
    return replace(
        ROW,
        time_us=time,
        time_lo_us=time * (1 - low),
        time_hi_us=time * (1 + high),
        sm_mhz=draw(CLOCKS),
    )


@st.composite
def neighbours(draw: st.DrawFn) -> tuple[Measurement, Measurement]:
    """Two rows, near each other, so that every verdict comes up."""
    base, new = draw(rows()), draw(rows())
    factor = draw(st.sampled_from([1, 1.004, 1.005, 1.0051, 1.01, 1.02, 1.5])) ** draw(
        st.sampled_from([-1, 1])
    )
    assert base.time_us
    assert new.time_us
    scale = base.time_us * factor / new.time_us
    times = {name: getattr(new, name) * scale for name in ("time_us", "time_lo_us", "time_hi_us")}
    return base, replace(new, **times)


SWAPPED = {
    Verdict.SLOW: Verdict.FAST,
    Verdict.FAST: Verdict.SLOW,
    Verdict.SAME: Verdict.SAME,
    Verdict.AMBIGUOUS: Verdict.AMBIGUOUS,
}


@given(neighbours() | st.tuples(rows(), rows()), THRESHOLDS)
def test_swapping_the_runs_swaps_fast_and_slow(
    pair: tuple[Measurement, Measurement], threshold: float
) -> None:
    verdict, _ = judge(*pair, threshold)
    assert judge(pair[1], pair[0], threshold)[0] == SWAPPED[verdict]


@given(rows(), THRESHOLDS)
def test_a_run_is_neither_faster_nor_slower_than_itself(row: Measurement, threshold: float) -> None:
    verdict, reason = judge(row, row, threshold)
    assert verdict == Verdict.SAME or reason.startswith("interval wider than")


@given(neighbours(), THRESHOLDS)
def test_a_verdict_keeps_its_promise(
    pair: tuple[Measurement, Measurement], threshold: float
) -> None:
    base, new = pair
    verdict, _ = judge(base, new, threshold)
    (point,) = compare(run(base), run(new), threshold).points
    low, high = point.change_lo_percent, point.change_hi_percent
    assert point.change_percent is not None
    if low is None or high is None:
        assert base.time_lo_us is not None
        assert base.time_lo_us <= 0
        low, high = -inf, inf
    assert -100 <= low <= high or low == -inf
    if verdict == Verdict.SLOW:
        assert point.change_percent >= threshold * (1 - 1e-9)
        assert low > 0 or low == -inf
    if verdict == Verdict.FAST:
        assert high < 0
    if verdict == Verdict.SAME:
        for row in pair:
            assert (half := interval_percent(row)) is not None
            assert half <= threshold + 1e-9


@given(ODD, ODD, ODD, ODD, rows(), THRESHOLDS)
def test_every_input_gets_one_verdict_and_is_written(
    time: float | None,
    low: float | None,
    high: float | None,
    clock: float | None,
    other: Measurement,
    threshold: float,
) -> None:
    odd = replace(ROW, time_us=time, time_lo_us=low, time_hi_us=high, sm_mhz=clock)
    for pair in ((odd, other), (other, odd), (odd, odd)):
        compared = compare(run(pair[0]), run(pair[1]), threshold)
        assert sum(compared.counts.values()) == 1
        json.loads(comparison_json(compared), parse_constant=pytest.fail)
        assert judge(pair[1], pair[0], threshold)[0] == SWAPPED[compared.points[0].verdict]


@given(neighbours(), st.floats(1.5, 3))
def test_a_lower_clock_alone_is_no_regression(
    pair: tuple[Measurement, Measurement], slowdown: float
) -> None:
    base = replace(pair[0], sm_mhz=1980.0)
    times = {
        name: getattr(base, name) * slowdown for name in ("time_us", "time_lo_us", "time_hi_us")
    }
    new = replace(base, sm_mhz=1980 / slowdown, **times)
    assert judge(base, new)[0] == Verdict.AMBIGUOUS


# --- one sweep made twice ----------------------------------------------------------------------


def measured(draw: random.Random, us: float, noise: float) -> Measurement:
    """A row from rounds with noise, which end as a sweep's do: at ±0.5 %, or after forty."""
    rounds = [[us * exp(draw.gauss(0, noise))] for _ in range(10)]
    while (found := summarize(rounds)).half_width_percent > 0.5 and len(rounds) < 40:
        rounds.append([us * exp(draw.gauss(0, noise))])
    return replace(ROW, time_us=found.median, time_lo_us=found.low, time_hi_us=found.high)


@pytest.mark.parametrize("noise", [0.001, 0.005, 0.02])
def test_noise_is_no_change_and_hides_none_that_matters(noise: float) -> None:
    draw = random.Random(2)
    same = Counter(
        judge(measured(draw, 100, noise), measured(draw, 100, noise))[0] for _ in range(300)
    )
    assert same[Verdict.SLOW] + same[Verdict.FAST] <= 1
    change = 1.01 + 5 * noise
    slower = Counter(
        judge(measured(draw, 100, noise), measured(draw, 100 * change, noise))[0]
        for _ in range(100)
    )
    assert slower[Verdict.SLOW] >= 95
    assert slower[Verdict.FAST] == slower[Verdict.SAME] == 0


# --- matching ----------------------------------------------------------------------------------


def named(kernel: str, **other: Any) -> Measurement:
    """A row of a kernel; parameters of GEMM may be given."""
    sizes = {"m": 64, "n": 64, "k": 64}
    parameters = {k: other.pop(k) for k in list(other) if k in Gemm.parameters()}
    problem = synthetic.gemm(precision="fp32", **(sizes | parameters))
    return timed(100, 0.1, kernel=kernel, problem=problem.record, **other)


def bad(kernel: str, status: str) -> Measurement:
    return replace(ROW, kernel=kernel, status=status, reason="why", cache="")


def test_the_last_row_of_a_point_counts() -> None:
    compared = compare(run(timed(500, 0.1), timed(100, 0.1)), run(timed(100, 0.1)), 0.5)
    assert [point.verdict for point in compared.points] == [Verdict.SAME]


def test_points_of_one_run_only_are_listed() -> None:
    compared = compare(run(named("a"), named("b")), run(named("c"), named("b")), 0.5)
    assert [row.kernel for row in compared.only_base] == ["a"]
    assert [row.kernel for row in compared.only_new] == ["c"]
    assert [point.base.kernel for point in compared.points] == ["b"]
    assert sentence(compared) == ("1 point in common: 1 SAME; 1 only in BASE, 1 only in NEW.")


def test_points_with_another_beta_are_other_points() -> None:
    compared = compare(run(named("a")), run(named("a"), named("a", beta=1.0)), 0.5)
    assert [row.problem.settings["beta"] for row in compared.only_new] == [1.0]


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [
        ("ok", "incorrect", True),
        ("ok", "failed", True),
        ("ok", "timeout", True),
        ("ok", "skipped", False),
        ("incorrect", "ok", False),
        ("failed", "incorrect", False),
    ],
)
def test_a_change_of_status(before: str, after: str, broken: bool) -> None:
    base, new = (named("b") if status == "ok" else bad("b", status) for status in (before, after))
    compared = compare(run(named("a"), base), run(named("a"), new), 0.5)
    (change,) = compared.status_changes
    assert (change.base.status, change.new.status) == (before, after)
    assert (change.broken, compared.broken) == (broken, int(broken))
    assert [point.base.kernel for point in compared.points] == ["a"]


def test_what_failed_in_both_is_counted() -> None:
    compared = compare(run(bad("a", "failed")), run(bad("a", "failed")), 0.5)
    assert sentence(compared) == ("1 point in common: 1 without figures in both.")


# --- refusals ----------------------------------------------------------------------------------


def refused(base: RunData, new: RunData, threshold: float = 0.5) -> str:
    with pytest.raises(UsageError) as error:
        compare(base, new, threshold)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_other_devices_do_not_compare() -> None:
    gpu, cpu = synthetic.h200_run(["fp32"]), synthetic.cpu_run()
    assert "the kind of device is cuda in BASE and cpu in NEW" in refused(gpu, cpu)
    other = synthetic.run("NVIDIA A100", ROOFLINE, [ROW])
    assert "the device is NVIDIA H200 in BASE and NVIDIA A100 in NEW" in refused(run(ROW), other)


def test_other_data_do_not_compare() -> None:
    plain, zeros = run(named("a")), run(named("a"), config={"fill": "zeros"})
    assert "fill is uniform in BASE and zeros in NEW" in refused(plain, zeros)
    compare(plain, run(named("a"), config={"fill": "uniform"}), 0.5)


def test_another_cache_state_does_not_compare() -> None:
    cold, warm = run(named("a")), run(named("a", cache="warm"))
    assert "cache is cold in BASE and warm in NEW" in refused(cold, warm)
    cold, warm = (run(named("a"), config={"cache": state}) for state in ("cold", "warm"))
    assert "cache is cold in BASE and warm in NEW" in refused(cold, warm)


def test_a_run_without_the_state_of_the_cache_is_compared() -> None:
    for base, new in (("", "warm"), ("cold", ""), ("", "")):
        compared = compare(run(named("a", cache=base)), run(named("a", cache=new)), 0.5)
        assert [point.verdict for point in compared.points] == [Verdict.SAME]


def test_a_run_from_before_the_setting_of_the_cache_is_compared() -> None:
    old, new = run(named("a"), config={}), run(named("a"), config={"cache": "cold"})
    assert [p.verdict for p in compare(old, new, 0.5).points] == [Verdict.SAME]
    assert [p.verdict for p in compare(new, old, 0.5).points] == [Verdict.SAME]


def test_a_row_beside_other_programs_has_no_verdict() -> None:
    fast, slow = named("a", time_us=5.0), named("a", time_us=50.0, flags="noisy;contended")
    (point,) = compare(run(fast), run(slow), 0.5).points
    assert point.verdict == Verdict.AMBIGUOUS
    assert point.reason == "other programs used the cores in NEW"
    (point,) = compare(run(slow), run(slow), 0.5).points
    assert point.reason == "other programs used the cores in BASE and NEW"


def on_cpu(row: Measurement, virtual: str) -> RunData:
    return run(row, facts={"virtual_machine": Fact(virtual, source="/proc/cpuinfo")})


@pytest.mark.parametrize(
    ("new", "threshold", "verdict"),
    [
        (101.0, 0.5, Verdict.AMBIGUOUS),
        (100.0, 0.5, Verdict.AMBIGUOUS),  # a real change and the host's may be opposite
        (199.0, 0.5, Verdict.AMBIGUOUS),
        (201.0, 0.5, Verdict.SLOW),
        (49.0, 0.5, Verdict.FAST),
        (101.0, 100.0, Verdict.SAME),
        (201.0, 110.0, Verdict.SAME),
        (220.0, 110.0, Verdict.SLOW),
    ],
)
def test_a_virtual_machine_shows_large_changes_only(
    new: float, threshold: float, verdict: Verdict
) -> None:
    base = on_cpu(timed(100.0, 0.1), "yes")
    for one in ("yes", "no"):  # of two machines of the same name
        compared = compare(base, on_cpu(timed(new, 0.1), one), threshold)
        (point,) = compared.points
        assert point.verdict == verdict
        if verdict == Verdict.AMBIGUOUS:
            assert point.reason == "others on a virtual machine's host may change times by 100 %"
        assert compared.unclear == 0


def test_wide_intervals_there_are_no_reason_to_measure_longer() -> None:
    base, new = on_cpu(timed(100.0, 5.0), "yes"), on_cpu(timed(104.0, 5.0), "yes")
    (point,) = compare(base, new, 0.5).points
    assert point.reason == "others on a virtual machine's host may change times by 100 %"


def test_a_real_cpu_is_judged_as_any_device() -> None:
    base, new = on_cpu(timed(100.0, 0.1), "no"), on_cpu(timed(101.0, 0.1), "no")
    assert compare(base, new, 0.5).counts[Verdict.SLOW] == 1
    assert compare(base, base, 0.5).counts[Verdict.SAME] == 1


def test_one_point_that_stayed_warm_costs_its_own_verdict() -> None:
    warm = run(named("a"), named("b", cache="warm"))
    compared = compare(run(named("a"), named("b")), warm, 0.5)
    assert [(point.verdict, point.reason) for point in compared.points] == [
        (Verdict.SAME, ""),
        (Verdict.AMBIGUOUS, "cache cold in BASE, warm in NEW"),
    ]


def test_nothing_in_common_names_what_differs() -> None:
    assert refused(run(named("a")), run(named("b"), named("c"))) == (
        "no point in common: kernel is a in BASE, b, c in NEW"
    )
    told = refused(run(named("a")), run(named("a", beta=1.0)))
    assert "settings" in told
    assert "beta 1 in NEW" in told
    told = refused(run(named("a")), run(named("a", m=128)))
    assert told == "no point in common: size is 64 in BASE, 128x64x64 in NEW"
    assert "on the same problem" in refused(
        run(named("a"), named("b", m=1)), run(named("b"), named("a", m=1))
    )
    many = refused(run(*map(named, "abcde")), run(*map(named, "vwxy")))
    assert many == "no point in common: kernel is a, b, c, d, … in BASE, v, w, x, y in NEW"
    assert refused(run(), run(ROW)) == "BASE has no rows: nothing was measured there"
    assert refused(run(ROW), run()) == "NEW has no rows: nothing was measured there"


@pytest.mark.parametrize("threshold", [-1, float("nan"), float("inf")])
def test_a_threshold_is_a_share(threshold: float) -> None:
    assert "give 0 or more" in refused(run(named("a")), run(named("a")), threshold)


# --- the environment ---------------------------------------------------------------------------


def environments(base: RunData, new: RunData) -> list[Difference]:
    compared: Comparison = compare(base, new, 0.5)
    return compared.differences


def test_what_differs_is_named_once_and_in_order() -> None:
    def one(driver: str, watts: float, clock: int, seed: int, sha: str, variant: str) -> RunData:
        return run(
            named("a", variant=variant),
            facts={
                "driver_version": Fact(driver),
                "power_limit": Fact(watts, "W"),
                "sm_clock": Fact(clock, "MHz"),
                "ecc_mode": Fact("enabled"),
            },
            versions={"rooflab": "0.1.0", "numpy": driver},
            config={"seed": seed, "sizes": [seed], "timing": {"max_s": 15.0, "min_rounds": seed}},
            kernels={"gemm/a": KernelRecord(backend="cuda", title="", sha256=sha * 64)},
        )

    base, new = one("580", 700.0, 1980, 3, "a", "64x64"), one("590", 650.0, 345, 4, "b", "32x32")
    assert environments(base, base) == []
    assert environments(base, new) == [
        Difference("driver version", "580", "590"),
        Difference("power limit", "700.0 W", "650.0 W"),
        Difference("version of numpy", "580", "590"),
        Difference("seed", "3", "4"),
        Difference("timing.min_rounds", "3", "4"),
        Difference("file of gemm/a", "a" * 12, "b" * 12),
        Difference("variant of a", "64x64", "32x32"),
    ]


def test_a_variant_is_that_of_its_own_kernel() -> None:
    base = run(named("a", variant="1"), named("b", variant="2"), named("c", variant="4"))
    new = run(named("a", variant="1"), named("b", variant="3"), named("c", variant="4"))
    assert environments(base, new) == [Difference("variant of b", "2", "3")]


def test_what_one_run_does_not_know_is_a_dash() -> None:
    known = run(named("a"), facts={"ecc_mode": Fact("enabled")})
    unknown = run(named("a"), facts={"ecc_mode": Fact(None, reason="refused")})
    assert environments(known, unknown) == [Difference("ecc mode", "enabled", "–")]


def test_kernels_of_the_sweep_are_compared_too() -> None:
    """They share one clock at the power limit, so that others change a figure."""
    record = KernelRecord(backend="cuda", title="")
    alone = run(named("a"), kernels={"gemm/a": record})
    among = run(named("a"), kernels={"gemm/b": record, "gemm/a": record, "add/c": record})
    assert environments(alone, among) == [Difference("kernels of the sweep", "a", "a, add/c, b")]


# --- several workloads -------------------------------------------------------------------------


def added(kernel: str, columns: int, precision: str = "fp32") -> Measurement:
    """A row of the workload add."""
    problem = build("add", precision, {"columns": columns})
    return replace(timed(100, 0.1, kernel=kernel), problem=problem.record)


def test_points_of_other_workloads_are_other_points() -> None:
    base = run(named("a"), added("a", 64))
    compared = compare(base, run(added("a", 64), added("a", 128), added("a", 64, "int32")), 0.5)
    assert [point.base.problem.workload for point in compared.points] == ["add"]
    assert [row.problem.workload for row in compared.only_base] == ["gemm"]
    assert [row.problem.size for row in compared.only_new] == ["128", "64"]


def test_workloads_without_a_point_in_common_are_named() -> None:
    assert refused(run(named("a")), run(added("a", 64))) == (
        "no point in common: workload is gemm in BASE, add in NEW"
    )


def test_sources_are_those_of_the_kernels_own_workload() -> None:
    def one(sha: str) -> RunData:
        kernels = {
            f"{workload}/a": KernelRecord(backend="cuda", title="", sha256=char * 64)
            for workload, char in (("gemm", "a"), ("add", sha))
        }
        return run(named("a"), added("a", 64), kernels=kernels)

    assert environments(one("b"), one("c")) == [Difference("file of add/a", "b" * 12, "c" * 12)]
