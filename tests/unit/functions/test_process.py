"""Where functions work, and the current streams of CuPy, by devices and a CuPy that do nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import pytest

from rooflab.devices.base import Timed
from rooflab.functions import process


class Gpu:
    """Two events are 1.3 µs apart, and further if something is launched in between."""

    id = "cuda:0"
    kind = "cuda"

    def __init__(self) -> None:
        self.queued_us = self.elsewhere_us = 0.0

    def launch(self, us: float) -> None:
        self.queued_us += us

    def launch_elsewhere(self, us: float) -> None:
        self.elsewhere_us = us

    def time_alone(self, launch: Callable[[], Any], before: None) -> Timed:
        self.queued_us = 0.0
        waits = launch() == "waited"
        return Timed([1.3 + self.queued_us], gated=not waits)

    def synchronize(self) -> None:
        until = perf_counter() + self.elsewhere_us / 1e6
        while perf_counter() < until:
            pass
        self.elsewhere_us = 0.0


def test_work_decides_where_functions_without_arrays_are_timed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from contextlib import nullcontext

    gpu = Gpu()
    monkeypatch.setattr(process, "resolve", lambda spec: ("cuda:0", ""))
    monkeypatch.setattr(process, "device_of", lambda place: gpu)
    monkeypatch.setattr(process, "borrowed", lambda device: nullcontext())

    def waits() -> str:
        return "waited"

    def launches() -> None:
        gpu.launch(2.0)

    def elsewhere() -> None:
        gpu.launch_elsewhere(500.0)

    def computes() -> int:
        sleep(2e-3)
        return sum(range(100))

    assert process.workplace([computes]) == process.workplace([lambda: None]) == "cpu"
    for one in (waits, launches, elsewhere):
        assert process.workplace([one]) == process.workplace([computes, one]) == "cuda:0"


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
