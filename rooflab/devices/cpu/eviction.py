"""Dropping arrays from all caches of the processor, line by line.

A cache need not be larger than what a program streams through it in a reasonable time, and a
virtual machine may show one of hundreds of megabytes. An instruction that evicts a line makes
operands cold however large it is.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any


@cache
def available() -> bool:
    """Whether this processor can do it, and Numba is there to say so."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    try:
        from rooflab.devices.cpu import _numba_eviction
    except ImportError:
        return False
    return callable(_numba_eviction.evict)


def evictor(arrays: Sequence[Any]) -> Callable[[], None]:
    """A function that writes every line of the arrays back and drops it."""
    from rooflab.devices.cpu import _numba_eviction

    lines = [array.reshape(-1).view("uint8") for array in arrays]

    def evict() -> None:
        for one in lines:
            _numba_eviction.evict(one)

    evict()  # compiles
    return evict
