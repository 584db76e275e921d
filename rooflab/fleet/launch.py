"""Launchers: how a member is started, heard and ended.

A launcher's ``start`` returns a ``Link``. The local one starts a process of this Python; ``Prefix``
puts words such as ``ssh HOST`` before the command. Nothing is started on a host that was not named.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import IO, Final, Protocol

from pydantic import BaseModel

from rooflab.errors import UsageError
from rooflab.files import package_root
from rooflab.fleet.messages import MAX_LINE, Message, decode, encode
from rooflab.measure.process import module_path

_CHUNK: Final = 2**16
_LAST_WORDS: Final = 2000
"""Bytes of standard error that explain why a member ended."""


class Lost(Exception):  # noqa: N818  an event
    """The member has ended, or says nothing any more; the text says which."""


class Link(Protocol):
    """A connection to one member."""

    def send(self, message: BaseModel) -> None:
        """Send a message; a member that has ended is noticed by ``receive``."""

    def receive(self, timeout_s: float) -> Message:
        """The next message. Raises ``Lost`` at the end, or after ``timeout_s`` without one."""

    def kill(self) -> None:
        """End the member, even if it is busy. May be called by another thread than the others."""

    def close(self) -> None:
        """End the member and free everything. May be called twice."""


class Launcher(Protocol):
    """Starts members."""

    @property
    def title(self) -> str:
        """For people, and for fleet.json."""

    @property
    def path(self) -> tuple[str, ...]:
        """Folders of modules that a member can use."""

    def start(self, host: str) -> Link:
        """Start a member on ``host``. Raises ``Lost`` if that is not possible."""


class ProcessLink:
    """A member that is a process here, or is reached through one."""

    def __init__(self, command: Sequence[str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  it stays open
        self._buffer = b""
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # Ctrl-C reaches only the coordinator
            )
        except OSError as error:
            self._errors.close()
            raise Lost(f"cannot start {command[0]}: {error.strerror}") from error

    def send(self, message: BaseModel) -> None:
        """Write a line; a broken pipe is noticed by ``receive``."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):
            self._process.stdin.write(encode(message))
            self._process.stdin.flush()

    def receive(self, timeout_s: float) -> Message:
        """The next message; lines that are none are skipped."""
        end = monotonic() + timeout_s
        while True:
            for line in self._lines():
                if message := decode(line):
                    return message
            self._read(end, timeout_s)

    def _lines(self) -> Iterator[bytes]:
        """Take the whole lines out of the buffer, one at a time."""
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            yield line

    def _read(self, end: float, timeout_s: float) -> None:
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        try:
            if not select.select([output], [], [], max(0.0, end - monotonic()))[0]:
                raise Lost(f"no message for {timeout_s:g} s; killed")
            data = os.read(output, _CHUNK)
        except OSError as error:
            raise Lost(f"{error.strerror}") from error
        if not data:
            raise Lost(self._why())
        self._buffer += data
        if len(self._buffer) > MAX_LINE:
            raise Lost("it sent a line without an end; killed")

    def _why(self) -> str:
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


MEMBER: Final = (
    "import sys; sys.path.append(sys.argv[1]); from rooflab.fleet.member import main; main()"
)
"""The package's folder comes last in the path, so that its files cannot hide other modules."""


class Local:
    """Members are processes of this Python on this host."""

    title = "local"

    @property
    def path(self) -> tuple[str, ...]:
        """This process's module search path."""
        return module_path()

    def start(self, host: str) -> Link:
        """Start one here."""
        return ProcessLink([sys.executable, "-P", "-c", MEMBER, str(package_root())])


@dataclass(frozen=True)
class Prefix:
    """Members are started by a command such as ``ssh {host}``; ``python`` is theirs."""

    words: str
    python: str = "python3"

    path: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """The prefix as it was given."""
        return self.words

    def __post_init__(self) -> None:
        """Raise ``UsageError`` if the prefix is no command."""
        try:
            words = shlex.split(self.words.format(host="HOST"))
        except (ValueError, KeyError, IndexError) as error:
            raise UsageError(
                f"--launch {self.words[:40]!r}: write a command, with {{host}} for the host's name"
            ) from error
        if not words:
            raise UsageError("--launch is empty: write a command, such as 'ssh {host}'")

    def start(self, host: str) -> Link:
        """Start one on ``host``, whose name is one word whatever it contains."""
        words = [word.format(host=host) for word in shlex.split(self.words)]
        return ProcessLink([*words, *shlex.split(self.python), "-m", "rooflab.fleet.member"])
