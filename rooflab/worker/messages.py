"""Messages between the sweep and its worker: plain values, one type per message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rooflab.config import SweepConfig
from rooflab.devices.base import Counters
from rooflab.measure.protocol import Clock, Outcome
from rooflab.model.problem import ProblemRecord
from rooflab.model.roofline import Limits, Roofline

Builds = dict[str, list[dict[str, Any]]]
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


# Requests ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Probe:
    """Time an empty launch, after so many seconds of them."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Rehearse:
    """Compile what these need: kernels on small problems, by name, or "" for a problem's checks."""

    parts: tuple[tuple[ProblemRecord, str], ...]


@dataclass(frozen=True, slots=True)
class ReadRoofline:
    """Return the device's ceilings.

    ``again`` measures those that percentages refer to now, even if they are known.
    """

    again: bool = False


@dataclass(frozen=True, slots=True)
class MeasureLevels:
    """Measure the ceilings of each memory level and pipe, and of links; keep them on disk."""

    links: bool


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Run the fastest of these kernels until the device is steady."""

    problem: ProblemRecord
    kernels: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Measure:
    """Measure these kernels on one problem, the rounds of each in at most ``most_s`` seconds."""

    problem: ProblemRecord
    kernels: tuple[str, ...]
    most_s: float


@dataclass(frozen=True, slots=True)
class Count:
    """Read hardware counters over launches of this kernel and variant."""

    problem: ProblemRecord
    kernel: str
    variant: str


Request = Probe | Rehearse | ReadRoofline | MeasureLevels | WarmUp | Measure | Count


# Replies -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ready:
    """The worker has opened its device, or has rehearsed."""


@dataclass(frozen=True, slots=True)
class Probed:
    """The time of an empty launch in this process."""

    launch_us: float


@dataclass(frozen=True, slots=True)
class Roofs:
    """The ceilings."""

    roofline: Roofline


@dataclass(frozen=True, slots=True)
class Levels:
    """The ceilings of each memory level and pipe."""

    limits: Limits


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """The result of the warm-up, for the manifest."""

    content: dict[str, Any]


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
class Measured:
    """Outcomes of one problem, the time spent, and the builds so far."""

    outcomes: list[Outcome]
    clock: Clock = field(default_factory=Clock)
    builds: Builds = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Counted:
    """The counters of one launch; or, without them, why they cannot be read here."""

    counters: Counters | None
    unavailable: str = ""


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


Working = Progress | Failed
Reply = Ready | Probed | Roofs | Levels | WarmedUp | Working | Measured | Counted | Lost | Refused
