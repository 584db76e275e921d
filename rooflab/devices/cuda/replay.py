"""Hardware counters of single launches of a program, in its own process, while it runs.

CUPTI calls us before and after each launch. One that is wanted is replayed between the two, with
the memory that it writes restored, once for each group of counters: 0.1 to 0.2 s a launch. All
others run as they would. A CUDA graph cannot be replayed: it gets one group of counters each time
that the program launches it.
"""

from __future__ import annotations

import ctypes
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter, sleep
from typing import Any, Final

from rooflab.devices.base import Counters
from rooflab.devices.cuda.activity import demangled, synchronize
from rooflab.devices.cuda.counters import FORBIDDEN, interpret
from rooflab.devices.cuda.cupti import Cupti, RangeProfiler, profiler
from rooflab.devices.records import Dim, LaunchKey
from rooflab.errors import KernelError, RooflabError
from rooflab.model.collectives import collective_of

TIME: Final = "gpu__time_duration.sum"

_DRIVER_CALLS: Final = 1
_LAUNCH: Final = (307, 442)
_LAUNCH_WITH_CONFIG: Final = (652, 653)
_LAUNCH_GRAPH: Final = (514, 515)
"""Numbers of the driver's calls in cupti_driver_cbid.h: cuLaunchKernel, cuLaunchKernelEx and
cuGraphLaunch, each for the two kinds of default stream."""

_STREAM_AT: Final = {
    **dict.fromkeys((216, 218, 220, 277, 279, 281, 306, 418, 421, 422, 423, 428, 429, 430), 24),
    **dict.fromkeys((222, 224, 226, 319, 426, 431, 432, 433), 40),
    **dict.fromkeys((289, 291, 424, 425), 8),
}
"""Where cuMemcpy...Async and cuMemset...Async have their stream, in bytes."""

_COPIES: Final = (
    *_STREAM_AT,
    *(249, 250, 251, 276, 278, 280, 305, 397, 398, 399, 408, 411, 412, 413),
)
"""Copies and memsets, also those that wait until they are done."""

BUDGET_S: Final = 60.0
"""Nothing is replayed after so long: a program is not stopped for minutes."""

ROOM: Final = 1.0
"""Free memory over used memory below which nothing is replayed: what the program has is saved
before each launch, and the host's memory is hundreds of times slower."""

PAUSE_S: Final = 0.01
"""How often a thread that waits looks whether it has to."""


SETTLE_S: Final = 0.03
"""A launch that began before it was looked for has returned by then, unless its queue is full."""

HELD_S: Final = 1.0
"""The longest that the program's threads are held for a launch of another one, once the device has
done all; mostly it is SETTLE_S."""

QUEUE_S: Final = 5.0
"""The longest that they are held for what the device has to do."""


class BusyError(KernelError):
    """The program's launches do not end: another time they may."""


class _Call(ctypes.Structure):
    """CUpti_CallbackData."""

    _fields_ = (
        ("after", ctypes.c_int),
        ("function", ctypes.c_char_p),
        ("parameters", ctypes.c_void_p),
        ("result", ctypes.c_void_p),
        ("kernel", ctypes.c_char_p),
        ("context", ctypes.c_void_p),
    )


class _Shape(ctypes.Structure):
    """CUlaunchConfig, which cuLaunchKernel takes as single arguments in the same order."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
    )


class _Launch(ctypes.Structure):
    """The arguments of cuLaunchKernel."""

    _fields_ = (("function", ctypes.c_void_p), ("shape", _Shape))


class _LaunchWithConfig(ctypes.Structure):
    """The arguments of cuLaunchKernelEx."""

    _fields_ = (("shape", ctypes.POINTER(_Shape)), ("function", ctypes.c_void_p))


class _GraphLaunch(ctypes.Structure):
    """The arguments of cuGraphLaunch."""

    _fields_ = (("graph", ctypes.c_void_p), ("stream", ctypes.c_void_p))


_CALLBACK: Final = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.POINTER(_Call)
)


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted of one launch: the ``index``-th of this kernel, grid and block.

    ``us`` is its time while it was replayed.
    """

    key: LaunchKey
    index: int
    us: float
    counters: Counters


def counters_of(cupti: Cupti, device: int) -> RangeProfiler:
    """What is counted of each launch, its time too; raises ``UnavailableError``."""
    return profiler(cupti, device, TIME)


