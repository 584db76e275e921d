"""Figures of runs: the roofline, and throughput against size. Reads runs, knows no devices."""

from __future__ import annotations

import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from math import log10
from pathlib import Path
from typing import Any, Final

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from rooflab.errors import UsageError
from rooflab.labels import Labels, Spot, around
from rooflab.measurement import FLAGS, Measurement
from rooflab.problem import PRECISIONS, Problem
from rooflab.roofline import Ceiling, Roofline
from rooflab.run import Run

DPI: Final = 200
WIDTH: Final = 9.0
"""Inches: with 9-point type, a README that shows the PNG 900 pixels wide shows 12-pixel type."""

LEFT: Final = 0.72
"""Inches left of the first panel, for the ticks' and the axis' labels."""

SUFFIXES: Final = (".png", ".svg", ".pdf")

# Okabe and Ito (2008) without yellow and black, then wine, indigo and olive of Paul Tol's "muted".
COLOURS: Final = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9"),
    *("#882255", "#332288", "#999933"),
)
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">")
_SALT: Final = "roofline 3670"  # found by search: the shipped kernels differ in colour and marker

# What tells runs apart: the line and the marker's fill of a series, the grey of a roof.
RUN_LINES: Final = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
RUN_FILLS: Final = ("full", "none", "left", "bottom")
RUN_ROOFS: Final = ("#222222", "#7a6a4f", "#5f7d8c", "#8a8a8a")

ABOVE_ROOF: Final = 1.005
"""How far above its roof a point must lie to need a cause: medians are good to 0.5 %."""

SLOWED: Final = 0.98
"""A roof observed below this share of the derived one is drawn."""

NOTABLE: Final = ("power_capped", "throttled", "noisy", "ungated", "cache_suspect")
"""The flags that the footer counts."""

_PROVENANCE_LINE: Final[dict[str, dict[str, Any]]] = {
    "derived": {"linestyle": "-", "linewidth": 1.4},
    "measured": {"linestyle": (0, (6, 3)), "linewidth": 1.4},
    "observed": {"linestyle": "-", "linewidth": 0.6},
}

# What the footer calls a fact, and the names it may have: the first that is known serves.
_FOOTER: Final = (
    ("driver", ("driver_version",)),
    ("SM clock", ("sm_clock_default", "sm_clock_max")),
    ("memory", ("memory_clock_max", "memory_clock")),
    ("power limit", ("power_limit",)),
    ("ECC", ("ecc_mode",)),
    ("threads", ("threads",)),
)
_CACHE_FACTS: Final = ("last_level_cache_bytes", "l2_cache")


@dataclass(frozen=True, slots=True)
class Style:
    """A kernel's look: the same in every figure."""

    colour: str
    marker: str

    @property
    def ink(self) -> tuple[float, float, float]:
        """The colour, dark enough for text on white."""
        red, green, blue = (0.72 * part for part in to_rgb(self.colour))
        return red, green, blue


Level = tuple[Ceiling, tuple[float, float], tuple[float, float]]
"""A ceiling and the two data points that its line joins."""


@dataclass(frozen=True, slots=True)
class Series:
    """Points that belong on one line: one run, kernel and precision, sizes of one family."""

    run: int
    kernel: str
    rows: tuple[Measurement, ...]


def kernel_styles(names: Iterable[str]) -> dict[str, Style]:
    """A colour and a marker per kernel, from its name alone.

    Where two names of one figure would share one of them, the alphabetically later one takes the
    next free one of its own order. Past nine kernels both repeat, in other pairs.
    """
    ordered = sorted(set(names))
    colours, markers = _assign("colour", ordered, COLOURS), _assign("marker", ordered, MARKERS)
    chosen: dict[str, Style] = {}
    for name in ordered:
        pairs = [
            Style(c, m)
            for c in (colours[name], *COLOURS)
            for m in (markers[name], *_preferences(f"marker {name}", MARKERS))
        ]
        chosen[name] = next((p for p in pairs if p not in chosen.values()), pairs[0])
    return chosen


def _assign(what: str, names: Sequence[str], items: Sequence[str]) -> dict[str, str]:
    """Each name's favourite item, or its next best where another name has that already."""
    wishes = {name: _preferences(f"{what} {name}", items) for name in names}
    chosen: dict[str, str] = {}
    # All favourites first, so that one clash does not displace a third name.
    for name in names:
        if wishes[name][0] not in chosen.values():
            chosen[name] = wishes[name][0]
    for name in names:
        if name not in chosen:
            free = (item for item in wishes[name] if item not in chosen.values())
            chosen[name] = next(free, wishes[name][0])
    return chosen


def _preferences(text: str, items: Sequence[str]) -> list[str]:
    return sorted(items, key=lambda item: sha256(f"{_SALT} {text} {item}".encode()).digest())


