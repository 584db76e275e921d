"""Groups of launches."""

from __future__ import annotations

from dataclasses import replace

from launched import counters, launch

from rooflab.devices.records import Needs, RecordedLaunch
from rooflab.programs.groups import Sample, grouped, limited, plan, varies, wanted, with_samples


def test_launches_of_one_kernel_and_shape_are_one_group() -> None:
    found = grouped([launch(us=10), launch(us=10.3), launch(grid=(5, 1, 1)), launch("other", 90)])
    assert [(group.key.kernel, len(group.launches)) for group in found] == [
        ("other", 1),
        ("k", 2),
        ("k", 1),
    ]


def test_other_work_is_another_group_although_kernel_and_grid_are_the_same() -> None:
    step = [launch(us=us) for us in (100, 900, 101, 99)]
    found = grouped([*step, *step], steps=2)
    assert [(group.part, group.positions, group.per_step) for group in found] == [
        (1, (1,), 1),
        (2, (0, 2, 3), 3),
    ]
    assert found[0].total_us == 900


def _of(problem: str) -> RecordedLaunch:
    return replace(launch(us=100), work=Needs(8, 8, "bf16", problem))


def test_two_problems_are_two_groups_although_they_take_as_long() -> None:
    step = [_of("a"), _of("b"), _of("a")]
    found = grouped([*step, *step], steps=2)
    assert [(group.part, group.positions) for group in found] == [(1, (0, 2)), (2, (1,))]
    assert [group.work and group.work.same_as for group in found] == ["a", "b"]


def test_a_group_of_which_some_launches_are_no_known_problem_stays_whole() -> None:
    (group,) = grouped([_of("a"), _of(""), _of("b")])
    assert group.work == Needs(8, 8, "bf16", "")


def test_many_small_groups_are_one() -> None:
    launches = [launch(f"k{i}", us=100 - i) for i in range(8)]
    groups = grouped([*launches, *launches], steps=2)
    assert limited(groups, 8) == groups
    *kept, rest = limited(groups, 5)
    assert kept == groups[:5]
    assert (rest.key.kernel, rest.per_step, rest.part) == ("other kernels", 3, 0)
    assert rest.total_us == sum(group.total_us for group in groups[5:])


def test_a_kernel_that_is_launched_once_is_a_group() -> None:
    (group,) = grouped([launch(us=5)])
    assert (group.part, group.positions, group.per_step) == (0, (0,), 1)
    assert wanted([group]) == {group.key: {0}}


def test_short_launches_differ_without_a_reason() -> None:
    assert len(grouped([launch(us=us) for us in (2, 3, 5)])) == 1


def test_a_slow_step_does_not_split_a_group() -> None:
    steps = [launch(us=us) for us in (100, 100, 300, 100, 100)]
    assert len(grouped(steps, steps=5)) == 1


def test_one_launch_of_each_group_is_counted() -> None:
    found = grouped([launch(us=us) for us in (100, 900, 101, 99)])
    assert wanted(found) == {found[0].key: {0, 1}}
    assert wanted(found, each=2) == {found[0].key: {0, 1, 2}}


def test_what_takes_no_time_is_not_counted() -> None:
    found = grouped([launch("large", 10_000), launch("tiny", 1)])
    assert [key.kernel for key in plan(found)] == ["large"]


def test_counters_belong_to_the_group_at_their_place() -> None:
    found = grouped([launch(us=us) for us in (100, 900, 101)])
    sample = Sample(1, 777.0, counters(flops=5))
    large, small = with_samples(found, {found[0].key: [sample]})
    assert large.samples == (sample,) and not small.samples


def test_counters_at_no_known_place_belong_to_the_group_with_that_time() -> None:
    found = grouped([launch(us=us) for us in (100, 900, 101)])
    samples = [Sample(-1, 107.0, counters(flops=5)), Sample(-1, 4000.0, counters(flops=6))]
    large, small = with_samples(found, {found[0].key: samples})
    assert small.samples == (samples[0],) and not large.samples


def test_counts_that_differ_are_told() -> None:
    group = grouped([launch(), launch()])[0]
    same, other = Sample(0, 10, counters(flops=100)), Sample(1, 10, counters(flops=104))
    assert not varies(with_samples([group], {group.key: [same]})[0])
    both = with_samples([group], {group.key: [same, other]})[0]
    assert varies(both)
    assert both.counters and both.counters.all_flops == 102
