"""What neighbours cost: the times of a member beside others over its times alone. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import expm1, log, sqrt

from rooflab.fleet.outliers import RESOLUTION, RowsByPoint, pooled, t_975
from rooflab.fleet.runs import (
    Fleet,
    Member,
    PointKey,
    Resource,
    averages,
    resources,
    timed,
)


@dataclass(frozen=True, slots=True)
class Cost:
    """One member beside others, in one phase, on one resource.

    ``difference`` is relative: 0.03 takes 3 % longer than alone. ``low`` and ``high`` are the ends
    of its 95 % interval, made of the noise between processes; None without repeats. ``sensors`` are
    clock and power, each beside others and alone; None is unknown.
    """

    member: str
    phase: str
    resource: Resource
    points: int
    difference: float
    low: float | None
    high: float | None
    sensors: dict[str, float | None]

    @property
    def proven(self) -> bool:
        """Whether the interval is clear of zero."""
        return self.low is not None and self.high is not None and not self.low <= 0 <= self.high


def costs(fleet: Fleet) -> list[Cost]:
    """By phase, resource and member; empty if the fleet has one phase."""
    alone = {member.name: [timed(run) for run in member.runs] for member in fleet.members}
    found: list[Cost] = []
    for resource, points in resources(fleet).items():
        noise = pooled(_logarithms(processes, points) for processes in alone.values())
        for member in fleet.members:
            found += _of_member(member, alone[member.name], resource, points, noise)
    return sorted(found, key=lambda one: one.phase)


def _of_member(
    member: Member,
    before: Sequence[RowsByPoint],
    resource: Resource,
    points: Sequence[PointKey],
    noise: tuple[float, float] | None,
) -> Iterator[Cost]:
    for phase, run in member.beside.items():
        rows = timed(run)
        there = [p for p in points if p in rows and any(p in one for one in before)]
        if not there:
            continue
        alone, beside = averages(before, there), averages([rows], there)
        change = log(beside["time_us"] / alone["time_us"])
        low = high = None
        if noise:
            half = t_975(noise[1]) * max(noise[0], RESOLUTION) * sqrt(1 + 1 / len(before))
            low, high = expm1(change - half), expm1(change + half)
        sensors = {
            "mhz": beside.get("sm_mhz"),
            "alone_mhz": alone.get("sm_mhz"),
            "watts": beside.get("power_w"),
            "alone_w": alone.get("power_w"),
        }
        yield Cost(member.name, phase, resource, len(there), expm1(change), low, high, sensors)


def _logarithms(processes: Sequence[RowsByPoint], points: Sequence[PointKey]) -> list[float]:
    """Of the mean time of each process, over the points that all have."""
    shared = [point for point in points if all(point in rows for rows in processes)]
    return [log(averages([rows], shared)["time_us"]) for rows in processes if shared]
