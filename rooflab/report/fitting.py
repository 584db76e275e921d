"""Tables that leave columns out where they do not fit: a figure that is cut is a wrong figure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Column, Table

NAME: Final = 11
"""Characters to which names are folded, with the gap, before a column is left out."""

ROOMY: Final = 20
"""Most characters of size and kernel together for wide gaps between columns."""


class Fitting(Table):
    """A table of figures; ``spare`` are headings that may be left out, the first one first."""

    def __init__(self, *, spare: Sequence[str], **options: Any) -> None:
        super().__init__(**options)
        self.spare = spare

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The table without as many of the spare columns as it takes to fit."""
        columns = self.columns
        unlimited = options.update(max_width=10**4)
        try:
            for count in range(len(self.spare) + 1):
                kept = [c for c in columns if c.header not in self.spare[:count]]
                self.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
                least = sum(self._least(console, unlimited, column) for column in self.columns)
                if least + self._extra_width <= options.max_width:
                    break
            yield from super().__rich_console__(console, options)
        finally:
            self.columns = columns

    def _least(self, console: Console, options: ConsoleOptions, column: Column) -> int:
        most = self._measure_column(console, options, column).maximum
        return most if column.no_wrap else min(most, NAME)
