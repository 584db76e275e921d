"""The launches of a whole program: in its order, without what is cut out, and in steps. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from rooflab.devices.records import Launch, Recording, StepTime, Transfer
from rooflab.programs.periods import Order, Period
from rooflab.programs.session import SOURCE

RECENT_NS: Final = 2 * 10**9
"""Steps are looked for among the last launches while the program runs."""

TIMED: Final = 4
"""Launches that are timed before one is counted, if there are no steps."""

T = TypeVar("T", Launch, Transfer)

Cut = tuple[int, int]
"""A time in which the program was held, counted or watched."""


def order(one: Launch) -> Order:
    """That of the program: kernels that run beside others begin in another one each time."""
    return one.order, one.start_ns


def graph_launches(launches: Sequence[Launch], steps: int) -> int:
    """How often a step launches a CUDA graph; its nodes have the place of that in the order."""
    calls = {one.order for one in launches if one.graph}
    return max(1, round(len(calls) / steps)) if calls else 0


def recent(launches: Sequence[Launch]) -> list[Launch]:
    """Those of the last RECENT_NS."""
    since = launches[-1].start_ns - RECENT_NS if launches else 0
    return [one for one in launches if one.start_ns >= since]


def repeated(launches: Sequence[Launch]) -> list[Launch]:
    """Those whose key was launched TIMED times."""
    counts = Counter(one.key for one in launches)
    return [one for one in launches if counts[one.key] >= TIMED]


def in_steps(
    name: str, launches: Sequence[Launch], copies: list[Transfer], period: Period | None
) -> tuple[Recording, int]:
    """The steps of a period, or all as one, and the number of steps."""
    if period is None:
        return Recording(launches=launches, copies=copies, source=SOURCE), 1
    ends = [*(one.start_ns for one in launches[1:]), max(one.end_ns for one in launches)]
    steps = [
        StepTime(name, launches[step.start].start_ns, ends[step.stop - 1]) for step in period.steps
    ]
    return Recording(
        launches=period.launches(launches),
        copies=list(_inside(copies, steps)),
        steps=steps,
        source=SOURCE,
    ), len(steps)


def _inside(copies: Sequence[Transfer], steps: Sequence[StepTime]) -> Iterator[Transfer]:
    starts = [step.start_ns for step in steps]
    for one in copies:
        i = bisect_right(starts, one.start_ns) - 1
        if i >= 0 and one.start_ns < steps[i].end_ns:
            yield one


def without(found: Sequence[T], cuts: Sequence[Cut]) -> list[T]:
    """All outside the cuts, as if these had taken no time."""
    kept = []
    for one in found:
        if any(one.start_ns < end and one.end_ns > start for start, end in cuts):
            continue
        gone = sum(end - start for start, end in cuts if end <= one.start_ns)
        kept.append(replace(one, start_ns=one.start_ns - gone, end_ns=one.end_ns - gone))
    return kept
