"""When the chunks of a streamed problem were copied and computed, one row per slot."""

from __future__ import annotations

from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from rooflab.errors import UsageError
from rooflab.figures.page import Picture, shortened
from rooflab.figures.panel import number, size_text
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.timeline import TITLES, unit
from rooflab.runs.names import short_name
from rooflab.runs.store import Run
from rooflab.runs.timelines import fastest

FAMILIES: Final = {"in": 0, "kernel": 1, "out": 2}
"""The hue of each part, by its place in the palette."""

BAR: Final = 0.42
"""Inches of one slot's row."""


def draw_timeline(run: Run) -> Figure:
    """The fastest streamed row of a run. Raises ``UsageError`` if there is none."""
    found = fastest(run.path, run.ok)
    if found is None:
        raise UsageError(f"{run.path} has no timeline: sweep with --host pinned")
    row, spans = found
    name, scale = unit(spans)
    streams = 1 + max(span.stream for span in spans)
    height = 1.35 + BAR * streams
    figure = Picture(figsize=(theme().width, height), dpi=theme().dpi)
    left = 0.81 / theme().width
    paper = theme().palette.background
    colours = {what: theme().palette.shades[i][0] for what, i in FAMILIES.items()}
    axes: Axes = figure.add_axes((left, 0.55 / height, 0.98 - left, BAR * streams / height))
    for span in spans:
        start, length = span.start_us / scale, (span.end_us - span.start_us) / scale
        place, colour = (span.stream + 0.1, 0.8), colours[span.what]
        axes.broken_barh(
            [(start, length)],
            place,
            facecolors=colour,
            edgecolor=paper,
            lw=0.4,
        )
    axes.set_ylim(streams, 0)
    axes.set_yticks([i + 0.5 for i in range(streams)], [f"slot {i + 1}" for i in range(streams)])
    axes.set_xlim(0, max(span.end_us for span in spans) / scale)
    chunks = 1 + max(span.chunk for span in spans)
    first = f"the first {chunks} chunks" if chunks > 1 else "the first chunk"
    axes.set_xlabel(f"Time ({name}), {first}")
    axes.grid(visible=False, axis="y")
    top = 1 - 0.08 / height
    size = theme().type + 2
    title = shortened(_title(run, row), size, (0.98 - left) * theme().width)
    figure.text(left, top, title, va="top", fontsize=size)
    handles = [Patch(color=colours[what], label=title) for what, title in TITLES.items()]
    corner = (left - 0.005, top - 0.25 / height)
    figure.legend(handles=handles, loc="upper left", bbox_to_anchor=corner, ncols=3, frameon=False)
    return figure


def _title(run: Run, row: Measurement) -> str:
    problem = row.problem
    precision = PRECISIONS[problem.precision].title if problem.precision in PRECISIONS else ""
    what = f"{problem.workload} {precision} {size_text(row)}, {row.kernel}, {problem.about}"
    return f"{short_name(run.manifest.device.name)} — {what}: {number(row.gbps or 0)} GB/s"
