"""Two streams: stdout is data, stderr is narration. Colour only where a terminal wants it."""

from __future__ import annotations

import os
import sys

from rich.console import Console

WIDTH_WHEN_PIPED = 120
"""Columns of a table that goes to a file, where no terminal says how wide it is."""


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else WIDTH_WHEN_PIPED
    return Console(stderr=stderr, width=width, highlight=False, soft_wrap=False)


def out() -> Console:
    """For data: tables, exports, figures."""
    return _console(stderr=False)


def err() -> Console:
    """For narration: progress, notes, warnings."""
    return _console(stderr=True)


def note(text: str) -> None:
    """One line on what happens."""
    err().print(text, style="dim", markup=False, soft_wrap=True)


def warn(text: str) -> None:
    """One line on what may be wrong and what to do."""
    err().print(f"[yellow]warning:[/] {_escaped(text)}", soft_wrap=True)


def fail(text: str) -> None:
    """The last line of a command that failed."""
    err().print(f"[bold red]error:[/] {_escaped(text)}", soft_wrap=True)


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(text)
