"""Phases of a fleet: each device alone, all together, each pair of a host.

The difference between them is what neighbours cost: power, heat, the links that they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, zip_longest
from threading import Condition
from typing import Final

from rooflab.fleet.folder import slug

ALONE: Final = "alone"
TOGETHER: Final = "together"
PAIRS: Final = "pairs"
PHASES: Final = (ALONE, TOGETHER, PAIRS)

PROCESSES_ALONE: Final = 3
"""Processes on each device alone, if other phases follow: their spread is the noise."""


@dataclass(frozen=True, slots=True)
class Target:
    """A device of a host, in one process.

    ``repeat`` counts the processes of the first phase; ``phase`` is empty in it, else ``together``
    or ``with-DEVICE``. Targets of one ``company`` measure at the same time.
    """

    host: str
    device: str
    repeat: int = 1
    phase: str = ""
    company: str = ""

    def name(self, uuid: str) -> str:
        """The name of its folder: ``HOST-UUID``, ``HOST-UUID.2``, ``HOST-UUID.together``."""
        number = f".{self.repeat}" if self.repeat > 1 else ""
        return slug(self.host, uuid) + number + (f".{self.phase}" if self.phase else "")


def batches(
    phases: Sequence[str], repeats: int, targets: Sequence[Target]
) -> Iterator[list[Target]]:
    """The targets of each batch, which are started at the same time, in order.

    The first phase has ``repeats`` processes on each device, the others one. Hosts do not wait for
    each other.
    """
    hosts: dict[str, list[Target]] = {}
    for target in targets:
        hosts.setdefault(target.host, []).append(target)
    for phase in phases:
        first = phase == phases[0]
        for repeat in range(1, (repeats if first else 1) + 1):
            for batch in _batches(phase, list(hosts.values())):
                yield [
                    replace(one, repeat=repeat, phase="" if first else one.phase) for one in batch
                ]


def _batches(phase: str, hosts: Sequence[Sequence[Target]]) -> Iterator[list[Target]]:
    if phase == TOGETHER:
        everyone = [target for host in hosts for target in host]
        yield [replace(target, phase=TOGETHER, company=TOGETHER) for target in everyone]
        return
    rounds = [[[one] for one in host] if phase == ALONE else _pairs(host) for host in hosts]
    for groups in zip_longest(*rounds, fillvalue=()):
        yield [target for group in groups for target in group]


def _pairs(host: Sequence[Target]) -> list[list[Target]]:
    return [
        [
            replace(
                one,
                phase=f"with-{slug(other.device)}",
                company=f"{one.host} {first.device} {second.device}",
            )
            for one, other in ((first, second), (second, first))
        ]
        for first, second in combinations(host, 2)
    ]


class Meeting:
    """Waits until all who are expected have come or given up; used by several threads."""

    def __init__(self, expected: int) -> None:
        self._left = expected
        self._change = Condition()

    def come(self) -> None:
        """One less is expected."""
        with self._change:
            self._left -= 1
            self._change.notify_all()

    def wait(self) -> None:
        """Wait for all."""
        with self._change:
            self._change.wait_for(lambda: self._left <= 0)


class Company:
    """Members that begin together, and keep their devices busy until all have finished."""

    def __init__(self, size: int) -> None:
        self._meetings = [Meeting(size), Meeting(size)]

    def member(self) -> Companion:
        """One of them."""
        return Companion(self._meetings)


class Companion:
    """A member's part in its company."""

    def __init__(self, meetings: Sequence[Meeting]) -> None:
        self._ahead = list(meetings)

    def meet(self) -> None:
        """Come to the next meeting, and wait for the others."""
        meeting = self._ahead.pop(0)
        meeting.come()
        meeting.wait()

    def leave(self) -> None:
        """Come to no other meeting."""
        while self._ahead:
            self._ahead.pop(0).come()
