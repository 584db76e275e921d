"""Each check of a kernel while it is timed, by itself: what it finds, and what it lets pass."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig
from rooflab.devices.base import Launch
from rooflab.kernels.base import Operands
from rooflab.measure import inspection
from rooflab.measure.buffers import SENTINELS, rotate
from rooflab.measure.inspection import KEEPS, Inspector
from rooflab.measure.protocol import Protocol
from rooflab.measure.verify import put
from rooflab.model.problem import Hard, Problem
from rooflab.workloads import build
from rooflab.workloads.gemm import Gemm

PROBLEM = gemm(24, 20, 33)
PROBLEMS = {
    "gemm": PROBLEM,
    "beta": gemm(24, 20, 33, "bf16", beta=-0.5),
    "growing": gemm(24, 20, 33, "fp16", beta=3.0),
    "fp8": gemm(24, 20, 33, "fp8"),
    "one element": gemm(1, 1, 7, "fp16"),
    "one large number": gemm(1, 1, 7, "bf16", alpha=1e6),
    "int32": build("add", "int32", {"columns": 70}),
    "int64": build("sum", "int64", {"elements": 500}),
    "copy": build("copy", "fp64", {"columns": 70}),
    "softmax": build("softmax", "fp16", {"rows": 9, "columns": 70}),
    "rmsnorm": build("rmsnorm", "fp32", {"rows": 9, "columns": 70}),
    "blur": build("blur", "fp32", {"batch": 3, "rows": 7, "columns": 5}),
    "fft": build("fft", "fp32", {"batch": 2, "n": 5}),
    "route": build("route", "bf16", {"tokens": 9, "experts": 70, "chosen": 3}),
    "sort_experts": build("sort_experts", "fp16", {"tokens": 9, "experts": 7, "chosen": 3}),
    "combine": build("combine", "bf16", {"tokens": 9, "columns": 7, "chosen": 3}),
    "gelu": build("linear", "fp16", {"m": 9, "n": 7, "k": 33, "epilogue": "gelu"}),
    "gate": build("linear", "bf16", {"m": 9, "n": 7, "k": 33, "epilogue": "swiglu"}),
}


class Lab:
    """A kernel on all copies of a problem's operands, and the inspector that looks at it.

    ``spoil`` is called after a right launch with the operands and the number of their copy.
    """

    def __init__(self, problem: Problem = PROBLEM, seed: int = 0, *, cold: bool = True) -> None:
        self.device = fake.FakeDevice()
        self.rotation = rotate(self.device, problem, 3, cold=cold)
        self.inspector = Inspector(self.device, self.rotation, Random(seed))
        self.launched: list[int] = []
        self.inputs = self.rotation.inputs()
        self.right = [fake.compute(copy) for copy in self.rotation.operands()]

    def launches(self, kernel: Callable[[int, Operands], None] | None = None) -> list[Launch]:
        """``kernel`` is called with the number of the copy; by default it is right."""

        def launch(place: int) -> Launch:
            def work() -> None:
                self.launched.append(place)
                if kernel:
                    kernel(place, copies[place])
                else:
                    self.right[place]()

            return work

        copies = self.rotation.operands()
        return [launch(place) for place in range(len(copies))]

    def run(self, launches: Iterable[Launch]) -> None:
        for launch in launches:
            launch()

    def compute(self) -> None:
        """Right results in all copies, as after the rounds before."""
        for right in self.right:
            right()

    def intact(self) -> bool:
        """Whether inputs and guards are as they were."""
        return self.rotation.inputs() == self.inputs and not self.rotation.trespass()


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
@pytest.mark.parametrize("cold", [True, False])
def test_right_work_passes_every_check(problem: Problem, cold: bool) -> None:
    for seed in range(2):
        lab = Lab(problem, seed, cold=cold)
        launches = lab.launches()
        lab.inspector.poison(0)
        lab.run(launches[:1])
        verdict = lab.inspector.judge(0)
        assert (verdict.reason, verdict.rel_error <= problem.tolerance) == ("", True)
        assert lab.inspector.reads_outside(launches[0]) == ""
        assert lab.inspector.between(launches, lab.run, close=True) == ""
        lab.compute()
        assert lab.inspector.after(launches, lab.run, 100.0, 9, close=True) == ""
        assert lab.inspector.on_other_inputs(launches, lab.run) == ""
        assert lab.inspector.on_other_inputs(launches, lab.run) == ""
        assert lab.inspector.unharmed() == ""
        assert lab.intact()


# Launches that do nothing ------------------------------------------------------------------------


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_poison_shows_that_nothing_was_written(problem: Problem) -> None:
    lab = Lab(problem)
    lab.compute()
    lab.inspector.poison(0)
    reason = lab.inspector.judge(0).reason
    beta = any(one.role == "inout" for one in problem.operands)
    expected = "relative error" if beta else "not written"
    assert expected in reason


def test_the_poison_of_integers_cannot_be_foreseen() -> None:
    """Of two sentinels one is chosen: a kernel that knows one of them is found out."""
    found = set()
    for seed in range(20):
        lab = Lab(PROBLEMS["int32"], seed)
        lab.inspector.poison(0)
        found |= set(lab.rotation.copies[0].c.reshape(-1).tolist())
    assert found == set(SENTINELS)


@pytest.mark.parametrize(
    "name", ["gemm", "one large number", "fp8", "int32", "int64", "softmax", "one element"]
)
def test_changed_elements_show_that_old_results_stay(name: str) -> None:
    """Only the first copy's outputs are poisoned: a launch on another one finds its results."""
    lab = Lab(PROBLEMS[name])
    lab.compute()
    launches = lab.launches(lambda place, one: None if place in (1, 3) else lab.right[place]())
    assert lab.inspector._launched(launches, [2, 0, 1, 3], lab.run) == (
        "does not write its results in 2 of 4 launches"
    )
    lab.compute()
    assert lab.inspector._launched(launches, [2, 0, 4], lab.run) == ""


