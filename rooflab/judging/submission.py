"""A submission as its judge sees it: a process that launches when it is told to."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

from rooflab.judging.sandbox import Enforced
from rooflab.worker.lifeline import Keeper
from rooflab.worker.printed import Printed
from rooflab.worker.process import START_S, Process

LONGEST: Final = 2**16
"""Most bytes of a reply."""

MOVES: Final = "goes on working while it is stopped"
STANDING: Final = 100
"""Looks at a group of processes until it stands still."""

STOPPED_S: Final = 5.0
PATIENCE_S: Final = 5

UNEXPECTED: Final = "its process does not answer as it should"

EMPTY, LEAST_EMPTY = 20, 9
EMPTY_S: Final = 0.5
"""Empty launches, whose median is the time of the way there and back; fewer after this time, which
a large cache takes to clear."""

CACHES: Final = (
    *("TMPDIR", "XDG_CACHE_HOME", "ROOFLAB_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR", "MPLCONFIGDIR"),
)
"""Variables that say where programs write: into the one folder that the process may change."""


class Rejected(Exception):  # noqa: N818  a verdict, not an error of the user
    """Why a submission is not accepted; ``status`` as in the rows of a run."""

    def __init__(self, reason: str, status: str = "failed") -> None:
        super().__init__(reason)
        self.reason, self.status = reason, status


class OutOfTime(Rejected):
    """All of a judging takes too long; who is to blame is not known."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds for each request, and for all of a judging, which begins now."""

    request_s: float
    total_s: float
    began_s: float = field(default_factory=perf_counter)

    def left_s(self) -> float:
        """Raises ``OutOfTime`` if nothing is left."""
        if (left_s := self.began_s + self.total_s - perf_counter()) > 0:
            return left_s
        reason = f"not judged within {self.total_s:g} s"
        raise OutOfTime(reason, "timeout")


