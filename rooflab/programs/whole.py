"""Recording a whole program: it runs undisturbed, and is counted once its launches repeat."""

from __future__ import annotations

import re
import threading
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Final, TypeVar

from rooflab.devices.cuda.activity import Activity, require_gpu, synchronize
from rooflab.devices.cuda.cupti import Cupti, RangeProfiler
from rooflab.devices.cuda.replay import Counted, Replay, counters_of
from rooflab.devices.records import Launch, LaunchKey, Recording, StepTime, Transfer, of_one_device
from rooflab.errors import RooflabError
from rooflab.programs.collectives import merged_cuts
from rooflab.programs.groups import LaunchSet, Sample, grouped, plan, with_samples
from rooflab.programs.peers import Peers
from rooflab.programs.periods import Order, Period, known_as, steps_of
from rooflab.programs.session import SOURCE, Findings

LOOK_S: Final = 0.2
"""How often to look at what was launched."""

QUIET_S: Final = 0.6
"""A program repeats itself if no launch was new for so long."""

QUIET_NAMES_S: Final = 2.0
"""Or no kernel: grids may grow as long as the program runs."""

RECENT: Final = 20_000
RECENT_NS: Final = 2 * 10**9
"""Its steps are looked for among the last launches while it runs."""

ACTIVE_NS: Final = 5 * 10**8
"""A program that launched nothing for so long does something else."""

MOST_LAUNCHES: Final = 500_000
"""More are not recorded: these take some 300 MB of the host's memory."""

TIMED: Final = 4
"""Launches that are timed before one is counted, if there are no steps."""

EACH_S: Final = 0.17
"""What it takes to count one launch."""

PATIENCE_S: Final = 1.0
"""A window of counting ends if nothing was counted for so long; the next one is later."""

T = TypeVar("T", Launch, Transfer)

Cut = tuple[int, int]
"""A time in which the program was counted: it is cut out."""


