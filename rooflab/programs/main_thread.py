"""Calling something in the program's main thread, between two of its own instructions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, Final

_PENDING: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
"""Python calls it in its main thread as soon as that runs Python, as it calls a signal's."""

_ALIVE: Final[list[object]] = []
"""Python may call them at any time later."""


def in_main_thread(
    function: Callable[[], object], patience_s: float, *, late: bool = False
) -> bool:
    """Call a function, which must not raise, in the main thread.

    False if that does not run Python for so long. Then it is not called, or with ``late`` as soon
    as it does.
    """
    if threading.current_thread() is threading.main_thread():
        function()
        return True
    pending: Future[None] = Future()

    def call(_given: Any) -> int:
        if pending.set_running_or_notify_cancel():
            try:
                function()
            finally:
                pending.set_result(None)
        return 0

    _ALIVE.append(callback := _PENDING(call))
    if ctypes.pythonapi.Py_AddPendingCall(callback, None):
        return False
    wait([pending], patience_s)
    waits = not (pending.running() or pending.done()) if late else pending.cancel()
    if not waits:
        wait([pending])
    return not waits