def test_a_kernel_that_only_repairs_poison_is_found() -> None:
    def repairs(place: int, one: Operands) -> None:
        if np.isnan(one.c).any():
            lab.right[place]()

    lab = Lab()
    lab.compute()
    reason = lab.inspector.between(lab.launches(repairs), lab.run, close=False)
    assert reason == "does not write its results in 7 of 8 launches"


def test_a_kernel_that_writes_few_elements_is_found() -> None:
    """It leaves a tenth of its results to the launch before."""

    def lazy(place: int, one: Operands) -> None:
        kept = one.c[0, ::10].copy()
        poisoned = np.isnan(one.c).any()
        lab.right[place]()
        if not poisoned:
            one.c[0, ::10] = kept

    found = 0
    for seed in range(10):
        lab = Lab(seed=seed)
        lab.compute()
        found += "does not write" in lab.inspector.between(lab.launches(lazy), lab.run, close=False)
    assert found == 10


@pytest.mark.parametrize("skipped", [10, 3])
def test_a_kernel_that_skips_every_tenth_launch_is_found(skipped: int) -> None:
    def lazy(place: int, one: Operands) -> None:
        if len(lab.launched) % skipped:
            lab.right[place]()

    lab = Lab(cold=False)
    lab.compute()
    assert lab.inspector._often(lab.launches(lazy), lab.run, 0) == (
        "does not write its results in some launches"
    )
    assert len(lab.launched) <= inspection.OFTEN
    assert lab.inspector._often(lab.launches(), lab.run, 0) == ""


def test_a_kernel_that_reads_its_results_is_launched_on_them() -> None:
    def forgets(place: int, one: Operands) -> None:
        before = one.c.copy()
        lab.right[place]()
        if (before != one.initial["c"]).any():
            one.c[...] = before

    lab = Lab(gemm(24, 20, 33, beta=0.5), cold=False)
    assert lab.inspector._often(lab.launches(forgets), lab.run, 9)
    assert lab.inspector._often(lab.launches(), lab.run, 9) == ""


def test_a_problem_with_little_room_has_hard_inputs_of_all_kinds() -> None:
    def no_large(place: int, one: Operands) -> None:
        lab.right[place]()
        one.y[abs(one.y) > 1e4] = 0

    for seed in range(5):
        lab = Lab(build("gemv", "fp32", {"m": 1, "n": 50}), seed)
        assert lab.inspector.on_other_inputs(lab.launches(), lab.run) == ""
        reason = lab.inspector.on_other_inputs(lab.launches(no_large), lab.run)
        assert reason.startswith("on rows of large numbers")


