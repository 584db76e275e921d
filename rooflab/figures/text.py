"""Panels in characters."""

from __future__ import annotations

from itertools import cycle
from math import isnan, log10
from string import ascii_lowercase, ascii_uppercase
from textwrap import wrap
from typing import Final

from rich.text import Text

from rooflab.figures.model import Axis, DataPoint, Panel, log_limits

LEFT: Final = 10
"""Characters left of the plot: the axis and its numbers."""

LEAST_WIDTH, MOST_WIDTH, HEIGHT = 40, 120, 18
"""Characters of the whole chart; HEIGHT is that of the plot."""

COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
LETTERS: Final = ascii_uppercase + ascii_lowercase

SEVERAL: Final = "*"
"""Points of several kernels at one place."""

UNICODE: Final = tuple("─╱└│┤┬")
ASCII: Final = tuple("-/+|++")
"""Flat and sloping lines, the corner, the upright axis, and ticks of both axes."""


FLAT: Final = 5
"""Characters that a plot is high if its y axis says nothing."""


class _Chart:
    """Characters and styles of one panel, whose axes are logarithmic, or those of a strip."""

    def __init__(self, panel: Panel, width: int, *, unicode: bool) -> None:
        self._panel = panel
        glyphs = UNICODE if unicode else ASCII
        self._flat, self._slope, self._corner, self._upright, self._tick, self._below = glyphs
        self._columns = max(LEAST_WIDTH, min(MOST_WIDTH, width)) - LEFT - 1
        seen = [marks for marks in panel.marks if marks.rows or marks.name == "_ridge"]
        places = [p for marks in seen for p in marks.points if not isnan(p[0])]
        xs, ys = zip(*places, strict=True)
        log, self._height = panel.y.log, HEIGHT if panel.y.log else FLAT
        self._x = Axis(log_limits(xs, self._columns, 3, 3, 1.0)) if log else panel.x
        self._y = Axis(log_limits(ys, HEIGHT, 1, 1, 1.0)) if log else panel.y
        kernels = dict.fromkeys(m.name for m in panel.marks if m.rows)
        looks = zip(kernels, cycle(LETTERS), cycle(COLOURS), strict=False)
        self._looks = {kernel: (letter, colour) for kernel, letter, colour in looks}
        self._cells: dict[DataPoint, tuple[str, str]] = {}

    def text(self) -> Text:
        """All lines: title, plot, axis, legend."""
        self._draw_roofs()
        self._draw_points()
        roofs = ", ".join(dict.fromkeys(line.name for line in self._panel.lines if line.name))
        units = (a.title.rpartition("(")[2].rstrip(")") for a in (self._panel.y, self._panel.x))
        what = f"{self._panel.title}, {' over '.join(units)}: {roofs or 'no roof is known'}"
        head = wrap(what if self._panel.y.log else self._panel.x.title, LEFT + self._columns)
        chart = Text("".join(f"{line}\n" for line in head), style="default")
        ticks = {self._row(value): text for value, text in self._y.marks(self._height / 3)[0]}
        for row in reversed(range(self._height)):
            mark = self._tick if row in ticks else self._upright
            chart.append(f"{ticks.get(row, ''):>{LEFT - 2}} {mark}")
            for column in range(self._columns):
                character, style = self._cells.get((column, row), (" ", ""))
                chart.append(character, style=style or None)
            chart.append("\n")
        chart.append(self._axis())
        keys = [(letter, one, colour) for one, (letter, colour) in self._looks.items()]
        if any(character == SEVERAL for character, _ in self._cells.values()):
            keys.append((SEVERAL, "several", "default"))
        used = 0
        for letter, name, colour in keys:
            if used and used + 4 + len(name) > LEFT + self._columns:
                chart.append("\n")
                used = 0
            chart.append(f"  {letter} ", style=colour)
            chart.append(name)
            used += 4 + len(name)
        chart.rstrip()
        return chart

    def _column(self, x: float) -> int:
        return round(self._x.share(x) * (self._columns - 1))

    def _row(self, y: float) -> int:
        return round(self._y.share(y) * (self._height - 1))

    def _draw_roofs(self) -> None:
        """All but observed ones, which are near others.

        A steep line skips rows: they are filled, so that it has no gaps.
        """
        for line in self._panel.lines:
            if line.provenance not in ("derived", "measured"):
                continue
            (x0, y0), (x1, y1) = line.points[0], line.points[-1]
            if x0 == x1:
                for row in range(self._height):
                    self._put(self._column(x0), row, self._upright, "dim")
                continue
            steep = log10(y1 / y0) / log10(x1 / x0)
            before = None
            for column in range(max(0, self._column(x0)), self._column(x1) + 1):
                x = self._x.value(column / max(1, self._columns - 1))
                row = self._row(y0 * (max(x, x0) / x0) ** steep)
                for each in range(row if before is None else min(row, before + 1), row + 1):
                    self._put(column, each, self._slope if steep else self._flat, "dim")
                before = row

    def _draw_points(self) -> None:
        there: dict[DataPoint, str] = {}
        for marks in (marks for marks in self._panel.marks if marks.rows):
            for x, y in (point for point in marks.points if not isnan(point[0])):
                place = (self._column(x), self._row(y))
                if there.setdefault(place, marks.name) != marks.name:
                    self._put(*place, SEVERAL, "bold")
                else:
                    letter, colour = self._looks[marks.name]
                    self._put(*place, letter, f"bold {colour}")

    def _put(self, column: int, row: int, character: str, style: str) -> None:
        if 0 <= row < self._height and 0 <= column < self._columns:
            self._cells[column, row] = (character, style)

    def _axis(self) -> str:
        line = [self._flat] * self._columns
        numbers = [" "] * (self._columns + LEFT)
        for value, name in self._x.marks(self._columns / 8)[0]:
            column = self._column(value)
            line[column] = self._below
            start = min(LEFT + column, len(numbers) - len(name))
            numbers[start : start + len(name)] = name
        corner = " " * (LEFT - 1) + self._corner
        return f"{corner}{''.join(line)}\n{''.join(numbers)[: LEFT + self._columns].rstrip()}\n"


def chart(panel: Panel, width: int, *, unicode: bool) -> Text:
    """A panel; ``width`` is the terminal's: charts have LEAST_WIDTH to MOST_WIDTH characters."""
    return _Chart(panel, width, unicode=unicode).text()
