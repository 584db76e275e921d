"""What the rows of a program's run are: groups of launches, copies, idle time. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement, is_possible
from rooflab.model.problem import PROGRAM

if TYPE_CHECKING:
    from rooflab.runs.store import RunData

IDLE: Final = "(idle)"
"""The row of the time in which nothing runs on the device."""

COPIES: Final = {
    "h2d": "(copies from the host)",
    "d2h": "(copies to the host)",
    "d2d": "(copies on the device)",
    "peer": "(copies between GPUs)",
    "host": "(copies on the host)",
    "memset": "(memsets)",
}
"""The rows of copies, by kind."""


COUNTED: Final = "counted"
MODELLED: Final = "modelled"
"""How the work of a group is known."""

SHORT_US: Final = 10.0
"""A launch that takes less may be over before the host has started the next one."""


OVERLAP: Final = 1.02
"""Kernels take so many times the time in which the GPU is busy: some run at once."""


GENERAL: Final = re.compile(r"elementwise|multi_tensor_apply|reduce_kernel")
"""Kernels of which only the operation tells what they do: that of their template."""


def is_program(rows: Sequence[Measurement]) -> bool:
    """Whether they are the rows of a program."""
    return bool(rows) and all(row.problem.workload == PROGRAM for row in rows)


@dataclass(frozen=True, slots=True)
class Program:
    """The rows of a program's run, and what its manifest says of a step.

    ``groups`` are those of launches, ``others`` copies, memsets and idle time, each with the most
    time first. ``whole`` says that it has no steps.
    """

    groups: tuple[Measurement, ...]
    others: tuple[Measurement, ...]
    about: Mapping[str, Any]

    @staticmethod
    def of(run: RunData) -> Program:
        """That of a run whose rows are a program's."""
        rows = sorted(run.ok, key=lambda row: -total(row))
        return Program(
            tuple(row for row in rows if is_launched(row)),
            tuple(row for row in rows if not is_launched(row)),
            run.manifest.program,
        )

    @property
    def whole(self) -> bool:
        """Whether all of the program is one step."""
        return bool(self.about.get("whole"))

    @property
    def steps(self) -> int:
        """Steps of which figures are the mean."""
        steps = self.about.get("steps")
        return steps if isinstance(steps, int) and steps > 0 else 1

    @property
    def step_us(self) -> float:
        """The time of a step; that of all rows if the manifest lacks it."""
        given = self.figure("step_us")
        return given if given is not None else sum(map(total, (*self.groups, *self.others)))

    @property
    def kernels_us(self) -> float:
        """The sum of the times of all kernels in a step."""
        return sum(map(total, self.groups))

    @property
    def overlaps(self) -> bool:
        """Whether kernels run at once for a part of the time."""
        busy = self.figure("busy_us")
        return bool(busy and self.kernels_us > OVERLAP * busy)

    def figure(self, name: str) -> float | None:
        """A time or a percentage of the manifest; None if it is missing or impossible."""
        value = self.about.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
            return None
        return float(value) if name.endswith("percent") or is_possible(value) else None

    def other(self, name: str) -> Measurement | None:
        """The row of idle time, or of one kind of copies."""
        return next((row for row in self.others if row.kernel == name), None)


def is_launched(row: Measurement) -> bool:
    """Whether it is a group of launches, and not copies or idle time."""
    return not row.kernel.startswith("(")


def total(row: Measurement) -> float:
    """Its time in a step, in microseconds; 0 if it is not known."""
    return row.total_us if is_possible(row.total_us) else 0.0


def recoverable(row: Measurement) -> float:
    """Its time in a step above its roof, in microseconds; 0 if it is not known."""
    return row.recoverable_us if is_possible(row.recoverable_us) else 0.0


def known_by(row: Measurement) -> str:
    """How the work of a group is known; empty if it is not."""
    if row.counted_flops is not None:
        return COUNTED
    return MODELLED if row.flops is not None or row.bytes is not None else ""


def grid_of(row: Measurement) -> str:
    """``2x66`` for a grid of 2x66x1: without what is 1."""
    grid = str(row.problem.settings.get("grid", ""))
    while grid.endswith("x1"):
        grid = grid.removesuffix("x1")
    return grid


def endings(rows: Iterable[Measurement]) -> dict[int, str]:
    """What tells each row apart from the others of its kernel, by ``id``: grid, block and part.

    Only as much as it takes: an only group of a kernel has no ending.
    """
    found = {}
    for alike in grouped(rows, lambda row: row.kernel).values():
        grids = len({grid_of(row) for row in alike}) > 1
        blocks = len({row.problem.extents.get("threads") for row in alike}) > 1
        for row in alike:
            part = row.problem.settings.get("part")
            words = (
                grid_of(row) if grids else "",
                f"×{row.problem.extents.get('threads', '?')}" if blocks else "",
                f"#{part}" if part else "",
            )
            found[id(row)] = " ".join(filter(None, words))
    return found
