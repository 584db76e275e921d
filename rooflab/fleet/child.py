"""A process whose standard streams are pipes, here or on a node of a Ray cluster.

Ray copies this module to its nodes, so it uses nothing but Python's library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import IO, Final

_CHUNK: Final = 2**16
_FORGOTTEN_S: Final = 120.0
"""A member for which nobody asks so long is ended: a node may live on without its cluster."""

_LAST_WORDS: Final = 2000
"""Bytes of standard error that explain why a process ended."""


class Child:
    """The process of ``command``. Raises ``OSError`` if it cannot be started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  it stays open
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=environment,
                start_new_session=True,  # Ctrl-C reaches only the coordinator
            )
        except OSError:
            self._errors.close()
            raise

    def write(self, data: bytes) -> None:
        """Write to its standard input; that it has ended is noticed by ``read``."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(data)
            self._process.stdin.flush()

    def read(self, timeout_s: float) -> bytes | None:
        """What it has written; nothing at its end, None if it writes nothing for ``timeout_s``."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        if not select.select([output], [], [], timeout_s)[0]:
            return None
        return os.read(output, _CHUNK)

    def why(self) -> str:
        """How it ended, and its last words."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        code = self._process.returncode
        how = f"it died of signal {-code}" if code and code < 0 else f"it ended with code {code}"
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _LAST_WORDS))
        words = self._errors.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(words) if line.strip()), "")
        return f"{how}: {last[:200]}" if last else how

    def kill(self) -> None:
        """Kill it and whatever it has started here."""
        if self._process.poll() is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill it, wait for its end, close its pipes."""
        self.kill()
        self._process.wait()
        for file in (self._process.stdin, self._process.stdout, self._errors):
            with suppress(OSError, ValueError):
                if file:
                    file.close()


class Seat:
    """The actor on a node: it starts one member after the other, and relays their bytes.

    When it ends, for whatever reason, the member's standard input ends, and so does the member.
    """

    def __init__(self) -> None:
        self._child: Child | None = None
        self._asked = monotonic()

    def start(self, words: Sequence[str]) -> None:
        """Start this Python with ``words``, in place of what ran before."""
        self.end()
        self._asked = monotonic()
        self._child = Child([sys.executable, *words], _environment())
        Thread(target=self._watch, args=[self._child], daemon=True).start()

    def _watch(self, child: Child) -> None:
        while self._child is child:
            if monotonic() - self._asked > _FORGOTTEN_S:
                child.kill()
                return
            sleep(1)

    def ask(self, method: str, *arguments: object) -> object:
        """The result of a method of the member's ``Child``."""
        self._asked = monotonic()
        return getattr(self._child, method)(*arguments)

    def end(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            child.close()


def _environment() -> dict[str, str]:
    """This process's environment, without the limit on threads that Ray sets for its actors."""
    variables = dict(os.environ)
    first = Path("/proc/self/environ")  # as it was when this process started
    if first.exists() and b"OMP_NUM_THREADS=" not in first.read_bytes():
        variables.pop("OMP_NUM_THREADS", None)
    return variables
