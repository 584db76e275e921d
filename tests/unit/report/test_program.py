"""What is said of a program: sentences, the table of its groups, what explain says of each."""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from io import StringIO

import pytest
from profiled import REAL, group, other, program
from rich.console import Console
from rich.table import Table

from rooflab.api import Run
from rooflab.errors import UsageError
from rooflab.model.measurement import Measurement
from rooflab.report import explain, export
from rooflab.report import program as report
from rooflab.runs import store
from rooflab.runs.program import COPIES, IDLE, total

HOSTILE = [
    "[bold]x[/] :warning:",
    "=cmd|' /C calc'!A0",
    "<script>alert(1)</script>",
    "\\x & $%#_{}",
]


@pytest.fixture(scope="module")
def real() -> store.RunData:
    return store.load(REAL)


def said(run: store.RunData) -> str:
    return "\n".join(report.lines(run))


def printed(table: Table, width: int) -> list[str]:
    file = StringIO()
    Console(file=file, width=width, highlight=False).print(table)
    return [line.rstrip() for line in file.getvalue().splitlines() if line.strip()]


# The columns -------------------------------------------------------------------------------------


def test_times_in_a_step_follow_from_those_of_launches(real: store.RunData) -> None:
    step_us = real.manifest.program["step_us"]
    for row in real.measurements:
        assert row.total_us and row.time_us and row.launches and row.share_percent is not None
        assert row.total_us == pytest.approx(row.launches * row.time_us, rel=1e-6)
        assert row.share_percent == pytest.approx(100 * row.total_us / step_us, rel=1e-6)
        if row.roof_us is not None:
            assert row.recoverable_us is not None
            assert row.recoverable_us <= row.total_us - row.launches * row.roof_us + 1e-3
    assert sum(map(total, real.measurements)) == pytest.approx(step_us, rel=1e-6)


def test_a_size_says_all_of_a_launch(real: store.RunData) -> None:
    assert {row.problem.about for row in real.measurements} == {""}


# Sentences ---------------------------------------------------------------------------------------


def test_the_first_sentence_has_the_step_and_its_roofs(real: store.RunData) -> None:
    first, second, third, *_ = report.lines(real)
    assert first == (
        "One step takes 13.9 ms (mean of 5). Its kernels take 11.9 ms; at their roofs they would "
        "take 6.91 ms, 7.72 ms at the clocks that they ran at."
    )
    assert second.startswith(
        "Of the 4.22 ms above these roofs, 70 % belongs to FusedAdam (1.90 ms at 49 % of the memory"
        " roof), cudnn_sdpa_sm90_flash_bprop (1.64 ms at 47 % of the compute roof), "
    )
    assert second.count(" and ") == 1
    assert third == "The GPU idles 1.89 ms (14 %)."


def test_a_program_without_steps_is_the_program() -> None:
    run = program(group("a", 2e6, 10), whole=True, steps=1, step_us=3e6)
    assert said(run).startswith("The program takes 3.00 s. Its kernels take 2.00 s; at their roofs")
    assert "step" not in said(run)
    assert "% time" in "\n".join(printed(report.table(run), 80))


def test_a_clock_at_its_maximum_is_not_mentioned() -> None:
    assert "clock" not in said(program(group("a", 1000.0, 10)))


def test_kernels_that_overlap_are_said_to() -> None:
    run = program(group("a", 800.0), group("b", 700.0), step_us=1000.0, busy_us=900.0)
    assert "take 1.50 ms in all, and some run at once: the GPU is busy for 900 µs;" in said(run)


def test_a_program_without_kernels_says_so() -> None:
    assert said(program(other(IDLE, 500.0))) == (
        "One step takes 500 µs (mean of 5). It launches no kernel.\nThe GPU idles 500 µs (100 %)."
    )


def test_counted_and_modelled_work_are_told_apart() -> None:
    rows = (
        group("a", 600.0),
        group("b", 300.0, counted=False),
        group("c", 100.0, percent=None),
    )
    text = said(program(*rows))
    assert "The work of the kernels is, by their time, 60 % by counters, 30 % modelled" in text
    assert "the 90 % whose work is known would take 450 µs" in text
    assert "nothing was counted" in said(program(rows[1]))
    assert "by counters" in said(program(rows[0]))
    table = "\n".join(printed(report.table(program(*rows)), 120))
    assert "counted" in table
    assert "modelled" in table


def test_notes_and_the_cost_of_recording_are_last() -> None:
    run = program(
        group("a", 1000.0), plain_us=900.0, overhead_percent=11.1, notes=["L2 was flushed"]
    )
    assert [*report.lines(run)][-2:] == [
        "Without recording a step takes 900 µs: recorded it takes 11 % more.",
        "L2 was flushed.",
    ]


