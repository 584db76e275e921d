"""What the figures show, and that nothing in them overlaps or is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from typing import Any

import measured
import numpy as np
import pytest
import synthetic
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis as Ticks
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Text

from rooflab import figures
from rooflab.errors import UsageError
from rooflab.figures.labels import Labels, overlaps
from rooflab.figures.model import Axis, Cell, Label, Marks, Panel, Spot, number
from rooflab.figures.roofs import above_roof_cause
from rooflab.model.measurement import FLAGS, Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import MissingCeiling, Roofline
from rooflab.runs import store
from rooflab.runs.store import RunData
from rooflab.workloads import build, find

H200 = synthetic.h200_roofline()
A100 = Roofline(
    (synthetic.compute("fp32", 19.5e12), synthetic.bandwidth("HBM", 1.555e12)), memory="HBM"
)
MEASURED = replace(
    H200,
    ceilings=(
        *H200.ceilings,
        synthetic.compute("bf16", 786e12, "measured"),
        synthetic.compute("bf16", 830e12, "observed"),
        synthetic.compute("fp32", 53e12, "measured"),
        synthetic.bandwidth("HBM", 4.21e12, "measured"),
    ),
)
NO_COMPUTE = MissingCeiling("compute", "fp32", "the driver does not report the number of cores")
NO_BANDWIDTH = MissingCeiling("bandwidth", "HBM", "the driver does not report the bus width")


def on(roofline: Roofline, name: str = "NVIDIA H200", day: int = 20, **other: Any) -> RunData:
    """A FP32 sweep on a device with ``roofline``."""
    default = {"precisions": ("fp32",), "kernels": synthetic.KERNELS, "shapes": synthetic.SQUARES}
    rows = synthetic.rows(roofline, **(default | other))
    return synthetic.run(name, roofline, rows, synthetic.H200_FACTS, day=day)


def one(tflops: float, side: int = 4096, precision: str = "fp32", **other: object) -> RunData:
    """A run of one row."""
    row = synthetic.row("tiled", (side, side, side), precision, tflops, H200, **other)
    return synthetic.run("NVIDIA H200", H200, [row], synthetic.H200_FACTS)


SIZES = (2**12, 2**18, 2**24)
ROWS = [
    {"rows": rows, "columns": columns}
    for rows, columns in ((4096, 128), (4096, 1024), (1024, 8192), (256, 32768))
]


def stream(
    workload: str,
    kernel: str,
    gbps: float,
    precision: str = "fp32",
    extents: Sequence[dict[str, int]] = (),
) -> list[Measurement]:
    """Rows of a memory-bound workload that reach ``gbps``."""
    made = []
    for values in extents or [dict.fromkeys(find(workload).sizes, size) for size in SIZES]:
        problem = build(workload, precision, values)
        time_us = problem.link_bytes / gbps / 1e3
        roof = H200.roof(precision, problem.flops, problem.traffic)
        assert roof is not None
        row = synthetic.of(
            problem,
            kernel,
            time_us=time_us,
            tflops=problem.flops / time_us / 1e6,
            gbps=gbps,
            roof_us=roof.us,
            roof_percent=100 * roof.us / time_us,
            bound=roof.bound,
        )
        made.append(row)
    return made


def memory_run(*rows: list[Measurement]) -> RunData:
    flat = [row for some in rows for row in some]
    return synthetic.run("NVIDIA H200", H200, flat, synthetic.H200_FACTS)


def fast_cpu() -> RunData:
    """A CPU whose measured roofs are above the derived ones."""
    roofs = (
        replace(roof, value=0.6 * roof.value, formula="2 cores × 2 FLOP × 2596 MHz")
        if roof.provenance == "derived"
        else roof
        for roof in synthetic.cpu_roofline().ceilings
    )
    return synthetic.under(synthetic.cpu_run(("fp32", "fp64")), roofs)


def cases() -> dict[str, list[RunData]]:
    """Runs of every kind that must draw."""
    warm = [
        synthetic.row("cublas", (side,) * 3, "bf16", tflops, H200, cache="warm")
        for side, tflops in ((256, 520), (512, 620), (1024, 740), (4096, 1030))
    ]
    slower = on(H200, day=21, kernels=("tiled", "cublas"), best=0.6)
    other = on(A100, "NVIDIA A100-SXM4-40GB", day=21, kernels=("tiled", "cublas"))
    many = [(side,) * 3 for side in range(128, 128 * 76, 128)]
    return {
        "every precision": [synthetic.h200_run()],
        "one precision": [on(H200)],
        "measured roofs too": [on(MEASURED, precisions=("fp32", "bf16"))],
        "power capped": [synthetic.capped_run(("fp64", "fp32", "tf32", "fp16", "bf16", "int32"))],
        "power capped, one precision": [synthetic.capped_run(("bf16",))],
        "power capped to a third": [synthetic.capped_run(("fp16", "bf16", "tf32"), 660)],
        "power capped, measured roofs too": [
            synthetic.under(synthetic.capped_run(("bf16",)), MEASURED.ceilings)
        ],
        "power capped, two runs": [on(H200), synthetic.capped_run(("fp32",))],
        "cpu": [synthetic.cpu_run()],
        "cpu, two precisions": [synthetic.cpu_run(("fp32", "fp64"))],
        "cpu above its reported clock": [fast_cpu()],
        "llm": [synthetic.h200_run(("bf16",), synthetic.LLM)],
        "llm, three precisions": [synthetic.h200_run(("fp32", "fp16", "bf16"), synthetic.LLM)],
        "two runs of one device": [on(H200), slower],
        "two devices": [on(H200), other],
        "gpu and cpu": [on(H200), synthetic.cpu_run()],
        "gpu and cpu, two precisions": [
            on(H200, precisions=("fp32", "bf16")),
            synthetic.cpu_run(("fp32", "fp64")),
        ],
        "one point": [one(9.1)],
        "one kernel": [on(H200, kernels=("mine",))],
        "twelve kernels": [on(H200, kernels=[f"kernel_{i}" for i in range(12)], best=1.0)],
        "300 points": [on(H200, shapes=many)],
        "above the roof": [synthetic.run("NVIDIA H200", H200, warm, synthetic.H200_FACTS)],
        "no compute roof": [on(synthetic.h200_roofline([NO_COMPUTE]))],
        "no bandwidth": [on(synthetic.h200_roofline([NO_BANDWIDTH]))],
        "no roof at all": [on(synthetic.h200_roofline([NO_BANDWIDTH, NO_COMPUTE]))],
        "streams": [
            memory_run(
                stream("triad", "streaming", 4100),
                stream("triad", "naive", 3100),
                stream("sum", "grid", 4300),
                stream("add", "bulk", 3900),
            )
        ],
        "integers": [memory_run(stream("add", "bulk", 3900, "int32"))],
        "rows": [
            memory_run(
                stream("softmax", "block", 2900, extents=ROWS),
                stream("softmax", "naive", 300, extents=ROWS),
            )
        ],
        "odd shapes": [on(H200, shapes=[(1, 7, 127), (129, 129, 129), (1000, 37, 513)])],
    }


CASES = cases()
DRAW = {name: partial(figures.draw, name) for name in ("roofline", "size")}


STYLES = [name for name in figures.THEMES if name != "default"]


@cache
def measured_run(name: str) -> RunData:
    return store.load(measured.MEASURED / name)


def drawn(name: str, figure: str = "roofline", style: str = "default") -> Figure:
    """A figure of one of the cases or measured runs."""
    if style == "default" and name in CASES:
        return of_case(name, figure)
    return DRAW[figure](CASES[name] if name in CASES else [measured_run(name)], style=style)


@cache
def of_case(name: str, figure: str) -> Figure:
    """Made once, because several tests look at it: that takes a second."""
    return DRAW[figure](CASES[name], style="default")


Box = tuple[str, np.ndarray]
"""A text and its corners."""


def texts(figure: Figure) -> list[Text]:
    """Every text that can be seen, ticks, legend, titles and footer included."""

    def visible(artist: Artist) -> Iterator[Text]:
        if not artist.get_visible():
            return
        children = artist.get_children()
        if isinstance(artist, Ticks):  # it keeps ticks beyond its limits, which it never draws
            low, high = sorted(artist.get_view_interval())
            ticks = [*artist.get_major_ticks(), *artist.get_minor_ticks()]
            hidden = {id(tick) for tick in ticks if not low <= tick.get_loc() <= high}
            children = [child for child in children if id(child) not in hidden]
        if isinstance(artist, Text) and artist.get_text().strip():
            yield artist
        for child in children:
            yield from visible(child)

    return list(visible(figure))


def corners(text: Text) -> Any:
    """The text's own rectangle on the page, turned as the text is; pixels."""
    turn = text.get_rotation()
    mode = text.get_rotation_mode()
    where = text.get_window_extent()
    if turn % 90 == 0:
        return np.array(
            [(where.x0, where.y0), (where.x1, where.y0), (where.x1, where.y1), (where.x0, where.y1)]
        )
    text.set_rotation(0)
    flat = text.get_window_extent()
    text.set(rotation=turn, rotation_mode=mode)
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    half = np.array([flat.width, flat.height]) / 2
    centre = np.array([(where.x0 + where.x1) / 2, (where.y0 + where.y1) / 2])
    square = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) * half
    return square @ np.array([(c, s), (-s, c)]) + centre


