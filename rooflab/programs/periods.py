"""Finds the steps of a program in the order of its launches. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise
from typing import Final

from rooflab.devices.records import NOWHERE, LaunchKey, RecordedLaunch

FEWEST: Final = 4
"""Steps that make a period."""

ANCHORS: Final = 12
"""Kernels that are tried as the first one of a step."""

MOST: Final = 0.5
"""Steps with less of the time do not stand for the program."""

NEARLY: Final = 0.99
"""Of the periods with so much of the most time the shortest is taken: a step, not the fifty steps
between two lines of a log."""

MORE: Final = 1 / NEARLY
"""Steps whose grids differ are taken if they have so many times the time of those that do not: a
token, whose head has a small part of its time, not a layer."""

DIFFERENT: Final = 0.05
"""The part of a step's launches that may be others or missing: a copy of another alignment, say."""

USUAL: Final = 0.9
"""The part of the steps in which a kernel has the same grid, or all launches are the same; else
there are several grids, or none."""

Order = tuple[int, int]
"""A place in the order in which a program launches."""


@dataclass(frozen=True, slots=True)
class Period:
    """A sequence of launches that repeats, with few differences. ``anchor`` is its first.

    ``steps`` are where it is among all launches. Most have ``length`` launches.
    """

    anchor: LaunchKey
    length: int
    steps: tuple[range, ...]

    def launches(self, found: Sequence[RecordedLaunch]) -> list[RecordedLaunch]:
        """Those of all steps."""
        return [found[i] for step in self.steps for i in step]

    def ns(self, found: Sequence[RecordedLaunch]) -> int:
        """The time of these launches."""
        return sum(one.ns for one in self.launches(found))

    def step_s(self, found: Sequence[RecordedLaunch]) -> float:
        """The time of the launches of one step, in seconds."""
        return self.ns(found) / 1e9 / len(self.steps)


def period_of(
    launches: Sequence[RecordedLaunch], order: Mapping[LaunchKey, Order] | None = None
) -> Period | None:
    """The shortest period with nearly the most time, None if nothing repeats FEWEST times.

    It begins with what the program launched first, as ``order`` has it: in ``launches``, which may
    begin inside a step, that is not seen.
    """
    calls = _Calls(launches)
    found = [one for anchor in calls.anchors() if (one := calls.between(anchor))]
    if not found:
        return None
    ns = {one: one.ns(launches) for one in found}
    least = NEARLY * max(ns.values())
    best = min((one for one in found if ns[one] >= least), key=lambda one: (one.length, -ns[one]))
    if order is None:
        return best
    once = calls.once_in(best.steps[0])
    first = calls.between(min(once, key=lambda key: order[key])) if once else None
    return first if first and _is_close(first.length - best.length, best.length) else best


def call_starts(launches: Sequence[RecordedLaunch]) -> list[int]:
    """Where each call of the program begins: one launch, or a CUDA graph of many."""
    graphs = [one.order if one.graph else None for one in launches]
    before = [None, *graphs]
    return [i for i, graph in enumerate(graphs) if graph is None or graph != before[i]]


class _Calls:
    """The calls of a program: each one launch, or a CUDA graph of many."""

    def __init__(self, launches: Sequence[RecordedLaunch]) -> None:
        self._keys = [one.key for one in launches]
        numbers: dict[LaunchKey, int] = defaultdict(count().__next__)
        self._ids = [numbers[key] for key in self._keys]
        self._starts = call_starts(launches)
        ends = [*self._starts, len(launches)][1:]
        self._ns = [
            sum(one.ns for one in launches[start:end])
            for start, end in zip(self._starts, ends, strict=True)
        ]

    def anchors(self) -> list[LaunchKey]:
        """Of kernels that begin equally many calls the first, most time first.

        The once-a-step kernels of a training step have a great part of its time together; those
        that a compiler tries before have little.
        """
        keys = [self._keys[start] for start in self._starts]
        ns: Counter[LaunchKey] = Counter()
        for key, each in zip(keys, self._ns, strict=True):
            ns[key] += each
        times: Counter[int] = Counter()
        first: dict[int, LaunchKey] = {}
        for key, calls in Counter(keys).items():
            times[calls] += ns[key]
            first.setdefault(calls, key)
        return [first[calls] for calls, _ in times.most_common() if calls > FEWEST][:ANCHORS]

    def once_in(self, step: range) -> list[LaunchKey]:
        """The kernels that begin one call in it."""
        inside = Counter(self._keys[start] for start in self._starts if start in step)
        return [key for key, calls in inside.items() if calls == 1]

    def between(self, anchor: LaunchKey) -> Period | None:
        """The most frequent sequence between two calls that begin with ``anchor``, and those that
        differ little from it."""
        places = [start for start in self._starts if self._keys[start] == anchor]
        steps = [range(start, end) for start, end in pairwise(places)]
        sequences = [tuple(self._ids[step.start : step.stop]) for step in steps]
        if not sequences:
            return None
        common = Counter(sequences).most_common(1)[0][0]
        alike = {common, *_close_to(common, set(sequences))}
        same = [step for step, each in zip(steps, sequences, strict=True) if each in alike]
        return Period(anchor, len(common), tuple(same)) if len(same) >= FEWEST else None