class Whole:
    """From ``start`` to ``finish`` everything is recorded; a thread decides when to count."""

    def __init__(
        self,
        name: str,
        *,
        counters: bool = True,
        only: str = "",
        steps: int = 0,
        skip: int = 0,
        narrate: Callable[[str], object] = str,
    ) -> None:
        self.name, self._counters, self._only, self._narrate = name, counters, only, narrate
        self._skip, self._steps = skip, steps
        self.peers: Peers | None = None
        require_gpu()
        self._cupti = Cupti()
        self._activity = Activity(self._cupti)
        self._launches: list[Launch] = []
        self._copies: list[Transfer] = []
        self._cuts: list[Cut] = []
        self._notes: dict[str, None] = {}
        self._first: dict[LaunchKey, Order] = {}  # launches of all kernels
        self._names: set[str] = set()
        self._new_at = self._new_name_at = perf_counter()
        self._resume_at = 0.0
        self._counting_s = self._wait_s = 0.0
        self._off_ns = 0  # since when nothing is recorded
        self._ready: RangeProfiler | None = None
        self._window: CountingTime | None = None
        self._counted: list[tuple[LaunchKey | None, Counted]] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="rooflab", daemon=True)

    def start(self) -> None:
        """Raises ``KernelError`` if CUPTI refuses."""
        self._activity.start()
        self._thread.start()

    def finish(self) -> Findings:
        """Everything that was recorded, or the steps that have most of the time."""
        self._ended.set()
        self._thread.join()
        synchronize()
        try:
            if self._window:
                self._end_counting()
            self._activity.stop()
        except RooflabError as error:  # what there is is shown
            self._notes[str(error)] = None
        self._take()
        self._launches.sort(key=_order)
        cuts = merged_cuts([*self._cuts, *(self.peers.cuts() if self.peers else [])])
        copies = _without(self._copies, cuts)
        launches, period = steps_of(_without(self._launches, cuts), self._first)
        if period and (self._skip or self._steps):
            last = self._skip + self._steps if self._steps else None
            period = replace(period, starts=period.starts[self._skip : last] or period.starts[-1:])
        recording, steps = _recording(self.name, launches, copies, period)
        recording = of_one_device(recording, self._notes)
        groups = self._with_samples(grouped(recording.launches, steps), period)
        if self._counters and groups and not self._counted and not self._notes:
            self._notes["nothing was counted: no launch was repeated for long enough"] = None
        return Findings(
            recording, groups, counting_s=self._counting_s, notes=self._notes, cuts=cuts
        )

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self._activity.flush()
                self._take()
                if len(self._launches) > MOST_LAUNCHES and not self._window:
                    self._activity.stop()
                    text = f"recording ended after {MOST_LAUNCHES} launches; the program went on"
                    self._notes[text] = None
                    return
                if self._counters:
                    self._decide()
            except Exception as error:
                self._notes[f"counting ended: {type(error).__name__}: {error}"] = None
                self._counters = False
                self._give_up()

    def _take(self) -> None:
        records = self._activity.taken()
        self._launches += records.launches
        self._copies += records.copies
        if records.dropped:
            self._notes["some records were dropped: memory is full"] = None
        before = len(self._first)
        for one in records.launches:
            order = _order(one)
            self._first[one.key] = min(self._first.get(one.key, order), order)
        if len(self._first) > before:
            self._new_at = perf_counter()
            names = {key.kernel for key in self._first}
            if len(names) > len(self._names):
                self._names, self._new_name_at = names, self._new_at

    def _repeats(self, now: float) -> bool:
        """Whether nothing that it launches is new."""
        return now - self._new_at > QUIET_S or now - self._new_name_at > QUIET_NAMES_S

    def _decide(self) -> None:
        """Begin to count, or end it."""
        if self._launches and not self._ready:
            try:
                self._ready = counters_of(self._cupti, self._launches[-1].device)
            except RooflabError as error:
                self._notes[str(error)] = None
                self._counters = False
                return
        now = perf_counter()
        if self._window:
            if self._window.done(now):
                self._end_counting()
        elif self._repeats(now) and now > self._resume_at:
            self._begin_counting(now)

    def _begin_counting(self, now: float) -> None:
        """Once the launches repeat: what is missing of those that do."""
        ended_ns = self._launches[-1].end_ns if self._launches else 0
        if perf_counter_ns() - ended_ns > ACTIVE_NS or not self._ready:
            return
        last = _without(sorted(self._launches[-RECENT:], key=_order), self._cuts)
        recent, period = steps_of(_recent(last), self._first)
        repeated = period.launches(recent) if period else _repeated(recent)
        groups = grouped(repeated, len(period.starts) if period else 1)
        due = self._with_samples(groups, period)
        chosen = [g for g in due if re.search(self._only, g.key.kernel)]
        wanted = plan([g for g in chosen if not g.samples], among=chosen)
        if not wanted:
            if groups:
                self._later(now)
            return
        step_s = period.ns(recent) / 1e9 / len(period.starts) if period else 0.0
        try:
            anchor = period.anchor if period else None
            self._pause()
            named = partial(known_as, keys={group.key for group in groups})
            replay = partial(Replay, self._cupti, self._ready, group=named, graphs=False)
            self._window = CountingTime(replay, wanted, anchor, PATIENCE_S + 3 * step_s)
        except RooflabError as error:
            self._notes[str(error)] = None
            self._counters = False
            self._resume()
            return
        count = sum(map(len, wanted.values()))
        self._narrate(f"counting {count} launches: about {max(1.0, count * EACH_S):.0f} s")

    def _with_samples(self, groups: list[LaunchSet], period: Period | None) -> list[LaunchSet]:
        """With what was counted; positions are those in steps with the same start."""
        keys = {group.key for group in groups}
        found: dict[LaunchKey, list[Sample]] = defaultdict(list)
        for anchor, one in self._counted:
            key = known_as(one.key, keys)
            known = period is not None and anchor == period.anchor and key == one.key
            found[key].append(Sample(one.index if known else -1, one.us, one.counters))
        return with_samples(groups, found)

    def _later(self, now: float) -> None:
        """Each time that nothing has to be counted, the next look is later."""
        self._wait_s = 2 * self._wait_s + 1.0
        self._resume_at = now + self._wait_s

    def _end_counting(self) -> None:
        window, self._window = self._window, None
        assert window
        try:
            replay = window.end()
        finally:
            self._later(perf_counter())
            self._resume()
        self._counted += [(window.anchor, one) for one in replay.counted]
        self._notes.update(replay.reasons)
        self._counters = self._counters and not replay.failed

    def _give_up(self) -> None:
        """Record again, whatever has failed."""
        with suppress(Exception):
            if self._window:
                self._end_counting()
            elif self._off_ns:
                self._resume()

    def _pause(self) -> None:
        self._off_ns = perf_counter_ns()
        if self.peers:
            self.peers.begin(self._off_ns)
        self._activity.stop()

    def _resume(self) -> None:
        """Record again: what was not is cut out."""
        since, self._off_ns = self._off_ns, 0
        try:
            self._activity.resume()
        finally:
            now = perf_counter_ns()
            self._cuts.append((since, now))
            if self.peers:
                self.peers.end(now)
            self._counting_s += (now - since) / 1e9


