"""Which member of a fleet is slow or fast, and by how much? Pure.

Members measure the same points, each in one or more fresh processes. All sums are of logarithms of
times, so differences are relative. A **subject** is what is judged: one point, or all points of one
resource. Of a subject

difference  of a member: the mean over the points of the log of its time over the median of the
            others' times (leave-one-out). Of an even number of others the nearer of the two middle
            ones counts: between them, nobody can say which side is odd. A member's time is the
            median of its processes.
noise       the standard deviation between processes of one member (A/A), from members with
            repeats. Without enough repeats it is unknown; then the spread of the members is used,
            which is not smaller.
interval    95 %, by Student's t with the noise of the member and of the median.

A member is SLOW or FAST if its interval is clear of the others by more than the noise and by more
than the threshold, and its p-value is among those that hold false discoveries to 5 % of all
subjects of one kind (Benjamini & Hochberg, J. R. Stat. Soc. B 57(1), 1995). It is UNDECIDED if that
holds for half of the members at once, as it does for two members that differ, or if it lies beyond
noise and threshold but its interval does not. Otherwise it is EVEN.

The spread of members is the median absolute deviation, with factors for few values after Croux &
Rousseeuw, "Time-efficient algorithms for two highly robust estimators of scale", COMPSTAT 1992.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import erfc, expm1, fsum, log, log1p, pi, sqrt
from statistics import fmean, median, median_high, median_low
from typing import Any, Final, NamedTuple

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement, is_possible

THRESHOLD_PERCENT: Final = 1.0
"""Smaller differences are never an outlier's."""

FALSE_DISCOVERIES: Final = 0.05
"""Most of the accused members that are expected to be innocent."""

ENOUGH: Final = 5.0
"""Degrees of freedom from which on the noise between processes is known well enough."""

ROBUST_FROM: Final = 8
"""Members with repeats from which on their median variance is used, else their mean variance."""

ROBUST_SHARE: Final = 0.37
"""Degrees of freedom of a median of deviations, over those of a standard deviation."""

RESOLUTION: Final = 1e-6
"""Smallest relative noise that is believed: exact times are those of a simulated clock."""

_Z_975: Final = 1.959964
_GAUSSIAN: Final = 1.4826
_FEW: Final = (1.196, 1.495, 1.363, 1.206, 1.200, 1.140, 1.129, 1.107)
"""Factors of the median absolute deviation of 2 to 9 values."""

TWO: Final = "two members have no majority, so either may be odd"
HALF: Final = "half of the members differ from the other half: there is no majority"
UNSURE: Final = "the interval is too wide"
NOT_PROVEN: Final = "not significant after correction for the number of tests"
NO_NOISE: Final = "the noise between processes is unknown (use --repeats 3)"
ALONE: Final = "no other member has measured it"


class Rating(StrEnum):
    """The result for a member and a subject."""

    SLOW = "SLOW"
    FAST = "FAST"
    UNDECIDED = "UNDECIDED"
    EVEN = "EVEN"


OUT: Final = (Rating.SLOW, Rating.FAST)


