"""What happened when in one launch of a streamed problem. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

What = Literal["in", "kernel", "out"]

TITLES: Final[dict[str, str]] = {"in": "copy in", "kernel": "kernel", "out": "copy out"}

MOST_CHUNKS: Final = 24
"""Chunks of a timeline: more are too small to see."""


@dataclass(frozen=True, slots=True)
class Span:
    """One part of a chunk in a stream, from ``start_us`` to ``end_us`` after the launch began."""

    stream: int
    chunk: int
    what: What
    start_us: float
    end_us: float


class StepLaunch(NamedTuple):
    """A launch or copy of a program, ``start_us`` after the beginning of its step.

    ``row`` is the number of its row, from 0.
    """

    start_us: float
    duration_us: float
    device: int
    stream: int
    row: int

    @property
    def end_us(self) -> float:
        """When it ended."""
        return self.start_us + self.duration_us


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """One step of a program, which took ``us``; ``left_out`` launches after these were too many."""

    launches: tuple[StepLaunch, ...] = ()
    us: float = 0.0
    left_out: int = 0


MOST_LAUNCHES: Final = 20_000
"""Launches of a step that are kept."""


def unit(us: float) -> tuple[str, float]:
    """A unit of time that suits so many microseconds, and its microseconds."""
    return ("ms", 1000.0) if us >= 1000 else ("µs", 1.0)
