"""Operations of a library name what they launch."""

from __future__ import annotations

from launched import launch

from rooflab.devices.records import LaunchKey, Needs
from rooflab.programs.labels import CallLabel, labelled, labels, with_parts

MM = CallLabel("aten::mm", ("layers.0",), Needs(1000, 600, "bf16"))


def test_a_call_s_work_belongs_to_the_kernel_with_most_of_its_time() -> None:
    launches = [launch("gemm", 90), launch("reduce", 10)]
    known = labels(launches, [1, 1], {1: MM})
    gemm, reduce = (known[one.key][0] for one in launches)
    assert gemm == MM
    assert reduce == CallLabel("aten::mm", ("layers.0",), None)


def test_several_launches_of_it_share_the_work() -> None:
    launches = [launch("adam", 30), launch("adam", 10)]
    known = labels(launches, [1, 1], {1: MM})
    assert [one and one.work for one in known[launches[0].key]] == [
        Needs(750, 450, "bf16"),
        Needs(250, 150, "bf16"),
    ]


def test_one_of_several_launches_is_another_problem_than_its_call() -> None:
    call = CallLabel("aten::mm", work=Needs(1000, 600, "bf16", "gemm bf16 m=1 n=1 k=1"))
    alone = labels([launch("gemm")], [1], {1: call})
    shared = labels([launch("gemm"), launch("gemm")], [1, 1], {1: call})
    problems = [
        [one.work.same_as for found in known.values() for one in found if one and one.work]
        for known in (alone, shared)
    ]
    assert problems == [["gemm bf16 m=1 n=1 k=1"], ["", ""]]


def test_other_steps_have_the_labels_of_the_same_places() -> None:
    other = CallLabel("aten::linear")
    known = {launch("gemm").key: [MM, other]}
    named = labelled([launch("gemm")] * 6, known)
    assert [one.operation for one in named] == ["aten::mm", "aten::linear"] * 3
    assert named[0].work == MM.work and named[0].phase == ("layers.0",)


def test_at_other_places_only_what_always_was_the_same() -> None:
    known: dict[LaunchKey, list[CallLabel | None]] = {}
    known |= {launch("gemm").key: [MM, MM], launch("add").key: [MM, None]}
    named = labelled([*[launch("gemm")] * 3, *[launch("add")] * 3], known)
    assert [one.operation for one in named] == ["aten::mm"] * 3 + [""] * 3


def test_a_launch_outside_of_calls_has_no_label() -> None:
    assert labels([launch()], [0], {1: MM}) == {launch().key: [None]}


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
