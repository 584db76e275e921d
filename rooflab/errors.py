"""All exceptions of rooflab. Every message has the cause and what to type next."""

from __future__ import annotations


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


class DeviceLost(RooflabError):  # noqa: N818  an event, not an error of the user
    """A kernel has made the device unusable in this process: only a new process can continue."""

    def __init__(self, kernel: str, reason: str) -> None:
        super().__init__(f"{kernel}: {reason}")
        self.kernel = kernel
        self.reason = reason


class RunError(RooflabError):
    """A run folder cannot be read or written."""
