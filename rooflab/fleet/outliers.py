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
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import erfc, expm1, fsum, inf, isfinite, log, log1p, pi, sqrt
from statistics import fmean, median
from typing import Any, Final, NamedTuple, TypeGuard

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


OUT: Final = (Rating.SLOW, Rating.FAST)


class Time(NamedTuple):
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
        return self.verdict in OUT


class Judgement(NamedTuple):
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
    fleet = _Logs(members, resources)
    groups: dict[Hashable, list[Hashable]] = {}
    for point, resource in resources.items():
        groups.setdefault(resource, []).append(point)
    threshold = log1p(threshold_percent / 100)
    return Judgement(
        *(
            _decided([test for name in of for test in fleet.tests(name, of[name])], threshold)
            for of in (groups, {point: [point] for point in resources})
        )
    )


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


# Tests -------------------------------------------------------------------------------------------


class _Log(NamedTuple):
    """The logarithm of a time, or of a ratio of times, and its standard error in one process."""

    value: float
    error: float


def _logs(process: Process) -> dict[Hashable, _Log]:
    """Without impossible times; of an impossible interval the error is 0."""
    found = {}
    for point, (time, low, high) in process.items():
        if _possible(time):
            half = abs(log(high / low)) / 2 if _possible(low) and _possible(high) else 0.0
            found[point] = _Log(log(time), half / _Z_975)
    return found


def _possible(time: float | None) -> TypeGuard[float]:
    return time is not None and isfinite(time) and POSSIBLE_US[0] < time < POSSIBLE_US[1]


@dataclass(slots=True)
class _Test:
    """One member on one subject, as logarithms.

    ``processes`` are its differences, ``place`` its mean difference from the median of all. ``own``
    and ``half`` are half of the 95 % intervals of its time and of its difference, if there is a
    noise to make them of.
    """

    member: str
    subject: Hashable
    points: int
    processes: Sequence[_Log] = ()
    place: float = 0.0
    others: int = 0
    noise: Noise = Noise(None, None, None, 1.0, known=False)
    own: float = 0.0
    half: float | None = None
    p: float = 1.0

    @property
    def values(self) -> list[float]:
        return [log.value for log in self.processes]

    @property
    def difference(self) -> float | None:
        return median(self.values) if self.processes else None

    @property
    def error(self) -> float:
        return median(log.error for log in self.processes)

    def margin(self, threshold: float) -> float:
        """What a difference must exceed."""
        return max(threshold, self.noise.used or 0.0)

    def add_interval(self, noise: float, typical: float) -> None:
        """Find interval and p-value; ``typical`` is the number of processes of the others."""
        unsteady = sqrt(_variance(self.values)) if len(self.values) > 1 else 0.0
        own = max(noise, unsteady, self.error) * sqrt(_of_median(len(self.values)))
        error = sqrt(own**2 + noise**2 * _of_median(typical) * _of_median(self.others))
        t = t_975(self.noise.degrees)
        self.own, self.half = t * own, t * error
        self.p = p_value((self.difference or 0.0) / error, self.noise.degrees)


class _Logs:
    """The logarithms of all times, and at each point the medians to compare them with."""

    def __init__(
        self, members: Mapping[str, Sequence[Process]], points: Iterable[Hashable]
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

    def tests(self, subject: Hashable, points: Sequence[Hashable]) -> list[_Test]:
        """One for each member that has one of the points."""
        middle = {p: median(self._centre[p].values()) for p in points if self._centre[p]}
        found = []
        for name in self._logs:
            mine = [point for point in points if name in self._centre[point]]
            if shared := [point for point in mine if name in self._others[point]]:
                place = fmean(self._centre[point][name] - middle[point] for point in shared)
                processes = self._differences(name, shared)
                found.append(_Test(name, subject, len(shared), processes, place))
            elif mine:
                found.append(_Test(name, subject, len(mine)))
        compared = [test for test in found if test.processes]
        noise = _noise(compared)
        typical = median(len(test.processes) for test in compared) if compared else 1
        for test in compared:
            test.noise, test.others = noise, len(compared) - 1
            if noise.used is not None:
                test.add_interval(noise.used, typical)
        return found

    def _differences(self, name: str, points: Sequence[Hashable]) -> list[_Log]:
        """The mean difference of each process that has some of the points."""
        found = []
        for logs in self._logs[name]:
            if there := [point for point in points if point in logs]:
                mean = fmean(logs[point].value - self._others[point][name] for point in there)
                error = sqrt(sum(logs[point].error ** 2 for point in there)) / len(there)
                found.append(_Log(mean, error))
        return found


def _noise(tests: Sequence[_Test]) -> Noise:
    """The noise between processes if it is known well enough, else the spread of the members."""
    repeats = pooled(test.values for test in tests)
    between = spread([test.place for test in tests]) if len(tests) > 2 else None
    degrees = max(1.0, ROBUST_SHARE * (len(tests) - 1))
    floor = max(RESOLUTION, median(test.error for test in tests) if tests else 0.0)
    if repeats and (between is None or repeats[1] >= min(ENOUGH, degrees)):
        return Noise(repeats[0], between, max(floor, repeats[0]), repeats[1], known=True)
    used = None if between is None else max(floor, between)
    return Noise(repeats[0] if repeats else None, between, used, degrees, known=False)


# Verdicts ----------------------------------------------------------------------------------------


def _decided(tests: Sequence[_Test], threshold: float) -> tuple[Finding, ...]:
    """The findings of all tests of one kind; ``threshold`` is a logarithm."""
    limit = discoveries([test.p for test in tests if test.half is not None])
    verdicts = [_verdict(test, threshold, limit) for test in tests]
    accused = Counter((test.subject, v) for test, (v, _) in zip(tests, verdicts, strict=True))
    for i, (test, (verdict, _)) in enumerate(zip(tests, verdicts, strict=True)):
        members = test.others + 1
        if verdict in OUT and 2 * accused[test.subject, verdict] >= members:
            verdicts[i] = Rating.UNDECIDED, TWO if members == 2 else HALF
    return tuple(
        _finding(test, threshold, *verdict) for test, verdict in zip(tests, verdicts, strict=True)
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


def _finding(test: _Test, threshold: float, verdict: Rating, reason: str) -> Finding:
    """Everything about one test, as relative times."""
    difference, half = test.difference, test.half
    return Finding(
        member=test.member,
        subject=test.subject,
        verdict=verdict,
        reason=reason,
        difference=_relative(difference, 0.0),
        low=_relative(difference, None if half is None else -half),
        high=_relative(difference, half),
        half=None if half is None else _relative(0.0, test.own),
        p=None if half is None else test.p,
        detectable=_relative(test.margin(threshold), half),
        noise=test.noise,
        others=test.others,
        points=test.points,
        processes=len(test.processes),
    )


def _relative(logarithm: float | None, more: float | None) -> float | None:
    """The sum as a ratio less one: finite, however large it is."""
    if logarithm is None or more is None:
        return None
    return expm1(min(logarithm + more, 700.0))
