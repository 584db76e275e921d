"""Several processes start, one measures."""

from __future__ import annotations

from typing import Any

import fake
import pytest
import synthetic
from synthetic import gemm

from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Launch
from rooflab.errors import ALONE, KernelError, RooflabError
from rooflab.kernels.base import Kernel, Operands
from rooflab.measure import rehearsal
from rooflab.measure.inspection import Inspector
from rooflab.measure.protocol import Outcome
from rooflab.model.problem import Problem
from rooflab.model.roofline import Roofline
from rooflab.worker import client as workers
from rooflab.worker.client import Worker
from rooflab.worker.messages import Done, Failed, Job, Lost, Measured, Progress, Refused, Request
from rooflab.worker.process import START_S, module_path
from rooflab.workloads import build

CONFIG = SweepConfig.model_validate(
    {"timing": {"warmup_s": 0, "warmup_launches": 1, "min_rounds": 3, "max_rounds": 3}}
)
PROBLEM = synthetic.gemm(8, 8, 8).record


def worker(candidates: int = 1, device: str = "fake:FakeDevice") -> Worker:
    return Worker(Job(device, CONFIG, path=module_path(), candidates=candidates), lambda *_: None)


def test_the_process_with_the_shortest_empty_launch_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FAKE_LAUNCHES_DIFFER", "1")
    with worker(candidates=3) as measuring:
        (outcome,) = measuring.measure(PROBLEM, ["fast"])
        ((*launches_us,),) = measuring.launches_us
    assert outcome.status == "ok"
    assert len(set(launches_us)) == 3
    assert outcome.launch_us == min(launches_us)


def test_a_single_process_is_not_probed() -> None:
    with worker() as measuring:
        (outcome,) = measuring.measure(PROBLEM, ["fast"])
    assert (outcome.status, measuring.launches_us) == ("ok", [])


def test_a_kernel_that_kills_the_process_costs_its_own_row() -> None:
    with worker() as measuring:
        died, fine = measuring.measure(PROBLEM, ["dies", "fast"])
    assert (died.status, died.summary) == ("failed", None)
    assert "the measuring process died of SIGSEGV while verifying" in died.reason
    assert (fine.kernel, fine.status) == ("fast", "ok")


def test_a_device_that_cannot_be_opened_says_so() -> None:
    with (
        worker(device="fake:NoSuchDevice") as measuring,
        pytest.raises(RooflabError, match="no device fake:NoSuchDevice"),
    ):
        measuring.roofline()


def test_processes_that_are_ready_are_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a machine's first run, which measures its levels in between."""
    monkeypatch.setattr(workers, "START_S", 5)
    with worker(candidates=2) as measuring:
        measuring.begin()
        measuring.ready()
        assert measuring.roofline().ceilings
        ((*launches_us,),) = measuring.launches_us
    assert len(launches_us) == 2


# What is said to processes -----------------------------------------------------------------------


class Scripted:
    """A process that answers what the test says, or dies."""

    made: list[Scripted]
    scripts: list[list[Any]]
    """Answers of each process, in the order of their start; the last one's are those of others."""

    def __init__(self, job: Job, printed: object = None) -> None:
        scripts = Scripted.scripts
        self._answers = list(scripts[min(len(Scripted.made), len(scripts) - 1)])
        self.sent: list[Any] = []
        self.opened = self.killed = False
        Scripted.made.append(self)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, timeout_s: float) -> Any:
        answer = self._answers.pop(0) if self._answers else Done()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def exit_code(self) -> int:
        return -11

    def end(self) -> None:
        self.killed = True

    def kill(self) -> None:
        self.killed = True


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    Scripted.made, Scripted.scripts = [], [[]]
    monkeypatch.setattr(workers, "begin", Scripted)
    return Scripted


def left(script: type[Scripted]) -> list[bool]:
    """Which processes still run."""
    return [not one.killed for one in script.made]


def test_each_process_rehearses_its_share_and_only_once(script: type[Scripted]) -> None:
    parts = [(gemm(n, n, n).record, name) for n in range(8, 13) for name in ("", "fast")][:5]
    start = [Done(), Done()]
    script.scripts = [[*start, Done(3.0)], [*start, Done(2.0), Done(EMPTY)]]
    with worker(candidates=2) as measuring:
        measuring.begin(parts)
        assert [one.sent for one in script.made] == [[], []]  # nobody waits yet
        measuring.begin(parts)  # they have begun
        measuring.ready()
        assert [one.sent for one in script.made] == [
            [Request("rehearse", ((parts[0], parts[2], parts[4]),))],
            [Request("rehearse", ((parts[1], parts[3]),))],
        ]
        measuring.ready()
        assert measuring.roofline() == EMPTY
        assert measuring.launches_us == [[3.0, 2.0]]
        measuring.ready()  # one has been chosen
    assert [len(one.sent) for one in script.made] == [2, 3]
    assert script.made[1].sent[1:] == [
        Request("probe", (workers.PROBE_S,)),
        Request("roofline", (False,)),
    ]
    assert left(script) == [False, False]


