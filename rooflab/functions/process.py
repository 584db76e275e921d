"""The caller's process while its functions are timed: afterwards it is as it was."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

from rooflab.devices.base import Device
from rooflab.devices.registry import open_device
from rooflab.measure.settings import Own, Settings


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
    gpu, stream = cupy.cuda.Device(), cupy.cuda.get_current_stream()
    after.callback(stream.use)
    after.callback(gpu.use)
    own = device.stream  # the first use makes it current
    cupy.cuda.Device(number).use()
    own.use()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        after.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(own.ptr, device=number)))


@contextmanager
def seeds() -> Iterator[None]:
    """The states of random generators come back."""
    back = [partial(random.setstate, random.getstate()), _numpy_state()]
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


def _numpy_state() -> partial[None]:
    import numpy

    return partial(numpy.random.set_state, numpy.random.get_state())
