"""The diagnosis of measured runs, in which causes are known, and its words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import measured
import pytest

from rooflab import figures
from rooflab.errors import UsageError
from rooflab.model.diagnosis import LATENCY
from rooflab.model.facts import Fact
from rooflab.model.measurement import Measurement
from rooflab.model.problem import SFU
from rooflab.model.roofline import Ceiling
from rooflab.report import explain
from rooflab.report.explain import Explanation, explanations, paragraphs, to_json
from rooflab.runs.store import RunData, load
from rooflab.workloads import build

LADDER = load(measured.LADDER)
"""Without counters."""
COUNTED = load(measured.COUNTED)


def only(run: RunData, kernel: str, size: str, precision: str) -> Explanation:
    (one,) = (
        one
        for one in explanations(run, kernel, size)
        if one.row.problem.precision == precision and one.row.problem.workload in ("gemm", "copy")
    )
    return one


@pytest.mark.parametrize("kernel", ["vectorized", "memcpy"])
def test_a_copy_is_limited_by_device_memory(kernel: str) -> None:
    one = only(COUNTED, kernel, "268435456", "fp32")
    assert (one.verdict.bound, one.verdict.firm) == ("dram", True)
    assert "Limited by device memory: 2.15 GB at 4." in "\n".join(paragraphs(one))


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_cublas_by_size(precision: str) -> None:
    """A launch at 256, nothing busy at 1024, tensor cores at the power limit at 8192."""
    assert only(LADDER, "cublas", "256", precision).verdict.bound == "launch"
    assert only(LADDER, "cublas", "1024", precision).verdict.bound == "latency"
    large = only(load(measured.COUNTED_LARGE), "cublas", "8192", precision)
    assert (large.verdict.bound, large.verdict.firm) == ("compute", True)
    assert {"power-capped", "tensor clock"} <= set(large.verdict.flags)
    assert large.step.startswith("save energy: ")


def test_what_is_not_counted_is_not_proven() -> None:
    """Shared memory limits ``tiled``, which only counters show."""
    one = only(LADDER, "tiled", "4096", "fp32")
    assert (one.verdict.bound, one.verdict.proven) == ("latency", False)
    text = "\n".join(paragraphs(one))
    assert "Latency, not proven: nothing that is known is busy (arithmetic at least 13 %" in text
    assert "cublas is 5." in text


def test_a_processor_has_neither_warps_nor_shared_memory() -> None:
    found = explanations(load(measured.CPU))
    text = "\n".join(line for one in found for line in paragraphs(one))
    assert found
    assert "warp" not in text
    assert "shared memory" not in text


def test_near_its_ceiling_no_other_rung_is_named() -> None:
    """At 16384 arithmetic takes 98 % of the time; at 2048 it takes 72 %."""
    run = load(measured.CHAMPION)
    assert "next rung" in only(run, "champion", "2048", "bf16").step
    assert "next rung" not in only(run, "champion", "16384", "bf16").step


@pytest.mark.parametrize(
    ("kernel", "firm"), [("naive", True), ("coalesced", False), ("tiled", True)]
)
def test_shared_memory_and_l1_are_counted(kernel: str, firm: bool) -> None:
    one = only(COUNTED, kernel, "4096", "fp32")
    assert (one.verdict.bound, one.verdict.firm, one.verdict.proven) == ("l1", firm, True)
    assert one.evidence.share(one.evidence.ranked[0]) < 1.01


def test_l1_has_one_ceiling_in_words_and_in_the_figure() -> None:
    """Shared memory is faster here, and both are counted at one data pipe."""
    limit = COUNTED.manifest.roofline.cache("L1")
    assert limit is not None
    one = only(COUNTED, "naive", "4096", "fp32")
    figure = figures.draw("levels", [COUNTED], ["fp32"], "gemm")
    drawn = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert limit.amount in one.evidence.ranked[0].amount
    assert f"L1 {limit.amount}" in drawn


def test_what_takes_less_than_its_least_time_is_at_its_ceiling() -> None:
    one = only(COUNTED, "naive", "4096", "fp32")
    assert one.evidence.ranked[0].us > one.evidence.time_us
    sentence = list(paragraphs(one))[1]
    assert "would take 276 ms: it is at this ceiling (L1 and shared memory 100 %" in sentence
    assert "at least" not in sentence


def test_a_second_wave_of_two_blocks() -> None:
    """14 x 19 tiles, 264 fit at once."""
    one = only(load(measured.WAVE), "tiled", "448x608x16384", "fp32")
    assert one.verdict.bound == "wave"
    assert one.verdict.without_us < 0.7 * one.evidence.time_us


def test_narrow_inputs_on_vector_units() -> None:
    assert "use the tensor cores" in only(COUNTED, "tiled", "4096", "fp16").step


def test_the_ladder_goes_on() -> None:
    one = only(LADDER, "naive", "4096", "fp32")
    assert one.step.startswith("the next rung of the ladder, coalesced: ")
    assert one.faster is not None
    assert one.faster.kernel == "cublas"


def test_the_largest_gain_is_first() -> None:
    gains = [one.gain_us for one in explanations(COUNTED)]
    assert gains == sorted(gains, reverse=True)
    assert all(gain >= 0 for gain in gains)


@pytest.mark.parametrize("folder", measured.ALL, ids=lambda folder: folder.name)
def test_every_measured_run_can_be_explained(folder: Path) -> None:
    run = load(folder)
    if all(row.problem.streamed for row in run.ok):
        with pytest.raises(UsageError, match=r"in device memory; rooflab show .* says why"):
            explanations(run)
        return
    found = explanations(run)
    assert all(line for one in found for line in paragraphs(one))
    content = json.loads(to_json(found))
    assert len(content) == len(found)
    assert {"kernel", "bound", "proven", "without_us", "shares", "step"} <= set(content[0])


@pytest.mark.parametrize("why", ["contended", "wide"])
def test_what_is_not_well_known_comes_last_and_says_so(why: str) -> None:
    run = COUNTED
    first = explanations(run)[0].row
    rows = list(run.measurements)
    if why == "contended":
        doubtful = replace(first, flags="contended")
    else:
        doubtful = replace(first, time_lo_us=0.5 * (first.time_us or 0))
    rows[rows.index(first)] = doubtful
    found = explanations(replace(run, measurements=rows))
    assert found[-1].row == doubtful
    assert [one.doubt for one in found[:-1]] == [""] * (len(found) - 1)
    words = {
        "contended": "other programs used the processor while the kernel was timed",
        "wide": "its 95 % interval is ± 25 %",
    }
    assert list(paragraphs(found[-1]))[1] == f"Its time says little: {words[why]}."


def test_a_part_of_a_name_is_enough_if_there_is_one_such_kernel() -> None:
    assert {one.row.kernel for one in explanations(COUNTED, "VECTOR")} == {"vectorized"}
    with pytest.raises(UsageError, match="a part of 3 kernels' names: give more of") as told:
        explanations(COUNTED, "i")
    assert "tiled" in str(told.value) and "naive" in str(told.value)
    assert "\n" not in str(told.value)


def test_a_whole_name_is_no_part() -> None:
    rows = [replace(row, kernel=f"tiled_{row.kernel}") for row in COUNTED.measurements]
    run = replace(COUNTED, measurements=[*COUNTED.measurements, *rows])
    assert {one.row.kernel for one in explanations(run, "tiled")} == {"tiled"}


def test_of_many_names_with_a_part_the_first_are_listed() -> None:
    row = COUNTED.ok[0]
    rows = [replace(row, kernel=f"kernel_{i}") for i in range(20)]
    with pytest.raises(UsageError, match=r"kernel_5 and 14 more$"):
        explanations(replace(COUNTED, measurements=rows), "kernel")


def test_wrong_names() -> None:
    with pytest.raises(UsageError, match="no kernel 'cublax'; it has vectorized, memcpy, naive"):
        explanations(COUNTED, "cublax")
    with pytest.raises(UsageError, match="no size '17'; it has 2048, 4096"):
        explanations(COUNTED, "tiled", "17")


def test_a_device_without_multiprocessors_has_no_grid() -> None:
    """A run may come from a stranger."""
    run = load(measured.WAVE)
    assert all(one.evidence.grid for one in explanations(run))
    manifest = run.manifest.model_copy(deep=True)
    manifest.device.facts["sm_count"] = Fact(0)
    found = explanations(replace(run, manifest=manifest))
    assert all(one.evidence.grid is None for one in found)


@pytest.mark.parametrize("absurd", [5e-324, 1e300])
@pytest.mark.parametrize("name", ["time_us", "launch_us", "sm_mhz", "flops", "bytes", "dram_bytes"])
def test_absurd_figures_of_a_damaged_file_do_no_harm(name: str, absurd: float) -> None:
    change: dict[str, Any] = {name: absurd}
    rows = [replace(row, **change) for row in COUNTED.measurements]
    rows.append(replace(COUNTED.measurements[0], launch_us=None, l2_bytes=None, l1_bytes=None))
    found = explanations(replace(COUNTED, measurements=rows))
    assert all(line for one in found for line in paragraphs(one))
    assert len(json.loads(to_json(found))) == len(found)


def test_nothing_else_is_known_to_take_time() -> None:
    """A copy without an empty launch: no time without its only resource."""
    row = replace(COUNTED.measurements[0], launch_us=None, l2_bytes=None, l1_bytes=None)
    (one,) = explanations(replace(COUNTED, measurements=[row]))
    assert one.verdict.without_us == 0
    assert "At that ceiling it takes" in "\n".join(paragraphs(one))


def test_a_function_is_counted_where_it_lives() -> None:
    """No command can call what was in another process."""
    run = load(measured.COUNTED)
    device = SimpleNamespace(kind="cuda", facts={"sm_count": 132})
    other = SimpleNamespace(path=Path("results/one"), manifest=SimpleNamespace(device=device))
    given: Any = SimpleNamespace(loads=(), grid=None)
    verdict: Any = SimpleNamespace(bound=LATENCY, flags=())
    row = replace(run.ok[0], tensor_flops=None, counted_flops=None)
    for workload, expected in (
        ("function", "count its traffic: rooflab.bench(…, counters=True)"),
        ("add", "count its traffic: rooflab counters results/one"),
    ):
        of_it = replace(row, problem=replace(row.problem, workload=workload))
        step: Any = explain._step
        assert step(other, of_it, given, verdict, None) == expected


@pytest.mark.parametrize(
    ("share", "step"), [(0.95, "compute some of the exponentials"), (0.85, "the next rung")]
)
def test_special_functions_limit_attention_with_small_heads(share: float, step: str) -> None:
    shape = {"queries": 4096, "keys": 4096, "head_size": 32}
    problem = build("attention", "fp16", shape)
    manifest = COUNTED.manifest.model_copy()
    unit = Ceiling("compute", SFU, 4e12, "derived", "")
    manifest.roofline = manifest.roofline.with_limits(unit)
    us = 32 * 4096**2 / 4e12 * 1e6
    row = Measurement(
        problem=problem.record,
        kernel="flash",
        backend="cuda",
        status="ok",
        flops=problem.flops,
        bytes=problem.bytes,
        time_us=us / share,
    )
    (one,) = explanations(replace(COUNTED, manifest=manifest, measurements=[row]))
    assert one.verdict.bound == SFU
    text = "\n".join(paragraphs(one))
    assert "Limited by special functions: 537 Mop at 4 Top/s (derived)" in text
    assert one.step.startswith(step), one.step
