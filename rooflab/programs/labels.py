"""Which operation of a library launched what, as one step showed it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rooflab.devices.records import LaunchKey, Needs, RecordedLaunch


@dataclass(frozen=True, slots=True)
class CallLabel:
    """What is known of one launch: its operation, the ranges around it, and its part of the work.

    The work of a call is that of the kernel with most of its time, which may be launched several
    times for it; of its other kernels it is not known.
    """

    operation: str
    phase: tuple[str, ...] = ()
    work: Needs | None = None


def labels(
    launches: Sequence[RecordedLaunch],
    numbers: Sequence[int],
    calls: Mapping[int, CallLabel],
    phases: Sequence[tuple[str, ...]] = (),
) -> dict[LaunchKey, list[CallLabel | None]]:
    """Of each key in the order of its launches.

    ``numbers`` are those of the launches' calls, ``phases`` further ranges around each launch.
    """
    works = {number: label.work for number, label in calls.items()}
    parts = _shared(launches, numbers, works)
    by_key: dict[LaunchKey, list[CallLabel | None]] = defaultdict(list)
    for i, (one, number) in enumerate(zip(launches, numbers, strict=True)):
        label, phase = calls.get(number), phases[i] if phases else ()
        if label or phase:
            label = label or CallLabel("")
            label = replace(label, work=parts[i], phase=(*phase, *label.phase))
        by_key[one.key].append(label)
    return dict(by_key)


def with_parts(launches: Sequence[RecordedLaunch]) -> list[RecordedLaunch]:
    """Launches that have the work of their whole call, with their part of it."""
    numbers = [one.call for one in launches]
    works = {one.call: one.work for one in launches if one.call}
    parts = _shared(launches, numbers, works)
    pairs = zip(launches, parts, strict=True)
    return [one if one.work is part else replace(one, work=part) for one, part in pairs]


def _shared(
    launches: Sequence[RecordedLaunch], numbers: Sequence[int], works: Mapping[int, Needs | None]
) -> list[Needs | None]:
    """The part of each launch in the work of its call."""
    by_call: dict[int, list[int]] = defaultdict(list)
    for i, number in enumerate(numbers):
        if works.get(number):
            by_call[number].append(i)
    found: list[Needs | None] = [None] * len(launches)
    for number, places in by_call.items():
        ns: Counter[str] = Counter()
        for i in places:
            ns[launches[i].kernel] += max(1, launches[i].ns)
        kernel, total = ns.most_common(1)[0]
        for i in places:
            if launches[i].kernel == kernel:
                found[i] = _part(works[number], max(1, launches[i].ns) / total)
    return found


def _part(work: Needs | None, share: float) -> Needs | None:
    if work is None:
        return None

    def part(amount: int | None) -> int | None:
        return None if amount is None else round(amount * share)

    if share == 1:
        return work
    flops, moved = part(work.flops), part(work.bytes)
    return replace(work, flops=flops, bytes=moved, same_as="", again=None)  # another problem


def labelled(
    launches: Sequence[RecordedLaunch], known: Mapping[LaunchKey, Sequence[CallLabel | None]]
) -> list[RecordedLaunch]:
    """The launches with what is known of the ones at the same place of their step.

    A key that a step launched another number of times has a label only if it always was the same.
    """
    counts = Counter(one.key for one in launches)
    seen: Counter[LaunchKey] = Counter()
    made = []
    for one in launches:
        given = known.get(one.key, ())
        place, seen[one.key] = seen[one.key], seen[one.key] + 1
        regular = given and counts[one.key] % len(given) == 0
        label = given[place % len(given)] if regular else _common(given)
        if label:
            phase = label.phase or one.phase
            one = replace(one, operation=label.operation, work=label.work, phase=phase)
        made.append(one)
    return made


def _common(given: Sequence[CallLabel | None]) -> CallLabel | None:
    different = set(given)
    return next(iter(different)) if len(different) == 1 else None
