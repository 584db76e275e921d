"""What neighbours cost: the times of a member beside others over its times alone. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import expm1, log, sqrt
from statistics import fmean, median

from rooflab.fleet.outliers import RESOLUTION, pooled, t_975
from rooflab.fleet.runs import Fleet, Resource, Rows, of_points, resources, timed
from rooflab.model.measurement import Measurement

_Pairs = Sequence[tuple[Sequence[Measurement], Measurement]]
"""Of each point the rows alone, and the one beside others."""


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
    found = []
    for resource, points in resources(fleet).items():
        alone = [[of_points(timed(run), points) for run in one.runs] for one in fleet.members]
        noise = pooled(map(_means, alone))
        for member, before in zip(fleet.members, alone, strict=True):
            for phase, run in member.beside.items():
                beside = of_points(timed(run), points)
                if there := [point for point in beside if any(point in rows for rows in before)]:
                    pairs = [([r[p] for r in before if p in r], beside[p]) for p in there]
                    found.append(_cost(member.name, phase, resource, pairs, noise, len(before)))
    return sorted(found, key=lambda one: one.phase)


def _means(processes: Sequence[Rows]) -> list[float]:
    """The mean logarithm of the times of each process, over the points that all have."""
    shared = set.intersection(*map(set, processes)) if processes else set()
    return [fmean(log(rows[p].time_us or 1) for p in shared) for rows in processes if shared]


def _cost(
    member: str,
    phase: str,
    resource: Resource,
    pairs: _Pairs,
    noise: tuple[float, float] | None,
    processes: int,
) -> Cost:
    times = [(median(row.time_us or 1 for row in alone), row.time_us or 1) for alone, row in pairs]
    difference = fmean(log(beside) - log(alone) for alone, beside in times)
    low = high = None
    if noise is not None:
        half = t_975(noise[1]) * max(noise[0], RESOLUTION) * sqrt(1 + 1 / processes)
        low, high = expm1(difference - half), expm1(difference + half)
    sensors = (*_sensor("sm_mhz", pairs), *_sensor("power_w", pairs))
    return Cost(member, phase, resource, len(pairs), expm1(difference), low, high, *sensors)


def _sensor(name: str, pairs: _Pairs) -> tuple[float | None, float | None]:
    """The median of a sensor alone, and beside others, over the points that have both."""
    known = [
        (median(values), value)
        for alone, row in pairs
        if (values := [v for one in alone if (v := getattr(one, name))])
        and (value := getattr(row, name))
    ]
    return (median(a for a, _ in known), median(b for _, b in known)) if known else (None, None)