def above_roof_cause(row: Measurement, run: Run) -> str:
    """Why ``row`` may lie above its roof, in a few words; empty where it does not."""
    roofline = run.manifest.roofline
    ceiling, attainable = _limit(roofline, row)
    if ceiling is None or attainable is None or not row.tflops:
        return ""
    ratio = row.tflops * 1e12 / attainable
    if ratio <= ABOVE_ROOF:
        return ""
    cache = next((v for n in _CACHE_FACTS if (v := _fact_bytes(run, n)) is not None), 0.0)
    name = "L2" if run.manifest.device.kind == "cuda" else "cache"
    if ceiling.kind == "bandwidth" and _operand_bytes(row) < cache:
        if row.cache == "warm":
            return f"{name}-resident"
        if ratio <= 2:
            return f"partly {name}-resident"
    tf32 = roofline.compute("tf32")
    if row.precision == "fp32" and ceiling.kind == "compute" and tf32 and ratio > 1.15:
        return "TF32 in use?"
    if ratio > 2:
        return "check the bytes or the clock"
    if ceiling.provenance == "measured":
        noise = ratio <= 1.05
        return "within noise of the measured roof" if noise else "clock above the roof's"
    return "clock above nominal" if ceiling.kind == "compute" else "check the bytes"


def roofline_figure(runs: Sequence[Run], precisions: Sequence[str] | None = None) -> Figure:
    """The roofline of ``runs``, one panel per precision, all with the same axes.

    Raises ``UsageError`` where there is nothing to draw.
    """
    return _styled(_roofline_figure, runs, precisions)


def size_figure(runs: Sequence[Run], precisions: Sequence[str] | None = None) -> Figure:
    """TFLOP/s and GB/s against size, intensity on top, one pair of panels per precision.

    Square problems stand at their side on a logarithmic axis; any other set of shapes stands in
    order of intensity, each named. Raises ``UsageError`` where there is nothing to draw.
    """
    return _styled(_size_figure, runs, precisions)


def save(figure: Figure, path: Path) -> None:
    """Write PNG, SVG or PDF by suffix; the same figure always gives the same bytes."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(f"cannot draw to {path}: name a .png, .svg or .pdf file")
    dates = {
        ".png": {"Software": "rooflab"},
        ".svg": {"Date": None},
        ".pdf": {"CreationDate": None},
    }
    try:
        with _own_settings():
            matplotlib.rcParams.update({"svg.hashsalt": "rooflab", "pdf.fonttype": 42})
            figure.savefig(path, dpi=DPI, metadata=dates[suffix])
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}; name another file") from error


def draw_all(run: Run) -> list[Path]:
    """Draw both figures into the run's folder."""
    figures = {"roofline.png": roofline_figure([run]), "size.png": size_figure([run])}
    for name, figure in figures.items():
        save(figure, run.path / name)
    return [run.path / name for name in figures]


@contextmanager
def _own_settings() -> Iterator[None]:
    """Matplotlib's defaults: a user's matplotlibrc must not move what was placed to the pixel."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        yield


def _styled(
    draw: Callable[[Sequence[Run], list[str]], Figure],
    runs: Sequence[Run],
    precisions: Sequence[str] | None,
) -> Figure:
    with _own_settings():
        matplotlib.rcParams.update({"font.size": 9, "axes.linewidth": 0.8, "axes.grid": True})
        matplotlib.rcParams.update({"grid.color": "#e6e6e6", "grid.linewidth": 0.6})
        matplotlib.rcParams.update({"axes.axisbelow": True, "axes.titlesize": 10})
        return draw(runs, _present(runs, precisions))


def _present(runs: Sequence[Run], wanted: Sequence[str] | None) -> list[str]:
    """The precisions to draw, in the order of ``PRECISIONS``."""
    if not runs:
        raise UsageError("no run to draw: name a run folder")
    for run in runs:
        unknown = {row.precision for row in run.ok} - set(PRECISIONS)
        if not _drawable(run) and unknown:
            raise UsageError(
                f"{run.path} has only rows of precision {', '.join(sorted(unknown))}, which this "
                f"rooflab cannot draw; it knows {', '.join(PRECISIONS)}"
            )
        if not _drawable(run):
            raise UsageError(
                f"{run.path} has no row with status ok, so there is nothing to draw; "
                f"see why: rooflab show {run.path}"
            )
    present = {row.precision for run in runs for row in _drawable(run)}
    for name in wanted or ():
        if name not in present:
            raise UsageError(
                f"no row of precision {name!r}: choose from {', '.join(sorted(present))}"
            )
    return [name for name in PRECISIONS if name in (wanted or present)]


def _drawable(run: Run) -> list[Measurement]:
    known = (row for row in run.ok if row.precision in PRECISIONS)
    return [row for row in known if row.tflops and row.intensity and row.gbps]


def _series(runs: Sequence[Run], precision: str) -> list[Series]:
    """Series of one precision; within a series only the size changes."""
    groups: dict[tuple[int, str], list[Measurement]] = defaultdict(list)
    for i, run in enumerate(runs):
        for row in _drawable(run):
            if row.precision == precision:
                groups[i, row.kernel].append(row)
    made = []
    for (i, kernel), rows in groups.items():
        families: dict[object, list[Measurement]] = defaultdict(list)
        for row in rows:
            settings = (row.variant, row.batch, row.layout, row.alpha, row.beta)
            families[settings, _family(rows)(row)].append(row)
        for members in families.values():
            ordered = sorted(members, key=lambda r: (r.m * r.n * r.k, r.m, r.n))
            made.append(Series(i, kernel, tuple(ordered)))
    return made


def _family(rows: Sequence[Measurement]) -> Callable[[Measurement], object]:
    """What stays fixed along a line: the proportions, or two extents, whichever splits least."""
    keys: tuple[Callable[[Measurement], object], ...] = (
        lambda r: (r.m / r.n, r.m / r.k),
        lambda r: (r.n, r.k),
        lambda r: (r.m, r.k),
        lambda r: (r.m, r.n),
    )
    return min(keys, key=lambda key: len({key(row) for row in rows}))


def _limit(roofline: Roofline, row: Measurement) -> tuple[Ceiling | None, float | None]:
    """The ceiling that limits ``row``, and the FLOP/s that it allows."""
    compute, bandwidth = roofline.compute(row.precision), roofline.bandwidth()
    limits = [(compute, compute.value)] if compute else []
    if bandwidth and row.intensity:
        limits.append((bandwidth, bandwidth.value * row.intensity))
    return min(limits, key=lambda pair: pair[1]) if limits else (None, None)


def _operand_bytes(row: Measurement) -> int:
    return Problem(row.m, row.n, row.k, PRECISIONS[row.precision], batch=row.batch).operand_bytes


def _fact_bytes(run: Run, name: str) -> float | None:
    fact = run.manifest.device.facts.get(name)
    return float(fact.value) if fact and isinstance(fact.value, int | float) else None


def _number(value: float) -> str:
    """Three significant digits, never an exponent."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _rate(value: float, unit: str) -> str:
    """``value`` per second in units of 1e12 or 1e9: ``4.81 TB/s``."""
    return (
        f"{_number(value / 1e12)} T{unit}/s"
        if value >= 1e12
        else f"{_number(value / 1e9)} G{unit}/s"
    )


