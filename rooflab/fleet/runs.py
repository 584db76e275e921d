"""The runs of a fleet: one plan, measured on many devices. Reads them and finds who is slow.

A fleet is a folder with ``members/<name>/``, each a run. ``<name>.2``, ``<name>.3`` are repeats of
the member in processes of their own; ``<name>.together`` and ``<name>.with-<device>`` are those of
later phases, beside others. Every point accuses a resource: the one that limits it on most
members. Devices of different names are not compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import exp, inf, isfinite, log
from pathlib import Path
from statistics import fmean, median
from typing import Final, NamedTuple

from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.outliers import (
    THRESHOLD_PERCENT,
    Finding,
    Process,
    Rating,
    Time,
    judge,
    others_medians,
)
from rooflab.model.diagnosis import LAUNCH, LAUNCH_SHARE
from rooflab.model.measurement import POSSIBLE_US, Measurement
from rooflab.model.problem import D2H, DRAM, H2D
from rooflab.model.roofline import COMPUTE
from rooflab.runs.manifest import MANIFEST, Manifest, clean
from rooflab.runs.store import Run, load

MEMBERS: Final = "members"
L2: Final = "l2"
PCIE: Final = "pcie"
OTHER: Final = "other"
KINDS: Final = (COMPUTE, DRAM, L2, PCIE, LAUNCH)
"""The kinds of resources, in the order of output; others follow."""

_REPEAT: Final = re.compile(r"(.+)\.([2-9]|[1-9][0-9]{1,5})")
_PHASE: Final = re.compile(r"(.+)\.(together|with-[A-Za-z0-9._-]+)")
_MENTIONED: Final = 3

_Point = tuple[Hashable, ...]
"""Name of the device, then the key of the row."""


# Reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One device of a fleet: its runs, the first process first, and what is missing of them.

    ``beside`` has those of later phases, by phase.
    """

    name: str
    runs: tuple[Run, ...]
    missing: tuple[str, ...] = ()
    beside: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Fleet:
    """All members, by name."""

    path: Path
    members: tuple[Member, ...]

    def __repr__(self) -> str:
        """One line."""
        return f"<rooflab.Fleet {self.path}: {len(self.members)} members>"

    @property
    def remarks(self) -> list[str]:
        """What is missing, a line each: ``gpu-b: 3 of 12 points are measured``."""
        return [f"{member.name}: {text}" for member in self.members for text in member.missing]


def load_fleet(folder: Path, expected: Iterable[str] = ()) -> Fleet:
    """Read all runs of a fleet. What cannot be read is listed, it is not an error.

    ``expected`` are names of members that must be there, or they are listed. Raises ``UsageError``
    if the folder has no members.
    """
    try:
        found = sorted(path for path in (folder / MEMBERS).iterdir() if path.is_dir())
    except (OSError, ValueError) as error:
        raise UsageError(
            f"no member of {str(folder)[:200]} has measured anything (it has no {MEMBERS}/)"
        ) from error
    paths: dict[str, list[tuple[int, Path]]] = {clean(name): [] for name in expected}
    later: dict[str, dict[str, Path]] = {}
    for path in found:
        name, number, phase = parsed(path.name)
        if phase:
            later.setdefault(name, {})[phase] = path
        else:
            paths.setdefault(name, []).append((number, path))
    if not paths:
        raise UsageError(f"{str(folder)[:200]}/{MEMBERS} has no runs: nothing was measured")
    members = [_member(name, of) for name, of in sorted(paths.items())]
    complete = [_with_phases(one, later.get(one.name, {})) for one in _completed(members)]
    return Fleet(folder, tuple(complete))


def parsed(folder: str) -> tuple[str, int, str]:
    """The member, the number of the process, and a later phase, from the name of a folder."""
    if match := _PHASE.fullmatch(folder):
        return clean(match[1]), 1, match[2]
    match = _REPEAT.fullmatch(folder)
    return (clean(match[1]), int(match[2]), "") if match else (clean(folder), 1, "")


def versions(manifest: Manifest) -> dict[str, str]:
    """Of everything that a run names, and of the driver."""
    driver = manifest.device.facts.get("driver_version")
    return manifest.versions | ({"driver": str(driver.value)} if driver else {})


