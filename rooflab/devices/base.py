"""What every device can do. The measuring code knows this and nothing more of CUDA or CPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflab.roofline import Roofline


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of a device: a value with its unit and source, or None and the reason."""

    value: str | int | float | None
    unit: str = ""
    source: str = ""
    reason: str = ""


class Device(ABC):
    """A device that kernels run on.

    ``id`` is what ``--device`` takes (``cuda:0``, ``cpu``); ``name`` is the product's name.
    """

    id: str
    kind: str
    name: str

    @property
    @abstractmethod
    def facts(self) -> dict[str, Fact]:
        """All known properties, by name, in the order in which they are printed."""

    @property
    @abstractmethod
    def arrays(self) -> Any:
        """The array module that holds operands: ``numpy`` or ``cupy``."""

    @abstractmethod
    def roofline(self, *, measure: bool) -> Roofline:
        """Ceilings. With ``measure``, those that take seconds of measuring as well.

        A CPU has no others, so a sweep on it always measures.
        """

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory that operands may still take."""

    @abstractmethod
    def last_level_cache_bytes(self) -> int:
        """Size of the largest cache, 0 where it is not known."""

    @abstractmethod
    def time(self, launches: Sequence[Callable[[], None]]) -> list[float]:
        """Run ``launches`` in order and return the duration of each in microseconds."""

    def settle(self, launch: Callable[[], None]) -> None:  # noqa: B027  most have nothing to do
        """Let what other kernels left behind die down, before ``launch`` is timed."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched has ended; raises ``KernelError`` if any of it failed."""

    @abstractmethod
    def release(self) -> None:
        """Give cached memory back."""

    def fact(self, name: str) -> str | int | float | None:
        """The value of one fact, None where it is missing."""
        fact = self.facts.get(name)
        return fact.value if fact else None
