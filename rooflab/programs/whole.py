"""Recording a whole program: it runs undisturbed, and is counted once its launches repeat."""

from __future__ import annotations

import re
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda.activity import Activity, require_gpu, synchronize
from rooflab.devices.cuda.cupti import Cupti, RangeProfiler
from rooflab.devices.cuda.replay import BusyError, Counted, Replay, counters_of
from rooflab.devices.records import (
    Cut,
    LaunchKey,
    RecordedLaunch,
    Recording,
    Transfer,
    of_one_device,
)
from rooflab.errors import RooflabError, UsageError
from rooflab.programs import sequence
from rooflab.programs.collectives import merged_cuts
from rooflab.programs.groups import LaunchSet, Sample, grouped, plan, with_samples
from rooflab.programs.labels import labelled
from rooflab.programs.naming import Named, NamingTime
from rooflab.programs.parts import part_of
from rooflab.programs.peers import Peers
from rooflab.programs.periods import Order, Period, known_as, steps_of
from rooflab.programs.sequence import moved, without
from rooflab.programs.session import Findings
from rooflab.programs.yielding import yielding

LOOK_S: Final = 0.2
"""How often to look at what was launched."""

QUIET_S: Final = 0.6
"""A program repeats itself if no launch was new for so long."""

QUIET_NAMES_S: Final = 2.0
"""Or no kernel: grids may grow as long as the program runs."""

RECENT: Final = 20_000
"""Its steps are looked for among the last launches while it runs."""

ACTIVE_NS: Final = 5 * 10**8
"""A program that launched nothing for so long does something else."""

GRAPH_STEPS: Final = 10
"""Steps in which a CUDA graph is counted: it gets one group of counters in each."""

MOST_LAUNCHES: Final = 500_000
"""More are not recorded: these take some 300 MB of the host's memory."""

HELD_BYTES: Final = 2**26
"""So many records are looked at though it is not yet time."""

AGAIN_S: Final = 1.0
"""How long to rest while something is missing; later it is longer each time."""

NOTHING_NS: Final = 10**5
"""A look that is no longer does not disturb a program."""

EACH_S: Final = 0.17
"""What it takes to count one launch."""

SLOW: Final = 2.0
"""Counting is slow if it takes so many times as long as usual, and so many seconds more."""

PATIENCE_S: Final = 1.0
"""A window of counting ends if nothing was counted for so long; the next one is later."""


