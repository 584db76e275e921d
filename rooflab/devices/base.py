"""The interface of all devices. The measuring code uses only this, not CUDA or CPUs directly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Final

from rooflab.errors import UnavailableError
from rooflab.model.facts import Fact
from rooflab.model.roofline import Ceiling, MissingCeiling, Roofline

Launch = Callable[[], None]
"""Starts one computation on prepared operands; on a GPU it returns before the end."""

Limit = Ceiling | MissingCeiling

MAX_BATCH: Final = 128
"""Launches that ``time_batch`` takes: a stream's queue takes a few hundred entries at once."""

LEAST_BATCHES: Final = 4
"""Batches per round, so also its samples if one batch has all launches of a round."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Something that holds for the whole process, and that a kernel may change.

    ``change`` says in words that it has changed, or how the second value differs from the first.
    """

    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    change: str | Callable[[Any, Any], str] = lambda old, new: f"from {old} to {new}"

    def told(self, old: Any, new: Any) -> str:
        """The change in words."""
        return self.change if isinstance(self.change, str) else self.change(old, new)


@dataclass(frozen=True, slots=True)
class Reading:
    """One sample of a GPU's sensors; None if there is no value.

    Clocks are in MHz, power in watts, temperature in °C. ``sm_mhz`` was counted on the device,
    ``nvml_mhz`` is NVML's clock of the multiprocessors. ``reasons`` are NVML's clocks event
    reasons that were active: ``hw_slowdown``, ``hw_thermal``, ``hw_power_brake``, ``sw_thermal``,
    ``sw_power_cap``, ``idle``, ``applications_clocks``, ``sync_boost``, ``display_clocks``.
    """

    sm_mhz: float | None = None
    nvml_mhz: float | None = None
    mem_mhz: float | None = None
    power_w: float | None = None
    temp_c: float | None = None
    reasons: frozenset[str] = frozenset()

    @property
    def clock(self) -> float | None:
        """The counted clock, else NVML's."""
        return self.sm_mhz or self.nvml_mhz


@dataclass(frozen=True, slots=True)
class Counters:
    """Of one launch, None if the chip has no such counter. FLOPs by pipe, such as ``tensor_fp16``.

    ``l2_bytes`` is the traffic between the multiprocessors and L2, ``l1_bytes`` that of L1 and
    shared memory or, if it is more, of what bypasses it (TMA). ``mhz`` is the SM clock. ``others``
    are those of ``rooflab.counter``, by name.
    """

    flops: Mapping[str, float]
    dram_bytes: float | None
    l2_bytes: float | None
    l1_bytes: float | None
    cycles: float | None
    mhz: float | None
    others: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_flops(self) -> float:
        """Executed FLOPs of all pipes."""
        return sum(self.flops.values())

    @property
    def tensor_flops(self) -> float:
        """Executed FLOPs of the tensor cores."""
        return sum(flops for pipe, flops in self.flops.items() if pipe.startswith("tensor"))


@dataclass(frozen=True, slots=True)
class Timed:
    """Times in microseconds, one per launch or per batch.

    ``gated`` is False if the device may have waited for the host in between: the times are then
    upper bounds. ``reading`` is a sample of the device's sensors while it worked. ``stretch`` is
    how long it worked at least by another clock, relative to these times; 0 if unknown.
    """

    times_us: list[float]
    gated: bool = True
    reading: Reading | None = None
    stretch: float = 0.0