EMPTY = Roofline(())


def test_more_processes_than_problems(script: type[Scripted]) -> None:
    script.scripts = [[Done(), Done()], [Done()], [Done()]]
    with worker(candidates=3) as measuring:
        measuring.begin([(PROBLEM, "")], 5)
        measuring.ready()
        assert [one.sent for one in script.made] == [
            [Request("rehearse", (((PROBLEM, ""),),))],
            [],
            [],
        ]


def test_more_processes_may_rehearse_than_are_candidates(script: type[Scripted]) -> None:
    script.scripts = [[Done(), Done(), Done(EMPTY)], [Done(), Done()]]
    parts = [(PROBLEM, name) for name in ("a", "b", "c")]
    with worker() as measuring:
        measuring.begin(parts, 8)
        measuring.ready()
        assert [one.sent for one in script.made] == [
            [Request("rehearse", ((part,),))] for part in parts
        ]
        assert left(script) == [True, False, False]
        assert measuring.roofline() == EMPTY
        assert measuring.launches_us == []  # nothing to choose from
        assert len(script.made) == 3


@pytest.mark.parametrize("death", [EOFError(), TimeoutError()])
@pytest.mark.parametrize("when", [0, 1])
def test_a_process_that_does_not_start_or_rehearse_is_left_out(
    script: type[Scripted], death: Exception, when: int
) -> None:
    script.scripts = [[Done(), Done(), Done(EMPTY)], [Done()] * when + [death]]
    with worker(candidates=2) as measuring:
        measuring.begin([(PROBLEM, "a"), (PROBLEM, "b")])
        assert measuring.roofline() == EMPTY
        assert left(script) == [True, False]
        assert measuring.launches_us == []


@pytest.mark.parametrize(
    ("death", "why"),
    [
        (EOFError(), "the measuring process died of SIGSEGV"),
        (TimeoutError(), f"no answer for {START_S:g} s"),
    ],
)
def test_if_none_starts_it_is_told_why(script: type[Scripted], death: Exception, why: str) -> None:
    script.scripts = [[death]]
    with worker(candidates=2) as measuring, pytest.raises(RooflabError) as error:
        measuring.roofline()
    assert str(error.value) == (
        f"the measuring process on fake:FakeDevice did not start: {why} (see: rooflab doctor)"
    )
    assert left(script) == [False, False]


def test_a_device_that_is_refused_ends_all_processes(script: type[Scripted]) -> None:
    script.scripts = [[Done()], [Refused("no such device")]]
    with worker(candidates=2) as measuring, pytest.raises(RooflabError, match="no such device"):
        measuring.roofline()
    assert left(script) == [False, False]


def test_a_lost_process_costs_one_row_with_its_own_status(script: type[Scripted]) -> None:
    told = Progress("a", "verifying"), Progress("b", "timing")
    script.scripts = [
        [Done(), *told, Lost("b", "why", "incorrect")],
        [Done(), Done(Measured([Outcome("a"), Outcome("c")]))],
    ]
    steps: list[tuple[str, str]] = []
    job = Job("fake:FakeDevice", CONFIG)
    with Worker(job, lambda problem, kernel, step: steps.append((kernel, step))) as measuring:
        found = measuring.measure(PROBLEM, ["a", "b", "c"], 7.0)
    assert [(one.kernel, one.status, one.reason) for one in found] == [
        ("a", "ok", ""),
        ("b", "incorrect", "why"),
        ("c", "ok", ""),
    ]
    assert steps == [("a", "verifying"), ("b", "timing")]
    assert [one.sent for one in script.made] == [
        [Request("measure", (PROBLEM, ("a", "b", "c"), 7.0))],
        [Request("measure", (PROBLEM, ("a", "c"), 7.0))],
    ]


def test_what_needs_a_process_of_its_own_has_one_for_each_problem(
    script: type[Scripted],
) -> None:
    """The others go on in theirs; once that is known, nothing is lost by it."""
    told = Progress("a", "verifying"), Progress("b", "verifying")
    script.scripts = [
        [Done(), *told, Lost("b", "threads go on", ALONE)],
        [Done(), *[Done(Measured([Outcome("a"), Outcome("c")]))] * 2],
        [Done(), Done(Measured([Outcome("b", changed="threads", stays=True)]))],
    ]
    other = synthetic.gemm(16, 8, 8).record
    with worker() as measuring:
        for problem in (PROBLEM, other):
            found = measuring.measure(problem, ["a", "b", "c"], 7.0)
            assert [(one.kernel, one.status, one.changed) for one in found] == [
                ("a", "ok", ""),
                ("b", "ok", "threads"),
                ("c", "ok", ""),
            ]
            assert left(script)[:3] == [False, True, False]
    assert [one.sent for one in script.made] == [
        [Request("measure", (PROBLEM, ("a", "b", "c"), 7.0))],
        [
            Request("measure", (PROBLEM, ("a", "c"), 7.0)),
            Request("measure", (other, ("a", "c"), 7.0)),
        ],
        [Request("measure", (PROBLEM, ("b",), 7.0))],
        [Request("measure", (other, ("b",), 7.0))],
    ]


