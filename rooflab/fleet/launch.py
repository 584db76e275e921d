"""Launchers: how a member is started, heard and ended.

A launcher's ``start`` returns a ``Link``. The local one starts a process of this Python; ``Prefix``
puts words such as ``ssh HOST`` before the command. Nothing is started on a host that was not named.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from pydantic import BaseModel

from rooflab.errors import UsageError
from rooflab.files import package_root
from rooflab.fleet.child import Child
from rooflab.fleet.messages import MAX_LINE, Message, decode, encode
from rooflab.worker.process import module_path

LOCAL: Final = "local"
"""The title of members of this host."""

UNNAMED: Final = ("here",)
"""The hosts of a command that has none in it."""


class MemberLost(Exception):  # noqa: N818  an event
    """The member has ended, or says nothing any more; the text says which."""


class Link(Protocol):
    """A connection to one member."""

    def send(self, message: BaseModel) -> None:
        """Send a message; a member that has ended is noticed by ``receive``."""

    def receive(self, timeout_s: float) -> Message:
        """The next message. Raises ``MemberLost`` at the end or after ``timeout_s``."""

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
        """Start a member on ``host``. Raises ``MemberLost`` if that is not possible."""


class StreamLink:
    """The lines of a member that is a stream of bytes; the other methods of ``Link`` are missing.

    ``_read`` is ``Child.read``, and ``_why`` is ``Child.why``.
    """

    def __init__(self) -> None:
        self._buffer = b""

    def receive(self, timeout_s: float) -> Message:
        """The next message; lines that are none are skipped."""
        end = monotonic() + timeout_s
        while True:
            for line in self._lines():
                if message := decode(line):
                    return message
            data = self._read(max(0.0, end - monotonic()))
            if data is not None:
                self._add(data)
            elif monotonic() >= end:
                raise MemberLost(f"no message for {timeout_s:g} s; killed")

    def _lines(self) -> Iterator[bytes]:
        """Take the whole lines out of the buffer, one at a time."""
        while b"\n" in self._buffer:
            line, self._buffer = self._buffer.split(b"\n", 1)
            yield line

    def _add(self, data: bytes) -> None:
        if not data:
            raise MemberLost(self._why())
        self._buffer += data
        if len(self._buffer) > MAX_LINE:
            raise MemberLost("it sent a line without an end; killed")

    def _read(self, timeout_s: float) -> bytes | None:
        raise NotImplementedError

    def _why(self) -> str:
        raise NotImplementedError


_NO_ROOFLAB: Final = re.compile("No module named|[Nn]o such file|not found|cannot execute")
"""Last words of a Python, or of a shell, that has no rooflab or no such Python."""


class ProcessLink(StreamLink):
    """A member that is a process here, or is reached through one.

    ``way_out`` is what to do if there is no rooflab.
    """

    def __init__(self, command: Sequence[str], way_out: str = "") -> None:
        super().__init__()
        self._way_out = way_out
        try:
            self._child = Child(command)
        except OSError as error:
            raise MemberLost(f"cannot start {command[0]}: {error.strerror}") from error

    def send(self, message: BaseModel) -> None:
        """Write a line; a broken pipe is noticed by ``receive``."""
        self._child.write(encode(message))

    def kill(self) -> None:
        """Kill it and whatever it has started here."""
        self._child.kill()

    def close(self) -> None:
        """Kill it, wait for its end, close its pipes."""
        self._child.close()

    def _read(self, timeout_s: float) -> bytes | None:
        try:
            return self._child.read(timeout_s)
        except OSError as error:
            raise MemberLost(f"{error.strerror}") from error

    def _why(self) -> str:
        why = self._child.why()
        return why + self._way_out if _NO_ROOFLAB.search(why) else why


MEMBER: Final = (
    "import sys; sys.path.append(sys.argv[1]); from rooflab.fleet.member import main; main()"
)
"""The package's folder comes last in the path, so that its files cannot hide other modules."""


class Local:
    """Members are processes of this Python on this host."""

    title = LOCAL

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
        way_out = f": name a Python that has rooflab on {host}, --python /path/of/python"
        command = [*words, *shlex.split(self.python), "-m", "rooflab.fleet.member"]
        return ProcessLink(command, way_out)
