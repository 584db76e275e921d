"""Label placement: the first free one of candidate positions around an anchor. Deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians, sin
from typing import Final

import numpy as np
from numpy.typing import NDArray

from rooflab.figures.model import DataPoint, Label, Panel, Spot

Polygon = NDArray[np.float64]
"""Corners, in points of type."""

Polygons = NDArray[np.float64]
"""Some of as many corners."""

PADDING: Final = 1.5
"""Points of empty space around every label."""

STRAY: Final = 4.0
"""Points by which another marker may be nearer to a marker's label than its own."""

BESIDE: Final = 6.0
"""Points from a bubble's edge up to which a label needs no line to it."""

AMBIGUOUS: Final = 8.0
"""Points by which another bubble must be farther from a label beside its own, without a line."""

_ALIGN: Final = {"left": 0.0, "bottom": 0.0, "center": -0.5, "right": -1.0, "top": -1.0}
_LABEL, _MARKER, _LINE = 1000.0, 30.0, 1.0


def overlaps(box: Polygon, others: Polygons) -> NDArray[np.bool_]:
    """Which convex polygons, or segments, overlap ``box``, by the separating axis theorem."""
    apart = np.zeros(len(others), bool)
    sides = (np.roll(others, -1, axis=1) - others).transpose(1, 2, 0)
    for dx, dy in [*(np.roll(box, -1, axis=0) - box), *sides[..., None]]:
        on_box = dx * box[:, 1] - dy * box[:, 0]
        on_other = dx * others[:, :, 1] - dy * others[:, :, 0]
        apart |= on_box.max(-1) <= on_other.min(-1)
        apart |= on_other.max(-1) <= on_box.min(-1)
    return ~apart


def gaps(box: Polygon, points: Polygon) -> NDArray[np.float64]:
    """How far each of the points is from the upright bounds of ``box``."""
    return np.asarray(np.hypot(*(points - np.clip(points, box.min(0), box.max(0))).T))


class _Obstacles:
    """Polygons of as many corners, each with what it costs to cover it."""

    def __init__(self, corners: int) -> None:
        self._polygons: Polygons = np.empty((0, corners, 2))
        self._weights: NDArray[np.float64] = np.empty(0)
        self._bounds: NDArray[np.float64] = np.empty((0, 4))

    def add(self, polygons: Polygons, weight: float) -> None:
        self._polygons = np.concatenate([self._polygons, polygons])
        self._weights = np.concatenate([self._weights, np.full(len(polygons), weight)])
        bounds = np.concatenate([polygons.min(1), polygons.max(1)], axis=1)
        self._bounds = np.concatenate([self._bounds, bounds])

    def cost(self, box: Polygon) -> float:
        """Of all that ``box`` covers."""
        (x0, y0), (x1, y1) = box.min(0), box.max(0)
        left, low, right, high = self._bounds.T
        near = np.flatnonzero((left < x1) & (x0 < right) & (low < y1) & (y0 < high))
        if not near.size:
            return 0.0
        return float(self._weights[near[overlaps(box, self._polygons[near])]].sum())


