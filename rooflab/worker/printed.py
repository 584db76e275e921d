"""What the code of kernels prints: kept in a file, so that it is not between a table's lines."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

PATIENCE_S: Final = 0.5

MOST_BYTES: Final = 2**20
"""What is kept: a kernel may print in every launch of every thread."""


MOST_TAIL_BYTES: Final = 4096
"""In which the last line is looked for."""


class Printed:
    """Collects the output of processes; the file exists once something is printed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines = 0
        self._tail = b""
        self._left = MOST_BYTES
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def last(self) -> str:
        """The last line that is not empty."""
        lines = self._tail.decode("utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def collect(self, reading: int) -> None:
        """Keep what comes out of a pipe, until its other end is closed."""
        thread = threading.Thread(target=self._collect, args=(reading,), daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self) -> None:
        """Wait for the rest, once the processes have ended; their own children may go on."""
        for thread in self._threads:
            if thread.is_alive():  # an interrupt may have come before it began
                thread.join(PATIENCE_S)

    def _collect(self, reading: int) -> None:
        with suppress(OSError):
            while data := os.read(reading, 2**16):
                with self._lock, suppress(OSError):
                    self._keep(data)
        os.close(reading)

    def _keep(self, data: bytes) -> None:
        self.lines += data.count(b"\n")
        self._tail = (self._tail + data)[-MOST_TAIL_BYTES:]
        if not self._left:
            return
        kept = data[: self._left]
        self._left -= len(kept)
        if not self._left:
            kept += b"\n(more was printed, and is not kept)\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        file = os.open(self.path, flags, 0o666)
        try:
            os.write(file, kept)
        finally:
            os.close(file)
