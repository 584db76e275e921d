"""Problems in the memory of one device: all kernels use the same copies of the operands in turn."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from math import isnan

from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Launch
from rooflab.errors import DeviceLost, UnavailableError
from rooflab.kernels.base import Kernel
from rooflab.measure.buffers import guard_bytes, poison, rotate
from rooflab.measure.inspection import Inspector
from rooflab.measure.subject import LATER, OTHER, Runner, Subject, Watch, told
from rooflab.measure.verify import WORKSPACE_BYTES, Accuracy
from rooflab.model.problem import Problem


def allocate_copies(
    device: Device, problem: Problem, config: SweepConfig, draw: random.Random
) -> Inspector:
    """The operands of all kernels on a problem, and their inspector.

    Raises ``UnavailableError`` if there is too little memory.
    """
    initial = sum(operand.bytes for operand in problem.operands if operand.role == "inout")
    # A piece of a small problem is the whole problem, in a few wider arrays.
    workspace = min(WORKSPACE_BYTES, 8 * problem.operand_bytes)
    guards = sum(2 * guard_bytes(operand) for operand in problem.operands)
    needed = problem.operand_bytes + guards + initial + workspace
    if needed > (free := device.free_bytes()):
        raise UnavailableError(
            f"needs {needed / 1e9:.3g} GB of memory, {free / 1e9:.3g} GB are free"
        )
    rotation = rotate(device, problem, config.seed, cold=config.cache == "cold")
    return Inspector(device, rotation, draw)


class Resident(Subject):
    """A kernel on copies of operands, which it shares with others, and their inspector."""

    __slots__ = ("_device", "_inspector", "_kernel")

    queues = True

    def __init__(
        self, device: Device, inspector: Inspector, kernel: Kernel, launches: list[Launch]
    ) -> None:
        super().__init__(launches)
        self._device, self._inspector, self._kernel = device, inspector, kernel
        rotation = inspector.rotation
        self.flush = rotation.flush
        self.rotates = len(rotation.copies) > 1 and rotation.flush is None
        self.fits_cache = rotation.problem.operand_bytes < device.last_level_cache_bytes()

    def load(self, fill: str) -> None:
        """Once for all kernels."""
        if fill != self._inspector.rotation.fill:
            self._inspector.fill(fill)

    def verify(self) -> Accuracy:
        """Of the first launch, which has just run on the first copy with poisoned outputs.

        Raises ``DeviceLost`` if the kernel works elsewhere.
        """
        untrusted = self._kernel.untrusted
        verdict = self._inspector.judge(0)
        if verdict.reason and isnan(verdict.rel_error):
            if untrusted:
                self._check_place()
            outside = self._inspector.reads_outside(self.launch)
            reads = None if outside else self._inspector.reads_output(self.launch)
            return reads or replace(verdict, reason=outside or verdict.reason)
        if not verdict.reason and untrusted:
            for launch in self.launches[1:]:  # it may compile for each copy of the operands
                launch()
            self._check_place()
            return replace(verdict, reason=self._inspector.unharmed())
        return verdict

    def _check_place(self) -> None:
        """Raise ``DeviceLost`` if a launch works elsewhere: on another stream, or later.

        Then its work may go on beside that of other kernels, which need a new process.
        """
        rotation = self._inspector.rotation
        poison(rotation.copies[0], pattern=1)
        outputs = [rows[0] for operand, rows in rotation.outputs() if operand.role == "out"]
        if reason := self._device.escapes(self.launch, outputs):
            raise DeviceLost(self._kernel.name, reason, "incorrect")

    def inspect(self, run: Runner) -> str:
        """On some copies; of a user's kernel also on inputs that differ a little."""
        reason = self._inspector.between(self.launches, run, close=self._kernel.foreign)
        if not reason and self._kernel.untrusted:
            self._check_place()
        return reason

    @contextmanager
    def watched(self, count: int, *, judge: bool) -> Iterator[Watch]:
        """If the kernel is from a user's file."""
        if not self._kernel.foreign:
            yield Watch()
            return
        places = [(self.turn + i) % len(self.launches) for i in range(count)]
        with self._inspector.watched(places, judge=judge) as watch:
            yield watch
        watch.reason = told(LATER, watch.reason)

    @contextmanager
    def judged(self, *, last: bool, inspected: bool) -> Iterator[Watch]:
        """The last launch is on other inputs; those that are not judged are on new ones."""
        inspector, place, watch = self._inspector, self.turn, Watch()
        if last:
            with inspector.other_inputs(place) as verdict:
                yield watch
                watch.reason = told(OTHER, verdict())
        elif inspected:
            inspector.poison(place)
            yield watch
            watch.reason = told(LATER, inspector.judge(place).reason)
        else:
            with inspector.fresh():
                yield watch

    def trespass(self) -> str:
        """Into the guards of any copy."""
        return self._inspector.rotation.trespass()

    def harm(self) -> str:
        """To guards and inputs."""
        return self._inspector.unharmed() if self._kernel.untrusted else ""

    def spoiled(self, run: Runner, launch_us: float, together: int, *, slow: bool) -> str:
        """On all copies, and then on inputs that nobody has seen before."""
        if slow:
            return ""
        close = self._kernel.foreign
        reason = self._inspector.after(self.launches, run, launch_us, together, close=close)
        return told(LATER, reason) or told(
            OTHER, self._inspector.on_other_inputs(self.launches, run)
        )
