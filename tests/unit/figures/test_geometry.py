"""The geometry of figures: of measured runs, and of the worst that a run may hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import cycle, product
from pathlib import Path

import measured
import numpy as np
import pytest
import synthetic
from geometry import check_png, check_svg, points, ridges
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from test_colours import SIXTEEN
from test_plot import in_turn, measured_run, stream

from rooflab import figures
from rooflab.errors import UsageError
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.runs.store import RunData
from rooflab.workloads import build

H200 = synthetic.h200_roofline()
ALL = tuple(synthetic.H200_PEAKS)
TWO = [(512,) * 3, (4096,) * 3]
LONG = tuple(f"a_kernel_with_a_name_that_{'never_' * 12}ends_{i}" for i in range(3))


def on_h200(rows: list[Measurement]) -> RunData:
    return synthetic.run("NVIDIA H200", H200, rows, synthetic.H200_FACTS)


def swept(
    precisions: Sequence[str], kernels: Sequence[str], shapes: Sequence[tuple[int, int, int]]
) -> RunData:
    rows = [
        row
        for i, kernel in enumerate(kernels)
        for row in synthetic.rows(H200, precisions, (kernel,), shapes, best=0.9 * 0.75**i)
    ]
    return on_h200([replace(row, energy_j=(row.flops or 0) / 5e11) for row in rows])


def spread(times: float) -> RunData:
    """Intensity and performance from 1 to ``times``: FP32 rows of one line."""
    rows = []
    for i in range(7):
        part = times ** (i / 6)
        row = synthetic.row("tiled", (256 + i,) * 3, "fp32", 60 * part / times, H200)
        rows.append(replace(row, intensity=1e4 * part / times))
    return on_h200(rows)


def streamed(host: str, chunk: int, streams: int, gbps: float) -> Measurement:
    """One row of products whose operands are in host memory."""
    extents = {"m": 256, "n": 256, "k": 256, "batch": 1000}
    placed = {"host": host, "chunk": chunk, "streams": streams}
    problem = build("gemm", "fp32", extents | placed)
    seconds = problem.link_bytes / gbps / 1e9
    return synthetic.of(
        problem,
        "cublas",
        time_us=seconds * 1e6,
        tflops=problem.flops / seconds / 1e12,
        gbps=gbps,
        roof_us=0.6 * seconds * 1e6,
        roof_percent=60.0,
        serial_us=1.5 * seconds * 1e6,
        bound="h2d",
    )


def both_places() -> RunData:
    """Rows in device memory beside rows in host memory, at many chunks and numbers of streams."""
    roofline = H200.with_limits(
        synthetic.bandwidth("H2D", 55e9, "measured"),
        synthetic.bandwidth("H2D_BOTH", 45e9, "measured"),
        synthetic.bandwidth("D2H_BOTH", 44e9, "measured"),
        synthetic.bandwidth("H2D_PAGEABLE", 9e9, "measured"),
    )
    rows = synthetic.rows(H200, ("fp32",), ("tiled", "cublas"), synthetic.SQUARES)
    for host, rate in (("pinned", 60.0), ("pageable", 8.0)):
        for streams in (1, 2, 4):
            rows += [
                streamed(host, chunk, streams, rate * (1 - 0.5 / streams) * chunk / (chunk + 20))
                for chunk in (4, 16, 64, 250)
            ]
    return synthetic.run("NVIDIA H200", roofline, rows, synthetic.H200_FACTS)


def partly_failed() -> RunData:
    run = swept(("fp32",), ("tiled", "cublas"), synthetic.SQUARES)
    rows = [
        replace(row, status=status) if status else row
        for row, status in zip(run.measurements, ["failed", "", "skipped", ""] * 3, strict=True)
    ]
    return replace(run, measurements=rows)


WORST: dict[str, Callable[[], list[RunData]]] = {
    "sixteen kernels, every precision": lambda: [swept(ALL, SIXTEEN, TWO)],
    "sixteen kernels": lambda: [swept(("bf16",), SIXTEEN, synthetic.SQUARES)],
    "two devices": lambda: [
        swept(("fp32", "fp64"), synthetic.KERNELS, synthetic.SQUARES),
        synthetic.cpu_run(("fp32", "fp64")),
    ],
    "four runs": lambda: [
        replace(
            swept(("fp32", "bf16"), synthetic.KERNELS, TWO), path=Path(f"results/synthetic-{i}")
        )
        for i in range(4)
    ],
    "one point": lambda: [swept(("fp32",), ("tiled",), TWO[1:])],
    "a spread of a million": lambda: [spread(1e6)],
    "long names": lambda: [swept(("fp32", "fp16"), LONG, TWO)],
    "a device with a long name": lambda: [
        synthetic.run("NVIDIA " + "Very " * 30 + "Large GPU", H200, spread(10).measurements)
    ],
    "both places": lambda: [both_places()],
    "some failed": lambda: [partly_failed()],
    "transformer layers": lambda: [swept(("fp16", "bf16"), SIXTEEN[:6], synthetic.LLM)],
    "long shapes": lambda: [
        swept(("fp32",), ("tiled", "cublas"), [(2**20 + i, 1048573, 7 + i) for i in range(9)])
    ],
    "memory-bound workloads": lambda: [
        on_h200(
            [
                row
                for workload in ("copy", "add", "triad", "sum")
                for precision in ("fp32", "fp64", "fp16", "int32")
                for row in stream(workload, "streaming", 4000, precision)
            ]
        )
    ],
}
KINDS = ("roofline", "size", "levels", "energy", "speedup", "transfers", "timeline")


def draw(kind: str, runs: list[RunData], style: str) -> Figure:
    """A figure; speed-ups are against the first kernel."""
    value = runs[0].ok[0].kernel if kind == "speedup" else ""
    return figures.draw(kind, runs, style=style, value=value)


@cache
def runs_of(name: str) -> list[RunData]:
    return WORST[name]() if name in WORST else [measured_run(name)]


def check(name: str, kind: str, style: str, folder: Path) -> bool:
    """Whether the runs have such a figure; fails if its geometry is wrong."""
    runs = runs_of(name)
    try:
        figure = draw(kind, runs, style)
    except UsageError as error:
        assert "\n" not in str(error)
        return False
    boxes = check_png(figure)
    check_svg(figure, boxes, folder / "figure.svg")
    if kind in ("roofline", "size", "energy"):
        check_points(figure, runs, kind)
    if kind == "roofline":
        check_ridges(figure, runs)
    return True


# Coordinates -------------------------------------------------------------------------------------

UNITS = {"TFLOP/s": 1.0, "GFLOP/s": 1e-3, "GB/s": 1.0}


def some(value: float | None) -> float:
    assert value is not None
    return value


def check_points(figure: Figure, runs: list[RunData], kind: str) -> None:
    """That the markers of each panel are the rows' figures, neither more nor fewer."""
    rows = drawn_rows(runs, flops=kind != "size")
    if kind == "energy":
        rows = [row for run in runs for row in run.ok if row.energy_j and row.flops]
    panels = [name for name in PRECISIONS if any(r.problem.precision == name for r in rows)]
    if kind == "size":
        check_sizes(figure, rows)
        return
    for axes, precision in zip(figure.axes, panels, strict=True):
        here = [row for row in rows if row.problem.precision == precision]
        if kind == "roofline":
            scale = UNITS[unit(figure)]
            expected = [(some(row.intensity), some(row.tflops) / scale) for row in here]
        else:
            expected = [
                (some(row.intensity), some(row.flops) / some(row.energy_j) / 1e9) for row in here
            ]
        same(points(axes), expected)


