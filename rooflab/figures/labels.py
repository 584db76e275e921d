"""Label placement: the first free one of candidate positions around an anchor. Deterministic."""

from __future__ import annotations

from collections.abc import Sequence
from math import cos, radians, sin
from typing import Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.text import Annotation
from numpy.typing import NDArray

from rooflab.figures.model import Label, Point, Spot
from rooflab.figures.style import theme

Polygon = NDArray[np.float64]
"""Corners, in pixels."""

Polygons = NDArray[np.float64]
"""Some of as many corners."""

PADDING: Final = 1.5
"""Points of empty space around every label."""

STRAY: Final = 4.0
"""Points by which another marker may be nearer to a marker's label than its own."""

_ALIGN: Final = {"left": 0.0, "bottom": 0.0, "center": -0.5, "right": -1.0, "top": -1.0}
_LABEL, _MARKER, _LINE = 1000.0, 30.0, 1.0


def overlaps(box: Polygon, others: Polygons) -> NDArray[np.bool_]:
    """Which convex polygons, or segments, overlap ``box``, by the separating axis theorem."""
    apart = np.zeros(len(others), bool)
    for dx, dy in np.roll(box, -1, axis=0) - box:
        on_box = dx * box[:, 1] - dy * box[:, 0]
        on_other = dx * others[:, :, 1] - dy * others[:, :, 0]
        apart |= (on_box.max() <= on_other.min(1)) | (on_other.max(1) <= on_box.min())
    sides = np.roll(others, -1, axis=1) - others
    for side in range(sides.shape[1]):
        dx, dy = sides[:, side, :1], sides[:, side, 1:]
        on_box = dx * box[:, 1] - dy * box[:, 0]
        on_other = dx * others[:, :, 1] - dy * others[:, :, 0]
        apart |= on_box.max(1) <= on_other.min(1)
        apart |= on_other.max(1) <= on_box.min(1)
    return ~apart


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
        self._areas, self._lines = _Obstacles(4), _Obstacles(2)
        self._markers: Polygon = np.empty((0, 2))

    def pixels(self, x: float, y: float) -> tuple[float, float]:
        """A data point in pixels."""
        px, py = self.axes.transData.transform((x, y))
        return float(px), float(py)

    def avoid_markers(self, xs: Sequence[float], ys: Sequence[float], diameter: float) -> None:
        """Keep labels off markers of ``diameter`` points; there is none at a NaN."""
        middles, half = self.transformed(xs, ys), diameter / 2 * self._pixels
        middles = middles[~np.isnan(middles[:, 0])]
        self._markers = np.concatenate([self._markers, middles])
        corners = np.array([(-half, -half), (half, -half), (half, half), (-half, half)])
        self._areas.add(middles[:, None] + corners, _MARKER)

    def avoid_line(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        """Keep labels off a polyline in data coordinates; a NaN is a gap."""
        points = self.transformed(xs, ys)
        self._lines.add(np.stack([points[:-1], points[1:]], axis=1), _LINE)

    def transformed(self, xs: Sequence[float], ys: Sequence[float]) -> Polygon:
        """Data points in pixels."""
        return np.asarray(self.axes.transData.transform(np.column_stack([xs, ys])))

    def place(self, label: Label) -> Annotation | None:
        """Write ``label`` at the best of its spots; None if it is left out."""
        choices, rotation = list(label.spots), label.rotation
        first = choices[0]
        note = self.axes.annotate(
            label.text,
            (first.x, first.y),
            xytext=(0, 0),
            textcoords="offset points",
            annotation_clip=False,
            color=label.colour,
            fontsize=label.size or theme().label,
            multialignment=label.align,
            path_effects=[withStroke(linewidth=2, foreground=theme().palette.background)],
        )
        extent = note.get_window_extent()
        best: tuple[float, Spot, Polygon] | None = None
        for spot in choices:
            box = self._box(spot, extent.width, extent.height, rotation)
            cost = self._cost(box, label.of, exact=label.required)
            if best is None or cost < best[0]:
                best = (cost, spot, box)
            if cost == 0:
                break
        assert best is not None
        cost, spot, box = best
        if cost > 0 and not label.required:
            note.remove()
            return None
        note.xy = (spot.x, spot.y)
        note.set_position((spot.dx, spot.dy))
        note.set(ha=spot.ha, va=spot.va, rotation=rotation, rotation_mode="anchor")
        self._areas.add(box[None], _LABEL)
        return note

    def _box(self, spot: Spot, width: float, height: float, rotation: float) -> Polygon:
        px, py = self.pixels(spot.x, spot.y)
        px, py = px + spot.dx * self._pixels, py + spot.dy * self._pixels
        pad = PADDING * self._pixels
        left, bottom = width * _ALIGN[spot.ha] - pad, height * _ALIGN[spot.va] - pad
        right, top = left + width + 2 * pad, bottom + height + 2 * pad
        c, s = cos(radians(rotation)), sin(radians(rotation))
        corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
        return np.array([(px + u * c - v * s, py + u * s + v * c) for u, v in corners])

    def _cost(self, box: Polygon, of: Point | None, *, exact: bool) -> float:
        """What ``box`` covers; if it need not be ``exact``, the first of it that is found."""
        (x0, y0), (x1, y1) = box.min(0), box.max(0)
        frame, cost = self._frame, 0.0
        if x0 < frame.x0 or y0 < frame.y0 or x1 > frame.x1 or y1 > frame.y1:
            cost += 2 * _LABEL
        if (exact or not cost) and of and self._strays(box, of):
            cost += _LABEL
        for obstacles in (self._areas, self._lines):
            if exact or not cost:
                cost += obstacles.cost(box)
        return cost

    def _strays(self, box: Polygon, of: Point) -> bool:
        """Whether another marker is clearly nearer to ``box`` than the one at ``of``."""
        low, high = box.min(0), box.max(0)

        def apart(markers: Polygon) -> NDArray[np.float64]:
            beside = np.maximum(np.maximum(low - markers, markers - high), 0.0)
            return np.asarray(np.hypot(beside[:, 0], beside[:, 1]))

        own = apart(np.array([self.pixels(*of)])) - STRAY * self._pixels
        return bool((apart(self._markers) < own).any())