def test_a_slow_kernel_is_not_launched_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "OFTEN_S", 0)
    lab = Lab()
    assert lab.inspector._often(lab.launches(), lab.run, 0) == ""
    assert lab.launched == []
    monkeypatch.setattr(inspection, "OFTEN_S", 1e9)
    assert lab.inspector._often(lab.launches(), lab.run, 0) == ""
    assert len(lab.launched) == inspection.OFTEN


def test_an_inspection_launches_on_some_copies_and_the_last_one_on_all() -> None:
    lab = Lab()
    count = len(lab.rotation.copies)
    assert count > inspection.INSPECTED
    assert lab.inspector.between(lab.launches(), lab.run, close=False) == ""
    assert len(set(lab.launched)) == len(lab.launched) == inspection.INSPECTED
    first = list(lab.launched)
    lab.launched.clear()
    lab.inspector.between(lab.launches(), lab.run, close=False)
    assert lab.launched != first
    lab.launched.clear()
    assert lab.inspector.after(lab.launches(), lab.run, 100.0, 9, close=False) == ""
    assert sorted(lab.launched) == list(range(count))


def test_an_inspection_comes_after_any_round_but_the_last() -> None:
    protocol = Protocol(fake.FakeDevice(), SweepConfig())
    moments = {protocol._moment(5) for _ in range(200)}
    assert moments == {1, 2, 3, 4}
    assert protocol._moment(1) == 1


# Wrong work --------------------------------------------------------------------------------------


def test_wrong_results_on_some_copies_are_counted() -> None:
    def wrong(place: int, one: Operands) -> None:
        lab.right[place]()
        if place in (1, 3):
            one.c[0, 5, 5] += 1

    lab = Lab()
    lab.compute()
    assert lab.inspector._launched(lab.launches(wrong), [2, 0, 1, 3], lab.run) == (
        "wrong on 2 of 4 copies of the operands"
    )
    lab.compute()
    reason = lab.inspector._launched(lab.launches(wrong), [3, 0, 1], lab.run)
    assert reason.endswith("worst at C[5, 5]")


def test_who_writes_elsewhere_is_told_so() -> None:
    def past(place: int, one: Operands) -> None:
        lab.right[place]()
        ctypes.c_ubyte.from_address(one.c.ctypes.data + one.c.nbytes).value = 1

    def before(place: int, one: Operands) -> None:
        lab.right[place]()
        ctypes.c_ubyte.from_address(one.a.ctypes.data - 1).value = 1

    def harmful(place: int, one: Operands) -> None:
        lab.right[place]()
        one.b[0, 0, 0] += 1

    for kernel, reason in (
        (past, "writes past the end of C"),
        (before, "writes before the start of A"),
        (harmful, "changes its inputs"),
    ):
        lab = Lab()
        launches = lab.launches(kernel)
        lab.run(launches[:1])
        assert lab.inspector.unharmed() == reason
        assert lab.inspector.unharmed() == ""  # it is undone
        assert lab.intact()
        told = lab.inspector.between(launches, lab.run, close=False)
        assert told == reason.replace("before the start", "past the end")  # of the copy before
        lab.rotation.refill(lab.device)
        lab.rotation.arm()
        lab.inspector.poison(0)
        lab.run(launches[:1])
        assert lab.inspector.judge(0).reason == reason


def neighbour(array: Any, offset: int) -> float:
    """The FP32 number so many elements from the array's first one."""
    return float(ctypes.c_float.from_address(array.ctypes.data + 4 * offset).value)


@pytest.mark.parametrize(
    ("where", "offset", "reason"),
    [
        ("a", 24 * 33, "reads past the end of A"),
        ("a", -1, "reads before the start of A"),
        ("b", -7, "reads before the start of B"),
        ("b", 33 * 20 + 1000, "reads past the end of B"),
    ],
)
def test_what_is_read_outside_is_named(where: str, offset: int, reason: str) -> None:
    """A padded tile reads beyond its operand and multiplies what is there by zero."""

    def reads(place: int, one: Operands) -> None:
        lab.right[place]()
        one.c[...] += 0 * neighbour(one[where], offset)

    lab = Lab()
    launches = lab.launches(reads)
    lab.inspector.poison(0)
    lab.run(launches[:1])
    assert "NaN" in lab.inspector.judge(0).reason
    assert lab.inspector.reads_outside(launches[0]) == reason
    assert lab.intact()


