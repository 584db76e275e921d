"""Throughput, time and power against the size as SVG: a panel per precision."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import ProblemRecord
from rooflab.report.html import panel, scale
from rooflab.report.html.labels import Anchor, Label, Labels, Pixel, brief, stacked
from rooflab.report.html.markup import Markup
from rooflab.report.html.panel import BOTTOM, LEFT, RIGHT, TOP, Spot
from rooflab.report.html.points import Content, Entry, possible
from rooflab.report.html.roofs import Roof, roofs
from rooflab.report.html.scale import Scale
from rooflab.report.text import LOW_INTENSITY


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is drawn against the size, with the title of its axis."""

    axis: str
    value: Callable[[Measurement], float | None]
    amount: Callable[[Measurement], float | None] = lambda row: None
    """Per second at the roof it is ``amount`` over the least seconds; None has no roof."""
    axis_of: Callable[[Iterable[float], float, float], scale.Scale] = scale.around


def _scaled(value: float | None, unit: float) -> float | None:
    return value * unit if value is not None and possible(value) else None


FLOPS: Final = Quantity("FLOP/s", lambda row: _scaled(row.tflops, 1e12), lambda row: row.flops)
BYTES: Final = Quantity("byte/s", lambda row: _scaled(row.gbps, 1e9), lambda row: row.bytes)
TIME: Final = Quantity("Time (µs)", lambda row: row.time_us)
POWER: Final = Quantity("Power (W)", lambda row: _scaled(row.power_w, 1), axis_of=scale.from_zero)


def throughput(content: Content) -> list[Markup]:
    """FLOP/s, or bytes per second of workloads that move more than they compute."""
    return [
        _draw(content, title, _rate(entries), entries)
        for title, entries in _groups(content)
        if any(possible(entry.row.gbps) for entry in entries)
    ]


def times(content: Content) -> list[Markup]:
    """Time against size."""
    return [_draw(content, title, TIME, entries) for title, entries in _groups(content)]


def power(content: Content) -> list[Markup]:
    """Mean power of the kernel, where it was measured."""
    return [
        _draw(content, title, POWER, found)
        for title, entries in _groups(content)
        if (found := [entry for entry in entries if possible(entry.row.power_w)])
    ]


