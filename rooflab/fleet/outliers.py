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
from math import erfc, expm1, fsum, inf, isfinite, log, log1p, pi, sqrt
from statistics import fmean, median
from typing import Any, Final

from rooflab.model.measurement import POSSIBLE_US

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


@dataclass(frozen=True, slots=True)
class Time:
    """A time of one process and its 95 % interval, in microseconds; None is unknown."""

    time_us: float | None
    low_us: float | None = None
    high_us: float | None = None


Process = Mapping[Hashable, Time]
"""The times that one process measured, by point."""


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
    others: int
    points: int
    processes: int

    @property
    def outlier(self) -> bool:
        """Whether the member is slow or fast here."""
        return self.verdict in (Rating.SLOW, Rating.FAST)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Findings for each member and resource, and for each member and point."""

    resources: tuple[Finding, ...]
    points: tuple[Finding, ...]


def judge(
    members: Mapping[str, Sequence[Process]],
    resources: Mapping[Any, Hashable],
    threshold_percent: float = THRESHOLD_PERCENT,
) -> Judgement:
    """Judge every member, given its processes, on every resource and point.

    ``resources`` has the resource of each point; points without one are ignored. Impossible times
    count as missing. Raises ``ValueError`` for a threshold that is negative or not finite.
    """
    if not 0 <= threshold_percent < inf:
        raise ValueError(f"threshold of {threshold_percent} %")
    fleet = _Fleet(members, resources)
    groups: dict[Hashable, list[Hashable]] = {}
    for point, resource in resources.items():
        groups.setdefault(resource, []).append(point)
    alone = {point: [point] for point in resources}
    threshold = log1p(threshold_percent / 100)
    together, apart = (
        _decided(
            (test for name, points in of.items() for test in fleet.tests(name, points)), threshold
        )
        for of in (groups, alone)
    )
    return Judgement(together, apart)


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
    names = sorted(values, key=values.__getitem__)
    ranked = [values[name] for name in names]
    count = len(ranked) - 1
    found = {}
    for i, name in enumerate(names):
        low, high = (ranked[k if k < i else k + 1] for k in ((count - 1) // 2, count // 2))
        found[name] = min(max(ranked[i], low), high)
    return found


# Findings ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Log:
    """The logarithm of a time, or of a ratio of times, and its standard error in one process."""

    value: float
    error: float


def _log(timing: Time) -> _Log | None:
    """None if the time is not possible; an interval that is not possible is ignored."""
    time, low, high = timing.time_us, timing.low_us, timing.high_us
    if not _possible(time) or time is None:
        return None
    if not _possible(low) or not _possible(high) or low is None or high is None:
        return _Log(log(time), 0.0)
    return _Log(log(time), abs(log(high / low)) / 2 / _Z_975)


def _possible(time: float | None) -> bool:
    return time is not None and isfinite(time) and POSSIBLE_US[0] < time < POSSIBLE_US[1]


@dataclass(frozen=True, slots=True)
class _Member:
    """One member on one subject: a difference per process, and its place among all members."""

    processes: list[_Log]
    place: float
    points: int

    @property
    def difference(self) -> float:
        return median(log.value for log in self.processes)

    @property
    def error(self) -> float:
        return median(log.error for log in self.processes)


class _Fleet:
    """The logarithms of all times, and at each point the medians to compare them with."""

    def __init__(
        self, members: Mapping[str, Sequence[Process]], points: Iterable[Hashable]
    ) -> None:
        self._logs = {name: [_logs(process) for process in them] for name, them in members.items()}
        centres = {point: self._centres(point) for point in points}
        self._centre = centres
        self._others = {point: others_medians(times) for point, times in centres.items()}
        self._middle = {point: median(times.values()) for point, times in centres.items() if times}

    def _centres(self, point: Hashable) -> dict[str, float]:
        """The median over the processes of each member that has the point."""
        found = {
            name: [logs[point].value for logs in processes if point in logs]
            for name, processes in self._logs.items()
        }
        return {name: median(values) for name, values in found.items() if values}

    def tests(self, subject: Hashable, points: Sequence[Hashable]) -> Iterator[_Test]:
        """One for each member that has one of the points."""
        compared = {name: self._member(name, points) for name in self._logs}
        members = {name: member for name, member in compared.items() if member}
        noise = _noise(list(members.values()))
        typical = median(len(one.processes) for one in members.values()) if members else 1
        for name in self._logs:
            if member := members.get(name):
                test = _Test(name, subject, member, noise, len(members) - 1, member.difference)
                yield _with_interval(test, noise.used, typical)
            elif count := sum(name in self._centre[point] for point in points):
                nothing = _Member([], 0.0, count)
                yield _Test(
                    name, subject, nothing, Noise(None, None, None, 1.0, known=False), others=0
                )

    def _member(self, name: str, points: Sequence[Hashable]) -> _Member | None:
        """None if nobody else has a point of this member."""
        shared = [point for point in points if name in self._others[point]]
        if not shared:
            return None
        processes = [self._process(name, logs, shared) for logs in self._logs[name]]
        place = fmean(self._centre[point][name] - self._middle[point] for point in shared)
        return _Member([one for one in processes if one], place, len(shared))

    def _process(
        self, name: str, logs: Mapping[Hashable, _Log], points: Sequence[Hashable]
    ) -> _Log | None:
        """The mean difference of one process, None if it has none of the points."""
        there = [point for point in points if point in logs]
        if not there:
            return None
        values = [logs[point].value - self._others[point][name] for point in there]
        return _Log(fmean(values), sqrt(sum(logs[p].error ** 2 for p in there)) / len(there))


def _logs(process: Process) -> dict[Hashable, _Log]:
    found = {point: _log(timing) for point, timing in process.items()}
    return {point: log for point, log in found.items() if log}


def _noise(members: Sequence[_Member]) -> Noise:
    """The noise between processes if it is known well enough, else the spread of the members."""
    repeats = pooled([[log.value for log in member.processes] for member in members])
    between = spread([member.place for member in members]) if len(members) > 2 else None
    degrees = max(1.0, ROBUST_SHARE * (len(members) - 1))
    floor = max(RESOLUTION, median(member.error for member in members) if members else 0.0)
    sd = repeats[0] if repeats else None
    if repeats and (between is None or repeats[1] >= min(ENOUGH, degrees)):
        return Noise(sd, between, max(floor, repeats[0]), repeats[1], known=True)
    return Noise(
        sd, between, None if between is None else max(floor, between), degrees, known=False
    )


@dataclass(frozen=True, slots=True)
class _Test:
    """One member on one subject, as logarithms. None if there is nothing to compare with.

    ``own`` and ``half`` are half of the 95 % intervals of the member's time and of the difference.
    """

    name: str
    subject: Hashable
    member: _Member
    noise: Noise
    others: int
    difference: float | None = None
    own: float = 0.0
    half: float | None = None
    p: float = 1.0

    def margin(self, threshold: float) -> float:
        """What a difference must exceed."""
        return max(threshold, self.noise.used or 0.0)


def _with_interval(test: _Test, noise: float | None, typical: float) -> _Test:
    """The test with interval and p-value, if there is a noise to make them of.

    ``typical`` is the number of processes of the others.
    """
    if noise is None or test.difference is None:
        return test
    own = _own_noise(test.member, noise) * sqrt(_of_median(len(test.member.processes)))
    reference = noise * sqrt(_of_median(typical) * _of_median(test.others))
    error, t = sqrt(own**2 + reference**2), t_975(test.noise.degrees)
    p = p_value(test.difference / error, test.noise.degrees)
    return replace(test, own=t * own, half=t * error, p=p)


def _own_noise(member: _Member, usual: float) -> float:
    """The noise of the fleet, or the member's own if that is larger: it may be unsteady."""
    values = [log.value for log in member.processes]
    own = sqrt(_variance(values)) if len(values) > 1 else 0.0
    return max(usual, own, member.error)


