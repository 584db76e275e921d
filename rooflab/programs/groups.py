"""Launches that belong together: one kernel, launched in one way, with work of one size. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.records import NOWHERE, LaunchKey, Needs, RecordedLaunch
from rooflab.model import grouping

APART: Final = 1.12
"""Launches of a key whose times differ by more, with none between, have other work."""

APART_SHORT_NS: Final = 4_000
"""Times differ by as much without a reason."""

ALIKE: Final = 1.5
"""A replayed launch is one of a group if its time differs by less: caches are flushed, and the
clock may be another."""

VARIES: Final = 0.02
"""Counts of one group that differ by more are those of different work."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Counters of one launch, which took ``us`` under replay."""

    index: int
    us: float
    counters: Counters


@dataclass(frozen=True, slots=True)
class LaunchSet:
    """Launches of one key. ``part`` numbers groups of a key, the longest first; 0 is the only one.

    ``positions`` are those of its launches among all of the key in a step. ``samples`` are what
    was counted of them.
    """

    key: LaunchKey
    part: int
    launches: tuple[RecordedLaunch, ...]
    steps: int = 1
    positions: tuple[int, ...] = ()
    samples: tuple[Sample, ...] = ()

    @property
    def per_step(self) -> float:
        """Launches in one step."""
        return len(self.launches) / self.steps

    @property
    def total_us(self) -> float:
        """Time of all of them in one step."""
        return sum(one.ns for one in self.launches) / 1e3 / self.steps

    @property
    def counters(self) -> Counters | None:
        """Of one launch: the mean of what was counted."""
        given = [one.counters for one in self.launches if one.counters]
        return _mean_counters([one.counters for one in self.samples] or given)

    @property
    def work(self) -> Needs | None:
        """Of one launch by its definition: the mean; None if that of one is not known.

        Of the launches of one call the longest has all of its work.
        """
        known = [one.work for one in self.launches]
        if not known or None in known:
            return None
        works = [one for one in known if one is not None]
        names = Counter(one.precision for one in works)
        problems = {one.same_as for one in works}
        flops, moved = _mean([one.flops for one in works]), _mean([one.bytes for one in works])
        return Needs(
            None if flops is None else round(flops),
            None if moved is None else round(moved),
            names.most_common(1)[0][0],
            problems.pop() if len(problems) == 1 else "",
        )

    @property
    def operations(self) -> tuple[str, ...]:
        """What launched it, the most frequent first."""
        found = Counter(one.operation for one in self.launches if one.operation)
        return tuple(name for name, _ in found.most_common())

    @property
    def phases(self) -> tuple[str, ...]:
        """The ranges around it, the most frequent first."""
        found = Counter("/".join(one.phase) for one in self.launches if one.phase)
        return tuple(name for name, _ in found.most_common())


def grouped(launches: Sequence[RecordedLaunch], steps: int = 1) -> list[LaunchSet]:
    """All groups of ``launches``, those with the most time first.

    They are those of ``steps`` repetitions of the same: a group has as many in each.
    """
    by_key = grouping.grouped(launches, lambda one: one.key)
    found = [group for key, members in by_key.items() for group in _parts(key, members, steps)]
    return sorted(found, key=lambda group: -group.total_us)


def _parts(key: LaunchKey, members: Sequence[RecordedLaunch], steps: int) -> Iterator[LaunchSet]:
    if len(members) == steps == 1:  # which are many in a program that generates its kernels
        yield LaunchSet(key, 0, tuple(members), 1, (0,))
        return
    regular = len(members) % steps == 0
    each = len(members) // steps if regular else len(members)
    positions = {i: members[i::each] for i in range(each)}
    typical = {i: median(one.ns for one in found) for i, found in positions.items()}
    classes = [part for one in _classes(typical) for part in _by_problem(one, positions)]
    for number, place in enumerate(classes):
        own = tuple(one for i in place for one in positions[i])
        yield LaunchSet(
            key, number + 1 if len(classes) > 1 else 0, own, steps, tuple(place) if regular else ()
        )


def _classes(typical: Mapping[int, float]) -> list[list[int]]:
    """Positions by time, the longest first, cut where times jump."""
    ordered = sorted(typical, key=lambda i: -typical[i])
    classes: list[list[int]] = []
    for i in ordered:
        before = typical[classes[-1][-1]] if classes else 0.0
        if not classes or (before > APART * typical[i] and before - typical[i] > APART_SHORT_NS):
            classes.append([])
        classes[-1].append(i)
    return [sorted(one) for one in classes]


