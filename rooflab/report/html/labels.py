"""Labels of lines within a panel: each goes where it covers least, never over another. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import cos, hypot, radians, sin
from typing import Final, Literal

from rooflab.report.html.markup import Markup, element
from rooflab.report.html.panel import BOTTOM, LEFT, RIGHT, place

Pixel = tuple[float, float]
Anchor = Literal["start", "mid", "end"]

HEIGHT: Final = 11
"""Pixels from one line of text to the next."""

_CHARACTER: Final = 6.4
"""The width of a character in wide fonts, with the larger type of narrow screens."""

_HALF: Final = 4.0
"""From the base line of a text to its middle."""

_HIGHEST: Final = 24.0
"""Above it is the title."""

_POINT, _LINE = 3.0, 1.0
"""What it costs to cover a marker or a line, per character."""

_SHARES: Final = {"start": 0.0, "mid": 0.5, "end": 1.0}


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a pixel, turned by ``angle`` degrees and then moved down by ``down``."""

    text: str
    at: Pixel
    anchor: Anchor
    roof: str
    angle: float = 0.0
    down: float = 0.0

    def cells(self) -> list[Pixel]:
        """The middles of its characters."""
        turn, count = radians(self.angle), len(self.text)
        first = 0.5 - _SHARES[self.anchor] * count
        up = self.down - _HALF
        return [
            (
                self.at[0] + along * cos(turn) - up * sin(turn),
                self.at[1] + along * sin(turn) + up * cos(turn),
            )
            for along in ((first + i) * _CHARACTER for i in range(count))
        ]

    def drawn(self) -> Markup:
        """The element."""
        x, y = self.at
        turned = (
            {"transform": f"translate({place(x)},{place(y)}) rotate({place(self.angle)})"}
            if self.angle
            else {"x": place(x)}
        )
        down = self.down if self.angle else y + self.down
        class_ = "halo" if self.anchor == "start" else f"{self.anchor} halo"
        return element(
            "text", self.text, class_=class_, **turned, y=place(down), data_roof=self.roof
        )


class Spots:
    """Pixels, sorted into squares: whether one is near is answered without looking at all."""

    def __init__(self, radius: float, spots: Iterable[Pixel] = ()) -> None:
        self._radius = radius
        self._squares: dict[tuple[int, int], set[Pixel]] = {}
        self.add(spots)

    def add(self, spots: Iterable[Pixel]) -> None:
        """More of them."""
        for x, y in spots:
            square = int(x // self._radius), int(y // self._radius)
            self._squares.setdefault(square, set()).add((round(x, 1), round(y, 1)))

    def near(self, spot: Pixel) -> bool:
        """Whether one of them is nearer than the radius."""
        x, y = spot
        column, line = int(x // self._radius), int(y // self._radius)
        return any(
            hypot(x - u, y - v) < self._radius
            for i in (column, column - 1, column + 1)
            for j in (line, line - 1, line + 1)
            for u, v in self._squares.get((i, j), ())
        )


class Labels:
    """The labels of one panel, placed one after the other."""

    def __init__(self, points: Iterable[Pixel], lines: Iterable[Sequence[Pixel]]) -> None:
        self._points = Spots(9, points)
        self._lines = Spots(5, (spot for line in lines for spot in _along(line)))
        self._taken = Spots(HEIGHT - 1)

    def place(self, candidates: Iterable[Sequence[Label]], later: float) -> Iterator[Markup]:
        """Draw the best candidate; nothing if each is over another label or out of the panel.

        ``later`` is what it costs to be one candidate later.
        """
        cells = {
            labels: found
            for labels in map(tuple, candidates)
            if self._free(found := [cell for label in labels for cell in label.cells()])
        }
        if cells:
            costs = {labels: self._cost(found) for labels, found in cells.items()}
            shifts = {labels: i * later for i, labels in enumerate(cells)}
            best = min(cells, key=lambda labels: costs[labels] + shifts[labels])
            self._taken.add(cells[best])
            yield from (label.drawn() for label in best)

    def _free(self, cells: Sequence[Pixel]) -> bool:
        inside = all(LEFT < x < RIGHT and _HIGHEST < y < BOTTOM - _HALF for x, y in cells)
        return inside and not any(map(self._taken.near, cells))

    def _cost(self, cells: Sequence[Pixel]) -> float:
        return sum(
            _POINT * self._points.near(cell) + _LINE * self._lines.near(cell) for cell in cells
        )


def stacked(
    texts: Sequence[tuple[str, str]],
    sides: Sequence[tuple[float, Anchor]],
    top: float,
    bottom: float,
) -> Iterator[list[Label]]:
    """Candidates for the texts of several lines, each with its provenance, one above the other.

    They are above ``top``, the highest line, or below ``bottom``, the lowest one.
    """
    above = top - 4 - HEIGHT * (len(texts) - 1)
    for shift in range(4):
        for y in (above - HEIGHT * shift, bottom + HEIGHT * (shift + 1)):
            for x, anchor in sides:
                yield [
                    Label(text, (x, y + HEIGHT * i), anchor, provenance)
                    for i, (text, provenance) in enumerate(texts)
                ]


def _along(line: Sequence[Pixel]) -> Iterator[Pixel]:
    """Pixels of a line, a few apart."""
    for (x0, y0), (x1, y1) in pairwise(line):
        steps = int(hypot(x1 - x0, y1 - y0) / 4) + 1
        for i in range(steps + 1):
            yield x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps


def brief(name: str, most: int = 28) -> str:
    """A name that fits beside a roof: its start and its end."""
    if len(name) <= most:
        return name
    end = (most - 1) // 2
    return f"{name[: most - 1 - end].rstrip()}…{name[-end:].lstrip()}"
