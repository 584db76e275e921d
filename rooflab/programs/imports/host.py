"""Where on the host a launch came from: its operation, its phase and its step. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from rooflab.devices.ranges import Range, around
from rooflab.devices.records import StepTime

Thread = tuple[Hashable, Hashable]
"""A process and a thread of it."""

EventKey = Hashable
"""What a launch and the call that made it have in common."""

_PROFILER_STEP: Final = re.compile(r"ProfilerStep#\d+")
_STEP: Final = re.compile(r"(train|training|test)?[ _]?(step|iteration|iter)([ _#:=.-]*\d+)?", re.I)


@dataclass(frozen=True, slots=True)
class LaunchCall:
    """A call of CUDA's runtime or driver: on which thread, and when."""

    thread: Thread
    at_ns: int


@dataclass(frozen=True, slots=True)
class HostPlace:
    """What was around a call. ``step`` is a number of the step in its process, None without one."""

    operation: Range | None = None
    phase: tuple[str, ...] = ()
    step: tuple[str, int] | None = None


@dataclass(slots=True)
class HostThreads:
    """Operations, annotations and steps of all threads, and the calls that launched."""

    operations: dict[Thread, list[Range]] = field(default_factory=lambda: defaultdict(list))
    annotations: dict[Thread, list[Range]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[EventKey, LaunchCall] = field(default_factory=dict)

    def places(self) -> dict[EventKey, HostPlace]:
        """The place of each call."""
        by_thread: dict[Thread, list[tuple[int, EventKey]]] = defaultdict(list)
        for key, call in self.calls.items():
            by_thread[call.thread].append((call.at_ns, key))
        steps = self._steps()
        phases = {thread: self._phases(thread) for thread in by_thread}
        return {
            key: place
            for thread, calls in by_thread.items()
            for key, place in self._placed(thread, calls, phases[thread], steps.get(thread[0]))
        }

    def _placed(
        self,
        thread: Thread,
        calls: list[tuple[int, EventKey]],
        phases: list[Range],
        steps: _Steps | None,
    ) -> Iterable[tuple[EventKey, HostPlace]]:
        moments = [at for at, _ in calls]
        operations = {
            at: found[-1] for at, found in around(self.operations.get(thread, ()), moments) if found
        }
        named: dict[int, tuple[str, ...]] = {}
        for at, found in around(phases, moments):
            named[at] = tuple(one.name for one in found)
        for at, key in calls:
            step = steps.at(at) if steps else None
            yield key, HostPlace(operations.get(at), named[at], step)

    def _phases(self, thread: Thread) -> list[Range]:
        """Annotations for a thread: its own or, without any, those of the one thread that has.

        Autograd's threads work for the thread that waits in backward().
        """
        own = self.annotations.get(thread)
        if own is None:
            others = [t for t in self.annotations if t[0] == thread[0]]
            own = self.annotations[others[0]] if len(others) == 1 else []
        return [one for one in own if not is_step(one.name)]

    def _steps(self) -> dict[Hashable, _Steps]:
        found: dict[Hashable, list[Range]] = defaultdict(list)
        for (process, _), ranges in self.annotations.items():
            found[process] += [one for one in ranges if is_step(one.name)]
        return {process: _Steps.of(ranges) for process, ranges in found.items() if ranges}


@dataclass(frozen=True, slots=True)
class _Steps:
    """The steps of one process, which do not overlap, each with its name and how often before."""

    starts: list[int]
    ends: list[int]
    keys: list[tuple[str, int]]

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> _Steps:
        ordered = sorted(ranges, key=lambda one: (one.start_ns, -one.end_ns))
        if own := [one for one in ordered if _PROFILER_STEP.fullmatch(one.name)]:
            ordered = own
        steps, seen = cls([], [], []), Counter[str]()
        for one in ordered:
            if steps.ends and one.start_ns < steps.ends[-1]:
                continue  # a part of the step before
            steps.starts.append(one.start_ns)
            steps.ends.append(one.end_ns)
            steps.keys.append((one.name, seen[one.name]))
            seen[one.name] += 1
        return steps

    def at(self, moment: int) -> tuple[str, int] | None:
        index = bisect_right(self.starts, moment) - 1
        return self.keys[index] if index >= 0 and self.ends[index] >= moment else None


def is_step(name: str) -> bool:
    """Whether an annotation marks a step: ``ProfilerStep#3``, ``iteration 12``, ``train_step``."""
    return bool(_PROFILER_STEP.fullmatch(name) or _STEP.fullmatch(name))


def windows(spans: Iterable[tuple[tuple[str, int] | None, int, int]]) -> list[StepTime]:
    """The steps on the device's clock, from the first start to the last end of their launches.

    Each span has its step and when it ran, in ns.
    """
    found: dict[tuple[str, int], tuple[int, int]] = {}
    for step, start, end in spans:
        if step is not None:
            first, last = found.get(step, (start, end))
            found[step] = (min(first, start), max(last, end))
    ordered = sorted(found.items(), key=lambda each: each[1])
    return [StepTime(name, start, end) for (name, _), (start, end) in ordered]


def place_of(places: Mapping[EventKey, HostPlace], key: EventKey) -> HostPlace:
    """The place of a launch; an empty one if its call was not recorded."""
    return places.get(key, _UNKNOWN)


_UNKNOWN: Final = HostPlace()