def check_sizes(figure: Figure, rows: list[Measurement]) -> None:
    """The heights, and the sizes if these are one number."""
    sized = len({row.problem.workload for row in rows}) == 1
    sized = sized and all(row.problem.size.isdigit() for row in rows)
    for what in {axes.get_ylabel() for axes in figure.axes}:
        found = [
            point for axes in figure.axes if axes.get_ylabel() == what for point in points(axes)
        ]
        values = [some(row.gbps if what == "GB/s" else row.tflops) / UNITS[what] for row in rows]
        sizes = [float(row.problem.size) if sized else 0.0 for row in rows]
        same([(x if sized else 0.0, y) for x, y in found], list(zip(sizes, values, strict=True)))


def unit(figure: Figure) -> str:
    return figure.axes[0].get_ylabel().removeprefix("Performance (").removesuffix(")")


def same(found: list[tuple[float, float]], expected: list[tuple[float, float]]) -> None:
    assert len(found) == len(expected)
    assert np.allclose(sorted(found), sorted(expected), rtol=1e-9)


def drawn_rows(runs: list[RunData], *, flops: bool) -> list[Measurement]:
    """The rows of a figure: of several workloads, the fastest of each problem."""
    rows = []
    for run in runs:
        here = [row for row in run.ok if row.problem.resident and (row.flops or not flops)]
        if len({row.problem.workload for row in here}) > 1:
            here.sort(key=lambda row: -some(row.time_us))
            here = list({row.problem.key: row for row in here}.values())
        rows += here
    return rows