def test_what_is_right_by_chance_reads_nothing_outside() -> None:
    """Results that another thread writes are there now and then when they are looked at."""
    in_time = iter([True, False, True, False])

    def late(place: int, one: Operands) -> None:
        if next(in_time, False):
            lab.right[place]()

    lab = Lab()
    launches = lab.launches(late)
    assert lab.inspector.reads_outside(launches[0]) == ""
    assert lab.inspector.reads_output(launches[0]) is None
    assert lab.intact()


# Results that are kept ---------------------------------------------------------------------------


def test_a_launch_that_fails_meanwhile_leaves_the_guards_whole() -> None:
    lab = Lab()

    def fails() -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        lab.inspector.reads_outside(fails)
    assert lab.intact()


def test_who_writes_outside_may_have_changed_inputs_too() -> None:
    lab = Lab()
    lab.rotation.copies[1].a[...] += 1
    ctypes.memset(lab.rotation.copies[0].c.ctypes.data + lab.rotation.copies[0].c.nbytes, 0, 1)
    assert lab.inspector.unharmed() == "writes past the end of C"
    assert lab.intact()


def test_results_kept_by_address_are_found_by_other_numbers() -> None:
    kept: dict[int, Any] = {}

    def keeps(place: int, one: Operands) -> None:
        if place not in kept:
            lab.right[place]()
            kept[place] = one.c.copy()
        one.c[...] = kept[place]

    for seed in range(5):
        kept.clear()
        lab = Lab(seed=seed)
        launches = lab.launches(keeps)
        lab.run(launches)
        assert lab.inspector.between(launches, lab.run, close=False) == ""
        assert lab.inspector.between(launches, lab.run, close=True) == KEEPS
        assert lab.inspector.on_other_inputs(launches, lab.run) == KEEPS
        assert lab.intact()


@pytest.mark.parametrize("name", ["gemm", "int32", "copy", "softmax", "rmsnorm"])
def test_a_copy_of_an_input_from_before_is_found(name: str) -> None:
    """A kernel that transposes or packs an operand once, while it is prepared."""

    def packed(place: int, one: Operands) -> None:
        first, *_ = (one.name for one in lab.rotation.problem.operands if one.role == "in")
        saved = one[first].copy()
        one[first][...] = old[first]
        lab.right[place]()
        one[first][...] = saved

    for seed in range(5):
        lab = Lab(PROBLEMS[name], seed)
        old = {name: array.copy() for name, array in lab.rotation.copies[0].items()}
        launches = lab.launches(packed)
        lab.run(launches)
        assert lab.inspector.between(launches, lab.run, close=True)
        assert lab.inspector.on_other_inputs(launches, lab.run)
        assert lab.intact()


def test_a_copy_of_an_input_from_the_first_launch_is_found() -> None:
    """A kernel that packs an operand again only when its first element changes."""

    def packs(place: int, one: Operands) -> None:
        if place not in kept or kept[place].flat[0] != one.b.flat[0]:
            kept[place] = one.b.copy()
        saved = one.b.copy()
        one.b[...] = kept[place]
        lab.right[place]()
        one.b[...] = saved

    found = 0
    for seed in range(8):
        kept: dict[int, np.ndarray] = {}
        lab = Lab(seed=seed)
        found += bool(lab.inspector.between(lab.launches(packs), lab.run, close=True))
        assert lab.intact()
    assert found >= 6


def test_work_that_is_right_on_ordinary_numbers_only_is_found() -> None:
    def clamps(place: int, one: Operands) -> None:
        saved = one.a.copy()
        np.clip(one.a, -1, 1, out=one.a)
        lab.right[place]()
        one.a[...] = saved

    lab = Lab()
    launches = lab.launches(clamps)
    lab.run(launches)
    assert lab.inspector.between(launches, lab.run, close=False) == ""
    reason = lab.inspector.between(launches, lab.run, close=True)
    assert reason.startswith("after a change of some numbers of its inputs: ")
    assert lab.intact()


