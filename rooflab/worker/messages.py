"""Messages between the sweep and its worker: plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rooflab.config import SweepConfig
from rooflab.measure.protocol import Clock, Outcome
from rooflab.model.problem import ProblemRecord

BuildRecords = dict[str, list[dict[str, Any]]]
"""By ``Kernel.id``, records of each compilation: registers, spills and so on."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything that a worker receives when it starts.

    ``entropy`` decides what is checked and when. ``files`` are the user's kernel files;
    ``affinity`` the CPUs that the sweep may use; ``path`` the sweep's module search path.
    ``candidates`` is the number of processes to start, of which one becomes the worker,
    ``environment`` their extra variables.
    """

    device: str
    config: SweepConfig
    entropy: int = 0
    files: tuple[str, ...] = ()
    affinity: frozenset[int] = frozenset()
    path: tuple[str, ...] = ()
    candidates: int = 1
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """A call of the server's method ``name``; ``Done`` has what it returns."""

    name: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Count:
    """The launches that counters are read over."""

    problem: ProblemRecord
    kernel: str
    variant: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Outcomes of one problem, the time spent, and the builds so far."""

    outcomes: list[Outcome]
    clock: Clock = field(default_factory=Clock)
    builds: BuildRecords = field(default_factory=dict)


# Replies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Progress:
    """A heartbeat: the current kernel and step."""

    kernel: str
    step: str


@dataclass(frozen=True, slots=True)
class Failed:
    """A kernel's row will not be ``ok``; the others of its problem go on."""

    kernel: str
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The worker has opened its device, or done what was requested."""

    value: Any = None


@dataclass(frozen=True, slots=True)
class Lost:
    """A kernel has made the process unusable, which ends; its row has this status."""

    kernel: str
    reason: str
    status: str = "failed"


@dataclass(frozen=True, slots=True)
class Refused:
    """The request failed; the worker continues."""

    reason: str


End = Done | Lost | Refused
Reply = Progress | Failed | End
