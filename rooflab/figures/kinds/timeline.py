"""When the chunks of a streamed problem were copied and computed, one row per slot.

Of a program: when the launches of one of its steps ran, one row per stream.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from rooflab.errors import UsageError
from rooflab.figures import model, programs
from rooflab.figures.page import time_panel
from rooflab.figures.programs import TimedGroup
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.timeline import TITLES, RecordedStep, StepLaunch
from rooflab.runs.names import short_name
from rooflab.runs.program import Program, is_program
from rooflab.runs.samples import fastest
from rooflab.runs.store import RunData

FAMILIES: Final = {"in": 0, "kernel": 1, "out": 2}
"""The hue of each part, by its place in the palette."""

BAR: Final = 0.42
"""Inches of one slot's row."""

STREAM: Final = 0.62
"""Inches of one stream's row, with names above its bars."""

STREAMS: Final = 12
"""Streams that have a row, those with the most launches; the others share one."""

LEGIBLE: Final = 10
"""Characters of a name that say something."""

CROWDED: Final = 500
"""Bars of one colour from which on they are joined across narrow ones of other colours."""

SEEN: Final = 1 / 2000
"""A part of the width: gaps that are narrower cannot be seen."""


def make(wanted: Wanted) -> model.Page:
    """The fastest streamed row of the first run, or the step of a program."""
    (run, *_) = wanted.runs
    if is_program(run.measurements):
        return _of_program(wanted)
    found = fastest(run.path, run.ok)
    if found is None:
        raise UsageError(f"{run.path} has no timeline: sweep with --host pinned")
    row, spans = found
    streams, chunks = (1 + max(getattr(s, of) for s in spans) for of in ("stream", "chunk"))
    first = f"the first {chunks} chunks" if chunks > 1 else "the first chunk"
    height = BAR * streams
    slots = [(i + 0.5, f"slot {i + 1}") for i in range(streams)]
    colours = {what: theme().palette.shades[i][0] for what, i in FAMILIES.items()}
    y = model.Axis((streams, 0), log=False, ticks=slots, grid=False)
    end = max(span.end_us for span in spans)
    panel, scale = time_panel(f"Time ({{}}), {first}", end, height, y, ruled=True)
    for s in spans:
        box = (s.start_us / scale, s.stream + 0.1, (s.end_us - s.start_us) / scale, 0.8)
        panel.bars.append(model.Bars([box], colours[s.what], theme().palette.background))
    legend = [model.Key(title, colours[what]) for what, title in TITLES.items()]
    return model.Page(_title(run, row), legend, [panel], (), height + 0.55, theme().width)


def _title(run: RunData, row: Measurement) -> str:
    problem = row.problem
    precision = PRECISIONS[problem.precision].title if problem.precision in PRECISIONS else ""
    what = f"{problem.workload} {precision} {model.size_text(row)}, {row.kernel}, {problem.about}"
    return f"{short_name(run.manifest.device.name)} — {what}: {model.number(row.gbps or 0)} GB/s"


# Programs ----------------------------------------------------------------------------------------


def _of_program(wanted: Wanted) -> model.Page:
    [found], [run] = programs.chosen(wanted), wanted.runs
    step = run.step()
    if step is None:
        raise UsageError(f"{run.path} has no timeline that can be read: profile it again")
    group_of = {id(one.row): one for one in found}
    groups = [group_of.get(id(row)) for row in run.measurements]
    lanes = _lanes(step)
    end = max(step.us if not step.left_out else 0.0, *(one.end_us for one in step.launches))
    ticks = [(i + 0.62, name) for i, name in enumerate(lanes)]
    y = model.Axis((len(lanes), 0), log=False, ticks=ticks, size=theme().label, grid=False)
    about, height = "" if Program.of(run).whole else " in one step", STREAM * len(lanes)
    panel, scale = time_panel(f"Time ({{}}){about}", end, height, y, ruled=True)
    binds: set[str] = set()
    for i, launches in enumerate(lanes.values()):
        drawn = [(one, groups[one.row]) for one in launches]
        binds |= {_part(group) for _, group in drawn}
        panel.bars += _bars(drawn, i, end, scale)
        panel.labels += _names(panel, drawn, i, end, scale)
    what = "timeline" + f"; this step {model.number(step.us / 1e3)} ms" * (not step.left_out)
    kept = f"The first {len(step.launches):,} launches; {step.left_out:,} more are not kept."
    notes, keys = [kept.replace(",", " ")] * bool(step.left_out), programs.legend(binds)
    return programs.page([run], what, keys, [panel], notes, below=0.49, wide=True)


def _lanes(step: RecordedStep) -> dict[str, list[StepLaunch]]:
    streams = grouped(step.launches, lambda one: (one.device, one.stream))
    kept = sorted(sorted(streams, key=lambda key: -len(streams[key]))[:STREAMS])
    several = len({device for device, _ in streams}) > 1
    lanes = {}
    for device, stream in kept:
        gpu = f"GPU {device}\n" if several else ""
        lanes[f"{gpu}stream {model.shortened(str(stream), 1, 0.07)}"] = streams[device, stream]
    rest = [one for key, some in streams.items() if key not in kept for one in some]
    return {**lanes, "others": sorted(rest)} if rest else lanes


Launches = Sequence[tuple[StepLaunch, TimedGroup | None]]
"""Launches of a lane with their groups."""


def _part(group: TimedGroup | None) -> str:
    return group.binds if group else programs.UNKNOWN


def _bars(launches: Launches, lane: int, end: float, scale: float) -> Iterator[model.Bars]:
    """The bars of each colour. What follows without a gap that can be seen is one bar."""
    boxes: dict[str, list[tuple[float, float]]] = defaultdict(list)
    last = ""
    for one, group in launches:
        part = _part(group)
        some = boxes[part]
        near = bool(some) and one.start_us - some[-1][1] < SEEN * end
        if near and (last == part or len(some) > CROWDED):
            some[-1] = (some[-1][0], max(some[-1][1], one.end_us))
        else:
            some.append((one.start_us, one.end_us))
        last = part
    for part, found in boxes.items():
        spans = ((start / scale, max(stop - start, SEEN * end) / scale) for start, stop in found)
        yield model.Bars([(x, lane + 0.36, wide, 0.52) for x, wide in spans], programs.colour(part))


def _names(
    panel: model.Panel, launches: Launches, lane: int, end: float, scale: float
) -> Iterator[model.Label]:
    """The names of launches, the longest first, above bars that are as wide as some letters."""
    longest = sorted(launches, key=lambda one: -one[0].duration_us)
    for one, group in longest[: model.LABELLED]:
        inches = panel.cell.width * one.duration_us / end
        room = model.characters(theme().small, inches)
        if group and room >= LEGIBLE:
            middle = (one.start_us + one.duration_us / 2) / scale
            spot = model.Spot(middle, lane + 0.36, 0, 1, va="bottom")
            fits = len(group.name) <= room
            text = group.name if fits else programs.shortened_end(group.shortened(26), room)
            yield model.Label(text, [spot], theme().ink, theme().small)


def _suits(run: RunData) -> bool:
    if is_program(run.measurements):
        return run.step() is not None and bool(programs.groups(run))
    return bool(fastest(run.path, run.ok))


KIND: Final = model.Kind(
    "timeline",
    7,
    make,
    "timeline",
    "Draw when chunks of a streamed problem, or launches of a program's step, ran.",
    suits=_suits,
)
