"""Steps of a program: which of them are timed, recorded, watched and counted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
from imitation import Chip, key, refused

from rooflab.devices.records import Needs
from rooflab.errors import UsageError
from rooflab.programs import profile as profiles
from rooflab.programs import session
from rooflab.programs.labels import CallLabel
from rooflab.programs.profile import Part
from rooflab.programs.session import MOST_COUNTING, MOST_STEPS, Steps

SHORT_US = 100.0
LONG_US = 60_000.0
"""Of which a few are long enough."""


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    made = Chip()
    made.install(monkeypatch, session)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    return made


@pytest.fixture
def torch(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """PyTorch is imported; what its watch was asked for."""
    asked: list[str] = []

    class Watch:
        def __init__(self, begin: Callable[[int], object], end: object, modules: bool) -> None:
            self.calls: dict[int, CallLabel] = {}
            self.begin = begin

        def __enter__(self) -> None:
            asked.append("watch")
            self.calls = {1: CallLabel("aten::mm", ("layers.0",))}
            self.begin(1)

        def __exit__(self, *error: object) -> None:
            asked.append("end")

    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.setattr(session, "OperationWatch", Watch)
    return asked


@pytest.mark.parametrize("value", [-1, 1.0, 2.5, True, "3", None, [2], float("nan")])
@pytest.mark.parametrize("name", ["steps", "skip"])
def test_numbers_of_steps_that_are_none_are_told_in_one_line(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name} = .*: give a whole number of at least") as told:
        profiles.profile("unused", **{name: value})
    assert "\n" not in str(told.value)


def test_no_step_is_too_few() -> None:
    with pytest.raises(UsageError, match=r"at least 1$"):
        profiles.profile(print, steps=0)


def test_numbers_of_other_packages_are_numbers() -> None:
    assert profiles._count("steps", numpy.int64(3), 1) == 3


def phase(steps: Steps) -> str:
    return steps._ends.__name__


def one(steps: Steps, chip: Chip, us: float = SHORT_US, *kernels: str) -> None:
    with steps:
        for name in kernels or ("k",):
            chip.launch(name, us)


def phases(steps: Steps, chip: Chip, us: float = SHORT_US, *kernels: str) -> dict[str, int]:
    """All phases in their order, with the steps of each."""
    found: dict[str, int] = {}
    while not steps.done:
        found[phase(steps)] = found.get(phase(steps), 0) + 1
        one(steps, chip, us, *kernels)
    return found


def until(steps: Steps, chip: Chip, wanted: str) -> None:
    while phase(steps) != wanted:
        assert not steps.done
        one(steps, chip)


# Order -------------------------------------------------------------------------------------------


def test_short_steps_go_on_and_then_are_as_many_in_each_phase(chip: Chip) -> None:
    steps = Steps("it")
    found = phases(steps, chip)
    assert list(found.items()) == [
        ("_warmed", 3),
        ("_plain", MOST_STEPS),
        ("_first", 1),
        ("_recorded", MOST_STEPS),
        ("_plain_again", MOST_STEPS),
        ("_counted", 1),
    ]
    assert chip.events == ["start", "stop", "replay", "end of replay"]


def test_long_steps_are_as_many_as_were_asked_for(chip: Chip) -> None:
    found = phases(Steps("it", steps=4, skip=2), chip, LONG_US)
    assert list(found.values()) == [2, 4, 1, 4, 4, 1]


def test_more_steps_than_most_are_done_if_they_are_asked_for(chip: Chip) -> None:
    found = phases(Steps("it", steps=30), chip)
    assert (found["_plain"], found["_recorded"]) == (30, 30)


def test_one_step_shows_operations_if_pytorch_is_there(chip: Chip, torch: list[str]) -> None:
    steps = Steps("it")
    found = phases(steps, chip)
    assert list(found)[-3:] == ["_plain_again", "_labelled", "_counted"]
    assert (found["_labelled"], torch) == (1, ["watch", "end"])
    assert chip.events == ["start", "stop", "start numbered", "stop", "replay", "end of replay"]
    assert steps.found
    (group,) = steps.found.groups
    assert (group.operations, group.phases) == (("aten::mm",), ("layers.0",))
    assert {one.operation for one in steps.found.recording.launches} == {"aten::mm"}


def test_nothing_is_counted_without_counters(chip: Chip) -> None:
    steps = Steps("it", counters=False)
    assert "_counted" not in phases(steps, chip)
    assert chip.events == ["start", "stop"]


def test_nothing_happens_after_the_last_step(chip: Chip) -> None:
    steps = Steps("it")
    phases(steps, chip)
    events, found = list(chip.events), steps.found
    one(steps, chip)
    steps.finish()
    assert (chip.events, steps.found, steps.done) == (events, found, True)


# What is recorded --------------------------------------------------------------------------------


def test_launches_before_the_window_are_not_kept(chip: Chip) -> None:
    steps = Steps("it")
    until(steps, chip, "_first")
    one(steps, chip, 5000, "first")
    began = chip.ns
    until(steps, chip, "_plain_again")
    ended = chip.ns
    one(steps, chip, 5000, "later")
    assert steps.found
    recording = steps.found.recording
    assert {launch.kernel for launch in recording.launches} == {"k"}
    assert len(recording.launches) == len(recording.steps) == MOST_STEPS
    assert (recording.steps[0].start_ns, recording.steps[-1].end_ns) == (began, ended)
    assert all(launch.start_ns >= began for launch in recording.launches)


def test_what_was_dropped_is_noted(chip: Chip) -> None:
    steps = Steps("it")
    until(steps, chip, "_recorded")
    chip.dropped = 12
    phases(steps, chip)
    assert steps.found and list(steps.found.notes) == ["12 records were dropped"]


def test_overhead_is_that_over_both_parts_without_a_recording(chip: Chip) -> None:
    chip.record_us = 15
    steps = Steps("it")
    until(steps, chip, "_plain_again")
    while phase(steps) == "_plain_again":
        one(steps, chip, 110)  # it is warmer
    assert steps.found
    assert steps.found.plain_us == pytest.approx(105)
    assert steps.found.overhead_percent == pytest.approx(100 * (115 / 105 - 1))


def test_overhead_is_that_over_the_first_part_if_there_is_no_other(chip: Chip) -> None:
    chip.record_us = 10
    steps = Steps("it")
    until(steps, chip, "_plain_again")
    steps.finish()
    assert steps.found and steps.found.overhead_percent == pytest.approx(10)


# Counting ----------------------------------------------------------------------------------------


def test_launches_that_only_their_problems_tell_apart_are_all_counted(
    chip: Chip, torch: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One kernel takes as long for two products: each is a group, and is counted."""
    needs = [Needs(2 * n, n, "bf16", f"gemm bf16 m={n}") for n in (1, 1, 2, 2)]
    steps = Steps("it")
    while not steps.done:
        with steps:
            calls = {i: CallLabel("aten::mm", work=work) for i, work in enumerate(needs, 1)}
            if phase(steps) == "_labelled":
                monkeypatch.setattr(steps._watch, "calls", calls)
            for number in range(1, 5):
                chip.number = number
                chip.launch("k", SHORT_US)
    assert steps.found
    places = [[sample.index for sample in group.samples] for group in steps.found.groups]
    assert sorted(places) == [[0, 1], [2, 3]]