class Labels:
    """The labels of one panel, and what they must not overlap, all in points of type.

    Add all markers and lines before the first label.
    """

    def __init__(self, panel: Panel) -> None:
        self._panel = panel
        self._areas, self._lines, self._taken = _Obstacles(4), _Obstacles(2), _Obstacles(4)
        self._markers: Polygon = np.empty((0, 2))
        self._radii: NDArray[np.float64] = np.empty(0)
        for line in panel.lines:
            if line.avoided:
                self._avoid_line(line.points)
        for marks in panel.marks:
            if marks.around >= 0:
                self._avoid_markers(marks.points, marks.size, marks.around)
            if marks.dash:
                self._avoid_line(marks.points)

    def _places(self, points: Sequence[DataPoint]) -> Polygon:
        panel, (xs, ys) = self._panel, np.asarray(points, float).T
        places = []
        for axis, values, inches in (
            (panel.x, xs, panel.cell.width),
            (panel.y, ys, panel.cell.height),
        ):
            low, high = axis.limits
            if axis.log:
                values, low, high = np.log10(values), np.log10(low), np.log10(high)
            places.append(72 * inches * (values - low) / (high - low))
        return np.column_stack(places)

    def _avoid_markers(self, points: Sequence[DataPoint], size: float, around: float) -> None:
        middles, half = self._places(points), (size + around) / 2
        middles = middles[~np.isnan(middles[:, 0])]
        self._markers = np.concatenate([self._markers, middles])
        self._radii = np.concatenate([self._radii, np.full(len(middles), size / 2)])
        corners = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
        self._areas.add(middles[:, None] + corners, _MARKER)

    def _avoid_line(self, points: Sequence[DataPoint]) -> None:
        places = self._places(points)
        self._lines.add(np.stack([places[:-1], places[1:]], axis=1), _LINE)

    def place(
        self, label: Label, width: float, height: float, *, apart: bool = False
    ) -> Spot | None:
        """The best spot of ``label``, a text of this size; None if it is left out.

        If labels must be ``apart``, one that is required overlaps no other and is in the frame.
        """
        best: tuple[float, Spot, Polygon] | None = None
        for spot in label.spots:
            box = self._box(spot, width, height, label.rotation)
            if apart and (self._outside(box) or self._taken.cost(box)):
                continue
            of = label.of if label.leader is None else None
            cost = self._cost(box, of, exact=label.required)
            if cost == 0 and (line := self._leader(box, label)):
                cost += self._taken.cost(np.array(line))
            elif cost == 0:
                cost += _LABEL * self._ambiguous(box, label)
            if best is None or cost < best[0]:
                best = (cost, spot, box)
            if cost == 0:
                break
        if best is None or (best[0] > 0 and not label.required):
            return None
        self._taken.add(best[2][None], _LABEL)
        if line := self._leader(best[2], label):
            self._lines.add(np.array([line]), _LINE)
        return best[1]

    def leader(
        self, label: Label, spot: Spot, width: float, height: float
    ) -> tuple[DataPoint, DataPoint] | None:
        """The line from a label that is far from its bubble, in points; None if it is beside it."""
        return self._leader(self._box(spot, width, height, label.rotation), label)

    def _leader(self, box: Polygon, label: Label) -> tuple[DataPoint, DataPoint] | None:
        if label.leader is None or label.of is None:
            return None
        middle = np.array(self._panel.place(*label.of))
        near = np.clip(middle, box.min(0), box.max(0))
        apart = float(np.hypot(*(near - middle)))
        if apart < label.leader + BESIDE:
            return None
        edge = middle + (near - middle) * max(0.0, label.leader - 1) / apart
        return (float(near[0]), float(near[1])), (float(edge[0]), float(edge[1]))

    def _box(self, spot: Spot, width: float, height: float, rotation: float) -> Polygon:
        px, py = self._panel.place(spot.x, spot.y)
        px, py = px + spot.dx, py + spot.dy
        left, bottom = width * _ALIGN[spot.ha] - PADDING, height * _ALIGN[spot.va] - PADDING
        right, top = left + width + 2 * PADDING, bottom + height + 2 * PADDING
        c, s = cos(radians(rotation)), sin(radians(rotation))
        corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
        return np.array([(px + u * c - v * s, py + u * s + v * c) for u, v in corners])

    def _outside(self, box: Polygon) -> bool:
        (x0, y0), (x1, y1), cell = box.min(0), box.max(0), self._panel.cell
        return bool(x0 < 0 or y0 < 0 or x1 > 72 * cell.width or y1 > 72 * cell.height)

    def _cost(self, box: Polygon, of: DataPoint | None, *, exact: bool) -> float:
        """What ``box`` covers; if it need not be ``exact``, the first of it that is found."""
        cost = 2 * _LABEL * self._outside(box)
        if (exact or not cost) and of and self._strays(box, of):
            cost += _LABEL
        for obstacles in (self._areas, self._taken, self._lines):
            if exact or not cost:
                cost += obstacles.cost(box)
        return cost

    def _ambiguous(self, box: Polygon, label: Label) -> bool:
        """Whether a label beside its bubble, without a line to it, is almost as near to another."""
        if label.leader is None or label.of is None:
            return False
        own = np.array(self._panel.place(*label.of))
        middles, radii = self._markers, self._radii
        apart = np.hypot(*(middles - own).T) > label.leader + radii  # others are of its pile
        least = gaps(box, own) - label.leader + AMBIGUOUS
        return bool((apart & (gaps(box, middles) - radii < least)).any())

    def _strays(self, box: Polygon, of: DataPoint) -> bool:
        """Whether another marker is clearly nearer to ``box`` than the one at ``of``."""
        own = gaps(box, np.array(self._panel.place(*of))) - STRAY
        return bool((gaps(box, self._markers) < own).any())