def near(boxes: list[Box]) -> Iterator[tuple[Box, Box]]:
    """The pairs whose upright bounds touch: only they can overlap."""
    low, high = (np.array([reach(box, 0) for _, box in boxes]) for reach in (np.min, np.max))
    for i, box in enumerate(boxes):
        touching = ((low[i] <= high) & (low <= high[i])).all(axis=1)
        yield from ((box, boxes[j]) for j in np.flatnonzero(touching) if j > i)


def contents(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in texts(figure))


def series(figure: Figure) -> list[tuple[str, str, int]]:
    """Colour, marker and number of points of every drawn series, without roofs and legend."""
    return [
        (str(line.get_color()), str(line.get_marker()), np.size(line.get_xdata()))
        for axes in figure.axes
        for line in axes.lines
        if line.get_marker() not in ("None", "") and line.get_label() != "_ridge"
    ]


@pytest.mark.slow
@pytest.mark.parametrize("which", DRAW)
@pytest.mark.parametrize("name", CASES)
def test_no_text_overlaps_another_or_leaves_the_page(name: str, which: str) -> None:
    check_texts(drawn(name, which))


def in_turn(names: Iterable[str], styles: Sequence[str]) -> list[tuple[str, str]]:
    """Each name with one of the styles: all pairs would take minutes."""
    return list(zip(names, cycle(styles), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "name", "style"),
    [(which, *pair) for i, which in enumerate(DRAW) for pair in in_turn(CASES, STYLES)[i % 2 :: 2]],
)
def test_nor_in_another_style(name: str, style: str, which: str) -> None:
    check_texts(drawn(name, which, style))


