"""Steps of a program, found in the order of its launches."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from launched import in_order, launch

from rooflab.devices.records import NOWHERE, RecordedLaunch
from rooflab.programs.periods import FEWEST, known_as, period_of, steps_of

STEP = ["embed", "mm", "mm", "norm", "mm", "loss", "adam"]


def test_steps_are_found_after_a_start_that_is_different() -> None:
    launches = in_order(["init"] * 30 + STEP * 8)
    period = period_of(launches)
    assert period and period.length == len(STEP)
    assert len(period.steps) >= 7
    assert {one.kernel for one in period.launches(launches)} == set(STEP)


def test_a_step_that_differs_is_left_out() -> None:
    names = STEP * 5 + ["embed", "evaluate", "loss"] + STEP * 5
    period = period_of(launches := in_order(names))
    assert period and "evaluate" not in {one.kernel for one in period.launches(launches)}


def test_kernels_that_a_compiler_tries_before_do_not_hide_the_steps() -> None:
    tried = [f"tried {i}" for i in range(40) for _ in range(i // 3 + 5)]
    launches = in_order(tried + STEP * 100)
    period = period_of(launches)
    assert period and len(period.steps) > 90
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
    for place in period.steps:
        inside = [launches[i].kernel for i in place]
        assert inside[0] == period.anchor.kernel
        assert len(inside) == period.length
        assert inside == [launches[i].kernel for i in period.steps[0]]


def decoding(tokens: int, us: float = 10) -> list[RecordedLaunch]:
    """Three layers; a cache grows, and with it the grid of what copies it."""
    names = ["embed", *("mm", "append", "mm") * 3, "argmax"]
    grids = [
        (64 + i, 1, 1) if name == "append" else (4, 1, 1) for i in range(tokens) for name in names
    ]
    return [
        launch(name, us, 12 * i, grid=grid, order=i + 1)
        for i, (name, grid) in enumerate(zip(names * tokens, grids, strict=True))
    ]


def places(launches: list[RecordedLaunch]) -> dict[Any, tuple[int, int]]:
    return {one.key: (one.order, one.start_ns) for one in reversed(launches)}


def test_steps_whose_grids_grow_are_found() -> None:
    launches = decoding(20)
    found, period = steps_of(launches, places(launches))
    assert period and period.anchor.kernel == "embed" and period.length == 11
    assert len(period.steps) == 19 and len(found) == len(launches)
    grids = {(one.kernel, one.grid) for one in period.launches(found)}
    fixed = {(name, (4, 1, 1)) for name in ("embed", "mm", "argmax")}
    assert grids == {*fixed, ("append", NOWHERE)}


def tokens_of_two_kinds(tokens: int, layers: int = 12) -> list[RecordedLaunch]:
    """The copy of the written tokens is another kernel if their number is odd."""
    layer = ("norm", "mm", "append", "attend", "mm")
    return in_order(
        [
            name
            for i in range(tokens)
            for name in ("embed", "odd copy" if i % 2 else "copy", *layer * layers, "head", "head")
        ],
        us=10,
    )


def test_steps_may_differ_in_a_few_launches() -> None:
    launches = tokens_of_two_kinds(20)
    period = period_of(launches, places(launches))
    assert period and period.anchor.kernel == "embed" and len(period.steps) == 19
    assert {"copy", "odd copy"} < {one.kernel for one in period.launches(launches)}


def test_layers_are_no_steps_nor_is_what_is_between_two_lines_of_a_log() -> None:
    names = [one.kernel for one in tokens_of_two_kinds(10)]
    launches = in_order([*names, "log"] * 8, us=10)
    period = period_of(launches, places(launches))
    assert period and period.anchor.kernel == "embed" and len(period.steps) == 79


def test_a_layer_is_no_step_though_many_of_a_tokens_grids_grow() -> None:
    """The differences of a layer are few, those of a token are too many."""
    layer = ["norm", *("mm", "add") * 18, "append", "append", "attend", "mm", "mm"]
    names = ["embed", *["mask"] * 4, *layer * 16, "head", "argmax"]
    growing = ("mask", "append")
    launches = [
        launch(name, 10, 12 * i, grid=(token if name in growing else 4, 1, 1), order=i + 1)
        for i, (token, name) in enumerate((token, name) for token in range(40) for name in names)
    ]
    found, period = steps_of(launches, places(launches))
    assert period and period.anchor.kernel == "embed" and len(period.steps) == 39
    assert {one.kernel for one in period.launches(found)} == set(names)


def test_a_step_has_whole_graphs() -> None:
    graphs = [
        launch("mm", 10, 12 * i, graph=7, order=i // 6 + 1) for i in range(6 * 20)
    ]  # six nodes each
    period = period_of(graphs, places(graphs))
    assert period and period.length == 6 and len(period.steps) == 19
    assert {graphs[step.start].order for step in period.steps} == set(range(1, 20))


def test_few_growing_grids_of_a_long_step_are_one_group() -> None:
    """So few that the steps are alike enough without it."""
    names = ["embed", *("mm", "norm") * 30, "append", "head"]
    launches = [
        launch(name, 10, 12 * i, grid=(token if name == "append" else 4, 1, 1), order=i + 1)
        for i, (token, name) in enumerate((token, name) for token in range(20) for name in names)
    ]
    found, period = steps_of(launches, places(launches))
    assert period and len(period.steps) == 19
    assert {one.grid for one in period.launches(found) if one.kernel == "append"} == {NOWHERE}


def test_one_step_with_another_grid_changes_no_group() -> None:
    names = ["embed", *("mm", "norm") * 30, "append", "head"] * 20
    launches = in_order(names, us=10)
    odd = names.index("append")
    launches[odd] = replace(launches[odd], grid=(99, 1, 1))
    found, period = steps_of(launches, places(launches))
    assert period and len(period.steps) == 18 and found == launches
    assert {one.grid for one in period.launches(found)} == {launches[0].grid}


def test_a_step_that_differs_a_little_is_left_out_if_all_others_are_the_same() -> None:
    usual = ["embed", *("mm", "norm") * 30, "head"]
    odd = ["embed", *("mm", "norm") * 29, "mm of another layout", "norm", "head"]
    launches = in_order([*usual * 9, *odd, *usual * 20])
    found, period = steps_of(launches, places(launches))
    assert period and len(period.steps) == 28
    assert {one.kernel for one in period.launches(found)} == set(usual)


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
