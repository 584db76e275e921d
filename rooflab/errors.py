"""The one exception tree. Every message says what was wrong and what to type next."""

from __future__ import annotations


class RooflabError(Exception):
    """A failure that a user can understand: one line, shown without a traceback."""

    exit_code = 1


class UsageError(RooflabError, ValueError):
    """The command line, a configuration file or a kernel's header asks for something impossible.

    It is a ``ValueError`` so that validators can raise it and pydantic collects them all.
    """

    exit_code = 2


class UnavailableError(UsageError):
    """Something that this machine lacks: a device, a driver, a package."""


class KernelError(RooflabError):
    """One kernel cannot be built or launched. It costs its own rows, never the sweep."""


class DeviceLost(RooflabError):  # noqa: N818  what has happened, not what was wrong
    """A kernel has left the device unusable for this process: only a fresh one can go on."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(f"{kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class RunError(RooflabError):
    """A run folder cannot be read or written."""