def check_texts(figure: Figure, *, drawn: bool = False) -> list[Box]:
    """That every text is on the page and no two overlap; returns where they are.

    ``drawn`` says that the figure has its layout.
    """
    if not drawn:
        figure.draw_without_rendering()
    page = figure.bbox
    boxes = [(text.get_text(), corners(text)) for text in texts(figure)]
    ticks = [text for text, _ in boxes if re.fullmatch(r"\d[\d.]*(e\d+)?", text)]
    assert ticks, "tick labels are among them"
    for text, box in boxes:
        assert box.min() >= 0, text
        assert box[:, 0].max() <= page.width and box[:, 1].max() <= page.height, text
    for (text, box), (other_text, other) in near(boxes):
        assert not overlaps(box, other[None])[0], f"{text!r} overlaps {other_text!r}"
    return boxes


def test_each_precision_has_its_own_roof_only() -> None:
    figure = figures.draw("roofline", [synthetic.h200_run()])
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        precision.title for precision in PRECISIONS.values()
    ]
    for axes, (name, precision) in zip(figure.axes, PRECISIONS.items(), strict=True):
        notes = [text.get_text() for text in axes.texts]
        roofs = [note for note in notes if "FLOP/s" in note]
        assert "HBM 4.81 TB/s" in notes
        if precision.integer:  # of which the device has no compute roof
            assert roofs == []
            assert not any("ridge" in note for note in notes)
            continue
        peak = synthetic.H200_PEAKS[name] / 1e12
        assert roofs == [f"{precision.title} {number(peak)} TFLOP/s (derived)"]
        assert f"ridge {number(peak / 4.81)} FLOP/B" in notes


def test_provenance_shows_in_line_and_label() -> None:
    figure = figures.draw("roofline", [on(MEASURED, precisions=("bf16",))])
    lines = {
        round(float(np.asarray(line.get_ydata())[-1])): line
        for line in figure.axes[0].lines
        if line.get_marker() == "None" and line.get_linestyle() != ":"
    }
    assert lines[989].get_linestyle() == "-"
    assert lines[786].get_linestyle() == "--"
    assert lines[830].get_linewidth() < lines[989].get_linewidth()
    assert "786 TFLOP/s (measured, dashed)" in contents(figure)


def thin(figure: Figure, panel: int = 0) -> list[float]:
    """The heights of the thin roofs of one panel."""
    lines = (line for line in figure.axes[panel].lines if line.get_marker() == "None")
    return [
        float(np.asarray(line.get_ydata())[-1])
        for line in lines
        if line.get_linewidth() == 0.6 and line.get_linestyle() == "-"
    ]


@pytest.mark.parametrize("case", ["power capped, one precision", "power capped"])
def test_a_clock_held_down_shows_as_a_thin_roof(case: str) -> None:
    figure = drawn(case)
    for i, name in enumerate(dict.fromkeys(r.problem.precision for r in CASES[case][0].ok)):
        peak = synthetic.H200_PEAKS.get(name)
        roofs = [pytest.approx(peak / 1e12 * 1455 / 1980)] if peak else []
        assert thin(figure, i) == roofs
    assert "727 TFLOP/s (observed at 1455 MHz, thin)" in contents(figure)
    far = contents(figures.draw("roofline", [synthetic.capped_run(("bf16",), 660)]))
    assert "330 TFLOP/s (observed at 660 MHz, thin)" in far