def differing_versions(manifests: Iterable[Manifest]) -> dict[str, str]:
    """What differs in version, and how often: ``driver``, ``570.1 on 7, 565.2 on 1``."""
    found: dict[str, Counter[str]] = {}
    for manifest in manifests:
        for name, version in versions(manifest).items():
            found.setdefault(name, Counter())[version] += 1
    return {
        name: ", ".join(f"{version} on {count}" for version, count in counts.most_common())
        for name, counts in found.items()
        if len(counts) > 1
    }


def _member(name: str, processes: Iterable[tuple[int, Path]]) -> Member:
    """One member, with what its own runs lack."""
    runs, missing = [], []
    for number, path in sorted(processes):
        start = f"process {number}: " if number > 1 else ""
        try:
            run = load(path)
        except (RooflabError, OSError) as error:
            missing.append(start + _why(path, error))
            continue
        runs.append(run)
        missing += [start + text for text in (*run.warnings, *_without_figures(run))]
    return Member(name, tuple(runs), tuple(missing))


def _with_phases(member: Member, paths: Mapping[str, Path]) -> Member:
    """The member with the runs of later phases, and what they lack."""
    beside, missing = {}, list(member.missing)
    for phase, path in sorted(paths.items()):
        start = f"{phase.replace('-', ' ', 1)}: "
        try:
            beside[phase] = load(path)
        except (RooflabError, OSError) as error:
            missing.append(start + _why(path, error))
        else:
            missing += [start + text for text in beside[phase].warnings]
    return replace(member, missing=tuple(missing), beside=beside)


def _why(path: Path, error: Exception) -> str:
    there = (path / MANIFEST).exists()
    return clean(str(error)) if there else f"nothing was measured (no {MANIFEST})"


def _without_figures(run: Run) -> Iterator[str]:
    """A line for each status other than ok, with the first reason."""
    rows: dict[str, list[Measurement]] = {}
    for row in run.measurements:
        if row.status != "ok":
            rows.setdefault(row.status, []).append(row)
    for status, group in rows.items():
        reason = f": {group[0].reason}" if group[0].reason else ""
        yield f"{len(group)} point{'s are' if len(group) != 1 else ' is'} {status}{reason}"


def _completed(members: Sequence[Member]) -> Iterator[Member]:
    """The members, with what they lack and others have: processes, and points in any process."""
    most = max(len(member.runs) for member in members)
    points = {member.name: _points(member) for member in members}
    everything = {point: row for them in points.values() for point, row in them.items()}
    for member in members:
        missing = list(member.missing)
        if not member.runs:
            missing = missing or ["nothing was measured"]
        elif len(member.runs) < most and not missing:
            missing.append(f"{len(member.runs)} of {most} processes")
        mine = points[member.name]
        devices = {point[0] for point in mine}
        lacking = sorted(
            _label(row)
            for point, row in everything.items()
            if point[0] in devices and point not in mine
        )
        if lacking and not any(run.warnings for run in member.runs):
            more = ", …" if len(lacking) > _MENTIONED else ""
            missing.append(f"without {', '.join(lacking[:_MENTIONED])}{more}")
        yield Member(member.name, member.runs, tuple(missing))


def _label(row: Measurement) -> str:
    return f"{row.kernel} {row.problem.workload} {row.problem.precision} {row.problem.size}"


def _points(member: Member) -> dict[_Point, Measurement]:
    """All rows of a member by point, with any status."""
    return {point_of(run, row): row for run in member.runs for row in run.measurements}


# Points and resources ----------------------------------------------------------------------------


class Resource(NamedTuple):
    """What limits a point. ``kind`` is one of KINDS, or another link.

    ``precision`` is that of compute; ``device`` is empty if all members have the same.
    """

    kind: str
    precision: str = ""
    device: str = ""


def point_of(run: Run, row: Measurement) -> _Point:
    """What has a time on every member: the name of the device, and the key of the row."""
    return (run.manifest.device.name, *row.key)


