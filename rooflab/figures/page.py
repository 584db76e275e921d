"""The page of a figure: its title, its legend, the grid of its panels and the notes below. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from rooflab.figures.model import Axis, Cell, Key, Page, Panel
from rooflab.figures.selection import FigureData
from rooflab.figures.style import run_look, theme
from rooflab.model.measurement import FLAGS, Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.timeline import unit
from rooflab.runs.names import run_names, short_name
from rooflab.runs.store import RunData

FASTEST: Final = "The fastest kernel of each problem; all kernels of one: plot --workload NAME."

LEFT: Final = 0.72
"""Inches left of the first panel, for the ticks' and the axis' labels."""

RIGHT: Final = 0.18

BELOW: Final = 0.5
"""Inches below the lowest panel, for the ticks' and the axis' labels."""

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


def page(
    data: FigureData,
    what: str,
    notes: Iterable[str],
    panels: Sequence[Panel],
    below: float = BELOW,
    after: Iterable[str] = (),
) -> Page:
    """The page about ``what``, with the conditions of the runs after the ``notes``.

    ``below`` are the inches below the lowest panel.
    """
    legend = [Key(name, style.colour, style.marker, "-") for name, style in data.styles.items()]
    if len(data.runs) > 1:
        for i, name in enumerate(run_names(data.runs)):
            legend.append(Key(name, theme().muted, "o", *run_look(i)))
    every = (*notes, *conditions(data), *after)
    body = max(panel.cell.top + panel.cell.height for panel in panels) + below
    return Page(title(data, what), legend, panels, every, body, page_width(len(data.panels)))


def page_width(panels: int) -> float:
    """Inches: the style may have narrow pages for one panel."""
    return theme().width if panels > 1 else theme().narrow


def time_panel(
    title: str, us: float, height: float, y: Axis, *, ruled: bool = False
) -> tuple[Panel, float]:
    """A panel as wide as the page against time, and the microseconds in a unit of its axis.

    In the ``title`` of the axis ``{}`` is that unit; ``ruled`` draws lines at its ticks.
    """
    name, scale = unit(us)
    cell = Cell(0, 0, LEFT, 0.06, theme().width - LEFT - RIGHT, height)
    return Panel(cell, Axis((0, us / scale), title.format(name), log=False, grid=ruled), y), scale


def grid(
    count: int, *, apart: float, above: float, tall: float, below: float = BELOW, first: float = 0.0
) -> list[Cell]:
    """Places of ``count`` panels in two columns, ``apart`` and with ``above`` each, in inches.

    They are ``tall`` or, if all rows with ``below`` would be too tall, less. ``first`` is more room
    above the first row.
    """
    if wide := theme().panel:
        return [Cell(i, 0, 0.0, 0.0, *wide) for i in range(count)]
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


def title(data: FigureData, what: str) -> str:
    """``NVIDIA H200 — gemm FP32 roofline``."""
    runs, precisions = data.runs, list(data.panels)
    devices = list(dict.fromkeys(run.manifest.device.name for run in runs))
    only = "" if data.several else f"{PRECISIONS[precisions[0]].title} "
    only = only if len(data.workloads) > 1 else f"{data.workloads[0]} {only}"
    several = f", {len(runs)} runs" if len(devices) < len(runs) else ""
    return f"{' and '.join(devices)} — {only}{what}{several}"


def conditions(data: FigureData) -> list[str]:
    """The notes of every figure: conditions, missing roofs, caveats."""
    if theme().brief or theme().panel:
        return []
    notes = [FASTEST] if len(data.workloads) > 1 and not data.every else []
    settings = data.settings if len(data.settings) == 1 else ()
    notes += [run_conditions(run, data.rows(i), settings) for i, run in enumerate(data.runs)]
    notes += _missing(data)
    for i, (run, name) in enumerate(zip(data.runs, run_names(data.runs), strict=True)):
        rows = data.rows(i)
        owner = f"{name}: " if len(data.runs) > 1 else ""
        used = run.manifest.roofline.used({row.problem.precision for row in rows})
        if any(one.disturbed for one in used):
            notes.append(f"{owner}measured roofs may be too low: other programs used the processor")
        points = f"{len(rows)} point{'s' if len(rows) > 1 else ''}"
        for flag in NOTABLE:
            if count := sum(flag in row.flags.split(";") for row in rows):
                words = FLAGS[flag].partition(",")[0].replace(":", ";")
                notes.append(f"{owner}{count} of {points}: {words}")
    return notes


def run_conditions(
    run: RunData, rows: Sequence[Measurement] = (), settings: Sequence[str] = ()
) -> str:
    """Device and conditions of one run in one line, without unknown facts."""
    manifest, facts = run.manifest, run.manifest.device.facts
    parts = [manifest.device.name, *settings]
    roofs_of = manifest.program.get("roofs_of")  # then the device's facts are those of its model
    if roofs_of and manifest.roofline.ceilings:
        parts.append(f"roofs of {str(roofs_of)[:80]}")
    for title, names in () if roofs_of else _CONDITIONS:
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


def _missing(data: FigureData) -> list[str]:
    """Why a roof is missing, if it has no value of any provenance."""
    notes: dict[str, None] = {}
    for i, run in enumerate(data.runs):
        roofline = run.manifest.roofline
        there = {(c.kind, c.key) for c in roofline.ceilings}
        precisions = {row.problem.precision for row in data.rows(i)}
        wanted = {("bandwidth", roofline.memory), *(("compute", name) for name in precisions)}
        owner = f"{short_name(run.manifest.device.name)}: no" if len(data.runs) > 1 else "No"
        for gone in roofline.missing:
            if (gone.kind, gone.key) in wanted - there:
                what = PRECISIONS[gone.key].title if gone.key in PRECISIONS else gone.key
                notes[f"{owner} {what} roof: {gone.reason}"] = None
    return list(notes)