def test_what_is_read_and_written_is_renewed_before_inputs_change() -> None:
    lab = Lab(PROBLEMS["beta"])
    lab.compute()  # C is not what it was
    assert lab.inspector.between(lab.launches(), lab.run, close=True) == ""


@pytest.mark.parametrize(
    ("new_us", "known_us", "told"),
    [(1000.0, 100.0, True), (1000.0, 760.0, True), (1000.0, 780.0, False), (12.0, 10.0, False)],
)
def test_inputs_that_are_known_by_their_content_are_faster(
    new_us: float, known_us: float, told: bool
) -> None:
    def remembers(place: int, one: Operands) -> None:
        content = one.a.tobytes() + one.b.tobytes()
        lab.device.clock_us += known_us if content in seen else new_us
        seen.add(content)
        lab.right[place]()

    seen: set[bytes] = set()
    lab = Lab()
    reason = lab.inspector._replays(lab.launches(remembers), known_us)
    expected = f"takes {new_us:.4g} µs on new inputs, and {known_us:.4g} on those it has seen"
    assert reason == (expected if told else "")
    assert lab.intact()


def test_a_memory_that_looks_at_some_inputs_only_is_found() -> None:
    """It is as fast on many new inputs, for which its results are wrong."""
    chance = Random(0)

    def sloppy(place: int, one: Operands) -> None:
        if one.a.tobytes() == known or chance.random() < 0.4:
            lab.device.clock_us += 100.0
            one.c[...] = result
        else:
            lab.device.clock_us += 1000.0
            lab.right[place]()

    lab = Lab()
    lab.run(lab.launches())
    known, result = lab.rotation.copies[0].a.tobytes(), lab.rotation.copies[0].c.copy()
    assert lab.inspector._replays(lab.launches(sloppy), 100.0) == KEEPS
    assert lab.intact()


def test_results_that_new_inputs_do_not_change_are_right() -> None:
    """Such as a maximum, or what is rounded coarsely."""
    lab = Lab()
    for copy in lab.rotation.copies:
        copy.a[...] = 0
        copy.b[...] = 0
    lab.inspector.renew()
    lab.run(lab.launches())
    unchanged = lab.inspector._unchanged(0)
    lab.run(lab.launches())
    assert not unchanged()
    lab.rotation.copies[0].a[0, 0] = lab.rotation.copies[0].b[0, 0] = 1
    assert unchanged()


