"""Where on the host a launch came from: its operation, its phase and its step. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

from rooflab.devices.ranges import Range, around
from rooflab.devices.records import CopyKind, StepTime, Transfer

Thread = tuple[Hashable, Hashable]
"""A process and a thread of it."""

LaunchCall = tuple[Thread, int]
"""A call of CUDA's runtime or driver: on which thread, and when, in ns."""

EventKey = Hashable
"""What a launch and the call that made it have in common."""

_Steps = list[tuple[Range, int]]
"""Steps of one process, each with how many of its name were before."""

_PROFILER_STEP: Final = re.compile(r"ProfilerStep#\d+")
_STEP: Final = re.compile(r"(train|training|test)?[ _]?(step|iteration|iter)([ _#:=.-]*\d+)?", re.I)


@dataclass(frozen=True, slots=True)
class HostPlace:
    """What was around a call. ``step`` is a number of the step in its process, None without one."""

    operation: Range | None = None
    phase: tuple[str, ...] = ()
    step: tuple[str, int] | None = None


UNKNOWN: Final = HostPlace()


@dataclass(slots=True, kw_only=True)
class DeviceActivity:
    """A kernel, copy or memset on a device; ``kind`` is None if it is no copy of a known one.

    ``place`` is that of the call which launched it, ``UNKNOWN`` if that was not recorded.
    """

    start_ns: int
    end_ns: int
    key: EventKey
    device: int = 0
    stream: int = 0
    kind: CopyKind | None = None
    bytes: int = 0
    place: HostPlace = UNKNOWN


@dataclass(slots=True)
class HostThreads:
    """Operations, annotations and steps of all threads, and the calls that launched."""

    operations: dict[Thread, list[Range]] = field(default_factory=lambda: defaultdict(list))
    annotations: dict[Thread, list[Range]] = field(default_factory=lambda: defaultdict(list))
    calls: dict[EventKey, LaunchCall] = field(default_factory=dict)

    def places(self) -> dict[EventKey, HostPlace]:
        """The place of each call."""
        by_thread: dict[Thread, list[tuple[int, EventKey]]] = defaultdict(list)
        for key, (thread, at) in self.calls.items():
            by_thread[thread].append((at, key))
        steps = self._steps()
        phases = {thread: self._phases(thread) for thread in by_thread}
        return {
            key: place
            for thread, calls in by_thread.items()
            for key, place in self._placed(thread, calls, phases[thread], steps.get(thread[0], []))
        }

    def _placed(
        self,
        thread: Thread,
        calls: list[tuple[int, EventKey]],
        phases: list[Range],
        steps: _Steps,
    ) -> Iterable[tuple[EventKey, HostPlace]]:
        moments = [at for at, _ in calls]
        operations = {
            at: found[-1] for at, found in around(self.operations.get(thread, ()), moments) if found
        }
        named = {at: tuple(one.name for one in found) for at, found in around(phases, moments)}
        for at, key in calls:
            yield key, HostPlace(operations.get(at), named[at], _at(steps, at))

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
        return {process: _ordered(ranges) for process, ranges in found.items()}


def _ordered(ranges: Iterable[Range]) -> _Steps:
    """Those that do not overlap; of nested ones the outer."""
    ordered = sorted(ranges, key=lambda one: (one.start_ns, -one.end_ns))
    if own := [one for one in ordered if _PROFILER_STEP.fullmatch(one.name)]:
        ordered = own
    steps: _Steps = []
    seen = Counter[str]()
    for one in ordered:
        if steps and one.start_ns < steps[-1][0].end_ns:
            continue  # a part of the step before
        steps.append((one, seen[one.name]))
        seen[one.name] += 1
    return steps


def _at(steps: _Steps, moment: int) -> tuple[str, int] | None:
    """The name of the step, and its number."""
    index = bisect_right(steps, moment, key=lambda step: step[0].start_ns)
    if not index:
        return None
    step, before = steps[index - 1]
    return (step.name, before) if step.end_ns >= moment else None


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


def launched_steps(activities: Iterable[DeviceActivity]) -> list[StepTime]:
    """The steps in which they were launched, by all threads."""
    return windows((one.place.step, one.start_ns, one.end_ns) for one in activities)


def transfers(activities: Iterable[DeviceActivity]) -> list[Transfer]:
    """Those of known kinds, in the order of time."""
    found = [
        Transfer(
            kind=one.kind,
            bytes=one.bytes,
            start_ns=one.start_ns,
            end_ns=one.end_ns,
            device=one.device,
            stream=one.stream,
            phase=one.place.phase,
        )
        for one in activities
        if one.kind
    ]
    return sorted(found, key=lambda one: one.start_ns)