class Whole:
    """From ``start`` to ``finish`` everything is recorded; a thread decides when to count."""

    def __init__(
        self,
        name: str,
        *,
        counters: bool = True,
        only: str = "",
        inside: str = "",
        steps: int = 0,
        skip: int = 0,
        narrate: Callable[[str], object] = str,
    ) -> None:
        self.name, self._counters, self._only, self._narrate = name, counters, only, narrate
        self._skip, self._steps, self._inside = skip, steps, inside
        self.peers: Peers | None = None
        require_gpu()
        self._cupti = Cupti()
        self._activity = Activity(self._cupti)
        self._launches: list[RecordedLaunch] = []
        self._copies: list[Transfer] = []
        self._cuts: list[Cut] = []
        self._notes: dict[str, None] = {}
        self._first: dict[LaunchKey, Order] = {}  # launches of all kernels
        self._names: set[str] = set()
        self._new_at = self._new_name_at = perf_counter()
        self._looked_ns = 0
        self._working_ns = 0  # since when this thread works beside the program
        self._looks: list[Cut] = []
        self._resume_at = 0.0
        self._counting_s = self._wait_s = 0.0
        self._off_ns = 0  # since when the time is cut out
        self._told_slow = False
        self._uncounted = ""
        self._ready: RangeProfiler | None = None
        self._window: CountingTime | None = None
        self._naming: NamingTime | None = None
        self._named: Named | None = None
        self._counted: list[tuple[LaunchKey | None, Counted]] = []
        self._graphs: list[Counters] = []
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
            self._end_window()
            self._activity.stop()
        except RooflabError as error:  # what there is is shown
            self._notes[str(error)] = None
        told = bool(self._notes)  # so far, of what was recorded and counted
        self._take()
        self._launches.sort(key=sequence.order)
        cuts = merged_cuts([*self._cuts, *(self.peers.cuts() if self.peers else [])])
        copies = without(self._copies, cuts)
        launches, period = steps_of(without(self._launches, cuts), self._first)
        if period and (self._skip or self._steps):
            last = self._skip + self._steps if self._steps else None
            period = replace(period, steps=period.steps[self._skip : last] or period.steps[-1:])
        elif period and not self.peers:  # of ranks each has the same steps
            period = self._usual(launches, period, cuts)
        recording, steps = sequence.in_steps(self.name, launches, copies, period)
        recording = of_one_device(recording, self._notes)
        if self._named:
            known = labelled(recording.launches, self._named.known)
            recording = replace(recording, launches=known)
        if self._inside:
            recording = self._part(recording)
            steps = len(recording.steps)
        groups = self._with_samples(grouped(recording.launches, steps), period)
        counted = self._counted or self._graphs
        if counted and self._uncounted:
            self._notes[self._uncounted] = None
        elif self._counters and groups and not counted and (self._uncounted or not told):
            why = self._uncounted or "no launch was repeated for long enough"
            self._notes[f"nothing was counted: {why}"] = None
        return Findings(
            recording,
            groups,
            counting_s=self._counting_s,
            graphs=self._graphs,
            graph_launches=sequence.graph_launches(recording.launches, steps),
            notes=self._notes,
            cuts=cuts,
        )

    def _usual(
        self, launches: Sequence[RecordedLaunch], period: Period, cuts: Sequence[Cut]
    ) -> Period:
        """The steps that are like the most, without those in which this thread worked."""
        looks = [span for one in self._looks if (span := moved(one, cuts))]
        usual = sequence.usual(launches, period, looks)
        if usual.long:
            which = f"{len(usual.long)} of {len(period.steps)} steps took more than"
            which += f" {sequence.LONG} times as long as the median, {sum(usual.long) / 1e3:.3g} ms"
            self._notes[f"{which}: they are {'left out' if usual.without else 'included'}"] = None
        return replace(period, steps=usual.steps)

    def _part(self, recording: Recording) -> Recording:
        """What is inside of the range. Raises ``UsageError``, with the reason if none is known."""
        problem = self._named.problem if self._named else "its launches were not seen to repeat"
        try:
            return part_of(recording, self._inside)
        except UsageError as error:
            raise UsageError(": ".join(filter(None, [str(error), problem]))) from None

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_S):
            if self._rests():
                continue
            self._looked_ns = self._working_ns = perf_counter_ns()
            try:
                with yielding():
                    self._look()
            except Exception as error:
                self._notes[f"counting ended: {type(error).__name__}: {error}"] = None
                self._counters = False
                self._give_up()
            self._end_work()
            if len(self._launches) > MOST_LAUNCHES and not self._off_ns:
                self._activity.ignore()
                text = f"recording ended after {MOST_LAUNCHES} launches; the program went on"
                self._notes[text] = None
                return

    def _end_work(self) -> None:
        """It does not go on in a time that is cut out."""
        since, self._working_ns = self._working_ns, 0
        if since and (now := perf_counter_ns()) > since + NOTHING_NS:
            self._looks.append((since, now))

    def _rests(self) -> bool:
        """Whether nothing has to be done now: to look costs the program time."""
        busy = self._window or self._naming or self._activity.held > HELD_BYTES
        return not busy and perf_counter() < self._resume_at

    def _look(self) -> None:
        self._activity.flush()
        if not self._naming:  # whose launches are not kept
            self._take()
        if len(self._launches) <= MOST_LAUNCHES or self._off_ns:
            self._decide()

    def _take(self) -> None:
        records = self._activity.taken()
        self._launches += records.launches
        self._copies += records.copies
        if records.dropped:
            self._notes["some records were dropped: memory is full"] = None
        before = len(self._first)
        for one in records.launches:
            order = sequence.order(one)
            self._first[one.key] = min(self._first.get(one.key, order), order)
        if len(self._first) > before:
            self._new_at = perf_counter()
            names = {key.kernel for key in self._first}
            if len(names) > len(self._names):
                self._names, self._new_name_at = names, self._new_at
                self._wait_s = 0.0

    def _repeats(self, now: float) -> bool:
        """Whether nothing that it launches is new."""
        return now - self._new_at > QUIET_S or now - self._new_name_at > QUIET_NAMES_S

    def _decide(self) -> None:
        """Begin to count or to name what is launched, once the launches repeat; or end it."""
        if self._counters and self._launches and not self._ready:
            self._prepare()
        now = perf_counter()
        if current := self._window or self._naming:
            if current.done(now):
                self._end_window()
            elif self._window:
                self._tell_slow(self._window.left_s(now))
            return
        ended_ns = self._launches[-1].end_ns if self._launches else 0
        active = self._looked_ns - ended_ns < ACTIVE_NS  # to read many records takes a while
        if not (active and self._repeats(now) and now >= self._resume_at):
            return
        last = without(sorted(self._launches[-RECENT:], key=sequence.order), self._cuts)
        recent, period = steps_of(sequence.recent(last), self._first)
        if self._counters and self._begin_counting(recent, period):
            return
        if period and self._named is None and self._has_names(recent, period):
            self._begin_naming(recent, period)
        elif period is None and self._is_missing():
            self._resume_at = now + AGAIN_S
        else:
            self._later(now)

    def _is_missing(self) -> bool:
        """Whether something may still be learned of a program that has not repeated itself."""
        counted = self._counted or self._graphs or self._uncounted
        return (self._is_nameable() and self._named is None) or (self._counters and not counted)

    def _has_names(self, recent: Sequence[RecordedLaunch], period: Period) -> bool:
        """Whether something may be known of what launches what; of a CUDA graph nothing is."""
        alone = any(not one.graph for one in period.launches(recent))
        return bool(self._inside) or (alone and self._is_nameable())

    def _is_nameable(self) -> bool:
        return bool(self._inside) or bool({"torch", "nvtx"} & sys.modules.keys())

    def _prepare(self) -> None:
        """That takes a second."""
        try:
            self._ready = counters_of(self._cupti, self._launches[-1].device)
        except RooflabError as error:
            self._notes[str(error)] = None
            self._counters = False

    def _begin_counting(self, recent: Sequence[RecordedLaunch], period: Period | None) -> bool:
        """What is missing of the launches that repeat; False if nothing is, or it cannot begin."""
        repeated = period.launches(recent) if period else sequence.repeated(recent)
        if self._named:  # one kernel may do different work
            repeated = labelled(repeated, self._named.known)
        groups = grouped(repeated, len(period.steps) if period else 1)
        due = self._with_samples(groups, period)
        single = [g for g in due if not g.launches[0].graph]  # the others are launched by a graph
        chosen = [g for g in single if re.search(self._only, g.key.kernel)]
        wanted = plan([g for g in chosen if not g.samples], among=chosen)
        graph = not self._graphs and len({one.graph for one in repeated} - {0}) == 1
        if not (wanted or graph) or not self._ready:
            return False
        replay = partial(
            Replay,
            self._cupti,
            self._ready,
            group=partial(known_as, keys={group.key for group in groups}),
            graphs=graph,
            between=(self._activity.stop, self._resume),
        )
        anchor = period.anchor if period and not recent[period.steps[0].start].graph else None
        steps = GRAPH_STEPS if graph else 3
        patience_s = PATIENCE_S + steps * (period.step_s(recent) if period else 0.0)
        self._begin_cut()
        try:
            self._window = CountingTime(replay, wanted, anchor, patience_s, graph=graph)
        except BusyError as error:
            self._end_cut()
            self._uncounted = str(error)
            return False
        except RooflabError as error:
            self._end_cut()
            self._notes[str(error)] = None
            self._counters = False
            return False
        count = sum(map(len, wanted.values()))
        what = [f"{count} launches"] * bool(count) + ["a CUDA graph"] * graph
        self._narrate(f"counting {' and '.join(what)}: about {max(1.0, count * EACH_S):.0f} s")
        return True

    def _tell_slow(self, left_s: float | None) -> None:
        """Once, if counting takes longer than was said."""
        if left_s and not self._told_slow:
            self._told_slow = True
            self._narrate(f"counting takes longer than usual here: about {left_s:.0f} s more")

    def _begin_naming(self, recent: Sequence[RecordedLaunch], period: Period) -> None:
        """Which operation of PyTorch launches what."""
        self._begin_cut()
        self._activity.flush()
        self._take()
        keys = {one.key for one in period.launches(recent)}
        self._naming = NamingTime(
            self._activity, period, keys, period.step_s(recent), perf_counter()
        )

    def _end_window(self) -> None:
        """Record as before, if something else goes on."""
        if self._naming:
            self._end_naming(self._naming)
        elif self._window:
            self._end_counting()

    def _end_naming(self, naming: NamingTime) -> None:
        self._naming, self._named = None, Named()
        try:
            self._named = naming.end()
        finally:
            self._end_cut()
        if self._named.problem:
            self._notes[self._named.problem] = None

    def _with_samples(self, groups: list[LaunchSet], period: Period | None) -> list[LaunchSet]:
        """With what was counted; positions are those in steps with the same start."""
        keys = {group.key for group in groups}
        found: dict[LaunchKey, list[Sample]] = defaultdict(list)
        for anchor, one in self._counted:
            key = known_as(one.key, keys)
            known = period is not None and anchor == period.anchor and key == one.key
            known = known and not self._inside  # of which other launches of the key may not be
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
        if replay.lost:
            self._uncounted = f"{replay.lost} launches were replayed, but gave no counts"
        elif replay.unfinished:
            self._uncounted = "a CUDA graph was counted in part, and was not launched often enough"
        elif replay.counted or replay.counted_graphs:
            self._uncounted = ""
        self._counted += [(window.anchor, one) for one in replay.counted]
        self._graphs += replay.counted_graphs
        self._notes.update(replay.reasons)
        self._counters = self._counters and not replay.failed

    def _give_up(self) -> None:
        """Record again, whatever has failed."""
        with suppress(Exception):
            self._end_window()
        self._end_cut()

    def _resume(self) -> None:
        try:
            self._activity.resume()
        finally:
            self._end_cut()

    def _begin_cut(self) -> None:
        self._end_work()
        self._off_ns = perf_counter_ns()
        if self.peers:
            self.peers.begin(self._off_ns)

    def _end_cut(self) -> None:
        """From its begin until now the program was held or counted."""
        since, self._off_ns = self._off_ns, 0
        if not since:
            return
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
        *,
        graph: bool = False,
    ) -> None:
        self._graph = graph
        self._wanted, self.anchor, self._begun = wanted, anchor, anchor is None
        self._patience_s = patience_s
        self._replay = replay(self._is_wanted, anchor=anchor)
        self._since = self._asked = perf_counter()
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
        if self._replay.counting:  # which takes as long as it takes
            self._asked = now
        graph = self._graph and not self._replay.counted_graphs
        missing = graph or any(self._wanted.values())
        return self._replay.failed or not missing or now - self._asked > self._patience_s

    def left_s(self, now: float) -> float | None:
        """How long it still takes, if that is SLOW times as long as usual and SLOW seconds."""
        counted, missing = len(self._replay.counted), sum(map(len, self._wanted.values()))
        each_s = (now - self._since) / max(1, counted)
        slow = counted > 2 and each_s > SLOW * EACH_S and each_s * missing > SLOW
        return each_s * missing if slow else None

    def end(self) -> Replay:
        """What was counted."""
        self._replay.__exit__(None, None, None)
        return self._replay
