"""A time in which it is seen what launches what, in a program that knows nothing of it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import monotonic
from typing import Any, Final

from rooflab.devices.cuda.activity import Activity, Records
from rooflab.devices.records import LaunchKey, RecordedLaunch
from rooflab.programs.labels import CallLabel, labels
from rooflab.programs.main_thread import in_main_thread
from rooflab.programs.periods import Period, call_starts, known_as
from rooflab.programs.watch import OperationWatch

LaunchLabels = Mapping[LaunchKey, Sequence[CallLabel | None]]

STEPS: Final = 4.0
"""Two of them have one from its first launch to its last, and watched they take longer."""

SHORTEST_S: Final = 0.1
LONGEST_S: Final = 20.0
"""How long it goes on at least, and at most."""

AHEAD_S: Final = 3.0
"""A program may be so far ahead of the device: what it launched is recorded when it is done."""

PATIENCE_S: Final = 1.0
"""The main thread runs Python by then, or the program does without names."""


@dataclass(frozen=True)
class Named:
    """The labels of the launches of one step; ``problem`` says why operations have none."""

    known: LaunchLabels = field(default_factory=dict)
    problem: str = ""


class NamingTime:
    """It begins at once, when all records were taken. What is launched meanwhile is to be cut out.

    NVTX ranges are recorded, and PyTorch's operations are watched, if there are any. ``keys`` are
    those of the launches in the steps of ``period``; ``now`` is the time in seconds.
    """

    def __init__(
        self,
        activity: Activity,
        period: Period,
        keys: Collection[LaunchKey],
        step_s: float,
        now: float,
    ) -> None:
        self._activity, self._period, self._keys = activity, period, keys
        self._until = now + min(LONGEST_S, max(SHORTEST_S, STEPS * step_s))
        self._watch = OperationWatch(activity.push, lambda _: activity.pop(), compiles=False)
        self._problem = cannot_name()
        activity.begin_numbers()
        watched = "torch" in sys.modules and not self._problem
        self._watches = watched and in_main_thread(self._watch.__enter__, PATIENCE_S)
        if watched and not self._watches:
            self._problem = "operations are not named: the main thread runs no Python"

    def done(self, now: float) -> bool:
        """Whether a step was seen whole, or nothing more comes."""
        seen = self._activity.kept > 2 * self._period.length
        return now > self._until + (0.0 if seen else AHEAD_S)

    def end(self) -> Named:
        """What launched what."""
        if self._watches:
            leave(self._watch)
        try:
            self._activity.flush()
            records = self._activity.taken()
        finally:
            self._activity.end_numbers()
        place = _whole_step(records.launches, self._period, self._keys)
        if place is None:
            why = self._problem or "operations are not named: no step was seen whole"
            return Named(problem=why)
        return Named(self._labels(records, place), self._problem)

    def _labels(self, records: Records, place: slice) -> LaunchLabels:
        step = [_known(one, self._keys) for one in records.launches[place]]
        return labels(step, records.numbers[place], self._watch.calls, records.phases[place])


def leave(watch: OperationWatch) -> None:
    """End a watch of the main thread; one that does not come to it goes on without a trace."""
    watch.pause()
    left: list[bool] = []
    end = monotonic() + PATIENCE_S
    while not any(left) and monotonic() < end:
        in_main_thread(lambda: left.append(watch.left()), PATIENCE_S, late=True)


def _known(one: RecordedLaunch, keys: Collection[LaunchKey]) -> RecordedLaunch:
    return replace(one, grid=known_as(one.key, keys).grid)


def _whole_step(
    launches: Sequence[RecordedLaunch], period: Period, keys: Collection[LaunchKey]
) -> slice | None:
    """From its first launch to the next one's: of all whole ones that with the usual length.

    Some operations launch other kernels when they are watched.
    """
    starts = [i for i in call_starts(launches) if known_as(launches[i].key, keys) == period.anchor]
    steps = [slice(start, end) for start, end in pairwise(starts)]
    return min(steps, key=lambda one: abs(one.stop - one.start - period.length), default=None)


def cannot_name(modules: Mapping[str, Any] = sys.modules) -> str:
    """Why operations cannot be watched without another course of the program; else empty."""
    counters = getattr(modules.get("torch._dynamo.utils"), "counters", {})
    if counters.get("frames", {}).get("ok"):
        return "operations are not named: the program uses torch.compile"
    return ""
