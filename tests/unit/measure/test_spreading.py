"""Problems on several GPUs, on four devices that copy and compute at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake
import numpy as np
import pytest
import synthetic

import rooflab
from rooflab import planning
from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch, Timed
from rooflab.errors import UsageError
from rooflab.figures import draw_all
from rooflab.figures.selection import MEMORY, SEVERAL_GPUS, place_of
from rooflab.kernels.base import Kernel
from rooflab.measure.multi_gpu import Spread
from rooflab.measure.protocol import Protocol
from rooflab.model.problem import DRAM, PEER, OnGpus, Problem
from rooflab.runs.scaling import scalings
from rooflab.runs.store import load
from rooflab.workloads import build, rebuild

GEMM = {"m": 24, "n": 32, "k": 16}


def gemm(**parameters: Any) -> Problem:
    return build("gemm", "fp32", {**GEMM, **parameters})


def kernel(problem: Problem, name: str) -> Kernel:
    (found,) = fake.KERNELS.select([name], "exact", problem.workload)
    return found


def spread(problem: Problem, name: str = "fast", device: Device | None = None) -> Spread:
    return Spread(device or fake.Grouped(), problem, kernel(problem, name).prepare, SweepConfig())


PROBLEMS = {
    "rows": gemm(gpus=2),
    "columns": gemm(gpus=2, split="columns"),
    "four": gemm(gpus=4),
    "uneven": gemm(m=13, n=7, gpus=3),
    "one row each": gemm(m=4, gpus=4, split="columns"),
    "transposed": gemm(layout="tt", gpus=3, split="columns"),
    "a batch": gemm(batch=3, gpus=2),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_block_is_right_whatever_the_order(name: str) -> None:
    one = spread(PROBLEMS[name])
    for _ in range(2):
        verdict = one.verify()
        assert verdict.reason == ""
        assert verdict.rel_error < 1e-6
        one.refill()


@pytest.mark.parametrize("workload", ["allreduce", "allgather"])
@pytest.mark.parametrize("gpus", [2, 3, 4])
def test_collectives_are_right(workload: str, gpus: int) -> None:
    verdict = spread(build(workload, "fp32", {"elements": 1000, "gpus": gpus}), "together").verify()
    assert verdict.reason == ""


def test_a_wrong_kernel_is_found() -> None:
    assert "worst at C[" in spread(PROBLEMS["rows"], "wrong").verify().reason


def test_a_product_that_does_not_wait_for_its_operand_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sent = Spread._sent

    def unmarked(self: Spread, move: Any) -> None:
        sent(self, move)

    monkeypatch.setattr(Spread, "_sent", unmarked)
    assert "NaN" in spread(PROBLEMS["four"]).verify().reason


def test_copies_go_on_beside_products() -> None:
    """A product of 2 x 8 x 8 x 512 FLOP takes 82 us, its operand 410 us over the link."""
    device = fake.Grouped()
    one = spread(gemm(m=512, n=512, k=512, gpus=2), device=device)
    assert one.verify().reason == ""
    (us,) = device.time([one.launch]).times_us
    (alone,) = (2 * 512**3 / (0.8 * fake.PEAK) * 1e6,)
    assert alone / 2 <= us < 0.51 * alone


def test_a_spread_problem_is_measured_like_any_other() -> None:
    problem = PROBLEMS["rows"]
    (outcome,) = Protocol(fake.Grouped(), SweepConfig()).measure(problem, [kernel(problem, "fast")])
    assert outcome.status == "ok", outcome.reason
    assert outcome.summary is not None
    assert outcome.energy_j is None


def test_its_warm_up_takes_as_long_as_any_other() -> None:
    class Counting(fake.Grouped):
        warmed_us = 0.0

        def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
            timed = super().time(launches, before)
            self.warmed_us += sum(timed.times_us)
            return timed

    problem, device = PROBLEMS["rows"], Counting()
    timing = Timing(warmup_s=0.5, warmup_launches=1, min_rounds=3, max_rounds=3)
    rounds_us = 3 * (timing.round_s * 1e6)
    config = SweepConfig(timing=timing)
    Protocol(device, config).measure(problem, [kernel(problem, "fast")])
    assert device.warmed_us > 500_000
    assert device.warmed_us < 500_000 + 2 * rounds_us


def test_more_gpus_than_there_are_skip_the_row() -> None:
    problem = gemm(gpus=5)
    (outcome,) = Protocol(fake.Grouped(), SweepConfig()).measure(problem, [kernel(problem, "fast")])
    assert (outcome.status, outcome.reason) == (
        "skipped",
        "this machine has 4 GPUs: give --gpus 4 or less",
    )


def test_a_device_that_is_alone_says_so() -> None:
    config = SweepConfig.model_validate(
        {"workloads": [{"kernels": ["fast"], "sizes": [8], "parameters": {"gpus": [1, 2]}}]}
    )
    with pytest.raises(UsageError, match="the only one here: leave out --gpus"):
        planning.plan(config, fake.FakeDevice())


# The model ---------------------------------------------------------------------------------------


def test_each_gpu_has_its_part_of_the_work_and_receives_the_rest() -> None:
    problem = build("gemm", "bf16", {"m": 1000, "n": 1000, "k": 1000, "gpus": 2})
    assert problem.flops_each == problem.flops / 2
    assert problem.traffic[PEER] == problem.peer_bytes == 2 * 1000 * 1000 / 2
    own = 2 * (500 * 1000 + 1000 * 1000 + 500 * 1000)
    assert problem.traffic[DRAM] == own + 2 * problem.peer_bytes
    assert build("gemm", "bf16", {**problem.record.parameters, "m": 1001}).flops_each == (
        2 * 501 * 1000 * 1000
    )


def test_as_many_gpus_as_a_domain_of_nvlink_has_are_allowed() -> None:
    assert gemm(m=99, n=99, gpus=72).gpus == 72
    assert gemm(m=24, n=32, gpus=24).gpus == 24


@pytest.mark.parametrize("split", ["rows", "columns"])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_traffic_of_a_product_on_three_gpus_by_hand(split: str, beta: float) -> None:
    """Rows: a GPU reads its A and all of B, writes what it gets of B, sends its part twice."""
    problem = gemm(m=6, n=9, k=5, batch=2, gpus=3, split=split, beta=beta)
    a, b, c = (4 * 2 * size for size in (6 * 5, 5 * 9, 6 * 9 * (1 + bool(beta))))
    own, moving = (a, b) if split == "rows" else (b, a)
    received = moving * 2 // 3
    assert problem.traffic == {
        DRAM: own // 3 + c // 3 + moving + received + 2 * moving // 3,
        PEER: received,
    }
    assert problem.flops_each == problem.flops // 3


def test_a_kernel_is_launched_on_parts_and_a_collective_on_all() -> None:
    parts = gemm(gpus=2).placement.launched
    assert {(one.extents["m"], one.extents["n"], one.gpus) for one in parts} == {(12, 16, 1)}
    together = build("allreduce", "fp32", {"elements": 8, "gpus": 2})
    assert together.placement.launched == [together]
    assert gemm().placement.launched == [gemm()]


def test_the_busiest_gpu_counts() -> None:
    """Of five columns the second GPU has three: the first one receives them."""
    problem = gemm(m=4, n=5, k=7, gpus=2)
    assert problem.traffic[PEER] == problem.peer_bytes == 4 * 3 * 7
    assert problem.intensity == problem.flops / problem.peer_bytes
    assert OnGpus(problem).whole == gemm(m=4, n=5, k=7)


@pytest.mark.parametrize("name", PROBLEMS)
def test_tasks_compute_every_element_once(name: str) -> None:
    problem = PROBLEMS[name]
    written = np.zeros(problem.operands[-1].shape, int)
    for task in problem.tasks:
        written[task.blocks["c"].index] += 1
        assert task.blocks["c"].owner == task.gpu
        assert task.blocks["c"].elements == written[task.blocks["c"].index].size
        for one in task.problem.operands:
            shape = tuple(end - start for start, end in task.blocks[one.name].bounds)
            assert shape == one.shape
    assert (written == 1).all()
    assert sum(task.problem.flops for task in problem.tasks) == problem.flops


def test_gpus_belong_to_the_identity_and_the_size() -> None:
    problem = gemm(gpus=2, split="columns")
    assert (problem.size, problem.record.about) == ("24x32x16@2columns", "layout nn")
    assert rebuild(problem.record) == problem
    assert not problem.record.resident
    assert gemm(gpus=1, split="columns") == gemm()
    assert gemm().record.resident


def test_bandwidths_of_collectives_are_those_of_nccls_tests() -> None:
    reduced = build("allreduce", "fp32", {"elements": 1000, "gpus": 4})
    assert (reduced.result_bytes, reduced.bus_bytes, reduced.peer_bytes) == (4000, 6000, 4000)
    gathered = build("allgather", "fp32", {"elements": 1000, "gpus": 4})
    assert (gathered.result_bytes, gathered.bus_bytes, gathered.peer_bytes) == (16000, 12000, 12000)


@pytest.mark.parametrize(
    ("workload", "values", "words"),
    [
        ("gemm", {**GEMM, "gpus": 0}, "gpus = 0 is out of range: give 1 to 72"),
        ("gemm", {"m": 99, "n": 99, "k": 9, "gpus": 73}, "gpus = 73 is out of range"),
        ("gemm", {**GEMM, "gpus": 25}, "too many for 24x32"),
        ("gemm", {**GEMM, "gpus": 2, "split": "k"}, "choose from rows, columns"),
        ("gemm", {**GEMM, "batch": 4, "gpus": 2, "host": "pinned"}, "leave out one of them"),
        ("allreduce", {"elements": 8, "gpus": 1}, "give --gpus 2 or more"),
        ("add", {"rows": 8, "columns": 8, "gpus": 2}, "no parameter 'gpus'"),
    ],
)
def test_wrong_spreading_is_refused(workload: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(workload, "fp32", values)


# Runs --------------------------------------------------------------------------------------------


def test_a_sweep_over_gpus_is_written_read_and_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(fake.__file__).parent))
    options: dict[str, Any] = {
        "kernels": ["fast"],
        "shapes": ["64x32x32,128x32x32"],
        "precisions": ["fp32"],
        "gpus": [1, 2, 4],
        "split": ["rows"],
    }
    run = rooflab.sweep("gemm", device="fake:Grouped", out=tmp_path, **options)
    assert {row.problem.size for row in load(run.path).ok} == {
        *("64x32x32", "64x32x32@2rows", "64x32x32@4rows"),
        *("128x32x32", "128x32x32@2rows", "128x32x32@4rows"),
    }
    strong = [one for one in scalings(run.ok) if not one.weak]
    assert [one.gpus for one in strong] == [[1, 2, 4], [1, 2, 4]]
    (weak,) = [one for one in scalings(run.ok) if one.weak]
    assert [row.problem.size for row in weak.rows] == ["64x32x32", "128x32x32@2rows"]
    for one in scalings(run.ok):
        assert one.times_one[0] == 1
        assert 1 < one.times_one[1] <= 2
    assert "scaling.png" in {path.name for path in draw_all(run)}


def test_only_a_problem_on_one_gpu_has_a_place_on_the_roofline() -> None:
    row = synthetic.row("tiled", (64, 64, 64), "fp32", 1.0, synthetic.h200_roofline())
    spread_row = replace(row, problem=gemm(gpus=2).record)
    assert place_of(row.problem) == MEMORY
    assert place_of(spread_row.problem) == SEVERAL_GPUS
