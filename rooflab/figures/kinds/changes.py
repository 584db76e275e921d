"""Before and after: two runs of a program in one roofline, with an arrow for each group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.figures import bubbles, model, programs
from rooflab.figures.bubbles import LEAST, Area
from rooflab.figures.programs import TimedGroup
from rooflab.figures.selection import Wanted
from rooflab.figures.style import theme
from rooflab.model.measurement import Measurement
from rooflab.runs.matching import matched
from rooflab.runs.store import RunData

NAMED: Final = 8
"""Groups with a label: those whose time has changed most."""

SAME: Final = 0.02
"""A part of the time that is no change."""


@dataclass(frozen=True, slots=True)
class Moved:
    """One group before and after; one of them is None if it is new or gone."""

    before: TimedGroup | None
    after: TimedGroup | None

    @property
    def groups(self) -> list[TimedGroup]:
        """Those that are there."""
        return [one for one in (self.before, self.after) if one]

    @property
    def shown(self) -> TimedGroup:
        """The one that has the label."""
        return self.groups[-1]

    @property
    def us(self) -> float:
        """By how much its time in a step has changed."""
        before, after = ((one.us if one else 0.0) for one in (self.before, self.after))
        return after - before

    @property
    def changed(self) -> bool:
        """Whether its time has changed by more than is to be expected."""
        return self.before is None or abs(self.us) > SAME * self.before.us

    @property
    def text(self) -> str:
        """``GEMM: 2.76 → 2.1 ms``."""
        before, after = self.before, self.after
        if before is None or after is None:
            word = "new" if before is None else "gone"
            return f"{self.shown.name}: {word}, {programs.time_text(self.shown.us)}"
        if not self.changed:
            return f"{after.name}: {programs.time_text(after.us)}"
        times = [programs.time_text(one.us) for one in (before, after)]
        if times[0].split()[1] == times[1].split()[1]:
            times[0] = times[0].split()[0]
        same = before.row.kernel == after.row.kernel
        name = after.name if same else f"{_short(before)} → {_short(after)}"
        return f"{name}: {' → '.join(times)}"


def _short(group: TimedGroup) -> str:
    return programs.shortened_end(programs.brief(group.row.kernel), 16)


def make(wanted: Wanted) -> model.Page:
    """Of two runs of a program: the first is before, the second after."""
    before, after = programs.chosen(wanted, 2)
    changes = paired(before, after)
    sides = ([one.before for one in changes], [one.after for one in changes])
    drawn = {id(one) for side in sides for one in programs.notable(list(filter(None, side)))}
    there = [one for one in changes if any(id(group) in drawn for group in one.groups)]
    above = [one for one in there if all(programs.has_place(g, LEAST) for g in one.groups)]
    below = [one for one in there if one not in above and all(map(bubbles.in_strip, one.groups))]
    every = [group for one in (*above, *below) for group in one.groups]
    if not every:
        raise programs.nothing(wanted.runs[1])
    whole = max(*map(programs.step_us, wanted.runs), *(group.us for group in every))
    size, panels = bubbles.area(every, whole), []
    if above:
        panels.append(_roofline(above, wanted.runs, size, whole, below=bool(below)))
    if below:
        panels.append(_strip(below, wanted.runs, size, under=bool(above)))
    keys = programs.legend(group.binds for group in every)
    keys.append(model.Key("before", theme().muted, "o", "-", "none"))
    keys.append(model.Key("after", theme().muted, "o", "-", "full"))
    return programs.page(wanted.runs, "changes", keys, panels, _notes(changes, [*above, *below]))


def _notes(changes: Sequence[Moved], drawn: Sequence[Moved]) -> Iterator[str]:
    yield "Hollow: before, filled: after; the area is time in a step."
    new = sum(one.before is None for one in drawn)
    gone = sum(one.after is None for one in drawn)
    counts = [(new, "new"), (gone, "gone (crossed out)"), (len(changes) - len(drawn), "not drawn")]
    if told := [f"{count} {what}" for count, what in counts if count]:
        yield f"Groups: {', '.join(told)}."


# Pairs -------------------------------------------------------------------------------------------


def paired(before: Sequence[TimedGroup], after: Sequence[TimedGroup]) -> list[Moved]:
    """Each group with the one that ``runs.matching`` finds; what is left is gone or new."""
    left, right = ([g for g in some if g.binds != programs.IDLE] for some in (before, after))
    known = {id(one.row): one for one in (*left, *right)}
    matching = matched([one.row for one in left], [one.row for one in right])

    def of(rows: Sequence[Measurement], row: Measurement) -> TimedGroup:
        some = [known[id(one)] for one in rows]
        us, share = sum(one.us for one in some), sum(one.share for one in some)
        return some[0] if len(some) == 1 else TimedGroup(row, us, share)

    found = [Moved(of(p.base_rows, p.base), of(p.new_rows, p.new)) for p in matching.pairs]
    found += [Moved(known[id(row)], None) for row in matching.gone]
    found += [Moved(None, known[id(row)]) for row in matching.come]
    return sorted(found, key=lambda one: -max(group.us for group in one.groups))


# Panels ------------------------------------------------------------------------------------------


def _roofline(
    changes: Sequence[Moved], runs: Sequence[RunData], size: Area, whole: float, *, below: bool
) -> model.Panel:
    every = [group for one in changes for group in one.groups]
    rooflines = [run.manifest.roofline for run in runs]
    panel, unit = bubbles.roofline_panel(every, rooflines[-1], size, below=below)
    names = bubbles.precisions(every)
    bubbles.explain_area(panel, size, whole, in_time=True)
    bubbles.draw_roofs(panel, rooflines[-1], names, unit)
    devices = [run.manifest.device.name for run in runs]
    if devices[0] != devices[1]:
        bubbles.draw_roofs(panel, rooflines[0], names, unit, theme().roofs[1], "before: ")
    ends = [[bubbles.place(group, unit) for group in one.groups] for one in changes]
    _draw(panel, changes, ends, size, NAMED)
    return panel


def _strip(
    changes: Sequence[Moved], runs: Sequence[RunData], size: Area, *, under: bool
) -> model.Panel:
    every = [group for one in changes for group in one.groups]
    panel = bubbles.strip_panel(every, runs[-1].manifest.roofline, size, under)
    arrows = [[bubbles.reached(group) for group in one.groups] for one in changes]
    places = bubbles.beside_each_other(panel, [one.shown for one in changes], size, arrows)
    ends = [[(x, y) for x in xs] for xs, (_, y) in zip(arrows, places, strict=True)]
    _draw(panel, changes, ends, size, bubbles.NAMED_BELOW)
    return panel


def _draw(
    panel: model.Panel,
    changes: Sequence[Moved],
    ends: Sequence[Sequence[model.DataPoint]],
    size: Area,
    most: int,
) -> None:
    """Bubbles and arrows. What changed most has a label; those in a pile have one together."""
    for order, (change, points) in enumerate(zip(changes, ends, strict=True)):
        if change.before:
            mark = bubbles.bubble(change.before, points[0], size, order, named=False, hollow=True)
            panel.marks.append(mark)
        if change.after:
            mark = bubbles.bubble(change.after, points[-1], size, order, named=order < NAMED)
            panel.marks.append(replace(mark, z=mark.z + 1))
        else:
            ink, across = programs.colour(change.shown.binds), size.diameter(change.shown.us)
            look = (ink, "x", min(6.0, across))
            panel.marks.append(model.Marks(points, *look, edge=1.2, z=6, around=-1))
        # From middle to middle: bubbles often overlap.
        if len(points) == 2 and (line := panel.arrow(*points)):
            panel.lines.append(model.Line(line, theme().ink, 1.1, z=7))
    text = {id(one.shown): one.text for one in changes}
    placed = [(one.shown, points[-1]) for one, points in zip(changes, ends, strict=True)]
    moved = [pair for pair, one in zip(placed, changes, strict=True) if one.changed] or placed
    panel.labels += bubbles.labels(panel, moved, size, most, lambda group: text[id(group)])


KIND: Final = model.Kind(
    "changes",
    9,
    make,
    "changes",
    "Draw two runs of a program, before and after, with an arrow for each group.",
)
