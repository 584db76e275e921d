"""The rows of a program."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launched import counters, launch

from rooflab.devices.records import Needs, Recording, StepTime, Transfer, of_one_device
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.model.traffic import Chip, Product
from rooflab.programs.groups import Sample, grouped, with_samples
from rooflab.programs.rows import rows, step_of

ROOFS = Roofline(
    (
        Ceiling("compute", "bf16", 1e15, "derived", ""),
        Ceiling("compute", "fp32", 5e13, "derived", ""),
        Ceiling("bandwidth", "HBM", 4e12, "derived", ""),
        Ceiling("bandwidth", "H2D", 5e10, "measured", ""),
    ),
    memory="HBM",
)


def recording(*launches: object, copies: tuple[Transfer, ...] = (), us: float = 100) -> Recording:
    steps = [StepTime("step", 0, round(us * 1000))]
    return Recording(launches=list(launches), copies=copies, steps=steps)  # type: ignore[arg-type]


def made(what: Recording, **counted: object) -> dict[str, Measurement]:
    groups = grouped(what.launches, len(what.windows))
    samples = {
        group.key: [Sample(0, 1.0, counted[group.key.kernel])]  # type: ignore[arg-type]
        for group in groups
        if group.key.kernel in counted
    }
    return {row.kernel: row for row in rows(what, with_samples(groups, samples), ROOFS, 2000.0)}


def test_counted_work_has_its_roof_at_the_counted_clock() -> None:
    row = made(recording(launch("gemm", 40)), gemm=counters(flops=2e10, dram_bytes=1e6))["gemm"]
    assert row.roof_us == pytest.approx(20)  # 2e10 / 1e15
    assert row.bound == "compute" and row.roof_percent == pytest.approx(50)
    assert row.observed_percent == pytest.approx(50 * 2000 / 1500)
    assert row.recoverable_us == pytest.approx(40 - 20 * 2000 / 1500)
    assert row.counted_flops == 2e10 and row.flops is None and row.bytes is None
    assert row.problem.precision == "bf16"


def test_memory_has_its_roof_at_any_clock() -> None:
    row = made(recording(launch("copy", 40)), copy=counters(dram_bytes=4e7, pipe="fp32"))["copy"]
    assert row.bound == "dram" and row.roof_us == pytest.approx(10)
    assert row.recoverable_us == pytest.approx(30)


def test_modelled_work_is_in_columns_of_its_own() -> None:
    one = replace(launch("mm", 40), work=Needs(2 * 10**10, 10**6, "bf16"), operation="aten::mm")
    row = made(recording(one))["mm"]
    assert row.flops == 2 * 10**10 and row.counted_flops is None and row.dram_bytes is None
    assert row.roof_us == pytest.approx(20) and row.backend == "aten::mm"


def test_expected_traffic_is_no_roof_and_not_counted() -> None:
    work = Needs(10**9, 6 * 8192**2, "bf16", once=False, again=Product(8192, 8192, 8192))
    what = recording(replace(launch("mm", 2000), work=work))
    groups = grouped(what.launches, 1)
    row, *_ = rows(what, groups, ROOFS, 2000.0, chip=Chip(132, 62_914_560))
    unknown, *_ = rows(what, groups, ROOFS, 2000.0)
    assert row.expected_dram_bytes == pytest.approx(1.398e9, rel=1e-3)
    assert replace(row, expected_dram_bytes=None) == unknown
    assert row.bytes == 6 * 8192**2 and row.dram_bytes is None
    assert row.roof_us == pytest.approx(6 * 8192**2 / 4e6)


def test_counted_and_modelled_work_are_not_mixed() -> None:
    one = replace(launch("mm", 40), work=Needs(10**12, 10**12, "bf16"))
    row = made(recording(one), mm=counters(flops=2e10, dram_bytes=1e6))["mm"]
    assert row.roof_us == pytest.approx(20)


def test_unknown_work_has_no_roof() -> None:
    row = made(recording(launch("secret", 40)))["secret"]
    assert row.roof_us is None and row.roof_percent is None and row.recoverable_us is None
    assert row.total_us == 40 and row.share_percent == pytest.approx(40)


def test_copies_and_idle_time_are_rows() -> None:
    copy = Transfer(kind="h2d", bytes=10**6, start_ns=50_000, end_ns=80_000)
    found = made(recording(launch("k", 40), copies=(copy,)))
    host = found["(copies from the host)"]
    assert host.total_us == 30 and host.host_bytes == 10**6
    assert host.roof_us == pytest.approx(20) and host.bound == "h2d"
    assert found["(idle)"].total_us == pytest.approx(30)


def test_launches_without_gaps_have_no_row_of_idle_time() -> None:
    """So it is with ncu's, of whose gaps nothing is known."""
    assert "(idle)" not in made(recording(launch("k", 40), us=40))


def test_a_step_is_the_mean_of_all() -> None:
    launches = [launch("k", 10, start) for start in (0, 50, 100, 150)]
    steps = [StepTime("step", 0, 100_000), StepTime("step", 100_000, 200_000)]
    what = Recording(launches=launches, steps=steps)
    step = step_of(what)
    assert (step.us, step.busy_us, step.steps) == (100, 20, 2)
    row = made(what)["k"]
    assert row.launches == 2 and row.total_us == 20 and row.time_us == 10


def test_kernels_that_run_at_once_are_busy_once() -> None:
    step = step_of(recording(launch("a", 60, 0), launch("b", 60, 20)))
    assert step.busy_us == 80 and step.kernels_us == 120 and step.idle_us == 20


def test_a_graph_that_was_counted_as_a_whole_is_beside_its_kernels() -> None:
    what = recording(*(launch("k", 10, 10 * i, graph=3) for i in range(4)))
    counted = counters(flops=2e10, dram_bytes=1e6)
    found = rows(what, grouped(what.launches), ROOFS, 2000.0, (counted, 2))
    graph = next(row for row in found if "graph" in row.kernel)
    assert graph.kernel == "(CUDA graph of 2 kernels)"
    assert graph.launches == 2 and graph.total_us == 40 and graph.time_us == 20
    assert graph.roof_us == pytest.approx(20)


def test_modelled_work_that_a_kernel_cannot_have_done_is_not_its() -> None:
    one = replace(launch("tiny", 1), work=Needs(0, 10**9, "fp32"))
    row = made(recording(one))["tiny"]
    assert row.bytes is None and row.roof_us is None


def test_speeds_are_known_without_roofs() -> None:
    one = replace(launch("mm", 40), work=Needs(2 * 10**10, 10**6, "bf16"))
    what = recording(one)
    row = rows(what, grouped(what.launches), Roofline(()), None)[0]
    assert row.tflops == pytest.approx(500) and row.gbps == pytest.approx(25)
    assert row.roof_percent is None and row.recoverable_us is None


def test_other_gpus_are_named_and_left_out() -> None:
    notes: dict[str, None] = {}
    what = recording(launch("a", 90), launch("b", 10, device=1), launch("c", 5, device=1))
    assert [one.kernel for one in of_one_device(what, notes).launches] == ["a"]
    assert list(notes) == ["2 launches on other GPUs than number 0 are not described"]
    assert of_one_device(recording(launch("a")), notes) and len(notes) == 1