def test_only_rows_right_of_the_ridge_at_a_lower_clock_make_a_thin_roof() -> None:
    assert thin(figures.draw("roofline", [synthetic.capped_run(("bf16",), 1950)])) == []
    slow = {"sm_mhz": 1000, "observed_tflops": 500.0}
    assert thin(figures.draw("roofline", [one(100, 256, "bf16", **slow)])) == []
    assert thin(figures.draw("roofline", [one(100, 4096, "bf16", **slow)])) == [500]
    assert thin(figures.draw("roofline", [one(100, 4096, "bf16", sm_mhz=1980)])) == []


@pytest.mark.parametrize("times", [0.7, 1.5])
def test_the_thick_roof_is_the_one_that_percentages_refer_to(times: float) -> None:
    """On a CPU the measured one, be the derived one below or above it."""
    run = store.load(measured.CPU)
    roofline = run.manifest.roofline
    used = roofline.compute("fp32")
    assert used and used.provenance == "measured"
    other = replace(used, provenance="derived", value=times * used.value)
    kept = [one for one in roofline.ceilings if one.limit != other.limit or one == used]
    (axes,) = figures.draw("roofline", [synthetic.under(run, (*kept, other))]).axes
    heights = [(line.get_linewidth(), np.asarray(line.get_ydata())) for line in axes.lines]
    flat = {width: y[0] for width, y in heights if len(y) == 2 and y[0] == y[1]}
    assert sorted(flat) == [0.8, 1.4]
    assert flat[1.4] == pytest.approx(used.value / 1e9)
    assert flat[0.8] == pytest.approx(other.value / 1e9)


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_lines_of_one_kernel_in_two_layouts_have_their_layouts(
    draw: Callable[[list[RunData]], Figure],
) -> None:
    rows = [
        synthetic.row("cublas", (side,) * 3, "bf16", 0.1 * side, H200, layout=layout)
        for layout in ("nn", "nt")
        for side in (1024, 4096)
    ]
    both = contents(draw([synthetic.run("NVIDIA H200", H200, rows, synthetic.H200_FACTS)]))
    assert re.search(r"\d nn\b", both)
    assert re.search(r"\d nt\b", both)
    alone = contents(draw([synthetic.run("NVIDIA H200", H200, rows[:2], synthetic.H200_FACTS)]))
    assert not re.search(r"\d nn\b", alone)


def test_the_axis_of_sizes_names_what_is_as_large_in_all_points() -> None:
    """A batch of 1 is as large as a size of 1, and no more than that."""
    rows = [synthetic.row("tiled", (side,) * 3, "fp32", 1e-6, H200) for side in (1, 2)]
    figure = figures.draw("size", [synthetic.run("NVIDIA H200", H200, rows, synthetic.H200_FACTS)])
    assert "Size M = N = K" in [axes.get_xlabel() for axes in figure.axes]
    assert "Intensity (FLOP/byte)" in contents(figure)
    unknown = [replace(row, flops=None, tflops=None, intensity=None) for row in rows]
    run = synthetic.run("NVIDIA H200", H200, unknown, synthetic.H200_FACTS)
    assert "Intensity" not in contents(figures.draw("size", [run]))


def test_a_label_is_nearest_to_its_own_marker() -> None:
    axis = Axis((0, 1), log=False)
    own, other = (0.2, 0.5), (0.4, 0.6)
    marks = Marks([own, other], "black", "o", 6)
    near, far = Spot(*own, 8, 0, "left"), Spot(*own, 60, 10, "left")

    def placed(spots: list[Spot], of: tuple[float, float] | None = None) -> Spot | None:
        labels = Labels(Panel(Cell(0, 0, 0, 0, 4, 4), axis, axis, marks=[marks]))
        return labels.place(Label("8192", spots, "black", of=of), 24, 10)

    assert placed([far], own) is None
    assert placed([far, near], own) is near
    assert placed([far]) is far


def test_labels_that_are_apart_overlap_no_other_and_are_in_the_frame() -> None:
    axis = Axis((0, 1), log=False)
    labels = Labels(Panel(Cell(0, 0, 0, 0, 4, 4), axis, axis))
    outside, inside = Spot(0, 0.5, 0, 0, "right"), Spot(0, 0.5, 4, 0, "left")
    label = Label("8192", [outside, inside], "black", required=True)
    assert labels.place(label, 24, 10, apart=True) is inside
    assert labels.place(label, 24, 10, apart=True) is None
    assert labels.place(label, 24, 10) is not None


def test_boxes_and_lines_overlap() -> None:
    box = np.array([(0, 0), (4, 0), (4, 2), (0, 2)], float)
    lines = np.array([[(-1, 1), (5, 1)], [(-1, 3), (5, 3)], [(3, -1), (5, 1)], [(4, 0), (9, 0)]])
    assert overlaps(box, lines).tolist() == [True, False, False, False]
    boxes = np.stack([box + 1, box + 9, box @ [[0.6, 0.8], [-0.8, 0.6]] + [2, 1]])
    assert overlaps(box, boxes).tolist() == [True, False, True]


