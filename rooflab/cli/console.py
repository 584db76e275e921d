"""Two streams: stdout is data, stderr is narration. Colour only where a terminal wants it."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from contextlib import suppress
from typing import Final

from rich.console import Console

WIDTH_WHEN_PIPED: Final = 120
"""Columns of a table that goes to a file, where no terminal gives a width."""

LONGEST: Final = 500
"""Characters of a message; what is longer is cut."""


def prepare() -> None:
    """Let nothing that is printed fail: no missing stream, no character without an encoding, no
    width that is none."""
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
    """Warnings of the library, as the command line prints them."""

    def emit(self, record: logging.LogRecord) -> None:
        warn(_cut(" ".join(record.getMessage().split())))


def ignore_interrupts() -> None:
    """Let a second Ctrl-C change nothing: what is left is short, and ends with its last line."""
    with suppress(ValueError):  # not the main thread, which alone is interrupted
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WHEN_PIPED
    return Console(stderr=stderr, width=width, highlight=False, emoji=False)


def out() -> Console:
    """For data: tables, exports, figures."""
    return _console(stderr=False)


def err() -> Console:
    """For narration: progress, notes, warnings."""
    return _console(stderr=True)


def note(text: str) -> None:
    """One line on what happens."""
    err().print(_cut(text), style="dim", markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """What may be wrong and what to do."""
    err().print(f"[yellow]warning:[/] {_escaped(text)}", soft_wrap=True)


def fail(text: str) -> None:
    """The last line of a command that failed."""
    line = _cut(" ".join(text.split()))
    err().print(f"[bold red]error:[/] {_escaped(line)}", soft_wrap=True)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
