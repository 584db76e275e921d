"""The measuring process: opens the device, answers requests until the sweep ends."""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from importlib import import_module
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Final

from rooflab.errors import DeviceLost, KernelError, RooflabError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflab.devices.base import Device
    from rooflab.kernels.base import Kernel
    from rooflab.kernels.registry import Registry
    from rooflab.measure.protocol import Protocol
    from rooflab.measure.settings import Settings
    from rooflab.worker.messages import Count, Job, Measure, Reply, Request

_PR_SET_PDEATHSIG: Final = 1


def serve(pipe: int, lifeline: int, ahead: int) -> None:
    """The process's main function; the first arguments are file descriptors.

    ``ahead``: 1 if the job comes later, and will be for a GPU.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The sweep's process prints the same warnings.
    logging.getLogger("rooflab").addHandler(logging.NullHandler())
    _end_with_parent(lifeline)
    connection = Connection(pipe)
    if ahead:
        _load()
    with suppress(EOFError, OSError):
        job: Job = connection.recv()
        if job.affinity and hasattr(os, "sched_setaffinity"):
            with suppress(OSError):
                os.sched_setaffinity(0, job.affinity)
        try:
            server = _Server(connection, job)
        except Exception as error:  # a user's code may raise anything
            from rooflab.worker.messages import Refused

            connection.send(Refused(_text(error)))
            return
        server.run()


def _load() -> None:
    """What takes a while, and every job of a GPU needs."""
    with suppress(Exception):  # whoever opens the device will tell
        import_module("rooflab.measure.protocol")
        import_module("rooflab.devices.cuda.device").count()


def open_job(job: Job) -> tuple[Device, Registry, Settings]:
    """The device, claimed, all kernels, and the settings as they were before a user's code.

    Raises what a user's file raises.
    """
    from rooflab.devices.cuda.nvcc import choose, driver_version
    from rooflab.devices.open import open_device
    from rooflab.kernels.sources import discover, load_file
    from rooflab.measure.settings import Own, Settings

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


def _end_with_parent(lifeline: int) -> None:
    """End this process when its parent ends, even while a kernel hangs in the main thread."""
    if sys.platform == "linux":
        # The system does it, even if a hanging kernel holds Python's global lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _text(error: Exception) -> str:
    """The message of an error; with its type if it is not rooflab's."""
    if isinstance(error, RooflabError) and str(error):
        return str(error)
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


class _Server:
    """Answers one request after the other."""

    def __init__(self, connection: Connection, job: Job) -> None:
        from rooflab.measure.protocol import Protocol
        from rooflab.worker.messages import Failed, Progress, Ready

        self._connection = connection
        self._config = job.config
        self._device, self._registry, settings = open_job(job)
        self._protocol: Protocol = Protocol(
            self._device,
            job.config,
            lambda kernel, step: self._send(Progress(kernel, step)),
            lambda one: self._send(Failed(one.kernel, one.status, one.reason)),
            job.entropy,
            settings,
        )
        self._send(Ready())

    def run(self) -> None:
        """Answer requests until the pipe is closed."""
        while True:
            request: Request = self._connection.recv()
            try:
                reply = self._answer(request)
            except DeviceLost as error:
                from rooflab.worker.messages import Lost

                self._send(Lost(error.kernel, error.reason, error.status))
                os._exit(0)  # skip destructors: the CUDA context is dead
            except Exception as error:  # a user's code may raise anything
                from rooflab.worker.messages import Refused

                reply = Refused(_text(error))
            self._send(reply)

    def _send(self, reply: Reply) -> None:
        self._connection.send(reply)

    def _answer(self, request: Request) -> Reply:
        from rooflab.measure.levels import known_levels
        from rooflab.measure.rehearsal import rehearse
        from rooflab.measure.warmup import probe, warm_up
        from rooflab.worker.messages import (
            Count,
            Levels,
            MeasureLevels,
            Probe,
            Probed,
            ReadRoofline,
            Ready,
            Rehearse,
            Roofs,
            WarmedUp,
            WarmUp,
        )
        from rooflab.workloads import rebuild

        if isinstance(request, Probe):
            return Probed(probe(self._device, request.seconds))
        if isinstance(request, Rehearse):
            for part, kernel in request.parts:
                kernels = self._kernels(part.workload, [kernel] if kernel else [])
                rehearse(self._device, rebuild(part), kernels)
            return Ready()
        if isinstance(request, ReadRoofline):
            if request.again:
                return Roofs(self._device.remeasure())
            return Roofs(self._device.roofline())
        if isinstance(request, MeasureLevels):
            return Levels(known_levels(self._device, links=request.links))
        if isinstance(request, WarmUp):
            problem = rebuild(request.problem)
            kernels = self._kernels(problem.workload, request.kernels)
            return WarmedUp(warm_up(self._protocol, problem, kernels))
        if isinstance(request, Count):
            return self._count(request)
        return self._measure(request)

    def _count(self, request: Count) -> Reply:
        from rooflab.measure.counting import count
        from rooflab.worker.messages import Counted
        from rooflab.workloads import rebuild

        workload, variant = request.problem.workload, request.variant
        kernel = find_kernel(self._registry, self._device.kind, workload, request.kernel)
        try:
            problem = rebuild(request.problem)
            return Counted(count(self._device, problem, kernel, variant, self._config))
        except UnavailableError as error:
            return Counted(None, str(error))

    def _measure(self, request: Measure) -> Reply:
        from rooflab.measure.protocol import Clock
        from rooflab.worker.messages import Measured
        from rooflab.workloads import rebuild

        self._protocol.clock = Clock()
        kernels = self._kernels(request.problem.workload, request.kernels)
        outcomes = self._protocol.measure(rebuild(request.problem), kernels, request.most_s)
        builds = {kernel.id: kernel.builds() for kernel in kernels}
        return Measured(outcomes, self._protocol.clock, builds)

    def _kernels(self, workload: str, names: Sequence[str]) -> list[Kernel]:
        kind = self._device.kind
        return [find_kernel(self._registry, kind, workload, name) for name in names]
