"""The process that owns the device: whatever a kernel does to it, the sweep goes on.

The sweep's own process never touches the device. It asks a worker for one problem at a time and
listens for signs of life. A kernel that corrupts the device's context, hangs or kills the process
costs its own row; a fresh worker measures the others.

On a GPU two processes differ in what a launch costs, for as long as they live. So several are
started, and the one with the shortest empty launch measures. docs/measurement.md says more.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf, isfinite
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from rooflab.config import SweepConfig
from rooflab.errors import DeviceLost, KernelError, RooflabError
from rooflab.measure.protocol import Clock, Outcome, Protocol
from rooflab.problem import Problem
from rooflab.roofline import Roofline

START_S: Final = 120.0
"""A worker that has not opened its device after this time will not do so."""


@dataclass(frozen=True, slots=True)
class Job:
    """What a worker must know to measure: everything that crosses to it when it starts.

    ``files`` are kernels of the user's own; ``affinity`` the CPUs that the sweep may use. Of so
    many ``candidates`` one becomes the worker.
    """

    device: str
    config: SweepConfig
    files: tuple[Path, ...] = ()
    affinity: frozenset[int] = frozenset()
    candidates: int = 1


@dataclass(slots=True)
class Reply:
    """Outcomes of one problem, and what the manifest wants to know."""

    outcomes: list[Outcome]
    clock: Clock = field(default_factory=Clock)
    builds: dict[str, list[dict[str, Any]]] = field(default_factory=dict)


class Worker:
    """The sweep's end. Starts processes as they are needed; use it as a context manager."""

    def __init__(self, job: Job, progress: Callable[[Problem, str, str], None]) -> None:
        self._job = job
        self._progress = progress
        self._process: _Process | None = None
        self.clock = Clock()
        self.builds: dict[str, list[dict[str, Any]]] = {}
        self.launches_us: list[list[float]] = []
        """Per worker, what an empty launch took in each of its candidates."""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def roofline(self, *, measure: bool) -> Roofline:
        """The device's ceilings, with those that are measured where that is asked for."""
        try:
            self._send(("roofline", measure))
            kind, content = self._receive(START_S)
        except (EOFError, TimeoutError) as error:
            raise RooflabError(
                f"the measuring process on {self._job.device} did not start (see: rooflab doctor)"
            ) from error
        if kind == "error":
            raise RooflabError(content)
        assert isinstance(content, Roofline)
        return content

    def warm_up(self, problem: Problem, kernels: Sequence[str]) -> dict[str, Any]:
        """Run ``problem`` until clock and power stand still; says how long that took.

        A kernel that fails here is not told of: it fails again in its own row.
        """
        with suppress(EOFError, TimeoutError):
            self._send(("settle", problem, list(kernels)))
            while True:
                kind, content = self._receive(self._job.config.timing.timeout_s)
                if kind == "settled":
                    return dict(content)
                if kind != "progress":
                    break
                self._progress(problem, *content)
        self.stop()
        return {}

    def measure(self, problem: Problem, kernels: Sequence[str]) -> list[Outcome]:
        """One outcome per kernel, in their order, whatever happens to the worker meanwhile."""
        done: dict[str, Outcome] = {}
        left = list(kernels)
        while left:
            reply, culprit = self._attempt(problem, left)
            if reply:
                done |= {outcome.kernel: outcome for outcome in reply.outcomes}
                break
            assert culprit is not None
            # What the others had measured next to it is gone with the process: they start again.
            done[culprit.kernel] = culprit
            left.remove(culprit.kernel)
        return [done[name] for name in kernels]

    def _attempt(self, problem: Problem, kernels: list[str]) -> tuple[Reply | None, Outcome | None]:
        """A reply, or the outcome of the kernel that brought the worker down."""
        current, step = kernels[0], "starting"
        try:
            self._send(("measure", problem, kernels))
            while True:
                kind, content = self._receive(self._job.config.timing.timeout_s)
                if kind == "progress":
                    current, step = content
                    self._progress(problem, current, step)
                elif kind == "lost":
                    current, reason = content
                    return None, self._abandon(current, reason)
                else:
                    self._account(content)
                    return content, None
        except TimeoutError:
            limit = self._job.config.timing.timeout_s
            reason = f"no sign of life for {limit:g} s while {step}; killed"
            return None, self._abandon(current, reason, "timeout")
        except EOFError:
            return None, self._abandon(current, f"{self._cause_of_death()} while {step}")

    def _account(self, reply: Reply) -> None:
        for name in ("prepare", "verify", "timing", "device"):
            setattr(self.clock, name, getattr(self.clock, name) + getattr(reply.clock, name))
        self.builds |= reply.builds

    def _abandon(self, kernel: str, reason: str, status: str = "failed") -> Outcome:
        self.stop()
        outcome = Outcome(kernel)
        outcome.fail(reason, status)
        return outcome

    def _cause_of_death(self) -> str:
        if self._process is None:
            return "no measuring process started"
        code = self._process.exit_code()
        if code is not None and code < 0:
            return f"the measuring process died of {signal.Signals(-code).name}"
        return f"the measuring process ended with exit code {code}"

    def _send(self, message: object) -> None:
        if self._process is None:
            self._process = self._start()
        self._process.send(message)

    def _receive(self, timeout_s: float) -> tuple[str, Any]:
        assert self._process is not None
        return self._process.receive(timeout_s)

    def _start(self) -> _Process:
        """The best of the candidates. Raises ``EOFError`` or ``TimeoutError`` where none starts."""
        candidates = [_Process(self._job) for _ in range(self._job.candidates)]
        found: list[tuple[float, _Process]] = []
        failure: Exception | None = None
        try:
            for candidate in candidates:
                try:
                    # Starting takes its time, which must not count against the first kernel.
                    candidate.receive(START_S)
                    found.append((0.0, candidate))
                except (EOFError, TimeoutError) as error:
                    failure = error
            if len(found) > 1:
                found = [(candidate.probe(), candidate) for _, candidate in found]
                self.launches_us.append([us for us, _ in found if isfinite(us)])
            if not found:
                raise failure or EOFError
            _, best = min(found, key=lambda pair: pair[0])
            candidates.remove(best)
            return best
        finally:
            for candidate in candidates:
                candidate.kill()

    def stop(self) -> None:
        """End the process, however busy it is."""
        if self._process is not None:
            self._process.kill()
            self._process = None