@pytest.mark.parametrize("about", [{"step_us": "x"}, {"steps": None}, {"notes": "?", "whole": 0}])
def test_a_damaged_manifest_is_survived(about: dict[str, object]) -> None:
    run = program(group("a", 1000.0))
    run.manifest.program.update(about)
    assert said(run).startswith("One step takes 1.00 ms")
    run.manifest.program.clear()
    assert said(run).startswith("One step takes 1.00 ms")


# What helps --------------------------------------------------------------------------------------

ELEMENTWISE = "vectorized_elementwise_kernel<GeluCUDAKernelImpl, BFloat16>"
PRODUCT = {"bound": "compute", "precision": "fp32"}


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([group(ELEMENTWISE, 300.0, 30)], "30 launches of elementwise kernels (Gelu) take 300 µs"),
        ([group("sgemm", 500.0, bound="compute")], "FP32 arithmetic limits products that take 500"),
        (
            [group("gemm", 500.0, bound="compute", precision="tf32")],
            "TF32 arithmetic limits products that take 500 µs (33 %) (gemm): BF16 or FP16",
        ),
        (
            [group("x", 400.0, 100), other(IDLE, 500.0)],
            "100 of 101 launches take less than 10 µs while the GPU idles 500 µs (26 %): a CUDA "
            "graph",
        ),
        (
            [other(COPIES["h2d"], 400.0, 4, roof_percent=20.0, host_bytes=4_000_000)],
            "Copies from the host take 400 µs (29 %) at 20 % of the link's bandwidth, as from "
            "pageable memory: pinned memory",
        ),
        (
            [other(COPIES["d2h"], 400.0, 40, roof_percent=2.0, host_bytes=4_000)],
            "Copies to the host take 400 µs (29 %) at 2.0 % of the link's bandwidth, in small "
            "pieces, 4.0 kB on average: copy larger pieces",
        ),
        (
            [group("softmax_warp_forward<float, float, float, 9, false, false>", 200.0, 4)],
            "Softmax has kernels of its own, which take 200 µs (17 %), and no kernel has the name",
        ),
        ([other(COPIES["memset"], 90.0, 60)], "Memsets and fills take 90.0 µs (8.3 %)"),
        (
            [group("CatArrayBatchedCopy<OpaqueType<2u>, int>", 300.0, 4)],
            "Copies between types and layouts (CatArrayBatchedCopy) take 300 µs (23 %)",
        ),
    ],
)
def test_what_is_known_to_help(rows: list[Measurement], expected: str) -> None:
    run = program(group("gemm", 1000.0, bound="compute", precision="bf16"), *rows)
    assert expected in said(run)


@pytest.mark.parametrize(
    "rows",
    [
        [group(ELEMENTWISE, 15.0, 30)],  # less than 2 %
        [group(ELEMENTWISE, 300.0, 2)],  # few
        [group("triton_poi_fused_elementwise_0", 300.0, 30)],  # fused
        [group("gemm", 500.0, bound="compute", precision="fp16")],
        [group("hash", 500.0, bound="compute", precision="fp32")],  # no product
        [group("x", 400.0, 10), other(IDLE, 500.0)],  # launches are long
        [other(COPIES["h2d"], 400.0, 4, roof_percent=90.0, host_bytes=4_000_000)],
        [group("softmax_warp_forward<float, float, 9>", 200.0), group("flash_fwd_kernel", 1.0)],
        [group("softmax_warp_forward<int>", 200.0, backend="aten::_log_softmax")],
        [group("cunn_SoftMaxForward<4, float, LogSoftMaxForwardEpilogue>", 200.0)],
        [group("softmax_warp_forward<float, float, float, 9, true, false>", 200.0)],
    ],
)
def test_nothing_is_said_of_what_the_rows_do_not_show(rows: list[Measurement]) -> None:
    run = program(group("gemm", 1000.0, bound="compute", precision="bf16"), *rows)
    assert not re.search(
        "elementwise kernels|BF16 |CUDA graph|pinned|Memsets|own, which", said(run)
    )


# The table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_each_group_has_one_line_that_fits_and_differs(real: store.RunData, width: int) -> None:
    head, _, *lines = printed(report.table(real), width)
    assert len(lines) == len(real.measurements)
    assert max(map(len, lines)) <= width
    assert head.split()[0] == "kernel"
    names = [re.split(r"  +", line.strip())[0] for line in lines]
    assert len(set(names)) == len(names)
    assert not any("…" in cell for line in lines for cell in re.split(r"  +", line.strip())[1:])


