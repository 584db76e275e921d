"""The diagnosis on made-up kernels whose cause is known, and at its thresholds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.model import diagnosis
from rooflab.model.diagnosis import BOUNDS, Diagnosis, Evidence, Grid, Load, diagnose

SMS = 132


def loads(counted: bool = True, **us: float) -> tuple[Load, ...]:
    return tuple(Load(name, time, "so much", counted) for name, time in us.items())


def judge(time_us: float = 100.0, **known: Any) -> Diagnosis:
    us = {name: known.pop(name) for name in ("compute", "dram", "l2", "l1") if name in known}
    counted = known.pop("counted", True)
    known.setdefault("grid", None)
    return diagnose(Evidence(time_us=time_us, loads=loads(counted, **us), **known))


# One kernel per cause ----------------------------------------------------------------------------


def test_a_launch_that_takes_most_of_the_time() -> None:
    verdict = judge(4.0, launch_us=1.4, dram=0.1)
    assert verdict.bound == "launch"
    assert verdict.without_us == pytest.approx(2.6)


def test_fewer_blocks_than_multiprocessors() -> None:
    verdict = judge(grid=Grid(33, SMS, 4), compute=20)
    assert (verdict.bound, verdict.without_us, verdict.next_limit) == ("small grid", 25, "compute")


def test_a_tile_more_than_fits() -> None:
    """The 133rd block of a kernel with one resident block needs a second wave."""
    verdict = judge(grid=Grid(133, SMS, 1), compute=47)
    assert verdict.bound == "wave"
    assert verdict.without_us == pytest.approx(100 * 133 / 264)
    assert verdict.next_limit == "compute"


def test_all_resident_blocks_and_one_busier_multiprocessor() -> None:
    assert judge(grid=Grid(133, SMS, 8), compute=47).bound == "wave"
    assert judge(grid=Grid(132 * 4, SMS, 8), compute=47).bound == "latency"


@pytest.mark.parametrize("resource", ["compute", "dram", "l2", "l1"])
def test_a_busy_resource(resource: str) -> None:
    others = {name: 30.0 for name in ("compute", "dram", "l2", "l1") if name != resource}
    verdict = judge(**others, **{resource: 90.0})
    assert (verdict.bound, verdict.firm, verdict.proven) == (resource, True, True)
    assert (verdict.without_us, verdict.reachable_us) == (30, 90)
    leaning = judge(**others, **{resource: 70.0})
    assert (leaning.bound, leaning.firm) == (resource, False)


def test_two_busy_resources() -> None:
    verdict = judge(compute=90, dram=82)
    assert (verdict.bound, verdict.reachable_us) == ("balanced", 90)


def test_nothing_is_busy() -> None:
    for counted in (True, False):
        verdict = judge(compute=20, dram=10, counted=counted)
        assert (verdict.bound, verdict.proven, verdict.without_us) == ("latency", False, 20)


def test_nothing_is_known() -> None:
    verdict = judge()
    assert (verdict.bound, verdict.without_us, verdict.next_limit) == ("latency", 100, "")


def test_a_launch_is_a_floor() -> None:
    verdict = judge(10.0, launch_us=1.5, compute=0.5)
    assert (verdict.bound, verdict.without_us, verdict.next_limit) == ("latency", 1.5, "launch")


# Thresholds --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("below", "at", "bound"),
    [
        ({"launch_us": 29.9}, {"launch_us": 30.0}, "launch"),
        ({"grid": Grid(SMS, SMS, 1)}, {"grid": Grid(SMS - 1, SMS, 1)}, "small grid"),
        ({"dram": 59.9}, {"dram": 60.0}, "dram"),
        ({"dram": 95, "l2": 84.9}, {"dram": 95, "l2": 85.0}, "balanced"),
        (
            {"grid": Grid(181, 100, 1), "l2": 79.0},
            {"grid": Grid(180, 100, 1), "l2": 79.0},
            "wave",
        ),
    ],
)
def test_thresholds(below: dict[str, Any], at: dict[str, Any], bound: str) -> None:
    assert judge(**at).bound == bound
    assert judge(**below).bound != bound


def test_at_the_ceiling_from_80_percent_on() -> None:
    assert not judge(dram=79.9).firm
    assert judge(dram=80.0).firm


@pytest.mark.parametrize(
    ("blocks", "multiprocessors", "resident", "efficiency"),
    [
        (132, 132, 1, 1.0),
        (133, 132, 1, 133 / 264),
        (133, 132, 8, 133 / 264),  # all at once: the busiest multiprocessor has two
        (264, 132, 2, 1.0),
        (265, 132, 2, 265 / 528),
        (66, 132, 4, 0.5),
        (10 * 132 + 66, 132, 1, 10.5 / 11),
        (10 * 132 + 66, 132, 2, 5.25 / 6),
    ],
)
def test_efficiency_by_hand(
    blocks: int, multiprocessors: int, resident: int, efficiency: float
) -> None:
    assert Grid(blocks, multiprocessors, resident).efficiency == pytest.approx(efficiency)


def test_what_limits_next_is_at_its_ceiling_then() -> None:
    grid = Grid(33, SMS, 4)
    assert judge(grid=grid, compute=20.0).next_limit == "compute"
    assert judge(grid=grid, compute=19.9).next_limit == ""
    assert judge(grid=grid, compute=60.0, dram=70.0).without_us == 70
    assert judge(grid=grid, compute=90.0).bound == "compute"
    assert judge(grid=grid, compute=80.0).bound == "compute"
    assert judge(grid=grid, compute=79.9).bound == "small grid"


def test_without_a_cause_the_launch_stays() -> None:
    busy = judge(dram=90.0, launch_us=20.0)
    assert (busy.without_us, busy.next_limit, busy.reachable_us) == (20, "launch", 90)
    both = judge(dram=90.0, l2=20.0, launch_us=20.0)
    assert (both.without_us, both.next_limit) == (20, "l2")
    launch = judge(4.0, launch_us=2.0, dram=3.0)
    assert (launch.bound, launch.without_us, launch.next_limit) == ("launch", 3, "dram")
    assert launch.reachable_us == 3


def test_nothing_is_faster_than_it_was() -> None:
    """A share above one: a measured ceiling may be too low."""
    over = judge(compute=130.0, dram=20.0)
    assert (over.bound, over.reachable_us, over.without_us) == ("compute", 100, 20)
    assert judge(compute=130.0, dram=120.0).without_us == 100
    assert judge(compute=95.0, dram=90.0).without_us == 95


def test_flags() -> None:
    clocks = {"nominal_mhz": 2000.0, "nvml_mhz": 2000.0}
    assert judge(**clocks, clock_mhz=1940.0, capped=True).flags == ()
    assert judge(**clocks, clock_mhz=1939.0, capped=True).flags == ("power-capped", "tensor clock")
    assert judge(**clocks, clock_mhz=1500.0).flags == ("tensor clock",)
    assert judge(executed=1.02, moved=1.5).flags == ()
    assert judge(executed=1.021, moved=1.51).flags == ("padding", "traffic")
    assert judge(clock_mhz=1500.0, capped=True).flags == ()


def test_the_page_has_the_thresholds() -> None:
    page = (Path(__file__).parents[3] / "docs" / "diagnosis.md").read_text()
    shares = (diagnosis.LAUNCH_SHARE, diagnosis.AT_CEILING, diagnosis.LEANS, diagnosis.LOW_CLOCK)
    for share in (*shares, diagnosis.WAVE_EFFICIENCY):
        assert f"{share:.0%}".replace("%", " %") in page
    assert f"{100 * diagnosis.BALANCED:.0f} percentage points" in page
    assert f"{diagnosis.PADDING} times" in page
    assert f"{diagnosis.TRAFFIC} times" in page


# Any kernel --------------------------------------------------------------------------------------

times = st.floats(1e-3, 1e9)


@st.composite
def evidence(draw: st.DrawFn) -> Evidence:
    time_us = draw(times)
    shares = st.just(0.0) | st.floats(1e-9, 1.5)  # others may be rounded to zero
    names = draw(st.lists(st.sampled_from(["compute", "dram", "l2", "l1"]), unique=True))
    grids = st.builds(Grid, st.integers(1, 10**6), st.integers(1, 200), st.integers(1, 32))
    return Evidence(
        time_us=time_us,
        launch_us=draw(st.none() | shares.map(lambda share: share * time_us)),
        loads=loads(draw(st.booleans()), **{name: draw(shares) * time_us for name in names}),
        grid=draw(st.none() | grids),
    )


@given(evidence())
def test_every_verdict_is_possible(found: Evidence) -> None:
    verdict = diagnose(found)
    assert verdict.bound in BOUNDS
    assert 0 <= verdict.without_us <= found.time_us
    assert 0 <= verdict.reachable_us <= found.time_us
    resources = {load.resource for load in found.loads}
    assert verdict.bound not in ("compute", "dram", "l2", "l1") or verdict.bound in resources
    if found.grid is None:
        assert verdict.bound not in ("small grid", "wave")


@given(evidence(), st.sampled_from([0.125, 0.5, 2.0, 1024.0]))
def test_only_shares_matter(found: Evidence, factor: float) -> None:
    """Powers of two scale without rounding."""
    scaled = replace(
        found,
        time_us=found.time_us * factor,
        launch_us=None if found.launch_us is None else found.launch_us * factor,
        loads=tuple(replace(load, us=load.us * factor) for load in found.loads),
    )
    one, other = diagnose(found), diagnose(scaled)
    assert (one.bound, one.firm, one.next_limit) == (other.bound, other.firm, other.next_limit)


@given(st.integers(1, 10**6), st.integers(1, 200), st.integers(1, 32))
def test_efficiency_is_a_share(blocks: int, multiprocessors: int, resident: int) -> None:
    assert 0 < Grid(blocks, multiprocessors, resident).efficiency <= 1
    full = Grid(multiprocessors * resident, multiprocessors, resident)
    assert full.efficiency == 1
