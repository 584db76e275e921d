"""The ranks of a program: what a step of each takes, and whom the others wait for. Pure.

A collective ends on all of its ranks at about the same time. So the rank that spends the least time
in a call came last, and what the others spend more in it, they waited. That needs no common clock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import TYPE_CHECKING, Final

from rooflab.model.collectives import CollectiveLaunch, Collectives, collective_of
from rooflab.model.measurement import Measurement
from rooflab.runs.calls import CollectiveCall, calls
from rooflab.runs.program import IDLE, Program, total

if TYPE_CHECKING:
    from rooflab.runs.store import RunData

ENOUGH: Final = 0.5
"""A part of the launches of a collective that must be matched, or nothing is said of it."""


@dataclass(frozen=True, slots=True)
class RankStep:
    """One rank: its run, and times of one step in microseconds.

    ``kernels_us`` is that of all kernels but collectives; ``exposed_us`` the time in which a
    collective runs and no other kernel does.
    """

    number: int
    run: RunData
    program: Program
    collectives_us: float = 0.0
    exposed_us: float = 0.0

    @property
    def step_us(self) -> float:
        """The time of its step."""
        return self.program.step_us

    @property
    def by_kernel(self) -> dict[str, float]:
        """The times of its kernels that are no collectives, by name."""
        found: dict[str, float] = defaultdict(float)
        for row in self.program.groups:
            if not collective_of(row.kernel):
                found[row.kernel] += total(row)
        return dict(found)

    @property
    def kernels_us(self) -> float:
        """The sum of the times of its kernels that are no collectives."""
        return sum(self.by_kernel.values())

    @property
    def idle_us(self) -> float:
        """The time in which nothing runs."""
        row = self.program.other(IDLE)
        return total(row) if row else 0.0


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """One kind of collective, with figures of one step by rank, in microseconds.

    ``waits_us`` is what each rank waits in it, ``caused_us`` what the mean of the others waits for
    the rank; both are empty if that cannot be told, for a ``reason``, or if there is one rank.
    """

    title: str
    launches: Mapping[int, float]
    us: Mapping[int, float]
    exposed_us: Mapping[int, float]
    waits_us: Mapping[int, float] = field(default_factory=dict)
    caused_us: Mapping[int, float] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Ranks:
    """All ranks that are there, of ``size``, and their collectives, those with most time first."""

    ranks: tuple[RankStep, ...]
    size: int
    collectives: tuple[CollectiveTime, ...]
    remarks: tuple[str, ...] = ()

    @property
    def step_us(self) -> float:
        """The median time of a step."""
        return median(one.step_us for one in self.ranks)

    def waits_us(self, rank: int) -> float:
        """What a rank waits for others in one step."""
        return sum(one.waits_us.get(rank, 0.0) for one in self.collectives)

    def caused_us(self, rank: int) -> float:
        """What the mean of the others waits for a rank in one step."""
        return sum(one.caused_us.get(rank, 0.0) for one in self.collectives)

    def most_waited_for(self, count: int) -> list[RankStep]:
        """So many ranks, the slowest first: without waiting those with the longest step."""

        def slow(rank: RankStep) -> tuple[float, float, int]:
            return -self.caused_us(rank.number), -rank.step_us, rank.number

        return sorted(self.ranks, key=slow)[:count]

    @property
    def slowest(self) -> RankStep:
        """The rank that is waited for most."""
        return self.most_waited_for(1)[0]


def ranks_of(runs: Mapping[int, RunData], size: int, remarks: Sequence[str] = ()) -> Ranks:
    """Those with these runs, by number."""
    ranks = tuple(_rank(number, run) for number, run in sorted(runs.items()))
    known = {one.number: one.run.collectives() for one in ranks}
    return Ranks(ranks, size, tuple(_collectives(ranks, known)), tuple(remarks))


def of_runs(runs: Sequence[RunData]) -> Ranks | None:
    """Those of runs that are of different ranks of one program; None if they are others."""
    sizes = [run.manifest.program.get("ranks") for run in runs]
    numbers = [run.manifest.program.get("rank") for run in runs]
    known = {one: run for one, run in zip(numbers, runs, strict=True) if isinstance(one, int)}
    size = sizes[0] if sizes else None
    if not isinstance(size, int) or sizes.count(size) < len(runs) or len(known) < len(runs):
        return None
    return ranks_of(known, size)


def _rank(number: int, run: RunData) -> RankStep:
    program = Program.of(run)
    times = (program.figure(name) or 0.0 for name in ("collectives_us", "exposed_us"))
    return RankStep(number, run, program, *times)


def _collectives(
    ranks: Sequence[RankStep], known: Mapping[int, Collectives | None]
) -> Iterator[CollectiveTime]:
    rows: dict[str, dict[int, list[Measurement]]] = defaultdict(lambda: defaultdict(list))
    for rank in ranks:
        for row in rank.program.groups:
            if title := collective_of(row.kernel):
                rows[title][rank.number].append(row)
    launches = {one.number: _by_title(one.run, known[one.number]) for one in ranks}

    def time(title: str) -> float:
        return -sum(total(row) for some in rows[title].values() for row in some)

    for title in sorted(rows, key=time):
        mine = {number: launches[number].get(title, []) for number in rows[title]}
        there = {number: one for number, one in known.items() if one and mine.get(number)}
        waits, caused, reason = _waits(mine, there) if len(ranks) > 1 else ({}, {}, "")
        yield CollectiveTime(
            title,
            {n: sum(row.launches or 0.0 for row in some) for n, some in rows[title].items()},
            {n: sum(map(total, some)) for n, some in rows[title].items()},
            {n: sum(one.exposed_ns for one in mine[n]) / 1e3 / there[n].steps for n in there},
            waits,
            caused,
            reason,
        )


def _by_title(run: RunData, found: Collectives | None) -> dict[str, list[CollectiveLaunch]]:
    made: dict[str, list[CollectiveLaunch]] = defaultdict(list)
    for one in found.launches if found else ():
        made[collective_of(run.measurements[one.row].kernel)].append(one)
    return made


def _waits(
    of: Mapping[int, Sequence[CollectiveLaunch]], known: Mapping[int, Collectives]
) -> tuple[dict[int, float], dict[int, float], str]:
    """What each rank waits, what the others wait for each, and why that is not known."""
    if lacking := sorted(of.keys() - known.keys()):
        return {}, {}, f"rank {lacking[0]} has no times of single launches"
    if len(of) < 2:
        return {}, {}, f"only rank {min(of)} launches it"
    each = {number: len(some) / known[number].steps for number, some in of.items()}
    few, many = min(each, key=lambda n: each[n]), max(each, key=lambda n: each[n])
    if each[many] - each[few] > 1e-6 * each[many]:
        counts = f"rank {few} launches it {each[few]:.4g} times in a step, rank {many}"
        return {}, {}, f"{counts} {each[many]:.4g} times"
    found = calls(of, known)
    if len(found) < ENOUGH * min(map(len, of.values())):
        return {}, {}, "its launches do not end together on all ranks"
    return (*_shares(found, len(found) / each[few]), "")


def _shares(
    found: Sequence[CollectiveCall], steps: float
) -> tuple[dict[int, float], dict[int, float]]:
    """Of calls of so many steps: what each rank waits, and what the others wait for the last."""
    waits: dict[int, float] = dict.fromkeys(found[0], 0.0)
    caused: dict[int, float] = dict.fromkeys(found[0], 0.0)
    for call in found:
        last = min(call, key=lambda rank: call[rank].ns)
        more = {rank: (one.ns - call[last].ns) / 1e3 for rank, one in call.items()}
        for rank, us in more.items():
            waits[rank] += us / steps
        caused[last] += fmean(us for rank, us in more.items() if rank != last) / steps
    return waits, caused
