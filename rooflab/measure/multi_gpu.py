"""Problems on several GPUs of a host: blocks of operands on each, moved between them if needed.

Each GPU has a stream for kernels and one for what it sends. A GPU computes what it has the operands
for, while those for the next task arrive. The first GPU's main stream, where launches are timed,
starts all others and waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Launch, MarkedLaunch
from rooflab.errors import UnavailableError
from rooflab.kernels.base import Group, Operands, Prepare, Rank
from rooflab.measure.buffers import allocate, poison_array
from rooflab.measure.subject import Subject
from rooflab.measure.verify import WORKSPACE_BYTES, Accuracy, verify
from rooflab.model.problem import Block, OnGpus, Operand, Problem, Task

BlockPlace = tuple[int, str, Block]
"""A GPU, an operand, and its block that lies there."""


@dataclass(frozen=True, slots=True)
class Move:
    """A block that goes from its owner to another GPU."""

    name: str
    block: Block
    gpu: int


class Spread(Subject):
    """A problem on several GPUs with one kernel: filled, verified, ready to be timed."""

    counts_energy = False

    def __init__(
        self, device: Device, problem: Problem, prepare: Prepare, config: SweepConfig
    ) -> None:
        super().__init__([MarkedLaunch(self.queue)])
        self._problem, self._seed = problem, config.seed
        self._devices = device.group(problem.gpus)
        self._main = device
        self._check_memory()
        self._compute: list[Any] = []
        self._send: list[Any] = []
        for one in self._devices:
            with one.active():
                compute, send = one.queues(2)
            self._compute.append(compute)
            self._send.append(send)
        self._operands = {one.name: one for one in problem.operands}
        self._arrays: dict[BlockPlace, Any] = {}
        self._moves: list[Move] = []
        for task in problem.tasks:
            self._place(task)
        self._launches = self._prepared(prepare)

    def _check_memory(self) -> None:
        """The first GPU also has the whole problem, for the verification."""
        needed = 2 * self._problem.operand_bytes + WORKSPACE_BYTES
        if needed > (free := self._main.free_bytes()):
            raise UnavailableError(
                f"needs {needed / 1e9:.3g} GB of memory on the first GPU, {free / 1e9:.3g} GB are "
                "free"
            )

    def _place(self, task: Task) -> None:
        """Allocate the blocks of a task, and note those that must move."""
        for name, block in task.blocks.items():
            for gpu in {block.owner, task.gpu}:
                if (gpu, name, block) in self._arrays:
                    continue
                with self._devices[gpu].active():
                    shape = tuple(end - start for start, end in block.bounds)
                    storage = self._operands[name].type.storage
                    array = self._devices[gpu].arrays.empty(shape, dtype=storage)
                self._arrays[gpu, name, block] = array
                if gpu != block.owner:
                    self._moves.append(Move(name, block, gpu))

    def _of(self, task: Task) -> Operands:
        arrays = {n: self._arrays[task.gpu, n, block] for n, block in task.blocks.items()}
        return Operands(task.problem, arrays, {})

    def _prepared(self, prepare: Prepare) -> list[tuple[Task, Launch]]:
        """The launch of each task, in order; of a collective one launch for all."""
        tasks = self._problem.tasks
        if self._problem.collective:
            members = [
                Rank(self._devices[task.gpu], self._compute[task.gpu], self._of(task))
                for task in tasks
            ]
            with self._main.active():
                return [(tasks[0], prepare(self._main, Group(self._problem, members)))]
        launches = []
        for task in tasks:
            device = self._devices[task.gpu]
            with device.active(), device.on(self._compute[task.gpu]):
                launches.append((task, prepare(device, self._of(task))))
        return launches

    # A launch -----------------------------------------------------------------------------------

    def queue(self) -> None:
        """Queue one launch on all GPUs."""
        begun = self._main.mark(None)
        for device, *queues in zip(self._devices, self._compute, self._send, strict=True):
            for queue in queues:
                device.wait(queue, begun)
        arrived = {(one.gpu, one.name, one.block): self._sent(one) for one in self._moves}
        for task, launch in self._launches:
            device, queue = self._devices[task.gpu], self._compute[task.gpu]
            for name, block in task.blocks.items():
                if event := arrived.get((task.gpu, name, block)):
                    device.wait(queue, event)
            with device.active(), device.on(queue):
                device.call(launch)
        for device, queue in zip(self._devices, self._compute, strict=True):
            with device.active():
                ended = device.mark(queue)
            self._main.wait(None, ended)

    def _sent(self, move: Move) -> Any:
        """Queue the copy at its sender; returns the event after it."""
        owner, name, block = move.block.owner, move.name, move.block
        sender, queue = self._devices[owner], self._send[owner]
        with sender.active():
            target, source = self._arrays[move.gpu, name, block], self._arrays[owner, name, block]
            sender.copy(target, source, queue)
            return sender.mark(queue)

    # Verification -------------------------------------------------------------------------------

    def verify(self) -> Accuracy:
        """Fill all GPUs with parts of one problem, compute, and compare the collected result."""
        whole = self._fill("uniform")
        self.launch()
        self._main.synchronize()
        for name, operand in self._operands.items():
            if operand.written:
                self._collect(name, whole[name])
        return verify(self._main, whole, self._seed)

    def load(self, fill: str) -> None:
        """The inputs of the timing, if they are not those of verification."""
        if fill != "uniform":
            self._fill(fill)

    def _fill(self, fill: str) -> Operands:
        """The whole problem on the main device, whose parts all others have."""
        whole = allocate(self._main, OnGpus(self._problem).whole, self._seed, fill)
        for name, operand in self._operands.items():
            self._distribute(operand, whole.initial.get(name, whole[name]))
        return whole

    def _distribute(self, operand: Operand, whole: Any) -> None:
        """Copy its parts to their owners; what moved there before is poisoned."""
        arrays = self._main.arrays
        for (gpu, name, block), array in self._arrays.items():
            if name != operand.name:
                continue
            if operand.read and gpu == block.owner:
                self._main.copy(array, arrays.ascontiguousarray(whole[block.index]), None)
                self._main.synchronize()
            else:
                with self._devices[gpu].active():
                    poison_array(operand, array)
                    self._devices[gpu].synchronize()

    def _collect(self, name: str, whole: Any) -> None:
        """Copy its parts from their owners."""
        for (gpu, own, block), array in self._arrays.items():
            if own != name or gpu != block.owner:
                continue
            part = self._main.arrays.empty(array.shape, dtype=array.dtype)
            self._main.copy(part, array, None)
            self._main.synchronize()
            whole[block.index] = part

    def refill(self) -> None:
        """Other numbers in the next verification."""
        self._seed += 1
