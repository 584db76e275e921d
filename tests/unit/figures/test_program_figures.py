"""The pictures of a program's run: what they show, and that nothing overlaps or is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf, nan, pi
from pathlib import Path
from typing import Any

import numpy as np
import program_runs
import pytest
import synthetic
from geometry import check_png, check_svg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from program_runs import group, unknown
from test_plot import contents

from rooflab import figures
from rooflab.errors import UsageError
from rooflab.figures import programs
from rooflab.figures.kinds import FIGURES, changes
from rooflab.figures.labels import Labels
from rooflab.figures.model import Axis, Cell, Label, Marks, Page, Panel, Spot
from rooflab.figures.selection import Wanted
from rooflab.figures.text import chart
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Roofline
from rooflab.model.timeline import RecordedStep, StepLaunch
from rooflab.runs.store import RunData

RUN = program_runs.run(recorded=program_runs.step())
AFTER = program_runs.run(
    [
        group("nvjet_sm90_tst_128x256_NTN", 2000, intensity=800, percent=90),
        *program_runs.ROWS[1:3],
        group("flash_wgmma", 500, intensity=900, percent=70),
        group("fused", 100, intensity=9),
        *program_runs.ROWS[5:],
    ],
    step_us=8000,
    day=21,
)
HOSTILE = "<b>$x_1^2$ & \\frac{1}{2} %s {} <script>'\"</script> " * 40


def page(name: str, *runs: RunData, **other: Any) -> Page:
    return FIGURES[name].make(Wanted(runs or [RUN], **other))


def bubbles(drawn: Page, panel: int = 0) -> list[Marks]:
    return [marks for marks in drawn.panels[panel].marks if marks.rows]


# The roofline ------------------------------------------------------------------------------------


def test_each_group_is_a_bubble_whose_area_is_its_time() -> None:
    found = {marks.rows[0].kernel: marks for marks in bubbles(page("roofline"))}
    assert list(found) == [row.kernel for row in program_runs.ROWS[:4]]
    per_us = {kernel: m.size**2 / (m.rows[0].total_us or 1) for kernel, m in found.items()}
    assert max(per_us.values()) == pytest.approx(min(per_us.values()))
    for marks in found.values():
        assert marks.points == [(marks.rows[0].intensity, marks.rows[0].tflops)]


def test_colours_say_what_binds() -> None:
    drawn = page("roofline")
    names = [programs.TimedGroup(marks.rows[0], 1, 1).binds for marks in bubbles(drawn)]
    assert names == ["compute", "compute", "memory", "latency"]
    for marks, name in zip(bubbles(drawn), names, strict=True):
        assert marks.colour == programs.colour(name)
    assert [key.name for key in drawn.legend] == [
        *("compute-bound", "memory-bound", "below 60 % of its roof", "copies")
    ]


def test_groups_without_flops_are_in_a_strip_at_their_part_of_the_roof() -> None:
    drawn = page("roofline")
    places = {marks.rows[0].kernel: marks.points[0][0] for marks in bubbles(drawn, 1)}
    expected = {"copy_kernel": 90.0, "cat": 20.0, "(copies from the host)": 30.0}
    assert places == pytest.approx(expected)
    [roof] = drawn.panels[1].lines
    assert [x for x, _ in roof.points] == [100, 100]
    assert drawn.panels[1].x.title.endswith("% of the HBM roof or, of copies, of their link")


def test_the_roofs_are_those_of_the_precisions_used() -> None:
    text = contents(figures.draw("roofline", [RUN]))
    assert "BF16 989 TFLOP/s" in text and "FP32 66.9 TFLOP/s" in text
    assert "FP64" not in text and "FP8" not in text
    text = contents(figures.draw("roofline", [RUN], ["bf16"]))
    assert "BF16 989 TFLOP/s" in text and "FP32" not in text


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("kern<float>", "kern<float>"),
        ("ns::kern<double>", "kern<double>"),
        ("flash_bprop<x, y>", "flash_bprop"),
        ("scale<AVeryLongTypeName>", "scale"),
        ("elementwise_kernel<GeluCUDAKernelImpl>", "Gelu"),
        ("elementwise_kernel<direct_copy_kernel_cuda, BFloat16>", "direct_copy"),
        ("vectorized_elementwise_kernel<CUDAFunctor_add, float>", "add"),
        ("multi_tensor_apply_kernel<FusedAdamMathFunctor, float>", "FusedAdamMath"),
        ("elementwise_kernel<4>", "elementwise_kernel<4>"),
        ("nvjet_sm90_tst_128x256_NTN", "nvjet_128x256_NTN"),
    ],
)
def test_names_of_kernels_in_pictures(kernel: str, expected: str) -> None:
    assert programs.brief(kernel) == expected


@pytest.mark.parametrize(
    ("kernel", "operation", "expected"),
    [
        ("nvjet_sm90_tst_128x256_NTN", "aten::mm, aten::bmm", "mm: nvjet_128x256_NTN"),
        ("elementwise_kernel<direct_copy_kernel_cuda>", "aten::copy_", "direct_copy"),
        ("elementwise_kernel<GeluBackwardCUDAKernelImpl>", "aten::gelu_backward", "GeluBackward"),
        ("cunn_SoftMaxForward", "aten::_log_softmax_backward_data", "cunn_SoftMaxForward"),
        ("x" * 40, "aten::mm", f"mm: {'x' * 17}…{'x' * 6}"),
    ],
)
def test_an_operation_is_named_if_it_is_short_and_says_more(
    kernel: str, operation: str, expected: str
) -> None:
    row = group(kernel, 10, backend=operation)
    assert programs.TimedGroup(row, 10, 0.1).name == expected
    numbered = replace(row, problem=program_runs.problem("fp32", part=2))
    assert programs.TimedGroup(numbered, 10, 0.1).name == f"{expected} #2"


def test_arrows_in_the_strip_are_not_on_each_other() -> None:
    def of(reached: tuple[float, float]) -> list[Measurement]:
        return [
            group(name, 900, precision="fp32", percent=percent)
            for name, percent in zip("ab", reached, strict=True)
        ]

    drawn = page("changes", program_runs.run(of((20, 40))), program_runs.run(of((60, 80))))
    arrows = [line.points for line in drawn.panels[0].lines if not line.provenance]
    heights = {points[0][1] for points in arrows}
    assert len(arrows) == len(heights) == 2
    apart = program_runs.run(of((20, 70))), program_runs.run(of((40, 90)))
    arrows = [
        line.points for line in page("changes", *apart).panels[0].lines if not line.provenance
    ]
    assert len({points[0][1] for points in arrows}) == 1


def test_a_label_between_two_bubbles_is_clearly_of_one() -> None:
    axis = Axis((0.0, 288.0), log=False)
    dots = [Marks([(x, 144.0)], "k", "o", 10.0, around=0) for x in (50.0, 150.0)]
    labels = Labels(Panel(Cell(0, 0, 0, 0, 4, 4), axis, axis, marks=dots))
    of = (150.0, 144.0)
    left, above = Spot(*of, -8, 0, "right", "center"), Spot(*of, 0, 8, "center", "bottom")
    label = Label("a", [left, above], "k", 8, of, leader=5.0)
    assert labels.place(label, 40, 8) == left
    assert labels.place(label, 78, 8) == above  # left of it would end beside the other one


@pytest.mark.parametrize("name", ["size", "levels", "energy", "speedup"])
def test_figures_of_sweeps_are_none_of_programs(name: str) -> None:
    with pytest.raises(UsageError, match="other figures: rooflab plot results/program") as told:
        figures.draw(name, [RUN], value="nvjet")
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", ["roofline", "size"])
def test_a_program_and_a_sweep_have_no_figure_together(name: str) -> None:
    with pytest.raises(UsageError, match=r"rooflab plot results/program alone$"):
        figures.draw(name, [synthetic.h200_run(["fp32"]), RUN])


def test_the_largest_are_named_and_a_pile_in_one_label() -> None:
    text = contents(figures.draw("roofline", [RUN]))
    assert "nvjet_128x256_NTN · 30 %\nnvjet_256x128_TNT · 20 %" in text
    assert "Gelu · 15 %" in text and "copies from the host · 3 %" in text
    assert "Of unknown work: 1 group, 3 % of the step." in text


def test_without_a_roof_known_work_is_not_called_unknown() -> None:
    rows = [
        replace(row, bound="", roof_us=None, roof_percent=None, observed_percent=None)
        for row in program_runs.ROWS
    ]
    run = program_runs.run(rows, roofs_of="this machine")
    run = replace(run, manifest=run.manifest.model_copy(update={"roofline": Roofline(())}))
    text = contents(figures.draw("step", [run]))
    assert "roof unknown: 84 %" in text and "work unknown: 3 %" in text
    assert "roofs of" not in text
    text = contents(figures.draw("roofline", [run]))
    assert "Without FLOPs, and no roof is known: 2 groups" in text


def test_the_bubbles_of_the_legend_have_the_area_of_their_part() -> None:
    drawn = page("roofline")
    [one, *_] = bubbles(drawn)
    per_us = pi * one.size**2 / (one.rows[0].total_us or 1)
    shown = [marks for marks in drawn.panels[0].marks if marks.name == "_area"]
    every = (label.text for label in drawn.panels[0].labels)
    texts = [text for text in every if re.fullmatch(r"\d+ %", text)]
    assert len(shown) == 3
    for marks, text in zip(shown, texts, strict=True):
        us = float(text.removesuffix(" %")) / 100 * program_runs.STEP_US
        assert pi * marks.size**2 == pytest.approx(per_us * us)


def test_modelled_work_has_a_place_too() -> None:
    row = replace(group("mine", 100, intensity=50), counted_flops=None, dram_bytes=None)
    [marks] = bubbles(page("roofline", program_runs.run([row])))
    assert marks.points == [(row.intensity, row.tflops)]


def test_a_cuda_graph_is_a_bubble_and_its_time_is_counted_once() -> None:
    graph = group("(CUDA graph of 3 kernels)", 900, intensity=300)
    rows = [graph, unknown("a", 600), unknown("b", 300), unknown("(idle)", 100)]
    assert len(bubbles(page("roofline", program_runs.run(rows, step_us=1000)))) == 1
    legend = [key.name for key in page("step", program_runs.run(rows, step_us=1000)).legend]
    assert legend == ["at compute roofs: 72 %", "above the roofs: 18 %", "idle: 10 %"]


def test_a_program_without_known_work_says_what_to_do() -> None:
    with pytest.raises(UsageError, match=r"no group whose work is known.*--step") as caught:
        figures.draw("roofline", [program_runs.run([unknown("a", 5)])])
    assert "\n" not in str(caught.value)


def test_several_programs_name_the_figure_of_two() -> None:
    with pytest.raises(UsageError, match="two with --changes"):
        figures.draw("roofline", [RUN, AFTER])


# The step ----------------------------------------------------------------------------------------


def widths(figure: Figure, part: str, bottom: float) -> float:
    [axes] = figure.axes
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return sum(
        box.get_width()
        for box in boxes
        if to_hex(box.get_facecolor()) == programs.colour(part)
        and box.get_y() == pytest.approx(bottom)
    )


def test_both_bars_have_the_parts_of_all_groups() -> None:
    figure = figures.draw("step", [RUN])
    memory = 1500 * 0.8 + 700 * 0.9 + 400 * 0.2
    expected = {
        "compute": 3000 * 0.7 + 2000 * 0.8 + 800 * 0.4,
        "memory": memory,
        "clock": 3000 * 0.2,
        "unknown": 300.0,
        "copies": 300.0,
        "idle": 1000.0,
    }
    expected["latency"] = program_runs.STEP_US - sum(expected.values())
    for part, us in expected.items():
        for bottom in (0.64, 0.0):
            assert widths(figure, part, bottom) == pytest.approx(us / 1000), part
    at_roofs = expected["compute"] + expected["memory"]
    assert f"at the roofs: {at_roofs / 1000:.3g} ms, 59 %" in contents(figure)


def test_wide_segments_are_named() -> None:
    text = contents(figures.draw("step", [RUN])).splitlines()
    assert {"nvjet_128x256_NTN", "Gelu", "idle", "copies from the host"} <= set(text)


def test_overlapping_kernels_are_told() -> None:
    text = contents(figures.draw("step", [program_runs.run(step_us=8000)]))
    assert "Kernels overlap: they take 2 ms more than the step." in text.replace("\u00a0", " ")


# The timeline ------------------------------------------------------------------------------------


def test_streams_are_rows_and_gaps_are_seen() -> None:
    drawn = page("timeline")
    [panel] = drawn.panels
    assert [name for _, name in panel.y.ticks or ()] == ["stream 7", "stream 14"]
    boxes = sorted(box for bars in panel.bars for box in bars.boxes)
    assert sum(width for _, _, width, _ in boxes) == pytest.approx(30 * 0.09)
    ends = [(x, x + width) for x, _, width, _ in boxes]
    gaps = [after[0] - before[1] for before, after in pairwise(ends)]
    assert max(gaps) == pytest.approx(0.51)


def test_launches_have_the_colours_of_their_bubbles() -> None:
    [panel] = page("timeline").panels
    found = {bars.colour for bars in panel.bars}
    names = ("compute", "memory", "latency", "unknown")
    assert found == {programs.colour(name) for name in names}


def test_long_launches_are_named_above_their_bars() -> None:
    long = RecordedStep((StepLaunch(0, 900, 0, 7, 0), StepLaunch(950, 50, 0, 7, 1)), 1000)
    text = contents(figures.draw("timeline", [program_runs.run(recorded=long)]))
    assert "nvjet_128x256_NTN" in text and "TNT" not in text


def test_what_follows_closely_is_one_bar() -> None:
    many = RecordedStep(tuple(StepLaunch(i * 0.5, 0.5, 0, 7, 0) for i in range(20_000)), 10_000, 7)
    drawn = page("timeline", program_runs.run(recorded=many))
    [bars] = drawn.panels[0].bars
    assert len(bars.boxes) == 1
    assert drawn.notes[0] == "The first 20 000 launches; 7 more are not kept."


def test_of_many_streams_the_busiest_have_rows() -> None:
    many = RecordedStep(tuple(StepLaunch(i, 1, i % 3, i % 40, 0) for i in range(500)), 500)
    [panel] = page("timeline", program_runs.run(recorded=many)).panels
    names = [name for _, name in panel.y.ticks or ()]
    assert len(names) == 13 and names[-1] == "others" and names[0].startswith("GPU 0")


def test_an_old_run_says_in_one_line_that_it_has_no_timeline() -> None:
    with pytest.raises(UsageError, match=r"has no timeline .* profile it again") as caught:
        figures.draw("timeline", [program_runs.run()])
    assert "\n" not in str(caught.value)


# Before and after --------------------------------------------------------------------------------


def test_groups_are_paired_by_kernel_and_grid_else_by_operation() -> None:
    def of(kernel: str, blocks: int = 1, part: int = 0, **other: Any) -> programs.TimedGroup:
        row = replace(
            group(kernel, 10, intensity=5), problem=program_runs.problem("bf16", blocks, part)
        )
        return programs.TimedGroup(replace(row, **other), 10, 0.1)

    before = [of("a"), of("b", 1), of("b", 2), of("old", backend="aten::mm"), of("gone")]
    after = [of("b", 2), of("new", backend="aten::mm"), of("a", part=2), of("b", 3), of("more")]
    found = {
        (one.before.row.kernel, one.before.row.problem.size) if one.before else None: one.after
        and (one.after.row.kernel, one.after.row.problem.size)
        for one in changes.paired(before, after)
    }
    assert found == {
        ("a", "1x1x1 128"): ("a", "1x1x1 128"),
        ("b", "2x1x1 128"): ("b", "2x1x1 128"),
        ("b", "1x1x1 128"): ("b", "3x1x1 128"),
        ("old", "1x1x1 128"): ("new", "1x1x1 128"),
        ("gone", "1x1x1 128"): None,
        None: ("more", "1x1x1 128"),
    }


def test_several_candidates_are_told_apart_by_their_work() -> None:
    def of(kernel: str, flops: float) -> programs.TimedGroup:
        row = replace(group(kernel, 10, intensity=5, backend="aten::mm"), counted_flops=flops)
        return programs.TimedGroup(row, 10, 0.1)

    found = changes.paired([of("a", 1e9), of("b", 1e6)], [of("c", 1e6), of("d", 1.1e9)])
    pairs = {
        one.before.row.kernel: one.after.row.kernel for one in found if one.before and one.after
    }
    assert pairs == {"a": "d", "b": "c"}


def test_parts_that_are_compared_together_are_one_bubble() -> None:
    def of(us: float, part: int) -> Measurement:
        return group("a", us, intensity=800, problem=program_runs.problem("bf16", part=part))

    runs = program_runs.run([of(3000, 0)]), program_runs.run([of(1500, 1), of(500, 2)])
    drawn = page("changes", *runs)
    texts = [label.text for panel in drawn.panels for label in panel.labels]
    assert [text for text in texts if text.startswith("a")] == ["a: 3 → 2 ms"]
    before, after = [marks for marks in drawn.panels[0].marks if marks.rows]
    assert after.points[0] == pytest.approx(before.points[0])
    assert after.size**2 / before.size**2 == pytest.approx(2 / 3)


def test_arrows_lead_from_before_to_after_and_new_and_gone_are_marked() -> None:
    drawn = page("changes", RUN, AFTER)
    text = "\n".join(label.text for panel in drawn.panels for label in panel.labels)
    assert "nvjet_128x256_NTN: 3 → 2 ms" in text
    assert "flash_bprop: gone, 800 µs" in text and "flash_wgmma: new, 500 µs" in text
    assert "Gelu" not in text  # it has not changed
    [arrow] = [line for line in drawn.panels[0].lines if not line.provenance]
    row, after = RUN.ok[0], AFTER.ok[0]
    assert arrow.points[0] == pytest.approx((row.intensity, row.tflops))
    assert arrow.points[1] == pytest.approx((after.intensity, after.tflops))
    crosses = [m.points[0] for panel in drawn.panels for m in panel.marks if m.marker == "x"]
    gone = RUN.ok[3]
    assert (gone.intensity, gone.tflops) in crosses and len(crosses) == 2


def test_areas_of_both_runs_are_times() -> None:
    sizes = {
        marks.size**2 / (marks.rows[0].total_us or 1)
        for panel in page("changes", RUN, AFTER).panels
        for marks in panel.marks
        if marks.rows
    }
    assert max(sizes) == pytest.approx(min(sizes))


def test_before_and_after_needs_two_runs_of_programs() -> None:
    with pytest.raises(UsageError, match="two runs of a program"):
        figures.draw("changes", [RUN])
    with pytest.raises(UsageError, match="no run of a program"):
        figures.draw("changes", [RUN, synthetic.h200_run(["fp32"])])


# All of them -------------------------------------------------------------------------------------


def test_a_program_has_its_pictures_in_its_folder(tmp_path: Path) -> None:
    drawn = figures.draw_all(replace(RUN, path=tmp_path))
    assert {path.name for path in drawn} == {"roofline.png", "step.png", "timeline.png"}
    drawn = figures.draw_all(program_runs.run(path=tmp_path))
    assert {path.name for path in drawn} == {"roofline.png", "step.png"}


def test_a_terminal_has_the_roofline_and_the_strip() -> None:
    main, strip = (chart(panel, 100, unicode=True).plain for panel in page("roofline").panels)
    assert main.startswith("The program, TFLOP/s over FLOP/byte: 4.81 TB/s derived")
    assert "A nvjet_128x256_NTN" in main and "compute-bound" in main
    assert strip.startswith("Below 0.1 FLOP/byte: % of the HBM roof")
    assert "copies from the host" in strip
    lines = [line for line in strip.splitlines() if "│" in line]
    assert len(lines) == 5 and all(line.count("│") == 2 for line in lines)
    assert max(map(len, main.splitlines())) <= 100


def many() -> RunData:
    rng = np.random.default_rng(5)
    rows = [
        group(
            f"{HOSTILE[: i % 200]}kernel_{i}<{i}>",
            float(us),
            intensity=float(x) if i % 4 else None,
            percent=float(rng.uniform(1, 101)),
            precision=("bf16", "fp32")[i % 2],
        )
        for i, (us, x) in enumerate(
            zip(rng.exponential(40, 700), 10 ** rng.uniform(-2, 4, 700), strict=True)
        )
    ]
    launches = tuple(StepLaunch(i * 1.5, 1.0, 0, i % 3, i % 700) for i in range(9000))
    return program_runs.run(rows, recorded=RecordedStep(launches, 14_000), name=HOSTILE)


def impossible() -> RunData:
    values: Sequence[float | None] = (nan, inf, -1.0, 0.0, 1e300, None)
    rows = [
        replace(program_runs.ROWS[i % 6], **{name: value})  # type: ignore[arg-type]
        for name in ("total_us", "tflops", "intensity", "roof_percent", "observed_percent", "gbps")
        for i, value in enumerate(values)
    ]
    return program_runs.run([*program_runs.ROWS, *rows], step_us=nan, steps="x", name=["a"])


def single(rows: Sequence[Measurement]) -> RunData:
    return program_runs.run(rows, recorded=program_runs.step(rows=1))


def hostile() -> RunData:
    rows = enumerate(program_runs.ROWS)
    named = [replace(row, kernel=HOSTILE[i:], backend=HOSTILE) for i, row in rows]
    return program_runs.run(named, name=HOSTILE, recorded=program_runs.step())


WORST: dict[str, Callable[[], RunData]] = {
    "a program": lambda: RUN,
    "after": lambda: replace(AFTER, recorded=program_runs.step()),
    "one group": lambda: program_runs.run(
        program_runs.ROWS[:1], recorded=program_runs.step(rows=1)
    ),
    "only copies": lambda: program_runs.run(
        program_runs.ROWS[-2:], recorded=program_runs.step(rows=1)
    ),
    "many groups": many,
    "hostile names": hostile,
    "impossible figures": lambda: replace(impossible(), recorded=program_runs.step()),
    "no roof": lambda: replace(
        RUN, manifest=RUN.manifest.model_copy(update={"roofline": Roofline(())})
    ),
}
STYLES = list(figures.THEMES)
DRAWN = ("roofline", "step", "timeline", "changes")
QUICK = [(name, STYLES[i % 4]) for i, name in enumerate(WORST)]
OTHERS = [
    (name, style)
    for name in WORST
    for style in STYLES
    if style != "dark"  # which has the default's geometry
    and (name, style) not in QUICK
]


@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(("name", "style"), QUICK)
def test_the_worst_program_is_whole(name: str, kind: str, style: str, tmp_path: Path) -> None:
    whole(WORST[name](), kind, style, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DRAWN)
@pytest.mark.parametrize(("name", "style"), OTHERS)
def test_in_every_other_style(name: str, kind: str, style: str, tmp_path: Path) -> None:
    whole(WORST[name](), kind, style, tmp_path)


def whole(run: RunData, kind: str, style: str, folder: Path) -> None:
    runs = [RUN, run] if kind == "changes" else [run]
    figure = figures.draw(kind, runs, style=style)
    boxes = check_png(figure)
    # A long legend's columns are up to 3 points elsewhere in an SVG, which has other pixels.
    if (kind, style) != ("step", "paper"):
        check_svg(figure, boxes, folder / "figure.svg")
