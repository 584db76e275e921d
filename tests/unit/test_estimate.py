"""How long a sweep will take: what must hold of any estimate."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import fake
import pytest
from synthetic import cpu_roofline, gemm, h200_roofline

from rooflab import estimate
from rooflab.config import SweepConfig, Timing
from rooflab.devices.registry import class_of
from rooflab.estimate import AS_ESTIMATED_S, SHARE, TELLING_US, Left, launch_s, row_s, text, total_s
from rooflab.kernels.base import Kernel
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Roofline
from rooflab.planning import Plan, Step
from rooflab.workloads import build

CPU, GPU, NONE = cpu_roofline(), h200_roofline(), Roofline(())
SIZES = [8, 64, 512, 2048, 8192, 30_000]


def kernel(kind: str = "cpu", name: str = "one", **changes: Any) -> Kernel:
    return replace(fake.exact(name, 0.5), device_kind=kind, **changes)


def plan(sizes: list[int], kernels: int = 1, timing: Timing | None = None, **more: Any) -> Plan:
    many = tuple(kernel(name=f"k{i}") for i in range(kernels))
    config = SweepConfig(timing=timing or Timing(), **more)
    return Plan(config, tuple(Step(gemm(n, n, n), many) for n in sizes))


@pytest.mark.parametrize(
    ("kind", "roofline"), [("cpu", CPU), ("cuda", GPU), ("exact", NONE), ("cuda", NONE)]
)
@pytest.mark.parametrize("workload", ["gemm", "add", "sum", "softmax"])
def test_larger_problems_take_longer(kind: str, roofline: Roofline, workload: str) -> None:
    times = []
    for size in SIZES:
        sized = build(workload, "fp32", dict.fromkeys(build_names(workload), size))
        times.append(row_s(sized, kernel(kind), Timing(), roofline))
        assert launch_s(sized, kernel(kind), roofline) > 0
    assert all(small <= large for small, large in pairwise(times))
    assert times[0] < times[-1]


def build_names(workload: str) -> tuple[str, ...]:
    return {"gemm": ("m", "n", "k"), "add": ("columns",), "sum": ("elements",)}.get(
        workload, ("rows", "columns")
    )


def test_more_kernels_more_sizes_and_more_rounds_take_longer() -> None:
    def seconds(**given: Any) -> float:
        return total_s(plan(**{"sizes": [64, 512], **given}), "cpu", CPU, known=True)

    assert seconds() < seconds(kernels=2) < seconds(kernels=3)
    assert seconds() < seconds(sizes=[64, 512, 1024])
    few, many = (Timing(min_rounds=3, max_rounds=count, max_s=100) for count in (4, 40))
    assert seconds(timing=few) < seconds(timing=many)
    assert seconds(timing=many) > seconds(timing=many.model_copy(update={"max_s": 0.1}))
    assert seconds(timing=Timing(warmup_s=0)) < seconds(timing=Timing(warmup_s=1))


def test_levels_that_are_known_take_no_time() -> None:
    for kind in ("cpu", "cuda", "exact"):
        both = [total_s(plan([64]), kind, CPU, known=known) for known in (False, True)]
        assert both[0] - both[1] == pytest.approx(class_of(kind).costs.levels_s)


def test_a_limit_of_time_is_the_longest_time_of_all_rows() -> None:
    least = total_s(plan([64], max_time_s=1e-9), "cpu", CPU, known=True)
    assert total_s(plan([64], max_time_s=0.1), "cpu", CPU, known=True) == pytest.approx(least + 0.1)
    assert total_s(plan([64], max_time_s=1e6), "cpu", CPU, known=True) < 1e6


def test_what_was_measured_corrects_the_time_left() -> None:
    """A kernel that reaches a hundredth of what was assumed takes a hundred times as long."""
    given = plan([512, 1024, 2048])
    left = Left(given, CPU)
    (first,) = given.steps[0].kernels
    record = given.steps[0].problem.record
    row = Measurement(problem=record, kernel=first.name, time_us=5000.0, roof_percent=SHARE)
    before = left.seconds
    left.done(replace(row, time_us=TELLING_US / 2))  # too short to tell
    same = left.seconds
    assert same < before
    other = build("add", "fp32", {"columns": 9}).record  # a kernel of another workload
    left.done(replace(row, problem=other))
    assert left.seconds == same
    left.done(row)
    slow = [row_s(one.problem, first, Timing(), CPU, SHARE / 100) for one in given.steps[1:]]
    assert left.seconds == pytest.approx(sum(slow))
    assert left.seconds > 10 * same


def test_what_took_three_times_as_long_as_estimated_slows_the_rest_down() -> None:
    given = plan([64, 128, 256], kernels=2)
    left, took_s, estimated_s = Left(given, CPU), 0.0, 0.0
    for step in given.steps:
        expected = (AS_ESTIMATED_S + took_s) / (AS_ESTIMATED_S + estimated_s)
        for kernel in step.kernels:
            one_s = row_s(step.problem, kernel, Timing(), CPU)
            estimated_s, took_s = estimated_s + one_s, took_s + 3 * one_s
            before = left.seconds
            row = Measurement(problem=step.problem.record, kernel=kernel.name, time_us=1.0)
            left.done(row, took_s)
            if kernel is not step.kernels[0]:  # not all of a problem have come
                assert left.seconds == pytest.approx(before - expected * one_s)
    assert expected == pytest.approx(1.1, abs=0.1) and left.seconds == 0


def test_what_does_not_fit_is_skipped_at_once() -> None:
    both, one = plan([64, 10_000]), plan([64])
    seconds = [total_s(each, "cpu", CPU, known=True, memory=1e6) for each in (both, one)]
    assert seconds[0] == seconds[1] < total_s(both, "cpu", CPU, known=True)


def test_the_rounds_of_a_slow_kernel_are_launches() -> None:
    problem, timing = gemm(8192, 8192, 8192), Timing(warmup_s=60, max_rounds=1000)
    launch = launch_s(problem, kernel(), CPU)
    assert launch > timing.slow_s
    three = row_s(problem, kernel(), timing, CPU)
    five = row_s(problem, kernel(), timing.model_copy(update={"slow_rounds": 5}), CPU)
    assert five - three == pytest.approx(2 * launch)


def test_a_library_is_expected_to_be_faster() -> None:
    problem = gemm(8192, 8192, 8192)
    library = launch_s(problem, kernel(library=True), CPU)
    assert library < launch_s(problem, kernel(), CPU)
    assert library == pytest.approx(2 * 8192**3 / 148e9 / estimate.LIBRARY_SHARE)


def test_a_gpu_of_which_nothing_is_known_is_still_a_gpu() -> None:
    """``--dry-run`` without a GPU: some seconds a row, not hours."""
    large = gemm(8192, 8192, 8192, "fp16")
    assert row_s(large, kernel("cuda"), Timing(), NONE) < 10
    assert row_s(large, kernel("cuda"), Timing(), NONE) < row_s(large, kernel(), Timing(), NONE)


def test_at_the_power_limit_every_round_begins_with_the_kernels_own_clock() -> None:
    on = Timing(max_s=10)
    off = Timing(max_s=10, own_clock_s=0)
    large, vectors = gemm(4096, 4096, 4096, "bf16"), gemm(4096, 4096, 4096, "fp32")
    one = kernel("cuda")
    settling = row_s(large, one, on, GPU) - row_s(large, one, off, GPU)
    assert settling == pytest.approx(on.min_rounds * on.own_clock_s)
    assert row_s(vectors, one, on, GPU) == row_s(vectors, one, off, GPU)
    assert row_s(large, kernel(), on, GPU) == row_s(large, kernel(), off, GPU)


def test_time_is_told_in_words() -> None:
    told = {0.4: "0 s", 89.4: "89 s", 90: "2 min", 5399: "90 min", 5400: "1.5 h", 9000: "2.5 h"}
    assert {seconds: text(seconds) for seconds in told} == told
