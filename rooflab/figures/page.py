"""The page of a figure: its title, its legend and the notes below its panels."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D

from rooflab.figures.selection import Selection
from rooflab.figures.style import run_look, styled, theme
from rooflab.model.measurement import FLAGS
from rooflab.model.precision import PRECISIONS
from rooflab.runs.names import run_names, short_name

FASTEST: Final = "The fastest kernel of each problem; all kernels of one: plot --workload NAME."

LEFT: Final = 0.72
"""Inches left of the first panel, for the ticks' and the axis' labels."""

RIGHT: Final = 0.18

_LEADING: Final = 0.0207
"""Inches from line to line, for each point of the type's size."""

_MARGIN: Final = 0.08

NOTABLE: Final = ("power_capped", "throttled", "noisy", "ungated", "host_timed", "cache_suspect")
"""The flags that the notes count."""

# Facts in the notes: the title, and possible names of the fact; the first known one is used.
_CONDITIONS: Final = (
    ("driver", ("driver_version",)),
    ("SM clock", ("sm_clock_max", "sm_clock_default")),
    ("memory", ("memory_clock_max", "memory_clock")),
    ("power limit", ("power_limit",)),
    ("ECC", ("ecc_mode",)),
    ("threads", ("threads",)),
)


class Picture(Figure):
    """A figure that a notebook shows, also without ``%matplotlib inline``."""

    def _repr_png_(self) -> bytes:
        picture = BytesIO()
        with styled("default"):
            self.savefig(picture, format="png", dpi="figure")
        return picture.getvalue()


@dataclass(frozen=True, slots=True)
class Page:
    """A figure with its title, legend and notes; panels are placed in inches from the top."""

    figure: Figure
    width: float
    height: float
    top: float

    def axes(self, left: float, top: float, width: float, height: float, **options: Any) -> Axes:
        """New axes; ``top`` counts downward from below the legend."""
        bottom = self.height - self.top - top - height
        box = (left / self.width, bottom / self.height, width / self.width, height / self.height)
        made: Axes = self.figure.add_axes(box, **options)
        style = theme()
        colours: dict[str, Any] = dict.fromkeys(("color", "labelcolor"), style.ink)
        made.tick_params(which="both", length=3, grid_color=style.grid, **colours)
        made.tick_params(labelsize=style.type - 0.5)
        made.tick_params(which="minor", length=1.5)
        made.yaxis.set_label_coords(-0.52 / width, 0.5)
        return made

    def inches(self, axes: Axes) -> float:
        """The height of ``axes``."""
        return float(axes.get_position().height * self.height)


def open_page(selection: Selection, what: str, notes: Iterable[str], body: float) -> Page:
    """An empty page about ``what``, with ``body`` inches for the panels."""
    style, width = theme(), page_width(len(selection.panels))
    figure = Picture(figsize=(width, 4.0), dpi=style.dpi)
    FigureCanvasAgg(figure)
    legend = _legend(figure, selection, width)
    inches = width - LEFT - RIGHT
    lines = [line for note in notes for line in _wrapped(note, style.note, inches)]
    title = _wrapped(_title(selection, what), style.title, inches)
    title_height = 0.1 + 0.0185 * style.title * len(title)
    top = title_height + legend.get_window_extent().height / style.dpi + _MARGIN
    leading = _LEADING * style.note
    height = top + body + leading * len(lines) + _MARGIN
    figure.set_size_inches(width, height)
    left = LEFT / width
    figure.text(left, 1 - 0.1 / height, "\n".join(title), va="top", fontsize=style.title)
    legend.set_bbox_to_anchor((left, 1 - title_height / height))
    for i, line in enumerate(reversed(lines)):
        y = (_MARGIN + i * leading) / height
        figure.text(left, y, line, fontsize=style.note, color=style.muted, va="bottom")
    return Page(figure, width, height, top)


def page_width(panels: int) -> float:
    """Inches: the style may have narrow pages for one panel."""
    return theme().width if panels > 1 else theme().narrow


def _wrapped(text: str, size: float, inches: float) -> list[str]:
    return textwrap.wrap(text, _characters(size, inches))


def shortened(text: str, size: float, inches: float) -> str:
    """``text`` with "…" in its middle if it may be longer than ``inches`` in type of ``size``."""
    most = _characters(size, inches)
    if len(text) <= most:
        return text
    end = (most - 1) // 2
    return f"{text[: most - 1 - end]}…{text[-end:]}"


def _characters(size: float, inches: float) -> int:
    """How many characters certainly fit."""
    return int(inches * 72 / (0.56 * size))


@dataclass(frozen=True, slots=True)
class Cell:
    """The place of one panel: its row and column, and its box in inches below the legend."""

    row: int
    column: int
    left: float
    top: float
    width: float
    height: float
    lowest: bool
    """Whether no panel is below it."""


