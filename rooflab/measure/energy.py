"""The power of a device, from its energy counter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import linear_regression
from threading import Event, Thread
from time import perf_counter
from typing import Final, Self

PERIOD_S: Final = 0.002
"""Between two readings of the counter."""

LEAST_STEPS: Final = 3


class PowerMeter:
    """Reads an energy counter in a thread of its own, from the beginning of ``with`` to its end.

    A GPU's counter moves in steps, on an H200 every 0.1 s. The difference of two readings in a
    second is therefore wrong by up to 10 %; the times of the steps tell the power.
    """

    def __init__(self, joules: Callable[[], float | None]) -> None:
        self._joules = joules
        self._steps: list[tuple[float, float]] = []
        self._stop = Event()
        self._thread = Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()

    def _read(self) -> None:
        last = self._joules()
        while last is not None and not self._stop.wait(PERIOD_S):
            now = self._joules()
            if now is not None and now != last:
                self._steps.append((perf_counter(), now))
                last = now

    @property
    def watts(self) -> float | None:
        """The mean power; None if the counter moved too seldom."""
        return slope(self._steps)


def slope(steps: Sequence[tuple[float, float]]) -> float | None:
    """Watts of a counter that had these joules at these seconds, by least squares."""
    if len(steps) < LEAST_STEPS:
        return None
    seconds, joules = zip(*steps, strict=True)
    return linear_regression(seconds, joules).slope
