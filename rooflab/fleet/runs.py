"""The runs of a fleet: one plan, measured on many devices. Reads them and finds who is slow.

A fleet is a folder with ``members/<name>/``, each a run. ``<name>.2``, ``<name>.3`` are repeats of
the member in processes of their own; ``<name>.together`` and ``<name>.with-<device>`` are those of
later phases, beside others. Every point accuses a resource: the one that limits it on most
members. Devices of different names are not compared.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from math import exp, inf, isfinite, log
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final, NamedTuple

from rooflab.errors import RooflabError, UsageError
from rooflab.fleet.outliers import (
    THRESHOLD_PERCENT,
    Finding,
    Rating,
    RowsByPoint,
    judge,
    others_medians,
)
from rooflab.model.diagnosis import LAUNCH, LAUNCH_SHARE
from rooflab.model.grouping import grouped
from rooflab.model.measurement import POSSIBLE_US, Measurement, is_possible
from rooflab.model.problem import D2H, DRAM, H2D, SFU
from rooflab.model.roofline import COMPUTE
from rooflab.report.text import label, precision_title
from rooflab.runs.compare import check_threshold
from rooflab.runs.manifest import Manifest
from rooflab.runs.store import MANIFEST, MEMBERS, RunData, load
from rooflab.runs.text import clean

L2: Final = "l2"
PCIE: Final = "pcie"
OTHER: Final = "other"
KINDS: Final = (COMPUTE, DRAM, L2, PCIE, LAUNCH)
"""The kinds of resources, in the order of output; others follow."""

_TITLES: Final = {
    DRAM: "DRAM",
    L2: "L2",
    SFU: "special functions",
    PCIE: "PCIe",
    LAUNCH: "launch",
    OTHER: "other points",
}
_REPEAT: Final = re.compile(r"(.+)\.([2-9]|[1-9][0-9]{1,5})")
_PHASE: Final = re.compile(r"(.+)\.(together|with-[A-Za-z0-9._-]+)")
_MENTIONED: Final = 3

PointKey = tuple[Hashable, ...]
"""What has a time on every member: the name of the device, then the key of the row."""


# Reading -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Member:
    """One device of a fleet: its runs, the first process first, and what is missing of them.

    ``beside`` has those of later phases, by phase.
    """

    name: str
    runs: tuple[RunData, ...] = ()
    missing: tuple[str, ...] = ()
    beside: Mapping[str, RunData] = field(default_factory=dict)


@dataclass(frozen=True, repr=False)
class Fleet:
    """All members, by name."""

    path: Path
    members: tuple[Member, ...]

    def __repr__(self) -> str:
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
    paths: dict[str, dict[int, Path]] = {clean(name): {} for name in expected}
    later: dict[str, dict[str, Path]] = {}
    for path in found:
        name, number, phase = parsed(path.name)
        if phase:
            later.setdefault(name, {})[phase] = path
        else:
            paths.setdefault(name, {})[number] = path
    if not paths:
        raise UsageError(f"{str(folder)[:200]}/{MEMBERS} has no runs: nothing was measured")
    first = {name: _first_phase(of) for name, of in sorted(paths.items())}
    most = max(len(runs) for runs, _ in first.values())
    points = {
        name: {point_of(run, row): row for run in runs for row in run.measurements}
        for name, (runs, _) in first.items()
    }
    everything = {point: row for them in points.values() for point, row in them.items()}
    members = []
    for name, (runs, missing) in first.items():
        if not missing and not 0 < len(runs) == most:
            missing.append(f"{len(runs)} of {most} processes" if runs else "nothing was measured")
        if not any(run.warnings for run in runs):
            missing += _lacking(points[name], everything)
        phases = {
            phase: _read(path, f"{phase.replace('-', ' ', 1)}: ", missing)
            for phase, path in sorted(later.get(name, {}).items())
        }
        beside = {phase: run for phase, run in phases.items() if run}
        members.append(Member(name, tuple(runs), tuple(missing), beside))
    return Fleet(folder, tuple(members))


def parsed(folder: str) -> tuple[str, int, str]:
    """The member, the number of the process, and a later phase, from the name of a folder."""
    if match := _PHASE.fullmatch(folder):
        return clean(match[1]), 1, match[2]
    match = _REPEAT.fullmatch(folder)
    return (clean(match[1]), int(match[2]), "") if match else (clean(folder), 1, "")


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


def versions(manifest: Manifest) -> dict[str, str]:
    """Of everything that a run names, and of the driver."""
    driver = manifest.device.facts.get("driver_version")
    return manifest.versions | ({"driver": str(driver.value)} if driver else {})


def _first_phase(processes: Mapping[int, Path]) -> tuple[list[RunData], list[str]]:
    """The runs of a member, and what they lack."""
    runs: list[RunData] = []
    missing: list[str] = []
    for number, path in sorted(processes.items()):
        start = f"process {number}: " if number > 1 else ""
        if run := _read(path, start, missing):
            runs.append(run)
            missing += [start + text for text in _without_figures(run)]
    return runs, missing


def _read(path: Path, start: str, missing: list[str]) -> RunData | None:
    """A run; what it lacks is added to ``missing``."""
    try:
        run = load(path)
    except (RooflabError, OSError) as error:
        there = (path / MANIFEST).exists()
        why = clean(str(error)) if there else f"nothing was measured (no {MANIFEST})"
        missing.append(start + why)
        return None
    missing += [start + text for text in run.warnings]
    return run


def _without_figures(run: RunData) -> Iterator[str]:
    """A line for each status other than ok, with the first reason."""
    rows = (row for row in run.measurements if row.status != "ok")
    for status, group in grouped(rows, lambda row: row.status).items():
        reason = f": {group[0].reason}" if group[0].reason else ""
        yield f"{len(group)} point{'s are' if len(group) != 1 else ' is'} {status}{reason}"


def _lacking(
    mine: Mapping[PointKey, object], everything: Mapping[PointKey, Measurement]
) -> list[str]:
    """A line with the points that others with the same device have."""
    devices = {point[0] for point in mine}
    lacking = sorted(
        f"{row.kernel} {row.problem.workload} {row.problem.precision} {row.problem.size}"
        for point, row in everything.items()
        if point[0] in devices and point not in mine
    )
    more = ", …" if len(lacking) > _MENTIONED else ""
    return [f"without {', '.join(lacking[:_MENTIONED])}{more}"] if lacking else []


# Points and resources ----------------------------------------------------------------------------


class Resource(NamedTuple):
    """What limits a point. ``kind`` is one of KINDS, or another link.

    ``precision`` is that of compute; ``device`` is empty if all members have the same.
    """

    kind: str
    precision: str = ""
    device: str = ""

    @property
    def title(self) -> str:
        """``FP16 compute``, ``DRAM``; with the device if members have different ones."""
        title = _TITLES.get(self.kind, self.kind.upper())
        if self.kind == COMPUTE:
            title = f"{precision_title(self.precision)} compute"
        return f"{title} of {self.device}" if self.device else title


def point_of(run: RunData, row: Measurement) -> PointKey:
    """The point of a row."""
    return (run.manifest.device.name, *row.key)


def timed(run: RunData) -> RowsByPoint:
    """The rows with a possible time; if a run has a point twice, the last counts."""
    return {point_of(run, row): row for row in run.ok if is_possible(row.time_us)}


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


def resources(fleet: Fleet) -> dict[Resource, list[PointKey]]:
    """The points of each resource, in order of output: most of a point's rows accuse it."""
    votes: dict[PointKey, Counter[Resource]] = {}
    for run in (run for member in fleet.members for run in member.runs):
        for point, row in timed(run).items():
            votes.setdefault(point, Counter())[accused(row)] += 1
    several = len({point[0] for point in votes}) > 1
    found: dict[Resource, list[PointKey]] = {}
    for point, counts in votes.items():
        most = min(counts, key=lambda one: (-counts[one], one))
        device = str(point[0]) if several else ""
        found.setdefault(most._replace(device=device), []).append(point)
    return dict(sorted(found.items(), key=lambda item: _place(item[0])))


