"""All exceptions of rooflab. Every message has the cause and what to type next."""

from __future__ import annotations

import re
from typing import Final

_CONTROL: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Colours and weights for a terminal."""

_STEP: Final = re.compile(r"Failed in \w+ mode pipeline \(step: [^)]*\)$")
"""Numba's first line says in which of its steps an error was found; the next says which."""


class RooflabError(Exception):
    """A failure with a message for users: one line, shown without a traceback."""

    exit_code = 1


class UsageError(RooflabError, ValueError):
    """A command line, a configuration file or a kernel's header is wrong.

    It is a ``ValueError`` so that validators can raise it and pydantic collects all of them.
    """

    exit_code = 2


class UnavailableError(UsageError):
    """This machine lacks something: a device, a driver, a package."""


class KernelError(RooflabError):
    """One kernel cannot be built or launched. It fails only its own rows, not the sweep."""


class LaunchError(KernelError):
    """A kernel that compiles, and that CUDA cannot launch."""


ALONE: Final = "alone"
"""The status of ``DeviceLost`` if the kernel is not at fault, and needs a process of its own."""


class DeviceLost(RooflabError):  # noqa: N818  an event, not an error of the user
    """A kernel has made this process unusable for others: only a new process can continue."""

    def __init__(self, kernel: str, reason: str, status: str = "failed") -> None:
        super().__init__(f"{kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason
        self.status = status


class RunError(RooflabError):
    """A run folder cannot be read or written."""


def plain(message: str) -> str:
    """A message without colours for a terminal."""
    return _CONTROL.sub("", message)


def headline(message: str) -> str:
    """The line of a message that says most: the first one, or of Numba the one with the cause.

    A line that ends with a colon goes on with the next one. Numba's place in the source is added.
    """
    lines = [line.strip() for line in plain(message).splitlines() if line.strip()]
    if not lines:
        return ""
    start, cause = lines[0], lines[1:]
    found = _STEP.search(start)
    if not found or not cause:
        return start
    text = start[: found.start()] + cause[0]
    if text.endswith(":") and len(cause) > 1:
        text += f" {cause[1].removeprefix('>>> ')}"
    place = re.search(r'File "([^"]+)", line (\d+):', " ".join(cause))
    return f"{text} ({place[1]}:{place[2]})" if place else text