def test_workloads_have_roofs_of_their_own_against_bytes() -> None:
    """A line from the roof of a product to that of a copy would be no roof."""
    figure = figures.draw("size", [measured_run("counted")])
    roofs = [line for line in figure.axes[0].lines if line.get_marker() == "None"]
    assert sorted(np.unique(line.get_ydata()).size for line in roofs) == [1, 2]


def test_no_point_is_above_the_highest_thin_roof() -> None:
    """Each kernel has its own clock: some are above the roof at the lowest one."""
    clocks = {"tiled": (1400, 720.0), "cublas": (1700, 300.0), "coalesced": (1300, 600.0)}
    rows = [
        synthetic.row(name, (4096,) * 3, "bf16", tflops, H200, sm_mhz=mhz, observed_tflops=mhz / 2)
        for name, (mhz, tflops) in clocks.items()
    ]
    run = synthetic.run("NVIDIA H200", H200, rows, synthetic.H200_FACTS)
    figure = figures.draw("roofline", [run])
    assert thin(figure) == [850, 650]
    assert "850 TFLOP/s (observed at 1700 MHz, thin)" in contents(figure)
    assert "650 TFLOP/s (observed at 1300 MHz, thin)" in contents(figure)


def test_the_lowest_clock_of_all_runs_of_a_device_counts() -> None:
    figure = drawn("power capped, two runs")
    assert thin(figure) == [pytest.approx(66.9 * 1455 / 1980)]


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_the_footer_counts_notable_flags_in_words(draw: Any) -> None:
    run = synthetic.capped_run(("fp32", "bf16"))
    text = contents(draw([run]))
    assert f"\n4 of 48 points: {FLAGS['power_capped'].split(',')[0]}\n" in f"{text}\n"
    assert f"4 of 48 points: {FLAGS['noisy']}" in text
    assert "too short" not in text and "throttled" not in text
    text = contents(draw([run], ["bf16"]))
    assert "2 of 24 points: the power limit" in text
    text = contents(draw([one(9.1, flags="ungated;outliers")]))
    assert "1 of 1 point: launches did not queue behind the gate; the time may" in text
    text = contents(draw(CASES["power capped, two runs"], None))
    assert "2 of 24 points" in text


def test_cpu_percentages_refer_to_the_measured_roof_and_the_unit_fits() -> None:
    figure = figures.draw("roofline", [synthetic.cpu_run()])
    assert "Performance (GFLOP/s)" in contents(figure)
    assert "ridge 6.92 FLOP/B" in contents(figure)
    assert "148 GFLOP/s (measured" in contents(figure)


def shown(run: RunData) -> int:
    """How many points a run has in a figure: of several workloads, one for each problem."""
    several = len({row.problem.workload for row in run.ok}) > 1
    return len({row.problem.key for row in run.ok}) if several else len(run.ok)


def places(line: Line2D) -> Any:
    """The data of a line, which may have gaps."""
    data = np.column_stack([line.get_xdata(), line.get_ydata()]).astype(float)
    return data[~np.isnan(data).any(axis=1)]


@pytest.mark.parametrize("name", CASES)
def test_limits_hold_all_data_and_ridges(name: str) -> None:
    runs = CASES[name]
    figure = drawn(name)
    points = 0
    for axes in figure.axes:
        (x0, x1), (y0, y1) = axes.get_xlim(), axes.get_ylim()
        for line in axes.lines:
            if line.get_marker() not in ("None", ""):
                xs, ys = places(line).T
                assert (x0 < xs).all() and (xs < x1).all() and (y0 < ys).all() and (ys < y1).all()
                points += len(xs) if line.get_label() != "_ridge" else 0
    assert points == sum(shown(run) for run in runs)


def empty(axes: Axes) -> float:
    """The share of a roofline's panel above the highest roof or point, and below the lowest."""
    roofs = [line for line in axes.lines if line.get_linestyle() != ":"]
    points = [line for line in roofs if line.get_marker() not in ("None", "")]
    top = max(places(line)[:, 1].max() for line in roofs)
    bottom = min(places(line)[:, 1].min() for line in points)
    low, high = np.log10(axes.get_ylim())
    return float(1 - (np.log10(top) - np.log10(bottom)) / (high - low))


@pytest.mark.parametrize("name", ["ladder", "memory_bound"])
def test_panels_waste_no_room_and_the_page_is_not_tall(name: str) -> None:
    figure = figures.draw("roofline", [measured_run(name)])
    assert figure.get_figheight() <= 11
    shares = [empty(axes) for axes in figure.axes]
    # The largest is TF32's, whose row has the decade of FP16 below it.
    assert max(shares) <= 0.52 and sum(shares) / len(shares) <= 0.39, shares