class CountingTime:
    """A time in which launches are counted. Without an anchor, positions are not known."""

    def __init__(
        self,
        replay: Callable[..., Replay],
        wanted: dict[LaunchKey, set[int]],
        anchor: LaunchKey | None,
        patience_s: float,
    ) -> None:
        self._wanted, self.anchor, self._begun = wanted, anchor, anchor is None
        self._patience_s = patience_s
        self._replay = replay(self._is_wanted, anchor=anchor)
        self._asked = perf_counter()
        self._replay.__enter__()

    def _is_wanted(self, key: LaunchKey, index: int) -> bool:
        """Called in the program's threads, before each launch."""
        self._begun = self._begun or key == self.anchor
        places = self._wanted.get(key)
        if not self._begun or not places or (self.anchor and index not in places):
            return False
        places.discard(index if self.anchor else min(places))
        self._asked = perf_counter()
        return True

    def done(self, now: float) -> bool:
        """Whether nothing is missing, or nothing more can be had."""
        missing = any(self._wanted.values())
        return self._replay.failed or not missing or now - self._asked > self._patience_s

    def end(self) -> Replay:
        """What was counted."""
        self._replay.__exit__(None, None, None)
        return self._replay


def _order(one: Launch) -> Order:
    """That of the program: kernels that run beside others begin in another one each time."""
    return one.order, one.start_ns


def _recent(launches: Sequence[Launch]) -> list[Launch]:
    since = launches[-1].start_ns - RECENT_NS if launches else 0
    return [one for one in launches if one.start_ns >= since]


def _repeated(launches: Sequence[Launch]) -> list[Launch]:
    counts = Counter(one.key for one in launches)
    return [one for one in launches if counts[one.key] >= TIMED]


def _recording(
    name: str, launches: Sequence[Launch], copies: list[Transfer], period: Period | None
) -> tuple[Recording, int]:
    """The steps of a period, or all as one, and the number of steps."""
    if period is None:
        return Recording(launches=launches, copies=copies, source=SOURCE), 1
    ends = [*(one.start_ns for one in launches[1:]), max(one.end_ns for one in launches)]
    steps = [
        StepTime(name, launches[start].start_ns, ends[start + period.length - 1])
        for start in period.starts
    ]
    return Recording(
        launches=period.launches(launches),
        copies=list(_inside(copies, steps)),
        steps=steps,
        source=SOURCE,
    ), len(steps)


def _inside(copies: Sequence[Transfer], steps: Sequence[StepTime]) -> Iterator[Transfer]:
    starts = [step.start_ns for step in steps]
    for one in copies:
        i = bisect_right(starts, one.start_ns) - 1
        if i >= 0 and one.start_ns < steps[i].end_ns:
            yield one


def _without(found: Sequence[T], cuts: Sequence[Cut]) -> list[T]:
    """All outside the cuts, as if these had taken no time."""
    kept = []
    for one in found:
        if any(one.start_ns < end and one.end_ns > start for start, end in cuts):
            continue
        gone = sum(end - start for start, end in cuts if end <= one.start_ns)
        kept.append(replace(one, start_ns=one.start_ns - gone, end_ns=one.end_ns - gone))
    return kept
