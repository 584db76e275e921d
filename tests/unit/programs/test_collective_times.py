"""Collectives among a program's launches: their names, and what runs beside them."""

from __future__ import annotations

from pathlib import Path

import pytest
from launched import launch

from rooflab.devices.records import RecordedLaunch, Recording, StepTime
from rooflab.model.collectives import CollectiveLaunch, Collectives, collective_of
from rooflab.programs.collectives import collectives, communication, merged_cuts, restored
from rooflab.programs.groups import grouped, limited
from rooflab.programs.session import Findings
from rooflab.runs.samples import COLLECTIVES, collective_lines, load_collectives


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "AllReduce"),
        ("ncclDevKernel_AllGather_RING_LL", "AllGather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "ReduceScatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL", "Reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float", "AllReduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "SendRecv"),
        ("ncclDevKernel_Generic_4", "Generic"),
        ("ncclSymkDevKernel_x", "NCCL"),
        ("nvshmemi_barrier_kernel", "NVSHMEM"),
        ("gemm", ""),
    ],
)
def test_names_of_collectives(kernel: str, name: str) -> None:
    assert collective_of(kernel) == name


def found(*launches: RecordedLaunch, cuts: list[tuple[int, int]] | None = None) -> Findings:
    steps = [StepTime("it", 0, 100_000), StepTime("it", 100_000, 200_000)]
    recording = Recording(launches=launches, steps=steps)
    return Findings(recording, grouped(launches, 2), cuts=cuts or [])


def of(findings: Findings) -> Collectives | None:
    return collectives(findings, findings.groups)


def met(start_us: float, us: float) -> RecordedLaunch:
    return launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", us, start_us, stream=2)


def test_what_other_kernels_hide_is_not_exposed() -> None:
    launches = [launch("a", 20, 0), met(10, 30), launch("b", 5, 30), launch("b", 10, 32)]
    more = [launch("a", 20, 100), met(120, 30), met(125, 30)]
    it = of(found(*launches, *more))
    assert it and it.steps == 2
    exposed = [(one.step, one.start_ns, one.ns, one.exposed_ns) for one in it.launches]
    assert exposed == [
        (0, 10_000, 30_000, 10_000),
        (1, 120_000, 30_000, 30_000),
        (1, 125_000, 30_000, 30_000),
    ]


def test_time_of_communication_is_counted_once() -> None:
    launches = [launch("a", 20, 0), met(10, 30), met(120, 30), met(125, 30)]
    shares = communication(found(*launches).recording)
    assert shares == {"collectives_us": 32.5, "exposed_us": 27.5}
    assert communication(found(launch("a", 20, 0)).recording) == {}
    assert of(found(launch("a", 20, 0))) is None


def test_rows_are_those_of_the_groups_that_are_shown() -> None:
    launches = [launch(f"k{i}", 50 - i, 100 * i) for i in range(9)]
    it = found(*launches, met(1000, 1))
    assert len(it.groups) == 10
    shown = limited(it.groups, 4)
    known = collectives(it, shown)
    assert known and [one.row for one in known.launches] == [4] == [len(shown) - 1]


def test_times_are_those_of_the_clock() -> None:
    cuts = [(50_000, 60_000), (90_000, 190_000)]
    it = of(found(met(10, 10), met(50, 10), met(80, 10), cuts=cuts))
    assert it and [one.start_ns for one in it.launches] == [10_000, 60_000, 190_000]
    assert restored(49_999, cuts) == 49_999


def test_cuts_of_several_ranks_are_one_time() -> None:
    assert merged_cuts([(5, 9), (1, 3), (8, 12), (2, 3)]) == [(1, 3), (5, 12)]


def test_a_file_of_collectives(tmp_path: Path) -> None:
    it = Collectives(
        3, "here", 7, (CollectiveLaunch(0, 1, -5, 10, 2), CollectiveLaunch(2, 0, 1, 1, 1))
    )
    path = tmp_path / COLLECTIVES
    path.write_text(collective_lines(it))
    assert load_collectives(tmp_path, 2) == it
    wrong = [
        "[]",
        "[3, 0, 0, 1, 1]",
        "[0, 2, 0, 1, 1]",
        "[0, 0, 0, 1, 2]",
        '"x"',
        "[0,0,1e400,1,1]",
    ]
    path.write_text(collective_lines(it) + "\n".join(wrong))
    assert load_collectives(tmp_path, 2) == it
    for text in ("", "{}", "[", '{"steps": 0, "clock": "", "epoch": 0}\n[0, 0, 0, 1, 1]'):
        path.write_text(text)
        assert load_collectives(tmp_path, 2) is None
    assert load_collectives(tmp_path / "none", 2) is None
