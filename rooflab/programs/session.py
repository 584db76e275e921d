"""Recording this process: when its steps run undisturbed, and when they are counted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from time import perf_counter
from types import TracebackType
from typing import Final

from rooflab.devices.cuda.activity import Activity, synchronize
from rooflab.devices.cuda.cupti import Cupti
from rooflab.devices.cuda.replay import Replay
from rooflab.devices.records import Key, Recording, Window
from rooflab.errors import KernelError, UnavailableError, UsageError
from rooflab.programs.groups import Group, Sample, grouped, wanted, with_samples

SKIP: Final = 3
STEPS: Final = 5
"""Steps that warm up, and steps that are timed, unless the caller says others."""

MOST_COUNTING: Final = 8
"""Steps in which counting may go on: a CUDA graph gets one group of counters in each."""

IMPORTANT: Final = 0.03
"""A group with so large a part of the time is counted twice, to see whether its counts vary."""


@dataclass
class Findings:
    """All that was learned of a program: its launches, and the groups with what was counted."""

    recording: Recording
    groups: list[Group]
    plain_us: float | None = None
    counting_s: float = 0.0
    notes: dict[str, None] = field(default_factory=dict)

    @property
    def overhead_percent(self) -> float | None:
        """What recording added to a step; None if no step ran without it."""
        windows = self.recording.windows
        if not self.plain_us or not windows:
            return None
        recorded = sum(window.ns for window in windows) / 1e3 / len(windows)
        return 100 * (recorded / self.plain_us - 1)


class Steps:
    """Steps of a program, one after the other: a context manager that is entered for each.

    The first ``skip`` warm up. As many as ``steps`` run without a profiler, as many are recorded,
    then it is counted until nothing is missing. ``done`` says that no more steps are needed.
    """

    def __init__(
        self, name: str, *, steps: int = STEPS, skip: int = SKIP, counters: bool = True
    ) -> None:
        if steps < 1 or skip < 0:
            raise UsageError(
                f"steps={steps}, skip={skip}: record one step at least, skip 0 or more"
            )
        self.name, self._steps, self._skip, self._counters = name, steps, skip, counters
        self._cupti = Cupti()
        self._activity = Activity(self._cupti)
        self._number = 0
        self._started_ns = self._plain_started = 0.0
        self._plain_us: float | None = None
        self._phase: Callable[[], None] = self._warm
        self._replay: Replay | None = None
        self.found: Findings | None = None
        self.done = False

    # Phases: what happens when a step ends decides what the next one is for.

    def __enter__(self) -> Steps:
        self._number += 1
        if self._number == self._skip + 1:
            self._phase = self._plain
            synchronize()
            self._plain_started = perf_counter()
        elif self._number == self._skip + self._steps + 1:
            self._phase = self._recorded
            synchronize()
            self._activity.start()
            self._started_ns = self._activity.now()
        elif self._phase == self._counted and not self.done:
            self._start_counting()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.finish()
            return
        if not self.done:
            self._phase()

    def _warm(self) -> None:
        """Nothing."""

    def _plain(self) -> None:
        if self._number == self._skip + self._steps:
            synchronize()
            self._plain_us = (perf_counter() - self._plain_started) * 1e6 / self._steps

    def _recorded(self) -> None:
        if self._number == self._skip + 2 * self._steps:
            self._keep(self._steps)

    def _keep(self, steps: int) -> None:
        """What was recorded, and what to count of it."""
        synchronize()
        ended = self._activity.now()
        self._activity.stop()
        records = self._activity.taken()
        each = (ended - self._started_ns) / steps
        starts = [int(self._started_ns + i * each) for i in range(steps + 1)]
        windows = [Window(self.name, *ends) for ends in pairwise(starts)]
        notes = [f"{records.dropped} records were dropped"] if records.dropped else []
        recording = Recording(
            launches=records.launches,
            copies=records.copies,
            steps=windows,
            source="CUPTI's activity records",
            notes=notes,
        )
        groups = grouped(records.launches, steps)
        self.found = Findings(recording, groups, self._plain_us, notes=dict.fromkeys(notes))
        self._phase = self._counted
        self._plan = _plan(groups)
        self._samples: dict[Key, list[Sample]] = defaultdict(list)
        self._left = MOST_COUNTING
        if not self._counters or not self._plan:
            self.done = True

    def _start_counting(self) -> None:
        assert self.found
        device = self.found.recording.launches[0].device
        try:
            self._replay = Replay(self._cupti, device, self._is_wanted)
            self._replay.__enter__()
        except (KernelError, UnavailableError) as error:
            self.found.notes[str(error)] = None
            self._replay, self.done = None, True
        self._counting_since = perf_counter()

    def _is_wanted(self, key: Key, index: int) -> bool:
        return index in self._plan.get(key, ())

    def _counted(self) -> None:
        replay, self._replay = self._replay, None
        if replay is None or self.found is None:
            return
        synchronize()
        replay.__exit__(None, None, None)
        self.found.counting_s += perf_counter() - self._counting_since
        self.found.notes.update(replay.reasons)
        for one in replay.counted:
            self._samples[one.key].append(Sample(one.index, one.us, one.counters))
            self._plan[one.key].discard(one.index)
        self._left -= 1
        missing = any(key in replay.seen and places for key, places in self._plan.items())
        self.done = replay.failed or not missing or not self._left
        self.found.groups = with_samples(self.found.groups, self._samples)

    def finish(self) -> None:
        """End whatever is going on: no more steps will come."""
        if self._replay:
            self._counted()
        elif self._phase == self._recorded and self.found is None:
            recorded = self._number - self._skip - self._steps
            with suppress(KernelError):
                self._keep(max(1, recorded))
        self.done = True


def _plan(groups: Sequence[Group]) -> dict[Key, set[int]]:
    total = sum(group.total_us for group in groups)
    large = [group for group in groups if group.total_us > IMPORTANT * total]
    plan = wanted(groups)
    for key, places in wanted(large, 2).items():
        plan[key] |= places
    return plan