# ---------------------------------------------------------------------------- the page


@dataclass(slots=True)
class Page:
    """A figure with its title, legend and footer set; panels are placed in inches from the top."""

    figure: Figure
    height: float
    top: float

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """New axes; ``top`` counts downward from below the legend."""
        bottom = self.height - self.top - top - height
        box = (left / WIDTH, bottom / self.height, width / WIDTH, height / self.height)
        made: Axes = self.figure.add_axes(box, **options)
        made.tick_params(labelsize=8.5, length=3)
        made.tick_params(which="minor", length=1.5)
        made.yaxis.set_label_coords(-0.5 / width, 0.5)
        return made


def _page(
    title: str, runs: Sequence[Run], styles: Mapping[str, Style], notes: list[str], body: float
) -> Page:
    """An empty page whose panels will need ``body`` inches."""
    figure = Figure(figsize=(WIDTH, 4.0), dpi=DPI)
    FigureCanvasAgg(figure)
    handles = [
        Line2D([], [], color=s.colour, marker=s.marker, markersize=6, label=name)
        for name, s in styles.items()
    ]
    if len(runs) > 1:
        for i, label in enumerate(_run_labels(runs)):
            handles.append(
                Line2D([], [], color="#444444", label=label, markersize=6, **_run_look(i))
            )
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(
            handles=handles,
            ncols=columns,
            loc="upper left",
            frameon=False,
            borderaxespad=0,
            borderpad=0,
        )
        extent = legend.get_window_extent()
        if columns == 1 or extent.width / DPI <= WIDTH - 0.8:
            break
        legend.remove()
    lines = [wrapped for note in notes for wrapped in textwrap.wrap(note, 146)]
    heading = textwrap.wrap(title, 78)
    title_height, line_height = 0.24 * len(heading) + 0.1, 0.155
    top = title_height + extent.height / DPI + 0.08
    height = top + body + line_height * len(lines) + 0.08
    figure.set_size_inches(WIDTH, height)
    figure.text(LEFT / WIDTH, 1 - 0.1 / height, "\n".join(heading), va="top", fontsize=13)
    legend.set_bbox_to_anchor((LEFT / WIDTH, 1 - title_height / height))
    for i, line in enumerate(reversed(lines)):
        y = (0.08 + i * line_height) / height
        figure.text(LEFT / WIDTH, y, line, fontsize=7.5, color="#555555", va="bottom")
    return Page(figure, height, top)


def _run_look(i: int) -> dict[str, Any]:
    fill = RUN_FILLS[i % len(RUN_FILLS)]
    return {"linestyle": RUN_LINES[i % len(RUN_LINES)], "marker": "o", "fillstyle": fill}


def _run_labels(runs: Sequence[Run]) -> list[str]:
    """A short name per run: its device where those differ, else its date, else its folder."""
    names = [_short_name(run.manifest.device.name) for run in runs]
    dates = [f"{run.manifest.created:%Y-%m-%d %H:%M}" for run in runs]
    both = [", ".join(pair) for pair in zip(names, dates, strict=True)]
    folders = [run.path.name for run in runs]
    choices = (names, dates if len(set(names)) == 1 else both, folders)
    distinct = (labels for labels in choices if len(set(labels)) == len(runs))
    return next(distinct, [f"{i}: {label}" for i, label in enumerate(both, 1)])


def _short_name(device: str) -> str:
    """``Xeon Platinum 8481C`` for ``Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz``."""
    plain = re.sub(r"\((R|TM|C)\)|\bCPU\b|@.*", "", device)
    words = plain.split() or [device]
    return " ".join(words[1:] if words[0] in ("NVIDIA", "Intel", "AMD") and words[1:] else words)


