"""The measuring process: opens the device, answers requests until the sweep ends."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

from rooflab.devices.base import Counters, Device
from rooflab.devices.cuda.nvcc import choose, driver_version
from rooflab.devices.registry import open_device
from rooflab.errors import DeviceLost, KernelError, RooflabError, UnavailableError
from rooflab.kernels.base import Kernel
from rooflab.kernels.registry import Registry
from rooflab.kernels.sources import discover, load_file
from rooflab.measure.counting import count
from rooflab.measure.levels import known_levels
from rooflab.measure.protocol import Clock, Protocol
from rooflab.measure.rehearsal import rehearse
from rooflab.measure.settings import Own, Settings
from rooflab.measure.warmup import probe, warm_up
from rooflab.model.problem import ProblemRecord
from rooflab.model.roofline import CeilingList, Roofline
from rooflab.worker.lifeline import end_with_parent
from rooflab.worker.messages import (
    Count,
    Done,
    End,
    Failed,
    Job,
    Lost,
    Measured,
    Progress,
    Refused,
    Request,
)
from rooflab.workloads import rebuild


def serve(pipe: int, lifeline: int, ahead: int) -> None:
    """The process's main function; the first arguments are file descriptors.

    ``ahead``: 1 if the job comes later, and will be for a GPU.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The sweep's process prints the same warnings.
    logging.getLogger("rooflab").addHandler(logging.NullHandler())
    end_with_parent(lifeline)
    connection = Connection(pipe)
    if ahead:
        _load()
    with suppress(EOFError, OSError):
        job: Job = connection.recv()
        if job.affinity and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(0, job.affinity)
        try:
            server = Server(connection, job)
        except Exception as error:  # a user's code may raise anything
            connection.send(Refused(_text(error)))
            return
        server.run()


def _load() -> None:
    """What takes a while, and every job of a GPU needs."""
    with suppress(Exception):  # whoever opens the device will tell
        import_module("rooflab.devices.cuda.device").count()


def open_job(job: Job) -> tuple[Device, Registry, Settings]:
    """The device, claimed, all kernels, and the settings as they were before a user's code.

    Raises what a user's file raises.
    """
    sys.path += [place for place in job.path if place not in sys.path]
    device = open_device(job.device, job.config.threads)
    device.claim()
    compilers = choose(job.config.compiler, driver_version(device))
    registry = discover(compilers.own)
    settings = Settings(device, job.config)
    for file in job.files:
        own = Own()
        with settings.of(own):
            kernels = load_file(file, compilers.users)
        for kernel in kernels:
            registry.add(kernel)
            settings.loaded[kernel.id] = own
    return device, registry, settings


def find_kernel(registry: Registry, kind: str, workload: str, name: str) -> Kernel:
    """Raises ``KernelError`` if this process has no such kernel."""
    kernel = registry.get(kind, workload, name)
    if kernel is None:
        raise KernelError(f"the measuring process has no kernel {name}")
    return kernel


def _text(error: Exception) -> str:
    """The message of an error; with its type if it is not rooflab's."""
    if isinstance(error, RooflabError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class Server:
    """Answers one request after the other: each is the call of a method."""

    def __init__(self, connection: Connection, job: Job) -> None:
        self._connection, self._config = connection, job.config
        self._device, self._registry, settings = open_job(job)
        self._protocol = Protocol(
            self._device,
            job.config,
            lambda kernel, step: connection.send(Progress(kernel, step)),
            lambda one: connection.send(Failed(one.kernel, one.status, one.reason)),
            job.entropy,
            settings,
        )
        connection.send(Done())

    def run(self) -> None:
        """Answer requests until the pipe is closed."""
        while True:
            reply = self._answer(self._connection.recv())
            self._connection.send(reply)
            if isinstance(reply, Lost):
                os._exit(0)  # skip destructors: the CUDA context is dead

    def _answer(self, request: Request) -> End:
        try:
            return Done(getattr(self, request.name)(*request.arguments))
        except DeviceLost as error:
            return Lost(error.kernel, error.reason, error.status)
        except Exception as error:  # a user's code may raise anything
            return Refused(_text(error))

    def _kernels(self, workload: str, names: Sequence[str]) -> list[Kernel]:
        kind = self._device.kind
        return [find_kernel(self._registry, kind, workload, name) for name in names]

    def probe(self, seconds: float) -> float:
        """Time of an empty launch, µs, after so many seconds of them."""
        return probe(self._device, seconds)

    def rehearse(self, parts: Sequence[tuple[ProblemRecord, str]]) -> None:
        """Compile what these need: kernels on small problems, or "" for a problem's checks."""
        for part, name in parts:
            kernels = self._kernels(part.workload, [name] if name else [])
            rehearse(self._device, rebuild(part), kernels)

    def roofline(self, again: bool) -> Roofline:
        """The device's ceilings; ``again`` measures those that percentages refer to now."""
        return self._device.remeasure() if again else self._device.roofline()

    def levels(self, links: bool) -> CeilingList:
        """Ceilings of each memory level and pipe, and of links, which are kept on disk."""
        return known_levels(self._device, links=links)

    def warm_up(self, problem: ProblemRecord, names: Sequence[str]) -> dict[str, Any]:
        """Run the fastest of these kernels until the device is steady."""
        kernels = self._kernels(problem.workload, names)
        return warm_up(self._protocol, rebuild(problem), kernels)

    def measure(self, problem: ProblemRecord, names: Sequence[str], most_s: float) -> Measured:
        """These kernels on one problem, the rounds of each in at most ``most_s`` seconds."""
        self._protocol.clock = Clock()
        kernels = self._kernels(problem.workload, names)
        outcomes = self._protocol.measure(rebuild(problem), kernels, most_s)
        builds = {kernel.id: kernel.builds() for kernel in kernels}
        return Measured(outcomes, self._protocol.clock, builds)

    def count(self, request: Count) -> Counters | str | None:
        """Of one launch; None if the device has no counters, or why they cannot be read here."""
        (kernel,) = self._kernels(request.problem.workload, [request.kernel])
        problem = rebuild(request.problem)
        try:
            return count(self._device, problem, kernel, request.variant, self._config)
        except UnavailableError as error:
            return str(error)
