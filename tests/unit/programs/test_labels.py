"""Operations of a library name what they launch."""

from __future__ import annotations

from collections.abc import Sequence

from launched import launch

from rooflab.devices.records import Launch, LaunchCall, LaunchKey, Needs
from rooflab.programs.host import HostThreads
from rooflab.programs.labels import CallLabel, Labels, constant, labelled, labels, with_parts
from rooflab.programs.ranges import Range

WORK = Needs(1000, 600, "bf16", "gemm bf16 m=1 n=1 k=1")
MM = CallLabel("aten::mm", ("layers.0",), WORK)
THREAD = (1, 1)


def host(*operations: Range) -> HostThreads:
    made = HostThreads()
    made.operations[THREAD] += operations
    made.annotations[THREAD].append(Range("layers.0", 0, 99))
    return made


def known(launches: Sequence[Launch], moments: Sequence[int | None], made: HostThreads) -> Labels:
    calls = [None if at is None else LaunchCall(THREAD, at) for at in moments]
    return labels(launches, calls, made, lambda one: WORK)


def test_a_call_s_work_belongs_to_the_kernel_with_most_of_its_time() -> None:
    launches = [launch("gemm", 90), launch("reduce", 10)]
    found = known(launches, [3, 4], host(Range("aten::mm", 1, 9)))
    gemm, reduce = (found[one.key][0] for one in launches)
    assert gemm == MM
    assert reduce == CallLabel("aten::mm", ("layers.0",), None)


def test_several_launches_of_it_share_the_work() -> None:
    launches = [launch("adam", 30), launch("adam", 10)]
    found = known(launches, [3, 4], host(Range("aten::mm", 1, 9)))
    assert [one and one.work for one in found[launches[0].key]] == [
        Needs(750, 450, "bf16"),
        Needs(250, 150, "bf16"),
    ]


def test_one_of_several_launches_is_another_problem_than_its_call() -> None:
    made = host(Range("aten::mm", 1, 9))
    one = known([launch("gemm")], [3], made)
    several = known([launch("gemm"), launch("gemm")], [3, 4], made)
    problems = [
        [label.work.same_as for of in found.values() for label in of if label and label.work]
        for found in (one, several)
    ]
    assert problems == [[WORK.same_as], ["", ""]]


def test_other_steps_have_the_labels_of_the_same_places() -> None:
    other = CallLabel("aten::linear")
    named = labelled([launch("gemm")] * 6, {launch("gemm").key: [MM, other]})
    assert [one.operation for one in named] == ["aten::mm", "aten::linear"] * 3
    assert named[0].work == MM.work and named[0].phase == ("layers.0",)


def test_at_other_places_only_what_always_was_the_same() -> None:
    given: dict[LaunchKey, list[CallLabel | None]] = {}
    given |= {launch("gemm").key: [MM, MM], launch("add").key: [MM, None]}
    named = labelled([*[launch("gemm")] * 3, *[launch("add")] * 3], given)
    assert [one.operation for one in named] == ["aten::mm"] * 3 + [""] * 3


def test_a_launch_outside_of_operations_has_only_the_ranges_around_it() -> None:
    made = host(Range("aten::mm", 1, 9))
    assert known([launch()], [20], made) == {launch().key: [CallLabel("", ("layers.0",))]}
    assert known([launch()], [200], made) == {launch().key: [None]}
    assert known([launch()], [None], made) == {launch().key: [None]}


def test_the_module_is_named_before_the_ranges_and_the_innermost_operation() -> None:
    made = host(Range("aten::linear", 1, 9), Range("aten::addmm", 2, 8))
    made.modules[THREAD] += [Range("layers.1", 0, 9), Range("layers.1.up", 1, 9)]
    (label,) = known([launch()], [5], made)[launch().key]
    assert label == CallLabel("aten::addmm", ("layers.1.up",), WORK)


def test_without_steps_only_what_is_always_the_same_is_known() -> None:
    gemm, add = launch("gemm"), launch("add")
    other = CallLabel("aten::linear")
    assert constant({gemm.key: [MM, MM], add.key: [MM, other]}) == {gemm.key: [MM]}


def test_an_imported_call_s_work_is_shared_too() -> None:
    whole = Needs(1000, 600, "bf16")
    launches = [launch("adam", us, call=1, work=whole) for us in (30, 10)]
    other = launch("mm", call=2, work=whole)
    parts = with_parts([*launches, other, launch("alone")])
    assert [one.work for one in parts] == [
        Needs(750, 450, "bf16"),
        Needs(250, 150, "bf16"),
        whole,
        None,
    ]
