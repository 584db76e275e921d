"""A deterministic device: kernels compute for real, its clock advances by what they declare.

Its id, ``fake:FakeDevice``, can be given to ``--device``: a worker process then imports this
module, which registers the kernels. Environment variables change it, in the worker too:

FAKE_MEMORY           the memory that it has, in bytes
FAKE_LAUNCHES_DIFFER  an empty launch takes each process another time
FAKE_UNGATED          nothing that it times was gated
FAKE_CLOCKLESS        it has a sensor for power, but none for the clock
FAKE_VOID             so many rounds are spoiled by heat, and take ten times as long
FAKE_CACHE            the last-level cache, in bytes; 0: unknown
FAKE_UNCOUNTABLE      the driver does not permit reading counters
FAKE_ROOFS            of ``fake:Changing``: its roofs are so many times as high
FAKE_DISTURBED        and other programs used the processor
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import permutations
from random import Random, seed
from time import perf_counter
from typing import Any

import numpy as np

from rooflab.devices.base import Counters, Device, Launch, Reading, Timed
from rooflab.devices.cuda.counters import choose, interpret
from rooflab.errors import KernelError, UnavailableError
from rooflab.kernels.base import Group, Kernel, Operands
from rooflab.kernels.registry import BUILTIN, Registry
from rooflab.model.encoding import decode, encode
from rooflab.model.facts import Fact
from rooflab.model.roofline import DISTURBED, Ceiling, MissingCeiling, Roofline

PEAK = 1e9
BANDWIDTH = 1e8
STRANGER_US = 3000.0
"""What a launch takes that does not move the clock: a kernel from a user's file."""


class FakeDevice(Device):
    """1 GFLOP/s, 100 MB/s, 1 GB of memory, and a clock that only its kernels move."""

    id = "fake:FakeDevice"
    kind = "exact"
    name = "Exact 1000"
    measures_roofs = True

    def __init__(self) -> None:
        self.clock_us = 0.0
        self.memory = int(os.environ.get("FAKE_MEMORY", 1_000_000_000))
        self.spoiled = int(os.environ.get("FAKE_VOID", 0))
        self.hot = False

    @property
    def facts(self) -> dict[str, Fact]:
        return {
            "threads": Fact(2, source="the test"),
            "max_clock": Fact(None, reason="an exact device has no clock"),
        }

    @property
    def arrays(self) -> Any:
        return np

    def roofline(self) -> Roofline:
        return Roofline(
            ceilings=(
                Ceiling("bandwidth", "DRAM", BANDWIDTH, "measured", "given"),
                Ceiling("compute", "fp32", PEAK, "measured", "given"),
                Ceiling("compute", "fp64", PEAK / 2, "measured", "given", "half of it"),
            ),
            memory="DRAM",
            prefer=("measured", "derived"),
        )

    def free_bytes(self) -> int:
        return self.memory

    def last_level_cache_bytes(self) -> int:
        return int(os.environ.get("FAKE_CACHE", 200_000))

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        times = []
        for launch in launches:
            if before:
                before()
            start = self.clock_us
            launch()
            if self.clock_us == start and launch != self.nothing:
                self.clock_us += STRANGER_US
            self.clock_us += 9 * (self.clock_us - start) * self.hot
            times.append(self.clock_us - start)
        return Timed(times, gated="FAKE_UNGATED" not in os.environ, reading=self.reading())

    def time_batch(
        self,
        launches: Sequence[Callable[[], None]],
        before: Callable[[], None] | None = None,
        *,
        sense: bool = True,
    ) -> Timed:
        timed = self.time(launches, None)
        mean = sum(timed.times_us) / len(timed.times_us)
        return Timed([mean], timed.gated, timed.reading)

    def reading(self) -> Reading | None:
        """What its sensors show, if it has any."""
        if self.hot:
            return Reading(sm_mhz=900.0, reasons=frozenset({"hw_thermal"}))
        return Reading(power_w=100.0) if "FAKE_CLOCKLESS" in os.environ else None

    @property
    def senses(self) -> bool:
        return self.reading() is not None

    def nothing(self) -> None:
        # As on a GPU, where an empty launch takes one process longer than another.
        if "FAKE_LAUNCHES_DIFFER" in os.environ:
            self.clock_us += os.getpid()

    def quiesce(self, launch: Callable[[], None]) -> None:
        # A round begins.
        self.hot, self.spoiled = self.spoiled > 0, max(0, self.spoiled - 1)

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        pass