def test_eighty_columns_have_all_that_matters(real: store.RunData) -> None:
    text = printed(report.table(real), 80)
    assert text[0].split() == [
        "kernel",
        "count",
        "µs",
        "%",
        "step",
        "%",
        "roof",
        "bound",
        "µs",
        "above",
    ]
    assert text[2].split()[-6:] == ["8", "2761", "19.9", "91.1", "compute", "245.2"]
    assert "idle" in text[-2]
    assert text[-1].split()[:3] == ["memsets", "65", "67.63"]


def test_small_groups_are_one_line() -> None:
    many = [group(f"kernel_{i}", 1000.0 - i, 2, grid=f"{i + 1}x1x1") for i in range(60)]
    text = printed(report.table(program(*many, other(IDLE, 100.0))), 80)
    assert len(text) == 2 + report.SHOWN + 2
    assert text[-2].split()[:4] == ["40", "others", "80", "38420"]
    one_more = printed(report.table(program(*many[: report.SHOWN + 1])), 80)
    assert "1 others" not in "\n".join(one_more)


def test_long_programs_are_in_milliseconds() -> None:
    assert "ms" in printed(report.table(program(group("a", 2e6, 10))), 80)[0]


@pytest.mark.parametrize("text", HOSTILE)
def test_names_are_shown_as_they_are(text: str) -> None:
    run = program(group(text, 1000.0, bound=text), other(IDLE, 100.0))
    shown = " ".join("\n".join(printed(report.table(run), 200)).split())
    assert shown.count(" ".join(text.split())) == 2
    made = Run.of(run)._repr_html_()
    cells = [html.unescape(cell) for cell in re.findall(r"<td>(.*?)</td>", made)]
    assert cells.count(text) == 2
    assert "<script" not in made
    assert json.loads(export.to_json(run))[0]["kernel"] == text
    assert export.to_markdown(run).count("\n") == 4


def test_a_notebook_has_sentences_and_the_table(real: store.RunData) -> None:
    made = Run.of(real)._repr_html_()
    assert made.startswith("<p>One step takes 13.9 ms")
    assert made.count("<table") == 1
    assert "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN #1" in made


# Exports -----------------------------------------------------------------------------------------


def test_papers_have_the_columns_of_a_program(real: store.RunData) -> None:
    head, rule, *lines = export.to_markdown(real).splitlines()
    assert "total µs | % of step" in head
    assert "precision" not in head
    assert rule.count("-") > 3
    assert len(lines) == len(real.measurements)
    assert "| (idle) |  |  | 1885.1 | 13.6 |" in lines[-1]
    latex = export.to_latex(real)
    assert r"multi\_tensor\_apply\_kernel\textless{}FusedAdamMathFunctor" in latex
    assert latex.count(" & ") == (len(real.measurements) + 1) * 11


def test_other_programs_get_every_column(real: store.RunData) -> None:
    first = json.loads(export.to_json(real))[0]
    assert (first["launches"], first["grid"], first["part"]) == (8, "2x66x1", 1)
    header, line, *_ = export.to_csv(real).splitlines()
    assert {"kernel", "total_us", "recoverable_us"} <= set(header.split(","))
    assert line.startswith("program,nvjet_sm90")


# Explanations ------------------------------------------------------------------------------------


def test_the_most_time_in_a_step_is_explained_first(real: store.RunData) -> None:
    found = explain.explanations(real)
    gains = [one.saved_us for one in found]
    assert gains == sorted(gains, reverse=True)
    assert not any(one.row.kernel.startswith("(") for one in found)
    assert len(explain.alike(found)) == len(found)
    heading, launches, roof, *rest = explain.paragraphs(found[0])
    assert heading == (
        "cudnn_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128_1x4x1 132x1x1 384: "
        "1.64 ms of a step (12 % of it)"
    )
    assert launches == "4 launches of 410 µs (386 to 425)."
    assert roof == "47.5 % of its roof (compute, by counters): 861 µs of a step is above it."
    assert rest[-1].startswith("Try: ")


def test_groups_do_not_race(real: store.RunData) -> None:
    text = "\n".join(line for one in explain.explanations(real) for line in explain.paragraphs(one))
    assert "as fast here" not in text
    assert "ladder" not in text
    assert "rooflab counters" not in text


def test_two_kernels_of_one_grid_do_not_race() -> None:
    run = program(group("a", 1000.0), group("b", 100.0))
    assert [one.faster for one in explain.explanations(run)] == [None, None]


