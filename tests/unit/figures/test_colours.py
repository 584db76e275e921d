"""Kernels can be told apart, by their colour or by their marker."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from numpy.typing import NDArray

from rooflab.figures.palette import DARK, LIGHT, MARKERS, Palette, contrast, kernel_styles

SIXTEEN = (
    *("naive", "coalesced", "tiled", "cublas", "cublaslt"),
    *("cutlass_simt", "cutlass_tf32", "cutlass_fp16", "cutlass_bf16", "cutlass_hopper"),
    *("cute_gemm", "cute_double_buffered", "cute_pipelined", "cute_predicated", "cute_epilogue"),
    "cute_rasterized",
)
PALETTES = {"light": LIGHT, "dark": DARK}

# Machado, Oliveira and Fernandes 2009, severity 1, on linear RGB.
VISIONS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [
            (0.367322, 0.860646, -0.227968),
            (0.280085, 0.672501, 0.047413),
            (-0.011820, 0.042940, 0.968881),
        ]
    ),
    "protanopia": np.array(
        [
            (0.152286, 1.052583, -0.204868),
            (0.114503, 0.786281, 0.099216),
            (-0.003882, -0.048116, 1.051998),
        ]
    ),
}
XYZ = np.array(
    [
        (0.4124564, 0.3575761, 0.1804375),
        (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    ]
)

NORMAL, DEFICIENT = 10.0, 7.5
"""Least CIEDE2000 of two colours. About 2 is seen side by side; small marks at some distance need
several times as much (Stone, Szafir and Setlur 2014: 6 and more for marks of 1/3 degree). With
normal vision the threshold is well above, with two cones a little: the markers help there."""


def lab(colour: str, vision: str = "normal") -> NDArray[np.float64]:
    rgb = np.array(to_rgb(colour))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(VISIONS[vision] @ linear, 0, 1)
    ratio = XYZ @ seen / XYZ.sum(axis=1)
    x, y, z = np.where(ratio > (6 / 29) ** 3, np.cbrt(ratio), ratio * 841 / 108 + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def ciede2000(one: NDArray[np.float64], two: NDArray[np.float64]) -> float:
    """Sharma, Wu and Dalal 2005."""
    (l1, a1, b1), (l2, a2, b2) = one, two
    c7 = ((np.hypot(a1, b1) + np.hypot(a2, b2)) / 2) ** 7
    wide = 1.5 - 0.5 * np.sqrt(c7 / (c7 + 25.0**7))
    c1, c2 = np.hypot(wide * a1, b1), np.hypot(wide * a2, b2)
    h1, h2 = np.degrees(np.arctan2([b1, b2], [wide * a1, wide * a2]))
    turn = (h2 - h1 + 180) % 360 - 180
    if not c1 * c2:
        turn = 0.0
    light, c, h = (l1 + l2) / 2, (c1 + c2) / 2, (h1 + turn / 2) % 360
    angles = np.radians([h - 30, 2 * h, 3 * h + 6, 4 * h - 63])
    t = 1 + np.array([-0.17, 0.24, 0.32, -0.20]) @ np.cos(angles)
    s_l = 1 + 0.015 * (light - 50) ** 2 / np.sqrt(20 + (light - 50) ** 2)
    d_l, d_c = (l2 - l1) / s_l, (c2 - c1) / (1 + 0.045 * c)
    d_h = 2 * np.sqrt(c1 * c2) * np.sin(np.radians(turn / 2)) / (1 + 0.015 * c * t)
    bend = np.sin(np.radians(60 * np.exp(-(((h - 275) / 25) ** 2))))
    r_t = -2 * np.sqrt(c**7 / (c**7 + 25.0**7)) * bend
    return float(np.sqrt(d_l**2 + d_c**2 + d_h**2 + r_t * d_c * d_h))


@pytest.mark.parametrize(
    ("one", "two", "difference"),
    [
        ((50, 2.6772, -79.7751), (50, 0, -82.7485), 2.0425),
        ((50, 2.49, -0.001), (50, -2.49, 0.0009), 7.1792),
        ((50, 2.5, 0), (73, 25, -18), 27.1492),
        ((90.8027, -2.0831, 1.441), (91.1528, -1.6435, 0.0447), 1.4441),
    ],
)
def test_the_distance_is_ciede2000(one: object, two: object, difference: float) -> None:
    """Pairs of Sharma, Wu and Dalal."""
    assert ciede2000(np.array(one), np.array(two)) == pytest.approx(difference, abs=1e-4)


@pytest.mark.parametrize("vision", VISIONS)
@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_all_colours_can_be_told_apart(palette: Palette, vision: str) -> None:
    colours = [colour for shades in palette.shades for colour in shades]
    least = NORMAL if vision == "normal" else DEFICIENT
    for one, two in combinations(colours, 2):
        assert ciede2000(lab(one, vision), lab(two, vision)) >= least, (one, two)


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_lines_and_text_have_contrast(palette: Palette) -> None:
    for shades in palette.shades:
        assert all(contrast(colour, palette.background) >= 3 for colour in shades)
    names = [f"kernel_{i}" for i in range(60)]
    for style in kernel_styles([*SIXTEEN, *names], palette).values():
        assert contrast(style.ink, palette.background) >= 4.5


@pytest.mark.parametrize("palette", PALETTES.values(), ids=PALETTES)
def test_sixteen_kernels_differ_in_colour_or_marker_also_in_grey(palette: Palette) -> None:
    styles = kernel_styles(SIXTEEN, palette)
    assert len({(style.colour, style.marker) for style in styles.values()}) == 16
    for one, two in combinations(styles.values(), 2):
        grey = abs(lab(one.colour)[0] - lab(two.colour)[0])
        assert one.marker != two.marker or grey >= 12, (one, two)


def test_a_family_shares_a_hue_and_no_marker() -> None:
    families = (SIXTEEN[:3], SIXTEEN[3:5], SIXTEEN[5:10], SIXTEEN[10:])
    hues = []
    for family in families:
        styles = kernel_styles(family)
        colours = {style.colour for style in styles.values()}
        [shades] = [shades for shades in LIGHT.shades if colours <= set(shades)]
        hues.append(shades)
        assert len({style.marker for style in styles.values()}) == len(family)
    assert len(set(hues)) == len(families)


def test_a_kernel_keeps_its_look_whatever_is_beside_it() -> None:
    together = kernel_styles([*SIXTEEN, "mine", "torch_softmax"])
    for name in SIXTEEN:
        assert kernel_styles([name])[name] == together[name]
    for name in ("mine", "torch_softmax"):
        assert kernel_styles([name])[name].colour == together[name].colour


@pytest.mark.parametrize("count", [9, 16, 60])
def test_no_two_unknown_kernels_look_the_same(count: int) -> None:
    names = [f"kernel_{i}" for i in range(count)]
    styles = kernel_styles(names)
    assert styles == kernel_styles(reversed(names))
    assert len({(style.colour, style.marker) for style in styles.values()}) == count
    if count <= len(MARKERS):
        assert len({style.marker for style in styles.values()}) == count
