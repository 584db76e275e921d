"""Rooflines as SVG: a panel per precision, with the roofs of each device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import atan2, degrees
from typing import Final

from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import Ceiling
from rooflab.report.html import panel, scale
from rooflab.report.html.labels import HEIGHT, Anchor, Label, Labels, Pixel, brief, stacked
from rooflab.report.html.markup import Markup
from rooflab.report.html.panel import BOTTOM, LEFT, RIGHT, TOP, Spot
from rooflab.report.html.points import Content, Entry, known, possible
from rooflab.report.html.roofs import Roof, roofs
from rooflab.report.html.scale import Log

SLOPE: Final = 4.0
"""How far roofs go on left and right of the ridge at least, as a factor."""


def spots(entries: Iterable[Entry]) -> list[Spot]:
    """Places of rows in FLOP/byte and FLOP/s. Rows without FLOPs or in host memory have none."""
    return [
        Spot(entry, row.intensity or 1.0, (row.tflops or 0.0) * 1e12, _counted(entry))
        for entry in entries
        if (row := entry.row).problem.resident
        and known(row)
        and possible(row.intensity)
        and possible(row.tflops)
    ]


def _counted(entry: Entry) -> float | None:
    """Intensity by the bytes that counters found in device memory."""
    row = entry.row
    value = row.flops / row.dram_bytes if row.flops and row.dram_bytes else None
    return value if possible(value) else None


def figures(content: Content) -> list[Markup]:
    """A panel per precision."""
    found = spots(content.measured)
    drawn: list[Markup] = []
    for precision in PRECISIONS:
        here = [spot for spot in found if spot.entry.row.problem.precision == precision]
        if here:
            above = roofs(content, precision, [spot.entry for spot in here])
            drawn.append(_draw(content, precision, here, above))
    return drawn


def axes(here: Sequence[Spot], above: Sequence[Roof]) -> tuple[Log, Log]:
    """Axes around the points, the ridges and the flat roofs."""
    xs = [x for spot in here for x in (spot.x, spot.counted) if x]
    ys = [spot.y for spot in here]
    for roof in above:
        if roof.compute and possible(roof.compute.value / 1e12):
            ys.append(roof.compute.value)
            if roof.bandwidth and possible(ridge := roof.compute.value / roof.bandwidth.value):
                xs += (ridge / SLOPE, ridge * SLOPE)
    return scale.around(xs, LEFT, RIGHT), scale.around(ys, BOTTOM, TOP)


def _draw(content: Content, precision: str, here: Sequence[Spot], above: Sequence[Roof]) -> Markup:
    scales = across, up = axes(here, above)
    outlines = [(roof, _slope(roof, scales), _flat(roof, scales)) for roof in above]
    lines = [(roof, line) for roof, *both in outlines for line in both if line]
    labels = Labels(
        [(across(x), up(spot.y)) for spot in here for x in (spot.x, spot.counted) if x],
        [line for _, line in lines],
    )
    return panel.draw(
        PRECISIONS[precision].title,
        ("Intensity (FLOP/byte)", "FLOP/s"),
        scales,
        [
            *(panel.roof(line, roof.provenance) for roof, line in lines),
            *_flat_labels(labels, [(roof, flat) for roof, _, flat in outlines if flat]),
            *_slope_labels(labels, [(roof, slope) for roof, slope, _ in outlines if slope]),
        ],
        panel.points(content, here, scales),
    )


# Roofs -------------------------------------------------------------------------------------------

Outline = tuple[Roof, list[Pixel]]
"""A roof, and the ends of a line of it."""


def _slope(roof: Roof, scales: tuple[Log, Log]) -> list[Pixel]:
    """The ends of the slope within the frame."""
    across, up = scales
    if not roof.bandwidth:
        return []
    rate = roof.bandwidth.value
    ridge = roof.compute.value / rate if roof.compute else across.high
    start, end = max(across.low, up.low / rate), min(across.high, up.high / rate, ridge)
    return [(across(x), up(x * rate)) for x in (start, end)] if start < end else []


def _flat(roof: Roof, scales: tuple[Log, Log]) -> list[Pixel]:
    """The ends of the flat roof within the frame."""
    across, up = scales
    if not roof.compute or not up.low < roof.compute.value < up.high:
        return []
    ridge = roof.compute.value / roof.bandwidth.value if roof.bandwidth else across.low
    y = up(roof.compute.value)
    return [(across(max(ridge, across.low)), y), (RIGHT, y)] if ridge < across.high else []


def _flat_labels(labels: Labels, flats: Sequence[Outline]) -> Iterator[Markup]:
    """The values of each device's flat roofs, one above the other."""
    for owner in dict.fromkeys(roof.owner for roof, _ in flats):
        mine = [(roof, line) for roof, line in flats if roof.owner == owner]
        mine.sort(key=lambda one: one[1][0][1])
        (left, top), (_, bottom) = mine[0][1][0], mine[-1][1][0]
        texts = [(_amount(roof), roof.provenance) for roof, _ in mine]
        sides: list[tuple[float, Anchor]] = [(RIGHT, "end"), (left, "start")]
        yield from labels.place(stacked(texts, sides, top, bottom), 0.5)


def _amount(roof: Roof) -> str:
    if not roof.compute:
        return ""
    if roof.owner:
        return f"{brief(roof.owner)} {scale.short(roof.compute.value)} {roof.provenance}"
    at = roof.compute.formula if roof.provenance == "observed" else ""
    return f"{roof.compute.amount} {roof.provenance}{at}"


def _slope_labels(labels: Labels, slopes: Sequence[Outline]) -> Iterator[Markup]:
    """The bandwidth along each slope; that of an observed roof is the derived one's."""
    for roof, ends in slopes:
        if roof.bandwidth and roof.provenance != "observed":
            yield from labels.place(_beside(roof, roof.bandwidth, ends), 0.5)


def _beside(roof: Roof, ceiling: Ceiling, ends: Sequence[Pixel]) -> Iterator[list[Label]]:
    """Along a slope, a derived one's above it and a measured one's below it if there is room."""
    (x0, y0), (x1, y1) = ends
    angle = degrees(atan2(y1 - y0, x1 - x0))
    gaps = (-4, HEIGHT) if roof.provenance == "derived" else (HEIGHT, -4)
    # Beside several devices there is no room for more; the table of ceilings has it.
    text = ceiling.amount if roof.owner else f"{ceiling.amount} {roof.provenance}"
    for gap in gaps:
        for share in (0.5, 0.6, 0.7, 0.8, 0.4, 0.3, 0.2):
            at = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            yield [Label(text, at, "mid", roof.provenance, angle, gap)]