class Member(FakeDevice):
    """One of a fleet: ``FAKE_MEMBER`` is its UUID, ``FAKE_SLOW`` that of one that is 3 % slower.

    ``FAKE_NOISE`` is the standard deviation between processes.
    """

    id = "fake:Member"

    def __init__(self) -> None:
        super().__init__()
        noise = float(os.environ.get("FAKE_NOISE", 0))
        slow = os.environ["FAKE_MEMBER"] == os.environ.get("FAKE_SLOW")
        self.factor = (1.03 if slow else 1.0) * (1 + Random(os.getpid()).gauss(0, noise))

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        timed = super().time(launches, before)
        return replace(timed, times_us=[us * self.factor for us in timed.times_us])

    @property
    def facts(self) -> dict[str, Fact]:
        return super().facts | {"uuid": Fact(os.environ["FAKE_MEMBER"], source="the test")}


def _numbered(number: int) -> type[Member]:
    class Numbered(Member):
        id = f"fake:Member{number}"

        @property
        def facts(self) -> dict[str, Fact]:
            uuid = f"{os.environ['FAKE_MEMBER']}-{number}"
            return super().facts | {"uuid": Fact(uuid, source="the test")}

    return Numbered


globals().update({f"Member{number}": _numbered(number) for number in range(1, 33)})
# Several members on one node: fake:Member1, fake:Member2, …


class ManyProcesses(FakeDevice):
    """Starts as many processes as the settings say, as a GPU does."""

    id = "fake:ManyProcesses"
    candidates = None


class BusyAtFirst(FakeDevice):
    """Its roofs are eight times as high when they are measured again."""

    id = "fake:BusyAtFirst"

    def remeasure(self) -> Roofline:
        roofline = self.roofline()
        higher = (replace(one, value=8 * one.value) for one in roofline.ceilings)
        return replace(roofline, ceilings=tuple(higher))


class Changing(FakeDevice):
    """Its roofs are ``FAKE_ROOFS`` times as high; disturbed if ``FAKE_DISTURBED`` is set."""

    id = "fake:Changing"

    def roofline(self) -> Roofline:
        factor = float(os.environ.get("FAKE_ROOFS", 1))
        caveat = DISTURBED if "FAKE_DISTURBED" in os.environ else ""
        usual = super().roofline()
        other = (replace(one, value=factor * one.value, caveat=caveat) for one in usual.ceilings)
        return replace(usual, ceilings=tuple(other))


class Given(Changing):
    """Its roofs are facts, not measured by each sweep."""

    id = "fake:Given"
    measures_roofs = False


class NeverAgain(FakeDevice):
    """Its roofs cannot be measured again."""

    id = "fake:NeverAgain"

    def remeasure(self) -> Roofline:
        raise RuntimeError("no second time")


class Counting(FakeDevice):
    """Has counters, which follow its clock."""

    id = "fake:Counting"

    def count(self, launches: Sequence[Callable[[], None]]) -> Counters:
        if "FAKE_UNCOUNTABLE" in os.environ:
            raise UnavailableError("the driver does not permit reading counters")
        start = self.clock_us
        for launch in launches:
            launch()
        us = (self.clock_us - start) / len(launches)
        metrics = dict.fromkeys(choose({"sm__inst_executed"}), 32.0 * len(launches))
        others = interpret(metrics, len(launches)).others
        return Counters({"fp32": 1e3 * us}, 2e3 * us, 4e3 * us, 8e3 * us, 1e3 * us, 1000.0, others)


COUNTED = {
    "tensor_fp16": 16e3,
    "fp64": 4e3,
    "fp32": 1e3,
    "fp16": 2e3,
    "dram": 3e3,
    "l2": 5e3,
    "l1": 7e3,
    "cycles": 1.5e3,
}
"""What ``Instrumented`` counts in a microsecond: FLOPs by pipe, bytes by level, cycles."""

SENSED = Reading(1500.0, 1600.0, 3000.0, 400.0, 60.0)
MOST_MHZ = 2000.0
EVENTS_US = 3.0
EMPTY_US = 2.5
WATTS = 500.0


class Special(FakeDevice):
    """Its special-function units do one operation while it computes 1024 FLOPs."""

    id = "fake:Special"

    def roofline(self) -> Roofline:
        unit = Ceiling("compute", "sfu", PEAK / 1024, "measured", "given")
        return super().roofline().with_limits(unit)