def _title(runs: Sequence[Run], precisions: Sequence[str], what: str) -> str:
    devices = list(dict.fromkeys(run.manifest.device.name for run in runs))
    only = f"{PRECISIONS[precisions[0]].title} " if len(precisions) == 1 else ""
    several = f", {len(runs)} runs" if len(devices) < len(runs) else ""
    return f"{' and '.join(devices)} — {only}{what}{several}"


def _notes(runs: Sequence[Run], precisions: Sequence[str]) -> list[str]:
    """What stands below the panels of every figure."""
    notes = [_footer(run, precisions) for run in runs] + _missing(runs, precisions)
    for run, label in zip(runs, _run_labels(runs), strict=True):
        rows = [row for row in _drawable(run) if row.precision in precisions]
        owner = f"{label}: " if len(runs) > 1 else ""
        points = f"{len(rows)} point{'s' if len(rows) > 1 else ''}"
        for flag in NOTABLE:
            if count := sum(flag in row.flags.split(";") for row in rows):
                words = FLAGS[flag].partition(",")[0].replace(":", ";")
                notes.append(f"{owner}{count} of {points}: {words}")
    return notes


def _footer(run: Run, precisions: Sequence[str]) -> str:
    """Device and conditions in one line; what is not known is left out."""
    facts = run.manifest.device.facts
    parts = [run.manifest.device.name]
    for title, names in _FOOTER:
        fact = next((facts[n] for n in names if n in facts and facts[n].value is not None), None)
        if fact is not None:
            value = f"{fact.value:.10g}" if isinstance(fact.value, float) else str(fact.value)
            parts.append(f"{title} {value} {fact.unit}".strip())
    clocks = [r.sm_mhz for r in _drawable(run) if r.sm_mhz and r.precision in precisions]
    if clocks:
        low, high = f"{min(clocks):.0f}", f"{max(clocks):.0f}"
        parts.append(f"SM at {low if low == high else f'{low} to {high}'} MHz while timed")
    caches = sorted({r.cache for r in _drawable(run) if r.cache and r.precision in precisions})
    parts += [f"cache {' and '.join(caches)}"] if caches else []
    parts.append(f"{run.manifest.created:%Y-%m-%d}")
    if version := run.manifest.versions.get("rooflab"):
        parts.append(f"rooflab {version}")
    return "\u00a0· ".join(part.replace(" ", "\u00a0") for part in parts)  # broken at the dots only


def _missing(runs: Sequence[Run], precisions: Sequence[str]) -> list[str]:
    """Why a roof is not there, neither of one provenance nor of another."""
    notes: dict[str, None] = {}
    for run in runs:
        roofline = run.manifest.roofline
        there = {(c.kind, c.key) for c in roofline.ceilings}
        wanted = {("bandwidth", roofline.memory)} | {("compute", name) for name in precisions}
        owner = f"{_short_name(run.manifest.device.name)}: no" if len(runs) > 1 else "No"
        for gone in roofline.missing:
            if (gone.kind, gone.key) in wanted - there:
                what = PRECISIONS[gone.key].title if gone.key in PRECISIONS else gone.key
                notes[f"{owner} {what} roof: {gone.reason}"] = None
    return list(notes)


def _styles(panels: Mapping[str, list[Series]]) -> dict[str, Style]:
    """Styles of all kernels drawn, the fastest first: the order of the lines and the legend."""
    best: dict[str, float] = defaultdict(float)
    for series in (s for group in panels.values() for s in group):
        best[series.kernel] = max(best[series.kernel], *(r.tflops or 0 for r in series.rows), 0)
    styles = kernel_styles(best)
    return {name: styles[name] for name in sorted(best, key=lambda name: (-best[name], name))}


def _log_axis(axis: Any, low: float, high: float) -> None:
    """Plain numbers at the powers of ten; at 2 and 5 as well where those are few."""
    few = log10(high / low) < 1.8
    axis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if few else (1,), numticks=20))
    axis.set_minor_locator(LogLocator(10, subs=range(2, 10), numticks=20))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(FuncFormatter(lambda value, _: ""))


def _span(
    values: Iterable[float], inches: float, before: float, after: float, decades: float
) -> tuple[float, float]:
    """Logarithmic limits around ``values`` with margins in inches and a least extent."""
    given = list(values)
    low, high = log10(min(given)), log10(max(given))
    short = max(decades - (high - low), 0) / 2
    low, high = low - short, high + short
    scale = (high - low) / (inches - before - after)
    return 10 ** (low - before * scale), 10 ** (high + after * scale)


def _cells(count: int) -> Iterator[tuple[int, int, bool]]:
    """Row and column of each panel, and whether it is the lowest of its column."""
    columns = 1 if count == 1 else 2
    for i in range(count):
        yield i // columns, i % columns, i + columns >= count


def _draw_series(
    labels: Labels,
    series: Series,
    style: Style,
    xs: Sequence[float],
    ys: Sequence[float],
    joined: bool = True,
) -> None:
    """Markers and, where ``joined``, the line; labels will keep clear of both."""
    look = _run_look(series.run) | {"marker": style.marker}
    if joined:
        labels.avoid_line(xs, ys)
    else:
        look["linestyle"] = ""
    for x, y in zip(xs, ys, strict=True):
        labels.avoid_marker(x, y, 6.5)
    size = 5.5 if len(xs) <= 20 else 3.5
    labels.axes.plot(
        *(xs, ys),
        **look,
        color=style.colour,
        linewidth=1.2,
        markersize=size,
        markerfacecoloralt="white",
        markeredgewidth=0.9,
        zorder=4,
    )


