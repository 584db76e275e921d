"""A whole program: when it is counted, and what of it is kept."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import imitation
import pytest
from imitation import GRID, Chip, key, refused
from launched import in_order, launch

from rooflab.devices.cuda.replay import BusyError
from rooflab.devices.records import NOWHERE, RecordedLaunch
from rooflab.errors import KernelError, UnavailableError
from rooflab.programs import whole
from rooflab.programs.sequence import without
from rooflab.programs.session import Findings
from rooflab.programs.whole import EACH_S, PATIENCE_S, Whole
from rooflab.programs.yielding import SWITCH_S, yielding

STEP = (("a", 10_000.0), ("b", 10_000.0), ("a", 10_000.0), ("c", 20_000.0))
STEP_NS = 50_000_000
NEVER = "nothing was counted: no launch was repeated for long enough"

Step = Sequence[tuple[str, float]]


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    made = Chip()
    made.install(monkeypatch, whole)
    return made


class Program(imitation.Program):
    """Which says what it counts."""

    def __init__(self, chip: Chip, **options: Any) -> None:
        self.said: list[str] = []
        super().__init__(chip, narrate=self.said.append, **options)

    def step(self, step: Step = STEP) -> None:
        for name, us in step:
            self.chip.launch(name, us)

    def steps(self, count: int, step: Step = STEP) -> None:
        """With a look after each."""
        for _ in range(count):
            self.step(step)
            self.look()

    def until_counted(self, step: Step = STEP) -> None:
        while not self.counts:
            self.steps(1, step)

    @property
    def counts(self) -> bool:
        return self.chip.replay is not None


def samples(found: Findings) -> dict[str, list[int]]:
    return {one.key.kernel: [s.index for s in one.samples] for one in found.groups if one.samples}


def kernels(launches: Sequence[RecordedLaunch]) -> str:
    return "".join(one.kernel for one in launches)


# Counting ----------------------------------------------------------------------------------------


def test_steps_are_found_and_counted_once(chip: Chip) -> None:
    program = Program(chip)
    program.steps(100)
    found = program.finish()
    assert chip.events == ["start", "stop", "replay", "end of replay", "resume", "stop"]
    assert sorted(samples(found)) == ["a", "b", "c"]
    assert {one.key.kernel: one.per_step for one in found.groups} == {"a": 2, "b": 1, "c": 1}
    assert program.said == ["counting 4 launches: about 1 s"]
    assert not found.notes


def test_a_program_is_not_counted_before_it_repeats_itself(chip: Chip) -> None:
    program = Program(chip)
    for i in range(40):
        program.steps(1, [(f"new {i}", 10_000.0), *STEP])
        assert not program.counts
    program.until_counted()


def test_records_that_take_long_to_read_are_counted_too(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many launches: what they were is known a second after they ended."""
    program = Program(chip)
    taken = program.recorder._activity.taken

    def slowly() -> Any:
        found = taken()
        chip.ns += 2 * whole.ACTIVE_NS
        return found

    monkeypatch.setattr(program.recorder._activity, "taken", slowly)
    program.steps(30)
    assert "replay" in chip.events


def test_launches_in_cuts_are_left_out_and_later_ones_moved(chip: Chip) -> None:
    program = Program(chip)
    program.until_counted()
    before = len(program.recorder._launches)
    program.steps(30)
    found = program.finish()
    recording = found.recording
    assert len(program.recorder._launches) > before
    assert {one.ns for one in recording.steps} == {STEP_NS}
    assert all(one.end_ns == after.start_ns for one, after in pairwise(recording.steps))
    assert found.counting_s == pytest.approx(0.4 + 2 * STEP_NS / 1e9)


def test_what_overlaps_a_cut_is_left_out() -> None:
    each = in_order("abcd", us=10, gap_us=0)
    assert kernels(without(each, [(15_000, 25_000)])) == "ad"
    (last,) = without(each[3:], [(15_000, 25_000), (0, 1000)])
    assert (last.start_ns, last.end_ns) == (19_000, 29_000)
    assert without(each, []) == each