def check_ridges(figure: Figure, runs: list[RunData]) -> None:
    """That each device's mark in each panel is at the compute roof over the bandwidth."""
    rows = [drawn_rows([run], flops=True) for run in runs]
    present = {row.problem.precision for some in rows for row in some}
    scale = UNITS[unit(figure)]
    panels = [name for name in PRECISIONS if name in present]
    for axes, precision in zip(figure.axes, panels, strict=True):
        expected: dict[str, tuple[float, float]] = {}
        for run, here in zip(runs, rows, strict=True):
            roofline = run.manifest.roofline
            peak, bandwidth = roofline.compute(precision), roofline.bandwidth()
            if peak and bandwidth and any(row.problem.precision == precision for row in here):
                place = (peak.value / bandwidth.value, peak.value / scale / 1e12)
                expected.setdefault(run.manifest.device.name, place)
        same(ridges(axes), list(expected.values()))


FOLDERS = [run.name for run in measured.ALL]
QUICK = [name for name in WORST if "every precision" not in name]

# Tests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "style"), in_turn(QUICK, list(figures.THEMES)))
def test_the_worst_roofline_is_whole(name: str, style: str, tmp_path: Path) -> None:
    assert check(name, "roofline", style, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "style"), in_turn(FOLDERS, list(figures.THEMES)))
def test_every_figure_of_a_measured_run_is_whole(name: str, style: str, tmp_path: Path) -> None:
    assert [kind for kind in KINDS if check(name, kind, style, tmp_path)]


OTHERS = [(name, kind) for kind in KINDS if kind != "roofline" for name in WORST]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "style"),
    [
        pair
        for pair in product(
            WORST, [name for name in figures.THEMES if name != "dark"]
        )  # which has the default's geometry
        if pair not in in_turn(QUICK, list(figures.THEMES))
    ][::2],
)
def test_the_worst_roofline_is_whole_in_the_other_styles(
    name: str, style: str, tmp_path: Path
) -> None:
    assert check(name, "roofline", style, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "style"), list(zip(OTHERS[::2], cycle(figures.THEMES), strict=False)), ids=str
)
def test_the_worst_of_the_other_figures_is_whole(
    place: tuple[str, str], style: str, tmp_path: Path
) -> None:
    check(*place, style, tmp_path)


BROKEN: dict[str, Callable[[Figure], object]] = {
    "the figure is cut off": lambda figure: figure.add_artist(Line2D([0, 0.5], [0, 0.5])),
    "panels and legends overlap": lambda figure: figure.add_axes((0.4, 0.4, 0.2, 0.2)).axis("off"),
    "outside the page": lambda figure: figure.add_axes((0.95, 0.0, 0.1, 0.02)).axis("off"),
    "overlaps": lambda figure: figure.text(0.2, 0.99, "another title", va="top"),
}


@pytest.mark.parametrize("found", BROKEN)
def test_the_checks_find_what_is_broken(found: str) -> None:
    figure = figures.draw("roofline", runs_of("one point"))
    BROKEN[found](figure)
    with pytest.raises(AssertionError, match=found):
        check_png(figure)


def test_the_checks_find_what_is_broken_in_an_svg(tmp_path: Path) -> None:
    figure = figures.draw("roofline", runs_of("one point"))
    boxes = check_png(figure)
    title = figure.texts[0]
    check_svg(figure, boxes, tmp_path / "same.svg")
    title.set_text(f"{title.get_text()}, longer")
    with pytest.raises(AssertionError, match="larger than its box"):
        check_svg(figure, boxes, tmp_path / "longer.svg")
    title.set_y(0.5)
    with pytest.raises(AssertionError, match="texts"):
        check_svg(figure, boxes, tmp_path / "far.svg")


@pytest.mark.parametrize("status", ["failed", "skipped", "incorrect"])
def test_rows_without_figures_are_one_line(status: str, tmp_path: Path) -> None:
    run = swept(("fp32",), ("tiled", "cublas"), TWO)
    rows = [replace(row, status=status) for row in run.measurements]
    run = replace(run, measurements=rows, path=tmp_path)
    for name in KINDS:
        if name != "speedup":
            with pytest.raises(UsageError) as caught:
                draw(name, [run], "default")
            assert "\n" not in str(caught.value)
    with pytest.raises(UsageError, match="no row with status ok"):
        figures.draw("speedup", [run], value="cublas")
    assert figures.draw_all(run) == []