class _Process:
    """One process that may become the worker, and the pipe to it."""

    def __init__(self, job: Job) -> None:
        # A fresh interpreter: a forked one would inherit locks, and CUDA does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, message: object) -> None:
        """Raises ``EOFError`` where the process is gone."""
        try:
            self._pipe.send(message)
        except BrokenPipeError as error:
            raise EOFError from error

    def receive(self, timeout_s: float) -> tuple[str, Any]:
        """The next message. Raises ``TimeoutError``, or ``EOFError`` where the process is gone."""
        if not self._pipe.poll(timeout_s):
            raise TimeoutError
        try:
            message: tuple[str, Any] = self._pipe.recv()
        except ConnectionResetError as error:
            raise EOFError from error
        return message

    def probe(self) -> float:
        """What an empty launch takes there, µs; infinite where it does not answer."""
        with suppress(EOFError, TimeoutError):
            self.send(("probe",))
            kind, content = self.receive(START_S)
            if kind == "launch_us":
                return float(content)
        return inf

    def exit_code(self) -> int | None:
        self._process.join(5)
        return self._process.exitcode

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join()
        self._process.close()


def _serve(pipe: Connection, job: Job) -> None:
    """The worker's end: answer requests until the sweep closes the pipe, or dies."""
    # Ctrl-C reaches both processes; the sweep decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if job.affinity and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, job.affinity)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        _answer(pipe, job)


def _answer(pipe: Connection, job: Job) -> None:
    from rooflab.backends import cuda, discover
    from rooflab.devices import open_device
    from rooflab.measure.settle import probe, settle

    device = open_device(job.device)
    registry = discover()
    for path in job.files:
        registry.add(cuda.load_file(path))
    protocol = Protocol(
        device, job.config, lambda kernel, step: pipe.send(("progress", (kernel, step)))
    )
    pipe.send(("ready", None))
    while True:
        request, *arguments = pipe.recv()
        if request == "roofline":
            try:
                pipe.send(("roofline", device.roofline(measure=arguments[0])))
            except RooflabError as error:
                pipe.send(("error", str(error)))
            continue
        if request == "probe":
            try:
                pipe.send(("launch_us", probe(device)))
            except KernelError as error:
                pipe.send(("failed", str(error)))
            continue
        problem, names = arguments
        kernels = [registry.select([name], device.kind)[0] for name in names]
        if request == "settle":
            try:
                pipe.send(("settled", settle(protocol, problem, kernels)))
            except (KernelError, MemoryError) as error:
                pipe.send(("failed", str(error)))
            continue
        protocol.clock = Clock()
        try:
            outcomes = protocol.measure(problem, kernels)
        except DeviceLost as error:
            pipe.send(("lost", (error.kernel, error.reason)))
            # Without the farewells of objects whose device is gone.
            os._exit(0)
        pipe.send(("reply", Reply(outcomes, protocol.clock, cuda.compiled_info())))
