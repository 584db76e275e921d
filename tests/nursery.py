"""Measuring processes for tests on the exact devices, forked from one that has imported everything.

A process of its own takes half a second of a core, mostly for imports, and some hundred tests start
one. These processes do the same from there on. Tests of starting and ending have real ones.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
import nursery
nursery.run(int(sys.argv[2]))
"""

MOST_BYTES = 2**18

# In the nursery ----------------------------------------------------------------------------------


def run(descriptor: int) -> None:
    """Fork a process for each request, and tell how it ended.

    It is nobody's child, so that tests find only the processes that they start.
    """
    if os.fork():
        os._exit(0)
    _import_everything()
    requests = socket.socket(fileno=descriptor)
    while True:
        message, passed, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not message:
            return
        request = json.loads(message)
        if "ended" in request:
            answer = _ended(request["ended"])
        else:
            answer = os.fork()
            if answer == 0:
                requests.close()
                os._exit(_measured(request, *passed))
        for one in passed:
            os.close(one)
        requests.send(json.dumps(answer).encode())


def _import_everything() -> None:
    import fake  # noqa: F401

    from rooflab.devices.cuda import nvcc  # noqa: F401
    from rooflab.kernels.sources import discover
    from rooflab.measure import counting, levels, warmup  # noqa: F401
    from rooflab.worker import server  # noqa: F401

    remember_kernels()
    discover()


def _measured(request: dict[str, Any], pipe: int, lifeline: int, output: int) -> int:
    """Do what a new interpreter would do; returns the exit code."""
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        from rooflab.worker.server import serve

        serve(pipe, lifeline, 0)
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _ended(process: int) -> int | None:
    """The exit code, negative for a signal; None if it still runs."""
    found, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


# In the test's process ---------------------------------------------------------------------------


class Nursery:
    """The process that has imported everything."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        # A test may have changed the environment: where modules are does not depend on it.
        path = json.dumps([str(Path(place).resolve()) for place in sys.path])
        subprocess.run(
            [sys.executable, "-P", "-u", "-c", START, path, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            check=True,
        )
        self._lock = threading.Lock()
        theirs.close()  # it ends when nobody has the other end any more

    def ask(self, request: dict[str, Any], *descriptors: int) -> Any:
        message = [json.dumps(request).encode()]
        with self._lock:
            socket.send_fds(self._requests, message, list(descriptors))
            answer = self._requests.recv(MOST_BYTES)
        assert answer, "the nursery has ended: its error is above"
        return json.loads(answer)


class Forked:
    """As much of ``subprocess.Popen`` as a measuring process needs."""

    def __init__(self, pipe: int, lifeline: int, output: int, environment: dict[str, str]) -> None:
        self._nursery = nursery()
        request = {"folder": str(Path.cwd()), "environment": environment}
        self.pid: int = self._nursery.ask(request, pipe, lifeline, output)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = self._nursery.ask({"ended": self.pid})
        return self.returncode

    def wait(self, timeout: float = 60) -> int:
        limit = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > limit:
                raise subprocess.TimeoutExpired("a forked process", timeout)
            time.sleep(0.001)
        return code

    def kill(self) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@cache
def nursery() -> Nursery:
    """One for all tests of this process."""
    return Nursery()


class Starting:
    """In place of ``subprocess`` where measuring processes are started."""

    DEVNULL = subprocess.DEVNULL
    TimeoutExpired = subprocess.TimeoutExpired

    def __init__(self) -> None:
        self.real = False
        self.exact = False

    def watch(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        """``process.begin`` that remembers on which device the process measures."""

        def begun(job: Any, *printed: Any) -> Any:
            self.exact = job.device.startswith("fake:")
            return begin(job, *printed)

        return begun

    def Popen(self, command: list[str], **how: Any) -> Any:  # noqa: N802
        if self.real or not self.exact or "rooflab.worker.server import" not in " ".join(command):
            return subprocess.Popen(command, **how)
        pipe, lifeline = how["pass_fds"]
        return Forked(pipe, lifeline, how["stderr"], how["env"])


@pytest.fixture(autouse=True, scope="session")
def starting() -> Iterator[Starting]:
    """Processes that measure on an exact device are forked."""
    from rooflab.worker import client as worker
    from rooflab.worker import process

    how = Starting()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "subprocess", how)
        patch.setattr(worker, "begin", how.watch(process.begin))
        yield how


@pytest.fixture(autouse=True)
def forked(request: pytest.FixtureRequest, starting: Starting) -> None:
    """Tests marked ``processes`` start real ones."""
    starting.real = bool(request.node.get_closest_marker("processes"))


def remember_kernels() -> None:
    """The files of kernels/ are read once in this process, not whenever a test asks for them."""
    from rooflab import files
    from rooflab.kernels.cuda_file import kernel as cuda_file

    read = cuda_file.shipped_kernels
    known = cache(lambda folder, nvcc: read(nvcc))
    cuda_file.shipped_kernels = lambda nvcc=None: known(files.kernels_dir(), nvcc)