class Replay:
    """A context manager: inside, launches are counted if ``wanted`` says so.

    ``counters`` is made by ``counters_of``, which takes a second, once for several replays.
    ``wanted`` gets a launch's key and how many of it came before: since the start, since
    ``new_step``, or since the last launch of ``anchor``. Raises ``UnavailableError`` or
    ``KernelError`` at the start if nothing can be counted; what fails later is in ``reasons``.
    ``group`` is the key under which a launch is known. ``graphs``: whether the first CUDA graph
    that is launched is counted too. ``between`` are called before the first launch may be counted
    and after the last, when all before have been done, and new ones, copies too, are held. Raises
    ``BusyError`` at the start if launches do not end.
    """

    def __init__(
        self,
        cupti: Cupti,
        counters: RangeProfiler,
        wanted: Callable[[LaunchKey, int], bool],
        *,
        anchor: LaunchKey | None = None,
        group: Callable[[LaunchKey], LaunchKey] = lambda key: key,
        graphs: bool = True,
        between: tuple[Callable[[], None], Callable[[], None]] | None = None,
    ) -> None:
        self._between = between
        self._held_s: float | None = None  # since when launches are held
        self._captured = False  # whether one went into a graph meanwhile
        self._group = group
        self._cupti, self._wanted, self._anchor, self._graphs = cupti, wanted, anchor, graphs
        self._profiler = counters
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._callback = _CALLBACK(self._called)
        self._subscriber = ctypes.c_void_p()
        self._prepared = ExitStack()
        self._lock = threading.RLock()
        self._owner: int | None = None  # the thread whose launch is counted: it holds the lock
        self._inside: set[int] = set()  # threads that launch: theirs would be counted too
        self._context: int | None = None
        self._live: tuple[LaunchKey, int] | None = None
        self._graph: int | None = None
        self.seen: Counter[LaunchKey] = Counter()
        self.counted: list[Counted] = []
        self.counted_graphs: list[Counters] = []
        self.graph_launches = 0
        self.reasons: dict[str, None] = {}
        self.failed = False
        self.lost = 0
        """Launches that were replayed without a count."""
        self._enabled_already = self._ended = self._released = False

    def __enter__(self) -> Replay:
        subscribe = self._cupti.library.cuptiSubscribe
        if status := subscribe(ctypes.byref(self._subscriber), self._callback, None):
            busy = "another profiler is active in this process" if status == 39 else status
            raise KernelError(f"launches cannot be counted: {busy}")
        _ALIVE.append(self._callback)
        try:
            with self._lock:
                self._begin()
        except BaseException:
            self._unsubscribe()
            raise
        return self

    def _begin(self) -> None:
        numbers = [*_LAUNCH, *_LAUNCH_WITH_CONFIG, *(_LAUNCH_GRAPH if self._graphs else ())]
        numbers += _COPIES if self._between else ()
        for number in numbers:
            self._cupti.library.cuptiEnableCallback(1, self._subscriber, _DRIVER_CALLS, number)
        if self._between:
            before, after = self._between
            if not self._hold_all():
                raise BusyError("launches do not end")
            try:
                before()
            except BaseException:
                after()
                raise
            self._held_s = None
        self._since = perf_counter()  # while the lock is held: launches that waited need it

    def __exit__(self, *error: object) -> None:
        self._ended = True
        try:
            with self._lock:  # the launch that is counted ends first
                self._finish()
        finally:
            self._unsubscribe()

    def _finish(self) -> None:
        """While launches are held: CUPTI does not expect any meanwhile."""
        if self._between:
            self._hold_all()
        try:
            self._prepared.close()
        except KernelError as error:
            self._fail(error)
        finally:
            if self._between:
                self._between[1]()

    def _unsubscribe(self) -> None:
        """Without the lock: CUPTI may wait for a callback, which must not wait for this thread."""
        self._ended = self._released = True
        self._cupti.library.cuptiUnsubscribe(self._subscriber)

    def _hold_all(self) -> bool:
        """Hold what begins from now on, and whether all that began before is done.

        The lock is held. Nothing waits while a graph is made: waiting for a device would end that.
        """
        self._held_s, self._captured = perf_counter(), False
        sleep(SETTLE_S)
        if self._captured:
            return False
        synchronize()  # so that no queue is full
        since = perf_counter()
        while self._inside:
            if perf_counter() - since > HELD_S:
                return False
            sleep(SETTLE_S / 10)
        synchronize()
        return True

    def new_step(self) -> None:
        """A step begins."""
        self.seen.clear()
        self.graph_launches = 0

    @property
    def counting(self) -> bool:
        """Whether a launch is counted just now."""
        return self._owner is not None

    @property
    def unfinished(self) -> bool:
        """Whether a graph was counted in part."""
        return self._graph is not None and not self.failed

    @property
    def _stopped(self) -> bool:
        return self.failed or self._ended

    def _called(self, _user: Any, _domain: int, number: int, call: Any) -> None:
        try:
            self._launched(number, call.contents)
        except Exception as error:  # in a call of the driver nobody catches it
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        text = str(error) if isinstance(error, RooflabError) else f"{type(error).__name__}: {error}"
        forbidden = "INSUFFICIENT_PRIVILEGES" in text
        self.reasons[FORBIDDEN if forbidden else text] = None
        self.failed = True

    def _launched(self, number: int, call: _Call) -> None:
        thread = threading.get_ident()
        if number in _COPIES:
            if not call.after and self._waited(call, number):
                self._lock.release()
            return
        if call.after:
            self._inside.discard(thread)
            if self._owner == thread:
                self._end()
            return
        held = self._waited(call, number)
        try:
            can = held and self._context in (None, call.context) and not self._inside - {thread}
            if held:
                self._inside.add(thread)
            if number in _LAUNCH_GRAPH:
                self._graph_launched(_GraphLaunch.from_address(call.parameters), call, can)
            else:
                self._kernel_launched(_shape(number, call.parameters), call, can)
        finally:
            if held:
                self._lock.release()

    def _waited(self, call: _Call, number: int) -> bool:
        """Wait until no launch is counted, and hold the lock.

        Launches on other GPUs go on: what is counted may wait for them. So do launches into graphs
        while all are held.
        """
        while not self._released and self._context in (None, call.context):
            if self._passes(call, number):
                return False
            if self._lock.acquire(timeout=PAUSE_S):
                return True
        return False

    def _passes(self, call: _Call, number: int) -> bool:
        since = self._held_s
        if since is None:
            return False
        captured = self._capturing(_stream(number, call.parameters))
        self._captured |= captured
        return captured or perf_counter() - since > QUEUE_S

    def _kernel_launched(self, shape: _Shape, call: _Call, can: bool) -> None:
        name = demangled(call.kernel or b"?")
        key = self._group(LaunchKey(name, _dim(shape.grid), _dim(shape.block)))
        if key == self._anchor:
            self.seen.clear()
        index = self.seen[key]
        self.seen[key] += 1
        if self._stopped or self._graph is not None or not can or not self._wanted(key, index):
            return
        if collective_of(key.kernel):  # replayed, it would wait for ever
            self.reasons["kernels that wait for other GPUs are not counted"] = None
        elif not self._capturing(shape.stream) and self._affordable():
            self._enabled(call).start_replay()
            self._live = (key, index)
            self._hold()

    def _affordable(self) -> bool:
        """Whether there is time and memory left to save what the program has."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
        used = total.value - free.value
        if perf_counter() - self._since > BUDGET_S:
            text = f"counting ended after {BUDGET_S:.0f} s: not all groups are counted"
        elif free.value < ROOM * used:
            text = (
                f"{used / 1e9:.0f} GB of the GPU's memory are in use and {free.value / 1e9:.0f} GB "
                "are free: too little to save it while launches are replayed, so they are not "
                "counted"
            )
        else:
            return True
        self.reasons[text] = None
        self.failed = True
        return False

    def _capturing(self, stream: int | None) -> bool:
        """A launch into a graph that is being made does not run."""
        found = ctypes.c_int()
        self._driver.cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(found))
        return bool(found.value)

    def _hold(self) -> None:
        self._lock.acquire()  # until the launch is done
        self._owner = threading.get_ident()

    def _end(self) -> None:
        live, self._live, self._owner = self._live, None, None
        try:
            if live is None:
                self._end_graph()
            elif values := self._profiler.end_replay():
                self.counted.append(Counted(*live, values[TIME] / 1e3, interpret(values, 1)))
            else:
                self.lost += 1
        finally:
            self._lock.release()

    def _enabled(self, call: _Call) -> RangeProfiler:
        """It stays enabled, in one context: that takes 0.1 s."""
        if not self._enabled_already:
            self._context = call.context
            self._prepared.enter_context(self._profiler)
            self._enabled_already = True
        return self._profiler

    def _graph_launched(self, given: _GraphLaunch, call: _Call, can: bool) -> None:
        self.graph_launches += 1
        if self._stopped or self.counted_graphs or self._graph not in (None, given.graph):
            return
        if not can or self._capturing(given.stream):
            return
        if self._graph is None:
            self._enabled(call).begin()
            self._graph = given.graph
        self._driver.cuCtxSynchronize()  # what came before is not the graph's
        self._profiler.enter()
        self._hold()

    def _end_graph(self) -> None:
        self._driver.cuCtxSynchronize()
        if self._profiler.leave():
            self.counted_graphs.append(interpret(self._profiler.values(), 1))
            self._graph = None


_ALIVE: Final[list[Any]] = []
"""CUPTI may call what was subscribed once."""


def _shape(number: int, parameters: int) -> _Shape:
    plain = number in _LAUNCH
    found: _Shape = (
        _Launch.from_address(parameters).shape
        if plain
        else _LaunchWithConfig.from_address(parameters).shape.contents
    )
    return found


def _stream(number: int, parameters: int) -> int | None:
    if number in _COPIES:
        at = _STREAM_AT.get(number)
        return ctypes.c_void_p.from_address(parameters + at).value if at else None
    found: int | None = (
        _GraphLaunch.from_address(parameters).stream
        if number in _LAUNCH_GRAPH
        else _shape(number, parameters).stream
    )
    return found


def _dim(values: Any) -> Dim:
    x, y, z = values
    return (x, y, z)