class Instrumented(FakeDevice):
    """Has every sensor and counter; its times differ by some tenths of a percent.

    Two events around a launch take ``EVENTS_US``, an empty launch takes ``EMPTY_US``.
    """

    id = "fake:Instrumented"

    def __init__(self) -> None:
        super().__init__()
        self._noise = Random(1)

    @property
    def facts(self) -> dict[str, Fact]:
        return super().facts | {"sm_clock_max": Fact(MOST_MHZ, "MHz")}

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        timed = super().time(launches, before)
        noisy = [us * (1 + 0.002 * self._noise.random()) + EVENTS_US for us in timed.times_us]
        return replace(timed, times_us=noisy)

    def time_batch(
        self,
        launches: Sequence[Callable[[], None]],
        before: Callable[[], None] | None = None,
        *,
        sense: bool = True,
    ) -> Timed:
        timed = super().time_batch(launches, before, sense=sense)
        return replace(timed, times_us=[us - EVENTS_US for us in timed.times_us])

    def reading(self) -> Reading:
        return SENSED

    def nothing(self) -> None:
        self.clock_us += EMPTY_US

    def energy_j(self) -> float:
        return WATTS * perf_counter()

    def observed(self, precision: str, sm_mhz: float) -> Ceiling | None:
        full = self.roofline().compute(precision)
        return full and replace(full, value=full.value * sm_mhz / MOST_MHZ, provenance="observed")

    def count(self, launches: Sequence[Callable[[], None]]) -> Counters:
        start = self.clock_us
        for launch in launches:
            launch()
        us = (self.clock_us - start) / len(launches)
        found = {name: amount * us for name, amount in COUNTED.items()}
        flops = {pipe: found[pipe] for pipe in ("tensor_fp16", "fp64", "fp32", "fp16")}
        dram, l2, l1, cycles = (found[name] for name in ("dram", "l2", "l1", "cycles"))
        return Counters(flops, dram, l2, l1, cycles, mhz=SENSED.sm_mhz)


class Limited(Instrumented):
    """At its power limit, whatever it does."""

    id = "fake:Limited"

    def reading(self) -> Reading:
        return replace(SENSED, reasons=frozenset({"sw_power_cap"}))


@dataclass
class _Operation:
    """Something in a queue: its engine, its length if it is known, what it does, what it awaits."""

    engine: str
    us: float | None
    work: Callable[[], None]
    after: list[_Operation]
    end_us: float | None = None


LINKS = {"h2d": 2e7, "d2h": 1e7}
"""Byte/s from and to the host's memory; each direction is an engine of its own."""

PEER = 3e7
"""Byte/s from one device of a group to others."""


class Streaming(FakeDevice):
    """Copies and computes at the same time, in the order of its simulated time.

    So what is not ordered by a queue or an event happens when the other one is not ready for it.
    """

    id = "fake:Streaming"
    has_own_memory = True

    def __init__(self) -> None:
        super().__init__()
        self._waiting: dict[Any, list[_Operation]] = {}
        self._last: dict[Any, _Operation] = {}
        self._queue: Any = None
        self._host: list[Any] = []

    def roofline(self) -> Roofline:
        links = (Ceiling("bandwidth", k.upper(), v, "measured", "given") for k, v in LINKS.items())
        return super().roofline().with_limits(*links)

    def queues(self, count: int) -> list[Any]:
        return list(range(count))

    @contextmanager
    def on(self, queue: Any) -> Iterator[None]:
        self._queue = queue
        yield
        self._queue = None

    def host_array(self, shape: tuple[int, ...], dtype: str, *, pinned: bool) -> Any:
        if pinned and "FAKE_UNPINNED" in os.environ:
            raise UnavailableError("the host refuses pinned memory")
        self._host.append(np.zeros(shape, dtype))
        return self._host[-1]

    def _add(self, queue: Any, engine: str, us: float | None, work: Callable[[], None]) -> None:
        self._last[queue] = operation = _Operation(engine, us, work, [])
        self._waiting.setdefault(queue, []).append(operation)

    def call(self, work: Callable[[], None]) -> None:
        self._add(self._queue, "compute", None, work)

    def copy(self, target: Any, source: Any, queue: Any) -> None:
        def work() -> None:
            target[...] = source

        link = "d2h" if self._on_host(target) else "h2d"
        self._add(queue, link, source.nbytes / LINKS[link] * 1e6, work)

    def _on_host(self, array: Any) -> bool:
        return any(np.shares_memory(array, host) for host in self._host)

    def mark(self, queue: Any, *, timed: bool = False) -> Any:
        if timed:
            self._add(queue, "none", 0.0, lambda: None)
        return self._last.get(queue)

    def elapsed_us(self, first: Any, second: Any) -> float:
        return float(second.end_us - first.end_us)

    def wait(self, queue: Any, event: Any) -> None:
        self._add(queue, "none", 0.0, lambda: None)
        if event:
            self._last[queue].after.append(event)

    def synchronize(self) -> None:
        self._drain()

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        if not any(hasattr(launch, "gated") for launch in launches):
            return super().time(launches, before)
        times = []
        for launch in launches:
            launch()
            times.append(self._drain())
        return Timed(times, all(getattr(launch, "gated", True) for launch in launches))

    def _drain(self) -> float:
        """Do all that waits, the earliest first; returns how long it took."""
        free: dict[str, float] = {}
        ready = dict.fromkeys(self._waiting, 0.0)
        while any(self._waiting.values()):
            heads = {
                queue: operations[0]
                for queue, operations in self._waiting.items()
                if operations and all(one.end_us is not None for one in operations[0].after)
            }

            def start(queue: Any, heads: dict[Any, _Operation] = heads) -> float:
                one = heads[queue]
                ends = [other.end_us or 0.0 for other in one.after]
                return max([ready[queue], free.get(one.engine, 0.0), *ends])

            queue = min(heads, key=lambda queue: (start(queue), -(queue or 0)))
            operation, begun = heads[queue], start(queue)
            self._waiting[queue].pop(0)
            clock = self.clock_us
            operation.work()
            us = self.clock_us - clock if operation.us is None else operation.us
            self.clock_us = clock
            operation.end_us = ready[queue] = begun + us
            if operation.engine != "none":
                free[operation.engine] = operation.end_us
        self._last.clear()
        return max(ready.values(), default=0.0)


