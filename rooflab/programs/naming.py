"""A time in which PyTorch's operations are watched: which of them launches what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from rooflab.devices.cuda.activity import Activity
from rooflab.devices.records import Launch, LaunchCall
from rooflab.programs.labels import Labels, constant, labels
from rooflab.programs.periods import Period
from rooflab.programs.threads import in_main_thread
from rooflab.programs.watch import OperationWatch, work_of

STEPS: Final = 4.0
"""Two of them have one from its first launch to its last, and watched they take longer."""

SHORTEST_S, LONGEST_S = 0.1, 20.0
"""How long it goes on at least, and at most."""

PATIENCE_S: Final = 1.0
"""The main thread runs Python by then, or the program does without names."""


@dataclass(frozen=True)
class Named:
    """What is known of a program's launches. ``period`` says what a step was."""

    known: Labels
    period: Period | None
    problem: str = ""

    def of(self, period: Period | None) -> Labels:
        """The labels in steps of a period: others only know what always is the same."""
        mine = self.period
        if mine and period and (mine.anchor, mine.length) == (period.anchor, period.length):
            return self.known
        return constant(self.known)


class NamingTime:
    """It begins at once, with records that have stopped. Everything launched in it is cut out."""

    def __init__(
        self, activity: Activity, period: Period | None, step_s: float, now: float
    ) -> None:
        self._activity, self._period = activity, period
        self._until = now + min(LONGEST_S, max(SHORTEST_S, STEPS * step_s))
        self._watch = OperationWatch()
        self._activity.start(calls=True)
        self._watching = in_main_thread(self._watch.__enter__, PATIENCE_S)

    def done(self, now: float) -> bool:
        """Whether there was time for a whole step."""
        return not self._watching or now > self._until

    def end(self) -> Named:
        """What was launched by what; the records have stopped again."""
        if self._watching and not in_main_thread(self._watch.__exit__, PATIENCE_S):
            self._watch.__exit__()
        self._activity.stop()
        found = self._activity.taken()
        self._watch.host.add(found.ranges)
        start, end = _step(found.launches, self._period)
        launches, calls = found.launches[start:end], found.calls[start:end]
        known = self._labels(launches, calls)
        if end == start:  # no whole step
            known = constant(self._labels(found.launches, found.calls))
        return Named(known, self._period, self._watch.problem)

    def _labels(self, launches: Sequence[Launch], calls: Sequence[LaunchCall | None]) -> Labels:
        return labels(launches, calls, self._watch.host, work_of)


def _step(launches: Sequence[Launch], period: Period | None) -> tuple[int, int]:
    """The first whole one; nothing without one."""
    if period is None:
        return 0, 0
    places = [i for i, one in enumerate(launches) if one.key == period.anchor]
    for start, end in pairwise(places):
        if end - start == period.length:
            return start, end
    return 0, 0