def test_a_page_has_a_greatest_height() -> None:
    for figure in (drawn("every precision"), drawn("every precision", "size")):
        assert figure.get_figheight() <= 11.5


def test_only_ok_rows_are_drawn() -> None:
    run = on(H200)
    bad = replace(run.measurements[0], status="incorrect")
    figure = figures.draw("roofline", [replace(run, measurements=[bad, *run.measurements[1:]])])
    assert sum(points for _, _, points in series(figure)) == len(run.measurements) - 1


def test_a_kernel_looks_the_same_in_every_figure() -> None:
    alone = figures.draw("roofline", [on(H200, kernels=("tiled",))])
    among = figures.draw("roofline", [on(H200)])
    by_size = figures.draw("size", [on(H200, kernels=("tiled",))])
    [(colour, marker, _)] = series(alone)
    assert (colour, marker) in [(c, m) for c, m, _ in series(among)]
    assert {(c, m) for c, m, _ in series(by_size)} == {(colour, marker)}


def test_ends_carry_size_and_share_of_the_roof() -> None:
    text = contents(figures.draw("roofline", [one(9.1)]))
    assert "4096 · 14 % of roof" in text
    llm = contents(figures.draw("roofline", [synthetic.h200_run(("bf16",), synthetic.LLM)]))
    assert "1×4096×4096" in llm


def test_title_and_footer_name_device_and_conditions() -> None:
    text = contents(figures.draw("roofline", [on(H200)])).replace("\u00a0", " ")
    assert "NVIDIA H200 — gemm FP32 roofline" in text
    for part in ("driver 580.95.05", "700 W", "ECC enabled", "cache cold", "2026-11-20"):
        assert part in text
    assert "rooflab 0.1.0" in text
    cpu = contents(figures.draw("roofline", [synthetic.cpu_run()]))
    assert "power limit" not in cpu and "driver" not in cpu


def test_the_footer_explains_a_derived_roof_below_the_measured_one() -> None:
    said = "The derived roof assumes the reported clock, 2.6 GHz; the processor ran faster."
    assert contents(drawn("cpu above its reported clock")).count(said) == 1
    assert said not in contents(drawn("cpu, two precisions"))


def test_overlays_tell_runs_and_devices_apart() -> None:
    figure = drawn("two devices")
    text = contents(figure)
    assert "H200: FP32 66.9 TFLOP/s (derived)" in text
    assert "A100-SXM4-40GB:\nFP32 19.5 TFLOP/s (derived)" in text
    lines = figure.axes[0].lines
    fills = {line.get_fillstyle() for line in lines if np.size(line.get_xdata()) == 6}
    assert fills == {"full", "none"}
    same = contents(drawn("two runs of one device"))
    assert "2026-11-21 14:03" in same and same.count("66.9 TFLOP/s") == 1


def test_a_device_without_points_in_a_panel_has_no_roof_there() -> None:
    cpu = synthetic.cpu_run()
    missing = (MissingCeiling("compute", "bf16", "CPU kernels have fp32 and fp64 only"),)
    roofline = replace(synthetic.cpu_roofline(), missing=missing)
    cpu = replace(cpu, manifest=cpu.manifest.model_copy(update={"roofline": roofline}))
    figure = figures.draw("roofline", [on(H200, precisions=("fp32", "bf16")), cpu])
    fp32, bf16 = ([text.get_text() for text in axes.texts] for axes in figure.axes)
    assert any("8481C" in text for text in fp32) and any("DRAM" in text for text in fp32)
    assert not any("8481C" in text or "DRAM" in text for text in bf16)
    assert "no BF16 roof" not in contents(figure)


def test_odd_names_are_drawn() -> None:
    assert "CPU — gemm FP32 roofline" in contents(figures.draw("roofline", [on(H200, "CPU")]))
    wide = "kernel_" * 30  # as wide a legend as no page
    text = contents(figures.draw("roofline", [on(H200, kernels=(wide,))]))
    assert wide not in text and re.search("^(kernel_)+.*….*_kernel_$", text, re.MULTILINE)


def test_a_missing_roof_is_explained_and_not_replaced() -> None:
    text = contents(drawn("no compute roof"))
    assert "No FP32 roof: the driver does not report the number of cores" in text
    assert "HBM 4.81 TB/s" in text and "ridge" not in text
    other = synthetic.h200_roofline([NO_COMPUTE])
    measured = replace(
        other, ceilings=(*other.ceilings, synthetic.compute("fp32", 53e12, "measured"))
    )
    assert "No FP32 roof" not in contents(figures.draw("roofline", [on(measured)]))
    text = contents(drawn("no bandwidth"))
    assert "No HBM roof" in text and "FP32 66.9 TFLOP/s" in text and "ridge" not in text


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        (one(50), ""),
        (one(520, 256, "bf16", cache="warm"), "L2-resident"),
        (one(520, 256, "bf16"), "partly L2-resident"),
        (one(70), "clock above nominal"),
        (one(300), "TF32 in use?"),
        (one(3000, 4096, "bf16"), "check the bytes or the clock"),
    ],
)
def test_points_above_the_roof_carry_the_likely_cause(run: RunData, cause: str) -> None:
    assert above_roof_cause(run.measurements[0], run) == cause
    assert cause in contents(figures.draw("roofline", [run]))