def test_counts_belong_to_the_place_in_the_step(chip: Chip) -> None:
    step = (("a", 10_000.0), ("b", 10_000.0), ("a", 40_000.0))
    program = Program(chip)
    program.steps(100, step)
    found = program.finish()
    parts = [(one.part, one.samples[0].us) for one in found.groups if one.key == key("a")]
    assert parts == [(1, 40_000), (2, 10_000)]


def test_what_repeats_without_steps_is_counted_by_its_time(chip: Chip) -> None:
    program, dice = Program(chip), random.Random(3)
    names = [(name, 10_000.0) for name in "abcdef"]
    for _ in range(60):
        dice.shuffle(names)
        program.steps(1, names)
    found = program.finish()
    assert not found.recording.steps
    assert sorted(samples(found)) == list("abcdef")
    assert not found.notes


def test_what_takes_no_time_is_never_counted(chip: Chip) -> None:
    program = Program(chip)
    program.steps(300, [*STEP, ("tiny", 9.0), ("tiny too", 1.0)])
    found = program.finish()
    assert chip.events.count("replay") == 1
    assert sorted(samples(found)) == ["a", "b", "c"]


def test_only_kernels_with_a_name_are_counted(chip: Chip) -> None:
    program = Program(chip, only="^ti|b")
    program.steps(100, [*STEP, ("tiny", 11.0)])
    assert sorted(samples(program.finish())) == ["b", "tiny"]


def test_if_no_kernel_has_the_name_the_run_says_so(chip: Chip) -> None:
    program = Program(chip, only="no such")
    program.steps(100)
    found = program.finish()
    assert chip.events == ["start", "stop"] and list(found.notes) == [NEVER]


def test_nothing_is_counted_without_counters(chip: Chip) -> None:
    program = Program(chip, counters=False)
    program.steps(50)
    found = program.finish()
    assert chip.events == ["start", "stop"] and not found.notes
    assert len(found.recording.steps) == 49 and not samples(found)


def test_a_program_that_does_something_else_is_not_counted(chip: Chip) -> None:
    program = Program(chip)
    program.steps(4)
    chip.wait(5e6)
    program.look()
    assert not program.counts


def test_a_window_ends_if_nothing_comes(chip: Chip) -> None:
    program = Program(chip)
    program.until_counted()
    chip.wait((PATIENCE_S + 0.5) * 1e6)
    program.look()
    assert not program.counts and chip.recording
    program.steps(200)
    assert sorted(samples(program.finish())) == ["a", "b", "c"]
    assert chip.events.count("replay") == 2


def test_a_window_goes_on_while_a_launch_is_counted(chip: Chip) -> None:
    """With much memory to save one launch takes longer than the patience."""
    program = Program(chip)
    program.until_counted()
    assert chip.replay
    chip.replay.counting = True
    chip.wait((PATIENCE_S + 0.5) * 1e6)
    program.look()
    chip.replay.counting = False
    chip.wait((PATIENCE_S - 0.5) * 1e6)
    program.look()
    assert program.counts
    program.steps(200)
    assert sorted(samples(program.finish())) == ["a", "b", "c"]
    assert chip.events.count("replay") == 1


def test_it_is_told_if_counting_takes_longer_than_was_said(chip: Chip) -> None:
    step = [(f"k{i}", 3000.0) for i in range(30)]
    chip.replay_s = EACH_S
    usual = Program(chip)
    usual.steps(300, step)
    usual.finish()
    chip.replay_s = 5 * EACH_S
    slow = Program(chip)
    while len(slow.said) < 2:  # it looks while launches are counted
        for one in step:
            slow.step([one])
            slow.look()
    slow.steps(300, step)
    slow.finish()
    assert len(usual.said) == 1 and len(slow.said) == 2
    assert slow.said[1].startswith("counting takes longer than usual here: about ")


