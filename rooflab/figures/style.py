"""The styles of figures, and the colours, markers and lines of kernels, runs and roofs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final

import matplotlib

from rooflab.errors import UsageError
from rooflab.figures.palette import DARK, LIGHT, Palette


@dataclass(frozen=True, slots=True)
class Theme:
    """A style of figures: colours, sizes of the page in inches, and of type and marks in points."""

    palette: Palette = LIGHT
    ink: str = "#222222"
    muted: str = "#555555"
    grid: str = "#e6e6e6"
    roofs: tuple[str, ...] = ("#222222", "#7a6a4f", "#5f7d8c", "#8a8a8a")
    """Of the first device, the second and so on."""
    width: float = 9.0
    """With 9-point type, a PNG shown 900 pixels wide in a README has 12-pixel type."""
    narrow: float = 9.0
    """Width of a figure with one panel."""
    tallest: float = 9.4
    """Inches that all panels of a figure have at most, one above the other."""
    dpi: int = 200
    type: float = 9.0
    label: float = 8.0
    small: float = 7.5
    title: float = 13.0
    note: float = 7.5
    marker: float = 5.5
    line: float = 1.2
    brief: bool = False
    """Only the notes that explain the marks, and short labels of roofs."""


THEMES: Final = {
    "default": Theme(),
    "paper": Theme(
        width=7.0,
        narrow=3.4,
        tallest=8.0,
        dpi=300,
        type=8.0,
        small=8.0,
        title=8.0,
        note=8.0,
        marker=4.0,
        line=1.0,
        brief=True,
    ),
    # Half as wide as a slide: shown on all of it, type has almost twice these sizes.
    "slides": Theme(
        width=7.0,
        narrow=7.0,
        tallest=8.0,
        dpi=300,
        small=8.0,
        marker=7.0,
        line=1.8,
        brief=True,
    ),
    "dark": Theme(
        palette=DARK,
        ink="#e8e8e8",
        muted="#a8a8a8",
        grid="#33363d",
        roofs=("#e8e8e8", "#c9b48a", "#8fb3c7", "#9a9a9a"),
    ),
}
_THEME: Final = ContextVar("theme", default=THEMES["default"])


def theme() -> Theme:
    """The style of the figure that is drawn."""
    return _THEME.get()


@contextmanager
def styled(name: str) -> Iterator[None]:
    """Draw in a style. A user's matplotlibrc has no effect: it would move labels.

    Raises ``UsageError`` if there is no such style.
    """
    if name not in THEMES:
        raise UsageError(f"no style {name[:40]!r}: choose from {', '.join(THEMES)}")
    token = _THEME.set(THEMES[name])
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_settings(THEMES[name]))
        # A name may have characters that the font lacks: they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        try:
            yield
        finally:
            _THEME.reset(token)


def _settings(style: Theme) -> dict[Any, Any]:
    inks = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
    return {
        **dict.fromkeys(inks, style.ink),
        **dict.fromkeys(("figure.facecolor", "axes.facecolor"), style.palette.background),
        "font.size": style.type,
        "axes.linewidth": 0.8,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.titlesize": style.type + 1,
        "axes.labelsize": style.type,
        "legend.fontsize": style.type,
        "grid.color": style.grid,
        "grid.linewidth": 0.6,
        "pdf.fonttype": 42,  # text stays text
        "svg.hashsalt": "rooflab",
        "text.parse_math": False,  # names may hold dollars
    }


# Runs differ in the line and the marker's fill of a series, and in the grey of a roof.
_RUN_LINES: Final = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_RUN_FILLS: Final = ("full", "none", "left", "bottom")

PROVENANCE_LINES: Final[dict[str, dict[str, Any]]] = {
    "derived": {"linestyle": "-", "linewidth": 1.4},
    "measured": {"linestyle": (0, (6, 3)), "linewidth": 1.4},
    "observed": {"linestyle": "-", "linewidth": 0.6},
}


def run_look(i: int) -> dict[str, Any]:
    """Line and fill of a series of run ``i``; the marker is replaced by the kernel's."""
    return {
        "linestyle": _RUN_LINES[i % len(_RUN_LINES)],
        "marker": "o",
        "fillstyle": _RUN_FILLS[i % len(_RUN_FILLS)],
    }
