"""Writes Markdown tables."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = "\\|*_`<>[]!#~&"


def escape(text: str) -> str:
    """``text`` with all markup of Markdown and HTML escaped."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in " ".join(text.split()))


def table(headings: Sequence[str], aligned: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A table of untrusted cells; ``aligned`` holds ``:--`` or ``--:`` per column."""
    lines = [[escape(cell) for cell in headings], list(aligned)]
    lines += [[escape(cell) for cell in row] for row in body]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)
