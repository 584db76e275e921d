"""The roofline in characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from string import ascii_lowercase, ascii_uppercase
from typing import Final

from rich.text import Text

from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.report.text import digits, precision_title

LEFT: Final = 10
"""Characters left of the plot: the axis and its numbers."""

LEAST_WIDTH, MOST_WIDTH, HEIGHT = 40, 120, 18
"""Characters of the whole chart; HEIGHT is that of the plot."""

COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "red")
LETTERS: Final = ascii_uppercase + ascii_lowercase
POSSIBLE: Final = (1e-12, 1e12)
"""TFLOP/s and FLOP/byte outside this range come from a damaged file."""

SEVERAL: Final = "*"
"""Points of several kernels at one place."""


@dataclass(frozen=True, slots=True)
class Glyphs:
    """Characters of the lines."""

    flat: str
    slope: str
    corner: str
    vertical: str
    tick: str


UNICODE: Final = Glyphs("─", "╱", "└", "│", "┤")
ASCII: Final = Glyphs("-", "/", "+", "|", "+")


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis over ``cells`` characters."""

    low: float
    high: float
    cells: int

    def cell(self, value: float) -> int:
        """The nearest character of ``value``, which may be outside."""
        share = (log10(value) - self.low) / (self.high - self.low)
        return round(share * (self.cells - 1))

    def value(self, cell: int) -> float:
        """The value in the middle of a character."""
        return float(10 ** (self.low + (self.high - self.low) * cell / max(1, self.cells - 1)))

    @property
    def decades(self) -> Iterator[float]:
        """The powers of ten on the axis."""
        for power in range(ceil(self.low - 1e-9), floor(self.high + 1e-9) + 1):
            yield 10.0**power


def charts(
    rows: Sequence[Measurement], roofline: Roofline, width: int, *, unicode: bool
) -> Iterator[Text]:
    """A chart per precision, of rows with FLOPs and operands in device memory.

    ``width`` is the terminal's; charts have LEAST_WIDTH to MOST_WIDTH characters.
    """
    low, high = POSSIBLE
    drawn = [
        row
        for row in rows
        if low < (row.tflops or 0) < high
        and low < (row.intensity or 0) < high
        and row.problem.resident
    ]
    for precision in dict.fromkeys(row.problem.precision for row in drawn):
        group = [row for row in drawn if row.problem.precision == precision]
        chart = _Chart(group, roofline, precision, width, UNICODE if unicode else ASCII)
        yield chart.text()


def _scale(values: Iterable[float], cells: int) -> Scale:
    """Around the values, at least one decade."""
    given = list(values)
    low, high = log10(min(given)), log10(max(given))
    short = max(0.0, 1.0 - (high - low)) / 2
    return Scale(low - short - 0.1, high + short + 0.1, cells)