# ---------------------------------------------------------------------------- the roofline


def _roofline_figure(runs: Sequence[Run], precisions: list[str]) -> Figure:
    panels = {p: _series(runs, p) for p in precisions}
    roofs = {i: _with_observed(runs, i) for i in _roofs(runs)}
    styles = _styles(panels)
    several = len(precisions) > 1
    width, height = (3.95, 3.1) if several else (8.05, 4.9)
    notes = _notes(runs, precisions)
    above = _above(runs, panels)
    notes += [f"Above the roof: {'; '.join(above)}"] if above else []
    if several or not all(_is_square(r) for g in panels.values() for s in g for r in s.rows):
        notes.insert(0, "At the ends of each line: size · % of roof.")
    gap = 0.34 if several else 0.06
    count_rows = (len(precisions) + 1) // 2 if several else 1
    body = count_rows * (height + gap) + 0.5
    what = "roofline by precision" if several else "roofline"
    page = _page(_title(runs, precisions, what), runs, styles, notes, body)

    points = [
        (r.intensity or 1.0, (r.tflops or 0) * 1e12)
        for g in panels.values()
        for s in g
        for r in s.rows
    ]
    xs, ys = [x for x, _ in points], [y for _, y in points]
    most = max((len(_compute(r, p)) for r in roofs.values() for p in precisions), default=1)
    for roofline in roofs.values():
        for precision in precisions:
            xs += [ridge] if (ridge := roofline.ridge(precision)) else []
            ys += [c.value for c in _compute(roofline, precision)]
            bandwidth = roofline.bandwidth()
            if bandwidth and not roofline.compute(precision):
                ys.append(bandwidth.value * min(x for x, _ in points))
    unit, scale = ("TFLOP/s", 1e12) if max(ys) >= 1e12 else ("GFLOP/s", 1e9)
    memory = [c for r in roofs.values() for c in r.ceilings if c.kind == "bandwidth"]
    before, after = (0.98, 0.88) if several else (1.5, 1.5)
    if any(c.provenance != "derived" for c in memory):
        before = max(before, 1.25)  # the slope's label says so, and is longer
    x_limits = _span(xs, width, before, after, 1.0)
    y_limits = _span([y / scale for y in ys], height, 0.4, 0.2 + 0.15 * most, 1.5)

    for (row, column, lowest), precision in zip(_cells(len(precisions)), precisions, strict=True):
        axes = page.axes(LEFT + column * (width + 0.2), gap + row * (height + gap), width, height)
        axes.set(xscale="log", yscale="log", xlim=x_limits, ylim=y_limits)
        _log_axis(axes.xaxis, *x_limits)
        _log_axis(axes.yaxis, *y_limits)
        axes.tick_params(labelbottom=lowest, labelleft=column == 0)
        if lowest:
            axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
        if column == 0:
            axes.set_ylabel(f"Performance ({unit})")
        if several:
            axes.set_title(PRECISIONS[precision].title, loc="left", fontweight="bold", pad=4)
        _roofline_panel(Labels(axes), runs, roofs, precision, panels[precision], styles, scale)
    return page.figure


def _roofs(runs: Sequence[Run]) -> list[int]:
    """The runs whose roofs are drawn: those of one device differ by noise, so the first serves."""
    first: dict[str, int] = {}
    for i, run in enumerate(runs):
        first.setdefault(run.manifest.device.name, i)
    return list(first.values())


def _with_observed(runs: Sequence[Run], i: int) -> Roofline:
    """The roofline of run ``i``, with the lowest compute roofs seen on its device."""
    device, roofline = runs[i].manifest.device.name, runs[i].manifest.roofline
    lowest: dict[str, Ceiling] = {}
    for row in (r for run in runs if run.manifest.device.name == device for r in _drawable(run)):
        derived = roofline.compute(row.precision)
        # Right of the ridge, what is attainable at a clock is the compute roof at that clock.
        if row.bound == "compute" and row.observed_tflops and row.sm_mhz and derived:
            value, clock = row.observed_tflops * 1e12, f"{row.sm_mhz:.0f} MHz"
            seen = Ceiling("compute", row.precision, value, "observed", clock)
            least = lowest.get(row.precision, seen).value
            if derived.provenance == "derived" and value <= min(least, SLOWED * derived.value):
                lowest[row.precision] = seen
    return roofline.with_limits(*lowest.values())


def _compute(roofline: Roofline, precision: str) -> list[Ceiling]:
    return [c for c in roofline.ceilings if (c.kind, c.key) == ("compute", precision)]


def _above(runs: Sequence[Run], panels: Mapping[str, list[Series]]) -> list[str]:
    """Every cause of points above a roof, with whom it concerns."""
    causes: dict[str, dict[str, None]] = defaultdict(dict)
    for precision, group in panels.items():
        for series in group:
            for row in series.rows:
                if cause := above_roof_cause(row, runs[series.run]):
                    causes[cause][f"{series.kernel} {PRECISIONS[precision].title}"] = None
    return [f"{cause} ({', '.join(who)})" for cause, who in causes.items()]