def grid(
    count: int, *, apart: float, above: float, tall: float, below: float, first: float = 0.0
) -> list[Cell]:
    """Places of ``count`` panels in two columns, ``apart`` and with ``above`` each, in inches.

    They are ``tall`` or, if all rows with ``below`` would be too tall, less. ``first`` is more room
    above the first row.
    """
    columns = min(count, 2)
    rows = -(-count // columns)
    width = (page_width(count) - LEFT - RIGHT + apart) / columns - apart
    height = min(tall, 0.8 * width, (theme().tallest - first - below) / rows - above)
    return [
        Cell(
            *divmod(i, columns),
            left=LEFT + i % columns * (width + apart),
            top=first + above + i // columns * (height + above),
            width=width,
            height=height,
            lowest=i + columns >= count,
        )
        for i in range(count)
    ]


def _legend(figure: Figure, selection: Selection, width: float) -> Legend:
    """Kernels, and runs if there are several, in as many columns as fit."""

    def fitting(name: str) -> str:
        return shortened(name, theme().type, width - 1.4)

    marks: dict[str, Any] = {"markersize": theme().marker + 0.5, "linewidth": theme().line + 0.3}
    handles = [
        Line2D([], [], color=style.colour, marker=style.marker, label=fitting(name), **marks)
        for name, style in selection.styles.items()
    ]
    if len(selection.runs) > 1:
        handles += [
            Line2D([], [], color=theme().muted, label=fitting(name), **marks, **run_look(i))
            for i, name in enumerate(run_names(selection.runs))
        ]
    columns = len(handles)
    while True:
        legend = figure.legend(
            handles=handles,
            ncols=columns,
            loc="upper left",
            frameon=False,
            borderaxespad=0,
            borderpad=0,
        )
        if columns == 1 or legend.get_window_extent().width / theme().dpi <= width - 0.8:
            return legend
        legend.remove()
        columns -= 1


def _title(selection: Selection, what: str) -> str:
    runs, precisions = selection.runs, list(selection.panels)
    devices = list(dict.fromkeys(run.manifest.device.name for run in runs))
    only = "" if selection.several else f"{PRECISIONS[precisions[0]].title} "
    only = only if len(selection.workloads) > 1 else f"{selection.workloads[0]} {only}"
    several = f", {len(runs)} runs" if len(devices) < len(runs) else ""
    return f"{' and '.join(devices)} — {only}{what}{several}"


def conditions(selection: Selection) -> list[str]:
    """The notes of every figure: conditions, missing roofs, caveats."""
    indices = range(len(selection.runs))
    if theme().brief:
        return []
    notes = [FASTEST] if len(selection.workloads) > 1 and not selection.every else []
    notes += [_conditions(selection, i) for i in indices] + _missing(selection)
    for i, name in zip(indices, run_names(selection.runs), strict=True):
        rows = selection.rows(i)
        owner = f"{name}: " if len(selection.runs) > 1 else ""
        used = selection.runs[i].manifest.roofline.used({row.problem.precision for row in rows})
        if any(one.disturbed for one in used):
            notes.append(f"{owner}measured roofs may be too low: other programs used the processor")
        points = f"{len(rows)} point{'s' if len(rows) > 1 else ''}"
        for flag in NOTABLE:
            if count := sum(flag in row.flags.split(";") for row in rows):
                words = FLAGS[flag].partition(",")[0].replace(":", ";")
                notes.append(f"{owner}{count} of {points}: {words}")
    return notes


def _conditions(selection: Selection, i: int) -> str:
    """Device and conditions of one run in one line, without unknown facts."""
    manifest, rows = selection.runs[i].manifest, selection.rows(i)
    facts = manifest.device.facts
    parts = [manifest.device.name]
    parts += selection.settings if len(selection.settings) == 1 else []
    for title, names in _CONDITIONS:
        fact = next((facts[n] for n in names if n in facts and facts[n].value is not None), None)
        if fact is not None:
            value = f"{fact.value:.10g}" if isinstance(fact.value, float) else str(fact.value)
            parts.append(f"{title} {value} {fact.unit}".strip())
    if clocks := [row.sm_mhz for row in rows if row.sm_mhz]:
        low, high = f"{min(clocks):.0f}", f"{max(clocks):.0f}"
        parts.append(f"SM at {low if low == high else f'{low} to {high}'} MHz while timed")
    if caches := sorted({row.cache for row in rows if row.cache}):
        parts.append(f"cache {' and '.join(caches)}")
    parts.append(f"{manifest.created:%Y-%m-%d}")
    if version := manifest.versions.get("rooflab"):
        parts.append(f"rooflab {version}")
    return "\u00a0· ".join(part.replace(" ", "\u00a0") for part in parts)  # broken at the dots only


def _missing(selection: Selection) -> list[str]:
    """Why a roof is missing, if it has no value of any provenance."""
    notes: dict[str, None] = {}
    for i, run in enumerate(selection.runs):
        roofline = run.manifest.roofline
        there = {(c.kind, c.key) for c in roofline.ceilings}
        precisions = {row.problem.precision for row in selection.rows(i)}
        wanted = {("bandwidth", roofline.memory), *(("compute", name) for name in precisions)}
        owner = f"{short_name(run.manifest.device.name)}: no" if len(selection.runs) > 1 else "No"
        for gone in roofline.missing:
            if (gone.kind, gone.key) in wanted - there:
                what = PRECISIONS[gone.key].title if gone.key in PRECISIONS else gone.key
                notes[f"{owner} {what} roof: {gone.reason}"] = None
    return list(notes)
