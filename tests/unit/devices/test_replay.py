"""Counting single launches, with a driver and a profiler that only answer."""

from __future__ import annotations

import ctypes
import re
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes import c_char_p, c_int, c_size_t, c_uint, c_uint32, c_void_p
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import pytest

from rooflab.devices.cuda import replay as module
from rooflab.devices.cuda.counters import FORBIDDEN
from rooflab.devices.cuda.replay import BUDGET_S, TIME, BusyError, Replay
from rooflab.devices.records import LaunchKey
from rooflab.errors import KernelError

COPY, WAITING_COPY = 277, 276  # cuMemcpyHtoD
LAUNCH, LAUNCH_PTSZ, LAUNCH_EX, LAUNCH_EX_PTSZ, GRAPH, GRAPH_PTSZ = 307, 442, 652, 653, 514, 515
FLOPS = "sm__ops_path_tensor_src_bf16.sum"
DIMS = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ")


class CallbackData(ctypes.Structure):
    """CUpti_CallbackData (cupti_callbacks.h)."""

    _fields_ = (
        ("callbackSite", c_int),
        ("functionName", c_char_p),
        ("functionParams", c_void_p),
        ("functionReturnValue", c_void_p),
        ("symbolName", c_char_p),
        ("context", c_void_p),
        ("contextUid", c_uint32),
        ("correlationData", c_void_p),
        ("correlationId", c_uint32),
    )


class LaunchParams(ctypes.Structure):
    """cuLaunchKernel_params (generated_cuda_meta.h)."""

    _fields_ = (
        ("f", c_void_p),
        *((name, c_uint) for name in DIMS),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("kernelParams", c_void_p),
        ("extra", c_void_p),
    )


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig (cuda.h)."""

    _fields_ = (
        *((name, c_uint) for name in DIMS),
        ("sharedMemBytes", c_uint),
        ("hStream", c_void_p),
        ("attrs", c_void_p),
        ("numAttrs", c_uint),
    )


class LaunchExParams(ctypes.Structure):
    """cuLaunchKernelEx_params."""

    _fields_ = (
        ("config", ctypes.POINTER(LaunchConfig)),
        ("f", c_void_p),
        ("kernelParams", c_void_p),
        ("extra", c_void_p),
    )


class GraphParams(ctypes.Structure):
    """cuGraphLaunch_params."""

    _fields_ = (("hGraph", c_void_p), ("hStream", c_void_p))


class Driver:
    """Has memory, and streams that are being captured."""

    def __init__(self, log: list[str]) -> None:
        self.log, self.free, self.total = log, 60 * 10**9, 80 * 10**9
        self.captured: set[int] = set()

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> None:  # noqa: N802
        free._obj.value, total._obj.value = self.free, self.total

    def cuStreamIsCapturing(self, stream: c_void_p, found: Any) -> None:  # noqa: N802
        found._obj.value = int((stream.value or 0) in self.captured)

    def cuCtxSynchronize(self) -> None:  # noqa: N802
        self.log.append("wait")


class Profiler:
    """Counts what it is told; what it is asked for is in ``log``, and may fail."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.fails: dict[str, Exception] = {}
        self.passes = 2
        self.found: dict[str, float] | None = {TIME: 12_500.0, FLOPS: 4096.0}

    def _do(self, name: str) -> None:
        self.log.append(name)
        if name in self.fails:
            raise self.fails[name]

    def __enter__(self) -> Profiler:
        self._do("enable")
        return self

    def __exit__(self, *error: object) -> None:
        self._do("disable")

    def start_replay(self) -> None:
        self._do("start")

    def end_replay(self) -> dict[str, float] | None:
        self._do("end")
        return self.found

    def begin(self) -> None:
        self._do("begin")

    def enter(self) -> None:
        self._do("enter")

    def leave(self) -> bool:
        self._do("leave")
        return self.log.count("leave") == self.passes

    def values(self) -> dict[str, float]:
        self._do("values")
        return {FLOPS: 777.0}