def _roofline_panel(
    labels: Labels,
    runs: Sequence[Run],
    roofs: Mapping[int, Roofline],
    precision: str,
    group: Sequence[Series],
    styles: Mapping[str, Style],
    scale: float,
) -> None:
    for series in group:
        xs = [r.intensity or 1.0 for r in series.rows]
        ys = [(r.tflops or 0) * 1e12 / scale for r in series.rows]
        _draw_series(labels, series, styles[series.kernel], xs, ys)
    # All lines first: the labels of one device keep clear of another's roofs.
    pending = []
    for order, (i, roofline) in enumerate(roofs.items()):
        device = runs[i].manifest.device
        prefix = f"{_short_name(device.name)}: " if len(roofs) > 1 else ""
        colour = RUN_ROOFS[order % len(RUN_ROOFS)]
        pending.append(_draw_roof(labels, roofline, precision, scale, colour, prefix))
    for write_labels in pending:
        write_labels()
    _annotate(labels, runs, group, styles, scale)


def _draw_roof(
    labels: Labels, roofline: Roofline, precision: str, scale: float, colour: str, prefix: str
) -> Callable[[], None]:
    """Draw the roofs of one device; what is returned writes their labels."""
    axes = labels.axes
    (x_low, x_high), (y_low, y_high) = axes.get_xlim(), axes.get_ylim()
    flats = _compute(roofline, precision)
    slopes = [c for c in roofline.ceilings if (c.kind, c.key) == ("bandwidth", roofline.memory)]
    used: dict[Ceiling, float] = {}  # how far up each slope goes, in FLOP/s
    levels, edges = [], []
    for ceiling in sorted(flats, key=lambda c: -c.value):
        slope = next(
            (c for c in slopes if c.provenance == ceiling.provenance), roofline.bandwidth()
        )
        start = x_low
        if slope:
            start = max(ceiling.value / slope.value, x_low)
            used[slope] = max(used.get(slope, 0), ceiling.value)
        y = ceiling.value / scale
        levels.append((ceiling, (start, y), (x_high, y)))
    highest = max((c.value for c in flats), default=float("inf"))
    for ceiling in sorted(slopes, key=lambda c: -c.value):
        per = ceiling.value / scale
        end = min(used.get(ceiling, highest) / ceiling.value, x_high, y_high / per)
        start = max(x_low, y_low / per)
        edges.append((ceiling, (start, start * per), (end, end * per)))
    for ceiling, start_point, end_point in levels + edges:
        xs, ys = zip(start_point, end_point, strict=True)
        axes.plot(xs, ys, color=colour, zorder=3, **_PROVENANCE_LINE[ceiling.provenance])
        labels.avoid_line(xs, ys)
    ridge, compute = roofline.ridge(precision), roofline.compute(precision)
    if ridge and compute:
        top = compute.value / scale
        axes.plot([ridge], [top], "o", color=colour, markersize=6, zorder=5, label="_ridge")
        axes.plot([ridge, ridge], [y_low, top], ":", color=colour, linewidth=0.9, zorder=2)
        labels.avoid_marker(ridge, top, 7)
        labels.avoid_line([ridge, ridge], [y_low, top])

    def write() -> None:
        if ridge and compute:
            text = f"ridge {_number(ridge)} FLOP/B"
            labels.place(text, _ridge_spots(labels, ridge), required=True, color=colour)
        for stack in _stacks(labels, levels):
            name = f"{prefix}{PRECISIONS[precision].title} "
            text = "\n".join(
                f"{name if c is stack[0][0] else ''}{_rate(c.value, 'FLOP')} ({_source(c, stack)})"
                for c, _, _ in stack
            )
            spots = _flat_spots(labels, *stack[0][1:])
            labels.place(text, spots, required=True, color=colour, multialignment="right")
        for ceiling, start, end in edges:
            angle, spots = labels.along(start, end, below=ceiling is not edges[0][0])
            source = "" if ceiling.provenance == "derived" else f" ({ceiling.provenance})"
            name = f"{ceiling.key} " if ceiling is edges[0][0] else ""
            text = f"{name}{_rate(ceiling.value, 'B')}{source}"
            labels.place(text, spots, required=True, rotation=angle, color=colour)

    return write


def _stacks(labels: Labels, levels: Sequence[Level]) -> list[list[Level]]:
    """Flat roofs, highest first, those together that leave no room for a label between them.

    Observed ones join what is above them: a thin line is no place for a label amid the points.
    """
    stacks: list[list[Level]] = []
    bottom = float("inf")
    for level in levels:
        _, y = labels.pixels(*level[1])
        if bottom - y < 0.22 * DPI or (stacks and level[0].provenance == "observed"):
            stacks[-1].append(level)
        else:
            stacks.append([level])
        bottom = y
    return stacks


def _source(ceiling: Ceiling, stack: Sequence[Level]) -> str:
    """The provenance, with the clock of what was observed, and the line's look in a stack."""
    look = {"measured": ", dashed", "observed": ", thin"} if len(stack) > 1 else {}
    clock = re.search(r"\d+ MHz$", ceiling.formula) if ceiling.provenance == "observed" else None
    at = f" at {clock[0]}" if clock else ""
    return ceiling.provenance + at + look.get(ceiling.provenance, "")


