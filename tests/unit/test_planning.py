"""The parts of a plan that need no device."""

from __future__ import annotations

import fake
import pytest
from synthetic import gemm, h200_roofline

from rooflab.config import Selection, SweepConfig
from rooflab.engine import processes
from rooflab.errors import UsageError
from rooflab.model.problem import Problem
from rooflab.model.roofline import Roofline
from rooflab.planning import Plan, Step, plan, smallest
from rooflab.workloads import build

KERNELS = tuple(fake.KERNELS.select(["fast"], "exact", "gemm"))


def found(*problems: Problem) -> list[Problem]:
    return [step.problem for step in smallest([Step(one, KERNELS) for one in problems])]


def test_the_smallest_problem_of_each_workload_and_precision() -> None:
    add = build("add", "fp32", {"columns": 1000})
    small, large = gemm(8, 8, 8), gemm(64, 64, 64)
    half = gemm(512, 512, 512, "fp16")
    assert found(large, half, small, add) == [small, half, add]
    assert found(small, large) == [small]
    assert found() == []


def test_of_equal_problems_the_first() -> None:
    first, second = gemm(8, 8, 8, layout="tn"), gemm(8, 8, 8, layout="nt")
    assert found(first, second) == [first]


def test_memory_counts_and_not_work() -> None:
    thin, square = gemm(1, 1, 10_000), gemm(64, 64, 64)
    assert thin.flops < square.flops
    assert found(thin, square) == [square]


def test_what_is_in_other_memory_is_left_out() -> None:
    streamed = gemm(8, 8, 8, batch=4, host="pinned")
    spread = gemm(8, 8, 8, gpus=2)
    assert found(streamed, spread) == []
    resident = gemm(256, 256, 256)
    assert found(streamed, resident, spread) == [resident]


# Processes ---------------------------------------------------------------------------------------


class Chosen(fake.FakeDevice):
    """Of several processes one is chosen, as on a GPU; its roofs are an H200's."""

    candidates = None

    def roofline(self) -> Roofline:
        return h200_roofline()


def test_long_launches_need_no_choice_of_processes() -> None:
    short, long = gemm(512, 512, 512), gemm(4096, 4096, 4096)
    unknown = build("add", "int32", {"columns": 2**30})

    def started(device: fake.FakeDevice, *problems: Problem) -> int:
        plan = Plan(SweepConfig(), tuple(Step(one, KERNELS) for one in problems))
        return processes(plan, device)

    assert started(Chosen(), long) == 1
    assert started(Chosen(), long, short) == SweepConfig().timing.contexts
    assert started(fake.FakeDevice(), short) == 1
    assert started(Chosen(), unknown) == 1  # bytes suffice
    without = Chosen()
    without.roofline = lambda: Roofline(())  # type: ignore[method-assign]
    assert started(without, long) == SweepConfig().timing.contexts


# What cannot run here ----------------------------------------------------------------------------


def config(*patterns: str) -> SweepConfig:
    return SweepConfig(workloads=[Selection(workload="gemm", kernels=list(patterns), sizes=[8])])


def test_a_kernel_that_cannot_run_is_left_out_if_another_can() -> None:
    planned = plan(config("fast", "absent"), fake.FakeDevice())
    assert [kernel.name for kernel in planned.kernels] == ["fast"]
    assert planned.notes == ("absent left out: nobody has it: pip install it",)


def test_what_kernels_of_several_selections_lack_is_one_note() -> None:
    both = [Selection(workload="gemm", kernels=["fast", "absent"], sizes=[n]) for n in (8, 16)]
    planned = plan(SweepConfig(workloads=both), fake.FakeDevice())
    assert planned.notes == ("absent left out: nobody has it: pip install it",)


def test_of_several_workloads_those_that_cannot_run_are_left_out() -> None:
    only = Selection(workload="gemm", kernels=["absent*"], sizes=[8])
    other = Selection(workload="add", kernels=["fast"], sizes=[8])
    planned = plan(SweepConfig(workloads=[only, other]), fake.FakeDevice())
    assert {step.problem.workload for step in planned.steps} == {"add"}
    assert planned.notes[-1] == "gemm left out: none of its kernels can run here"


@pytest.mark.parametrize("pattern", ["absent", "absent*"])
def test_without_any_kernel_there_is_no_plan(pattern: str) -> None:
    with pytest.raises(UsageError, match=r"can(not)? run here"):
        plan(config(pattern), fake.FakeDevice())
