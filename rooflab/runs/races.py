"""Is one device faster than another, and from which size on? Pure.

Two devices race on a family of problems: one workload, precision and settings, at every size that
both have measured. At each size the fastest kernel of either counts; if the operands are in host
memory, also the fastest chunks, streams and graph. Nothing is interpolated. A device is faster at a
size if its 95 % interval is below the other's; if the intervals touch, or one is missing, the two
are even.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from rooflab.errors import UsageError
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement, is_possible
from rooflab.model.problem import IN_SIZE, NOWHERE, ProblemRecord, Value
from rooflab.runs.compare import refuse_different_data, span
from rooflab.runs.names import competitors
from rooflab.runs.store import RunData

_STREAMING: Final = ("host", *IN_SIZE)
"""Settings that say where the operands are and how they move: no part of the family."""

_Family = tuple[str, str, tuple[tuple[str, Value], ...]]
"""Workload, precision, settings."""

_Key = tuple[object, ...]
_Places = Mapping[str, Mapping[_Key, Measurement]]
"""Rows by place of the operands, then by extents."""


@dataclass(frozen=True, slots=True)
class Duel:
    """The fastest rows of both devices at one size."""

    base: Measurement
    new: Measurement

    @property
    def size(self) -> str:
        """The size, as in ``--sizes`` or ``--shape``."""
        return self.base.problem.size.partition("/")[0]

    @property
    def ratio(self) -> float:
        """BASE's time over NEW's: above 1 if NEW is faster."""
        return (self.base.time_us or 0) / (self.new.time_us or inf)

    @property
    def faster(self) -> bool:
        """Whether NEW's interval is below BASE's."""
        return _below(self.new, self.base)

    @property
    def slower(self) -> bool:
        """Whether NEW's interval is above BASE's."""
        return _below(self.base, self.new)

    @property
    def even(self) -> bool:
        """Whether the intervals touch, or one is missing."""
        return not self.faster and not self.slower


def _below(one: Measurement, other: Measurement) -> bool:
    first, second = span(one), span(other)
    return first is not None and second is not None and first.high < second.low


@dataclass(frozen=True, slots=True)
class Race:
    """Device NEW against device BASE on one family of problems, from small to large.

    ``about`` has the settings of the family. ``host`` says where the operands are: ``pinned`` or
    ``pageable`` memory of the host, or ``none`` for the memory of each device, without transfers.
    It is empty if both devices are of one kind and no operand is in host memory.
    """

    base: str
    new: str
    workload: str
    precision: str
    about: str
    host: str
    duels: tuple[Duel, ...]

    @property
    def wins(self) -> list[Duel]:
        """The sizes at which NEW is faster."""
        return [duel for duel in self.duels if duel.faster]

    @property
    def faster_from(self) -> Duel | None:
        """The size from which on NEW is faster at each size, and below which at none.

        None if there is no such size.
        """
        wins = self.wins
        ends_with_them = all(duel.faster for duel in self.duels[-len(wins) :])
        return wins[0] if wins and ends_with_them else None


def races(runs: Sequence[RunData]) -> list[Race]:
    """The device of the last run against the device of each other run.

    Runs of one device count together; a CPU with another number of threads is another device.
    Raises ``UsageError`` if there is only one device, if inputs or caches differ, or if two devices
    have no problem in common.
    """
    for run in runs[:-1]:
        refuse_different_data(run, runs[-1])
    caches = sorted({row.cache for run in runs for row in run.ok if row.cache})
    if len(caches) > 1:
        raise UsageError(f"these runs are not comparable: their caches are {' and '.join(caches)}")
    teams = grouped(runs, _device)
    if len(teams) < 2:
        raise UsageError(
            "these runs are of one device: give two runs, or add a run of another device"
        )
    new = teams.pop(_device(runs[-1]))
    names = competitors([team[0] for team in (*teams.values(), new)])
    return [
        race
        for team, name in zip(teams.values(), names, strict=False)
        for race in _against(team, new, (name, names[-1]))
    ]


def _device(run: RunData) -> _Key:
    device = run.manifest.device
    return (device.kind, device.name, device.fact("threads"))


def _against(base: Sequence[RunData], new: Sequence[RunData], names: tuple[str, str]) -> list[Race]:
    alike = base[0].manifest.device.kind == new[0].manifest.device.kind
    before, after = _families(base), _families(new)
    found = [
        Race(*names, *family[:2], about, host, duels)
        for family in before
        if family in after
        for host, about, duels in _heats(before[family], after[family], alike)
    ]
    if not found:
        raise UsageError(_nothing_in_common(base, new, names))
    return found


def _families(runs: Iterable[RunData]) -> dict[_Family, dict[str, dict[_Key, Measurement]]]:
    """The fastest rows by family, place of the operands, and extents."""
    found: dict[_Family, dict[str, dict[_Key, Measurement]]] = {}
    for row in (row for run in runs for row in run.ok):
        problem = row.problem
        if problem.gpus > 1 or not is_possible(row.time_us):
            continue
        places = found.setdefault(_family(problem), {})
        rows = places.setdefault(str(problem.settings.get("host", NOWHERE)), {})
        extents = tuple(sorted(problem.extents.items()))
        known = rows.setdefault(extents, row)
        rows[extents] = min(known, row, key=lambda one: one.time_us or inf)
    return found


def _family(problem: ProblemRecord) -> _Family:
    settings = (pair for pair in sorted(problem.settings.items()) if pair[0] not in _STREAMING)
    return (problem.workload, problem.precision, tuple(settings))


def _heats(base: _Places, new: _Places, alike: bool) -> Iterator[tuple[str, str, tuple[Duel, ...]]]:
    """The duels of one family, from small to large, by place of the operands and by batch.

    With each comes the place, and the settings in words. A batch is part of the family, unless all
    problems differ in nothing but the batch.
    """
    places = _places(base, new, alike)
    problems = [duel.base.problem for duels in places.values() for duel in duels]
    apart = len({_without_batch(problem) for problem in problems}) > 1
    for host, duels in places.items():
        duels.sort(key=lambda duel: (duel.base.flops or 0, duel.base.link_bytes or 0, duel.size))
        parts: dict[int, list[Duel]] = {}
        for duel in duels:
            batch = duel.base.problem.extents.get("batch", 1) if apart else 1
            parts.setdefault(batch, []).append(duel)
        for batch, part in parts.items():
            yield host, _about(part[0].base.problem, batch), tuple(part)


def _places(base: _Places, new: _Places, alike: bool) -> dict[str, list[Duel]]:
    """The duels by place of the operands, as ``Race.host``.

    Devices of one kind race only with their operands at the same place. Otherwise one of them is a
    CPU, which needs no transfers: it races with its own memory against every place.
    """
    found = {}
    for host in dict.fromkeys([NOWHERE, *new, *base]):
        before, after = (
            rows.get(host, {} if alike else rows.get(NOWHERE, {})) for rows in (base, new)
        )
        duels = [Duel(before[key], after[key]) for key in before if key in after]
        found["" if alike and host == NOWHERE else host] = duels
    return found


def _without_batch(problem: ProblemRecord) -> _Key:
    return tuple(pair for pair in problem.extents.items() if pair[0] != "batch")


def _about(problem: ProblemRecord, batch: int) -> str:
    settings = [part for part in problem.about.split(", ") if not part.startswith("host ")]
    return ", ".join(filter(None, [*settings, f"batch {batch}" if batch > 1 else ""]))


def _nothing_in_common(
    base: Sequence[RunData], new: Sequence[RunData], names: tuple[str, str]
) -> str:
    for name, runs in zip(names, (base, new), strict=True):
        if not any(run.ok for run in runs):
            return f"{name} has no row with status ok"
    before, after = (
        {(row.problem.workload, row.problem.precision) for run in runs for row in run.ok}
        for runs in (base, new)
    )
    what = "of the same size and settings" if before & after else "of the same precision"
    return f"{' and '.join(names)} have no problem {what} in common"
