"""Label placement: the first free one of candidate positions around an anchor. Deterministic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import cos, hypot, radians, sin
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from numpy.typing import NDArray

from rooflab.plot.style import theme

Polygon = NDArray[np.float64]

PADDING: Final = 1.5
"""Points of empty space around every label."""

STRAY: Final = 4.0
"""Points by which another marker may be nearer to a marker's label than its own."""

_ALIGN: Final = {"left": 0.0, "bottom": 0.0, "center": -0.5, "right": -1.0, "top": -1.0}
_LABEL, _MARKER, _LINE = 1000.0, 30.0, 1.0


@dataclass(frozen=True, slots=True)
class Spot:
    """One candidate: a data point, an offset from it in points, and the text's alignment."""

    x: float
    y: float
    dx: float
    dy: float
    ha: str = "center"
    va: str = "center"


def around(x: float, y: float, prefer: str) -> Iterator[Spot]:
    """Spots around a marker, nearest first; ``prefer`` is the side, left or right, tried first."""
    side = 1 if prefer == "right" else -1
    for gap in (5.0, 9.0, 15.0, 22.0):
        for sign in (side, -side):
            ha = "left" if sign > 0 else "right"
            yield Spot(x, y, sign * gap, 0, ha)
            yield Spot(x, y, sign * gap * 0.8, gap * 0.6, ha, "bottom")
            yield Spot(x, y, sign * gap * 0.8, -gap * 0.6, ha, "top")
        yield Spot(x, y, 0, gap, va="bottom")
        yield Spot(x, y, 0, -gap, va="top")
    for gap in (30.0, 38.0):
        yield Spot(x, y, side * gap, 0, "left" if side > 0 else "right")


def overlap(a: Polygon, b: Polygon) -> bool:
    """Whether two convex polygons (or segments) overlap, by the separating axis theorem."""
    one, other = a.tolist(), b.tolist()  # of few points, for which numpy is slow
    for polygon in (one, other):
        for (x0, y0), (x1, y1) in zip(polygon, polygon[1:] + polygon[:1], strict=True):
            on_one = [(x1 - x0) * y - (y1 - y0) * x for x, y in one]
            on_other = [(x1 - x0) * y - (y1 - y0) * x for x, y in other]
            if max(on_one) <= min(on_other) or max(on_other) <= min(on_one):
                return False
    return True


