"""Tables with many rows for the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text


class PlainTable(Table):
    """A table with a line below its head, whose cells are texts.

    If it fits and each cell has one line, it is drawn here as rich draws it, which takes rich half
    a millisecond for each row.
    """

    def __init__(self, title: str) -> None:
        super().__init__(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Any]:
        """What rich calls to print it."""
        columns = [_padded(column) for column in self.columns]
        _, right, _, left = self.padding
        width = 1 + sum(left + _length(column[0]) + right + 1 for column in columns)
        lines = (cell for column in columns for cell in column if "\n" in cell)
        if width > options.max_width or options.ascii_only or next(lines, None):
            yield from super().__rich_console__(console, options)
            return
        title = console.render_str(str(self.title), style="bold")
        yield from console.render(title, options.update(width=width, justify="left"))
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


def _padded(column: Column) -> list[str]:
    """The head and the cells of a column, all of one length."""
    cells = [str(cell).expandtabs(8) for cell in (column.header, *column.cells)]
    lengths = [_length(cell) for cell in cells]
    most = max(lengths)
    rooms = [" " * (most - length) for length in lengths]
    pairs = zip(cells, rooms, strict=True)
    return [room + cell if column.justify == "right" else cell + room for cell, room in pairs]


def _length(cell: str) -> int:
    """The width of a cell's text, without markup."""
    return cell_len(Text.from_markup(cell).plain if "[" in cell else cell)


def _rendered(console: Console, line: str, style: str = "") -> Iterator[Segment]:
    return iter(Text.from_markup(line, style=style, emoji=False).render(console, end="\n"))
