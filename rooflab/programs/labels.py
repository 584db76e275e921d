"""Which operation of a library launched what, as one step showed it. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from rooflab.devices.records import Launch, LaunchCall, LaunchKey, Needs
from rooflab.programs.host import HostThreads, Place, place_of
from rooflab.programs.ranges import Range


@dataclass(frozen=True, slots=True)
class CallLabel:
    """What is known of one launch: its operation, the ranges around it, and its part of the work.

    The work of a call is that of the kernel with most of its time, which may be launched several
    times for it; of its other kernels it is not known.
    """

    operation: str
    phase: tuple[str, ...] = ()
    work: Needs | None = None


Labels = Mapping[LaunchKey, Sequence[CallLabel | None]]
"""Of each key in the order of its launches in a step."""


def labels(
    launches: Sequence[Launch],
    calls: Sequence[LaunchCall | None],
    host: HostThreads,
    work_of: Callable[[Range], Needs | None],
) -> Labels:
    """``calls`` are those that made the launches. A launch in a module has it as its phase."""
    host = replace(host, calls={i: call for i, call in enumerate(calls) if call})
    found = host.places()
    places = [place_of(found, i) for i in range(len(launches))]
    numbers = {one: i for i, one in enumerate({p.operation: 0 for p in places if p.operation}, 1)}
    works = {i: work_of(one) for one, i in numbers.items()}
    by_call = [numbers[place.operation] if place.operation else 0 for place in places]
    by_key: dict[LaunchKey, list[CallLabel | None]] = defaultdict(list)
    for one, place, part in zip(launches, places, _shared(launches, by_call, works), strict=True):
        by_key[one.key].append(_label(place, part))
    return dict(by_key)


def _label(place: Place, work: Needs | None) -> CallLabel | None:
    phase = (place.module,) if place.module else place.phase
    if place.operation is None and not phase:
        return None
    return CallLabel(place.operation.name if place.operation else "", phase, work)


def constant(known: Labels) -> Labels:
    """Those of keys whose launches all have the same label."""
    return {key: found[:1] for key, found in known.items() if len(set(found)) == 1}


def with_parts(launches: Sequence[Launch]) -> list[Launch]:
    """Launches that have the work of their whole call, with their part of it."""
    numbers = [one.call for one in launches]
    works = {one.call: one.work for one in launches if one.call}
    parts = _shared(launches, numbers, works)
    pairs = zip(launches, parts, strict=True)
    return [one if one.work is part else replace(one, work=part) for one, part in pairs]


def _shared(
    launches: Sequence[Launch], numbers: Sequence[int], works: Mapping[int, Needs | None]
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

    same = work.same_as if share == 1 else ""  # one of several launches is another problem
    return replace(work, flops=part(work.flops), bytes=part(work.bytes), same_as=same)


def labelled(launches: Sequence[Launch], known: Labels) -> list[Launch]:
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
            one = replace(one, operation=label.operation, work=label.work, phase=label.phase)
        made.append(one)
    return made


def _common(given: Sequence[CallLabel | None]) -> CallLabel | None:
    different = set(given)
    return next(iter(different)) if len(different) == 1 else None