class Library:
    def __init__(self) -> None:
        self.status = 0
        self.enabled: list[int] = []
        self.subscribed = False

    def cuptiSubscribe(self, subscriber: Any, callback: Any, user: None) -> int:  # noqa: N802
        self.callback, self.subscribed = callback, not self.status
        return self.status

    def cuptiUnsubscribe(self, subscriber: Any) -> None:  # noqa: N802
        self.subscribed = False

    def cuptiEnableCallback(self, on: int, subscriber: Any, domain: int, number: int) -> None:  # noqa: N802
        assert (on, domain) == (1, 1)
        self.enabled.append(number)


class Process:
    """A process whose launches CUPTI reports."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.library, self.counters = Library(), Profiler()
        self.driver = Driver(self.counters.log)
        self.monkeypatch = monkeypatch
        self.wanted: Callable[[LaunchKey, int], bool] = lambda key, index: True

    def replay(self, **options: Any) -> Replay:
        with self.monkeypatch.context() as patch:
            patch.setattr(ctypes, "CDLL", lambda name: self.driver)
            wanted: Callable[[LaunchKey, int], bool] = lambda key, index: self.wanted(key, index)  # noqa: E731
            return Replay(self, self.counters, wanted, **options)  # type: ignore[arg-type]

    def call(
        self, number: int, parameters: Any, name: bytes | None, after: bool, context: int = 1
    ) -> None:
        where = ctypes.cast(ctypes.pointer(parameters), c_void_p)
        data = CallbackData(int(after), b"cu", where, None, name, context)
        expected = self.library.callback._argtypes_[3]
        self.library.callback(None, 1, number, ctypes.cast(ctypes.pointer(data), expected))

    def kernel(
        self,
        name: bytes | None = b"k",
        *,
        after: bool,
        number: int = LAUNCH,
        grid: int = 4,
        stream: int = 5,
        context: int = 1,
    ) -> None:
        dims = (grid, 3, 2, 128, 2, 1)
        if number in (LAUNCH, LAUNCH_PTSZ):
            self.call(number, LaunchParams(99, *dims, 1024, stream), name, after, context)
        else:
            config = LaunchConfig(*dims, 1024, stream)
            self.call(number, LaunchExParams(ctypes.pointer(config), 99), name, after, context)

    def launch(self, name: bytes | None = b"k", **more: Any) -> None:
        self.kernel(name, after=False, **more)
        self.kernel(name, after=True, **more)

    def graph(self, graph: int = 1, number: int = GRAPH, stream: int = 5) -> None:
        for after in (False, True):
            self.call(number, GraphParams(graph, stream), None, after)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    return Process(monkeypatch)


@pytest.fixture
def other() -> Iterator[ThreadPoolExecutor]:
    """One other thread."""
    with ThreadPoolExecutor(1) as pool:
        yield pool


def is_free(replay: Replay, other: ThreadPoolExecutor) -> bool:
    """Whether another thread can launch."""

    def taken() -> bool:
        found = replay._lock.acquire(blocking=False)
        if found:
            replay._lock.release()
        return found

    return other.submit(taken).result()


def indices(replay: Replay) -> list[tuple[str, int]]:
    return [(one.key.kernel, one.index) for one in replay.counted]


# Kernels -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [LAUNCH, LAUNCH_PTSZ, LAUNCH_EX, LAUNCH_EX_PTSZ])
def test_a_launch_is_counted_between_the_two_calls(process: Process, number: int) -> None:
    with process.replay() as replay:
        process.kernel(b"_Z4gemmPf", after=False, number=number)
        assert process.counters.log == ["enable", "start"] and not replay.counted
        process.kernel(b"_Z4gemmPf", after=True, number=number)
    (one,) = replay.counted
    assert one.key == ("gemm(float*)", (4, 3, 2), (128, 2, 1))
    assert (one.index, one.us, one.counters.flops) == (0, 12.5, {"tensor_bf16": 4096})
    assert process.counters.log == ["enable", "start", "end", "disable"]
    assert not replay.failed and not replay.reasons


def test_which_calls_are_reported(process: Process) -> None:
    with process.replay():
        assert process.library.subscribed
    assert not process.library.subscribed
    kernels = {LAUNCH, LAUNCH_PTSZ, LAUNCH_EX, LAUNCH_EX_PTSZ}
    assert set(process.library.enabled) == {*kernels, GRAPH, GRAPH_PTSZ}
    process.library.enabled.clear()
    with process.replay(graphs=False):
        assert set(process.library.enabled) == kernels


def test_only_what_is_wanted_is_counted(process: Process) -> None:
    process.wanted = lambda key, index: key.kernel == "a" and index == 1
    with process.replay() as replay:
        for name in (b"a", b"b", b"a", b"b", b"a"):
            process.launch(name)
    assert indices(replay) == [("a", 1)]
    assert replay.seen == {("a", (4, 3, 2), (128, 2, 1)): 3, ("b", (4, 3, 2), (128, 2, 1)): 2}


def test_other_grids_are_numbered_apart(process: Process) -> None:
    with process.replay() as replay:
        for grid in (4, 5, 4):
            process.launch(grid=grid)
    assert [(one.key.grid[0], one.index) for one in replay.counted] == [(4, 0), (5, 0), (4, 1)]


def test_numbers_begin_again_at_the_anchor(process: Process) -> None:
    anchor = LaunchKey("first", (4, 3, 2), (128, 2, 1))
    with process.replay(anchor=anchor) as replay:
        for name in (b"k", b"first", b"k", b"k", b"first", b"k"):
            process.launch(name)
    assert indices(replay) == [
        *(("k", 0), ("first", 0), ("k", 0), ("k", 1)),
        *(("first", 0), ("k", 0)),
    ]


def test_numbers_begin_again_in_a_new_step(process: Process) -> None:
    with process.replay() as replay:
        process.launch()
        replay.new_step()
        process.launch()
        process.launch()
    assert indices(replay) == [("k", 0), ("k", 0), ("k", 1)]


def test_a_kernel_without_a_name(process: Process) -> None:
    with process.replay() as replay:
        process.launch(None)
    assert indices(replay) == [("?", 0)]


def test_a_launch_into_a_graph_is_not_counted(process: Process) -> None:
    process.driver.captured = {5}
    with process.replay() as replay:
        process.launch()
        process.launch(stream=6)
    assert indices(replay) == [("k", 1)] and not replay.failed


@pytest.mark.parametrize("name", [b"ncclDevKernel_AllReduce", b"nvshmem_barrier"])
def test_kernels_that_wait_for_others_are_not_counted(process: Process, name: bytes) -> None:
    with process.replay() as replay:
        process.launch(name)
        process.launch()
    assert indices(replay) == [("k", 0)] and not replay.failed
    assert list(replay.reasons) == ["kernels that wait for other GPUs are not counted"]


def test_a_launch_that_was_not_seen_is_not_kept(process: Process, other: Any) -> None:
    process.counters.found = None
    with process.replay() as replay:
        process.launch()
        assert is_free(replay, other)
    assert not replay.counted and not replay.failed


# Limits and failures -----------------------------------------------------------------------------


def test_too_little_memory(process: Process) -> None:
    process.driver.free = 30 * 10**9
    with process.replay() as replay:
        process.launch()
        process.driver.free = 79 * 10**9
        process.launch()
    (reason,) = replay.reasons
    assert reason.startswith("50 GB of the GPU's memory are in use and 30 GB are free")
    assert replay.failed and not replay.counted and not process.counters.log


def test_too_long(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module, "perf_counter", lambda: now)
    with process.replay() as replay:
        process.launch()
        now += BUDGET_S + 1
        process.launch()
    assert indices(replay) == [("k", 0)] and replay.failed
    assert list(replay.reasons) == ["counting ended after 60 s: not all groups are counted"]


@pytest.mark.parametrize("where", ["enable", "start", "end"])
@pytest.mark.parametrize("error", [KernelError("cuptiX: BUSY"), OSError("gone")])
def test_what_fails_is_a_reason(
    process: Process, other: ThreadPoolExecutor, where: str, error: Exception
) -> None:
    process.counters.fails[where] = error
    with process.replay() as replay:
        process.launch()
        assert is_free(replay, other)
        process.launch()
        assert is_free(replay, other)
    text = "OSError: gone" if isinstance(error, OSError) else "cuptiX: BUSY"
    assert list(replay.reasons) == [text] and replay.failed
    assert process.counters.log.count(where) == 1


def test_what_wants_may_fail(process: Process, other: ThreadPoolExecutor) -> None:
    process.wanted = lambda key, index: 1 // index > 0
    with process.replay() as replay:
        process.launch()
        assert is_free(replay, other)
    assert list(replay.reasons) == ["ZeroDivisionError: integer division or modulo by zero"]


def test_without_permission_it_says_what_to_do(process: Process) -> None:
    text = "cuptiRangeProfilerEnable: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"
    process.counters.fails["enable"] = KernelError(text)
    with process.replay() as replay:
        process.launch()
    assert list(replay.reasons) == [FORBIDDEN]


def test_an_end_that_fails_is_a_reason(process: Process) -> None:
    process.counters.fails["disable"] = KernelError("cuptiX: GONE")
    with process.replay() as replay:
        process.launch()
    assert indices(replay) == [("k", 0)] and list(replay.reasons) == ["cuptiX: GONE"]


@pytest.mark.parametrize(("status", "text"), [(39, "another profiler is active"), (7, ": 7")])
def test_a_start_that_fails(process: Process, status: int, text: str) -> None:
    process.library.status = status
    with pytest.raises(KernelError, match=text):
        process.replay().__enter__()
    assert not process.library.enabled


def test_nothing_is_counted_after_the_end(process: Process, other: ThreadPoolExecutor) -> None:
    with process.replay() as replay:
        pass
    process.launch()  # CUPTI was about to call
    process.graph()
    assert not replay.counted and not process.counters.log and is_free(replay, other)


# Graphs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [GRAPH, GRAPH_PTSZ])
def test_a_graph_is_counted_in_as_many_launches_as_it_takes(process: Process, number: int) -> None:
    with process.replay() as replay:
        process.graph(number=number)
        assert replay.unfinished and not replay.counted_graphs
        process.launch()  # while a graph is counted no other launch is
        process.graph(graph=2, number=number)
        process.graph(number=number)
        assert not replay.unfinished
        process.graph(number=number)
    one = ["wait", "enter", "wait", "leave"]
    assert process.counters.log == ["enable", "begin", *one, *one, "values", "disable"]
    assert [one.flops for one in replay.counted_graphs] == [{"tensor_bf16": 777}]
    assert replay.graph_launches == 4 and not replay.counted


def test_graphs_are_numbered_in_each_step(process: Process) -> None:
    with process.replay() as replay:
        process.graph()
        replay.new_step()
        assert replay.graph_launches == 0 and replay.unfinished


def test_a_graph_in_a_graph_that_is_made_is_not_counted(process: Process) -> None:
    process.driver.captured = {5}
    with process.replay() as replay:
        process.graph()
        assert not replay.unfinished
    assert not process.counters.log


@pytest.mark.parametrize("where", ["enable", "begin", "enter", "leave", "values"])
def test_a_graph_that_fails_is_a_reason(
    process: Process, other: ThreadPoolExecutor, where: str
) -> None:
    process.counters.fails[where] = KernelError("cuptiX: BUSY")
    with process.replay() as replay:
        for _ in range(3):
            process.graph()
            assert is_free(replay, other)
        assert not replay.unfinished
    assert list(replay.reasons) == ["cuptiX: BUSY"] and replay.failed
    assert not replay.counted_graphs


# Threads -----------------------------------------------------------------------------------------


def test_the_end_of_another_threads_launch_is_not_ours(
    process: Process, other: ThreadPoolExecutor
) -> None:
    with process.replay() as replay:
        process.kernel(after=False)
        other.submit(process.kernel, b"theirs", after=True).result()
        assert process.counters.log == ["enable", "start"] and not is_free(replay, other)
        process.kernel(after=True)
        assert is_free(replay, other)
    assert indices(replay) == [("k", 0)] and not replay.reasons


def test_the_end_of_another_threads_graph_is_not_ours(
    process: Process, other: ThreadPoolExecutor
) -> None:
    with process.replay() as replay:
        process.call(GRAPH, GraphParams(1, 5), None, after=False)
        other.submit(process.call, GRAPH, GraphParams(2, 5), None, after=True).result()
        assert "leave" not in process.counters.log
        process.call(GRAPH, GraphParams(1, 5), None, after=True)
        assert is_free(replay, other)
    assert process.counters.log.count("leave") == 1


def test_no_launch_is_counted_while_another_thread_launches(
    process: Process, other: ThreadPoolExecutor
) -> None:
    process.wanted = lambda key, index: key.kernel == "k"
    with process.replay() as replay:
        other.submit(process.kernel, b"theirs", after=False).result()
        process.launch()
        assert not process.counters.log
        other.submit(process.kernel, b"theirs", after=True).result()
        process.launch()
    assert indices(replay) == [("k", 1)]


def test_a_launch_on_another_gpu_goes_on_meanwhile(
    process: Process, other: ThreadPoolExecutor
) -> None:
    with process.replay() as replay:
        process.kernel(after=False)
        other.submit(process.launch, b"theirs", context=2).result(60)
        assert not is_free(replay, other)
        process.kernel(after=True)
    assert indices(replay) == [("k", 0)]
    assert {key.kernel: count for key, count in replay.seen.items()} == {"k": 1, "theirs": 1}


def test_a_launch_on_another_gpu_stops_waiting(
    process: Process, other: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came before it was known which GPU is counted."""
    with process.replay() as replay:
        lock = Lock()
        lock.owner = threading.get_ident()
        replay._lock = lock  # type: ignore[assignment]
        lock.acquire()
        theirs = other.submit(process.launch, b"theirs", context=2)
        assert lock.waits.wait(60)
        process.kernel(after=False)
        theirs.result(60)
        process.kernel(after=True)
        lock.release()
    assert indices(replay) == [("k", 0)]