class Submission(Process):
    """A process with one kernel, whose operands are in the memory that ``job`` describes.

    ``overhead_us`` is the time of an empty launch, from before the kernel was loaded, and after
    ``before``, as it is before each round: then a GPU has to change to this process first. It runs
    only while it loads or launches. Raises ``Rejected`` if it cannot be started.
    """

    def __init__(
        self,
        job: Mapping[str, Any],
        inherited: Sequence[int],
        folder: Path,
        deadlines: Deadlines,
        before: Callable[[], object],
    ) -> None:
        environment = dict.fromkeys(CACHES, str(folder)) | {"PYTHONDONTWRITEBYTECODE": "1"}
        try:
            super().__init__(environment, module="rooflab.judging.contestant", inherited=inherited)
        except EOFError as error:
            raise Rejected(f"its process cannot be started: {error}") from error
        try:
            self._keeper = Keeper(self._process.pid)
        except OSError as error:
            super().kill()
            raise Rejected(f"its process cannot be started: {error.strerror}") from error
        self._deadlines = deadlines
        self._ran_ns: int | None = None
        self._printed = Printed(Path(os.devnull))
        self._printed.collect(self.output)
        self.output = -1
        try:
            self._limit_waiting()
            self._say({**job, "folder": str(folder)})
            self.refused = Enforced(**self._answer("refused", START_S))
            self._launched([], before)  # loads its code
            self.overhead_us = self._empty_us(before)
        except BaseException:
            self.kill()
            raise

    def kill(self) -> None:
        """End its process, and all that it has started."""
        self.end()
        self._keeper.end()
        super().kill()

    def load(self) -> None:
        """Load the file, and prepare its kernel on all copies of the operands."""
        self._go_on()
        self._say({})
        self._answer("loaded")
        self._stop()

    def launch(self, places: Sequence[int], before: Callable[[], object]) -> float:
        """Launch on these copies of the operands, one after the other; microseconds for each.

        It is told to get ready and stopped; ``before`` writes the inputs; then it launches, and is
        stopped again: what it has not done by now is late.
        """
        return max(0.0, self._launched(places, before) - self.overhead_us) / len(places)

    def _empty_us(self, before: Callable[[], object]) -> float:
        times_us, started = [], perf_counter()
        for number in range(EMPTY):
            if number >= LEAST_EMPTY and perf_counter() - started > EMPTY_S:
                break
            times_us.append(self._launched([], before))
        return median(times_us)

    def _launched(self, places: Sequence[int], before: Callable[[], object]) -> float:
        self._go_on()
        self._say({"launch": list(places)})
        self._answer("ready")
        self._stop()
        before()
        self._go_on()
        started = perf_counter()
        self._say({})
        self._answer("done")
        took_s = perf_counter() - started
        self._stop()
        return took_s * 1e6

    def _limit_waiting(self) -> None:
        """For the rest of a message of which a part has been sent."""
        with socket.socket(fileno=os.dup(self._pipe.fileno())) as pipe:
            limit = struct.pack("@ll", PATIENCE_S, 0)
            pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    def _go_on(self) -> None:
        """Raises ``Rejected`` if it has not stood still."""
        if self._ran_ns is not None and self._running_ns() != self._ran_ns:
            raise Rejected(MOVES, "incorrect")
        self._ran_ns = None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def _stop(self) -> None:
        """The whole group of processes, and wait until it has stopped."""
        with suppress(ProcessLookupError, PermissionError, ChildProcessError):
            os.killpg(self._process.pid, signal.SIGSTOP)
            self._until_stopped()
        self._ran_ns = self._running_ns()
        for _ in range(STANDING):
            before, self._ran_ns = self._ran_ns, self._running_ns()
            if self._ran_ns == before:
                return
        raise Rejected(MOVES, "incorrect")

    def _until_stopped(self) -> None:
        states = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        deadline = perf_counter() + STOPPED_S
        while not os.waitid(os.P_PID, self._process.pid, states):
            if perf_counter() > deadline:  # something wakes it
                raise Rejected(MOVES, "incorrect")

    def _running_ns(self) -> int:
        """How long all threads of its group have run: signals may wake what is stopped."""
        return sum(_thread_ns(thread) for thread in _threads(self._process.pid))

    def _say(self, message: Mapping[str, Any]) -> None:
        if self._pipe.poll(0):  # it has ended, or answers what it was not asked
            self._answer("")
            raise Rejected(UNEXPECTED)
        with suppress(OSError):  # if it has ended, the answer will tell
            self._pipe.send_bytes(json.dumps(message).encode())

    def _answer(self, name: str, timeout_s: float = 0.0) -> Any:
        """What it says under this name; nothing of it is believed, and nothing of it is run."""
        timeout_s = timeout_s or self._deadlines.request_s
        try:
            if not self._pipe.poll(min(timeout_s, self._deadlines.left_s())):
                self._deadlines.left_s()
                raise Rejected(f"no answer within {timeout_s:g} s", "timeout")
            reply = json.loads(self._message())
        except (EOFError, ConnectionError) as error:
            raise Rejected(self._ended()) from error
        except (OSError, ValueError, RecursionError) as error:  # too long, or not JSON
            raise Rejected(UNEXPECTED) from error
        if isinstance(reply, dict) and "error" in reply:
            raise Rejected(str(reply["error"])[:300])
        if not isinstance(reply, dict) or reply.keys() != {name}:
            raise Rejected(UNEXPECTED)
        return reply[name]

    def _message(self) -> bytes:
        """What ``Connection.send_bytes`` has sent, all of which must come at once."""
        until = perf_counter() + PATIENCE_S
        (length,) = struct.unpack("!i", self._part(4, until))
        if not 0 <= length <= LONGEST:
            raise ValueError
        return self._part(length, until)

    def _part(self, size: int, until: float) -> bytes:
        found = b""
        while len(found) < size:
            if not self._pipe.poll(max(0.0, until - perf_counter())):
                raise ValueError
            more = os.read(self._pipe.fileno(), size - len(found))
            if not more:
                raise EOFError
            found += more
        return found

    def _ended(self) -> str:
        code, said = self.exit_code(), self._printed.last[:200]
        if code is None:
            return "its process goes on, and has closed its connection to the judge"
        how = f"exit code {code}" if code >= 0 else signal.strsignal(-code) or f"signal {-code}"
        if code < 0:
            with suppress(ValueError):  # a signal without a name
                how = signal.Signals(-code).name
        return f"its process ended ({how})" + (f": {said}" if said else "")


def _threads(group: int) -> Iterator[str]:
    """The folders of all threads in a group of processes."""
    for name in os.listdir("/proc"):  # noqa: PTH208  there are hundreds, and it is done often
        with suppress(OSError):  # it may have ended
            if name.isdigit() and os.getpgid(int(name)) == group:
                for thread in os.listdir(f"/proc/{name}/task"):  # noqa: PTH208
                    yield f"/proc/{name}/task/{thread}"


def _thread_ns(thread: str) -> int:
    with suppress(OSError, ValueError, IndexError):
        return int(_read(f"{thread}/schedstat").split()[0])
    return 0


def _read(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, 4096)
    finally:
        os.close(file)