def _by_problem(
    places: list[int], positions: Mapping[int, Sequence[RecordedLaunch]]
) -> Iterator[list[int]]:
    """Positions with equal times by the problem that they are, if all of them are known ones."""
    by_problem: dict[str, list[int]] = defaultdict(list)
    for i in places:
        problems = {one.work.same_as if one.work else "" for one in positions[i]}
        by_problem[problems.pop() if len(problems) == 1 else ""].append(i)
    yield from [places] if "" in by_problem else by_problem.values()


OTHERS: Final = "other kernels"
"""The name of the group of many small ones."""


def limited(groups: Sequence[LaunchSet], most: int = 5_000) -> list[LaunchSet]:
    """The groups with the most time, and all further ones as one group."""
    if len(groups) <= most:
        return list(groups)
    rest = tuple(one for group in groups[most:] for one in group.launches)
    key = LaunchKey(OTHERS, NOWHERE, NOWHERE)
    return [*groups[:most], LaunchSet(key, 0, rest, groups[most].steps)]


# What to count -----------------------------------------------------------------------------------

NEGLIGIBLE: Final = 0.001
"""A group with a smaller part of the time is not counted: that takes 0.1 to 0.2 s each."""

IMPORTANT: Final = 0.03
"""A group with so large a part of the time is counted twice, to see whether its counts vary."""


def plan(
    groups: Sequence[LaunchSet], among: Sequence[LaunchSet] | None = None
) -> dict[LaunchKey, set[int]]:
    """Which launches of each key in a step to count; ``among`` are the groups with all the time."""
    total = sum(group.total_us for group in (groups if among is None else among))
    made = wanted([group for group in groups if group.total_us > NEGLIGIBLE * total])
    for key, places in wanted([g for g in groups if g.total_us > IMPORTANT * total], 2).items():
        made[key] |= places
    return made


def wanted(groups: Sequence[LaunchSet], each: int = 1) -> dict[LaunchKey, set[int]]:
    """Which launches of each key in a step to count, so that each group has ``each`` samples."""
    plan: dict[LaunchKey, set[int]] = defaultdict(set)
    for group in groups:
        spread = group.positions or tuple(range(round(group.per_step)))
        step = max(1, len(spread) // each)
        plan[group.key].update(spread[::step][:each])
    return dict(plan)


def with_samples(
    groups: Sequence[LaunchSet], samples: Mapping[LaunchKey, Sequence[Sample]]
) -> list[LaunchSet]:
    """The groups with what was counted: by position in the step, else by time under replay."""
    by_key = grouping.grouped(groups, lambda group: group.key)
    given: dict[int, list[Sample]] = defaultdict(list)
    for key, found in samples.items():
        for sample in found:
            owner = _of(sample, by_key.get(key, []))
            if owner is not None:
                given[id(owner)].append(sample)
    return [replace(group, samples=tuple(given[id(group)])) for group in groups]


def _of(sample: Sample, candidates: Sequence[LaunchSet]) -> LaunchSet | None:
    for group in candidates:
        if sample.index in group.positions:
            return group
    by_time = [(max(sample.us / us, us / sample.us), i) for i, us in _times(candidates)]
    ratio, i = min(by_time, default=(ALIKE, -1))
    return candidates[i] if ratio < ALIKE or len(candidates) == 1 else None


def _times(groups: Sequence[LaunchSet]) -> Iterator[tuple[int, float]]:
    for i, group in enumerate(groups):
        yield i, max(1e-3, median(one.ns for one in group.launches) / 1e3)


def varies(group: LaunchSet) -> bool:
    """Whether its samples differ: then their mean is that of different work."""
    counters = [one.counters for one in group.samples]
    flops = [one.all_flops for one in counters]
    return bool(flops) and max(flops) - min(flops) > VARIES * max(flops)


def _mean_counters(found: Sequence[Counters]) -> Counters | None:
    if not found:
        return None
    n = len(found)
    pipes = dict.fromkeys(pipe for one in found for pipe in one.flops)
    others = dict.fromkeys(name for one in found for name in one.others)
    return Counters(
        flops={pipe: sum(one.flops.get(pipe, 0.0) for one in found) / n for pipe in pipes},
        dram_bytes=_mean([one.dram_bytes for one in found]),
        l2_bytes=_mean([one.l2_bytes for one in found]),
        l1_bytes=_mean([one.l1_bytes for one in found]),
        cycles=_mean([one.cycles for one in found]),
        mhz=_mean([one.mhz for one in found]),
        others={name: sum(one.others.get(name, 0.0) for one in found) / n for name in others},
    )


def _mean(values: Sequence[float | None]) -> float | None:
    """None if one is not known."""
    known = [value for value in values if value is not None]
    return sum(known) / len(values) if len(known) == len(values) else None
