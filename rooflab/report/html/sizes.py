"""Throughput, time and power against the size as SVG: a panel per precision."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from rooflab.model.dtypes import PRECISIONS
from rooflab.model.measurement import Measurement
from rooflab.report.html import panel, scale
from rooflab.report.html.markup import Markup
from rooflab.report.html.panel import BOTTOM, LEFT, RIGHT, TOP, Spot
from rooflab.report.html.points import Content, Entry, known, possible
from rooflab.report.text import LOW_INTENSITY


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is drawn against the size, with the title of its axis."""

    axis: str
    value: Callable[[Measurement], float | None]


def _scaled(value: float | None, unit: float) -> float | None:
    return value * unit if value is not None and possible(value) else None


FLOPS: Final = Quantity("FLOP/s", lambda row: _scaled(row.tflops, 1e12))
BYTES: Final = Quantity("byte/s", lambda row: _scaled(row.gbps, 1e9))
TIME: Final = Quantity("Time (µs)", lambda row: row.time_us)
POWER: Final = Quantity("Power (W)", lambda row: _scaled(row.power_w, 1))


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
    """The rows of each panel: a precision, in the device's memory or in the host's."""
    for precision in PRECISIONS:
        for streamed, where in ((False, ""), (True, ", operands in host memory")):
            found = [
                entry
                for entry in content.measured
                if known(row := entry.row)
                and (row.problem.precision, row.problem.streamed) == (precision, streamed)
            ]
            if found:
                yield PRECISIONS[precision].title + where, found


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


def _draw(content: Content, title: str, quantity: Quantity, entries: Sequence[Entry]) -> Markup:
    axis, across = places(entries)
    spots = [
        Spot(entry, across(entry.row), value)
        for entry in entries
        if (value := quantity.value(entry.row))
    ]
    scales = (
        scale.around((spot.x for spot in spots), LEFT, RIGHT),
        scale.around((spot.y for spot in spots), BOTTOM, TOP),
    )
    return panel.draw(
        title,
        (axis, quantity.axis),
        scales,
        _lines(content, spots, scales) if axis == "Size" else (),
        (panel.point(content, spot, scales) for spot in spots),
    )


def _lines(
    content: Content, spots: Sequence[Spot], scales: tuple[scale.Log, scale.Log]
) -> Iterator[Markup]:
    """A line through the sizes of one run, kernel and settings."""
    families: dict[object, list[Spot]] = {}
    for spot in spots:
        row = spot.entry.row
        key = (spot.entry.run, row.problem.workload, row.kernel, row.problem.about)
        families.setdefault(key, []).append(spot)
    for family in families.values():
        ordered = sorted(family, key=lambda spot: spot.x)
        kind = content.kernel_class(ordered[0].entry.row.kernel)
        ids = " ".join(spot.entry.id for spot in ordered)
        pixels = [(scales[0](spot.x), scales[1](spot.y)) for spot in ordered]
        if len(pixels) > 1:
            yield panel.line(pixels, class_=f"series {kind}", data_rows=ids)
