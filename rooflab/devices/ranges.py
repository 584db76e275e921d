"""Ranges of host threads, and those around a moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

DEEPEST: Final = 128
"""Ranges inside each other. What is deeper counts as its ancestor."""


@dataclass(frozen=True, slots=True, eq=False)
class Range:
    """What a thread did from ``start_ns`` to ``end_ns``. Two ranges are never equal."""

    name: str
    start_ns: int
    end_ns: int
    arguments: Mapping[str, Any] | None = None


def around(
    ranges: Iterable[Range], moments: Iterable[int]
) -> Iterator[tuple[int, tuple[Range, ...]]]:
    """Each moment in ns, in order of time, with the ranges around it, the outermost first.

    Ranges of one thread are usually nested; those that only overlap are right too.
    """
    waiting = sorted(ranges, key=lambda one: (one.start_ns, -one.end_ns))
    opened: list[Range] = []
    next_one = 0
    for moment in sorted(set(moments)):
        while next_one < len(waiting) and waiting[next_one].start_ns <= moment:
            _open(opened, waiting[next_one])
            next_one += 1
        _close(opened, moment)
        yield moment, tuple(one for one in opened if one.end_ns >= moment)


def _open(opened: list[Range], new: Range) -> None:
    _close(opened, new.start_ns)
    if len(opened) >= DEEPEST:
        opened[:] = [one for one in opened if one.end_ns >= new.start_ns]
    if len(opened) < DEEPEST:
        opened.append(new)


def _close(opened: list[Range], moment: int) -> None:
    """Drop the innermost that have ended; one that has ended inside another that has not stays."""
    while opened and opened[-1].end_ns < moment:
        opened.pop()