def _place(resource: Resource) -> tuple[str, int, str, str]:
    kind = resource.kind
    order = KINDS.index(kind) if kind in KINDS else len(KINDS)
    return (resource.device, order, kind, resource.precision)


# Averages ----------------------------------------------------------------------------------------

Averages = Mapping[str, float]
"""Figures of one member on one resource by the names in ``AVERAGES``; some may be unknown."""


def _geometric(values: Iterable[float]) -> float:
    return exp(fmean(log(value) for value in values))


AVERAGES: Final[dict[str, tuple[float, Callable[[Iterable[float]], float]]]] = {
    "time_us": (POSSIBLE_US[1], _geometric),
    "roof_percent": (1e4, _geometric),
    "tflops": (1e6, _geometric),
    "gbps": (1e6, _geometric),
    "sm_mhz": (1e5, median),
    "power_w": (1e5, median),
    "temp_c": (1e3, median),
}
"""Of each figure the largest possible value, and its mean over points."""


def averages(processes: Iterable[RowsByPoint], points: Iterable[PointKey]) -> Averages:
    """Of each figure the mean over the points of the median over the processes."""
    rows = [[process[point] for process in processes if point in process] for point in points]
    found = {}
    for name, (most, mean) in AVERAGES.items():
        columns = ([getattr(row, name) or 0.0 for row in group] for group in rows)
        possible = ([value for value in column if 0 < value < most] for column in columns)
        if medians := [median(column) for column in possible if column]:
            found[name] = mean(medians)
    return found


