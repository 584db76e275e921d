"""What neighbours cost: the times of a member beside others over its times alone. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import expm1, log, sqrt
from statistics import fmean, median

from rooflab.fleet.outliers import RESOLUTION, pooled, t_975
from rooflab.fleet.runs import Fleet, Member, Resource, point_of, resources
from rooflab.model.measurement import POSSIBLE_US, Measurement
from rooflab.runs.store import Run

_Rows = Mapping[Hashable, Measurement]


@dataclass(frozen=True, slots=True)
class Cost:
    """One member beside others, in one phase, on one resource.

    ``difference`` is relative: 0.03 takes 3 % longer than alone. ``low`` and ``high`` are the ends
    of its 95 % interval, made of the noise between processes; None without repeats. Clock and power
    are medians over the points, None if unknown.
    """

    member: str
    phase: str
    resource: Resource
    points: int
    difference: float
    low: float | None
    high: float | None
    alone_mhz: float | None
    mhz: float | None
    alone_w: float | None
    watts: float | None

    @property
    def proven(self) -> bool:
        """Whether the interval is clear of zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def costs(fleet: Fleet) -> list[Cost]:
    """By phase, resource and member; empty if the fleet has one phase."""
    of = resources(fleet)
    found = []
    for resource in dict.fromkeys(of.values()):
        points = {point for point, one in of.items() if one == resource}
        noise = pooled([_processes(member, points) for member in fleet.members])
        for member in fleet.members:
            found += list(_of_member(member, resource, points, noise))
    order = list(dict.fromkeys(of.values()))
    return sorted(found, key=lambda c: (c.phase, order.index(c.resource), c.member))


def _rows(run: Run, points: set[tuple[Hashable, ...]]) -> dict[Hashable, Measurement]:
    low, high = POSSIBLE_US
    rows = {point_of(run, row): row for row in run.ok if low < (row.time_us or 0) < high}
    return {point: row for point, row in rows.items() if point in points}


def _processes(member: Member, points: set[tuple[Hashable, ...]]) -> list[float]:
    """The mean logarithm of the times of each process, over the points that all have."""
    runs = [_rows(run, points) for run in member.runs]
    shared = set.intersection(*(set(rows) for rows in runs)) if runs else set()
    return [fmean(log(rows[p].time_us or 1) for p in shared) for rows in runs] if shared else []


def _of_member(
    member: Member,
    resource: Resource,
    points: set[tuple[Hashable, ...]],
    noise: tuple[float, float] | None,
) -> Iterator[Cost]:
    alone = [_rows(run, points) for run in member.runs]
    for phase, run in member.beside.items():
        beside = _rows(run, points)
        shared = [p for p in beside if any(p in rows for rows in alone)]
        if not shared:
            continue
        before = {p: [rows[p] for rows in alone if p in rows] for p in shared}
        logs = [
            log(beside[p].time_us or 1) - log(median(row.time_us or 1 for row in before[p]))
            for p in shared
        ]
        half = _half(noise, len(alone))
        difference = fmean(logs)
        yield Cost(
            member.name,
            phase,
            resource,
            len(shared),
            expm1(difference),
            None if half is None else expm1(difference - half),
            None if half is None else expm1(difference + half),
            *_change("sm_mhz", before, beside, shared),
            *_change("power_w", before, beside, shared),
        )


def _half(noise: tuple[float, float] | None, processes: int) -> float | None:
    """Half of the interval of a difference between one process and some, as a logarithm."""
    if noise is None:
        return None
    sd, degrees = noise
    return t_975(degrees) * max(sd, RESOLUTION) * sqrt(1 + 1 / processes)


def _change(
    name: str,
    before: Mapping[Hashable, Sequence[Measurement]],
    beside: _Rows,
    shared: Sequence[Hashable],
) -> tuple[float | None, float | None]:
    """The median of a sensor alone, and beside others, over the points that have both."""
    both = [
        (median(known), value)
        for p in shared
        if (known := [v for row in before[p] if (v := getattr(row, name))])
        and (value := getattr(beside[p], name))
    ]
    if not both:
        return None, None
    return median(one for one, _ in both), median(other for _, other in both)
