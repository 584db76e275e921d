"""Which launches of a collective on several ranks are one and the same call. Pure.

A collective ends on all of its ranks at about the same time, whenever each of them has come to it.
So launches whose ends agree belong together: by the clock that ranks of a host share, or by an
estimate of what the clocks of hosts differ in.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Final

from rooflab.model.collectives import CollectiveLaunch, Collectives

TOGETHER_NS: Final = 30_000
"""Ends of one call differ by less, or by less than half of its shortest launch."""

CLOCKS_NS: Final = 50_000_000
"""Clocks of hosts, which are set over the network, differ by less."""

GUESSES: Final = 64
LOOKED_AT: Final = 500
"""What is tried to find the difference of two clocks, and with how many launches."""

CollectiveCall = Mapping[int, CollectiveLaunch]
"""The launches of one call, by rank."""


def calls(
    of: Mapping[int, Sequence[CollectiveLaunch]], known: Mapping[int, Collectives]
) -> list[CollectiveCall]:
    """The calls of one collective that all ranks of ``of`` have; ``known`` has their clocks."""
    sorted_of = {rank: sorted(some, key=lambda one: one.end_ns) for rank, some in of.items()}
    first = min(sorted_of, key=lambda rank: (len(sorted_of[rank]), rank))
    ends = {rank: [one.end_ns for one in some] for rank, some in sorted_of.items()}
    behind = {
        rank: _behind(ends[first], ends[rank], list(_guesses(known, ends, first, rank)))
        for rank in sorted_of
    }
    found: list[CollectiveCall] = []
    for one in sorted_of[first]:
        call = {
            rank: sorted_of[rank][_nearest(ends[rank], one.end_ns - behind[rank])]
            for rank in sorted_of
        }
        if _together(call, behind):
            found.append(call)
    return found


def _together(call: CollectiveCall, behind: Mapping[int, int]) -> bool:
    ends = [one.end_ns + behind[rank] for rank, one in call.items()]
    shortest = min(one.ns for one in call.values())
    return max(ends) - min(ends) <= max(TOGETHER_NS, shortest / 2)


def _guesses(
    known: Mapping[int, Collectives], ends: Mapping[int, Sequence[int]], first: int, rank: int
) -> Iterator[int]:
    """What the clock of ``rank`` may lack to that of ``first``, in nanoseconds."""
    if rank == first or known[rank].clock == known[first].clock:
        yield 0
        return
    said = known[rank].epoch_ns - known[first].epoch_ns
    yield said
    middle = ends[first][len(ends[first]) // 2]
    some = [middle - end for end in ends[rank] if abs(middle - end - said) < CLOCKS_NS]
    yield from sorted(some, key=lambda guess: abs(guess - said))[:GUESSES]


def _behind(first: Sequence[int], ends: Sequence[int], guesses: Sequence[int]) -> int:
    """The guess with which most ends agree, made exact; of equal ones the earliest."""
    best, most = guesses[0], -1
    for guess in guesses:
        exact = round(median(_gaps(first, ends, guess)))
        agreeing = sum(abs(gap - exact) < TOGETHER_NS for gap in _gaps(first, ends, exact))
        if agreeing > most:
            best, most = exact, agreeing
    return best


def _gaps(first: Sequence[int], ends: Sequence[int], behind: int) -> Iterator[int]:
    """What the nearest end lacks to each of ``first``."""
    for end in first[:: max(1, len(first) // LOOKED_AT)]:
        yield end - ends[_nearest(ends, end - behind)]


def _nearest(ends: Sequence[int], end: int) -> int:
    i = bisect_left(ends, end)
    near = [j for j in (i - 1, i) if 0 <= j < len(ends)]
    return min(near, key=lambda j: abs(ends[j] - end))