# The verdict -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Standing:
    """One member on one resource, or on one point: then ``row`` is one of its rows.

    On a resource it has its averages, and the medians of the others'.
    """

    resource: Resource
    finding: Finding
    level: Averages = field(default_factory=dict)
    others: Averages = field(default_factory=dict)
    row: Measurement | None = None

    @property
    def member(self) -> str:
        """The name of the member."""
        return self.finding.member

    @property
    def title(self) -> str:
        """``DRAM``, or ``tiled gemm fp32 4096 (FP32 compute)``."""
        title = self.resource.title
        return f"{label(self.row)} ({title})" if self.row else title


@dataclass(frozen=True)
class Assessment:
    """The verdict on a fleet: by resource, in order of output, the slowest member first."""

    fleet: Fleet
    threshold_percent: float
    standings: tuple[Standing, ...]
    spots: tuple[Standing, ...]
    resources: tuple[Resource, ...]

    def of(self, resource: Resource) -> list[Standing]:
        """The members on a resource, the slowest first."""
        return [one for one in self.standings if one.resource == resource]

    @property
    def outliers(self) -> list[Standing]:
        """The accused: slow ones, then fast ones, the largest difference first."""
        return _ranked(one for one in self.standings if one.finding.outlier)

    @property
    def outlying_spots(self) -> list[Standing]:
        """Accused on one point, though not the same on its resource; the largest first."""
        known = {(s.member, s.resource, s.finding.verdict) for s in self.outliers}
        found = (spot for spot in self.spots if spot.finding.outlier)
        return _ranked(s for s in found if (s.member, s.resource, s.finding.verdict) not in known)

    @property
    def undecided(self) -> list[Standing]:
        """The members that may be slow or fast, the largest difference first."""
        found = (one for one in self.standings if one.finding.verdict == Rating.UNDECIDED)
        return _ranked(one for one in found if one.finding.difference is not None)


def _ranked(found: Iterable[Standing]) -> list[Standing]:
    def rank(one: Standing) -> tuple[bool, float, str]:
        difference = one.finding.difference or 0.0
        return (one.finding.verdict == Rating.FAST, -abs(difference), one.member)

    return sorted(found, key=rank)


def assess(fleet: Fleet, threshold_percent: float = THRESHOLD_PERCENT) -> Assessment:
    """Judge all members of a fleet; ``threshold_percent`` is the least difference of an outlier.

    Raises ``UsageError`` if no member has a row with status ok, or the threshold makes no sense.
    """
    check_threshold(threshold_percent)
    points = resources(fleet)
    if not points:
        raise UsageError(f"{str(fleet.path)[:200]} has no row with status ok: nothing to compare")
    rows = {member.name: [timed(run) for run in member.runs] for member in fleet.members}
    resource_of = {point: resource for resource, some in points.items() for point in some}
    found = judge(rows, resource_of, threshold_percent)
    standings: list[Standing] = []
    for resource, some in points.items():
        group = [one for one in found.resources if one.subject == resource]
        standings += _standings(
            resource, group, {one.member: averages(rows[one.member], some) for one in group}
        )
    spots = []
    for one in found.points:
        point: Any = one.subject
        row = [process[point] for process in rows[one.member] if point in process][-1]
        spots.append(Standing(resource_of[point], one, row=row))
    return Assessment(fleet, threshold_percent, tuple(standings), tuple(spots), tuple(points))


def _standings(
    resource: Resource, findings: Iterable[Finding], levels: Mapping[str, Averages]
) -> Iterator[Standing]:
    """The slowest first."""
    others = {
        figure: others_medians({name: of[figure] for name, of in levels.items() if figure in of})
        for figure in AVERAGES
    }
    for one in sorted(findings, key=lambda one: (-(one.difference or 0.0), one.member)):
        theirs = {figure: of[one.member] for figure, of in others.items() if one.member in of}
        yield Standing(resource, one, levels[one.member], theirs)
