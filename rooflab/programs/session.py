"""Recording this process: when its steps run undisturbed, and when they are counted."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from time import perf_counter
from types import TracebackType
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda.activity import Activity, require_gpu, synchronize
from rooflab.devices.cuda.cupti import Cupti
from rooflab.devices.cuda.replay import Replay, counters_of
from rooflab.devices.records import Cut, LaunchKey, Recording, StepTime
from rooflab.errors import RooflabError
from rooflab.programs.groups import LaunchSet, Sample, grouped, plan, with_samples
from rooflab.programs.labels import labelled, labels
from rooflab.programs.watch import OperationWatch

SKIP: Final = 3
STEPS: Final = 5
"""Steps that warm up, and steps that are timed, unless the caller says others."""

ENOUGH_S: Final = 0.15
MOST_STEPS: Final = 20
"""Steps go on for so long, but not more of them."""

SOURCE: Final = "CUPTI's activity records"

MOST_COUNTING: Final = 8
"""Steps in which counting may go on: a CUDA graph gets one group of counters in each."""


@dataclass
class Findings:
    """All that was learned of a program: its launches, and the groups with what was counted."""

    recording: Recording
    groups: list[LaunchSet]
    plain_us: float | None = None
    counting_s: float = 0.0
    graphs: list[Counters] = field(default_factory=list)
    graph_launches: int = 0
    notes: dict[str, None] = field(default_factory=dict)
    cuts: list[Cut] = field(default_factory=list)
    """Times of the clock that are cut out of the recording's."""

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

    The first ``skip`` warm up. Then steps run without a profiler, as many are recorded, and as many
    run without again: at least ``steps`` of each, and for ENOUGH_S. One step shows PyTorch's
    operations, with the ``modules`` around them. Then it is counted until nothing is missing.
    ``done`` says that no more steps are needed.
    """

    def __init__(
        self,
        name: str,
        *,
        steps: int = STEPS,
        skip: int = SKIP,
        counters: bool = True,
        modules: bool = False,
    ) -> None:
        self.name, self._steps, self._skip, self._counters = name, steps, skip, counters
        require_gpu()
        self._cupti = Cupti()
        self._activity = Activity(self._cupti)
        self._count = 0
        self._since = 0.0
        self._since_ns = 0
        self._plain_us: list[float] = []
        self._replay: Replay | None = None
        self._plan: dict[LaunchKey, set[int]] = {}
        self._samples: dict[LaunchKey, list[Sample]] = defaultdict(list)
        self._watch = OperationWatch(self._activity.push, lambda _: self._activity.pop(), modules)
        self._ends = self._warmed
        self.found: Findings | None = None

    @property
    def done(self) -> bool:
        """Whether no more steps are needed."""
        return self._ends == self._nothing

    def __enter__(self) -> Steps:
        if self._ends == self._labelled:
            self._watch.__enter__()
        if self._replay:
            self._replay.new_step()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._count += 1
        if kind is None:
            self._ends()
        else:
            self.finish()

    # What happens at the end of a step: each of these says what the next one is for.

    def _nothing(self) -> None:
        pass

    def _warmed(self) -> None:
        if self._count >= self._skip:
            self._next(self._plain)

    def _next(self, ends: Callable[[], None]) -> None:
        synchronize()
        self._ends, self._count, self._since = ends, 0, perf_counter()

    def _enough(self) -> bool:
        """Whether these steps are enough. One that is not waited for is not seen to be long."""
        lasted = perf_counter() - self._since
        return self._count >= self._steps and (lasted > ENOUGH_S or self._count >= MOST_STEPS)

    def _plain(self) -> None:
        if self._enough():
            self._clock()
            self._steps = self._count
            self._activity.start()
            self._next(self._first)

    def _clock(self) -> None:
        synchronize()
        self._plain_us.append((perf_counter() - self._since) * 1e6 / self._count)

    def _first(self) -> None:
        """The first launches that are recorded take longer: they are not kept."""
        synchronize()
        self._activity.flush()
        self._activity.taken()
        self._next(self._recorded)
        self._since_ns = self._activity.now()

    def _recorded(self) -> None:
        if self._count >= self._steps:
            self._keep()

    def _keep(self) -> None:
        synchronize()
        ended = self._activity.now()
        self._activity.stop()
        records = self._activity.taken()
        steps, began = self._count, self._since_ns
        ends = [began + (ended - began) * i // steps for i in range(steps + 1)]
        notes = [f"{records.dropped} records were dropped"] if records.dropped else []
        recording = Recording(
            launches=records.launches,
            copies=records.copies,
            steps=[StepTime(self.name, *each) for each in pairwise(ends)],
            source=SOURCE,
            notes=notes,
        )
        groups = grouped(records.launches, steps)
        plain_us = sum(self._plain_us) / len(self._plain_us)  # until the other part is known
        self.found = Findings(recording, groups, plain_us, notes=dict.fromkeys(notes))
        self._next(self._plain_again)

    def _plain_again(self) -> None:
        """The chip may be slower than before the steps that were recorded: it is warmer."""
        if self._count >= self._steps and self.found:
            self._clock()
            self.found.plain_us = sum(self._plain_us) / len(self._plain_us)
            if "torch" in sys.modules:
                self._activity.start(numbers=True)
                self._next(self._labelled)
            else:
                self._begin_counting(self.found)

    def _labelled(self) -> None:
        """A step in which PyTorch's operations are watched: which of them launches what."""
        self._watch.__exit__()
        synchronize()
        self._activity.stop()
        records = self._activity.taken()
        found = self.found
        assert found
        known = labels(records.launches, records.numbers, self._watch.calls)
        launches = labelled(found.recording.launches, known)
        found.recording = replace(found.recording, launches=launches)
        found.groups = grouped(launches, len(found.recording.windows))
        self._begin_counting(found)

    def _begin_counting(self, found: Findings) -> None:
        self._plan = plan(found.groups)
        self._next(self._counted if self._counters and self._plan else self._nothing)
        if self.done:
            return
        device = found.recording.launches[0].device
        try:
            counters = counters_of(self._cupti, device)
            self._replay = Replay(self._cupti, counters, self._is_wanted)
            self._replay.__enter__()
        except RooflabError as error:
            found.notes[str(error)] = None
            self._replay, self._ends = None, self._nothing

    def _is_wanted(self, key: LaunchKey, index: int) -> bool:
        return index in self._plan.get(key, ())

    def _counted(self) -> None:
        replay = self._replay
        assert replay
        self._collect(replay)
        missing = any(key in replay.seen and places for key, places in self._plan.items())
        if replay.failed or self._count >= MOST_COUNTING or not (missing or replay.unfinished):
            self._end_counting()

    def _collect(self, replay: Replay) -> None:
        synchronize()
        for one in replay.counted:
            self._samples[one.key].append(Sample(one.index, one.us, one.counters))
            self._plan[one.key].discard(one.index)
        replay.counted.clear()

    def _end_counting(self) -> None:
        replay, self._replay, self._ends = self._replay, None, self._nothing
        if replay and self.found:
            self._collect(replay)
            replay.__exit__(None, None, None)
            self.found.counting_s = perf_counter() - self._since
            self.found.notes.update(replay.reasons)
            self.found.graphs = replay.counted_graphs
            self.found.graph_launches = replay.graph_launches
            self.found.groups = with_samples(self.found.groups, self._samples)

    @property
    def has_recorded(self) -> bool:
        """Whether ``finish`` leaves something in ``found``."""
        return self.found is not None or (self._ends == self._recorded and self._count > 0)

    def finish(self) -> None:
        """End whatever is going on: no more steps will come."""
        if self._ends == self._labelled:
            self._watch.__exit__()
        if self._ends == self._recorded and self._count:
            self._keep()
        elif self._ends in (self._first, self._recorded, self._labelled):
            self._activity.stop()
        self._end_counting()