def test_counting_ends_when_nothing_is_missing(chip: Chip) -> None:
    steps = Steps("it")
    assert phases(steps, chip, SHORT_US, "a", "b", "a")["_counted"] == 1
    assert steps.found and not steps.found.notes
    places = {group.key.kernel: [s.index for s in group.samples] for group in steps.found.groups}
    assert places == {"a": [0, 1], "b": [0]}
    assert steps.found.counting_s == pytest.approx(0.3, abs=0.01)


def test_what_a_step_does_not_launch_is_not_waited_for(chip: Chip) -> None:
    steps = Steps("it")
    until(steps, chip, "_recorded")
    while phase(steps) == "_recorded":
        one(steps, chip, SHORT_US, "k", "rare")
    found = phases(steps, chip)
    assert found["_counted"] == 1
    assert steps.found
    assert [len(group.samples) for group in steps.found.groups] == [1, 0]


def test_a_graph_is_counted_until_it_is_finished(chip: Chip) -> None:
    chip.passes = 3
    steps = Steps("it")
    counting = 0
    while not steps.done:
        counting += phase(steps) == "_counted"
        with steps:
            chip.launch_graph()
            chip.launch_graph()
    assert counting == 2
    assert steps.found and len(steps.found.graphs) == 1
    assert steps.found.graph_launches == 2


