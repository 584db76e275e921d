"""Parts of the panels of both figures: axes, series, roofs and text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor, log10, nan, pi, sin
from typing import Final

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Provenance
from rooflab.plot.labels import Labels
from rooflab.plot.selection import Series
from rooflab.plot.style import PROVENANCE_LINES, run_look, theme
from rooflab.runs.looks import Style

Limits = tuple[float, float]
Point = tuple[float, float]


def log_limits(
    values: Iterable[float], inches: float, before: float, after: float, decades: float
) -> Limits:
    """Logarithmic limits around ``values`` with margins in inches and a least extent.

    The margins are smaller if they would leave less than a quarter to the values.
    """
    fitting = min(1.0, 0.75 * inches / (before + after))
    before, after = before * fitting, after * fitting
    given = list(values)
    low, high = log10(min(given)), log10(max(given))
    short = max(decades - (high - low), 0) / 2
    low, high = low - short, high + short
    scale = (high - low) / (inches - before - after)
    return 10 ** (low - before * scale), 10 ** (high + after * scale)


def log_ticks(axis: Axis, limits: Limits) -> None:
    """Plain numbers at those powers of ten that have room, and at 2 and 5 if those are few.

    Ticks without numbers are few: Matplotlib takes a millisecond for each.
    """
    decades = log10(limits[1] / limits[0])
    frame, upright = axis.axes.bbox, axis is axis.axes.yaxis
    room = float(frame.height / 0.21 if upright else frame.width / 0.52) / theme().dpi
    few = decades < min(1.8, room / 3)
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,), numticks=int(room) + 1))
    axis.set_minor_locator(LogLocator(10, subs=range(2, 10) if few else (2, 5), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value)))
    axis.set_minor_formatter(NullFormatter())


def _tick(value: float) -> str:
    """``10000``, ``1e5``: a longer number would reach the axis' label."""
    if value < 1e5:
        return f"{value:g}"
    exponent = floor(log10(value) + 1e-9)
    return f"{value / 10**exponent:g}e{exponent}"


def name_panel(axes: Axes, title: str, pad: float) -> None:
    """The panel's title, above its left corner, by ``pad`` points."""
    axes.set_title(title, loc="left", fontweight="bold", pad=pad, y=1.0)


ROOMY: Final = 20
"""Points of a series up to which markers have their full size."""

CROWDED: Final = 400
"""Points of a panel from which on markers are half as large."""


def draw_series(
    labels: Labels,
    lines: Iterable[tuple[Series, Sequence[Point]]],
    styles: Mapping[str, Style],
    joined: bool = True,
) -> None:
    """The markers of a panel's series and, if ``joined``, their lines; no label will overlap them.

    All series of a run and kernel are one line with gaps: a panel may have thousands.
    """
    given = list(lines)
    crowded = sum(len(points) for _, points in given) > CROWDED
    looks: dict[tuple[int, str, float], tuple[list[float], list[float]]] = {}
    for series, points in given:
        size = 0.5 if crowded else 1.0 if len(points) <= ROOMY else 0.64
        xs, ys = looks.setdefault((series.run, series.kernel, size), ([], []))
        gap = [(nan, nan)] * bool(xs and joined)
        for x, y in (*gap, *points):
            xs.append(x)
            ys.append(y)
    for (run, kernel, size), (xs, ys) in looks.items():
        style = styles[kernel]
        labels.avoid_markers(xs, ys, theme().marker * (size if crowded else 1) + 1)
        if joined:
            labels.avoid_line(xs, ys)
        labels.axes.plot(
            *(xs, ys),
            **run_look(run) | {"marker": style.marker} | ({} if joined else {"linestyle": ""}),
            color=style.colour,
            linewidth=theme().line,
            markersize=theme().marker * size,
            markerfacecoloralt=theme().palette.background,
            markeredgewidth=0.3 if crowded else 0.9,
            zorder=4,
        )


def draw_roof(
    labels: Labels, xs: Sequence[float], ys: Sequence[float], provenance: Provenance, colour: str
) -> None:
    """A roof's line, in the style of its provenance; labels will not overlap it."""
    labels.axes.plot(xs, ys, color=colour, zorder=3, **PROVENANCE_LINES[provenance])
    labels.avoid_line(xs, ys)


def number(value: float) -> str:
    """Three significant digits, without an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def size_text(row: Measurement) -> str:
    """The size in the notation of ``--sizes`` and ``--shape``, with × for x."""
    return row.problem.size.replace("x", "×")


def slanted_height(texts: Iterable[str], size: float) -> float:
    """Inches that labels of ticks need below the axis, at 45 degrees in type of ``size``."""
    longest = max(map(len, texts), default=0) * 0.56 * size / 72
    return max(0.92, 0.1 + sin(pi / 4) * (longest + size / 72))


def plain(row: Measurement) -> bool:
    """Whether the size is one number."""
    return row.problem.size.isdigit()
