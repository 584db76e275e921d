"""Writes Markdown tables."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Final

_SPECIAL = "\\|*_`<>[]!#~&"

MOST_LINES: Final = 1000
"""Lines of a table: GitHub refuses a summary of more than 1 MiB."""

Escape = Callable[[str], str]


def escape(text: str) -> str:
    """``text`` with all markup of Markdown and HTML escaped."""
    return "".join(f"\\{c}" if c in _SPECIAL else c for c in " ".join(text.split()))


_FOUND_BY_GITHUB: Final = re.compile(
    r"\\#|[@$]|:(?=//|[\w+\\-]+:)|(?<=www)\.|(?<=GH)-(?=\d)", re.IGNORECASE
)


def escape_for_github(text: str) -> str:
    """``escape``, and nothing becomes a link, a mention, an issue, an emoji or a formula.

    GitHub looks for these in each piece of plain text; a tag divides the text.
    """
    return _FOUND_BY_GITHUB.sub(r"<span>\g<0></span>", escape(text))


def bullets(lines: Iterable[str], escape: Escape = escape) -> str:
    """A list of untrusted lines."""
    return "".join(f"- {escape(line)}\n" for line in lines)


def table(
    headings: Sequence[str],
    aligned: Sequence[str],
    body: Sequence[Sequence[str]],
    escape: Escape = escape,
    most: int | None = None,
) -> str:
    """A table of untrusted cells; ``aligned`` holds ``:--`` or ``--:`` per column.

    Of more than ``most`` lines the others are counted below it.
    """
    lines = [[escape(cell) for cell in headings], list(aligned)]
    lines += [[escape(cell) for cell in row] for row in body[:most]]
    rest = len(body) + 2 - len(lines)
    return "".join(f"| {' | '.join(row)} |\n" for row in lines) + f"\nand {rest} more\n" * (
        rest > 0
    )