def accused(row: Measurement) -> Resource:
    """The resource that a row accuses if it is slow."""
    launch, time = row.launch_us or 0.0, row.time_us or inf
    bound = row.bound.removesuffix("_pageable").removesuffix("_both")
    if isfinite(launch) and launch >= LAUNCH_SHARE * time:
        return Resource(LAUNCH)
    if bound == COMPUTE:
        return Resource(COMPUTE, row.problem.precision)
    if bound == DRAM and "l2_resident" in row.flag_names:
        return Resource(L2)
    return Resource(PCIE if bound in (H2D, D2H) else bound or OTHER)


def resources(fleet: Fleet) -> dict[_Point, Resource]:
    """The resource of each point, in order of output: the one that most of its rows accuse."""
    votes: dict[_Point, Counter[Resource]] = {}
    for run, row in _rows(fleet.members):
        votes.setdefault(point_of(run, row), Counter())[accused(row)] += 1
    several = len({point[0] for point in votes}) > 1
    found = {
        point: min(counts, key=lambda one: (-counts[one], one))._replace(
            device=str(point[0]) if several else ""
        )
        for point, counts in votes.items()
    }
    return dict(sorted(found.items(), key=lambda item: _place(item[1])))


def _place(resource: Resource) -> tuple[str, int, str, str]:
    kind = resource.kind
    order = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return (resource.device, order, kind, resource.precision)


def _rows(members: Iterable[Member]) -> Iterator[tuple[Run, Measurement]]:
    """Every row with a possible time."""
    low, high = POSSIBLE_US
    for run in (run for member in members for run in member.runs):
        yield from ((run, row) for row in run.ok if low < (row.time_us or 0) < high)


def processes(member: Member) -> list[Process]:
    """The times of each run of a member, by point. If a run has a point twice, the last counts."""
    return [
        {point_of(run, row): Time(row.time_us, row.time_lo_us, row.time_hi_us) for row in run.ok}
        for run in member.runs
    ]


# Levels ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """Figures of one member on one resource; None is unknown.

    Times and speeds are geometric means over the points, clock (counted on the device), power and
    temperature are medians.
    """

    time_us: float | None = None
    roof_percent: float | None = None
    tflops: float | None = None
    gbps: float | None = None
    sm_mhz: float | None = None
    power_w: float | None = None
    temp_c: float | None = None


def _geometric(values: Iterable[float]) -> float:
    return exp(fmean(log(value) for value in values))


_MEANS: Final[dict[str, tuple[float, Callable[[Iterable[float]], float]]]] = {
    "time_us": (POSSIBLE_US[1], _geometric),
    "roof_percent": (1e4, _geometric),
    "tflops": (1e6, _geometric),
    "gbps": (1e6, _geometric),
    "sm_mhz": (1e5, median),
    "power_w": (1e5, median),
    "temp_c": (1e3, median),
}
"""Of each figure the largest possible value, and its mean over points."""


def _level(rows: Mapping[_Point, Sequence[Measurement]]) -> Averages:
    return Averages(**{name: _figure(name, rows) for name in _MEANS})


def _figure(name: str, rows: Mapping[_Point, Sequence[Measurement]]) -> float | None:
    """The mean over the points of the median over the processes; impossible values do not count."""
    most, mean = _MEANS[name]
    columns = ([getattr(row, name) or 0.0 for row in group] for group in rows.values())
    possible = ([value for value in column if 0 < value < most] for column in columns)
    points = [median(column) for column in possible if column]
    return mean(points) if points else None


def _medians(levels: Mapping[str, Averages]) -> dict[str, Averages]:
    """For each member the medians of the others' levels."""
    found = {}
    for figure in (one.name for one in fields(Averages)):
        known = {name: getattr(level, figure) for name, level in levels.items()}
        found[figure] = others_medians({name: v for name, v in known.items() if v is not None})
    return {name: Averages(**{f: of.get(name) for f, of in found.items()}) for name in levels}


# The verdict -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """One member on one resource: its finding, its figures, and the medians of the others'."""

    resource: Resource
    finding: Finding
    level: Averages
    others: Averages

    @property
    def member(self) -> str:
        """The name of the member."""
        return self.finding.member


