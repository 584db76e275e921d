"""Calling something in the program's main thread, between two of its own instructions."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Final

_PENDING: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)


class _Pending:
    """Python calls it in its main thread as soon as that runs Python, as it calls a signal's."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._began = self._cancelled = False
        self._ended = threading.Event()
        self.callback = _PENDING(self._call)

    def _call(self, _given: Any) -> int:
        with self._lock:
            if self._cancelled:
                return 0
            self._began = True
        try:
            self._function()
        finally:
            self._ended.set()
        return 0

    def wait(self, patience_s: float, *, late: bool) -> bool:
        """Until it has been called. Not called after so long, it is called ``late`` or never."""
        self._ended.wait(patience_s)
        with self._lock:
            self._cancelled = not self._began and not late
        if self._began:
            self._ended.wait()
        return self._began


_ALIVE: Final[list[_Pending]] = []
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
    pending = _Pending(function)
    _ALIVE.append(pending)
    if ctypes.pythonapi.Py_AddPendingCall(pending.callback, None):
        return False
    return pending.wait(patience_s, late=late)