@dataclass(frozen=True, slots=True)
class MarkedLaunch:
    """A launch that is not like others.

    Unless it is ``gated`` it blocks the host or fills a queue, so that it cannot wait behind a
    gate. A ``padded`` one copies operands to padded buffers, which is part of its time. ``depth``
    is the most entries that it puts into a stream's queue. ``wait`` waits for its end, wherever it
    works; by default the end of the stream is the end.
    """

    work: Launch
    gated: bool = True
    padded: bool = False
    depth: int = 1
    wait: Launch | None = None

    def __call__(self) -> None:
        """Launch."""
        self.work()

    @staticmethod
    def of(launch: Launch) -> MarkedLaunch:
        """The marks of any launch."""
        return launch if isinstance(launch, MarkedLaunch) else MarkedLaunch(launch)


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that another process can open: its bytes as an ``array``, and what to pass on.

    ``handle`` is text for ``Device.opened``; ``descriptor`` a file that the process must inherit.
    """

    array: Any
    handle: str
    descriptor: int | None = None


@dataclass(frozen=True, slots=True)
class Costs:
    """How long a sweep takes on a kind of device, beside what its problems and settings say.

    Seconds: ``start_s`` for processes, roofs, warm-up and pictures; ``levels_s`` for roofs, memory
    levels and compilations that no earlier run has done; ``row_s`` to prepare, check and write a
    row. Results are checked in passes over the operands at ``checked_bytes_per_s``. ``flops`` and
    ``bytes_per_s`` are the roofs where none is known. ``steady``: few rounds suffice, and sensors
    are read at the power limit.
    """

    start_s: float = 4.0
    levels_s: float = 6.0
    row_s: float = 0.1
    checked_bytes_per_s: float = 3e9
    flops: float = 4e10
    bytes_per_s: float = 1e10
    steady: bool = False


class Device(ABC):
    """A device that kernels run on. Its class answers what differs between kinds of devices.

    ``id`` is the argument of ``--device`` (``cuda:0``, ``cpu``); ``name`` is the product's name.
    Opening a device is cheap, allocates nothing on it and changes nothing in the process: the
    sweep's main process opens it for its facts. ``claim`` prepares the process that measures.
    """

    id: str
    kind: str
    name: str
    packages: ClassVar[tuple[str, ...]] = ()
    """Python distributions whose versions a run records for this kind of device."""
    candidates: ClassVar[int | None] = 1
    """Processes of which one is chosen for measuring; None for the number in the settings."""
    has_own_memory: ClassVar[bool] = False
    """Whether operands in host memory must be copied to it: whether --host has a meaning."""
    compiles_arrays: ClassVar[bool] = False
    """Whether the array module compiles operations when they are first used, and keeps them."""
    absent: ClassVar[bool] = False
    """Whether it is not here, so that a sweep can only be planned for it."""
    levels_apart: ClassVar[bool] = False
    """Whether a process that has measured memory levels should time nothing else."""
    measures_roofs: ClassVar[bool] = False
    """Whether a sweep measures ceilings first, because few can be derived."""
    numbered: ClassVar[bool] = False
    """Whether there may be several, ``kind:0`` and so on, which are opened by their number."""
    has_threads: ClassVar[bool] = False
    """Whether ``--threads`` has a meaning; it is opened with their number, or None."""
    needs: ClassVar[str] = "another device"
    """What a user needs for kernels of this kind."""
    memories: ClassVar[str] = "caches"
    """The levels of memory that only counters can see."""
    parallelism: ClassVar[str] = "vectorize and unroll its loops, or use more threads"
    """What to try with a kernel that waits for latencies."""
    costs: ClassVar[Costs] = Costs()
    of_kind: ClassVar[dict[str, type[Device]]] = {}
    """The first class of each kind that was imported."""

    def __init_subclass__(cls) -> None:
        Device.of_kind.setdefault(getattr(cls, "kind", ""), cls)

    @classmethod
    def probe(cls) -> tuple[int, str]:
        """How many are here; if none can be used, why, and what to do, in one line."""
        return 1, ""

    @property
    @abstractmethod
    def facts(self) -> dict[str, Fact]:
        """All known properties, by name, in the order of printing."""

    @property
    @abstractmethod
    def arrays(self) -> Any:
        """The array module that holds operands: ``numpy`` or ``cupy``."""

    @abstractmethod
    def roofline(self) -> Roofline:
        """The ceilings that percentages refer to; measuring them may take seconds."""

    def count(self, launches: Sequence[Launch]) -> Counters | None:
        """Hardware counters of one of the launches, on average; None if the device has none.

        Raises ``UnavailableError`` if they cannot be read here.
        """
        return None

    def remeasure(self) -> Roofline:
        """The ceilings, measured now."""
        return self.roofline()

    def others_s(self) -> float | None:
        """CPU seconds that other programs have used since a fixed time, where they can disturb.

        None if nothing else runs on the device.
        """
        return None

    def contended(self, others_s: float, wall_s: float) -> bool:
        """Whether other programs that used ``others_s`` in ``wall_s`` disturbed the launches."""
        return False

    def levels(self) -> Sequence[Limit]:
        """Measured ceilings of each level of memory and of each pipe; takes seconds."""
        return ()

    def links(self) -> Sequence[Limit]:
        """Measured ceilings of the links to the host's and to other devices' memory."""
        return ()

    @abstractmethod
    def free_bytes(self) -> int:
        """Memory available for operands."""

    @abstractmethod
    def last_level_cache_bytes(self) -> int:
        """Size of the largest cache, 0 if unknown."""

    @abstractmethod
    def time(self, launches: Sequence[Launch], before: Launch | None = None) -> Timed:
        """Time each of ``launches`` separately, in order; ``before`` runs untimed before each."""

    def time_alone(self, launch: Launch, before: Launch | None) -> Timed:
        """Time one launch as ``time`` does, without sensors."""
        return self.time([launch], before)

    def time_batch(
        self, launches: Sequence[Launch], before: Launch | None = None, *, sense: bool = True
    ) -> Timed:
        """Time ``launches`` back to back, after ``before``; the result is one time, their mean.

        ``sense``: whether to read the sensors and count the clock too, where there are any. That
        costs time.
        """

        def all_of_them() -> None:
            for launch in launches:
                launch()

        timed = self.time([all_of_them], before)
        return replace(timed, times_us=[timed.times_us[0] / len(launches)])

    def nothing(self) -> None:  # noqa: B027  as on a device whose launches are calls
        """Launch no work: its time is the floor of the timer."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all launches have ended; raises ``KernelError`` if one of them failed."""

    def release(self) -> None:  # noqa: B027  most have none
        """Free cached memory."""

    def claim(self) -> None:  # noqa: B027  most have nothing to do
        """Prepare this process for measuring: threads, and other settings of the process."""

    def environment(self, host: Mapping[str, str]) -> dict[str, str]:
        """Environment variables that the measuring process needs in addition to ``host``."""
        return {}

    def checking(self) -> AbstractContextManager[Any]:
        """A context for operations on arrays that are not timed: they may be slower meanwhile."""
        return nullcontext()

    def shared(self, size: int) -> Shared:
        """``size`` bytes that another process on this device can open.

        Raises ``UnavailableError`` where there is no such memory.
        """
        raise UnavailableError(f"{self.name} has no memory that processes can share")

    def opened(self, handle: str, size: int) -> Any:
        """The bytes of memory that another process shares, as an array."""
        raise UnavailableError(f"{self.name} has no memory that processes can share")

    def settings(self) -> Sequence[Setting]:
        """What holds for all kernels of the process, beside Python's and NumPy's own settings."""
        return ()

    @property
    def senses(self) -> bool:
        """Whether times come with a reading of sensors."""
        return False

    @property
    def evicts(self) -> bool:
        """Whether single arrays can be dropped from all caches."""
        return False

    def evictor(self, arrays: Sequence[Any]) -> Launch:
        """A function that drops these arrays from all caches."""
        raise NotImplementedError

    @property
    def stream(self) -> Any:
        """The stream of all launches, which Python kernels receive; None if there are no streams.

        On CUDA an object with ``ptr``, the address of the ``cudaStream_t``, and
        ``__cuda_stream__``.
        """
        return None

    # Streaming. A queue is a stream of the device; the main queue is that of all other launches.

    def queues(self, count: int) -> list[Any]:
        """``count`` queues beside the main one; raises ``UnavailableError`` if there are none."""
        raise UnavailableError(f"{self.name} has no streams: leave out --host")

    def call(self, work: Launch) -> None:
        """Do ``work`` on the queue that launches go to."""
        work()

    def on(self, queue: Any) -> AbstractContextManager[Any]:
        """A context in which kernels are launched on ``queue``."""
        raise NotImplementedError

    def host_array(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> Any:
        """A NumPy array; raises ``UnavailableError`` if the host refuses the memory."""
        raise UnavailableError(f"{self.name} computes in host memory: leave out --host")

    def copy(self, target: Any, source: Any, queue: Any) -> None:
        """Queue a copy between host and device arrays of equal size; None is the main queue."""
        raise NotImplementedError

    def mark(self, queue: Any, *, timed: bool = False) -> Any:
        """An event after everything that is in ``queue`` now; None is the main queue.

        With its time if ``timed``, which costs the queue more.
        """
        raise NotImplementedError

    def elapsed_us(self, first: Any, second: Any) -> float:
        """Microseconds between two timed events. Valid after synchronizing."""
        raise NotImplementedError

    def wait(self, queue: Any, event: Any) -> None:
        """Hold ``queue`` until ``event``."""
        raise NotImplementedError

    def fork(self, queues: Sequence[Any]) -> None:
        """Hold ``queues`` until the main queue is here."""
        event = self.mark(None)
        for queue in queues:
            self.wait(queue, event)

    def join(self, queues: Sequence[Any]) -> None:
        """Hold the main queue until ``queues`` are here."""
        for queue in queues:
            self.wait(None, self.mark(queue))

    # Several devices of one host.

    @property
    def group_size(self) -> int:
        """The number of devices that can share a problem, with this one."""
        return 1

    def group(self, count: int) -> Sequence[Device]:
        """This device and the ``count`` - 1 next ones, which reach each other's memory.

        Raises ``UnavailableError`` if there are fewer.
        """
        raise UnavailableError(f"{self.name} is the only one here: leave out --gpus")

    def routes(self) -> dict[tuple[str, str], list[Limit]]:
        """Ceilings of the link from each device of the group to each other one, by their ids.

        Empty if this one is alone. Measuring them takes seconds.
        """
        return {}

    def active(self) -> AbstractContextManager[Any]:
        """A context in which arrays, queues and events are created on this device of a group."""
        return nullcontext()

    def capture(self, work: Launch) -> Launch:
        """``work`` as one graph, whose launch this returns.

        Raises ``UnavailableError`` if there are no graphs, or ``work`` cannot be in one.
        """
        raise UnavailableError(f"{self.name} has no graphs: leave out --graph")

    def escapes(self, launch: Launch, outputs: Sequence[Any]) -> str:
        """How a launch does its work elsewhere than it should, empty if it does not.

        On another stream, or after it has returned. ``outputs`` are floating-point arrays that hold
        NaN or other poison, again before each launch. Raises ``KernelError`` if it waits for the
        stream.
        """
        return ""

    def hides(self, outputs: Sequence[Any]) -> bool:
        """Whether a launch has left memory that cannot be read: a signal handler would fill it."""
        return False

    def queued(self, launch: Launch, host_us: float, most: int) -> int:
        """How many launches in a row, up to ``most``, return although the first must wait.

        0: it waits for the device itself. Each keeps the host busy for ``host_us``.
        """
        return most

    def observed(self, precision: str, sm_mhz: float) -> Ceiling | None:
        """The ceiling of a precision, or of a unit such as ``sfu``, at the clock sampled while
        measuring; None if unknown."""
        return None

    def missing_telemetry(self) -> str:
        """Which sensors are missing and why, in one line; empty if all work or none is expected."""
        return ""

    def energy_j(self) -> float | None:
        """The device's energy counter, joules since any fixed time; None if there is none."""
        return None

    def quiesce(self, launch: Launch) -> None:  # noqa: B027  most have nothing to do
        """Wait until effects of other kernels have ended, before ``launch`` is timed."""

    def fact(self, name: str) -> str | int | float | None:
        """The value of one fact, None if it is missing."""
        fact = self.facts.get(name)
        return fact.value if fact else None
