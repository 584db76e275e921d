"""The roofs of a figure, the roof that limits a point, and why a point may be above it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.figures.model import DataPoint
from rooflab.figures.selection import FigureData, Series, possible
from rooflab.figures.style import theme
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline, extremes
from rooflab.runs.names import competitors
from rooflab.runs.store import RunData

_CACHE_FACTS: Final = ("last_level_cache_bytes", "l2_cache")
"""Sizes of the last-level cache; the first known one is used."""


@dataclass(frozen=True, slots=True)
class DeviceRoof:
    """The roofline of one device, from its ``runs``. Its labels begin with ``owner``."""

    runs: tuple[int, ...]
    roofline: Roofline
    colour: str
    owner: str


def device_roofs(data: FigureData) -> list[DeviceRoof]:
    """One roof per device."""
    runs_of = grouped(range(len(data.runs)), competitors(data.runs).__getitem__)
    return [
        DeviceRoof(
            tuple(runs),
            _of_runs(data, runs),
            theme().roofs[order % len(theme().roofs)],
            f"{device}: " if len(runs_of) > 1 else "",
        )
        for order, (device, runs) in enumerate(runs_of.items())
    ]


def roofs_over(group: Sequence[Series], roofs: Sequence[DeviceRoof]) -> list[DeviceRoof]:
    """The roofs of those devices that have points in ``group``, one panel's series."""
    runs = {series.run for series in group}
    return [roof for roof in roofs if not runs.isdisjoint(roof.runs)]


def _of_runs(data: FigureData, runs: list[int]) -> Roofline:
    """The highest ceilings of a device's runs by provenance, and its observed compute roofs."""
    every = (one for run in runs for one in data.runs[run].manifest.roofline.ceilings)
    kinds = grouped(every, lambda one: (one.kind, one.key, one.provenance)).values()
    best = tuple(max(some, key=lambda one: one.value) for some in kinds)
    roofline = replace(data.runs[runs[0]].manifest.roofline, ceilings=best)
    seen = filter(None, (_observed(row) for run in runs for row in data.rows(run)))
    drawn = (
        one
        for name, some in grouped(seen, lambda one: one.key).items()
        if (top := roofline.compute(name)) and top.provenance == "derived"
        for one in extremes(some, top.value)
    )
    return roofline.with_limits(*drawn)


def _observed(row: Measurement) -> Ceiling | None:
    """Right of the ridge the attainable FLOP/s at a clock are the compute roof at that clock."""
    if row.bound != "compute" or not possible(row.observed_tflops) or not row.sm_mhz:
        return None
    value, clock = (row.observed_tflops or 0) * 1e12, f"{row.sm_mhz:.0f} MHz"
    return Ceiling("compute", row.problem.precision, value, "observed", clock)


def ceilings(roofline: Roofline, kind: str, key: str) -> list[Ceiling]:
    """The ceilings of one kind and key, of every provenance."""
    return [ceiling for ceiling in roofline.ceilings if (ceiling.kind, ceiling.key) == (kind, key)]


@dataclass(frozen=True, slots=True)
class Segment:
    """A ceiling, and the two data points that its line joins."""

    ceiling: Ceiling
    start: DataPoint
    end: DataPoint


@dataclass(frozen=True, slots=True)
class Outline:
    """One device's roof in one panel, in data coordinates; pieces from the highest ceiling down."""

    flats: Sequence[Segment]
    slopes: Sequence[Segment]
    ridge: DataPoint | None


def outline(
    roofline: Roofline, precision: str, x_limits: DataPoint, y_limits: DataPoint, scale: float = 1.0
) -> Outline:
    """Flat roofs, right of the slope of their provenance, and slopes up to the highest of them.

    ``scale`` is the FLOP/s of one unit of y. What is outside of the limits is left out.
    """
    (x_low, x_high), (y_low, y_high) = x_limits, y_limits
    compute = sorted(ceilings(roofline, "compute", precision), key=lambda c: -c.value)
    memory = ceilings(roofline, "bandwidth", roofline.memory)
    used: dict[Ceiling, float] = {}  # the upper end of each slope, in FLOP/s
    flats, slopes = [], []
    for ceiling in compute:
        same = (slope for slope in memory if slope.provenance == ceiling.provenance)
        slope = next(same, roofline.bandwidth())
        start = x_low
        if slope:
            start = max(ceiling.value / slope.value, x_low)
            used.setdefault(slope, ceiling.value)
        y = ceiling.value / scale
        if start < x_high and y_low < y < y_high:
            flats.append(Segment(ceiling, (start, y), (x_high, y)))
    highest = compute[0].value if compute else float("inf")
    for ceiling in sorted(memory, key=lambda c: -c.value):
        per = ceiling.value / scale
        end = min(used.get(ceiling, highest) / ceiling.value, x_high, y_high / per)
        start = max(x_low, y_low / per)
        if start < end:
            slopes.append(Segment(ceiling, (start, start * per), (end, end * per)))
    ridge, top = roofline.ridge(precision), roofline.compute(precision)
    there = ridge and top and x_low < ridge < x_high and y_low < top.value / scale < y_high
    return Outline(flats, slopes, (ridge, top.value / scale) if there and ridge and top else None)


def limit(roofline: Roofline, row: Measurement) -> tuple[Ceiling, float] | None:
    """The ceiling that limits ``row``, and the FLOP/s that it allows; None without a ceiling."""
    compute, bandwidth = roofline.compute(row.problem.precision), roofline.bandwidth()
    limits = [(compute, compute.value)] if compute else []
    if bandwidth and row.intensity:
        limits.append((bandwidth, bandwidth.value * row.intensity))
    return min(limits, key=lambda pair: pair[1], default=None)


MARGIN: Final = 1.005
"""A point above its roof by a larger factor needs a cause: medians have an error of 0.5 %."""


def above_roof_cause(row: Measurement, run: RunData) -> str:
    """Why ``row`` may be above its roof, in a few words; empty if it is not."""
    roofline, facts = run.manifest.roofline, run.manifest.device.facts
    limited = limit(roofline, row)
    if limited is None or not row.tflops:
        return ""
    ceiling, attainable = limited
    ratio = row.tflops * 1e12 / attainable
    if ratio <= MARGIN:
        return ""
    sizes = (facts[name].value for name in _CACHE_FACTS if name in facts)
    cache = next((float(size) for size in sizes if isinstance(size, int | float)), 0.0)
    if ceiling.kind == "bandwidth" and (row.bytes or 0) < cache:
        name = "L2" if "l2_cache" in facts else "cache"
        if row.cache == "warm":
            return f"{name}-resident"
        if ratio <= 2:
            return f"partly {name}-resident"
    tf32 = roofline.compute("tf32")
    if row.problem.precision == "fp32" and ceiling.kind == "compute" and tf32 and ratio > 1.15:
        return "TF32 in use?"
    if ratio > 2:
        return "check the bytes or the clock"
    if ceiling.provenance == "measured":
        noise = ratio <= 1.05
        return "within noise of the measured roof" if noise else "clock above the roof's"
    return "clock above nominal" if ceiling.kind == "compute" else "check the bytes"