class Grouped(Streaming):
    """One of four devices of a host, which share their simulated time."""

    id = "fake:Grouped"
    group_size = 4

    def __init__(self, number: int = 0, first: Grouped | None = None) -> None:
        self._number, self._first = number, first or self
        self._us = 0.0
        super().__init__()
        self._members = [self]
        if first:
            self._waiting, self._last = first._waiting, first._last

    @property
    def clock_us(self) -> float:
        return self._first._us

    @clock_us.setter
    def clock_us(self, value: float) -> None:
        self._first._us = value

    def roofline(self) -> Roofline:
        return (
            super().roofline().with_limits(Ceiling("bandwidth", "PEER", PEER, "measured", "given"))
        )

    def group(self, count: int) -> list[Device]:
        if count > self.group_size:
            raise UnavailableError(
                f"this machine has {self.group_size} GPUs: give --gpus 4 or less"
            )
        while len(self._members) < count:
            self._members.append(Grouped(len(self._members), self))
        return list(self._members[:count])

    def routes(self) -> dict[tuple[str, str], list[Ceiling | MissingCeiling]]:
        ids = [f"fake:{i}" for i in range(self.group_size)]
        measured = Ceiling("bandwidth", "PEER", PEER, "measured", "given")
        return {
            route: [MissingCeiling("bandwidth", "PEER", "no active NVLink"), measured]
            for route in permutations(ids, 2)
        }

    def queues(self, count: int) -> list[Any]:
        return [10 * (self._number + 1) + i for i in range(count)]

    def call(self, work: Callable[[], None]) -> None:
        self._add(self._queue, f"compute {self._number}", None, work)

    def copy(self, target: Any, source: Any, queue: Any) -> None:
        def work() -> None:
            target[...] = source

        self._add(queue, f"peer {self._number}", source.nbytes / PEER * 1e6, work)


