"""Colours and markers of kernels, the same in figures and reports. Pure.

A hue per family of kernels, shades and markers within it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "*")

TEXT_CONTRAST: Final = 4.5
"""Least contrast of text, after WCAG 2.1; it asks for 3 of lines and markers."""


@dataclass(frozen=True, slots=True)
class Palette:
    """The background and, for each family of kernels, shades of one hue.

    ``bold`` is the shade for large areas, by its place.
    """

    background: str
    shades: tuple[tuple[str, ...], ...]
    bold: int = 0


# Found by search: colours are CIEDE2000 7.5 or more apart, also without red or green cones, with a
# contrast of 3 or more to their background. Shipped GEMM kernels of one marker differ as greys.
LIGHT: Final = Palette(
    "#ffffff",
    (
        ("#0668e4", "#828ccd", "#004197", "#3988ff"),  # blue
        ("#dc7705", "#9b6e00", "#934f00", "#653900"),  # orange
        ("#03835a", "#21a749", "#07a37f", "#106138"),  # green
        ("#cb2a8b", "#9d0167", "#c41dc2", "#fe3cb1"),  # purple
        ("#cf7578", "#6c0e1f", "#a41630", "#bd4c54"),  # red
    ),
)
DARK: Final = Palette(
    "#15171c",
    (
        ("#6e7abc", "#99afff", "#2875fe", "#3b96ff"),
        ("#a97101", "#fecc01", "#efa943", "#e47f08"),
        ("#88eacc", "#03fdb1", "#0fc7a1", "#69ff72"),
        ("#ff78cb", "#f404d2", "#cc4d96", "#ffb6e8"),
        ("#e47f81", "#fa9478", "#f5454d", "#ba6365"),
    ),
    bold=2,
)


# The place of a name in its family sets its shade and its first marker.
_FAMILIES: Final = {
    "rungs": (
        *("naive", "coalesced", "tiled", "bulk", "priority", "vectorized", "registers"),
        *("streaming", "block", "warp_per_row", "teams", "pipelined", "cluster", "grid"),
        *("stages", "fused", "graph", "real", "stockham", "numba"),
        *("blocktile_1d", "blocktile_2d", "warptiled", "serpentine", "producers", "mma", "wgmma"),
        *("specialised", "persistent", "clusters", "overlapped", "champion", "early"),
        *("split", "dmma", "fed", "few_rows", "skinny"),
    ),
    "libraries": ("cublas", "blas", "cupy", "numpy", "memcpy", "cufft", "cublaslt", "cublas_cufft"),
    "cutlass": tuple(f"cutlass_{name}" for name in ("hopper", "bf16", "tf32", "fp16", "simt")),
    "cute": tuple(
        f"cute_{name}"
        for name in ("gemm", "pipelined", "epilogue", "rasterized", "predicated", "double_buffered")
    ),
    "others": (),
}
_FIRST_MARKERS: Final = (0, 3, 8, 3, 5)
"""The marker of each family's first kernel, by search: see ``LIGHT``."""

_WORKLOADS: Final = (
    *("gemm", "gemv", "softmax", "rmsnorm", "triad", "add", "sum", "copy"),
    *("blur", "fft", "spectrum", "filter", "allreduce", "allgather"),
)
"""Of several workloads, each is one series: their hues differ."""

_PLACES: Final = {
    name: (family, i)
    for family, members in enumerate(_FAMILIES.values())
    for names in (members, _WORKLOADS[family :: len(_FAMILIES)])
    for i, name in enumerate(names)
}

# The family of a name that is not above, by its part before the first other sign than a letter.
_PREFIXES: Final = {
    "cutlass": "cutlass",
    "cute": "cute",
    **dict.fromkeys(("cublas", "cublaslt", "cudnn", "cupy", "cufft", "nccl", "torch"), "libraries"),
    **dict.fromkeys(("liger", "quack", "flashinfer", "fa"), "libraries"),
    "pinned": "rungs",
    "pageable": "libraries",
}


@dataclass(frozen=True, slots=True)
class KernelStyle:
    """A kernel's colour, the same in every figure, its marker, and the colour of its text."""

    colour: str
    marker: str
    ink: str


def kernel_styles(names: Iterable[str], palette: Palette = LIGHT) -> dict[str, KernelStyle]:
    """A colour and a marker per kernel. The colour follows from the name alone.

    A name that rooflab does not know takes the first marker that no other kernel of the figure has.
    No two kernels have the same colour and the same marker.
    """
    chosen: dict[str, tuple[str, str]] = {}
    for name in sorted(set(names), key=lambda name: (name not in _PLACES, name)):
        family, i = _place(name)
        shades = palette.shades[family]
        colour = shades[i % len(shades)]
        first = (i + _FIRST_MARKERS[family]) % len(MARKERS)
        markers = (*MARKERS[first:], *MARKERS[:first])
        every = (colour, *shades, *(c for other in palette.shades for c in other))
        pairs = [(c, marker) for c in every for marker in markers]
        used = {marker for _, marker in chosen.values()}
        unique = [pair for pair in pairs[: len(MARKERS)] if pair[1] not in used]
        wanted = pairs if name in _PLACES else [*unique, *pairs]
        chosen[name] = next((p for p in wanted if p not in chosen.values()), pairs[0])
    return {
        name: KernelStyle(colour, marker, readable(colour, palette.background))
        for name, (colour, marker) in chosen.items()
    }


def _place(name: str) -> tuple[int, int]:
    prefix = re.split("[^a-z]", name.lower(), maxsplit=1)[0]
    family = list(_FAMILIES).index(_PREFIXES.get(prefix, "others"))
    return _PLACES.get(name, (family, crc32(name.encode())))


def rgb(colour: str) -> tuple[float, float, float]:
    """Red, green and blue from 0 to 1 of a colour such as ``#0072B2``."""
    red, green, blue = (part / 255 for part in bytes.fromhex(colour[1:]))
    return red, green, blue


def mixed(colour: str, other: str, share: float) -> str:
    """``colour`` with a ``share`` of another one."""
    parts = (a + (b - a) * share for a, b in zip(rgb(colour), rgb(other), strict=True))
    return f"#{bytes(round(255 * part) for part in parts).hex()}"


def luminance(colour: str) -> float:
    """The relative luminance of WCAG 2.1, 0 to 1."""
    red, green, blue = (
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in rgb(colour)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.1, 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def readable(colour: str, background: str) -> str:
    """``colour``, moved away from ``background`` until text of it has enough contrast."""
    end = 0.0 if luminance(background) > 0.18 else 1.0
    for step in range(21):
        shade = mixed(colour, "#ffffff" if end else "#000000", step / 20)
        if contrast(shade, background) >= TEXT_CONTRAST:
            break
    return shade
