"""What a program did on its devices, as it was recorded. Pure.

CUPTI's activity records, a trace of torch.profiler, an Nsight Systems file and ncu's pages all
become a ``Recording``. Times are in nanoseconds of one clock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NamedTuple

from rooflab.devices.base import Counters
from rooflab.model.traffic import Again

Dim = tuple[int, int, int]


class LaunchKey(NamedTuple):
    """What the launches of a group have in common: a kernel and how it is launched."""

    kernel: str
    grid: Dim
    block: Dim


CopyKind = Literal["h2d", "d2h", "d2d", "peer", "host", "memset"]
"""Where from and to; ``peer`` is between two GPUs, ``host`` between two places of host memory."""

NOWHERE: Final[Dim] = (0, 0, 0)
"""A grid or block that is not known."""


Cut = tuple[int, int]
"""A time in which a program was held, counted or watched, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an operation needs, by its definition: FLOPs, and bytes of its arguments and results.

    ``precision`` is that of its arguments. None is not known. ``same_as`` is the problem of a
    workload that it is exactly, as ``runs.notation`` writes it; empty if it is none. ``once``: as
    far as is known, DRAM is read no more than once for each argument; else ``again`` is what says
    how often, None if that is not known.
    """

    flops: int | None = None
    bytes: int | None = None
    precision: str = ""
    same_as: str = ""
    once: bool = True
    again: Again | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedLaunch:
    """One launch of a kernel: ``start_ns`` to ``end_ns`` on the device.

    ``order`` grows with each call of the program that launches, 0 if that is not known: kernels of
    several streams do not begin in this order. ``shared_bytes`` is the static and dynamic shared
    memory of a block. ``graph`` is the id of the CUDA graph that launched it, 0 without one.
    ``operation`` is the operation of a library that launched it, such as ``aten::mm``, and ``call``
    a number of the one call of it, so that the launches of one call are known to belong together;
    ``phase`` the ranges around it, the outermost first. ``work`` is that of the whole call.
    """

    kernel: str
    start_ns: int
    end_ns: int
    grid: Dim = NOWHERE
    block: Dim = NOWHERE
    shared_bytes: int = 0
    registers: int = 0
    device: int = 0
    stream: int = 0
    order: int = 0
    graph: int = 0
    operation: str = ""
    call: int = 0
    phase: tuple[str, ...] = ()
    work: Needs | None = None
    counters: Counters | None = None

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    @property
    def key(self) -> LaunchKey:
        """Its group."""
        return LaunchKey(self.kernel, self.grid, self.block)


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """One copy or memset."""

    kind: CopyKind
    bytes: int
    start_ns: int
    end_ns: int
    device: int = 0
    stream: int = 0
    phase: tuple[str, ...] = ()

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True)
class StepTime:
    """A part of the program, such as a step, on the clock of the launches."""

    name: str
    start_ns: int
    end_ns: int

    @property
    def ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, kw_only=True)
class Recording:
    """All launches and copies, and the steps that they belong to.

    Without ``steps`` everything is one step, from the first start to the last end. ``source`` says
    how it was recorded, ``notes`` what is missing or was estimated, a sentence each.
    ``device_name`` and ``facts`` describe the device if the source does: an import knows no other.
    """

    launches: Sequence[RecordedLaunch]
    copies: Sequence[Transfer] = ()
    steps: Sequence[StepTime] = ()
    source: str = ""
    device_name: str = ""
    facts: dict[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()

    @property
    def windows(self) -> Sequence[StepTime]:
        """The steps, or all of it as one."""
        everything: list[RecordedLaunch | Transfer] = [*self.launches, *self.copies]
        if self.steps or not everything:
            return self.steps
        start = min(one.start_ns for one in everything)
        return [StepTime("program", start, max(one.end_ns for one in everything))]


def of_one_device(recording: Recording, notes: dict[str, None]) -> Recording:
    """What the GPU with the most time did; a note says what others did."""
    ns: Counter[int] = Counter()
    for one in recording.launches:
        ns[one.device] += one.ns
    if len(ns) < 2:
        return recording
    device = ns.most_common(1)[0][0]
    launches = [one for one in recording.launches if one.device == device]
    others = len(recording.launches) - len(launches)
    notes[f"{others} launches on other GPUs than number {device} are not described"] = None
    copies = [one for one in recording.copies if one.device == device]
    return replace(recording, launches=launches, copies=copies)


def busy_ns(spans: Iterable[RecordedLaunch | Transfer]) -> int:
    """The time in which at least one of them ran."""
    total = last = 0
    for one in sorted(spans, key=lambda span: span.start_ns):
        start = max(one.start_ns, last)
        total += max(0, one.end_ns - start)
        last = max(last, one.end_ns)
    return total
