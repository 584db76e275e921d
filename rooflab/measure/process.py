"""A process that measures, and the pipe to it.

It is a fresh interpreter: a forked one would inherit locks, and CUDA does not survive a fork. It is
not started through ``multiprocessing``, which runs the caller's main module again and leaves a
tracker process behind.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rooflab.files import package_root

if TYPE_CHECKING:
    from rooflab.measure.messages import Job, Reply, Request
    from rooflab.measure.printed import Printed

START_S: Final = 120.0
"""Longest time in which a process must open its device."""

_START: Final = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from rooflab.measure.serve import serve; serve(*map(int, sys.argv[2:]))"
)
"""The package's folder comes last in the path, so that its files cannot hide other modules."""

NVIDIA: Final = ("/dev/nvidiactl", "/dev/dxg")
"""One of these is there if Linux, or Linux in Windows, has a driver of NVIDIA's."""

_ahead: list[Process] = []


def module_path() -> tuple[str, ...]:
    """The module search path of this process, as absolute paths."""
    return tuple(str(Path(place).resolve()) for place in sys.path)


@contextmanager
def ahead(device: str) -> Iterator[None]:
    """If a sweep will use a GPU, start a process that loads CuPy before there is a job for it.

    ``device`` is what the user wrote. Loading takes a second, as planning does.
    """
    if device.startswith(("auto", "cuda")) and any(Path(one).exists() for one in NVIDIA):
        with suppress(EOFError):  # the first job will tell
            _ahead.append(Process({}, ahead=True))
    try:
        yield
    finally:
        while _ahead:
            _ahead.pop().kill()


def begin(job: Job, printed: Printed | None) -> Process:
    """A process with this job. Raises ``EOFError`` if it cannot be started.

    What it prints goes to ``printed``, else to standard error: standard output is for data.
    """
    # One that was started ahead has the environment of its parent, and a pipe that is to be read.
    early = bool(_ahead and printed and not job.environment)
    process = _ahead.pop() if early else Process(job.environment, kept=printed is not None)
    if printed:
        printed.collect(process.output)
        process.output = -1
    with suppress(EOFError):  # a dead process is detected by the next request
        process.send(job)
    return process


class Process:
    """A process that may become the worker. Raises ``EOFError`` if it cannot be started.

    ``environment`` are variables beside those of this process. ``output`` is the end of a pipe
    with what it prints, if that is ``kept``, until somebody else reads it (then -1).
    """

    def __init__(
        self, environment: Mapping[str, str], *, kept: bool = True, ahead: bool = False
    ) -> None:
        try:
            ours, theirs = socket.socketpair()
            # The child has the reading end. When this process ends for any reason, the child reads
            # the end of the file, and ends too.
            lifeline, self._lifeline = os.pipe()
            self.output, output = os.pipe() if kept else (-1, 2)
        except OSError as error:
            raise EOFError(f"{error.strerror}") from error
        root = str(package_root())
        descriptors = (theirs.fileno(), lifeline)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, root, *map(str, (*descriptors, int(ahead)))],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C reaches only the sweep's process
            )
        except OSError as error:
            os.close(self._lifeline)
            ours.close()
            raise EOFError(f"{error.strerror}") from error
        finally:
            theirs.close()
            os.close(lifeline)
            if kept:
                os.close(output)
        self._pipe = Connection(ours.detach())
        self.opened = self.ended = False

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

    def probe(self, seconds: float) -> float:
        """Time of an empty launch in the process, µs; infinite if it does not answer.

        After ``seconds`` of them the clock has risen from idle.
        """
        from rooflab.measure.messages import Probe, Probed

        with suppress(EOFError, TimeoutError):
            self.send(Probe(seconds))
            reply = self.receive(START_S)
            if isinstance(reply, Probed):
                return reply.launch_us
        return inf

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