@pytest.mark.parametrize("seed", range(5))
def test_a_launch_after_inputs_were_written_may_be_slower(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Caches hold less then, on an honest kernel of microseconds."""
    chance = Random(seed)
    written = False

    def honest(place: int, one: Operands) -> None:
        nonlocal written
        lab.device.clock_us += 3 * chance.random() + (20 if written else 4)
        written = False
        lab.right[place]()

    def noted(*args: Any) -> Any:
        nonlocal written
        written = True
        return put(*args)

    lab = Lab()
    monkeypatch.setattr(inspection, "put", noted)
    assert lab.inspector._replays(lab.launches(honest), 5.0) == ""


def pairs_of(
    new_us: Callable[[int], float], known_us: Callable[[int], float], launch_us: float = 100.0
) -> tuple[bool, int]:
    """Whether a kernel with these times of its pairs, from 0 on, is told; how many were timed."""
    count = max(1, min(inspection.KNOWN, int(inspection.KNOWN_US / launch_us)))
    each = 2 + count + min(count, inspection.TIMED)

    def timed(place: int, one: Operands) -> None:
        pair, turn = divmod(len(lab.launched) - 1, each)
        lab.device.clock_us += new_us(pair) if turn == 1 else known_us(pair)

    lab = Lab()
    told = bool(lab.inspector._replays(lab.launches(timed), launch_us))
    pairs, rest = divmod(len(lab.launched), each)
    assert rest == 0
    return told, pairs


@pytest.mark.parametrize("launch_us", [1.0, 100.0, 15_000.0, 1e6])
def test_other_programs_hide_no_memory_and_make_none(launch_us: float) -> None:
    """Wald's test: each pair adds its logarithm, until the sum is beyond a limit."""
    slow, fast = (lambda pair: 1000.0), (lambda pair: 100.0)
    assert pairs_of(slow, fast, launch_us) == (True, 18)
    assert pairs_of(slow, slow, launch_us) == (False, 6)
    assert pairs_of(fast, slow, launch_us) == (False, 6)
    equal = {0, 7, 14}
    assert pairs_of(slow, lambda pair: 1000.0 if pair in equal else 100.0, launch_us) == (True, 28)
    half = pairs_of(slow, lambda pair: 1000.0 if pair % 2 else 100.0, launch_us)
    assert half == (False, 22)


@pytest.mark.parametrize("seed", range(5))
def test_a_memory_that_is_used_late_or_often_is_found(seed: int) -> None:
    chance = Random(seed)

    def late(place: int, one: Operands) -> None:
        content = one.a.tobytes() + one.b.tobytes()
        seen[content] = seen.get(content, 0) + 1
        lab.device.clock_us += 100.0 if seen[content] > 60 else 1000.0

    def often(place: int, one: Operands) -> None:
        content = one.a.tobytes() + one.b.tobytes()
        known = content in seen and chance.random() < 0.7
        seen[content] = 1
        lab.device.clock_us += 100.0 if known else 1000.0

    for memory in (late, often):
        seen: dict[bytes, int] = {}
        lab = Lab()
        assert "on those it has seen" in lab.inspector._replays(lab.launches(memory), 300.0)


# While it is timed -------------------------------------------------------------------------------


def test_a_round_is_watched() -> None:
    """Of its copies some are looked at, whichever were launched; others may be as they are."""
    lab = Lab()
    places = list(range(len(lab.rotation.copies)))
    for launched, told in ((places, ""), (places[:0], "does not write its results")):
        with lab.inspector.watched(places) as watch:
            lab.run([lab.launches()[place] for place in launched])
        assert watch.reason.startswith(told)
        assert bool(watch.reason) == bool(told)
    seen = set()
    for _ in range(40):
        before = [copy.c.copy() for copy in lab.rotation.copies]
        with lab.inspector.watched([1, 1, 2, 1]):
            changed = {
                place
                for place, copy in enumerate(lab.rotation.copies)
                if not np.array_equal(copy.c, before[place], equal_nan=True)
            }
        assert changed <= {1, 2}
        seen |= changed
    assert seen == {1, 2}


def test_a_round_is_compared_at_times() -> None:
    """Results are wrong only while nobody has poisoned them."""

    def junk(place: int, one: Operands) -> None:
        poisoned = np.isnan(one.c).any()
        lab.right[place]()
        if not poisoned:
            one["c"][...] *= 2

    lab = Lab()
    lab.compute()
    found = []
    for _ in range(40):
        with lab.inspector.watched(range(len(lab.rotation.copies))) as watch:
            lab.run(lab.launches(junk))
        found.append(watch.reason)
    assert 3 < sum(map(bool, found)) < 25
    assert all("relative error" in reason for reason in filter(None, found))


@pytest.mark.parametrize("name", ["int32", "copy", "softmax"])
def test_a_result_that_equals_a_mark_is_right(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of few small integers many are alike."""
    lab = Lab(PROBLEMS[name])
    lab.compute()
    (output,) = [one for one in lab.rotation.problem.operands if one.written]
    with lab.inspector.watched([0, 1, 2, 3]) as watch:
        lab.run(lab.launches())
        fresh = lab.rotation.copies[0][output.name].reshape(-1)
        marks = inspection._Marks(lab.device, lab.rotation, Random(1))
        marks._outputs = [
            (rows, some, known * 0 - 1, fresh[some][:1].item())
            for rows, some, known, _ in marks._outputs
        ]
        assert 0 in marks.left([0, 1, 2, 3])
        assert lab.inspector._doubted(marks, [0, 1, 2, 3], lab.inspector._expect) == ""
    assert watch.reason == ""


@pytest.mark.parametrize("wrong", [False, True])
def test_what_is_read_and_written_is_judged_as_launches_left_it(wrong: bool) -> None:
    """Right work goes on from there; a kernel may be right only at first."""
    lab = Lab(PROBLEMS["beta"], cold=False)
    first = lab.rotation.copies[0].initial["c"].copy()

    def lazy(place: int, one: Operands) -> None:
        known = np.array_equal(one.c, first)
        lab.right[place]()
        if wrong and not known:
            one.c[...] = one.a.dtype.type(7)

    for copy in lab.rotation.copies:
        copy.c[...] = first
    reason = lab.inspector._often(lab.launches(lazy), lab.run, 5)
    assert bool(reason) == wrong


def test_inputs_change_before_each_launch_if_there_is_time_for_it() -> None:
    lab, seen, flushed = Lab(cold=False), [], []
    with lab.inspector.watched([0]) as watch:
        assert watch.before(None) is None  # in a batch there is none
        before = watch.before(lambda: flushed.append(1))
        assert before is not None
        for _ in range(5):
            before()
            seen.append(lab.rotation.copies[0].a.copy())
        lab.compute()
    assert len(flushed) == 5
    changed = [not np.array_equal(one, other) for one, other in pairwise(seen)]
    assert all(changed)
    assert lab.rotation.inputs() == lab.inputs


@pytest.mark.parametrize("name", PROBLEMS)
def test_each_round_has_inputs_of_its_own(name: str) -> None:
    """On every copy and in every input, also if a launch fails; they are as they were after it."""
    lab = Lab(PROBLEMS[name])
    inputs = [one.name for one in lab.rotation.problem.operands if one.role == "in"]

    def content() -> list[tuple[bytes, ...]]:
        return [tuple(copy[name].tobytes() for name in inputs) for copy in lab.rotation.copies]

    rounds = [content()]
    for fails in (False, True):
        with suppress(ValueError), lab.inspector.watched([0]):
            rounds.append(content())
            if fails:
                raise ValueError
        assert content() == rounds[0]
        assert lab.intact()
    if name != "one large number":
        assert all(len(set(operand)) == len(operand) for operand in zip(*rounds, strict=True))
    assert len(set(rounds[1])) == len(lab.rotation.copies)


def test_a_failure_is_told_though_nothing_can_be_restored() -> None:
    """After some failures no GPU does anything any more."""

    def restore() -> None:
        raise OSError("not restored")

    with pytest.raises(ValueError, match="failed"), inspection._undone(restore):
        raise ValueError("failed")
    with pytest.raises(OSError, match="not restored"), inspection._undone(restore):
        pass


# Other inputs ------------------------------------------------------------------------------------


def test_other_inputs_are_hard_and_nobody_has_seen_them() -> None:
    seen: list[bytes] = []

    def looks(place: int, one: Operands) -> None:
        seen.append(one.a.tobytes())
        lab.right[place]()

    for seed in range(2):
        lab = Lab(seed=seed)
        before = lab.rotation.copies[0].a.tobytes()
        assert lab.inspector.on_other_inputs(lab.launches(looks), lab.run) == ""
        assert seen[-1] != before
        assert lab.intact()
    assert seen[0] != seen[1]


def test_a_mistake_on_hard_inputs_is_named_with_them() -> None:
    def flushes(place: int, one: Operands) -> None:
        saved = one.a.copy()
        one.a[np.abs(one.a) < 1e-5] = 0
        lab.right[place]()
        one.a[...] = saved

    lab = Lab()
    lab.run(lab.launches(flushes))
    reason = lab.inspector.on_other_inputs(lab.launches(flushes), lab.run)
    assert reason.startswith("on rows of A with small numbers: ")
    assert lab.intact()


def test_who_writes_elsewhere_on_other_inputs_is_told_so() -> None:
    def past(place: int, one: Operands) -> None:
        if not (np.abs(one.a) <= 1).all():
            ctypes.c_ubyte.from_address(one.c.ctypes.data + one.c.nbytes).value = 1
        lab.right[place]()

    lab = Lab()
    reason = lab.inspector.on_other_inputs(lab.launches(past), lab.run)
    assert reason == "writes past the end of C"


def test_numbers_that_replace_others_are_of_both_signs() -> None:
    problem = gemm(100, 100, 100)
    found: list[float] = []
    for seed in range(20):
        for _, new in inspection._stir(np, problem, Random(seed)).values.values():
            found += new.tolist()
    assert max(map(abs, found)) < inspection.STIRRED
    assert min(found) == pytest.approx(-inspection.STIRRED, rel=0.05)
    assert max(found) == pytest.approx(inspection.STIRRED, rel=0.05)


def test_numbers_that_replace_others_are_within_the_limits_of_an_operand() -> None:
    problem = build("cross_entropy", "fp32", {"rows": 50, "columns": 3})
    found: set[float] = set()
    for seed in range(20):
        _, new = inspection._stir(np, problem, Random(seed)).values["targets"]
        found |= set(new.tolist())
    assert found == {0, 1, 2}


def test_numbers_of_a_row_that_differ_are_replaced_by_others_that_do() -> None:
    lab = Lab(build("route", "bf16", {"tokens": 5, "experts": 100}))
    copies = [one["logits"] for one in lab.rotation.copies]
    before = [one.copy() for one in copies]
    changed: set[int] = set()
    for _ in range(20):
        with lab.inspector.fresh():
            for logits, kept in zip(copies, before, strict=True):
                assert all(len(set(row)) == 100 for row in logits.tolist())
                changed |= set(np.flatnonzero((logits != kept).any(axis=1)).tolist())
        assert lab.intact()
    assert changed == set(range(5))


def test_constant_operands_stay_as_they_are() -> None:
    problem = build("w4a16", "fp32", {"m": 5, "n": 16, "k": 256})
    lab = Lab(problem)
    packed = [copy["w"].copy() for copy in lab.rotation.copies]

    def kernel(place: int, one: Operands) -> None:
        assert (one["w"] == packed[place]).all()  # as before the first launch
        lab.right[place]()

    launches = lab.launches(kernel)
    with lab.inspector.watched([0]) as watch:
        lab.run(launches)
    assert watch.reason == ""
    assert lab.inspector.between(launches, lab.run, close=True) == ""
    assert lab.inspector.after(launches, lab.run, 100.0, 9, close=True) == ""
    assert lab.inspector.on_other_inputs(launches, lab.run) == ""
    assert lab.intact()


class Plain(Gemm):
    """A workload of a user, who says nothing of hard inputs."""

    def hard(self, arrays: Any, draw: Random) -> Iterator[Hard]:
        return iter(())


def test_a_workload_without_hard_inputs_has_other_numbers() -> None:
    problem = Plain(m=24, n=20, k=33)
    lab = Lab(problem)
    kept = [copy.c for copy in lab.rotation.copies]
    assert lab.inspector.on_other_inputs(lab.launches(), lab.run) == ""

    def keeps(place: int, one: Operands) -> None:
        one.c[...] = old[place]

    lab.compute()
    old = [one.copy() for one in kept]
    assert lab.inspector.on_other_inputs(lab.launches(keeps), lab.run) == KEEPS
    assert lab.intact()


def test_inputs_come_back_even_if_a_launch_fails() -> None:
    def fails(place: int, one: Operands) -> None:
        raise ZeroDivisionError

    lab = Lab()
    checks: tuple[Callable[[], object], ...] = (
        lambda: lab.inspector.on_other_inputs(lab.launches(fails), lab.run),
        lambda: lab.inspector._stirred(lab.launches(fails), lab.run),
        lambda: lab.inspector._replays(lab.launches(fails), 100.0),
    )
    for check in checks:
        with pytest.raises(ZeroDivisionError):
            check()
        assert lab.intact()


def test_references_that_are_too_large_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it cannot be told that results are old ones, only that they are wrong."""
    monkeypatch.setattr(inspection, "MOST_KEPT", 0)
    lab = Lab()
    assert lab.inspector.between(lab.launches(), lab.run, close=True) == ""
    assert lab.inspector.on_other_inputs(lab.launches(), lab.run) == ""
    kept = lab.rotation.copies[0].c.copy()

    def keeps(place: int, one: Operands) -> None:
        one.c[...] = kept

    lab.compute()
    kept[...] = lab.rotation.copies[0].c
    reason = lab.inspector.on_other_inputs(lab.launches(keeps), lab.run)
    assert reason.startswith("on ")


def test_new_inputs_have_new_references() -> None:
    lab = Lab()
    lab.inspector.rotation = lab.rotation.filled(lab.device, "ints")
    lab.inspector.renew()
    lab.inputs = lab.rotation.inputs()
    lab.compute()
    assert lab.inspector.between(lab.launches(), lab.run, close=True) == ""
    assert lab.inspector.unharmed() == ""
