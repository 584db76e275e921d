"""The roofline of a whole program: a bubble for each group, its area the group's time. Pure.

Groups without FLOPs are in a strip below, where they are against the roof of their link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import dist, hypot, log10, sqrt
from typing import Final

from rooflab.figures import model, programs
from rooflab.figures.page import LEFT, RIGHT, page_width
from rooflab.figures.programs import TimedGroup
from rooflab.figures.roofs import Segment, ceilings, outline
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import DRAM
from rooflab.model.roofline import COMPUTE, Ceiling, Roofline
from rooflab.runs.store import RunData

LEAST: Final = 0.1
"""FLOPs per byte: with fewer a group is as good as without."""

NAMED: Final = 8
NAMED_BELOW: Final = 4
"""Bubbles with a label in the roofline, and in the strip."""

WIDEST: Final = 46.0
NARROWEST: Final = 20.0
WHOLE: Final = 84.0
"""Points: the largest bubble is at most and at least so wide, and WHOLE would be all of a step."""

SMALLEST: Final = 2.5
"""Points of the smallest bubble: it must be seen."""

TALL: Final = 4.4
STRIP: Final = 0.8
BETWEEN: Final = 0.66
"""Inches: the height of the roofline and of the strip, and what is between them."""

AREA: Final = "_area"
"""The name of the bubbles that explain the area."""

MOST_PERCENT: Final = 500.0
"""Groups that are farther above the roof have wrong figures."""

LINES: Final = 4
"""Groups of a pile of bubbles that its label names."""


@dataclass(frozen=True, slots=True)
class Area:
    """Square points of a bubble for each microsecond."""

    per_us: float

    def diameter(self, us: float) -> float:
        """Points."""
        return max(SMALLEST, sqrt(us * self.per_us))


def area(found: Iterable[TimedGroup], whole_us: float) -> Area:
    """The largest bubble has a size that suits the page."""
    largest = max((one.us for one in found), default=1.0)
    narrow = min(1.0, 0.3 + 0.7 * page_width(1) / 9)
    width = WHOLE * sqrt(largest / whole_us)
    width = narrow * min(WIDEST, max(NARROWEST, width))
    return Area(width * width / largest)


def make(wanted: Wanted) -> model.Page:
    """The roofline of one run of a program."""
    [found], [run] = programs.chosen(wanted), wanted.runs
    there = programs.notable(found)
    above = [one for one in there if programs.has_place(one, LEAST)]
    below = [one for one in there if one not in above and in_strip(one)]
    size = area([*above, *below], programs.step_us(run) or sum(one.us for one in found))
    roofline, panels = run.manifest.roofline, []
    if above:
        panel, unit = roofline_panel(above, roofline, size, below=bool(below))
        explain_area(panel, size, sum(one.us for one in found) / sum(one.share for one in found))
        draw_roofs(panel, roofline, precisions(above), unit)
        draw(panel, [(one, place(one, unit)) for one in above], size, NAMED)
        panels.append(panel)
    if below:
        panel = strip_panel(below, roofline, size, bool(above))
        points = beside_each_other(panel, below, size, [[reached(one)] for one in below])
        draw(panel, list(zip(below, points, strict=True)), size, NAMED_BELOW)
        panels.append(panel)
    if not panels:
        raise programs.nothing(run)
    keys = programs.legend(one.binds for one in (*above, *below))
    notes = programs.left_out(found, [*above, *below])
    return programs.page([run], "roofline", keys, panels, notes)


def in_strip(group: TimedGroup) -> bool:
    """Whether it moves bytes at a known part of the roof of their link."""
    moves = not group.row.tflops or programs.has_place(group, 0.0)
    return moves and group.row.bound not in ("", COMPUTE) and 0 < reached(group) < MOST_PERCENT


def reached(group: TimedGroup) -> float:
    """Percent of the roof of its link."""
    return programs.amount(group.row.roof_percent)


def precisions(found: Iterable[TimedGroup]) -> list[str]:
    """The roofs that groups are under: of counted FLOPs those of their pipes."""
    used: dict[str, None] = {}
    for row in (one.row for one in found):
        used.update(dict.fromkeys(_pipes(row)))
    order = [*PRECISIONS, "fp64_vector"]
    return [name for name in order if name in used]


def _pipes(row: Measurement) -> Iterator[str]:
    if row.counted_flops is None:
        yield row.problem.precision
        return
    pipes = {"fp64_vector": row.fp64_flops, "fp32": row.fp32_flops}
    pipes[row.problem.precision] = row.tensor_flops or pipes.get(row.problem.precision)
    most = max(flops or 0.0 for flops in pipes.values())
    yield from (name for name, flops in pipes.items() if flops and flops >= 0.5 * most)


# The roofline ------------------------------------------------------------------------------------


def place(group: TimedGroup, scale: float) -> model.DataPoint:
    """Where a group is, if a unit of y is ``scale`` TFLOP/s."""
    return group.row.intensity or 1.0, (group.row.tflops or 0.0) / scale


def roofline_panel(
    found: Sequence[TimedGroup], roofline: Roofline, size: Area, *, below: bool
) -> tuple[model.Panel, float]:
    """The empty panel, and the TFLOP/s of one unit of its y axis."""
    cell = model.Cell(0, 0, LEFT, 0.06, page_width(1) - LEFT - RIGHT, _tall(), not below)
    xs, ys = [x for x, _ in (place(one, 1.0) for one in found)], [place(g, 1.0)[1] for g in found]
    tops = [c.value / 1e12 for name in precisions(found) for c in ceilings(roofline, COMPUTE, name)]
    ridges = [roofline.ridge(name) for name in precisions(found)]
    xs += [max(filter(None, ridges), default=max(xs))]
    ys += tops
    unit, scale = ("TFLOP/s", 1.0) if max(ys) >= 1 else ("GFLOP/s", 1e-3)
    radius = max(size.diameter(one.us) for one in found) / 144 + 0.04
    side = max(radius, min(0.9, 0.2 * cell.width))
    low, high = max(radius, 0.2), max(radius, 0.36)
    panel = model.Panel(
        cell,
        model.log_axis("Arithmetic intensity (FLOP/byte)", xs, cell.width, side, side),
        model.log_axis(
            f"Performance ({unit})", [y / scale for y in ys], cell.height, low, high, 1.5
        ),
        "The program",
        titled=False,
    )
    return panel, scale


def _tall() -> float:
    return min(TALL, 0.85 * page_width(1))


def draw_roofs(
    panel: model.Panel,
    roofline: Roofline,
    names: Sequence[str],
    scale: float,
    colour: str = "",
    owner: str = "",
) -> None:
    """The roofs of all these precisions, those of one height together, and of device memory."""
    ink = colour or theme().ink
    flats: dict[tuple[float, str], tuple[Segment, list[str]]] = {}
    along: list[model.Label] = []
    tops = {name: -top.value for name in names if (top := roofline.compute(name))}
    for i, name in enumerate(sorted(names, key=lambda name: tops.get(name, 0.0))):
        drawn = outline(roofline, name, panel.x.limits, panel.y.limits, 1e12 * scale)
        title = PRECISIONS[name].title if name in PRECISIONS else name.replace("_", " ").upper()
        for one in drawn.flats:
            key = round(log10(one.ceiling.value), 4), one.ceiling.provenance
            flats.setdefault(key, (one, []))[1].append(title)
        for one in () if i else drawn.slopes:
            ceiling, ends = one.ceiling, (one.start, one.end)
            look = ceiling.provenance, ink, _name(ceiling, ceiling.amount)
            panel.lines.append(model.roof(ends, *look))
            angle, spots = panel.along(*ends)
            text = f"{owner}{ceiling.key} {ceiling.amount}{_told(roofline, ceiling)}"
            # It may go without its label in a narrow figure; a flat roof may not.
            sure = not theme().brief
            along.append(model.Label(text, spots, ink, required=sure, rotation=angle))
    used = roofline.used(list(names))
    for one, titles in flats.values():
        ceiling, ends = one.ceiling, (one.start, one.end)
        text = f"{', '.join(dict.fromkeys(titles))} {ceiling.amount}{_told(roofline, ceiling)}"
        look = ceiling.provenance, ink, _name(ceiling, text)
        panel.lines.append(model.roof(ends, *look, used=ceiling in used))
        spots = panel.leftward(*ends, ((2.5, "bottom"), (-2.5, "top"), (8, "bottom")))
        panel.labels.append(model.Label(f"{owner}{text}", spots, ink, required=True))
    panel.labels += along


def _name(ceiling: Ceiling, text: str) -> str:
    """In a terminal."""
    return text if ceiling.provenance in text else f"{text} {ceiling.provenance}"


def _told(roofline: Roofline, ceiling: Ceiling) -> str:
    """The provenance, if there are several."""
    same = [one for one in roofline.ceilings if one.limit == ceiling.limit]
    return f" ({ceiling.provenance})" if len(same) > 1 and not theme().brief else ""


# Bubbles -----------------------------------------------------------------------------------------


Placed = Sequence[tuple[TimedGroup, model.DataPoint]]
"""Groups and the places of their bubbles."""


def draw(panel: model.Panel, placed: Placed, size: Area, most: int) -> None:
    """All bubbles. The largest of each pile has its name, the others that of what binds them."""
    named = {pile[0] for pile in _piles(panel, placed, size)[:most]}
    for i, (group, point) in enumerate(placed):
        panel.marks.append(bubble(group, point, size, i, named=i in named))

    def told(group: TimedGroup) -> str:
        return f"{group.name} · {programs.percent(group.share)}"

    panel.labels += labels(panel, placed, size, most, told)


def bubble(
    group: TimedGroup,
    point: model.DataPoint,
    size: Area,
    order: int,
    *,
    named: bool,
    hollow: bool = False,
) -> model.Marks:
    """The bubble of a group; smaller ones, with a higher ``order``, are above larger ones."""
    paper = theme().palette.background
    return model.Marks(
        [point],
        programs.colour(group.binds),
        "o",
        size.diameter(group.us),
        face=paper if hollow else programs.tint(group.binds),
        edge=1.0,
        z=4 + order / 1000,
        name=group.name if named else programs.BINDS[group.binds],
        rows=[group.row],
    )


def labels(
    panel: model.Panel, placed: Placed, size: Area, most: int, told: Callable[[TimedGroup], str]
) -> Iterator[model.Label]:
    """What is ``told`` of groups; those of a pile are in one label."""
    for pile in _piles(panel, placed, size)[: most if not theme().brief else most // 2]:
        lines = 2 if theme().brief else LINES
        groups = [placed[i][0] for i in pile]
        shown = groups[: lines if len(pile) > lines + 1 else lines + 1]
        rest = groups[len(shown) :]
        text = [one.shortened(20) if panel.cell.width < NARROW else told(one) for one in shown]
        if rest:
            share = programs.percent(sum(one.share for one in rest))
            text.append(f"and {len(rest)} more" + f" · {share}" * (panel.cell.width > NARROW))
        point, radius = placed[pile[0]][1], size.diameter(groups[0].us) / 2
        spots = model.around_bubble(*point, radius)
        look = (theme().ink, theme().small, point)
        yield model.Label("\n".join(text), spots, *look, leader=radius)


def _piles(panel: model.Panel, placed: Placed, size: Area) -> list[list[int]]:
    """Bubbles by number, those together of which one covers the middle of the other.

    The piles with the most time are first, and in each the largest bubble.
    """
    piles: list[list[int]] = []
    times = [one.us for one, _ in placed]
    places = [panel.place(*point) for _, point in placed]
    for i, us in enumerate(times):
        touching = [
            pile
            for pile in piles
            if any(dist(places[i], places[j]) < size.diameter(max(us, times[j])) / 2 for j in pile)
        ]
        piles = [pile for pile in piles if pile not in touching]
        piles.append(sorted([i, *(j for pile in touching for j in pile)]))
    return sorted(piles, key=lambda pile: -sum(times[i] for i in pile))


def explain_area(panel: model.Panel, size: Area, step_us: float, *, in_time: bool = False) -> None:
    """Bubbles in the upper left corner, where there is no point: it is above the roof.

    They are parts of a step, or times.
    """
    narrow = panel.cell.width < NARROW
    unit = 1.0 if in_time else step_us
    least, most = (end * (0.6 if narrow else 1.0) for end in NICE)
    nice = [digit * 10.0**power for power in range(-6, 10) for digit in (1, 2, 5)]
    fitting = [one for one in nice if least < size.diameter(one * unit) < most and one * unit > 0]
    x, top, shown = 8.0, 72 * panel.cell.height - 8, fitting[-2 if narrow else -3 :]
    tallest = max((size.diameter(one * unit) for one in shown), default=0.0)
    ink, small = theme().muted, theme().small
    for one in shown:
        across = size.diameter(one * unit)
        point = panel.data(x + across / 2, top - tallest / 2)
        paper = theme().palette.background
        circle = model.Marks([point], ink, "o", across, face=paper, around=0, name=AREA)
        panel.marks.append(circle)
        words = programs.time_text(one) if in_time else programs.percent(one)
        spot = model.Spot(*point, across / 2 + 2, 0, "left")
        panel.labels.append(model.Label(words, [spot], ink, small, required=True))
        x += across + 8 + 0.62 * small * len(words)
    if shown:
        spot = model.Spot(*panel.data(8.0, top - tallest - 3), 0, 0, "left", "top")
        words = "in a step" if in_time else "of the time"
        panel.labels.append(model.Label(words, [spot], ink, small, required=True))


NARROW: Final = 4.0
"""Inches of a panel that has room for less."""

NICE: Final = (4.0, 32.0)
"""Points of a bubble that explains the area."""


# The strip ---------------------------------------------------------------------------------------


def strip_panel(
    found: Sequence[TimedGroup], roofline: Roofline, size: Area, under: bool
) -> model.Panel:
    """The strip with the roof in it; it is under the roofline, or alone."""
    top = 0.06 + (_tall() + BETWEEN if under else 0.0)
    width = page_width(1) - LEFT - RIGHT
    cell = model.Cell(int(under), 0, LEFT, top, width, STRIP)
    end = max(100.0, *(reached(one) for one in found))
    radius = max(size.diameter(one.us) for one in found) / 2 + 3
    # As wide at both ends as half of the largest bubble.
    per = (end + 2) / (72 * width - 2 * radius)
    ticks = [(float(tick), f"{tick}") for tick in range(0, int(end) + 1, 20 if end < 250 else 100)]
    few = f"Below {LEAST:g} FLOP/byte" if any(one.row.tflops for one in found) else "No FLOPs"
    links = {one.row.bound for one in found} - {DRAM}
    also = " or, of copies, of their link" if links else ""
    title = f"{few}: % of the {roofline.memory} roof{also}"
    if len(title) > model.characters(theme().type, page_width(1) - LEFT):
        title = f"{few}: % of its roof"
    panel = model.Panel(
        cell,
        model.Axis((-radius * per, end + 2 + radius * per), title, log=False, ticks=ticks),
        model.Axis((0.0, 1.0), log=False, ticks=(), grid=False),
        "Without FLOPs",
        titled=False,
    )
    bandwidth = roofline.bandwidth()
    provenance = bandwidth.provenance if bandwidth else "derived"
    panel.lines.append(model.roof([(100, 0), (100, 1)], provenance, theme().ink, "100 %"))
    return panel


def beside_each_other(
    panel: model.Panel,
    found: Sequence[TimedGroup],
    size: Area,
    percents: Sequence[Sequence[float]],
) -> list[model.DataPoint]:
    """Bubbles at the last of their percents, each as near to the middle as the larger ones allow.

    From the first of the ``percents`` an arrow may lead there.
    """
    height = 72 * panel.cell.height
    done: list[tuple[float, float, float, float]] = []
    points = []
    for one, ends in zip(found, percents, strict=True):
        xs = [panel.place(end, 0.5)[0] for end in ends]
        low, high, radius = min(xs), max(xs), size.diameter(one.us) / 2
        room = max(0.0, height / 2 - radius - 1.5)
        tries = [room * step / 12 * sign for step in range(13) for sign in (1, -1)]
        costs = [
            sum(
                max(0.0, r + radius + 0.5 - hypot(max(0, low - b, a - high), height / 2 + dy - y))
                for a, b, y, r in done
            )
            for dy in tries
        ]
        y = height / 2 + tries[costs.index(min(costs))]
        done.append((low, high, y, radius))
        points.append(panel.data(xs[-1], y))
    return points


def suits(run: RunData) -> bool:
    """Whether a group has a place in the figure."""
    found = programs.notable(programs.groups(run))
    return any(programs.has_place(one, LEAST) or in_strip(one) for one in found)