class _Chart:
    """Characters and styles of one precision."""

    def __init__(
        self,
        rows: Sequence[Measurement],
        roofline: Roofline,
        precision: str,
        width: int,
        glyphs: Glyphs,
    ) -> None:
        self._rows, self._precision, self._glyphs = rows, precision, glyphs
        self._peak, self._bandwidth = roofline.compute(precision), roofline.bandwidth()
        ridge = roofline.ridge(precision)
        peak = [self._peak.value] if self._peak else []
        cells = max(LEAST_WIDTH, min(MOST_WIDTH, width)) - LEFT - 1
        self._x = _scale(
            [*(row.intensity or 0 for row in rows), *([ridge] if ridge else [])], cells
        )
        self._y = _scale([*map(_rate, rows), *peak], HEIGHT)
        self._kernels = list(dict.fromkeys(row.kernel for row in rows))
        self._cells: dict[tuple[int, int], tuple[str, str]] = {}

    def text(self) -> Text:
        """All lines: title, plot, axis, legend."""
        self._draw_roof()
        self._draw_points()
        what = f"{precision_title(self._precision)}, FLOP/s over FLOP/byte"
        chart = Text(f"{what}: {self._roofs()}\n", style="default")
        for row in reversed(range(HEIGHT)):
            chart.append(self._tick(row))
            for column in range(self._x.cells):
                character, style = self._cells.get((column, row), (" ", ""))
                chart.append(character, style=style or None)
            chart.append("\n")
        chart.append(self._axis())
        for kernel in self._kernels:
            chart.append(f"  {self._letter(kernel)} ", style=self._colour(kernel))
            chart.append(kernel)
        if any(character == SEVERAL for character, _ in self._cells.values()):
            chart.append(f"  {SEVERAL} several")
        chart.rstrip()
        return chart

    def _roofs(self) -> str:
        parts = [
            f"{ceiling.amount} {ceiling.provenance}"
            for ceiling in (self._peak, self._bandwidth)
            if ceiling
        ]
        return ", ".join(parts) or "no roof is known"

    def _draw_roof(self) -> None:
        """The attainable rate over each column."""
        before = None
        for column in range(self._x.cells):
            slope = _slope(self._bandwidth, self._x.value(column))
            peak = self._peak.value if self._peak else None
            rates = [rate for rate in (slope, peak) if rate]
            if not rates:
                return
            row = self._y.cell(min(rates))
            rising = slope is not None and slope == min(rates)
            # A steep slope skips rows: fill them, so that the line has no gaps.
            start = row if before is None else min(row, before + 1)
            for each in range(start, row + 1):
                self._put(column, each, self._glyphs.slope if rising else self._glyphs.flat, "dim")
            before = row

    def _draw_points(self) -> None:
        there: dict[tuple[int, int], str] = {}
        for row in self._rows:
            place = (self._x.cell(row.intensity or 0), self._y.cell(_rate(row)))
            if there.setdefault(place, row.kernel) != row.kernel:
                self._put(*place, SEVERAL, "bold")
            else:
                self._put(*place, self._letter(row.kernel), f"bold {self._colour(row.kernel)}")

    def _put(self, column: int, row: int, character: str, style: str) -> None:
        if 0 <= row < HEIGHT and 0 <= column < self._x.cells:
            self._cells[column, row] = (character, style)

    def _tick(self, row: int) -> str:
        """The axis of one line, with the power of ten that belongs there."""
        for decade in self._y.decades:
            if self._y.cell(decade) == row:
                return f"{_flops(decade):>{LEFT - 2}} {self._glyphs.tick}"
        return " " * (LEFT - 1) + self._glyphs.vertical

    def _axis(self) -> str:
        """The lower axis, its powers of ten, and what they are."""
        line = [self._glyphs.flat] * self._x.cells
        numbers = [" "] * (self._x.cells + LEFT)
        for decade in self._x.decades:
            column, name = self._x.cell(decade), f"{decade:g}"
            line[column] = self._glyphs.tick if self._glyphs is ASCII else "┬"
            start = min(LEFT + column, len(numbers) - len(name))
            numbers[start : start + len(name)] = name
        corner = " " * (LEFT - 1) + self._glyphs.corner
        numbers_text = "".join(numbers)[: LEFT + self._x.cells].rstrip()
        return f"{corner}{''.join(line)}\n{numbers_text}\n"

    def _letter(self, kernel: str) -> str:
        return LETTERS[self._kernels.index(kernel) % len(LETTERS)]

    def _colour(self, kernel: str) -> str:
        return COLOURS[self._kernels.index(kernel) % len(COLOURS)]


def _rate(row: Measurement) -> float:
    return (row.tflops or 0.0) * 1e12


def _slope(bandwidth: Ceiling | None, intensity: float) -> float | None:
    return bandwidth.value * intensity if bandwidth else None


def _flops(value: float) -> str:
    """``10 T`` for 1e13 FLOP/s."""
    for power, prefix in ((12, "T"), (9, "G"), (6, "M")):
        if value >= 10**power:
            return f"{digits(value / 10**power, 1)} {prefix}"
    return digits(value, 1)
