"""The styles of figures, and the lines of runs and roofs. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final, Literal

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
    panel: tuple[float, float] | None = None
    """Width and height of every panel, each with titles and numbers: panels of a web page."""


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
WEB: Final = Theme(panel=(318 / 72, 200 / 72), type=13, label=10, small=10)
"""Panels of the HTML report, whose points are its pixels; its style sheet has the colours."""
PAGE: Final = Theme(width=11.0, narrow=11.0, type=11, label=10, small=10)
"""Pictures of the HTML report that are as wide as its page."""

_THEME: Final = ContextVar("theme", default=THEMES["default"])


def theme() -> Theme:
    """The style of the figure that is drawn."""
    return _THEME.get()


@contextmanager
def styled(style: str | Theme) -> Iterator[None]:
    """Make figures in a style; raises ``UsageError`` if there is no such style."""
    if isinstance(style, str) and style not in THEMES:
        raise UsageError(f"no style {style[:40]!r}: choose from {', '.join(THEMES)}")
    token = _THEME.set(THEMES[style] if isinstance(style, str) else style)
    try:
        yield
    finally:
        _THEME.reset(token)


Dash = Literal["-", ":", ""] | tuple[float, tuple[float, ...]]
"""How a line is drawn, if it is: the tuple has an offset and the lengths of dashes and gaps."""
Fill = Literal["full", "none", "left", "bottom"]

# Runs differ in the line and the marker's fill of a series, and in the grey of a roof.
_RUN_LINES: Final[tuple[Dash, ...]] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_RUN_FILLS: Final[tuple[Fill, ...]] = ("full", "none", "left", "bottom")

PROVENANCE_LINES: Final[dict[str, tuple[Dash, float]]] = {
    "derived": ("-", 1.4),
    "measured": ((0, (6, 3)), 1.4),
    "observed": ("-", 0.6),
}
"""The dash and the width of a roof."""

UNUSED_WIDTH: Final = 0.8
"""Of a roof to which no percentage refers."""


def run_look(i: int) -> tuple[Dash, Fill]:
    """The line, and the fill of the markers, of run ``i``."""
    return _RUN_LINES[i % len(_RUN_LINES)], _RUN_FILLS[i % len(_RUN_FILLS)]