RowsByPoint = Mapping[Any, Measurement]
"""The rows that one process measured, by point."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What times of a subject vary by, relative; None is unknown.

    ``repeats`` is the standard deviation between processes of one member, ``members`` that between
    members. ``used`` is the one that intervals are made of, with its degrees of freedom, and at
    least the error of one process; it is that of ``repeats`` if ``known``.
    """

    repeats: float | None
    members: float | None
    used: float | None
    degrees: float
    known: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One member and one subject. ``reason`` is why a verdict is UNDECIDED.

    Differences are relative times: 0.03 takes 3 % longer than the median of the others. They are
    None if there are no others, ``low`` and ``high`` also if there is no noise to make them of.
    ``half`` is half of the 95 % interval of the member's own time, ``detectable`` the least
    difference whose interval would be clear. ``others`` counts members.
    """

    member: str
    subject: Hashable
    verdict: Rating
    reason: str = ""
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    half: float | None = None
    p: float | None = None
    detectable: float | None = None
    noise: Noise
    others: int = 0
    points: int
    processes: int = 0

    @property
    def outlier(self) -> bool:
        """Whether the member is slow or fast here."""
        return self.verdict in OUT


class Judgement(NamedTuple):
    """Findings for each member and resource, and for each member and point."""

    resources: tuple[Finding, ...]
    points: tuple[Finding, ...]


def judge(
    members: Mapping[str, Sequence[RowsByPoint]],
    resources: Mapping[Any, Hashable],
    threshold_percent: float = THRESHOLD_PERCENT,
) -> Judgement:
    """Judge every member, given its processes, on every resource and point.

    ``resources`` has the resource of each point; points without one are ignored. Impossible times
    count as missing.
    """
    fleet = _Logs(members, resources)
    groups = grouped(resources, resources.__getitem__)
    threshold = log1p(threshold_percent / 100)

    def decided(of: Mapping[Hashable, Sequence[Hashable]]) -> tuple[Finding, ...]:
        return _decided(
            [one for subject in of for one in fleet.findings(subject, of[subject], threshold)]
        )

    return Judgement(decided(groups), decided({point: [point] for point in resources}))


# Statistics --------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> float | None:
    """A robust standard deviation of two or more values: the median absolute deviation, scaled."""
    count = len(values)
    if count < 2:
        return None
    middle = median(values)
    few = _FEW[count - 2] if count - 2 < len(_FEW) else count / (count - 0.8)
    return _GAUSSIAN * few * median(abs(value - middle) for value in values)


def pooled(groups: Iterable[Sequence[float]]) -> tuple[float, float] | None:
    """The standard deviation within groups, and its degrees of freedom; None without repeats.

    Of many groups it is that of the median group, so that a few unsteady ones do not matter. The
    median of χ² is Wilson and Hilferty's.
    """
    found = [(_variance(group), len(group) - 1) for group in groups if len(group) > 1]
    if not found:
        return None
    degrees = sum(one for _, one in found)
    if len(found) < ROBUST_FROM:
        return sqrt(sum(value * one for value, one in found) / degrees), degrees
    scaled = median(value / (1 - 2 / (9 * one)) ** 3 for value, one in found)
    return sqrt(scaled), max(1.0, ROBUST_SHARE * degrees)


def _variance(values: Sequence[float]) -> float:
    """Of two values or more. The exact one of Python is slow."""
    mean = fmean(values)
    return fsum((value - mean) ** 2 for value in values) / (len(values) - 1)


def p_value(t: float, degrees: float) -> float:
    """Two-sided, of Student's t, by Wallace's approximation.

    D. L. Wallace, "Bounds on normal approximations to Student's and the chi-square distributions",
    Ann. Math. Stat. 30(4), 1959. It is never far too small: 0.065 for 0.05 at one degree.
    """
    return erfc(_wallace(degrees) * sqrt(degrees * log1p(t * t / degrees)) / sqrt(2))


def t_975(degrees: float) -> float:
    """The 97.5 % point of Student's t, the inverse of ``p_value`` at 0.05."""
    z = _Z_975 / _wallace(degrees)
    return sqrt(degrees * expm1(z * z / degrees))


def _wallace(degrees: float) -> float:
    return (8 * degrees + 1) / (8 * degrees + 3)


def discoveries(p_values: Sequence[float], rate: float = FALSE_DISCOVERIES) -> float:
    """The largest p-value that is a discovery after Benjamini and Hochberg; -1 if none is."""
    count = len(p_values)
    ranked = enumerate(sorted(p_values), 1)
    return max((p for rank, p in ranked if p <= rate * rank / count), default=-1.0)


def _of_median(count: float) -> float:
    """The variance of the median of ``count`` normal values, over that of one."""
    return (pi / 2) / (count + pi / 2 - 1)


def others_medians(values: Mapping[str, float]) -> dict[str, float]:
    """For each name the median of the other values; of two middle ones, the nearer part.

    Empty if there are fewer than two.
    """
    if len(values) < 2:
        return {}
    low, high = median_low(values.values()), median_high(values.values())
    return {name: high if value <= low else low for name, value in values.items()}


# Tests -------------------------------------------------------------------------------------------


class _Log(NamedTuple):
    """The logarithm of a time and its standard error in one process."""

    value: float
    error: float


def _logs(process: RowsByPoint) -> dict[Hashable, _Log]:
    """Without impossible times; of an impossible interval the error is 0."""
    found = {}
    for point, row in process.items():
        low, high = row.time_lo_us, row.time_hi_us
        if is_possible(row.time_us):
            half = abs(log(high / low)) / 2 if is_possible(low) and is_possible(high) else 0.0
            found[point] = _Log(log(row.time_us), half / _Z_975)
    return found


@dataclass(frozen=True, slots=True)
class _Differences:
    """Those of the processes of one member on one subject, as logarithms.

    ``error`` is the standard error in one process, ``place`` the mean difference of the member from
    the median of all.
    """

    values: Sequence[float]
    error: float
    place: float
    points: int


