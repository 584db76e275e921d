"""The process of a submission: loads its file and launches it, when and on what it is told.

It holds neither a reference nor a clock, and only inputs that were written a moment before. All of
it is in the submission's hands once that is loaded, so nothing that it says is believed: it can
only fail.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from rooflab.judging import sandbox
from rooflab.judging.sandbox import Enforced
from rooflab.worker.lifeline import end_with_parent

if TYPE_CHECKING:
    from rooflab.devices.base import Device, Launch
    from rooflab.kernels.base import Kernel, Operands
    from rooflab.model.problem import Problem


def serve(pipe: int, lifeline: int, _: int) -> None:
    """The process's main function; the arguments are file descriptors."""
    connection = Connection(pipe)
    with suppress(EOFError, OSError):
        job = json.loads(connection.recv_bytes())
        refused = sandbox.enter(job["folder"])  # a thread that is there before would be free
        end_with_parent(lifeline)
        Contestant(connection, job, refused).run()


class Contestant:
    """Answers one request after the other: each is the call of a method."""

    def __init__(self, connection: Connection, job: dict[str, Any], refused: Enforced) -> None:
        from rooflab.devices.registry import open_device

        sys.path += [place for place in job["path"] if place not in sys.path]
        self._connection, self._job = connection, job
        self._device: Device = open_device(job["device"], job["threads"])
        self._device.claim()
        self._launches: list[Launch] = []
        self._say(refused=asdict(refused))

    def _say(self, **reply: object) -> None:
        self._connection.send_bytes(json.dumps(reply).encode())

    def run(self) -> None:
        """Until the pipe is closed."""
        while True:
            request = json.loads(self._connection.recv_bytes())
            places = request.get("launch")
            try:
                if places is None:
                    self._load()
                    self._say(loaded=True)
                else:
                    self._launch(places)
            except Exception as error:  # a submission may raise anything
                text = str(error).strip().splitlines() or [""]
                self._say(error=f"{type(error).__name__}: {text[0]}"[:300])

    def _launch(self, places: list[int]) -> None:
        """Launch on these copies of the operands, when the judge says so, and wait for the end.

        Without a copy an empty launch is done.
        """
        launches = [self._launches[place] for place in places] or [self._device.nothing]
        self._say(ready=True)
        self._connection.recv_bytes()
        for launch in launches:
            launch()
        self._device.synchronize()
        self._say(done=True)

    def _load(self) -> None:
        kernel, problem = self._kernel()
        if reason := kernel.unavailable(self._device) or kernel.refuses(problem):
            raise ValueError(reason)
        self._launches = [kernel.prepare(self._device, one) for one in self._operands(problem)]

    def _kernel(self) -> tuple[Kernel, Problem]:
        """The kernel, and the problem: a file that is trusted may define its workload."""
        from rooflab.devices.cuda.nvcc import choose, driver_version
        from rooflab.kernels.base import is_file
        from rooflab.kernels.sources import discover, load_file
        from rooflab.model.problem import ProblemRecord
        from rooflab.workloads import catalogue, rebuild

        job, kind = self._job, self._device.kind
        for file in job["trusted"]:
            if job["problem"]["workload"] not in catalogue():
                load_file(file)
        problem = rebuild(ProblemRecord(**job["problem"]))
        compilers = choose("auto", driver_version(self._device))
        if not is_file(job["kernel"]):
            found = discover(compilers.own).get(kind, problem.workload, job["kernel"])
            loaded = [found] if found else []
        else:
            loaded = load_file(job["kernel"], compilers.users)
        wanted = (kind, problem.workload)
        kernels = [one for one in loaded if (one.device_kind, one.workload) == wanted]
        if len(kernels) == 1:
            return kernels[0], problem
        if kernels:
            raise ValueError(
                f"several kernels: name one of {', '.join(one.name for one in kernels)}"
            )
        there = dict.fromkeys(f"one of {one.workload} for {one.device_kind}" for one in loaded)
        has = f": it has {', '.join(there)}" if there else ""
        raise ValueError(f"it has no {kind} kernel of {problem.workload}{has}")

    def _operands(self, problem: Problem) -> list[Operands]:
        """All copies, in the memory that the judge shares."""
        from rooflab.kernels.base import Operands

        arrays: dict[str, list[Any]] = {}
        for operand in problem.operands:
            shared = self._job["memory"][operand.name]
            memory = self._device.opened(shared["handle"], shared["bytes"])
            parts = [memory[at : at + operand.bytes] for at in shared["places"]]
            arrays[operand.name] = [
                part.view(operand.type.storage).reshape(operand.shape) for part in parts
            ]
        count = len(next(iter(arrays.values())))
        copies = [{name: each[i] for name, each in arrays.items()} for i in range(count)]
        both = [operand.name for operand in problem.operands if operand.role == "inout"]
        return [Operands(problem, one, {name: one[name].copy() for name in both}) for one in copies]
