"""Processes that end with the one that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1

_KEEP: Final = "import os, sys; os.read(0, 1); os.killpg(int(sys.argv[1]), 9)"


def end_with_parent(lifeline: int) -> None:
    """End this process when its parent ends, even while a kernel hangs in the main thread."""
    if sys.platform == "linux":
        # The system does it, even if a hanging kernel holds Python's global lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    end_with_file(lifeline)


def end_with_file(descriptor: int) -> None:
    """End this process at the end of a file, such as a pipe whose writer has ended."""

    def watch() -> None:
        while os.read(descriptor, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


class Keeper:
    """A process that kills a group of processes when this one ends, even by SIGKILL.

    What ``end_with_parent`` does, code that nobody trusts could undo, and children do not take it
    over. A group must not be able to end its keeper.
    """

    def __init__(self, group: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _KEEP, str(group)],
            stdin=subprocess.PIPE,  # it reads the end of the file when this process has ended
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def end(self) -> None:
        """The group lives without it from now on."""
        self._process.kill()
        self._process.communicate()