class Labels:
    """The labels of one axes, and the objects that they must not overlap.

    Create it when the axes' position, limits and scales are final: all comparisons are in pixels.
    Add all markers and lines before the first label.
    """

    def __init__(self, axes: Axes) -> None:
        figure = axes.get_figure(root=True)
        assert figure is not None
        self.axes = axes
        self._pixels = figure.dpi / 72
        self._frame = axes.get_window_extent()
        self._taken: list[tuple[Polygon, float]] = []
        self._bounds: list[tuple[float, float, float, float]] = []
        self._markers: list[tuple[float, float]] = []

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """A data point in pixels."""
        px, py = self.axes.transData.transform((x, y))
        return float(px), float(py)

    def data(self, px: float, py: float) -> tuple[float, float]:
        """A pixel in data coordinates."""
        x, y = self.axes.transData.inverted().transform((px, py))
        return float(x), float(y)

    def avoid_marker(self, x: float, y: float, diameter: float) -> None:
        """Keep labels off a marker of ``diameter`` points."""
        (px, py), half = self.pixels(x, y), diameter / 2 * self._pixels
        self._markers.append((px, py))
        corners = [(-half, -half), (half, -half), (half, half), (-half, half)]
        self._take(np.array([(px + u, py + v) for u, v in corners]), _MARKER)

    def avoid_line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Keep labels off a polyline in data coordinates."""
        points = self.axes.transData.transform(np.column_stack([xs, ys]))
        for start, end in pairwise(points):
            self._take(np.array([start, end]), _LINE)

    def place(
        self,
        text: str,
        spots: Iterable[Spot],
        *,
        of: tuple[float, float] | None = None,
        required: bool = False,
        **style: Any,
    ) -> Annotation | None:
        """Write ``text`` at the first spot without an overlap.

        If there is none it is left out or, if ``required``, put at the spot of least overlap.
        ``of`` is the marker that it belongs to: at no other marker it would be nearer to.
        """
        choices = list(spots)
        rotation = style.pop("rotation", 0.0)
        style.setdefault("fontsize", theme().label)
        style.setdefault(
            "path_effects", [withStroke(linewidth=2, foreground=theme().palette.background)]
        )
        first = choices[0]
        note = self.axes.annotate(
            text,
            (first.x, first.y),
            xytext=(0, 0),
            textcoords="offset points",
            annotation_clip=False,
            **style,
        )
        extent = note.get_window_extent()
        best: tuple[float, Spot, Polygon] | None = None
        for spot in choices:
            box = self._box(spot, extent.width, extent.height, rotation)
            cost = self._cost(box) + (_LABEL if of and self._strays(box, of) else 0.0)
            if best is None or cost < best[0]:
                best = (cost, spot, box)
            if cost == 0:
                break
        assert best is not None
        cost, spot, box = best
        if cost > 0 and not required:
            note.remove()
            return None
        note.xy = (spot.x, spot.y)
        note.set_position((spot.dx, spot.dy))
        note.set(ha=spot.ha, va=spot.va, rotation=rotation, rotation_mode="anchor")
        self._take(box, _LABEL)
        return note

    def along(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        *,
        below: bool = False,
        gap: float = 2.5,
    ) -> tuple[float, list[Spot]]:
        """Angle on screen of a line between two data points, and spots above and below it.

        ``below`` tries those below first. ``gap`` is the distance from the line in points.
        """
        (x0, y0), (x1, y1) = self.pixels(*start), self.pixels(*end)
        length = max(hypot(x1 - x0, y1 - y0), 1e-9)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        spots = []
        for va, sign in (("top", -1), ("bottom", 1)) if below else (("bottom", 1), ("top", -1)):
            for step in (0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9):
                x, y = self.data(x0 + step * (x1 - x0), y0 + step * (y1 - y0))
                spots.append(Spot(x, y, -uy * gap * sign, ux * gap * sign, va=va))
        return float(np.degrees(np.arctan2(uy, ux))), spots

    def _box(self, spot: Spot, width: float, height: float, rotation: float) -> Polygon:
        px, py = self.pixels(spot.x, spot.y)
        px, py = px + spot.dx * self._pixels, py + spot.dy * self._pixels
        pad = PADDING * self._pixels
        left, bottom = width * _ALIGN[spot.ha] - pad, height * _ALIGN[spot.va] - pad
        right, top = left + width + 2 * pad, bottom + height + 2 * pad
        c, s = cos(radians(rotation)), sin(radians(rotation))
        corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
        return np.array([(px + u * c - v * s, py + u * s + v * c) for u, v in corners])

    def _cost(self, box: Polygon) -> float:
        (x0, y0), (x1, y1) = box.min(0), box.max(0)
        frame = self._frame
        outside = x0 < frame.x0 or y0 < frame.y0 or x1 > frame.x1 or y1 > frame.y1
        cost = 2 * _LABEL if outside else 0.0
        for (polygon, weight), (u0, v0, u1, v1) in zip(self._taken, self._bounds, strict=True):
            if u0 < x1 and x0 < u1 and v0 < y1 and y0 < v1 and overlap(box, polygon):
                cost += weight
        return cost

    def _strays(self, box: Polygon, of: tuple[float, float]) -> bool:
        """Whether another marker is clearly nearer to ``box`` than the one at ``of``."""
        (x0, y0), (x1, y1) = box.min(0), box.max(0)

        def apart(x: float, y: float) -> float:
            return hypot(max(x0 - x, 0.0, x - x1), max(y0 - y, 0.0, y - y1))

        own = apart(*self.pixels(*of)) - STRAY * self._pixels
        return any(apart(*marker) < own for marker in self._markers)

    def _take(self, polygon: Polygon, weight: float) -> None:
        self._taken.append((polygon, weight))
        # A horizontal or vertical line has no area: widen it for the quick test.
        (x0, y0), (x1, y1) = polygon.min(0) - 0.5, polygon.max(0) + 0.5
        self._bounds.append((float(x0), float(y0), float(x1), float(y1)))
