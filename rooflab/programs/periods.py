"""Finds the steps of a program in the order of its launches. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

from rooflab.devices.records import NOWHERE, Launch, LaunchKey

FEWEST: Final = 4
"""Steps that make a period."""

ANCHORS: Final = 12
"""Kernels that are tried as the first one of a step."""


MOST: Final = 0.5
"""Steps with less of the time do not stand for the program."""

MORE: Final = 1.2
"""Steps whose grids differ are taken if they have so many times the time of those that do not."""

Order = tuple[int, int]
"""A place in the order in which a program launches."""


@dataclass(frozen=True, slots=True)
class Period:
    """A sequence of launches that repeats. ``anchor`` is its first, and once in it.

    ``starts`` are where it begins among all launches, each time with ``length`` launches.
    """

    anchor: LaunchKey
    length: int
    starts: tuple[int, ...]

    def launches(self, found: Sequence[Launch]) -> list[Launch]:
        """Those of all steps."""
        return [one for start in self.starts for one in found[start : start + self.length]]

    def ns(self, found: Sequence[Launch]) -> int:
        """The time of these launches."""
        return sum(one.ns for one in self.launches(found))


def period_of(
    launches: Sequence[Launch], order: Mapping[LaunchKey, Order] | None = None
) -> Period | None:
    """The period with the most time, None if nothing repeats FEWEST times.

    It begins with what the program launched first, as ``order`` has it: in ``launches``, which may
    begin inside a step, that is not seen.
    """
    keys = [one.key for one in launches]
    found = [_from(anchor, keys) for anchor in _anchors(launches)]
    best = max((one for one in found if one), key=lambda one: one.ns(launches), default=None)
    if best is None or order is None:
        return best
    step = keys[best.starts[0] : best.starts[0] + best.length]
    once = [key for key, count in Counter(step).items() if count == 1]
    first = _from(min(once, key=lambda key: order[key]), keys)
    return first if first and first.length == best.length else best


def steps_of(
    launches: Sequence[Launch], order: Mapping[LaunchKey, Order]
) -> tuple[Sequence[Launch], Period | None]:
    """The launches and their period, None if nothing that repeats has MOST of the time.

    Steps may differ in the grids of some kernels, as those of a model whose cache grows do: such
    launches are returned without a grid, so that they are one group.
    """
    least = MOST * sum(one.ns for one in launches)
    exact = period_of(launches, order)
    ns = exact.ns(launches) if exact else 0
    alike = [replace(one, grid=NOWHERE) for one in launches]
    period = period_of(alike, _without_grids(order))
    if period is None or period.ns(alike) < max(least, MORE * ns):
        return launches, exact if ns >= least else None
    found = list(launches)
    for place in range(period.length):
        same = [start + place for start in period.starts]
        if len({launches[i].grid for i in same}) > 1:
            for i in same:
                found[i] = alike[i]
    return found, replace(period, anchor=found[period.starts[0]].key)


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


def _anchors(launches: Sequence[Launch]) -> list[LaunchKey]:
    """Of kernels that are launched equally often the first, most time first.

    The once-a-step kernels of a training step have a great part of its time together; those that a
    compiler tries before have little.
    """
    ns: Counter[LaunchKey] = Counter()
    for one in launches:
        ns[one.key] += one.ns
    times: Counter[int] = Counter()
    first: dict[int, LaunchKey] = {}
    for key, count in Counter(one.key for one in launches).items():
        times[count] += ns[key]
        first.setdefault(count, key)
    return [first[count] for count, _ in times.most_common() if count > FEWEST][:ANCHORS]


def _from(anchor: LaunchKey, keys: Sequence[LaunchKey]) -> Period | None:
    """The most frequent sequence between two launches of ``anchor``."""
    places = [i for i, key in enumerate(keys) if key == anchor]
    sequences = [tuple(keys[start:end]) for start, end in pairwise(places)]
    if not sequences:
        return None
    common, times = Counter(sequences).most_common(1)[0]
    if times < FEWEST:
        return None
    starts = [start for start, each in zip(places, sequences, strict=False) if each == common]
    return Period(anchor, len(common), tuple(starts))
