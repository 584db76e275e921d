"""Where functions work, and the current streams of CuPy, by devices and a CuPy that do nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from rooflab.devices.base import Timed
from rooflab.functions import process


class Gpu:
    """Two events are 1.3 µs apart, and further if something is launched in between.

    It has the clock, and a gate that opens by itself after two seconds.
    """

    id = "cuda:0"
    kind = "cuda"

    def __init__(self) -> None:
        self.now_s = self.queued_us = self.elsewhere_us = self.opens_s = 0.0

    def launch(self, us: float) -> None:
        self.queued_us += us

    def launch_elsewhere(self, us: float) -> None:
        self.elsewhere_us = us

    def wait(self) -> None:
        self.now_s = max(self.now_s, self.opens_s)

    def compute(self, seconds: float) -> None:
        self.now_s += seconds

    def time_alone(self, launch: Callable[[], Any], before: None) -> Timed:
        self.queued_us, self.opens_s = 0.0, self.now_s + 2.0
        started_s = self.now_s
        launch()
        gated, self.opens_s = self.now_s < self.opens_s, 0.0
        late_us = 0.0 if gated else (self.now_s - started_s - 2.0) * 1e6
        return Timed([1.3 + self.queued_us + late_us], gated=gated)

    def synchronize(self) -> None:
        self.now_s += self.elsewhere_us / 1e6
        self.elsewhere_us = 0.0


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    found = Gpu()
    monkeypatch.setattr(process, "resolve", lambda spec: ("cuda:0", ""))
    monkeypatch.setattr(process, "device_of", lambda place: found)
    monkeypatch.setattr(process, "borrowed", lambda device: nullcontext())
    monkeypatch.setattr(process, "perf_counter", lambda: found.now_s)
    return found


def test_work_decides_where_functions_without_arrays_are_timed(gpu: Gpu) -> None:
    def waits() -> None:
        gpu.compute(0.1)
        gpu.wait()

    def launches() -> None:
        gpu.launch(2.0)

    def elsewhere() -> None:
        gpu.launch_elsewhere(500.0)

    def computes() -> None:
        gpu.compute(2e-3)

    assert process.workplace([computes]) == process.workplace([lambda: None]) == "cpu"
    for one in (waits, launches, elsewhere):
        assert process.workplace([one]) == process.workplace([computes, one]) == "cuda:0"


@pytest.mark.parametrize("seconds", [1.9, 2.0, 2.5, 30.0])
def test_a_function_of_the_host_may_take_longer_than_the_gate_waits(
    gpu: Gpu, seconds: float
) -> None:
    """Another program may delay some of the calls."""
    calls: list[float] = []

    def computes() -> None:
        calls.append(seconds + (5.0 if len(calls) == 0 else 0.0))
        gpu.compute(calls[-1])

    def then_launches() -> None:
        gpu.compute(seconds)
        gpu.launch_elsewhere(500.0)

    assert process.workplace([computes]) == "cpu"
    assert len(calls) <= 4
    assert process.workplace([then_launches]) == "cuda:0"


def test_each_gpu_gets_its_own_stream_of_cupy_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is on GPU 0 and has a stream of its own on GPU 1, where the arrays are."""
    state: dict[Any, Any] = {"gpu": 0, 0: "null", 1: "mine"}

    class Stream:
        ptr = 1

        def __init__(self, name: str, gpu: int) -> None:
            self.name, self.gpu = name, gpu

        def use(self) -> None:
            assert state["gpu"] == self.gpu
            state[self.gpu] = self.name

    class Device:
        def __init__(self, number: int | None = None) -> None:
            self.id = state["gpu"] if number is None else number

        def use(self) -> None:
            state["gpu"] = self.id

    def current() -> Stream:
        return Stream(state[state["gpu"]], state["gpu"])

    cuda = SimpleNamespace(Device=Device, get_current_stream=current)
    monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=cuda))
    monkeypatch.setitem(sys.modules, "torch", None)
    own = Stream("own", 1)
    device: Any = SimpleNamespace(id="cuda:1", kind="cuda", stream=own, synchronize=lambda: None)
    with process.borrowed(device):
        assert state == {"gpu": 1, 0: "null", 1: "own"}
        state["gpu"] = 0  # a function may change it
    assert state == {"gpu": 0, 0: "null", 1: "mine"}


def test_memory_that_pytorch_keeps_for_rooflab_is_given_back() -> None:
    emptied: list[int] = []
    cuda = SimpleNamespace(memory_reserved=lambda n: 10 + n, empty_cache=lambda: emptied.append(1))
    process._give_back(cuda, 1, 11)
    assert not emptied
    process._give_back(cuda, 1, 9)
    assert emptied
