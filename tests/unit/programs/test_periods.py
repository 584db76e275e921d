"""Steps of a program, found in the order of its launches."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from launched import in_order, launch

from rooflab.devices.records import NOWHERE, Launch
from rooflab.programs.periods import FEWEST, known_as, period_of, steps_of

STEP = ["embed", "mm", "mm", "norm", "mm", "loss", "adam"]


def test_steps_are_found_after_a_start_that_is_different() -> None:
    launches = in_order(["init"] * 30 + STEP * 8)
    period = period_of(launches)
    assert period and period.length == len(STEP)
    assert len(period.starts) >= 7
    assert {one.kernel for one in period.launches(launches)} == set(STEP)


def test_a_step_that_differs_is_left_out() -> None:
    names = STEP * 5 + ["embed", "evaluate", "loss"] + STEP * 5
    period = period_of(launches := in_order(names))
    assert period and "evaluate" not in {one.kernel for one in period.launches(launches)}


def test_kernels_that_a_compiler_tries_before_do_not_hide_the_steps() -> None:
    tried = [f"tried {i}" for i in range(40) for _ in range(i // 3 + 5)]
    launches = in_order(tried + STEP * 100)
    period = period_of(launches)
    assert period and len(period.starts) > 90
    assert {one.kernel for one in period.launches(launches)} == set(STEP)


def test_a_step_begins_with_what_the_program_launched_first() -> None:
    order = {one.key: (i, 0) for i, one in enumerate(in_order(["init", *dict.fromkeys(STEP)]))}
    for lost in range(len(STEP)):
        period = period_of(in_order((STEP * 9)[lost:]), order)
        assert period and period.anchor.kernel == "embed" and period.length == len(STEP)


def test_one_kernel_in_a_loop_is_a_period_of_one() -> None:
    period = period_of(in_order(["add"] * 20))
    assert period and period.length == 1


def test_nothing_repeats() -> None:
    assert period_of([]) is None
    assert period_of(in_order([f"k{i}" for i in range(50)])) is None
    assert period_of(in_order(STEP * (FEWEST - 1))) is None


@given(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=12), st.integers(8, 20))
def test_every_period_is_one(step: list[str], times: int) -> None:
    launches = in_order(step * times)
    period = period_of(launches)
    assert period
    for start in period.starts:
        inside = [one.kernel for one in launches[start : start + period.length]]
        assert inside[0] == period.anchor.kernel
        assert len(inside) == period.length
        assert inside == [one.kernel for one in launches[period.starts[0] :][: period.length]]


def decoding(tokens: int, us: float = 10) -> list[Launch]:
    """Three layers; a cache grows, and with it the grid of what copies it."""
    names = ["embed", *("mm", "append", "mm") * 3, "argmax"]
    grids = [
        (64 + i, 1, 1) if name == "append" else (4, 1, 1) for i in range(tokens) for name in names
    ]
    return [
        launch(name, us, 12 * i, grid=grid, order=i + 1)
        for i, (name, grid) in enumerate(zip(names * tokens, grids, strict=True))
    ]


def places(launches: list[Launch]) -> dict[Any, tuple[int, int]]:
    return {one.key: (one.order, one.start_ns) for one in reversed(launches)}


def test_steps_whose_grids_grow_are_found() -> None:
    launches = decoding(20)
    found, period = steps_of(launches, places(launches))
    assert period and period.anchor.kernel == "embed" and period.length == 11
    assert len(period.starts) == 19 and len(found) == len(launches)
    grids = {(one.kernel, one.grid) for one in period.launches(found)}
    fixed = {(name, (4, 1, 1)) for name in ("embed", "mm", "argmax")}
    assert grids == {*fixed, ("append", NOWHERE)}


def test_exact_steps_keep_their_grids() -> None:
    launches = in_order(STEP * 8)
    found, period = steps_of(launches, places(launches))
    assert found == launches and period == period_of(launches, places(launches))


def test_what_repeats_with_little_of_the_time_is_no_step() -> None:
    launches = [*in_order(STEP * 8, us=1), *(launch(f"other {i}", 500) for i in range(20))]
    assert steps_of(launches, places(launches)) == (launches, None)


def test_the_key_of_a_launch_in_such_steps() -> None:
    fixed, loose = launch("a").key, launch("b", grid=NOWHERE).key
    assert known_as(launch("a").key, {fixed, loose}) == fixed
    assert known_as(launch("b", grid=(9, 1, 1)).key, {fixed, loose}) == loose
    other = launch("c", grid=(9, 1, 1)).key
    assert known_as(other, {fixed, loose}) == other