def test_counting_does_not_go_on_for_ever(chip: Chip) -> None:
    chip.passes = 100
    steps = Steps("it")
    counting = 0
    while not steps.done:
        counting += phase(steps) == "_counted"
        with steps:
            chip.launch_graph()
    assert counting == MOST_COUNTING
    assert steps.found and not steps.found.graphs
    assert chip.replay is None


def test_why_nothing_can_be_counted_is_noted(chip: Chip) -> None:
    chip.refuses = refused()
    steps = Steps("it")
    assert "_counted" not in phases(steps, chip)
    assert steps.found and list(steps.found.notes) == [str(chip.refuses)]
    assert steps.found.recording.launches
    one(steps, chip)


def test_why_counting_ended_is_noted(chip: Chip) -> None:
    chip.fails_after = 1
    steps = Steps("it")
    assert phases(steps, chip, SHORT_US, "a", "b")["_counted"] == 1
    assert steps.found and list(steps.found.notes) == ["it could not be replayed"]
    assert [len(group.samples) for group in steps.found.groups] == [1, 0]


# Failures, and early ends ------------------------------------------------------------------------

ALL = ("_warmed", "_plain", "_first", "_recorded", "_plain_again", "_labelled", "_counted")
KEPT = ("_plain_again", "_labelled", "_counted")


@pytest.mark.parametrize("where", ALL)
def test_it_can_be_finished_in_each_phase(chip: Chip, torch: list[str], where: str) -> None:
    steps = Steps("it")
    until(steps, chip, where)
    steps.finish()
    assert steps.done
    assert not chip.recording and chip.replay is None
    assert bool(steps.found) == (where in KEPT)
    assert not torch or torch[-1] == "end"


@pytest.mark.parametrize("where", ALL)
def test_a_step_that_fails_is_the_last_one(chip: Chip, torch: list[str], where: str) -> None:
    steps = Steps("it")
    until(steps, chip, where)
    with pytest.raises(ValueError, match="mine"), steps:
        chip.launch()
        raise ValueError("mine")
    assert steps.done
    assert not chip.recording and chip.replay is None
    assert bool(steps.found) == (where in (*KEPT, "_recorded"))
    assert not torch or torch[-1] == "end"


def test_a_failure_keeps_what_was_recorded(chip: Chip) -> None:
    steps = Steps("it")
    until(steps, chip, "_recorded")
    for _ in range(4):
        one(steps, chip)
    with pytest.raises(ValueError, match="mine"), steps:
        raise ValueError("mine")
    assert steps.found
    assert len(steps.found.recording.launches) == 4


def test_a_failure_keeps_what_was_counted(chip: Chip) -> None:
    steps = Steps("it")
    until(steps, chip, "_counted")
    with pytest.raises(ValueError, match="mine"), steps:
        chip.launch()
        raise ValueError("mine")
    assert steps.found
    assert [group.key for group in steps.found.groups if group.samples] == [key("k")]


# Parts and functions -----------------------------------------------------------------------------


def test_a_part_has_no_result_after_too_few_steps(chip: Chip) -> None:
    part = Part("it")
    assert part.result is None
    one(part, chip)
    assert part.result is None


def test_to_ask_for_a_result_too_early_does_not_end_it(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "result", lambda name, found: len(found.recording.steps))
    part = Part("it")
    asked: list[Any] = []
    while phase(part) != "_recorded":
        one(part, chip)
        asked.append(part.result)
    assert asked == [None] * len(asked)
    one(part, chip)
    asked = [part.result]
    assert asked == [1] and part.done


def test_parts_with_one_name_are_one(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "_PARTS", {})
    assert profiles.profile("it") is profiles.profile("it")
    assert profiles.profile("it") is not profiles.profile("other")


def test_nothing_is_launched(chip: Chip) -> None:
    with pytest.raises(UsageError, match=r"^empty launched nothing on a GPU while it was recorded"):
        profiles.profile(_empty, chip)
    assert not chip.recording


def _empty(chip: Chip) -> None:
    chip.wait(SHORT_US)


_empty.__name__ = "empty"


def test_what_a_function_raises_is_raised(chip: Chip) -> None:
    with pytest.raises(ZeroDivisionError):
        profiles.profile(lambda: 1 / 0)


def test_only_functions_and_names_are_profiled(chip: Chip) -> None:
    with pytest.raises(UsageError, match="a function or a name, not int"):
        profiles.profile(3)  # type: ignore[arg-type]
