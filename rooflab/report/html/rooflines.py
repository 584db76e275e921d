"""Rooflines as SVG: a panel per precision, with the roofs of each device."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import atan2, degrees
from typing import Final

from rooflab.model.dtypes import PRECISIONS
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.report.html import panel, scale
from rooflab.report.html.markup import Markup, element
from rooflab.report.html.panel import BOTTOM, LEFT, RIGHT, TOP, Spot, place
from rooflab.report.html.points import Content, Entry, known, possible
from rooflab.report.html.scale import Log

PROVENANCES: Final = ("derived", "measured", "observed")

SLOPE: Final = 4.0
"""How far roofs go on left and right of the ridge at least, as a factor."""

SLOWED: Final = 0.98
"""A roof observed below this share of the derived one is drawn."""

_SUFFIXES: Final = ("", "_fma", "_mma")
"""Measured peaks of a precision: of a library, of an FMA loop, of the tensor cores."""


@dataclass(frozen=True, slots=True)
class Roof:
    """A flat roof and a slope of one provenance; one of them may be missing."""

    provenance: str
    owner: str
    compute: Ceiling | None
    bandwidth: Ceiling | None


def spots(entries: Iterable[Entry]) -> list[Spot]:
    """Places of rows in FLOP/byte and FLOP/s. Rows without FLOPs or in host memory have none."""
    return [
        Spot(entry, row.intensity or 1.0, (row.tflops or 0.0) * 1e12, _counted(entry))
        for entry in entries
        if not (row := entry.row).problem.streamed
        and known(row)
        and possible(row.intensity)
        and possible(row.tflops)
    ]


def _counted(entry: Entry) -> float | None:
    """Intensity by the bytes that counters found in device memory."""
    row = entry.row
    value = row.flops / row.dram_bytes if row.flops and row.dram_bytes else None
    return value if possible(value) else None


def figures(content: Content) -> tuple[list[Markup], set[str]]:
    """A panel per precision, and the provenances of their roofs."""
    found = spots(content.measured)
    drawn: list[Markup] = []
    provenances: set[str] = set()
    for precision in PRECISIONS:
        here = [spot for spot in found if spot.entry.row.problem.precision == precision]
        if here:
            above = roofs(content, precision, [spot.entry for spot in here])
            provenances |= {roof.provenance for roof in above}
            drawn.append(_draw(content, precision, here, above))
    return drawn, provenances


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
    scales = axes(here, above)
    return panel.draw(
        PRECISIONS[precision].title,
        ("Intensity (FLOP/byte)", "FLOP/s"),
        scales,
        [
            *(part for roof in above for part in _outline(roof, scales)),
            *_flat_labels(above, scales[1]),
        ],
        (panel.point(content, spot, scales) for spot in here),
    )


# Roofs -------------------------------------------------------------------------------------------


def roofs(content: Content, precision: str, here: Sequence[Entry]) -> list[Roof]:
    """The roofs of each device that has rows here, from its first run."""
    devices: dict[str, list[Entry]] = {}
    for entry in here:
        devices.setdefault(content.devices[entry.run], []).append(entry)
    return [
        roof
        for device, entries in devices.items()
        for roof in _of_device(
            content.runs[entries[0].run].manifest.roofline,
            precision,
            f"{device}, " if len(devices) > 1 else "",
            entries,
        )
    ]


def _of_device(
    roofline: Roofline, precision: str, owner: str, entries: Sequence[Entry]
) -> Iterator[Roof]:
    for provenance in ("derived", "measured"):
        compute = _ceiling(roofline, [precision + end for end in _SUFFIXES], provenance)
        bandwidth = _ceiling(roofline, [roofline.memory], provenance)
        if compute or bandwidth:
            yield Roof(provenance, owner, compute, bandwidth)
    yield from _observed(roofline, precision, owner, entries)


def _observed(
    roofline: Roofline, precision: str, owner: str, entries: Sequence[Entry]
) -> Iterator[Roof]:
    """The derived roof at the lowest clock that was counted, if that is much lower."""
    derived = roofline.compute(precision)
    seen = [
        row.observed_tflops * 1e12
        for entry in entries
        if (row := entry.row).bound == "compute"
        and row.observed_tflops
        and possible(row.observed_tflops)
    ]
    if derived and seen and min(seen) <= SLOWED * derived.value:
        flat = Ceiling("compute", precision, min(seen), "observed", "")
        yield Roof("observed", owner, flat, roofline.bandwidth())


def _ceiling(roofline: Roofline, keys: Sequence[str], provenance: str) -> Ceiling | None:
    """The ceiling of this provenance with the first of the keys that exists."""
    found = {one.key: one for one in roofline.ceilings if one.provenance == provenance}
    return next((found[key] for key in keys if key in found), None)


def _outline(roof: Roof, scales: tuple[Log, Log]) -> Iterator[Markup]:
    """The lines of a roof within the frame, and the value of its slope."""
    across, up = scales
    style = {"class_": f"roof {roof.provenance}", "data_roof": roof.provenance}
    ridge = across.low
    if roof.bandwidth:
        rate = roof.bandwidth.value
        ridge = roof.compute.value / rate if roof.compute else across.high
        start, end = max(across.low, up.low / rate), min(across.high, up.high / rate, ridge)
        if start < end:
            ends = [(across(x), up(x * rate)) for x in (start, end)]
            yield panel.line(ends, **style)
            if roof.provenance != "observed":
                yield _slope_label(roof, roof.bandwidth, ends)
    if _flat(roof, up) and roof.compute and ridge < across.high:
        y = up(roof.compute.value)
        yield panel.line([(across(max(ridge, across.low)), y), (RIGHT, y)], **style)


def _flat(roof: Roof, up: Log) -> bool:
    return roof.compute is not None and up.low < roof.compute.value < up.high


def _slope_label(roof: Roof, ceiling: Ceiling, ends: Sequence[tuple[float, float]]) -> Markup:
    """The bandwidth along the slope, above a derived one and below a measured one."""
    (x0, y0), (x1, y1) = ends
    angle = degrees(atan2(y1 - y0, x1 - x0))
    gap = -4 if roof.provenance == "derived" else 11
    at = f"translate({place((x0 + x1) / 2)},{place((y0 + y1) / 2)}) rotate({place(angle)})"
    # Beside several devices there is no room for more; the table of ceilings has it.
    text = ceiling.amount if roof.owner else f"{ceiling.amount} {roof.provenance}"
    return element("text", text, class_="mid halo", transform=at, y=gap, data_roof=roof.provenance)


def _flat_labels(above: Sequence[Roof], up: Log) -> Iterator[Markup]:
    """The values of each device's flat roofs, one above the other, over the highest."""
    for owner in dict.fromkeys(roof.owner for roof in above):
        flats = [roof for roof in above if roof.owner == owner and _flat(roof, up)]
        flats.sort(key=lambda roof: roof.compute.value if roof.compute else 0.0)
        for i, roof in enumerate(reversed(flats)):
            if roof.compute and flats[-1].compute:
                text = f"{owner}{roof.compute.amount} {roof.provenance}"
                y = place(up(flats[-1].compute.value) - 4 - 11 * (len(flats) - 1 - i))
                kind = roof.provenance
                yield element("text", text, class_="end halo", x=RIGHT, y=y, data_roof=kind)