class Lock:
    """Says when a thread is about to wait."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.owner: int | None = None
        self.waits = threading.Event()

    def acquire(self, timeout: float = 60) -> bool:
        if self.owner not in (None, threading.get_ident()):
            self.waits.set()
        return self.lock.acquire(timeout=timeout)

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


def test_a_launch_at_once_is_counted(process: Process) -> None:
    """It has waited for the lock, and the thread that counts does not go on before it."""

    class Late(Lock):
        def __exit__(self, *error: object) -> None:
            super().__exit__()
            process.launch()

    replay = process.replay()
    replay._lock = Late()  # type: ignore[assignment]
    replay.__enter__()
    replay._lock = Lock()  # type: ignore[assignment]
    replay.__exit__()
    assert indices(replay) == [("k", 0)] and not replay.reasons


@pytest.mark.parametrize("name", [b"wanted", b"not"])
def test_no_launch_begins_while_one_is_counted(
    process: Process, other: ThreadPoolExecutor, name: bytes
) -> None:
    process.wanted = lambda key, index: key.kernel != "not"
    with process.replay() as replay:
        lock = Lock()
        lock.owner = threading.get_ident()
        replay._lock = lock  # type: ignore[assignment]
        process.kernel(after=False)
        theirs = other.submit(process.launch, name)
        assert lock.waits.wait(60)
        assert not theirs.done() and len(replay.seen) == 1
        process.kernel(after=True)
        theirs.result(60)
    expected = [("k", 0), ("wanted", 0)] if name == b"wanted" else [("k", 0)]
    assert indices(replay) == expected and not replay.reasons


def test_it_does_not_end_within_a_launch_of_another_thread(
    process: Process, other: ThreadPoolExecutor
) -> None:
    replay = process.replay().__enter__()
    lock = Lock()
    lock.owner = other.submit(threading.get_ident).result()
    replay._lock = lock  # type: ignore[assignment]
    other.submit(process.kernel, after=False).result()
    with ThreadPoolExecutor(1) as third:
        ended = third.submit(replay.__exit__)
        assert lock.waits.wait(60)
        assert "disable" not in process.counters.log
        other.submit(process.kernel, after=True).result()
        ended.result(60)
    assert process.counters.log == ["enable", "start", "end", "disable"]
    assert indices(replay) == [("k", 0)]


def test_many_threads_launch_at_once(process: Process) -> None:
    def launches(name: bytes) -> None:
        for _ in range(200):
            process.launch(name)

    with process.replay() as replay:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(launches, [b"a", b"b", b"a", b"b"]))
        seen = {key.kernel: count for key, count in replay.seen.items()}
    assert seen == {"a": 400, "b": 400}
    assert not replay.reasons
    assert len(set(indices(replay))) == len(replay.counted)
    log = process.counters.log
    assert log[0] == "enable" and log[-1] == "disable"
    assert log[1:-1] == ["start", "end"] * len(replay.counted)


# Launches are held before the first is counted ---------------------------------------------------


class Between:
    """What is called while nothing is launched."""

    def __init__(self, process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log = process.counters.log
        self.waits = threading.Event()
        monkeypatch.setattr(module, "synchronize", self.synchronize)
        monkeypatch.setattr(module, "QUEUE_S", 600.0)  # a busy machine's pauses do not end it
        self.fails: Exception | None = None

    def synchronize(self) -> None:
        self.log.append("synchronize")
        self.waits.set()

    def before(self) -> None:
        self.log.append("before")
        if self.fails:
            raise self.fails

    def after(self) -> None:
        self.log.append("after")

    @property
    def both(self) -> tuple[Callable[[], None], Callable[[], None]]:
        return self.before, self.after


@pytest.fixture
def between(process: Process, monkeypatch: pytest.MonkeyPatch) -> Between:
    return Between(process, monkeypatch)


def test_nothing_is_launched_while_records_stop(process: Process, between: Between) -> None:
    with process.replay(between=between.both) as replay:
        process.launch()
    assert indices(replay) == [("k", 0)]
    done = ["synchronize", "synchronize"]
    assert between.log == [*done, "before", "enable", "start", "end", *done, "disable", "after"]


def waits(began: list[Any], then: Callable[[], None], *calls: Callable[[], Any]) -> None:
    """What ``calls`` begin in another thread waits, and is in ``began``."""
    began += [call() for call in calls]
    sleep(0.1)
    assert not began[0].done()
    then()


def test_a_new_launch_waits_until_records_have_stopped(
    process: Process, between: Between, other: ThreadPoolExecutor
) -> None:
    began: list[Any] = []
    before = partial(waits, began, between.before, partial(other.submit, process.launch))
    with process.replay(between=(before, between.after)) as replay:
        began[0].result(60)
    assert indices(replay) == [("k", 0)]
    assert between.log[2:5] == ["before", "enable", "start"]


HEADER = "nvidia/cuda_cupti/include/cupti_driver_cbid.h"
ASYNC = re.compile(r"cu(Memcpy(|[HD]toD|DtoH|2D|3D|Peer)|Memset(D2)?D(8|16|32))Async(_v2)?(_ptsz)?")
WAITS = re.compile(r"cu(Memcpy([HD]toD_v2|DtoH_v2|)|MemsetD(8|16|32)_v2)(_ptds)?")


def test_the_numbers_of_copies_are_those_of_the_header() -> None:
    found = [path for one in sys.path if (path := Path(one) / HEADER).exists()]
    if not found:
        pytest.skip("CUPTI's headers come with the extra cupti")
    numbers = dict(re.findall(r"CUPTI_DRIVER_TRACE_CBID_(\w+) += (\d+)", found[0].read_text()))
    newest = {name for name in numbers if f"{name}_v2" not in numbers}
    expected = {int(numbers[name]) for name in newest if ASYNC.fullmatch(name)}
    assert expected == set(module._STREAM_AT)
    expected |= {int(numbers[name]) for name in numbers if WAITS.fullmatch(name)}
    assert expected == set(module._COPIES)


class CopyParams(ctypes.Structure):
    """cuMemcpyHtoDAsync_v2_params."""

    _fields_ = (("to", c_void_p), ("from", c_void_p), ("bytes", c_size_t), ("stream", c_void_p))


def test_a_copy_waits_too_until_records_have_stopped(
    process: Process, between: Between, other: ThreadPoolExecutor
) -> None:
    def copy(number: int) -> None:
        for after in (False, True):
            process.call(number, CopyParams(1, 2, 3, 5), None, after)

    began: list[Any] = []
    copies = [partial(other.submit, copy, number) for number in (COPY, WAITING_COPY)]
    before = partial(waits, began, between.before, *copies)
    with process.replay(between=(before, between.after)) as replay:
        for one in began:
            one.result(60)
        process.kernel(after=False)
        copy(COPY)  # what CUPTI saves is no end of the launch
        process.kernel(after=True)
    assert indices(replay) == [("k", 0)]
    assert between.log[2:6] == ["before", "enable", "start", "end"]


def test_a_copy_into_a_graph_that_is_made_goes_on(
    process: Process, between: Between, other: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    process.driver.captured = {5}
    with ThreadPoolExecutor(1) as third:
        entered = third.submit(process.replay(between=between.both).__enter__)
        while not process.library.enabled:
            sleep(0.001)
        other.submit(process.call, COPY, CopyParams(1, 2, 3, 5), None, False).result(60)
        with pytest.raises(BusyError):
            entered.result(60)
    assert between.log == []


def test_a_launch_that_is_under_way_ends_first(
    process: Process, between: Between, other: ThreadPoolExecutor
) -> None:
    """Its thread may be in a full queue: the device is waited for."""
    replay = process.replay(between=between.both)
    replay._inside.add(other.submit(threading.get_ident).result())
    with ThreadPoolExecutor(1) as third:
        entered = third.submit(replay.__enter__)
        assert between.waits.wait(60)
        sleep(0.05)
        assert "before" not in between.log
        other.submit(process.kernel, after=True).result()
        entered.result(60)
        third.submit(replay.__exit__, None, None, None).result(60)
    done = ["synchronize", "synchronize"]
    assert between.log == [*done, "before", *done, "after"]


def test_a_new_launch_waits_until_records_go_on(
    process: Process, between: Between, other: ThreadPoolExecutor
) -> None:
    began: list[Any] = []
    after = partial(waits, began, between.after, partial(other.submit, process.launch))
    with process.replay(between=(between.before, after)) as replay:
        process.launch()
    began[0].result(60)
    assert between.log[-2:] == ["disable", "after"] and indices(replay) == [("k", 0)]


def test_a_launch_that_does_not_end(
    process: Process, between: Between, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HELD_S", 0.1)
    replay = process.replay(between=between.both)
    replay._inside.add(1)
    with pytest.raises(BusyError, match="do not end"):
        replay.__enter__()
    assert between.log == ["synchronize"] and not process.library.subscribed


def test_a_graph_that_is_made_goes_on(
    process: Process, between: Between, other: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its launches do not wait, and nothing waits for the device."""
    monkeypatch.setattr(module, "SETTLE_S", 0.2)
    process.driver.captured = {5}
    with ThreadPoolExecutor(1) as third:
        entered = third.submit(process.replay(between=between.both).__enter__)
        while not process.library.enabled:
            sleep(0.001)
        other.submit(process.launch, b"into a graph").result(60)
        with pytest.raises(BusyError):
            entered.result(60)
    assert between.log == [] and not process.library.subscribed


def test_records_go_on_if_they_do_not_stop(process: Process, between: Between) -> None:
    between.fails = KernelError("busy")
    with pytest.raises(KernelError, match="busy"):
        process.replay(between=between.both).__enter__()
    assert between.log[-2:] == ["before", "after"] and not process.library.subscribed


def test_a_launch_that_gives_no_counts_is_told(process: Process) -> None:
    process.counters.found = None
    with process.replay() as replay:
        process.launch()
    assert replay.lost == 1 and not replay.counted