def test_a_measured_roof_is_exceeded_by_noise() -> None:
    roofline = synthetic.cpu_roofline()
    rows = [synthetic.row("blas", (2048,) * 3, "fp32", 0.150, roofline)]
    run = synthetic.run("CPU", roofline, rows, kind="cpu")
    assert above_roof_cause(rows[0], run) == "within noise of the measured roof"


def test_sizes_stand_below_their_intensities() -> None:
    figure = figures.draw("size", [on(H200)])
    figure.canvas.draw()
    text = contents(figure)
    for size in (256, 8192):
        assert str(size) in text and number(size / 6) in text
    assert {axes.get_ylabel() for axes in figure.axes} == {"TFLOP/s", "GB/s"}


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_redrawing_gives_the_same_file(tmp_path: Path, suffix: str) -> None:
    for i in (1, 2):
        figures.save(figures.draw("roofline", [on(H200)]), tmp_path / f"{i}{suffix}")
    first, second = ((tmp_path / f"{i}{suffix}").read_bytes() for i in (1, 2))
    assert first == second and len(first) > 1000


# Several workloads -------------------------------------------------------------------------------


def test_a_copy_has_no_place_on_a_roofline_but_a_bandwidth() -> None:
    run = memory_run(stream("copy", "memcpy", 4000))
    with pytest.raises(UsageError, match=r"no FLOPs in its rows.*rooflab plot --by-size"):
        figures.draw("roofline", [run])
    figure = figures.draw("size", [run])
    assert {axes.get_ylabel() for axes in figure.axes} == {"GB/s"}
    assert sum(points for _, _, points in series(figure)) == 3


def test_draw_all_leaves_the_roofline_out_where_there_are_no_flops(tmp_path: Path) -> None:
    run = replace(memory_run(stream("copy", "memcpy", 4000)), path=tmp_path)
    assert [path.name for path in figures.draw_all(run)] == ["size.png"]


def test_integers_lie_under_the_memory_roof_alone() -> None:
    text = contents(figures.draw("roofline", [memory_run(stream("add", "cupy", 4000, "int32"))]))
    assert "HBM 4.81 TB/s" in text
    assert "ridge" not in text


STREAMS = (
    stream("copy", "memcpy", 4200),
    stream("triad", "streaming", 4100),
    stream("triad", "naive", 3100),
    stream("sum", "grid", 4300),
)


def test_of_several_workloads_the_fastest_kernels_are_drawn() -> None:
    both = memory_run(*STREAMS)
    roofline = figures.draw("roofline", [both])
    text = contents(roofline)
    assert "The fastest kernel of each problem" in text
    assert {"triad", "sum"} <= set(text.split())
    assert "copy" not in text.split()  # which has no FLOPs
    assert sum(points for _, _, points in series(roofline)) == 6
    by_size = figures.draw("size", [both])
    text = contents(by_size)
    assert {"copy", "triad", "sum"} <= set(text.split())
    assert "Compulsory bytes" in text
    assert {axes.get_ylabel() for axes in by_size.axes} == {"GB/s"}
    assert sum(points for _, _, points in series(by_size)) == 9


def test_one_workload_may_be_chosen_and_has_all_its_kernels() -> None:
    both = memory_run(*STREAMS)
    figure = figures.draw("size", [both], workload="triad")
    text = contents(figure)
    assert {"streaming", "naive"} <= set(text.split())
    assert "fastest" not in text
    with pytest.raises(UsageError, match="no row of 'softmax': choose from copy, triad, sum"):
        figures.draw("size", [both], workload="softmax")


@pytest.mark.parametrize("draw", DRAW.values(), ids=DRAW)
def test_markup_in_names_is_drawn_as_it_stands(draw: Any) -> None:
    """Matplotlib would read what stands between dollars as mathematics, and fail."""
    row = synthetic.row("$\\frac{$ _x", (64, 64, 64), "fp32", 1.0, H200)
    run = synthetic.run("GPU $\\nothing$ {", H200, [row], synthetic.H200_FACTS)
    figure = draw([run])
    figure.canvas.draw()
    assert "$\\frac{$ _x" in contents(figure)
    assert "GPU $\\nothing$ {" in contents(figure)