def test_a_small_grid_is_known(real: store.RunData) -> None:
    (sort,) = explain.explanations(
        real, "DeviceRadixSortOnesweepKernel<0, long, OpaqueType<8>,…nt, identity_decomposer_t>"
    )
    text = "\n".join(explain.paragraphs(sort))
    assert "Small grid: 2 blocks on 132 multiprocessors; they are busy 1.5 % of the time" in text
    assert "fit on each" not in text
    assert "Without that" not in text  # a launch takes a microsecond or two at least
    (content,) = json.loads(explain.to_json([sort]))
    assert content["grid"] == {"blocks": 2, "multiprocessors": 132}
    assert (content["launches"], content["work"]) == (8.0, "counted")


def test_without_a_grid_it_is_not_small(real: store.RunData) -> None:
    """It is not known, as in some traces, or another one in each step."""
    name = "DeviceRadixSortOnesweepKernel<0, long, OpaqueType<8>,…nt, identity_decomposer_t>"
    small = next(row for row in real.ok if row.kernel == name)
    problem = replace(small.problem, settings={**small.problem.settings, "grid": ""})
    rows = [replace(small, problem=problem) if row is small else row for row in real.measurements]
    (one,) = explain.explanations(replace(real, measurements=rows), name)
    assert "mall grid" not in "\n".join(explain.paragraphs(one))


def test_work_that_is_not_known_is_not_explained() -> None:
    (one,) = explain.explanations(program(group("a", 1000.0, 10, percent=None)))
    text = "\n".join(explain.paragraphs(one))
    assert "Its work is not known." in text
    assert "Try: count its work: rooflab profile, with the program on that GPU." in text


def unrated(kernel: str, us: float) -> Measurement:
    """Counted on a GPU whose roofs are not known."""
    return group(kernel, us, percent=None, counted_flops=1e9, dram_bytes=1e6, tflops=2.0)


def test_without_roofs_nothing_is_blamed_on_latency() -> None:
    (one,) = explain.explanations(program(unrated("a", 1000.0)))
    assert list(explain.paragraphs(one))[1:] == [
        "Its work is known (by counters), and its roof is not.",
        "Not known: there is no work with a roof that its time could be compared with.",
        "Try: give the roofs of its GPU: rooflab profile --roofs RUN FILE.",
    ]


def test_columns_that_no_row_has_are_left_out() -> None:
    run = program(*(unrated(f"kernel_{i}", 1000.0 - i) for i in range(40)))
    heading, _, *rows = printed(report.table(run), 80)
    assert heading.split() == ["kernel", "count", "µs", "%", "step", "TFLOP/s"]
    assert rows[-1].split() == ["20", "others", "20", "19410", "49.5"]


def test_parts_of_the_work_add_up() -> None:
    rows = group("a", 9957.0, counted=False), group("b", 43.0, percent=None)
    assert "99.6 % modelled from shapes and 0.43 % not known." in said(program(*rows))


@pytest.mark.parametrize(
    ("counted", "said"),
    [
        (None, "about 350 MB, because some of it is read again."),
        (3.26e8, "about 350 MB, because some of it is read again; 326 MB were counted."),
    ],
)
def test_what_is_expected_to_be_read_again_is_said(counted: float | None, said: str) -> None:
    row = group("a", 1000.0, 10, bytes=201_000_000, dram_bytes=counted)
    row = replace(row, expected_dram_bytes=3.5e8)
    (one,) = explain.explanations(program(row))
    moves = "A launch moves 201 MB of device memory at least, and by a model of its shape"
    assert f"{moves} {said}" in explain.paragraphs(one)
    (content,) = json.loads(explain.to_json([one]))
    assert content["expected_dram_bytes"] == 3.5e8
    (same,) = explain.explanations(program(replace(row, expected_dram_bytes=2.01e8)))
    assert "read again" not in "\n".join(explain.paragraphs(same))


def test_a_whole_program_has_no_steps() -> None:
    (one,) = explain.explanations(program(group("a", 1000.0, 10), whole=True))
    text = "\n".join(explain.paragraphs(one))
    assert "1.00 ms of the program (100 % of it)" in text
    assert "a step" not in text


def test_only_idle_time_is_nothing_to_explain() -> None:
    with pytest.raises(UsageError, match="no row"):
        explain.explanations(program(other(IDLE, 10.0)))


def test_rows_with_impossible_times_are_left_out() -> None:
    bad = replace(group("bad", 100.0), total_us=float("nan"), recoverable_us=float("inf"))
    run = program(group("a", 1000.0), bad, step_us=1100.0)
    assert said(run).startswith("One step takes 1.10 ms")
    assert printed(report.table(run), 80)