def _ridge_spots(labels: Labels, ridge: float) -> list[Spot]:
    """Beside the dotted line, from the axis upward."""
    frame = labels.axes.get_window_extent()
    x, _ = labels.pixels(ridge, labels.axes.get_ylim()[0])
    heights = [frame.y0 + frame.height * step / 40 for step in range(1, 30)]
    points = [labels.data(x, y) for y in heights]
    return [
        Spot(px, py, 4 * sign, 2, "left" if sign > 0 else "right", "bottom")
        for px, py in points
        for sign in (1, -1)
    ]


def _flat_spots(labels: Labels, start: tuple[float, float], end: tuple[float, float]) -> list[Spot]:
    """On the flat roof from its right end leftward, then farther above, then below."""
    (x0, y), (x1, _) = labels.pixels(*start), labels.pixels(*end)
    spots = []
    for dy, va in ((2.5, "bottom"), (6, "bottom"), (13, "bottom"), (-2.5, "top"), (-6, "top")):
        for step in range(0, 21, 2):
            px, py = labels.data(x1 - (x1 - x0) * step / 20, y)
            spots.append(Spot(px, py, -4, dy, "right", va))
    return spots


def _annotate(
    labels: Labels,
    runs: Sequence[Run],
    group: Sequence[Series],
    styles: Mapping[str, Style],
    scale: float,
) -> None:
    """Causes for points above the roof, then sizes at the ends; the fastest kernels first."""
    square = all(_is_square(r) for s in group for r in s.rows)
    several = labels.axes.get_title(loc="left") != ""
    ordered = sorted(group, key=lambda s: -max(r.tflops or 0 for r in s.rows))

    def write(series: Series, row: Measurement, cause: str, side: str) -> bool:
        size = str(row.m) if square else _shape(row)
        size += "" if row.layout == "nn" else f" {row.layout}"
        share = "" if row.roof_percent is None else f" · {_percent(row.roof_percent)} %"
        of_roof = " of roof" if share and square and not several else ""
        spots = around(row.intensity or 1.0, (row.tflops or 0) * 1e12 / scale, side)
        text = "\n".join(line for line in (f"{size}{share}{of_roof}", cause) if line)
        ink = styles[series.kernel].ink
        return labels.place(text, spots, color=ink, fontsize=7.5 if several else 8.5) is not None

    for series in ordered:
        causes: dict[str, Measurement] = {}
        for row in sorted(series.rows, key=lambda r: -(r.roof_percent or 0)):
            causes.setdefault(above_roof_cause(row, runs[series.run]), row)
        said = [
            row
            for cause, row in causes.items()
            if cause and write(series, row, cause, "left" if row is series.rows[0] else "right")
        ]
        for row, side in ((series.rows[-1], "right"), (series.rows[0], "left")):
            if row not in said:
                write(series, row, "", side)
                said.append(row)


def _is_square(row: Measurement) -> bool:
    return row.m == row.n == row.k and row.batch == 1


def _percent(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}" if value >= 1 else f"{value:.2g}"


def _shape(row: Measurement) -> str:
    return row.shape.replace("x", "×")


# ---------------------------------------------------------------------------- against size