def test_a_users_matplotlib_settings_do_not_matter(tmp_path: Path) -> None:
    import matplotlib

    figures.save(figures.draw("size", [one(9.1)]), tmp_path / "plain.png")
    with matplotlib.rc_context({"font.size": 20, "axes.facecolor": "red", "savefig.bbox": "tight"}):
        figures.save(figures.draw("size", [one(9.1)]), tmp_path / "styled.png")
    assert (tmp_path / "plain.png").read_bytes() == (tmp_path / "styled.png").read_bytes()


def test_draw_all_writes_into_the_run(tmp_path: Path) -> None:
    """By size only if there are several."""
    run = replace(one(9.1), path=tmp_path)
    assert figures.draw_all(run) == [tmp_path / "roofline.png"]
    small = one(4.0, 512).measurements[0]
    run = replace(run, measurements=[*run.measurements, small])
    assert figures.draw_all(run) == [tmp_path / "roofline.png", tmp_path / "size.png"]
    assert all(path.is_file() for path in figures.draw_all(run))


def test_errors_say_what_to_type(tmp_path: Path) -> None:
    run = one(9.1)
    with pytest.raises(UsageError, match=r"\.png, \.svg or \.pdf"):
        figures.save(figures.draw("roofline", [run]), tmp_path / "roofline.gif")
    with pytest.raises(UsageError, match="choose from fp32"):
        figures.draw("roofline", [run], ["bf16"])
    failed = replace(run, measurements=[replace(run.measurements[0], status="failed")])
    with pytest.raises(UsageError, match="no row with status ok"):
        figures.draw("size", [failed])
    first = run.measurements[0]
    odd = replace(first, problem=replace(first.problem, precision="fp4"))
    unknown = replace(run, measurements=[odd])
    for precisions in (None, ["fp4"]):
        with pytest.raises(UsageError, match=r"only rows of precision fp4.*it supports fp64"):
            figures.draw("roofline", [unknown], precisions)
    both = replace(run, measurements=run.measurements + unknown.measurements)
    assert (
        sum(points for _, _, points in series(figures.draw("size", [both]))) == 2
    )  # twice one row
    with pytest.raises(UsageError, match="choose from fp32"):
        figures.draw("roofline", [both], ["fp4"])
    with pytest.raises(UsageError, match="no run"):
        figures.draw("roofline", [])


# Levels ------------------------------------------------------------------------------------------


def counted(kernel: str, size: int, precision: str, tflops: float, *shares: float) -> Measurement:
    """A row whose counted bytes are these multiples of the model's: DRAM, L2, L1."""
    made = synthetic.row(kernel, (size,) * 3, precision, tflops, H200)
    dram, l2, l1 = (share * (made.bytes or 0) for share in shares)
    flops = 1.01 * (made.flops or 0)
    return replace(made, dram_bytes=dram, l2_bytes=l2, l1_bytes=l1, counted_flops=flops)


LEVELS = [
    counted("cublas", 8192, "fp16", 700, 3.4, 20, 40),
    counted("cublas", 4096, "fp16", 600, 2, 20, 40),
    counted("tiled", 8192, "fp16", 9, 4, 200, 1200),
    counted("tiled", 4096, "fp32", 8.8, 2, 128, 900),
]


def levels_run(*rows: Measurement) -> RunData:
    limits = (
        synthetic.bandwidth("L2", 8.3e12, "measured"),
        synthetic.bandwidth("L1", 31.9e12, "measured"),
    )
    return synthetic.run("NVIDIA H200", H200.with_limits(*limits), list(rows))


def test_levels_have_a_roof_and_a_marker_each() -> None:
    figure = figures.draw("levels", [levels_run(*LEVELS)])
    by_title = {axes.get_title(loc="left"): axes for axes in figure.axes}
    assert set(by_title) == {"FP32", "FP16"}
    fp16 = by_title["FP16"]
    markers = [line.get_marker() for line in fp16.lines]
    # The largest problem of both kernels: three levels, and the model's intensity.
    assert [markers.count(marker) for marker in "os^x"] == [2, 2, 2, 2]
    texts = {text.get_text() for text in fp16.texts}
    for label in ("L1 31.9 TB/s", "L2 8.3 TB/s", "HBM 4.81 TB/s", "989 TFLOP/s"):
        assert label in texts
    assert {"cublas 8192", "tiled 8192"} <= texts
    (l2,) = (line for line in fp16.lines if line.get_marker() == "s" and places(line)[0, 1] == 700)
    row = LEVELS[0]
    assert row.flops and row.l2_bytes
    assert places(l2)[0, 0] == pytest.approx(row.flops / row.l2_bytes)


def test_levels_need_one_run_with_counted_bytes() -> None:
    with pytest.raises(UsageError, match="has no counted bytes: rooflab counters"):
        figures.draw("levels", [synthetic.h200_run(("fp32",))])
    other = levels_run(*LEVELS)
    other.manifest.device.name = "another"
    with pytest.raises(UsageError, match="plot --levels draws runs of one device"):
        figures.draw("levels", [levels_run(*LEVELS), other])
