"""A process that measures, and the pipe to it.

It is a fresh interpreter: a forked one would inherit locks, and CUDA does not survive a fork. It is
not started through ``multiprocessing``, which runs the caller's main module again and leaves a
tracker process behind.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rooflab.devices.cpu.facts import allowed_cpus
from rooflab.files import package_root

if TYPE_CHECKING:
    from rooflab.worker.messages import Job, Reply, Request
    from rooflab.worker.printed import Printed

START_S: Final = 120.0
"""Longest time in which a process must open its device."""

_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); from {} import serve; serve(*map(int, sys.argv[2:]))"
)
"""The package's folder comes last in the path, so that its files cannot hide other modules."""

NVIDIA: Final = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there if Linux, or Linux in Windows, has a driver of NVIDIA's."""

_GPU: Final = re.compile(r"auto|cuda(:\d+)?", re.ASCII)
"""What a user writes for one GPU."""


AHEAD: Final = 6
"""Most processes that start ahead; there is one for three processors, and one at least."""


class _Ahead(threading.local):
    """The processes that this thread has started ahead."""

    def __init__(self) -> None:
        self.processes: list[Process] = []


_ahead = _Ahead()


def module_path() -> tuple[str, ...]:
    """The module search path of this process, as absolute paths."""
    return tuple(str(Path(place).resolve()) for place in sys.path)


@contextmanager
def ahead(device: str) -> Iterator[None]:
    """If a sweep will use a GPU, start processes that load CuPy before there is a job for them.

    ``device`` is what the user wrote. Loading takes a second, as planning does.
    """
    if _GPU.fullmatch(device) and any(Path(one).exists() for one in NVIDIA):
        with suppress(EOFError):  # the first job will tell
            for _ in range(max(1, min(AHEAD, len(allowed_cpus()) // 3))):
                _ahead.processes.append(Process({}, ahead=True))
    try:
        yield
    finally:
        end_ahead()


@contextmanager
def loading() -> Iterator[None]:
    """A user's file is loaded meanwhile; what it changes, the process started ahead would lack."""
    before = _surroundings()
    try:
        yield
    finally:
        if _surroundings() != before:
            end_ahead()


def _surroundings() -> tuple[dict[str, str], str]:
    """What a process takes over."""
    folder = ""
    with suppress(OSError):  # it may be gone
        folder = str(Path.cwd())
    return dict(os.environ), folder


def end_ahead() -> None:
    """End those that no job has taken."""
    ended, _ahead.processes = _ahead.processes, []
    kill(ended)


def begin(job: Job, printed: Printed | None) -> Process:
    """A process with this job. Raises ``EOFError`` if it cannot be started.

    What it prints goes to ``printed``, else to standard error: standard output is for data.
    """
    # A pipe is there to be read, and those that were started ahead have no other environment.
    if _ahead.processes and printed and not job.environment:
        process = _ahead.processes.pop()
    else:
        process = Process(job.environment, kept=printed is not None)
    if printed:
        printed.collect(process.output)
        process.output = -1
    with suppress(EOFError):  # a dead process is detected by the next request
        process.send(job)
    return process


def _pipe(reader: ExitStack, writer: ExitStack) -> tuple[int, int]:
    """The reading and the writing end, each closed by one of these."""
    reading, writing = os.pipe()
    reader.callback(os.close, reading)
    writer.callback(os.close, writing)
    return reading, writing


def kill(processes: Sequence[Process]) -> None:
    """End them all at the same time: a GPU's context takes a tenth of a second."""
    for process in processes:
        process.end()
    for process in processes:
        process.kill()


class Process:
    """A process that may become the worker. Raises ``EOFError`` if it cannot be started.

    ``environment`` are variables beside those of this process. ``output`` is the end of a pipe
    with what it prints, if that is ``kept``, until somebody else reads it (then -1). ``module`` is
    the one whose ``serve`` it runs, and ``inherited`` are files that it has open too.
    """

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        kept: bool = True,
        ahead: bool = False,
        module: str = "rooflab.worker.server",
        inherited: Sequence[int] = (),
    ) -> None:
        with ExitStack() as ours, ExitStack() as theirs:
            try:
                pipe, other = socket.socketpair()
                ours.callback(pipe.close)
                theirs.callback(other.close)
                # The child has the reading end. When this process ends for any reason, the child
                # reads the end of the file, and ends too.
                lifeline, self._lifeline = _pipe(theirs, ours)
                self.output, output = _pipe(ours, theirs) if kept else (-1, 2)
                start = _START.format(module)
                words = (str(package_root()), *map(str, (other.fileno(), lifeline, int(ahead))))
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-u", "-c", start, *words],  # it may be killed
                    pass_fds=(other.fileno(), lifeline, *inherited),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **environment},
                    start_new_session=True,  # Ctrl-C reaches only the sweep's process
                )
            except OSError as error:
                raise EOFError(f"{error.strerror}") from error
            ours.pop_all()
        self._pipe = Connection(pipe.detach())
        self.opened = False

    def send(self, message: Request | Job) -> None:
        """Send a message. Raises ``EOFError`` if the process has ended."""
        try:
            self._pipe.send(message)
        except OSError as error:
            raise EOFError from error

    def receive(self, timeout_s: float) -> Reply:
        """The next message. Raises ``TimeoutError``, or ``EOFError`` if the process has ended."""
        try:
            if not self._pipe.poll(min(timeout_s, 1e6)):
                raise TimeoutError
            message: Reply = self._pipe.recv()
        except OSError as error:
            if isinstance(error, TimeoutError):
                raise
            raise EOFError from error
        return message

    def exit_code(self) -> int | None:
        """The exit code, negative for a signal; None if it is still running after 5 s."""
        try:
            return self._process.wait(5)
        except subprocess.TimeoutExpired:
            return None

    def end(self) -> None:
        """End the process, even if it is busy, and its children, without waiting for them."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)  # it has a session of its own

    def kill(self) -> None:
        """End the process, even if it is busy."""
        self.end()
        self._pipe.close()
        for descriptor in (self._lifeline, self.output):
            with suppress(OSError):
                os.close(descriptor)
        self._process.wait()
