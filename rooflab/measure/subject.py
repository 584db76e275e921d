"""What the protocol times: one kernel on one problem, ready to be launched."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import cycle, islice
from typing import ClassVar, Final

from rooflab.devices.base import Launch
from rooflab.measure.verify import Accuracy
from rooflab.model.timeline import Span

LATER: Final = "right at first, wrong while timed"
OTHER: Final = "right at first, wrong on other inputs"

Runner = Callable[[list[Launch]], object]
"""Launches what it is given as in a round."""


@dataclass(slots=True)
class Watch:
    """A round that is watched: ``renew`` changes its inputs again; ``reason`` after its end."""

    renew: Callable[[], None] = lambda: None
    reason: str = ""

    def before(self, flush: Launch | None) -> Launch | None:
        """What runs before each launch: new inputs, if there is time for it, and the flush."""
        if flush is None:
            return None

        def both() -> None:
            self.renew()
            flush()

        return both


class Subject(ABC):
    """One kernel on one problem, wherever its operands are.

    What is defined here holds for a launch that is a pipeline of many operations: it is timed by
    itself, always on the same operands, and checked before and after all rounds.
    """

    __slots__ = ("cache", "fits_cache", "flush", "host_us", "launches", "rotates", "turn")

    queues: ClassVar[bool] = False
    """Whether many launches wait in the device's queue, one after the other."""
    counts_energy: ClassVar[bool] = True
    """Whether the device's counter has all energy of a launch."""

    def __init__(self, launches: list[Launch]) -> None:
        self.launches = launches
        self.turn = 0
        self.flush: Launch | None = None
        """What runs before a launch that is timed alone, or before a batch."""
        self.rotates = False
        """Whether copies of the operands keep the cache cold."""
        self.cache = ""
        """``cold`` or ``warm``, if operands stay where they are."""
        self.host_us: float | None = None
        """How long a call keeps the host busy, if that is known."""
        self.fits_cache = False
        """Whether the last-level cache holds all operands."""

    @property
    def launch(self) -> Launch:
        """The launch on the first copy of the operands."""
        return self.launches[0]

    @property
    def last(self) -> Launch:
        """The one before the next."""
        return self.launches[self.turn - 1]

    def next_launches(self, count: int) -> list[Launch]:
        """The next launches of the rotation, whose position is never reset."""
        start, self.turn = self.turn, (self.turn + count) % len(self.launches)
        return list(islice(cycle(self.launches), start, start + count))

    @abstractmethod
    def verify(self) -> Accuracy:
        """Whether its results are right."""

    def refill(self) -> None:  # noqa: B027  the operands of some are those of others too
        """Other numbers in the next verification."""

    @abstractmethod
    def load(self, fill: str) -> None:
        """The inputs of the timing, if they are not those of verification."""

    def spoiled(self, run: Runner, launch_us: float, together: int, *, slow: bool) -> str:
        """What is wrong with the results after all rounds, empty if nothing is.

        A launch takes about ``launch_us``, and so many are timed ``together``. Each ``slow`` one
        was judged.
        """
        self.refill()
        return told(OTHER, self.verify().reason)

    def inspect(self, run: Runner) -> str:
        """What is wrong with a few launches like those that are timed."""
        return ""

    def watched(self, count: int, *, judge: bool) -> AbstractContextManager[Watch]:
        """A round of so many launches; the value says later what is wrong with it."""
        return nullcontext(Watch())

    def judged(self, *, last: bool, inspected: bool) -> AbstractContextManager[Watch]:
        """A round of one slow launch, which is judged if it is the last or inspected."""
        return nullcontext(Watch())

    def trespass(self) -> str:
        """Where launches have written outside of their operands, empty if nowhere."""
        return ""

    def harm(self) -> str:
        """What an untrusted kernel did beside its work, empty if nothing."""
        return ""

    def timeline(self) -> Sequence[Span]:
        """When parts of a launch were copied and computed, if it has any."""
        return ()


def told(when: str, reason: str) -> str:
    """The reason with the moment, empty if there is none."""
    return f"{when}: {reason}" if reason else ""
