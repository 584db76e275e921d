"""Tables for the terminal: they leave columns out where they do not fit, and print many rows fast.

A figure that is cut is a wrong figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

NAME: Final = 11
"""Characters to which names are folded, with the gap, before a column is left out."""

ROOMY: Final = 20
"""Most characters of size and kernel together for wide gaps between columns."""


class Fitting(Table):
    """A table whose cells are texts; ``spare`` are headings that may be left out, in this order.

    A table of figures with a line below its head (``box.SIMPLE_HEAD``) that fits, and whose cells
    have one line each, is drawn here as rich draws it, which takes rich half a millisecond a row.
    """

    def __init__(self, *, spare: Sequence[str] = (), **options: Any) -> None:
        super().__init__(**options)
        self.spare = spare

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """What rich calls to print it: without as many of the spare columns as it takes to fit."""
        columns = self.columns
        texts = {id(column): [column.header, *column.cells] for column in columns}
        widths = {key: max(text_width(str(cell)) for cell in cells) for key, cells in texts.items()}
        kept = columns
        for count in range(len(self.spare) + 1):
            kept = [column for column in columns if column.header not in self.spare[:count]]
            least = [self._least(column, widths[id(column)]) for column in kept]
            if self._width(least) <= options.max_width:
                break
        fits = self._width([widths[id(column)] for column in kept]) <= options.max_width
        one_line = not any("\n" in str(cell) for column in kept for cell in texts[id(column)])
        if self.box is box.SIMPLE_HEAD and fits and one_line and not options.ascii_only:
            yield from self._plain(console, options, kept)
            return
        try:
            self.columns = [replace(column, _index=i) for i, column in enumerate(kept)]
            yield from super().__rich_console__(console, options)
        finally:
            self.columns = columns

    def _least(self, column: Column, width: int) -> int:
        return width if column.no_wrap else min(width, NAME - self.padding[1] - self.padding[3])

    def _width(self, widths: Sequence[int]) -> int:
        _, right, _, left = self.padding
        return 1 + sum(left + width + right + 1 for width in widths)

    def _plain(
        self, console: Console, options: ConsoleOptions, kept: Sequence[Column]
    ) -> Iterator[Segment]:
        columns = [_padded(column) for column in kept]
        width = self._width([text_width(column[0]) for column in columns])
        if self.title:
            style = str(self.title_style or "table.title")
            title = console.render_str(str(self.title), style=style)
            yield from console.render(title, options.update(width=width, justify="left"))
        _, right, _, left = self.padding
        start, between, end = (" " * count for count in (1 + left, right + 1 + left, right + 1))
        head, *body = (f"{start}{between.join(row)}{end}" for row in zip(*columns, strict=True))
        empty = Segment(" " * width + "\n")
        yield empty
        yield from _rendered(console, head, "bold")
        yield Segment(f" {'─' * (width - 2)} \n")
        for i, (row, line) in enumerate(zip(self.rows, body, strict=True), 1):
            yield from _rendered(console, line)
            if row.end_section and i < len(body):
                yield empty
        yield empty


class FigureTable(Fitting):
    """One with a line below its head and a bold title."""

    def __init__(self, title: str, spare: Sequence[str] = ()) -> None:
        super().__init__(
            spare=spare,
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
        )


def _padded(column: Column) -> list[str]:
    cells = [str(cell).expandtabs(8) for cell in (column.header, *column.cells)]
    lengths = [text_width(cell) for cell in cells]
    most = max(lengths)
    rooms = [" " * (most - length) for length in lengths]
    pairs = zip(cells, rooms, strict=True)
    return [room + cell if column.justify == "right" else cell + room for cell, room in pairs]


def text_width(cell: str) -> int:
    """The width of a cell's text, without markup."""
    return cell_len(Text.from_markup(cell).plain if "[" in cell else cell)


def _rendered(console: Console, line: str, style: str = "") -> Iterator[Segment]:
    return iter(Text.from_markup(line, style=style, emoji=False).render(console, end="\n"))
