"""NVTX ranges among CUPTI's activity records, and which of them were around each launch. Pure."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from rooflab.devices.ranges import Range, around

INJECTION: Final = "NVTX_INJECTION64_PATH"
"""The variable that names the library which NVTX tells its ranges: CUPTI's."""

_BEGINS: Final = 1 << 1
"""The flag of a marker with which a range begins; the one that ends it has the same id."""


class Marker(NamedTuple):
    """The begin of a range, or its end, which has no name."""

    flags: int
    id: int
    thread: int
    at_ns: int
    name: str


class HostCall(NamedTuple):
    """A call of CUDA that launched something."""

    thread: int
    at_ns: int


def ranges_of(markers: Iterable[Marker]) -> dict[int, list[Range]]:
    """By thread, those that have begun and ended."""
    begun: dict[int, Marker] = {}
    found: dict[int, list[Range]] = defaultdict(list)
    for one in sorted(markers, key=lambda marker: marker.at_ns):
        if one.flags & _BEGINS:
            begun[one.id] = one
        elif first := begun.pop(one.id, None):
            found[first.thread].append(Range(first.name, first.at_ns, one.at_ns))
    return found


def phases_of(
    calls: Mapping[int, HostCall], ranges: Mapping[int, list[Range]], main: int | None = None
) -> dict[int, tuple[str, ...]]:
    """The names of the ranges around each call, the outermost first.

    A thread without ranges, such as autograd's, works for the ``main`` one, by default that of this
    process.
    """
    others = ranges.get(os.getpid() if main is None else main, [])
    by_thread: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, call in calls.items():
        by_thread[call.thread][call.at_ns].append(number)
    found = {}
    for thread, moments in by_thread.items():
        for at, inside in around(ranges.get(thread, others), moments):
            names = tuple(one.name for one in inside)
            found.update(dict.fromkeys(moments[at], names))
    return found