def _groups(content: Content) -> Iterator[tuple[str, list[Entry]]]:
    """The rows of each panel: a precision, and where the operands are."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in content.measured:
        problem = entry.row.problem
        found.setdefault((problem.precision, _place(problem)), []).append(entry)
    for precision in PRECISIONS:
        for place in ("", ", operands in host memory", ", several GPUs"):
            if entries := found.get((precision, place)):
                yield PRECISIONS[precision].title + place, entries


def _place(problem: ProblemRecord) -> str:
    if problem.gpus > 1:
        return ", several GPUs"
    return ", operands in host memory" if problem.streamed else ""


def _rate(entries: Sequence[Entry]) -> Quantity:
    rows = [entry.row for entry in entries]
    one = len({row.problem.workload for row in rows}) == 1
    computes = any((row.intensity or 0) >= LOW_INTENSITY for row in rows)
    flops = one and computes and all(possible(row.tflops) for row in rows)
    return FLOPS if flops and not rows[0].problem.streamed else BYTES


def places(entries: Sequence[Entry]) -> tuple[str, Callable[[Measurement], float]]:
    """The x axis: the size if it is one number of one workload, else bytes."""
    rows = [entry.row for entry in entries]
    one = len({row.problem.workload for row in rows}) == 1
    if one and all(
        row.problem.size.isdecimal() and 0 < int(row.problem.size) < 1e18 for row in rows
    ):
        return "Size", lambda row: float(row.problem.size)
    return "Bytes of the operands", lambda row: float(max(row.bytes or 1, 1))


def _series(spot: Spot) -> object:
    """What all points of a line have in common, beside run and kernel: only the size differs."""
    problem = spot.entry.row.problem
    return problem.workload, problem.about


def _draw(content: Content, title: str, quantity: Quantity, entries: Sequence[Entry]) -> Markup:
    axis, across = places(entries)
    spots = [
        Spot(entry, across(entry.row), value)
        for entry in entries
        if (value := quantity.value(entry.row))
    ]
    above = [
        (roof, line)
        for roof, line in _roofs(content, quantity, spots)
        if axis == "Size" or len({y for _, y in line}) == 1
    ]
    heights = [y for _, line in above for _, y in line]
    scales = (
        scale.around((spot.x for spot in spots), LEFT, RIGHT),
        quantity.axis_of([*(spot.y for spot in spots), *heights], BOTTOM, TOP),
    )
    return panel.draw(
        title,
        (axis, quantity.axis),
        scales,
        _draw_roofs(above, spots, scales),
        panel.points(content, spots, scales, _series if axis == "Size" else None),
    )


# Roofs -------------------------------------------------------------------------------------------

PLACES: Final = 20
"""Places of a line where its label may be."""

Line = list[tuple[float, float]]
"""Through places on the axes."""


def _roofs(content: Content, quantity: Quantity, spots: Sequence[Spot]) -> list[tuple[Roof, Line]]:
    """The roofs of each device that are the same for all its rows of one place."""
    entries = [spot.entry for spot in spots]
    if not entries or not entries[0].row.problem.resident:
        return []
    found = []
    for roof in roofs(content, entries[0].row.problem.precision, entries):
        mine = [spot for spot in spots if content.devices[spot.entry.run] == roof.device]
        if line := _roof_line(roof, quantity, mine):
            found.append((roof, line))
    return found


def _roof_line(roof: Roof, quantity: Quantity, spots: Sequence[Spot]) -> Line:
    """Empty if two problems of one place have different roofs, or one has none."""
    line: dict[float, float] = {}
    for spot in spots:
        amount, least_s = quantity.amount(spot.entry.row), roof.least_s(spot.entry.row)
        level = float(f"{amount / least_s:.9g}") if amount and least_s else 0.0
        if not possible(level / 1e9) or level != line.setdefault(spot.x, level):
            return []
    return sorted(line.items())


def _draw_roofs(
    found: Sequence[tuple[Roof, Line]], spots: Sequence[Spot], scales: tuple[Scale, Scale]
) -> Iterator[Markup]:
    across, up = scales
    lines = [(roof, [(across(x), up(y)) for x, y in line]) for roof, line in found]
    lines = [(roof, _thinned(line) if len(line) > 1 else _level(line)) for roof, line in lines]
    labels = Labels([(across(spot.x), up(spot.y)) for spot in spots], [line for _, line in lines])
    for roof, line in lines:
        yield panel.roof(line, roof.provenance)
    for owner in dict.fromkeys(roof.owner for roof, _ in lines):
        mine = [(roof, line) for roof, line in lines if roof.owner == owner]
        mine.sort(key=lambda one: one[1][-1][1])
        yield from labels.place(_names(mine), 0.1)


def _thinned(line: Sequence[Pixel]) -> list[Pixel]:
    """A line without the places that are within a pixel of the one before."""
    kept = list(line[:1])
    for one in line[1:-1]:
        if one[0] - kept[-1][0] >= 1:
            kept.append(one)
    return [*kept, line[-1]]


def _level(line: Sequence[Pixel]) -> list[Pixel]:
    """Across the frame at the height of the only place."""
    return [(LEFT, line[0][1]), (RIGHT, line[0][1])]


def _names(mine: Sequence[tuple[Roof, Sequence[Pixel]]]) -> Iterator[list[Label]]:
    """At places of one device's lines, from right to left."""
    texts = [(_name(roof), roof.provenance) for roof, _ in mine]
    sides: tuple[Anchor, ...] = ("end", "mid", "start")
    places = list(zip(*(line for _, line in mine), strict=True))
    for spots in places[:: -max(1, len(places) // PLACES)]:
        heights = [y for _, y in spots]
        x = spots[0][0]
        yield from stacked(texts, [(x, side) for side in sides], min(heights), max(heights))


def _name(roof: Roof) -> str:
    return f"{brief(roof.owner)} {roof.provenance}" if roof.owner else f"{roof.provenance} roof"
