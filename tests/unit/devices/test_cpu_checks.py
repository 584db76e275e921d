"""On a CPU: launches that return before their work is done, and operands outside of all caches."""

from __future__ import annotations

import ctypes
import mmap
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

import numpy as np
import pytest
from synthetic import gemm

from rooflab.devices.cpu import device as module
from rooflab.devices.cpu.device import EARLY, CpuDevice
from rooflab.measure.buffers import rotate


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice(threads=1)


def poisoned(shape: tuple[int, ...] = (300, 100), dtype: str = "float32") -> Any:
    output = np.empty(shape, dtype)
    output.view("uint8").fill(0xFF)
    return output


# When a launch returns ---------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "uint16", "uint8", "int32"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (300, 100)])
def test_work_that_is_done_when_the_launch_returns(
    device: CpuDevice, dtype: str, shape: tuple[int, ...]
) -> None:
    first, second = poisoned(shape, dtype), poisoned((7,), dtype)

    def launch() -> None:
        first.fill(1)
        second.fill(2)

    assert device.escapes(launch, [first, second]) == ""


def test_a_launch_may_use_threads_and_wait_for_them(device: CpuDevice) -> None:
    output = poisoned()

    def launch() -> None:
        workers = [
            threading.Thread(target=part.fill, args=(1,)) for part in (output[:9], output[9:])
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    assert device.escapes(launch, [output]) == ""


def test_memory_that_cannot_be_read_is_told(device: CpuDevice) -> None:
    memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
    rows = np.frombuffer(memory, np.float32).reshape(2, -1)
    place, protect = ctypes.c_void_p(rows[1].ctypes.data), ctypes.CDLL(None).mprotect
    assert not device.hides([rows])
    protect(place, mmap.PAGESIZE, 0)
    assert device.hides([poisoned(), rows])
    assert not device.hides([rows[:1]])
    protect(place, mmap.PAGESIZE, mmap.PROT_READ | mmap.PROT_WRITE)
    assert not device.hides([rows])


class Background:
    """A thread that computes what is put into its queue."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._waiting: queue.Queue[bool] = queue.Queue()
        self._work = work
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while self._waiting.get():
            self._work()

    def launch(self) -> None:
        self._waiting.put(True)

    def end(self) -> None:
        self._waiting.put(False)
        self._thread.join()


@pytest.fixture
def background() -> Iterator[Callable[[Callable[[], None]], Background]]:
    made: list[Background] = []

    def begin(work: Callable[[], None]) -> Background:
        made.append(Background(work))
        return made[-1]

    yield begin
    for one in made:
        one.end()


@pytest.mark.parametrize("delay_s", [0.0, 0.01])
def test_results_that_come_later_are_found(
    device: CpuDevice, background: Callable[[Callable[[], None]], Background], delay_s: float
) -> None:
    """At once in another thread, or some time after the launch."""
    output = poisoned()

    def work() -> None:
        time.sleep(delay_s)
        output.fill(1)

    assert device.escapes(background(work).launch, [output]) == EARLY


def test_a_part_of_the_results_that_comes_later_is_found(
    device: CpuDevice, background: Callable[[Callable[[], None]], Background]
) -> None:
    output, other = poisoned(), poisoned((5,))
    thread = background(lambda: output[250:].fill(1))

    def launch() -> None:
        thread.launch()
        output[:250] = 1
        other.fill(1)

    assert device.escapes(launch, [other, output]) == EARLY


def test_a_launch_that_is_early_only_now_and_then_is_found(
    device: CpuDevice,
    background: Callable[[Callable[[], None]], Background],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rooflab.devices.cpu.device.MOST_ESCAPE_S", 60)  # other tests run too
    output, launched = poisoned(), 0

    def work() -> None:
        time.sleep(0.005)
        output.fill(1)

    thread = background(work)

    def launch() -> None:
        nonlocal launched
        launched += 1
        if launched % 20:
            output.fill(1)
        else:
            thread.launch()

    assert device.escapes(launch, [output]) == EARLY


def test_a_launch_that_writes_nothing_is_not_early(device: CpuDevice) -> None:
    """Other checks tell what it is."""
    assert device.escapes(lambda: None, [poisoned()]) == ""


def test_slow_launches_are_few(device: CpuDevice) -> None:
    output, launched = poisoned(), 0

    def launch() -> None:
        nonlocal launched
        launched += 1
        output.fill(1)
        time.sleep(module.MOST_ESCAPE_S / 2)

    assert device.escapes(launch, [output]) == ""
    assert 2 <= launched <= 4


def test_threads_take_turns_as_before(device: CpuDevice) -> None:
    before = sys.getswitchinterval()
    device.escapes(lambda: None, [poisoned()])
    assert sys.getswitchinterval() == before
    launched = 0

    def fails() -> None:
        nonlocal launched
        launched += 1
        if launched == 2:
            assert sys.getswitchinterval() < before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        device.escapes(fails, [poisoned()])
    assert sys.getswitchinterval() == before


# Caches ------------------------------------------------------------------------------------------


def test_other_processors_have_no_such_instruction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert not CpuDevice(threads=1).evicts


def test_without_numba_nothing_is_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "AMD64")
    monkeypatch.setitem(sys.modules, "rooflab.devices.cpu._numba_eviction", None)
    assert not CpuDevice(threads=1).evicts


needs_it = pytest.mark.skipif(
    not CpuDevice().evicts, reason="this processor cannot evict single cache lines"
)


@needs_it
@pytest.mark.parametrize("dtype", ["float64", "float32", "uint16", "uint8", "int64"])
@pytest.mark.parametrize("elements", [0, 1, 7, 63, 64, 65, 100_003])
def test_what_is_evicted_keeps_its_content(dtype: str, elements: int) -> None:
    whole = np.arange(elements + 3).astype(dtype)
    part = whole[3:]  # it begins within a cache line
    before = whole.copy()
    evict = CpuDevice().evictor([part, np.ones((3, 5), dtype)])
    part += 1
    evict()
    before[3:] += 1
    assert (whole == before).all()


@needs_it
def test_columns_and_gaps_are_evicted_and_no_copies_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from rooflab.devices.cpu import _numba_eviction

    dropped: list[tuple[int, int]] = []
    monkeypatch.setattr(_numba_eviction, "evict", lambda *bounds: dropped.append(bounds))
    whole = np.ones((30, 40))
    CpuDevice().evictor([np.asfortranarray(whole), whole.T, whole[::-2, ::3]])()
    start = whole.ctypes.data
    assert dropped[1] == (start, start + whole.nbytes)
    assert dropped[2] == (start + 320, start + whole.nbytes)
    assert dropped[3:] == dropped[:3]


@needs_it
def test_operands_of_a_cpu_are_evicted_and_not_rotated(device: CpuDevice) -> None:
    rotation = rotate(device, gemm(33, 17, 9, "bf16"), 0, cold=True)
    assert len(rotation.copies) == 1
    assert rotation.flush is not None
    before = rotation.inputs()
    rotation.flush()
    assert rotation.inputs() == before
    assert rotation.trespass() == ""
    warm = rotate(device, gemm(33, 17, 9), 0, cold=False)
    assert (len(warm.copies), warm.flush) == (1, None)


@needs_it
@pytest.mark.slow
def test_what_is_evicted_comes_from_memory() -> None:
    """A chase of pointers through 256 KiB: each waits for the one before."""
    import numba

    lines, step = 4096, 8
    order = np.random.default_rng(0).permutation(lines)
    follow = np.zeros(lines * step, np.int64)
    follow[order * step] = np.roll(order, -1) * step

    @numba.njit  # type: ignore[misc, unused-ignore]
    def chase(follow: Any, count: int) -> int:
        place = 0
        for _ in range(count):
            place = follow[place]
        return place

    def nanoseconds(before: Callable[[], None]) -> float:
        times = []
        for _ in range(50):
            before()
            started = time.perf_counter_ns()
            chase(follow, lines)
            times.append((time.perf_counter_ns() - started) / lines)
        return median(times)

    assert chase(follow, lines) == 0
    evict = CpuDevice().evictor([follow])
    assert nanoseconds(evict) > 2 * nanoseconds(lambda: None)