@dataclass(frozen=True, slots=True)
class PointFinding:
    """One member on one point; ``row`` is one of its rows."""

    resource: Resource
    finding: Finding
    row: Measurement


@dataclass(frozen=True)
class Assessment:
    """The verdict on a fleet: by resource, in order of output, the slowest member first."""

    fleet: Fleet
    threshold_percent: float
    standings: tuple[Standing, ...]
    spots: tuple[PointFinding, ...]
    resources: tuple[Resource, ...]

    @property
    def outliers(self) -> list[Standing]:
        """The accused: slow ones, then fast ones, the largest difference first."""
        found = [one for one in self.standings if one.finding.outlier]
        return sorted(found, key=lambda one: _rank(one.finding))

    @property
    def outlying_spots(self) -> list[PointFinding]:
        """Accused on one point, though not the same on its resource; the largest first."""
        known = {(s.member, s.resource, s.finding.verdict) for s in self.outliers}
        found = [
            spot
            for spot in self.spots
            if spot.finding.outlier
            and (spot.finding.member, spot.resource, spot.finding.verdict) not in known
        ]
        return sorted(found, key=lambda spot: _rank(spot.finding))

    @property
    def undecided(self) -> list[Standing]:
        """The members that may be slow or fast, the largest difference first."""
        found = [
            one
            for one in self.standings
            if one.finding.verdict == Rating.UNDECIDED and one.finding.difference is not None
        ]
        return sorted(found, key=lambda one: _rank(one.finding))


def _rank(finding: Finding) -> tuple[bool, float, str]:
    difference = finding.difference or 0.0
    return (finding.verdict == Rating.FAST, -abs(difference), finding.member)


def assess(fleet: Fleet, threshold_percent: float = THRESHOLD_PERCENT) -> Assessment:
    """Judge all members of a fleet; ``threshold_percent`` is the least difference of an outlier.

    Raises ``UsageError`` if no member has a row with status ok, or the threshold makes no sense.
    """
    if not 0 <= threshold_percent < inf:
        raise UsageError(f"the threshold cannot be {threshold_percent:g}: give 0 or more, in %")
    of = resources(fleet)
    if not of:
        raise UsageError(f"{str(fleet.path)[:200]} has no row with status ok: nothing to compare")
    found = judge({m.name: processes(m) for m in fleet.members}, of, threshold_percent)
    rows = {member.name: _by_point(member) for member in fleet.members}
    order = tuple(dict.fromkeys(of.values()))
    standings = _standings(found.resources, of, rows)
    ranked = sorted(standings, key=lambda one: (order.index(one.resource), _slowest(one.finding)))
    spots = tuple(_spots(found.points, of, rows))
    return Assessment(fleet, threshold_percent, tuple(ranked), spots, order)


def _slowest(finding: Finding) -> tuple[float, str]:
    return (-(finding.difference or 0.0), finding.member)


def _by_point(member: Member) -> dict[_Point, list[Measurement]]:
    found: dict[_Point, list[Measurement]] = {}
    for run, row in _rows([member]):
        found.setdefault(point_of(run, row), []).append(row)
    return found


_RowsOf = Mapping[str, Mapping[_Point, list[Measurement]]]
"""Rows by member and point."""


def _standings(
    findings: Iterable[Finding], of: Mapping[_Point, Resource], rows: _RowsOf
) -> Iterator[Standing]:
    """Each finding with its figures."""
    by_resource: dict[Resource, list[Finding]] = {}
    for finding in findings:
        if isinstance(finding.subject, Resource):
            by_resource.setdefault(finding.subject, []).append(finding)
    for resource, group in by_resource.items():
        levels = {
            one.member: _level({p: r for p, r in rows[one.member].items() if of[p] == resource})
            for one in group
        }
        others = _medians(levels)
        for one in group:
            yield Standing(resource, one, levels[one.member], others[one.member])


def _spots(
    findings: Iterable[Finding], of: Mapping[_Point, Resource], rows: _RowsOf
) -> Iterator[PointFinding]:
    for finding in findings:
        point = finding.subject
        if isinstance(point, tuple):
            yield PointFinding(of[point], finding, rows[finding.member][point][-1])
