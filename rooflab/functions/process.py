"""The caller's process while its functions are timed: afterwards it is as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device
from rooflab.devices.registry import open_device, resolve
from rooflab.measure.settings import Own, Settings
from rooflab.measure.verify import CONFIRMED


class Unwatched(Settings):
    """The caller's own functions may change what they like, as they do without rooflab.

    Ctrl-C is the caller's too.
    """

    catches = Exception

    def __init__(self) -> None:
        self.loaded = {}

    def accept(self) -> None:
        """Do nothing."""

    @contextmanager
    def of(self, own: Own, *, trusted: bool = False) -> Iterator[None]:
        """Do nothing."""
        yield


@cache
def device_of(place: str) -> Device:
    """The opened device, once for each process."""
    return open_device(place)


EVENTS_US: Final = 1.0
WAIT_US: Final = 20.0
HELD_S: Final = 1.0
"""So much longer than nothing is a call that works on a GPU, between two events or until all work
has ended; and so much longer than without a gate, which opens by itself after two seconds, is one
that waits for the GPU."""


def workplace(calls: Iterable[Callable[[], Any]]) -> str:
    """Where calls work that are given no arrays and return none: the GPU if one works there."""
    device = device_of(resolve("auto")[0])
    if device.kind != "cuda":
        return device.id
    with borrowed(device):
        return device.id if any(_works(device, one) for one in calls) else "cpu"


def _works(device: Device, call: Callable[[], Any]) -> bool:
    """Whether a GPU has work after a call, or the call waits for it, each time it is looked at."""
    nothing = [_seen(device, lambda: None) for _ in range(CONFIRMED)]
    least_us, idle_us, _ = (min(times) for times in zip(*nothing, strict=True))
    for _ in range(CONFIRMED):  # other programs only add to times
        events_us, wait_us, held_s = _seen(device, call)
        works = events_us > least_us + EVENTS_US or wait_us > idle_us + WAIT_US
        if not works and held_s < HELD_S:
            return False
    return True


def _seen(device: Device, call: Callable[[], Any]) -> tuple[float, float, float]:
    """µs between events, µs until all work has ended, and seconds that a gate holds the call."""
    started = perf_counter()
    timed = device.time_alone(call, None)
    behind_s = perf_counter() - started
    started = perf_counter()
    call()
    called = perf_counter()
    device.synchronize()
    wait_us = (perf_counter() - called) * 1e6
    if timed.gated:
        return timed.times_us[0], wait_us, 0.0
    # A call of the host may be longer than the gate waits: then its events say nothing.
    return 0.0, wait_us, behind_s - (called - started)


@contextmanager
def borrowed(device: Device) -> Iterator[None]:
    """One stream is the current one of all libraries meanwhile; the caller's come back."""
    with ExitStack() as after:
        if device.kind == "cuda":
            _on_one_stream(device, after)
        device.synchronize()  # what the caller began
        try:
            yield
        finally:
            device.synchronize()


def _on_one_stream(device: Device, after: ExitStack) -> None:
    import cupy

    number = int(device.id.partition(":")[2])
    gpu = cupy.cuda.Device(number)
    after.callback(cupy.cuda.Device().use)
    gpu.use()
    stream = cupy.cuda.get_current_stream()  # each GPU has its own
    after.callback(stream.use)
    after.callback(gpu.use)
    own = device.stream  # the first use makes it current
    own.use()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        after.callback(_give_back, torch.cuda, number, torch.cuda.memory_reserved(number))
        after.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(own.ptr, device=number)))


def _give_back(cuda: Any, number: int, reserved: int) -> None:
    """What PyTorch keeps for the stream that only rooflab uses."""
    if cuda.memory_reserved(number) > reserved:
        cuda.empty_cache()


@contextmanager
def seeds() -> Iterator[None]:
    """The states of random generators come back."""
    import numpy

    back = [
        partial(random.setstate, random.getstate()),
        partial(numpy.random.set_state, numpy.random.get_state()),
    ]
    torch = sys.modules.get("torch")
    if torch is not None:
        back.append(partial(torch.set_rng_state, torch.get_rng_state()))
        if torch.cuda.is_initialized():
            states: Any = torch.cuda.get_rng_state_all()
            back.append(partial(torch.cuda.set_rng_state_all, states))
    try:
        yield
    finally:
        for put_back in back:
            put_back()