def test_a_process_in_which_something_stays_measures_nothing_else(script: type[Scripted]) -> None:
    script.scripts = [[Done(), Done(Measured([Outcome("a", stays=True)]))]]
    with worker() as measuring:
        for _ in range(2):
            measuring.measure(PROBLEM, ["a"])
    assert left(script) == [False, False]


def test_failures_are_passed_on_at_once(script: type[Scripted]) -> None:
    failed = Failed("a", "incorrect", "why")
    script.scripts = [
        [Done(), Progress("a", "timing"), failed, EOFError()],
        [Done(), Done(Measured([Outcome("b")]))],
    ]
    told: list[Failed] = []
    with Worker(
        Job("fake:FakeDevice", CONFIG),
        lambda *_: None,
        lambda problem, *one: told.append(Failed(*one)),
    ) as measuring:
        measuring.measure(PROBLEM, ["a", "b"])
    assert told == [failed]


def test_the_warm_up_goes_on_without_the_kernel_that_ends_it(script: type[Scripted]) -> None:
    warm = {"seconds": 1.0}
    script.scripts = [[Done(), Lost("b", "illegal address")], [Done(), Done(warm)]]
    with worker() as measuring:
        assert measuring.warm_up(PROBLEM, ["a", "b", "c"]) == warm
    assert [one.sent for one in script.made] == [
        [Request("warm_up", (PROBLEM, ("a", "b", "c")))],
        [Request("warm_up", (PROBLEM, ("a", "c")))],
    ]


@pytest.mark.parametrize(
    ("answer", "stays"),
    [
        (Lost("a", "illegal address"), False),
        (Refused("no kernel"), True),
        (EOFError(), False),
        (TimeoutError(), False),
    ],
)
def test_a_warm_up_that_fails_is_no_failure(
    script: type[Scripted], answer: Any, stays: bool
) -> None:
    script.scripts = [[Done(), answer]]
    with worker() as measuring:
        assert measuring.warm_up(PROBLEM, ["a"]) == {}
        assert left(script) == [stays]


# Rehearsal ---------------------------------------------------------------------------------------


class Released(fake.FakeDevice):
    released = 0

    def release(self) -> None:
        self.released += 1


def test_all_checks_are_rehearsed_and_failures_do_not_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rehearsed: list[tuple[str, str]] = []
    checks = ["between", "after", "on_other_inputs"]

    class Watched(Inspector):
        def __getattribute__(self, name: str) -> Any:
            if name in checks:
                problem = super().__getattribute__("rotation").problem
                rehearsed.append((problem.workload, name))
            return super().__getattribute__(name)

    monkeypatch.setattr(rehearsal, "Inspector", Watched)

    class Broken(type(gemm(8, 8, 8))):  # type: ignore[misc]
        def reference(self, arrays: Any, inputs: Any) -> Any:
            raise ZeroDivisionError

    device = Released()
    problems: list[Problem] = [
        gemm(8, 8, 8, "bf16"),
        Broken(m=8, n=8, k=8),
        build("add", "int32", {"columns": 64}),
    ]
    for problem in problems:
        rehearsal.rehearse(device, problem)
    assert rehearsed == [("gemm", name) for name in checks] + [("add", name) for name in checks]
    assert device.released == 3


def test_kernels_are_prepared_and_failures_do_not_matter() -> None:
    prepared: list[str] = []

    def kernel(name: str, error: Exception | None) -> Kernel:
        def prepare(device: Device, operands: Operands) -> Launch:
            prepared.append(name)
            if error:
                raise error
            return lambda: None

        return Kernel(name, "exact", "exact", "", ("fp32",), prepare)

    device = Released()
    for name, error in (("a", None), ("b", KernelError("no")), ("c", SystemError())):
        rehearsal.rehearse(device, gemm(8, 8, 8), [kernel(name, error)])
    assert (prepared, device.released) == (["a", "b", "c"], 3)


def test_a_process_rehearses_both() -> None:
    with worker() as measuring:
        measuring.begin([(PROBLEM, ""), (PROBLEM, "fast")])
        measuring.ready()
        (outcome,) = measuring.measure(PROBLEM, ["fast"])
    assert outcome.status == "ok"
