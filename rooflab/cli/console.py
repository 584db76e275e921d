"""Output: data on stdout, messages on stderr, colours only on a terminal."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from rich.console import Console
from rich.markup import escape

LEAST_WIDTH: Final = 40
"""Characters per line of data: in fewer, even the figures that matter most would be cut off."""

WIDTH_WHEN_PIPED: Final = 120
"""Columns of a table if the output is not a terminal."""

LONGEST: Final = 500
"""Most characters of a message; longer messages are cut."""


def prepare() -> None:
    """Prevent errors of printing: missing streams, characters that the encoding lacks, invalid
    ``COLUMNS`` and ``LINES``."""
    for name in ("COLUMNS", "LINES"):
        if not re.fullmatch("[1-9][0-9]{0,3}", os.environ.get(name, "")):
            os.environ.pop(name, None)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  it stays open
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    log = logging.getLogger("rooflab")
    log.handlers = [_Handler()]
    log.propagate = False


class _Handler(logging.Handler):
    """Prints the library's warnings like those of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(_cut(" ".join(record.getMessage().split())))


def end_like_ctrl_c() -> None:
    """Let SIGTERM, which schedulers and ``timeout`` send, end a command as Ctrl-C does."""
    with suppress(ValueError):  # only the main thread may do this, and only it is interrupted
        signal.signal(signal.SIGTERM, signal.default_int_handler)


def ignore_interrupts() -> None:
    """Ignore further Ctrl-C: the remaining work is short, and its last line must be printed."""
    with suppress(ValueError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def ignores_interrupts() -> bool:
    """Whether a Ctrl-C was answered before."""
    return signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WHEN_PIPED
    file: Any = _Messages() if stderr else None
    return Console(stderr=stderr, file=file, width=width, highlight=False, emoji=False)


class _Messages:
    """Standard error, as it is now. What a full disk cannot hold is dropped: nobody needs it."""

    def write(self, text: str) -> int:
        return self._try(lambda: sys.stderr.write(text)) or 0

    def flush(self) -> None:
        self._try(sys.stderr.flush)

    def _try(self, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except OSError as error:
            silence("stderr")  # it would fail again when Python exits
            if isinstance(error, BrokenPipeError):
                raise

    def __getattr__(self, name: str) -> Any:
        return getattr(sys.stderr, name)


def out() -> Console:
    """The console for data: tables, exports, figures. A very narrow terminal wraps its lines."""
    console = _console(stderr=False)
    console.width = max(console.width, LEAST_WIDTH)
    return console


def err() -> Console:
    """The console for messages: progress, notes, warnings."""
    return _console(stderr=True)


def note(text: str) -> None:
    """Print a line of information."""
    err().print(_cut(text), style="dim", markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """Print what may be wrong and what to do."""
    err().print(f"[yellow]warning:[/] {escape(text)}", soft_wrap=True)


def fail(text: str) -> None:
    """Print the error of a failed command, its last line."""
    line = _cut(" ".join(text.split()))
    err().print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True)


def silence(name: str) -> None:
    """Drop all further output of the stream ``stdout`` or ``stderr``."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), getattr(sys, name).fileno())
    except (OSError, ValueError):
        setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123  it stays open


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"
