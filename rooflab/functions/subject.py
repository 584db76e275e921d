"""How the protocol times a function: on copies of its arguments, on the caller's stream."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, partial
from math import ceil, inf, nan
from statistics import median
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import MAX_BATCH, Device, Launch, MarkedLaunch
from rooflab.functions import arrays
from rooflab.functions.call import Arguments, Call, Function
from rooflab.functions.results import Judge, Others, changed, copied
from rooflab.measure.buffers import MAX_COPIES, flusher
from rooflab.measure.queue import queue_depth
from rooflab.measure.subject import LATER, OTHER, Runner, Subject, Watch, told
from rooflab.measure.verify import CONFIRMED, Accuracy

SEVERAL: Final = 10
ONCE_US: Final = 1e4
"""Calls that are timed by the host together, unless one takes so long."""

LONG_US: Final = 1e6
"""A call that keeps the host busy for so long is timed by the host: no gate is held for it. Few
such calls are compared with each other."""

LITTLE: Final = 0.01
"""The part of all bytes that may stay in the cache in a call that is called cold."""

ELSEWHERE: Final = 1.3
ELSEWHERE_US: Final = 50.0
TOGETHER_US: Final = 2000.0
"""So much later calls on another stream end than events say; together they last so long."""

TIMES_KNOWN: Final = 4
"""Calls in a row on the same inputs, fewer if they take long."""

KEPT: Final = 2.0
KEPT_US: Final = 20.0
"""Most calls on other inputs take as long as on those before, within this factor and time."""


class Called(Subject):
    """One function of a race. All have the same arguments, each its own copies of them."""

    def __init__(
        self,
        device: Device,
        problem: Call,
        function: Function,
        pristine: Arguments,
        judge: Judge | None = None,
        draw: random.Random | None = None,
        *,
        cold: bool,
    ) -> None:
        self._device, self._function, self._judge = device, function, judge
        self._draw = draw or random.Random()
        self._result: Any = None
        self._last_place, self._in_place = 0, False
        self._kept = pristine.kept(function)
        count = self._copies(pristine, problem.array_bytes) if cold else 1
        self._arguments = [copied(pristine) for _ in range(count)]
        self._held: list[Any] | None = [None] * count
        super().__init__([self._launch(i) for i in range(len(self._arguments))])
        self.cache = "cold" if cold else "warm"
        self.rotates = cold and len(self._arguments) > 1
        if cold and not self.rotates:
            self.flush = self._flush()
        self._others = Others(judge, function, pristine) if judge else None
        self.varies = self._others is None or self._others.vary
        self.fits_cache = problem.array_bytes < device.last_level_cache_bytes()
        self.queued = True
        self._probe(modules=pristine.modules)

    @property
    def queues(self) -> bool:  # type: ignore[override]
        """Not if each call needs a flush of its own and ends with a wait."""
        return self.queued or self.flush is None

    def _copies(self, pristine: Arguments, size: int) -> int:
        """As many as are three times as large as the cache, within a quarter of the memory.

        ``size`` is that of arguments and results together. What each call uses again would stay in
        the cache.
        """
        again = sum(map(arrays.size_bytes, self._kept))
        if not pristine.leaves or self._device.evicts or again > LITTLE * size:
            return 1
        wanted = max(2, ceil(3 * self._device.last_level_cache_bytes() / size) + 1)
        each = max(size, sum(arrays.of(one).memory_bytes(one) for one in pristine.leaves))
        possible = min(wanted, self._device.free_bytes() // 4 // each, MAX_COPIES)
        return wanted if possible >= wanted else 1

    @cached_property
    def _flush_all(self) -> Launch:
        return flusher(self._device)

    def _flush(self) -> Launch:
        """What makes caches cold: the arguments are dropped from them, or everything is."""
        given = self._arguments[0].leaves
        every = [*given, *self._kept]
        if self._device.evicts and given and all(arrays.of(one).name == "numpy" for one in every):
            import numpy

            return self._device.evictor([numpy.asarray(one) for one in every])
        return self._flush_all

    def _launch(self, place: int) -> Launch:
        function, given = self._function, self._arguments

        def launch() -> None:
            result = given[place].call(function)
            if self._held:  # so that results are as cold as arguments: others take their place
                self._held[place] = result
            self._last_place, self._result = place, result

        return launch

    def release(self) -> None:
        """Give back the copies and results: the launches refer to this object, and it to them."""
        self.launches.clear()
        self._arguments.clear()
        self._kept.clear()
        self._held = self._result = self._others = self.flush = None

    # How it works ------------------------------------------------------------------------------

    def _probe(self, *, modules: bool) -> None:
        """How long a call keeps the host busy, whether it waits, and where it works."""
        device, (launch, *others) = self._device, self.launches
        for one in others if modules else ():
            one()  # a compiled module is compiled again in each copy
        launch()
        results = arrays.leaves(self._result)
        if any(getattr(one, "grad_fn", None) is not None for one in results):
            self._held = None  # it would hold all that autograd keeps
        waits = any(arrays.of(one).waits for one in [*self._arguments[0].leaves, *results])
        self._until_done()
        self._result = None
        if device.kind == "cpu":  # it is the host that computes
            if waits:
                self.queued = False
                self.launches = [self._ended(one) for one in self.launches]
            return
        started = perf_counter()
        launch()
        self.host_us = (perf_counter() - started) * 1e6
        device.synchronize()
        if (perf_counter() - started) * 1e6 < ONCE_US:
            started = perf_counter()
            for _ in range(SEVERAL):
                launch()
            self.host_us = (perf_counter() - started) * 1e6 / SEVERAL
            device.synchronize()
        waits = waits or self.host_us >= LONG_US
        if waits or not device.queued(launch, self.host_us, 1) or self._elsewhere(self.host_us):
            self.queued = False
            self.launches = [
                MarkedLaunch(one, gated=False, wait=self._until_done) for one in self.launches
            ]
        else:
            event_us = device.time([launch]).times_us[0]
            depth = queue_depth(device, launch, event_us, self.host_us) or MAX_BATCH
            self.launches = [MarkedLaunch(one, depth=depth) for one in self.launches]

    def _ended(self, launch: Launch) -> Launch:
        """A launch that returns when its work has ended."""

        def work() -> None:
            launch()
            self._until_done()

        return work

    def _until_done(self) -> None:
        """Until the last call has ended on every stream."""
        for one in arrays.leaves(self._result):
            arrays.of(one).wait(one)
        self._device.synchronize()

    def _elsewhere(self, host_us: float) -> bool:
        """Whether calls end much later than the stream that they should be on."""
        return all(self._ends_later(host_us) for _ in range(CONFIRMED))

    def _ends_later(self, host_us: float) -> bool:
        device, launch = self._device, self.launch
        event_us = device.time([launch]).times_us[0]
        count = max(1, min(SEVERAL, ceil(TOGETHER_US / max(event_us, host_us))))
        device.synchronize()
        started = perf_counter()
        for _ in range(count):
            launch()
        queued_us = (perf_counter() - started) * 1e6
        device.synchronize()
        ended_us = (perf_counter() - started) * 1e6
        return ended_us > ELSEWHERE * max(queued_us, count * event_us) + ELSEWHERE_US

    # Results -----------------------------------------------------------------------------------

    def verify(self) -> Accuracy:
        """Against the reference, if there is one; and whether it changes its arguments."""
        if self._judge is None:
            return Accuracy(nan)
        before, verdict = self._checked()
        self._in_place = changed(before, self._arguments[0])
        self._arguments[0] = before
        if verdict.reason and self._others:
            how = self._judge.written(self._others.pristine, self._function)
            verdict = replace(verdict, reason=f"{verdict.reason}{how}")
        if self.flush and self._device.evicts:
            self.flush = self._flush()  # of the arrays that are there now
        return verdict

    def _checked(self) -> tuple[Arguments, Accuracy]:
        """A call on the first copy of the arguments: what they held before, and the verdict."""
        assert self._judge
        before = copied(self._arguments[0])
        self.launches[0]()
        self._until_done()
        verdict = self._judge.verdict(before, self._arguments[0], self._result)
        self._result = None
        return before, verdict

    def load(self, fill: str) -> None:
        """The caller's numbers stay."""

    @contextmanager
    def watched(self, count: int, *, judge: bool) -> Iterator[Watch]:
        """On inputs that nobody has seen; at a moment that nobody knows the last result is judged.

        Where caches are cleared before each call, each has other inputs.
        """
        if self._others is None or self._in_place:
            yield Watch()
            return
        for place in {(self.turn + i) % len(self.launches) for i in range(count)}:
            self._arguments[place] = self._others.put(self._arguments[place], self._draw)
        if self.rotates:
            self._flush_all()  # what was written last is in the cache
        watch = Watch(partial(self._others.renew, self._arguments[0], self._draw))
        yield watch
        if judge:
            watch.reason = told(LATER, self._judged().reason)

    def spoiled(self, run: Runner, launch_us: float, together: int, *, slow: bool) -> str:
        """On inputs that nobody has seen before."""
        if self._others is None:
            return ""
        self._arguments[0] = self._others.put(self._arguments[0], self._draw)
        _, verdict = self._checked()
        return told(OTHER, verdict.reason) or self._keeps_results(launch_us)

    def _keeps_results(self, launch_us: float) -> str:
        """Whether calls are much faster on inputs that they have had just before."""
        slower = inf
        count = max(1, min(SEVERAL, int(LONG_US / launch_us) // TIMES_KNOWN))
        for _ in range(CONFIRMED):
            times_us = [self._known_and_new_us(min(TIMES_KNOWN, count + 1)) for _ in range(count)]
            known_us = median(one for known, _ in times_us for one in known)
            new_us = sorted(new for _, new in times_us)
            if new_us[count // 4] < KEPT * known_us + KEPT_US:
                return ""
            slower = min(slower, median(new_us) / known_us)
        return f"{slower:.3g} times as slow on inputs that it has not had before"

    def _known_and_new_us(self, times_known: int) -> tuple[list[float], float]:
        """Times of calls on inputs that it has had just before, and of the next, on other ones.

        So other work on the machine slows both. All inputs are written just before the call, and
        dropped from caches.
        """
        known = self._draw.getrandbits(32)
        draws = iter([random.Random(known) for _ in range(times_known)] + [self._draw])

        def renew() -> None:
            assert self._others
            self._arguments[0] = self._others.put(self._arguments[0], next(draws))
            if self.flush:
                self.flush()

        calls = [self.launches[0]] * (times_known + 1)
        _, *known_us, new_us = self._device.time(calls, renew).times_us
        return known_us, new_us

    def _judged(self) -> Accuracy:
        """The result that was kept, for arguments that are as they were."""
        assert self._judge
        given = self._arguments[self._last_place]
        try:
            return self._judge.verdict(given, given, self._result)
        finally:
            self._result = None
