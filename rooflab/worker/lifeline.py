"""A process that ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(lifeline: int) -> None:
    """End this process when its parent ends, even while a kernel hangs in the main thread."""
    if sys.platform == "linux":
        # The system does it, even if a hanging kernel holds Python's global lock.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    def watch() -> None:
        while os.read(lifeline, 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