def _close_to(
    common: tuple[int, ...], sequences: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    if DIFFERENT * len(common) < 1:  # in so short a step the order tells
        return []
    usual = Counter(common)
    candidates = (one for one in sequences if _is_close(len(one) - len(common), len(common)))
    return [one for one in candidates if _is_close(_differences(usual, one), len(common))]


def _differences(usual: Counter[int], sequence: tuple[int, ...]) -> int:
    other = Counter(sequence)
    return max((usual - other).total(), (other - usual).total())


def _is_close(difference: int, length: int) -> bool:
    return abs(difference) <= DIFFERENT * length


def steps_of(
    launches: Sequence[RecordedLaunch], order: Mapping[LaunchKey, Order]
) -> tuple[Sequence[RecordedLaunch], Period | None]:
    """The launches and their period, None if nothing that repeats has MOST of the time.

    Steps may differ in the grids of some kernels, as those of a model whose cache grows do: such
    launches are returned without a grid, so that they are one group.
    """
    busy = sum(one.ns for one in launches)
    period = period_of(launches, order)
    ns = period.ns(launches) if period else 0
    alike = [replace(one, grid=NOWHERE) for one in launches]
    if MORE * ns < busy:  # else no other has so much more
        loose = period_of(alike, _without_grids(order))
        if loose and loose.ns(alike) > MORE * ns:
            period, ns = loose, loose.ns(alike)
    if period is None or ns < MOST * busy:
        return launches, None
    found = list(launches)
    for same in _places(period, alike).values():
        grids = Counter(launches[i].grid for i in same)
        if grids.most_common(1)[0][1] < USUAL * len(same):
            for i in same:
                found[i] = alike[i]
    period = replace(period, anchor=found[period.steps[0].start].key)
    return found, replace(period, steps=_exact(period, found))


def _exact(period: Period, launches: Sequence[RecordedLaunch]) -> tuple[range, ...]:
    """The steps that are the same, if nearly all are: else those that differ a little too.

    The launches of a kernel are told apart by their places, of which all steps have the same.
    """
    sequences = [tuple(launches[i].key for i in step) for step in period.steps]
    common, times = Counter(sequences).most_common(1)[0]
    if times < USUAL * len(sequences):
        return period.steps
    pairs = zip(period.steps, sequences, strict=True)
    return tuple(step for step, each in pairs if each == common)


def _places(
    period: Period, alike: Sequence[RecordedLaunch]
) -> dict[tuple[LaunchKey, int], list[int]]:
    """Where each launch of a step is in all of them: the first of its key, the second, ..."""
    found: dict[tuple[LaunchKey, int], list[int]] = defaultdict(list)
    for step in period.steps:
        before: Counter[LaunchKey] = Counter()
        for i in step:
            key = alike[i].key
            found[key, before[key]].append(i)
            before[key] += 1
    return found


def _without_grids(order: Mapping[LaunchKey, Order]) -> dict[LaunchKey, Order]:
    found: dict[LaunchKey, Order] = {}
    for key, place in order.items():
        loose = key._replace(grid=NOWHERE)
        found[loose] = min(place, found.get(loose, place))
    return found


def known_as(key: LaunchKey, keys: Collection[LaunchKey]) -> LaunchKey:
    """The one of ``keys`` that a launch has in steps whose grids differ; else its own."""
    loose = key._replace(grid=NOWHERE)
    return loose if key not in keys and loose in keys else key
