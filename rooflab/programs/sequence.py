"""The launches of a whole program: in its order, without what is cut out, and in steps. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import Final, NamedTuple, TypeVar

from rooflab.devices.records import Cut, RecordedLaunch, Recording, StepTime, Transfer
from rooflab.programs.periods import Order, Period
from rooflab.programs.session import SOURCE

RECENT_NS: Final = 2 * 10**9
"""Steps are looked for among the last launches while the program runs."""

TIMED: Final = 4
"""Launches that are timed before one is counted, if there are no steps."""

LONG: Final = 1.5
FEW: Final = 0.05
"""Steps that take so many times as long as the median are left out if they are such a part, or come
before all others."""

CALM: Final = 4
"""So many steps in which rooflab did not look at the program are enough, and a CALM_PART of all."""

CALM_PART: Final = 0.1

T = TypeVar("T", RecordedLaunch, Transfer)


def order(one: RecordedLaunch) -> Order:
    """That of the program: kernels that run beside others begin in another one each time."""
    return one.order, one.start_ns


def graph_launches(launches: Sequence[RecordedLaunch], steps: int) -> int:
    """How often a step launches a CUDA graph; its nodes have the place of that in the order."""
    calls = {one.order for one in launches if one.graph}
    return max(1, round(len(calls) / steps)) if calls else 0


def recent(launches: Sequence[RecordedLaunch]) -> list[RecordedLaunch]:
    """Those of the last RECENT_NS."""
    since = launches[-1].start_ns - RECENT_NS if launches else 0
    return [one for one in launches if one.start_ns >= since]


def repeated(launches: Sequence[RecordedLaunch]) -> list[RecordedLaunch]:
    """Those whose key was launched TIMED times."""
    counts = Counter(one.key for one in launches)
    return [one for one in launches if counts[one.key] >= TIMED]


def in_steps(
    name: str, launches: Sequence[RecordedLaunch], copies: list[Transfer], period: Period | None
) -> tuple[Recording, int]:
    """The steps of a period, or all as one, and the number of steps."""
    if period is None:
        return Recording(launches=launches, copies=copies, source=SOURCE), 1
    steps = [StepTime(name, *span) for span in _spans(launches, period)]
    return Recording(
        launches=period.launches(launches),
        copies=list(_inside(copies, steps)),
        steps=steps,
        source=SOURCE,
    ), len(steps)


def _spans(launches: Sequence[RecordedLaunch], period: Period) -> list[tuple[int, int]]:
    """From the start of each step to that of what comes after it."""
    ends = [*(one.start_ns for one in launches[1:]), max(one.end_ns for one in launches)]
    return [(launches[step.start].start_ns, ends[step.stop - 1]) for step in period.steps]


class Usual(NamedTuple):
    """Steps that say what a step takes, and the µs of those that took far longer.

    These are among the steps, unless they were few or the first ones: ``without`` them.
    """

    steps: tuple[range, ...]
    long: list[float]
    without: bool


def usual(launches: Sequence[RecordedLaunch], period: Period, looks: Sequence[Cut]) -> Usual:
    """In times of ``looks``, one after the other, rooflab worked beside the program.

    Steps that do not overlap with one are taken if they are enough.
    """
    spans = _spans(launches, period)
    ends = [end for _, end in looks]
    calm = [i for i, span in enumerate(spans) if not _is_beside(span, looks, ends)]
    chosen = calm if len(calm) >= max(CALM, CALM_PART * len(spans)) else list(range(len(spans)))
    ns = [spans[i][1] - spans[i][0] for i in chosen]
    most = LONG * median(ns)
    begun = next(place for place, each in enumerate(ns) if each <= most)
    later = sum(each > most for each in ns[begun:])
    without = later <= max(1, FEW * len(ns))
    kept = [i for i, each in zip(chosen, ns, strict=True) if each <= most or not without]
    long = [each / 1e3 for each in ns if each > most]
    return Usual(tuple(period.steps[i] for i in kept), long, without)


def _is_beside(span: Cut, looks: Sequence[Cut], ends: Sequence[int]) -> bool:
    place = bisect_right(ends, span[0])
    return place < len(looks) and looks[place][0] < span[1]


def _inside(copies: Sequence[Transfer], steps: Sequence[StepTime]) -> Iterator[Transfer]:
    starts = [step.start_ns for step in steps]
    for one in copies:
        i = bisect_right(starts, one.start_ns) - 1
        if i >= 0 and one.start_ns < steps[i].end_ns:
            yield one


def without(found: Sequence[T], cuts: Sequence[Cut]) -> list[T]:
    """All outside the cuts, as if these had taken no time."""
    spans = ((one, moved((one.start_ns, one.end_ns), cuts)) for one in found)
    return [replace(one, start_ns=span[0], end_ns=span[1]) for one, span in spans if span]


def moved(span: Cut, cuts: Sequence[Cut]) -> Cut | None:
    """When it is without the cuts, None if it overlaps one."""
    if any(span[0] < end and span[1] > start for start, end in cuts):
        return None
    gone = sum(end - start for start, end in cuts if end <= span[0])
    return span[0] - gone, span[1] - gone
