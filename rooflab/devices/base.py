"""What every device can do. The measuring code knows this and nothing more of CUDA or CPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from rooflab.devices.telemetry import Reading
from rooflab.roofline import Ceiling, Roofline


@dataclass(frozen=True, slots=True)
class Fact:
    """One property of a device: a value with its unit and source, or None and the reason."""

    value: str | int | float | None
    unit: str = ""
    source: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Timed:
    """Times in microseconds, one per launch or per batch.

    ``gated`` is False where the device may have waited for the host in between: the times are upper
    bounds then. ``reading`` is what the device's sensors said while it worked.
    """

    times_us: list[float]
    gated: bool = True
    reading: Reading | None = None


class Device(ABC):
    """A device that kernels run on.

    ``id`` is what ``--device`` takes (``cuda:0``, ``cpu``); ``name`` is the product's name.
    Opening one must be cheap and must not allocate on it: the sweep's own process opens it for its
    facts, the worker's for measuring.
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
    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        """Time each of ``launches`` on its own, in order; ``before`` runs untimed ahead of each."""

    @abstractmethod
    def time_batch(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        """Time ``launches`` back to back as one, after ``before``; the one figure is their mean."""

    @abstractmethod
    def nothing(self) -> None:
        """Launch no work at all: what timing it gives is the floor of the timer."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched has ended; raises ``KernelError`` if any of it failed."""

    @abstractmethod
    def release(self) -> None:
        """Give cached memory back."""

    def observed(self, precision: str, sm_mhz: float) -> Ceiling | None:
        """The compute ceiling at the clock that was seen while measuring, None where unknown."""
        return None

    def missing_telemetry(self) -> str:
        """Which sensors do not answer and why, in one line; empty if all do or none is expected."""
        return ""

    def energy_j(self) -> float | None:
        """The device's energy counter, joules since some start; None where there is none."""
        return None

    def settle(self, launch: Callable[[], None]) -> None:  # noqa: B027  most have nothing to do
        """Let what other kernels left behind die down, before ``launch`` is timed."""

    def fact(self, name: str) -> str | int | float | None:
        """The value of one fact, None where it is missing."""
        fact = self.facts.get(name)
        return fact.value if fact else None
