"""Speed-ups, energies and styles: what is drawn, where, and in which colours."""

from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import synthetic
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from test_plot import check_texts, contents, measured_run

from rooflab import figures
from rooflab.errors import UsageError
from rooflab.figures.palette import contrast
from rooflab.runs.store import RunData

H200 = synthetic.h200_roofline()


def few(precisions: tuple[str, ...]) -> RunData:
    shapes = [(side,) * 3 for side in (512, 4096)]
    return synthetic.h200_run(precisions, shapes)


def pair() -> RunData:
    """`tiled` takes 100 µs, `cublas` 25, at one size; at another there is no `tiled`."""
    made = []
    for kernel, size, time, low, high in (
        ("tiled", 1024, 100.0, 90.0, 110.0),
        ("cublas", 1024, 25.0, 20.0, 30.0),
        ("cublas", 2048, 200.0, 190.0, 210.0),
    ):
        row = synthetic.row(kernel, (size,) * 3, "fp32", 1.0, H200)
        made.append(replace(row, time_us=time, time_lo_us=low, time_hi_us=high))
    return synthetic.run("NVIDIA H200", H200, made, synthetic.H200_FACTS)


def test_bars_are_ratios_of_times_with_the_range_of_both_intervals() -> None:
    figure = figures.draw("speedup", [pair()], value="tiled")
    [axes] = figure.axes
    [bar] = [p for p in axes.patches if isinstance(p, Rectangle)]
    assert (bar.get_y(), bar.get_y() + bar.get_height()) == (1, 4)
    [whiskers] = [line for line in axes.lines if line.get_zorder() == 5]
    assert np.asarray(whiskers.get_ydata()) == pytest.approx([90 / 30, 110 / 20, nan], nan_ok=True)
    text = contents(figure).replace("\u00a0", " ")
    assert "No bars where tiled was not measured: FP32 2048" in text
    assert "Times as fast as tiled" in text


def test_speedups_need_a_kernel_that_is_there_and_another() -> None:
    with pytest.raises(UsageError, match="no row of kernel 'tyled': choose from tiled, cublas"):
        figures.draw("speedup", [pair()], value="tyled")
    with pytest.raises(UsageError, match="nothing to compare"):
        alone = replace(pair(), measurements=pair().measurements[:1])
        figures.draw("speedup", [alone], value="tiled")
    with pytest.raises(UsageError, match="add --workload, one of"):
        figures.draw("speedup", [measured_run("memory_bound")], value="vectorized")


def energetic() -> RunData:
    rows = [
        replace(row, energy_j=(row.flops or 0) / 5e11)
        for row in synthetic.rows(H200, ("fp32", "bf16"), ("tiled", "cublas"), synthetic.SQUARES)
    ]
    return synthetic.run("NVIDIA H200", H200, rows, synthetic.H200_FACTS)


def test_energies_are_flops_per_joule_under_the_roof_at_the_power_limit() -> None:
    figure = figures.draw("energy", [energetic()])
    fp32, bf16 = figure.axes
    assert fp32.get_xlim() == bf16.get_xlim() and fp32.get_ylim() == bf16.get_ylim()
    for axes, precision in ((fp32, "fp32"), (bf16, "bf16")):
        peak = synthetic.H200_PEAKS[precision]
        points = [line for line in axes.lines if line.get_marker() != "None"]
        assert sum(np.size(line.get_xdata()) for line in points) == 12
        assert all(np.allclose(line.get_ydata(), 500) for line in points)
        [roof] = [line for line in axes.lines if line.get_marker() == "None"]
        x, y = np.asarray(roof.get_data())[:, 1]
        assert (x, y) == pytest.approx((peak / 4.81e12, peak / 700 / 1e9))


def test_points_without_an_energy_are_counted() -> None:
    run = energetic()
    first, *others = run.measurements
    figure = figures.draw(
        "energy", [replace(run, measurements=[replace(first, energy_j=None), *others])]
    )
    assert "1 of 24 points have no energy and are not drawn." in contents(figure)


def test_ratios_near_one_have_three_places() -> None:
    run = pair()
    tiled, cublas, *_ = run.measurements
    near = [replace(tiled, time_us=100.4), replace(cublas, time_us=100.0)]
    figure = figures.draw("speedup", [replace(run, measurements=near)], value="tiled")
    assert "1.004" in contents(figure)


def test_without_energies_one_line_says_so() -> None:
    with pytest.raises(UsageError, match="has no energy in its rows") as caught:
        figures.draw("energy", [pair()])
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("style", figures.THEMES)
def test_energy_and_speedup_fit_the_page(style: str) -> None:
    check_texts(figures.draw("energy", [energetic()], style=style))
    check_texts(figures.draw("speedup", [pair()], value="tiled", style=style))


@pytest.mark.parametrize("style", figures.THEMES)
def test_text_has_a_contrast_of_four_and_a_half_and_lines_of_three(style: str) -> None:
    look = figures.THEMES[style]
    figure = figures.draw("roofline", [few(("fp32",))], style=style)
    paper = look.palette.background
    assert to_hex(figure.get_facecolor()) == paper
    colours = {to_hex(text.get_color()) for axes in figure.axes for text in axes.texts}
    colours |= {look.ink, look.muted}
    assert min(contrast(colour, paper) for colour in colours) >= 4.5
    lines = {to_hex(line.get_color()) for axes in figure.axes for line in axes.lines}
    assert min(contrast(colour, paper) for colour in lines | set(look.roofs)) >= 3


def test_paper_is_as_wide_as_a_column_with_type_of_eight_points() -> None:
    one = figures.draw("roofline", [few(("fp32",))], style="paper")
    two = figures.draw("roofline", [few(("fp32", "bf16"))], style="paper")
    assert (one.get_figwidth(), two.get_figwidth()) == (3.4, 7)
    sizes = {text.get_fontsize() for axes in two.axes for text in axes.texts}
    assert sizes == {8}


def test_an_unknown_style_is_named() -> None:
    with pytest.raises(UsageError, match="no style 'loud': choose from default, paper, slides"):
        figures.draw("roofline", [pair()], style="loud")


@pytest.mark.parametrize("suffix", ["svg", "pdf"])
def test_vectors_keep_the_size_and_the_marks(tmp_path: Path, suffix: str) -> None:
    """In points: 72 of them are an inch."""
    figure = figures.draw("roofline", [few(("fp32",))], style="paper")
    figures.save(figure, tmp_path / f"roofline.{suffix}")
    written = (tmp_path / f"roofline.{suffix}").read_bytes()
    assert b"/Subtype /Image" not in written and b"<image" not in written
    if suffix == "svg":
        root = ElementTree.fromstring(written)
        assert float(root.attrib["width"].removesuffix("pt")) == pytest.approx(3.4 * 72)
