"""Names of PyTorch's operations in a script, with a watch and a chip that only answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import imitation
import pytest
from imitation import GRID, Chip

from rooflab.devices.records import Needs
from rooflab.errors import UsageError
from rooflab.programs import naming, whole
from rooflab.programs.labels import CallLabel
from rooflab.programs.naming import cannot_name
from rooflab.programs.session import Findings

STEP = (("embed", 10_000.0), ("mm", 10_000.0), ("norm", 10_000.0), ("mm", 20_000.0))


class Watch:
    """Gives each launch the number of an operation, as long as it goes on."""

    made: list[Watch]

    def __init__(self, begin: Any, end: Any, *, compiles: bool = True) -> None:
        assert not compiles
        self.calls: dict[int, CallLabel] = {}
        self.inside = False
        self.paused = False
        Watch.made.append(self)

    def __enter__(self) -> Watch:
        self.inside = True
        return self

    def left(self) -> bool:
        self.inside = False
        return True

    def pause(self) -> None:
        self.paused = True


@pytest.fixture
def chip(monkeypatch: pytest.MonkeyPatch) -> Chip:
    made = Chip()
    made.install(monkeypatch, whole)
    Watch.made = []
    monkeypatch.setattr(naming, "OperationWatch", Watch)
    monkeypatch.setattr(naming, "in_main_thread", called)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    return made


def called(function: Callable[[], object], patience_s: float, *, late: bool = False) -> bool:
    function()
    return True


class Program(imitation.Program):
    """Which is looked at after each step."""

    def __init__(self, chip: Chip, *, works: bool = False, **options: Any) -> None:
        self.works = works
        super().__init__(chip, **options)

    def steps(self, count: int, grown: int = 0) -> None:
        for i in range(count):
            for place, (name, us) in enumerate(STEP):
                if Watch.made and Watch.made[0].inside:
                    self.operation(name, place)
                self.chip.launch(name, us, grid=(4 + grown * i, 1, 1) if name == "norm" else GRID)
                self.chip.number = 0
            self.look()

    def operation(self, name: str, place: int) -> None:
        calls = Watch.made[0].calls
        self.chip.number = len(calls) + 1
        phase = ("forward" if place < 3 else "head", f"layer.{place}")
        work = Needs(1, 1, "bf16", f"gemm {place}") if self.works else None
        calls[self.chip.number] = CallLabel(f"aten::{name}", phase, work)


def names(found: Findings) -> list[tuple[str, tuple[str, ...]]]:
    launches = found.recording.launches[: len(STEP)]
    return [(one.operation, one.phase) for one in launches]


EXPECTED = [
    ("aten::embed", ("forward", "layer.0")),
    ("aten::mm", ("forward", "layer.1")),
    ("aten::norm", ("forward", "layer.2")),
    ("aten::mm", ("head", "layer.3")),
]


def test_operations_of_a_script_are_named(chip: Chip) -> None:
    program = Program(chip, counters=False)
    program.steps(60)
    found = program.finish()
    assert names(found) == EXPECTED and not found.notes
    assert chip.events == ["start", "numbers", "end of numbers", "stop"]
    (watch,) = Watch.made
    assert watch.paused and not watch.inside
    assert len(found.recording.steps) > 40


def test_counting_comes_first(chip: Chip) -> None:
    program = Program(chip)
    program.steps(200)
    found = program.finish()
    assert names(found) == EXPECTED and not found.notes
    assert all(group.samples for group in found.groups)
    assert chip.events.index("end of replay") < chip.events.index("numbers")


def test_each_work_of_one_kernel_is_counted(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is known once operations are named: their times are equal."""
    step = (("embed", 10_000.0), *(("mm", 10_000.0) for _ in range(3)))
    monkeypatch.setattr(sys.modules[__name__], "STEP", step)
    program = Program(chip, works=True)
    program.steps(400)
    found = program.finish()
    products = [group for group in found.groups if group.key.kernel == "mm"]
    assert len(products) == 3 and all(group.samples for group in products)


def test_operations_of_steps_whose_grids_grow_are_named(chip: Chip) -> None:
    program = Program(chip, counters=False)
    program.steps(200, grown=1)
    found = program.finish()
    assert names(found) == EXPECTED and not found.notes


def test_a_main_thread_that_never_comes(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(naming, "in_main_thread", lambda *_, **more: False)
    program = Program(chip, counters=False)
    program.steps(60)
    found = program.finish()
    assert list(found.notes) == ["operations are not named: the main thread runs no Python"]
    assert names(found) == [("", ())] * 4
    assert chip.events[-2:] == ["end of numbers", "stop"]


def test_nvtx_ranges_of_any_program_are_phases(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those around operations of PyTorch's are further out."""
    recorded = chip.launch

    def launch(kernel: str = "k", us: float = 10, **more: Any) -> None:
        recorded(kernel, us, **more)
        chip.phases = [("nvtx",) if one.kernel == "mm" else () for one in chip.launches]

    monkeypatch.setattr(chip, "launch", launch)
    program = Program(chip, counters=False)
    program.steps(60)
    operation, (one, *_) = names(program.finish())[1]
    assert (operation, one) == ("aten::mm", "nvtx")
    monkeypatch.delitem(sys.modules, "torch")
    program = Program(chip, counters=False, inside="nvtx")
    program.steps(60)
    found = program.finish()
    assert {one.kernel for one in found.recording.launches} == {"mm"}
    assert {one.operation for one in found.recording.launches} == {""}


def test_a_program_that_ends_meanwhile(chip: Chip) -> None:
    program = Program(chip, counters=False)
    while not Watch.made:
        program.steps(1)
    found = program.finish()
    assert list(found.notes) == ["operations are not named: no step was seen whole"]
    assert not Watch.made[0].inside


def test_compiled_programs_are_not_watched(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = SimpleNamespace(counters={"frames": {"ok": 2}})
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", compiled)
    program = Program(chip, counters=False)
    program.steps(60)
    found = program.finish()
    assert list(found.notes) == ["operations are not named: the program uses torch.compile"]
    assert not Watch.made[0].inside and names(found) == [("", ())] * 4


def test_what_only_was_imported_may_be_watched() -> None:
    assert not cannot_name({})
    assert not cannot_name({"torch._dynamo.utils": SimpleNamespace(counters={"frames": {}})})


def test_a_range_is_a_part_of_each_step(chip: Chip) -> None:
    program = Program(chip, inside="forward")
    program.steps(200)
    found = program.finish()
    assert [one.kernel for one in found.recording.launches[:3]] == ["embed", "mm", "norm"]
    assert {one.ns for one in found.recording.steps} == {30_000_000}
    assert all(group.samples for group in found.groups)


def test_a_range_without_names_says_why(chip: Chip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch")
    program = Program(chip, inside="forward", counters=False)
    program.steps(60)
    with pytest.raises(UsageError, match=r"no ranges are known$"):
        program.finish()


def test_it_goes_on_until_a_step_of_a_program_that_is_ahead_is_done(chip: Chip) -> None:
    program = Program(chip, counters=False)
    while not Watch.made:
        program.steps(1)
    activity = program.recorder._activity
    chip.launches = []
    chip.wait((naming.SHORTEST_S + 1.0) * 1e6)
    program.look()
    assert activity.kept == 0 and Watch.made[0].inside
    program.steps(100)
    assert names(program.finish()) == EXPECTED


def test_of_graphs_nothing_is_named(chip: Chip) -> None:
    program = Program(chip, counters=False)
    for _ in range(100):
        chip.launch_graph(30_000)
        program.look()
    assert not program.finish().notes and not Watch.made
