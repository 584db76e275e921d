"""Recording a whole program: it runs undisturbed, and is counted once its launches repeat."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from statistics import median
from time import perf_counter
from typing import Final, TypeVar

from rooflab.devices.cuda.activity import Activity, synchronize
from rooflab.devices.cuda.cupti import Cupti
from rooflab.devices.cuda.replay import Replay
from rooflab.devices.records import Copy, Key, Launch, Recording
from rooflab.errors import KernelError, UnavailableError
from rooflab.programs.groups import ALIKE, Sample, grouped, with_samples
from rooflab.programs.session import Findings

LOOK_S: Final = 0.2
"""How often to look at what was launched."""

QUIET_S: Final = 0.6
"""A program repeats itself if no kernel was new for so long."""

TIMED: Final = 4
"""Launches that are timed before one is counted."""

MOST_SAMPLES: Final = 12
"""Launches of one key that are counted, to find one of each group."""

PATIENCE_S: Final = 5.0
"""A window of counting ends if nothing was counted for so long; the next one is later."""

T = TypeVar("T", Launch, Copy)

Cut = tuple[int, int]
"""A time in which the program was counted: it is cut out."""


class Whole:
    """From ``start`` to ``finish`` everything is recorded; a thread decides when to count."""

    def __init__(self, name: str, *, counters: bool = True) -> None:
        self.name, self._counters = name, counters
        self._cupti = Cupti()
        self._activity = Activity(self._cupti)
        self._launches: list[Launch] = []
        self._copies: list[Copy] = []
        self._cuts: list[Cut] = []
        self._samples: dict[Key, list[Sample]] = defaultdict(list)
        self._classes: dict[Key, list[float]] = {}
        self._times: dict[Key, list[float]] = defaultdict(list)
        self._notes: dict[str, None] = {}
        self._new_at = self._counted_at = perf_counter()
        self._counting_s = 0.0
        self._wait_s = 0.0
        self._replay: Replay | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rooflab", daemon=True)

    def start(self) -> None:
        """Raises ``KernelError`` if CUPTI refuses."""
        self._activity.start()
        self._thread.start()

    def finish(self) -> Findings:
        """Everything that was recorded."""
        self._ended.set()
        self._thread.join()
        self._end_counting()
        synchronize()
        self._activity.stop()
        self._take()
        notes = self._notes
        recording = Recording(
            launches=_without(self._launches, self._cuts),
            copies=_without(self._copies, self._cuts),
            source="CUPTI's activity records",
            notes=list(notes),
        )
        groups = with_samples(grouped(recording.launches), self._samples)
        if self._counters and groups and not self._samples and not notes:
            notes["nothing was counted: no launch was repeated for long enough"] = None
        return Findings(recording, groups, counting_s=self._counting_s, notes=notes)

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._activity.flush()
                self._take()
                if self._counters:
                    self._decide()
            except Exception as error:
                self._notes[f"counting ended: {type(error).__name__}: {error}"] = None
                self._counters = False

    def _take(self) -> None:
        records = self._activity.taken()
        self._launches += records.launches
        self._copies += records.copies
        if records.dropped:
            self._notes["some records were dropped: memory is full"] = None
        for one in records.launches:
            if one.key not in self._times:
                self._new_at = perf_counter()
            if not self._replay and len(self._times[one.key]) < 64 * TIMED:
                self._times[one.key].append(one.ns / 1e3)

    def _decide(self) -> None:
        """Begin to count, or end it."""
        now = perf_counter()
        if self._replay:
            stuck = now - max(self._counted_at, self._counting_since) > PATIENCE_S
            if self._replay.failed or stuck or not self._due():
                self._end_counting()
        elif now - self._new_at > QUIET_S and now - self._counted_at > self._wait_s and self._due():
            self._begin_counting()

    def _due(self) -> list[Key]:
        """The keys of which something is missing."""
        return [key for key in self._times if self._wants(key)]

    def _wants(self, key: Key) -> bool:
        times, samples = self._times[key], self._samples[key]
        if len(times) < TIMED or len(samples) >= MOST_SAMPLES:
            return False
        return any(not any(_near(one.us, us) for one in samples) for us in self._typical(key))

    def _typical(self, key: Key) -> list[float]:
        """The usual times of its groups."""
        if key not in self._classes:
            sorts = grouped(
                [
                    Launch(kernel=key.kernel, start_ns=0, end_ns=int(us * 1e3), grid=key.grid)
                    for us in self._times[key]
                ]
            )
            common = [g for g in sorts if len(g.launches) > 0.05 * len(self._times[key])]
            self._classes[key] = [median(one.ns for one in g.launches) / 1e3 for g in common]
        return self._classes[key]

    def _begin_counting(self) -> None:
        self._classes.clear()
        try:
            device = self._launches[-1].device
            self._replay = Replay(self._cupti, device, self._is_wanted, graphs=False)
            self._replay.__enter__()
        except (KernelError, UnavailableError) as error:
            self._notes[str(error)] = None
            self._replay, self._counters = None, False
            return
        self._counting_since = perf_counter()
        self._cut_from = self._activity.now()

    def _is_wanted(self, key: Key, index: int) -> bool:
        """Called in the program's threads, before each launch."""
        replay = self._replay
        if replay is None or key not in self._times:
            return False
        while len(replay.counted) > self._read:
            one = replay.counted[self._read]
            self._read += 1
            self._samples[one.key].append(Sample(-1, one.us, one.counters))
            self._counted_at = perf_counter()
        return self._wants(key)

    _read = 0

    def _end_counting(self) -> None:
        replay, self._replay = self._replay, None
        if replay is None:
            return
        replay.__exit__(None, None, None)
        for one in replay.counted[self._read :]:
            self._samples[one.key].append(Sample(-1, one.us, one.counters))
        self._read = 0
        self._notes.update(replay.reasons)
        self._counters = self._counters and not replay.failed
        self._counting_s += perf_counter() - self._counting_since
        self._counted_at = perf_counter()
        self._wait_s = 2 * self._wait_s + 1.0
        with suppress(KernelError):
            self._cuts.append((self._cut_from, self._activity.now()))


def _near(a: float, b: float) -> bool:
    return max(a, b) < ALIKE * max(1e-3, min(a, b))


def _without(found: Sequence[T], cuts: Sequence[Cut]) -> list[T]:
    """All outside the cuts, as if these had taken no time."""
    kept = []
    for one in found:
        if any(one.start_ns < end and one.end_ns > start for start, end in cuts):
            continue
        gone = sum(end - start for start, end in cuts if end <= one.start_ns)
        kept.append(replace(one, start_ns=one.start_ns - gone, end_ns=one.end_ns - gone))
    return kept
