"""When the chunks of a streamed problem were copied and computed, one row per slot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rooflab.errors import UsageError
from rooflab.figures import model
from rooflab.figures.page import LEFT, RIGHT
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.timeline import TITLES, unit
from rooflab.runs.names import short_name
from rooflab.runs.samples import fastest

if TYPE_CHECKING:
    from rooflab.runs.store import Run

FAMILIES: Final = {"in": 0, "kernel": 1, "out": 2}
"""The hue of each part, by its place in the palette."""

BAR: Final = 0.42
"""Inches of one slot's row."""


def make(wanted: Wanted) -> model.Page:
    """The fastest streamed row of the first run."""
    (run, *_) = wanted.runs
    found = fastest(run.path, run.ok)
    if found is None:
        raise UsageError(f"{run.path} has no timeline: sweep with --host pinned")
    row, spans = found
    name, scale = unit(spans)
    streams, chunks = (1 + max(getattr(s, of) for s in spans) for of in ("stream", "chunk"))
    first = f"the first {chunks} chunks" if chunks > 1 else "the first chunk"
    width, height = theme().width, BAR * streams
    end = max(span.end_us for span in spans) / scale
    slots = [(i + 0.5, f"slot {i + 1}") for i in range(streams)]
    colours = {what: theme().palette.shades[i][0] for what, i in FAMILIES.items()}
    panel = model.Panel(
        model.Cell(0, 0, LEFT, 0.06, width - LEFT - RIGHT, height),
        model.Axis((0, end), f"Time ({name}), {first}", log=False),
        model.Axis((streams, 0), log=False, ticks=slots, grid=False),
        bars=[
            model.Bars(
                [(s.start_us / scale, s.stream + 0.1, (s.end_us - s.start_us) / scale, 0.8)],
                colours[s.what],
                theme().palette.background,
            )
            for s in spans
        ],
    )
    legend = [model.Key(title, colours[what]) for what, title in TITLES.items()]
    return model.Page(_title(run, row), legend, [panel], (), height + 0.55, width)


def _title(run: Run, row: Measurement) -> str:
    problem = row.problem
    precision = PRECISIONS[problem.precision].title if problem.precision in PRECISIONS else ""
    what = f"{problem.workload} {precision} {model.size_text(row)}, {row.kernel}, {problem.about}"
    return f"{short_name(run.manifest.device.name)} — {what}: {model.number(row.gbps or 0)} GB/s"


KIND: Final = model.Kind("timeline", 7, make, suits=lambda run: bool(fastest(run.path, run.ok)))
