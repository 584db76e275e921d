"""How members are reached: started, heard and ended. Nothing is started on an unnamed host.

A launcher's ``start`` returns a ``Link``. The local one starts a process of this Python; ``Prefix``
puts words such as ``ssh HOST`` before the command; ``ray.Ray`` uses a cluster.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final, Protocol

from pydantic import BaseModel

from rooflab.devices.registry import ALL
from rooflab.errors import UsageError
from rooflab.files import package_root
from rooflab.fleet.child import Child
from rooflab.fleet.messages import MAX_LINE, Devices, Message, Open, decode, encode
from rooflab.worker.process import START_S, module_path

LOCAL: Final = "local"
"""The title of members of this host."""

UNNAMED: Final = ("here",)
"""The hosts of a command that has none in it."""

ALONE: Final = "alone"
TOGETHER: Final = "together"
PAIRS: Final = "pairs"
PHASES: Final = (ALONE, TOGETHER, PAIRS)

PROCESSES_ALONE: Final = 3
"""Processes on each device alone, if other phases follow: their spread is the noise."""


class MemberLost(Exception):  # noqa: N818  an event
    """The member has ended, or says nothing any more; the text says which."""


class Stream(Protocol):
    """A member's standard streams. Its methods are those of ``Child``; they may raise
    ``MemberLost`` too."""

    def write(self, data: bytes) -> None: ...  # noqa: D102
    def read(self, timeout_s: float) -> bytes | None: ...  # noqa: D102
    def why(self) -> str: ...  # noqa: D102
    def kill(self) -> None: ...  # noqa: D102
    def close(self) -> None: ...  # noqa: D102


_NO_ROOFLAB: Final = re.compile("No module named|[Nn]o such file|not found|cannot execute")
"""Last words of a Python, or of a shell, that has no rooflab or no such Python."""


class Link:
    """A connection to one member: messages are lines. ``way_out`` helps if it has no rooflab."""

    def __init__(self, stream: Stream, way_out: str = "") -> None:
        self._stream, self._way_out, self._buffer = stream, way_out, b""

    def send(self, message: BaseModel) -> None:
        """Send a message; a member that has ended is noticed by ``receive``."""
        self._stream.write(encode(message))

    def receive(self, timeout_s: float) -> Message:
        """The next message; lines that are none are skipped.

        Raises ``MemberLost`` at the end or after ``timeout_s``.
        """
        end = monotonic() + timeout_s
        while True:
            while b"\n" in self._buffer:
                line, self._buffer = self._buffer.split(b"\n", 1)
                if message := decode(line):
                    return message
            try:
                data = self._stream.read(max(0.0, end - monotonic()))
            except OSError as error:
                raise MemberLost(f"{error.strerror}") from error
            if data == b"":
                why = self._stream.why()
                raise MemberLost(why + self._way_out if _NO_ROOFLAB.search(why) else why)
            self._buffer += data or b""
            if len(self._buffer) > MAX_LINE:
                raise MemberLost("it sent a line without an end; killed")
            if data is None and monotonic() >= end:
                raise MemberLost(f"no message for {timeout_s:g} s; killed")

    def kill(self) -> None:
        """End the member, even if it is busy. May be called by another thread than the others."""
        self._stream.kill()

    def close(self) -> None:
        """End the member and free everything. May be called twice."""
        self._stream.close()


class Launcher:
    """Starts members, which find modules in the folders of ``path``. ``title`` is for people."""

    title: str
    path: tuple[str, ...] = ()

    def start(self, host: str, device: str) -> Link:
        """Start a member for a device of ``host``; raises ``MemberLost`` if it cannot."""
        raise NotImplementedError

    def seen(self, device: str) -> str:
        """What the member calls the device."""
        return device

    def gpus(self, host: str) -> list[str]:
        """The GPUs of ``host``; raises ``MemberLost`` if it does not answer."""
        link = self.start(host, ALL)
        try:
            link.send(Open(device=ALL, path=list(self.path)))
            reply = link.receive(START_S)
        finally:
            link.close()
        return reply.ids if isinstance(reply, Devices) else []


def _process(command: Sequence[str], way_out: str = "") -> Link:
    """A member that is a process here, or is reached through one."""
    try:
        return Link(Child(command), way_out)
    except OSError as error:
        raise MemberLost(f"cannot start {command[0]}: {error.strerror}") from error


MEMBER: Final = (
    "import sys; sys.path.append(sys.argv[1]); from rooflab.fleet.member import main; main()"
)
"""The package's folder comes last in the path, so that its files cannot hide other modules."""


class Local(Launcher):
    """Members are processes of this Python on this host."""

    title = LOCAL

    def __init__(self) -> None:
        self.path = module_path()

    def start(self, host: str, device: str) -> Link:
        """Start one here."""
        return _process([sys.executable, "-P", "-c", MEMBER, str(package_root())])


class Prefix(Launcher):
    """Members are started by a command such as ``ssh {host}``; ``python`` is theirs.

    Raises ``UsageError`` if it is no command.
    """

    def __init__(self, title: str, python: str = "python3") -> None:
        self.title, self._python = title, shlex.split(python)
        try:
            self._words = shlex.split(title)
            shlex.split(title.format(host="HOST"))
        except (ValueError, KeyError, IndexError) as error:
            raise UsageError(
                f"--launch {title[:40]!r}: write a command, with {{host}} for the host's name"
            ) from error
        if not self._words:
            raise UsageError("--launch is empty: write a command, such as 'ssh {host}'")

    def start(self, host: str, device: str) -> Link:
        """Start one on ``host``, whose name is one word whatever it contains."""
        words = [word.format(host=host) for word in self._words]
        way_out = f": name a Python that has rooflab on {host}, --python /path/of/python"
        return _process([*words, *self._python, "-m", "rooflab.fleet.member"], way_out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Which devices, and how to reach them.

    ``devices`` are those of each host; ``all`` is every GPU. With ``listed`` nobody named the
    hosts: they are those of a cluster, where nodes come and go. With ``mixed`` members may have
    another version of rooflab. ``phases`` are some of ``PHASES``, in order. ``repeats`` is the
    number of processes that measure on each device in the first phase, one after the other:
    their spread is the noise. If it is None, there is one, or PROCESSES_ALONE before other
    phases.
    """

    launcher: Launcher
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    listed: bool = False
    phases: tuple[str, ...] = (TOGETHER,)
    repeats: int | None = None
    mixed: bool = False

    def __post_init__(self) -> None:
        """Raise ``UsageError`` for unknown phases."""
        wrong = [phase for phase in self.phases if phase not in PHASES]
        if wrong or not self.phases or len(set(self.phases)) < len(self.phases):
            raise UsageError(
                f"--phases {','.join(self.phases)[:40]!r}: give each once of {', '.join(PHASES)}"
            )

    @property
    def processes(self) -> int:
        """Processes on each device in the first phase."""
        several = self.phases[0] == ALONE and len(self.phases) > 1
        return self.repeats or (PROCESSES_ALONE if several else 1)