class _Whole:
    """The inputs of a problem, decoded, as its reference takes them."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._types = {one.name: one.type for one in operands.problem.operands}

    def __getitem__(self, name: str) -> Any:
        return self.part(name, (...,))

    def part(self, name: str, index: tuple[Any, ...]) -> Any:
        return decode(np, self._operands[name][index], self._types[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._operands[name].shape)


def compute(operands: Operands) -> Callable[[], None]:
    """The outputs as they should be, in float64, rounded once. Any workload.

    They are known from the launch before if the inputs are the same bytes.
    """
    problem, whole = operands.problem, _Whole(operands)
    read = [one.name for one in problem.operands if one.read]
    written = [one for one in problem.operands if one.written]
    before: list[bytes] = []
    right: dict[str, Any] = {}

    def launch() -> None:
        inputs = [operands[name].tobytes() for name in read]
        if inputs != before:
            results = problem.reference(np, whole)
            right.update((one.name, encode(np, results[one.name], one.type)) for one in written)
            before[:] = inputs
        for one in written:
            operands[one.name][...] = right[one.name]

    return launch


def exact(
    name: str,
    share: float,
    spoil: Callable[[Operands], None] | None = None,
    workload: str = "gemm",
    precisions: tuple[str, ...] = ("fp32", "fp64"),
) -> Kernel:
    """A kernel that runs at ``share`` of the roof, and may spoil its result."""

    def prepare(device: Device, operands: Operands) -> Launch:
        assert isinstance(device, FakeDevice)
        problem, work = operands.problem, compute(operands)
        roof = device.roofline().roof("fp32", problem.flops, problem.traffic, problem.units)
        assert roof is not None

        def launch() -> None:
            work()
            if spoil:
                spoil(operands)
            device.clock_us += roof.us / share

        return launch

    title = f"{share:.0%} of the roof"
    return Kernel(name, "exact", "exact", title, precisions, prepare, workload=workload)


def broken(name: str, title: str, prepare: Callable[[Device, Operands], Launch]) -> Kernel:
    """A kernel that goes wrong."""
    return Kernel(name, "exact", "exact", title, ("fp32",), prepare)


def _unbuildable(device: Device, operands: Operands) -> Launch:
    raise KernelError('broken.cu(3): error: identifier "x" is undefined\n    x = 1;\n    ^')


def _raises(device: Device, operands: Operands) -> Launch:
    raise ValueError("an error of its own")


def _dies(device: Device, operands: Operands) -> Launch:
    return lambda: os.kill(os.getpid(), signal.SIGSEGV)


def _hangs(device: Device, operands: Operands) -> Launch:
    def launch() -> None:
        while True:
            signal.pause()

    return launch


def _ahead_of_time(device: Device, operands: Operands) -> Launch:
    """Computes while it is prepared; a launch only copies."""
    assert isinstance(device, FakeDevice)
    operands.c.fill(0)
    compute(operands)()
    result = operands.c.copy()

    def launch() -> None:
        operands.c[...] = result
        device.clock_us += 1

    return launch


def _nan_in_a_corner(operands: Operands) -> None:
    operands.c[-1, -1, -1] = np.nan


def _one_wrong_element(operands: Operands) -> None:
    operands.c[0, 0, 0] += 1


ROUGH = 2.0**-20
"""The relative error of the kernel ``rough``: allowed in FP32."""


def _roughly(operands: Operands) -> None:
    operands.c[...] *= 1 + ROUGH


def _seeds(operands: Operands) -> None:
    seed(0)


def _together(device: Device, operands: Operands) -> Launch:
    """A collective, at the speed of the link, or of memory if that is slower."""
    assert isinstance(operands, Group)
    assert isinstance(device, FakeDevice)
    problem, members = operands.problem, [member.operands for member in operands.members]

    def launch() -> None:
        x = np.concatenate([one.x for one in members])
        for one, row in zip(members, problem.reference(np, {"x": x})["y"], strict=True):  # type: ignore[arg-type]
            one.y[0] = row
        roof = device.roofline().roof("fp32", problem.flops_each, problem.traffic)
        assert roof is not None
        device.clock_us += roof.us

    return launch


KERNELS = Registry(
    [
        *(
            Kernel("together", "exact", "exact", "All at once", ("fp32",), _together, workload=name)
            for name in ("allreduce", "allgather")
        ),
        exact("fast", 0.8),
        exact("slow", 0.2),
        exact("nan", 0.9, _nan_in_a_corner),
        exact("wrong", 0.9, _one_wrong_element),
        exact("beats_the_roof", 4.0),
        exact("rough", 0.5, _roughly),
        replace(exact("seeds", 0.5, _seeds), untrusted=True),
        broken("broken", "Does not compile", _unbuildable),
        broken("raises", "Raises another kind of error", _raises),
        broken("dies", "Takes the process with it", _dies),
        broken("hangs", "Never returns", _hangs),
        broken("ahead", "Computes ahead of time", _ahead_of_time),
        Kernel(
            "absent",
            "exact",
            "exact",
            "Needs what nobody has",
            ("fp32",),
            _unbuildable,
            unavailable=lambda device: "nobody has it: pip install it",
        ),
        *(
            exact("fast", 0.8, workload=name, precisions=("fp32", "fp64", "int32"))
            for name in ("add", "copy", "sum")
        ),
        *(
            exact("fast", 0.8, workload=name)
            for name in (
                *("triad", "gemv", "softmax", "rmsnorm", "blur", "fft", "spectrum", "filter"),
                *("attention", "layernorm", "cross_entropy", "swiglu", "rope", "adamw"),
                *("grouped_gemm", "w4a16", "block_gemm"),
                *(
                    "rmsnorm_backward",
                    "layernorm_backward",
                    "cross_entropy_backward",
                    "attention_backward",
                    "embedding",
                    "quantize",
                    *("route", "sort_experts", "combine", "linear"),
                ),
            )
        ),
    ]
)
for kernel in KERNELS.all():
    BUILTIN.add(kernel)
