"""What every device can do. The measuring code uses this, and nothing more of CUDA or CPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rooflab.model.facts import Fact
from rooflab.model.roofline import Ceiling, Roofline


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading of a GPU's sensors; None where there is no value.

    Clocks are in MHz, power in watts, temperature in °C. ``reasons`` are NVML's clocks event
    reasons that were active: ``hw_slowdown``, ``hw_thermal``, ``hw_power_brake``, ``sw_thermal``,
    ``sw_power_cap``, ``idle``, ``applications_clocks``, ``sync_boost``, ``display_clocks``.
    """

    sm_mhz: float | None = None
    mem_mhz: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    reasons: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Timed:
    """Times in microseconds, one per launch or per batch.

    ``gated`` is False where the device may have waited for the host in between: the times are upper
    bounds then. ``reading`` is what the device's sensors showed while it worked.
    """

    times_us: list[float]
    gated: bool = True
    reading: Reading | None = None


class Device(ABC):
    """A device that kernels run on.

    ``id`` is what ``--device`` takes (``cuda:0``, ``cpu``); ``name`` is the product's name.
    Opening one is cheap, allocates nothing on it and changes nothing in the process: a sweep's own
    process opens it for its facts. ``claim`` makes the process the one that measures.
    """

    id: str
    kind: str
    name: str
    packages: ClassVar[tuple[str, ...]] = ()
    """Python distributions whose versions a run records for this kind of device."""
    candidates: ClassVar[int | None] = 1
    """Processes to choose the measuring one from; None: as many as the settings say."""
    measures_roofs: ClassVar[bool] = False
    """Whether a sweep measures ceilings first, because few can be derived."""

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
        """Ceilings. With ``measure``, those that take seconds of measuring as well."""

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
        """Launch no work at all: timing it gives the floor of the timer."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until everything launched has ended; raises ``KernelError`` if any of it failed."""

    @abstractmethod
    def release(self) -> None:
        """Give cached memory back."""

    def claim(self) -> None:  # noqa: B027  most have nothing to do
        """Prepare this process for measuring: threads, and whatever else must be fixed."""

    def environment(self, host: Mapping[str, str]) -> dict[str, str]:
        """Variables that the measuring process needs beside those of ``host``."""
        return {}

    @property
    def stream(self) -> Any:
        """What launches must run on, as Python kernels take it; None where there is no such thing.

        On CUDA an object with ``ptr``, the address of the ``cudaStream_t``, and
        ``__cuda_stream__``.
        """
        return None

    def escapes(self, launch: Callable[[], None], outputs: Sequence[Any]) -> bool:
        """Whether ``launch`` writes ``outputs`` although its stream is held: it runs elsewhere."""
        return False

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