class _Logs:
    """The logarithms of all times, and at each point the medians to compare them with."""

    def __init__(
        self, members: Mapping[str, Sequence[RowsByPoint]], points: Iterable[Hashable]
    ) -> None:
        self._logs = {name: [_logs(process) for process in them] for name, them in members.items()}
        self._centre = {point: self._centres(point) for point in points}
        self._others = {point: others_medians(times) for point, times in self._centre.items()}

    def _centres(self, point: Hashable) -> dict[str, float]:
        """The median over the processes of each member that has the point."""
        found = {
            name: [logs[point].value for logs in processes if point in logs]
            for name, processes in self._logs.items()
        }
        return {name: median(values) for name, values in found.items() if values}

    def findings(
        self, subject: Hashable, points: Sequence[Hashable], threshold: float
    ) -> Iterator[Finding]:
        """One for each member that has one of the points, as if it was the only test."""
        mine = {
            name: [point for point in points if name in self._centre[point]] for name in self._logs
        }
        middle = {p: median(self._centre[p].values()) for p in points if self._centre[p]}
        compared = {
            name: self._differences(name, shared, middle)
            for name, some in mine.items()
            if (shared := [point for point in some if name in self._others[point]])
        }
        noise = _noise(list(compared.values()))
        typical = median(len(one.values) for one in compared.values()) if compared else 1
        for name, some in mine.items():
            alone = Finding(
                member=name,
                subject=subject,
                verdict=Rating.UNDECIDED,
                reason=ALONE,
                noise=Noise(None, None, None, 1.0, known=False),
                points=len(some),
            )
            if name in compared:
                others = len(compared) - 1
                yield _compared(alone, compared[name], noise, others, typical, threshold)
            elif some:
                yield alone

    def _differences(
        self, name: str, points: Sequence[Hashable], middle: Mapping[Hashable, float]
    ) -> _Differences:
        values, errors = [], []
        for logs in self._logs[name]:
            if there := [point for point in points if point in logs]:
                values.append(fmean(logs[p].value - self._others[p][name] for p in there))
                errors.append(sqrt(sum(logs[p].error ** 2 for p in there)) / len(there))
        place = fmean(self._centre[point][name] - middle[point] for point in points)
        return _Differences(values, median(errors), place, len(points))


def _noise(members: Sequence[_Differences]) -> Noise:
    """The noise between processes if it is known well enough, else the spread of the members."""
    repeats = pooled(member.values for member in members)
    between = spread([member.place for member in members]) if len(members) > 2 else None
    degrees = max(1.0, ROBUST_SHARE * (len(members) - 1))
    floor = max(RESOLUTION, median(member.error for member in members) if members else 0.0)
    if repeats and (between is None or repeats[1] >= min(ENOUGH, degrees)):
        return Noise(repeats[0], between, max(floor, repeats[0]), repeats[1], known=True)
    used = None if between is None else max(floor, between)
    return Noise(repeats[0] if repeats else None, between, used, degrees, known=False)


# Verdicts ----------------------------------------------------------------------------------------


def _compared(
    alone: Finding,
    mine: _Differences,
    noise: Noise,
    others: int,
    typical: float,
    threshold: float,
) -> Finding:
    """By one test alone; ``typical`` is the number of processes of the others."""
    values = mine.values
    difference, count = median(values), len(values)
    found = replace(
        alone,
        reason=NO_NOISE,
        difference=_relative(difference),
        noise=noise,
        others=others,
        points=mine.points,
        processes=count,
    )
    if noise.used is None:
        return found
    unsteady = sqrt(_variance(values)) if count > 1 else 0.0
    own = max(noise.used, unsteady, mine.error) * sqrt(_of_median(count))
    error = sqrt(own**2 + noise.used**2 * _of_median(typical) * _of_median(others))
    t, margin = t_975(noise.degrees), max(threshold, noise.used)
    verdict, reason = Rating.SLOW if difference > 0 else Rating.FAST, ""
    if abs(difference) <= margin:
        verdict = Rating.EVEN
    elif abs(difference) - t * error <= margin:
        verdict, reason = Rating.UNDECIDED, UNSURE
    return replace(
        found,
        verdict=verdict,
        reason=reason,
        low=_relative(difference - t * error),
        high=_relative(difference + t * error),
        half=_relative(t * own),
        p=p_value(difference / error, noise.degrees),
        detectable=_relative(margin + t * error),
    )


def _relative(logarithm: float) -> float:
    """A ratio less one: finite, however large it is."""
    return expm1(min(logarithm, 700.0))


def _decided(findings: Sequence[Finding]) -> tuple[Finding, ...]:
    """The findings of all tests of one kind: neither by chance, nor of half of the members."""
    limit = discoveries([one.p for one in findings if one.p is not None])
    proven = [
        replace(one, verdict=Rating.UNDECIDED, reason=NOT_PROVEN)
        if one.outlier and one.p is not None and one.p > limit
        else one
        for one in findings
    ]
    accused = Counter((one.subject, one.verdict) for one in proven)
    return tuple(
        replace(one, verdict=Rating.UNDECIDED, reason=TWO if one.others == 1 else HALF)
        if one.outlier and 2 * accused[one.subject, one.verdict] >= one.others + 1
        else one
        for one in proven
    )
