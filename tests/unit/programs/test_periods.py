"""Steps of a program, found in the order of its launches."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from launched import in_order

from rooflab.programs.periods import FEWEST, period_of

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