# Verdicts ----------------------------------------------------------------------------------------


def _decided(tests: Iterable[_Test], threshold: float) -> tuple[Finding, ...]:
    """The findings of all tests of one kind; ``threshold`` is a logarithm."""
    tests = list(tests)
    limit = discoveries([test.p for test in tests if test.half is not None])
    verdicts = [_verdict(test, threshold, limit) for test in tests]
    accused = Counter((test.subject, v) for test, (v, _) in zip(tests, verdicts, strict=True))
    return tuple(
        _finding(test, threshold, *_by_majority(test, verdict, reason, accused))
        for test, (verdict, reason) in zip(tests, verdicts, strict=True)
    )


def _verdict(test: _Test, threshold: float, limit: float) -> tuple[Rating, str]:
    """The verdict by the figures of one test, and why if it is UNDECIDED."""
    difference, margin = test.difference, test.margin(threshold)
    if difference is None:
        return Rating.UNDECIDED, ALONE
    if test.half is None:
        return Rating.UNDECIDED, NO_NOISE
    if abs(difference) <= margin:
        return Rating.EVEN, ""
    if abs(difference) - test.half <= margin:
        return Rating.UNDECIDED, UNSURE
    if test.p > limit:
        return Rating.UNDECIDED, NOT_PROVEN
    return Rating.SLOW if difference > 0 else Rating.FAST, ""


def _by_majority(
    test: _Test, verdict: Rating, reason: str, accused: Mapping[tuple[Hashable, Rating], int]
) -> tuple[Rating, str]:
    """UNDECIDED if half of the members are accused of the same."""
    members = test.others + 1
    out = verdict in (Rating.SLOW, Rating.FAST)
    if not out or 2 * accused[test.subject, verdict] < members:
        return verdict, reason
    return Rating.UNDECIDED, TWO if members == 2 else HALF


def _finding(test: _Test, threshold: float, verdict: Rating, reason: str) -> Finding:
    """Everything about one test, as relative times."""
    difference, half = test.difference, test.half
    known = difference is not None and half is not None
    return Finding(
        member=test.name,
        subject=test.subject,
        verdict=verdict,
        reason=reason,
        difference=None if difference is None else expm1(difference),
        low=_relative(difference, half, -1),
        high=_relative(difference, half, 1),
        half=_relative(0.0, test.own, 1) if known else None,
        p=test.p if known else None,
        detectable=_relative(test.margin(threshold), half, 1),
        noise=test.noise,
        others=test.others,
        points=test.member.points,
        processes=len(test.member.processes),
    )


def _relative(logarithm: float | None, half: float | None, sign: int) -> float | None:
    """The end of an interval as a ratio less one: finite, however wide it is."""
    if logarithm is None or half is None:
        return None
    return expm1(min(logarithm + sign * half, 700.0))
