"""Parts of the panels of both figures: axes, series, roofs and text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import floor, log10, pi, sin

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
    """Plain numbers at those powers of ten that have room, and at 2 and 5 if those are few."""
    decades = log10(limits[1] / limits[0])
    frame, upright = axis.axes.bbox, axis is axis.axes.yaxis
    room = float(frame.height / 0.21 if upright else frame.width / 0.52) / theme().dpi
    few = decades < min(1.8, room / 3)
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,), numticks=int(room) + 1))
    axis.set_minor_locator(LogLocator(10, subs=range(2, 10), numticks=20))
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


def draw_series(
    labels: Labels,
    series: Series,
    style: Style,
    xs: Sequence[float],
    ys: Sequence[float],
    joined: bool = True,
) -> None:
    """Markers and, if ``joined``, the line; labels will not overlap them."""
    look = run_look(series.run) | {"marker": style.marker}
    if joined:
        labels.avoid_line(xs, ys)
    else:
        look["linestyle"] = ""
    for x, y in zip(xs, ys, strict=True):
        labels.avoid_marker(x, y, theme().marker + 1)
    labels.axes.plot(
        *(xs, ys),
        **look,
        color=style.colour,
        linewidth=theme().line,
        markersize=theme().marker * (1 if len(xs) <= 20 else 0.64),
        markerfacecoloralt=theme().palette.background,
        markeredgewidth=0.9,
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