def test_launches_whose_grids_grow_are_one_group(chip: Chip) -> None:
    """As those of a model with a cache: each is counted under the name that it has."""
    program = Program(chip)
    for i in range(200):
        for name, us in STEP:
            chip.launch(name, us, grid=(64 + i, 1, 1) if name == "c" else GRID)
        program.look()
    found = program.finish()
    assert len(found.recording.steps) > 80
    grids = {group.key.kernel: group.key.grid for group in found.groups}
    assert grids == {"a": GRID, "b": GRID, "c": NOWHERE}
    assert sorted(samples(found)) == ["a", "b", "c"] and not found.notes


def test_what_was_counted_before_a_grid_grew_is_kept(chip: Chip) -> None:
    program = Program(chip)
    for i in range(100):
        for name, us in STEP:
            chip.launch(name, us, grid=(64 + i // 50, 1, 1) if name == "c" else GRID)
        program.look()
    found = program.finish()
    assert {group.key.grid for group in found.groups if group.key.kernel == "c"} == {NOWHERE}
    assert sorted(samples(found)) == ["a", "b", "c"]


# CUDA graphs -------------------------------------------------------------------------------------


def graph_steps(program: Program, count: int, kernels: Step = ()) -> None:
    for _ in range(count):
        program.step(kernels)
        program.chip.launch_graph(10_000)
        program.look()


@pytest.mark.parametrize("passes", [1, 5])
def test_a_graph_is_counted_in_as_many_steps_as_it_takes(chip: Chip, passes: int) -> None:
    chip.passes = passes
    program = Program(chip)
    graph_steps(program, 200)
    found = program.finish()
    assert [one.flops["tensor_bf16"] for one in found.graphs] == [77]
    assert found.graph_launches == 1 and not found.notes
    assert program.said == ["counting a CUDA graph: about 1 s"]
    assert chip.events.count("replay") == 1


def test_a_graph_that_is_counted_in_part_is_told_beside_other_notes(chip: Chip) -> None:
    chip.passes = 10_000
    program = Program(chip)
    graph_steps(program, 5)
    chip.ns += 3 * STEP_NS
    graph_steps(program, 100)
    found = program.finish()
    assert not found.graphs and any("as long as the median" in one for one in found.notes)
    why = "a CUDA graph was counted in part, and was not launched often enough"
    assert f"nothing was counted: {why}" in found.notes


def test_what_was_busy_and_is_counted_later_is_not_told(chip: Chip) -> None:
    chip.refuses = BusyError("launches do not end")
    program = Program(chip)
    program.steps(30)
    assert "replay" not in chip.events
    chip.refuses = None
    program.steps(300)
    found = program.finish()
    assert samples(found) and not found.notes


def test_kernels_beside_a_graph_are_counted_too(chip: Chip) -> None:
    chip.passes = 5
    program = Program(chip)
    graph_steps(program, 300, STEP)
    found = program.finish()
    assert sorted(samples(found)) == ["a", "b", "c"] and found.graphs
    assert not found.notes


def test_of_several_graphs_none_is_counted(chip: Chip) -> None:
    program = Program(chip)
    for _ in range(100):
        chip.launch_graph(10_000)
        chip.launch("node", 10_000, graph=8)
        program.look()
    found = program.finish()
    assert not found.graphs
    assert list(found.notes) == [NEVER]


# Ends --------------------------------------------------------------------------------------------


def test_a_program_that_ends_while_it_is_counted(chip: Chip) -> None:
    program = Program(chip)
    program.until_counted()
    chip.launch("a", 10_000)
    chip.launch("b", 10_000)
    found = program.finish()
    assert chip.events[-4:] == ["replay", "end of replay", "resume", "stop"]
    assert samples(found) and set(samples(found)) <= {"a", "b"}
    assert found.recording.steps and {one.ns for one in found.recording.steps} == {STEP_NS}


def test_a_program_that_launches_nothing(chip: Chip) -> None:
    program = Program(chip)
    for _ in range(20):
        chip.wait(200_000)
        program.look()
    found = program.finish()
    assert not found.recording.launches and not found.groups and not found.notes


def test_a_program_that_never_repeats_itself(chip: Chip) -> None:
    program = Program(chip)
    for i in range(50):
        program.steps(1, [(f"k{i}", 10_000.0)])
    found = program.finish()
    assert list(found.notes) == [NEVER]
    assert not found.recording.steps and len(found.recording.launches) == len(found.groups) == 50


def test_steps_with_little_of_the_time_do_not_stand_for_the_program(chip: Chip) -> None:
    program = Program(chip, counters=False)
    program.steps(10)
    program.steps(1, [("long", 1e6)])
    found = program.finish()
    assert not found.recording.steps and len(found.recording.launches) == 41


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, range(19)),
        ({"skip": 3}, range(3, 19)),
        ({"steps": 4}, range(4)),
        ({"steps": 4, "skip": 3}, range(3, 7)),
        ({"steps": 4, "skip": 17}, range(17, 19)),
        ({"skip": 50}, range(18, 19)),
    ],
)
def test_some_of_the_steps_are_kept(chip: Chip, options: dict[str, int], kept: range) -> None:
    program = Program(chip, counters=False, **options)
    began = chip.ns
    program.steps(20)
    found = program.finish().recording
    starts = [(one.start_ns - began) // STEP_NS for one in found.steps]
    assert starts == list(kept)
    assert len(found.launches) == 4 * len(kept)


def test_copies_of_the_steps_are_kept(chip: Chip) -> None:
    program = Program(chip, counters=False, steps=2, skip=1)
    chip.copy(size=7)
    for _ in range(10):
        program.step()
        chip.copy(size=1000)
    found = program.finish().recording
    assert [one.bytes for one in found.copies] == [1000, 1000]


def test_launches_that_are_taken_late_are_put_in_order(chip: Chip) -> None:
    program = Program(chip, counters=False)
    one, two, three, four = (launch("ab"[i % 2], 10, i * 12) for i in range(4))
    chip.launches, chip.numbers = [two, four], [0, 0]
    program.look()
    chip.launches, chip.numbers = [one, three], [0, 0]
    assert kernels(program.finish().recording.launches) == "abab"


def test_steps_whose_kernels_run_beside_others_are_found(chip: Chip) -> None:
    """A collective in a stream of its own begins before or after the kernels that follow it."""
    program = Program(chip, counters=False)
    chance = random.Random(3)
    launches = []
    for step in range(12):
        for place, name in enumerate(("mm", "reduce", "norm", "adam")):
            late_us = chance.uniform(0, 25) if name == "reduce" else 0
            place_us = 60 * step + 12 * place
            order = 1 + 4 * step + place
            launches.append(launch(name, 10, place_us + late_us, order=order))
    launches.sort(key=lambda one: one.start_ns)
    for part in (launches[1::2], launches[::2]):  # buffers of records come in any order
        chip.launches, chip.numbers = part, [0] * len(part)
        program.look()
    found = program.finish().recording
    assert len(found.steps) == 11
    assert [one.ns for one in found.steps] == [60_000] * 11
    assert kernels(found.launches) == "mmreducenormadam" * 11


# Failures ----------------------------------------------------------------------------------------


def test_dropped_records_are_noted(chip: Chip) -> None:
    program = Program(chip, counters=False)
    chip.dropped = 3
    program.steps(10)
    assert list(program.finish().notes) == ["some records were dropped: memory is full"]


def test_without_a_profiler_it_goes_on(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(cupti: object, device: int) -> None:
        raise UnavailableError("no counters here")

    monkeypatch.setattr(whole, "counters_of", missing)
    program = Program(chip)
    program.steps(50)
    found = program.finish()
    assert list(found.notes) == ["no counters here"]
    assert chip.events == ["start", "stop"] and len(found.recording.steps) == 49


@pytest.mark.parametrize("error", [refused(), OSError("no driver")])
def test_records_go_on_if_counting_does_not_start(chip: Chip, error: Any) -> None:
    chip.refuses = error
    program = Program(chip)
    program.steps(50)
    found = program.finish()
    assert [str(error) in note for note in found.notes] == [True]
    assert chip.events == ["start", "stop"]
    assert len(found.recording.steps) == 49


@pytest.mark.parametrize("error", [KernelError("busy"), OSError("busy")])
def test_records_go_on_if_they_cannot_be_stopped(chip: Chip, error: Exception) -> None:
    program = Program(chip)
    chip.stops = error
    program.steps(50)
    chip.stops = None
    found = program.finish()
    assert len(found.notes) == 1 and "busy" in next(iter(found.notes))
    assert len(found.recording.steps) == 49


def test_records_go_on_if_a_launch_cannot_be_replayed(chip: Chip) -> None:
    chip.fails_after = 2
    program = Program(chip)
    program.steps(100)
    found = program.finish()
    assert list(found.notes) == ["it could not be replayed"]
    assert chip.events == ["start", "stop", "replay", "end of replay", "resume", "stop"]
    assert sum(map(len, samples(found).values())) == 2


def test_records_go_on_if_counting_does_not_end(chip: Chip) -> None:
    chip.ends = OSError("gone")
    program = Program(chip)
    program.steps(100)
    found = program.finish()
    assert list(found.notes) == ["counting ended: OSError: gone"]
    assert chip.events == ["start", "stop", "replay", "end of replay", "resume", "stop"]
    assert len(found.recording.steps) > 80


def test_what_was_counted_before_the_thread_failed_is_kept(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(chip)
    program.until_counted()
    program.step()
    with monkeypatch.context() as patch:
        patch.setattr(program.recorder, "_take", lambda: 1 / 0)
        program.look()
    program.steps(50)
    found = program.finish()
    assert list(found.notes) == ["counting ended: ZeroDivisionError: division by zero"]
    assert chip.events == ["start", "stop", "replay", "end of replay", "resume", "stop"]
    assert samples(found)


def test_what_was_recorded_is_kept_if_the_end_fails(chip: Chip) -> None:
    program = Program(chip, counters=False)
    program.steps(20)
    chip.stops = KernelError("cuptiActivityFlushAll: unknown")
    found = program.finish()
    assert list(found.notes) == ["cuptiActivityFlushAll: unknown"]
    assert len(found.recording.steps) == 19


def test_its_thread_ends(chip: Chip) -> None:
    recorder = Whole("it.py")
    recorder.start()
    thread = recorder._thread
    assert thread.is_alive() and thread.daemon
    recorder.finish()
    assert not thread.is_alive()


def test_a_long_program_is_not_recorded_for_ever(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole, "MOST_LAUNCHES", 20)
    program = Program(chip, counters=False)
    program.steps(6)
    assert not chip.recording
    for _ in range(50):
        program.step()
    found = program.finish()
    assert len(found.recording.launches) <= 24
    assert list(found.notes) == ["recording ended after 20 launches; the program went on"]


# What rooflab itself costs -----------------------------------------------------------------------


def looks_taking(program: Program, chip: Chip, monkeypatch: pytest.MonkeyPatch, ns: int) -> None:
    taken = program.recorder._activity.taken

    def slowly() -> Any:
        chip.ns += ns
        return taken()

    monkeypatch.setattr(program.recorder._activity, "taken", slowly)


def test_steps_beside_a_look_are_left_out(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    program = Program(chip)
    looks_taking(program, chip, monkeypatch, 10**7)
    program.steps(100)
    found = program.finish()
    assert {one.ns for one in found.recording.steps} == {STEP_NS}
    assert len(found.recording.steps) > 50
    assert not found.notes


def test_steps_beside_looks_are_better_than_none(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(chip)
    looks_taking(program, chip, monkeypatch, 10**7)
    monkeypatch.setattr(program.recorder, "_rests", lambda: False)
    program.steps(100)
    assert {one.ns for one in program.finish().recording.steps} == {STEP_NS + 10**7}


def steps_with_gaps(program: Program, gaps: Sequence[int]) -> None:
    """A gap is in the step before it."""
    for gap in gaps:
        program.step()
        program.chip.ns += gap * STEP_NS


@pytest.mark.parametrize(
    ("gaps", "kept"),
    [
        ([0] * 30 + [3] + [0] * 9, 38),  # one of many; the last step has no end
        ([1, 2, 3, 4, 5] + [0] * 20, 19),  # the first ones
    ],
)
def test_few_steps_that_take_far_longer_are_left_out_and_told(
    chip: Chip, gaps: list[int], kept: int
) -> None:
    program = Program(chip, counters=False)
    steps_with_gaps(program, gaps)
    found = program.finish()
    assert {one.ns for one in found.recording.steps} == {STEP_NS}
    assert len(found.recording.steps) == kept
    (note,) = found.notes
    assert "took more than 1.5 times as long as the median" in note
    assert note.endswith(" ms: they are left out")


def test_many_steps_that_take_far_longer_belong_to_the_program(chip: Chip) -> None:
    program = Program(chip, counters=False)
    steps_with_gaps(program, [0, 0, 0, 8] * 15)
    found = program.finish()
    assert {one.ns for one in found.recording.steps} == {STEP_NS, 9 * STEP_NS}
    (note,) = found.notes
    assert note.endswith(" ms: they are included")


@pytest.mark.parametrize("counters", [True, False])
def test_a_program_that_repeats_itself_late_is_counted_and_named(
    chip: Chip, counters: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(chip, counters=counters)
    monkeypatch.setattr(program.recorder, "_is_nameable", lambda: True)
    draw = random.Random(1)
    for i in range(75):  # a kernel now and then
        chip.launch(draw.choice("uvwxyz"), 10.0, grid=(i + 1, 1, 1))
        chip.ns += 2 * 10**8
        program.look()
    program.steps(120)
    assert program.recorder._named is not None
    assert ("replay" in chip.events) == counters


def test_it_looks_less_and_less_at_a_program_of_which_all_is_known(chip: Chip) -> None:
    program = Program(chip)
    program.steps(100)
    looks: list[float] = []
    flush = program.recorder._activity.flush

    def flushed() -> None:
        looks.append(chip.ns / 1e9)
        flush()

    program.recorder._activity.flush = flushed  # type: ignore[method-assign]
    program.steps(1500)
    gaps = [after - before for before, after in pairwise(looks)]
    assert len(gaps) > 1 and gaps[0] > 1
    assert all(after > 1.9 * before for before, after in pairwise(gaps))


def test_the_program_gets_the_interpreter_soon_while_it_is_looked_at(chip: Chip) -> None:
    program = Program(chip)
    usual = sys.getswitchinterval()
    found: list[float] = []
    program.recorder._activity.flush = lambda: found.append(sys.getswitchinterval())  # type: ignore[method-assign]
    program.steps(3)
    assert max(found) == pytest.approx(SWITCH_S, rel=0.02)
    assert usual == sys.getswitchinterval() > 10 * SWITCH_S


def test_a_fork_and_a_choice_of_the_program_are_left_alone() -> None:
    usual = sys.getswitchinterval()
    with yielding():
        if (child := os.fork()) == 0:
            os._exit(sys.getswitchinterval() != usual)
        assert os.waitpid(child, 0)[1] == 0
        sys.setswitchinterval(0.02)
    assert sys.getswitchinterval() == pytest.approx(0.02)
    sys.setswitchinterval(usual)


def test_it_looks_less_at_graphs_of_which_nothing_can_be_learned(
    chip: Chip, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Program(chip, counters=False)
    monkeypatch.setattr(program.recorder, "_is_nameable", lambda: True)
    for _ in range(200):
        chip.launch_graph(10_000.0)
        chip.launch_graph(20_000.0)
        program.look()
    assert program.recorder._wait_s > 1