def _size_figure(runs: Sequence[Run], precisions: list[str]) -> Figure:
    panels = {p: _series(runs, p) for p in precisions}
    styles = _styles(panels)
    every = [r for group in panels.values() for s in group for r in s.rows]
    square = all(r.m == r.n == r.k for r in every) and len({r.batch for r in every}) == 1
    several = len(precisions) > 1
    width = 3.68 if several else 8.0
    heights = (2.1, 1.1) if several else (3.3, 1.6)
    below = 0.5 if square else 1.15
    above = (0.44 if square else 0.62) + (0.26 if several else 0)
    pitch = above + sum(heights) + 0.08 + below
    what = "throughput and bandwidth by size"
    body = pitch * ((len(precisions) + 1) // 2 if several else 1)
    notes = _notes(runs, precisions)
    page = _page(_title(runs, precisions, what), runs, styles, notes, body)
    tera = max(r.tflops or 0 for r in every) >= 1
    for (row, column, _), precision in zip(_cells(len(precisions)), precisions, strict=True):
        left, top = LEFT + column * (width + 0.78), above + row * pitch
        upper = page.axes(left, top, width, heights[0])
        lower = page.axes(left, top + heights[0] + 0.08, width, heights[1], sharex=upper)
        xs = _size_axis(page, upper, lower, panels[precision], square, width)
        if several:
            title = PRECISIONS[precision].title
            upper.set_title(title, loc="left", fontweight="bold", pad=34 if square else 46)
        for axes, label, scale in (
            (upper, "TFLOP/s" if tera else "GFLOP/s", 1 if tera else 1e-3),
            (lower, "GB/s", 1),
        ):
            _size_panel(page, axes, label, scale, runs, panels[precision], styles, xs)
    return page.figure


def _size_panel(
    page: Page,
    axes: Axes,
    ylabel: str,
    scale: float,
    runs: Sequence[Run],
    group: Sequence[Series],
    styles: Mapping[str, Style],
    xs: Mapping[str, float],
) -> None:
    """One quantity against size, with what the roofline allows at each size.

    ``scale`` divides TFLOP/s, or GB/s where ``ylabel`` is that.
    """
    bandwidth = ylabel == "GB/s"
    joined = axes.get_xscale() == "log"

    def value(row: Measurement) -> float:
        return ((row.gbps if bandwidth else row.tflops) or 0.0) / scale

    roofs: list[tuple[str, str, list[float], list[float], dict[str, Any]]] = []
    for order, i in enumerate(_roofs(runs)):
        roofline = runs[i].manifest.roofline
        allowed: dict[float, tuple[float, str]] = {}
        for row in (r for s in group if s.run == i for r in s.rows):
            ceiling, flops = _limit(roofline, row)
            if ceiling and flops and row.intensity:
                per = 1e9 * row.intensity if bandwidth else 1e12 * scale
                allowed[xs[row.shape]] = (flops / per, ceiling.provenance)
        if allowed:
            at, levels = sorted(allowed), [allowed[x][0] for x in sorted(allowed)]
            provenance = allowed[at[-1]][1]
            name = (
                f"{_short_name(runs[i].manifest.device.name)}: roof"
                if len(_roofs(runs)) > 1
                else "roof"
            )
            if len(at) == 1 and joined:
                at, levels = list(axes.get_xlim()), levels * 2
            look = _PROVENANCE_LINE[provenance] | {"color": RUN_ROOFS[order % len(RUN_ROOFS)]}
            if not joined:  # one step per shape
                at = [x + half for x in at for half in (-0.5, 0.5)]
                levels = [level for level in levels for _ in range(2)]
            roofs.append((f"{name} ({provenance})", look["color"], at, levels, look))
    ys = [value(r) for s in group for r in s.rows] + [y for roof in roofs for y in roof[3]]
    height = axes.get_position().height * page.height
    limits = _span(ys, height, 0.15, 0.2, 1.0)
    axes.set(yscale="log", ylim=limits, ylabel=ylabel)
    _log_axis(axes.yaxis, *limits)
    labels = Labels(axes)
    for series in group:
        at = [xs[r.shape] for r in series.rows]
        values = [value(r) for r in series.rows]
        _draw_series(labels, series, styles[series.kernel], at, values, joined)
    for _, _, at, levels, look in roofs:
        axes.plot(at, levels, zorder=3, **look)
        labels.avoid_line(at, levels)
    for text, colour, at, levels, _ in roofs:
        along = [s for x, y in zip(at, levels, strict=True) for s in around(x, y, "left")]
        labels.place(text, along, color=colour)
    right = max(xs.values())
    ends = [s for s in group if xs[s.rows[-1].shape] == right]
    for series in sorted(ends, key=lambda s: -value(s.rows[-1])):
        last = series.rows[-1]
        spots = around(xs[last.shape], value(last), "right")
        ink = styles[series.kernel].ink
        labels.place(_number(value(last)), spots, color=ink, fontsize=7.5)


def _size_axis(
    page: Page, upper: Axes, lower: Axes, group: Sequence[Series], square: bool, width: float
) -> dict[str, float]:
    """Set the shared x axis and its twin on top; returns where each shape stands."""
    rows = {r.shape: r for s in group for r in s.rows}
    if square:
        places = {shape: float(row.m) for shape, row in rows.items()}
        limits = _span(places.values(), width, 0.3, 0.5, 0.6)
        upper.set(xscale="log", xlim=limits)
        batch = next(iter(rows.values())).batch
        lower.set_xlabel(f"Size M = N = K{f', batch {batch}' if batch > 1 else ''}")
    else:
        order = sorted(rows, key=lambda shape: (rows[shape].intensity or 0, rows[shape].flops or 0))
        places = {shape: float(i) for i, shape in enumerate(order)}
        margin = max(len(order) - 1, 1) / (width - 0.8)
        upper.set_xlim(-0.3 * margin, len(order) - 1 + 0.5 * margin)
        lower.set_xlabel("Problem M×N×K, in order of intensity")
    texts = {
        shape: (str(row.m) if square else _shape(row), _number(row.intensity or 0))
        for shape, row in rows.items()
    }
    # Keep the ticks whose labels have room, from the right end leftward.
    labels, kept, edge = Labels(upper), [], float("inf")
    for shape in sorted(places, key=lambda shape: -places[shape]):
        x, _ = labels.pixels(places[shape], upper.get_ylim()[0])
        half = (max(map(len, texts[shape])) * 0.036 + 0.05 if square else 0.1) * DPI
        if x + half <= edge:
            kept.append(shape)
            edge = x - half
    at = [places[shape] for shape in kept]
    top = upper.secondary_xaxis("top")
    rotated: dict[str, Any] = {"rotation": 45, "ha": "right", "rotation_mode": "anchor"}
    for axis, which in ((lower.xaxis, 0), (top.xaxis, 1)):
        axis.set_major_locator(FixedLocator(at))
        axis.set_minor_locator(NullLocator())
        names = {places[shape]: texts[shape][which] for shape in kept}
        axis.set_major_formatter(FuncFormatter(lambda x, _, names=names: names.get(x, "")))
    if not square:
        lower.tick_params(axis="x", labelsize=7.5)
        lower.set_xticks(at, [texts[shape][0] for shape in kept], **rotated)
        top.set_xticks(at, [texts[shape][1] for shape in kept], rotation=90)
    top.tick_params(labelsize=8, length=3)
    top.set_xlabel("Intensity (FLOP/byte)", fontsize=8.5, labelpad=4)
    upper.tick_params(labelbottom=False)
    return places
