"""Axes in pixels, logarithmic or linear. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Final

MOST_TICKS: Final = 7
"""Labels of one axis; with more of them only every second or third power of ten has one."""


@dataclass(frozen=True, slots=True)
class Log:
    """``low`` is at pixel ``start``, ``high`` at pixel ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        share = log10(value / self.low) / log10(self.high / self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Powers of ten within the axis; also 2 and 5 times these if they are few."""
        first, last = ceil(log10(self.low) - 1e-9), floor(log10(self.high) + 1e-9)
        step = ceil((last - first + 1) / MOST_TICKS)
        found = [10.0**power for power in range(first, last + 1, step or 1)]
        if len(found) > 2:
            return found
        finer = (m * 10.0**p for p in range(first - 1, last + 1) for m in (1, 2, 5))
        return [value for value in finer if self.low <= value <= self.high]


@dataclass(frozen=True, slots=True)
class Linear:
    """0 is at pixel ``start``, ``high`` at pixel ``end``."""

    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        return self.start + value / self.high * (self.end - self.start)

    def ticks(self) -> list[float]:
        """0 and the multiples of 1, 2 or 5 times a power of ten, as many as fit."""
        power = 10.0 ** floor(log10(self.high / MOST_TICKS))
        step = next(m * power for m in (1, 2, 5, 10) if self.high / (m * power) < MOST_TICKS)
        return [i * step for i in range(floor(self.high / step) + 1)]


Scale = Log | Linear


def around(values: Iterable[float], start: float, end: float, margin: float = 0.08) -> Log:
    """An axis for ``values``, which are above 0, with a margin; a decade at least."""
    given = list(values)
    low, high = log10(min(given)), log10(max(given))
    short = max(0.0, 1 - (high - low)) / 2
    low, high = low - short, high + short
    extra = margin * (high - low)
    return Log(10 ** (low - extra), 10 ** (high + extra), start, end)


def from_zero(values: Iterable[float], start: float, end: float) -> Scale:
    """A linear axis for ``values``, which are above 0; a logarithmic one if they span a decade."""
    given = list(values)
    if max(given) > 10 * min(given):
        return around(given, start, end)
    return Linear(1.08 * max(given), start, end)


_PREFIXES: Final = {18: "E", 15: "P", 12: "T", 9: "G", 6: "M", 3: "k", 0: ""}


def short(value: float) -> str:
    """``20k``, ``0.05``: the label of a tick."""
    if value < 1000:
        return f"{value:.3g}"
    power = next((power for power in _PREFIXES if value >= 10**power), 0)
    return f"{value / 10**power:.3g}{_PREFIXES[power]}"


def steps(scale: Scale) -> Iterator[tuple[float, str]]:
    """Pixel and label of each tick."""
    for tick in scale.ticks():
        yield scale(tick), short(tick)
