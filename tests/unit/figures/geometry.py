"""Where the marks of a figure are: on the page by its artists, and in the SVG by its elements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias
from xml.etree import ElementTree

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import Affine2D
from test_plot import Box, check_texts, places

from rooflab import figures

SVG = "{http://www.w3.org/2000/svg}"
LINK = "{http://www.w3.org/1999/xlink}href"
NEAR = 2.2
WIDER = 0.06
"""Points, and share of its size, that a text's half may be larger in an SVG: it has no pixels."""

Points: TypeAlias = Any
"""An array of x and y."""


def check_png(figure: Figure) -> list[Box]:
    """That texts do not overlap, and that nothing is cut off by the page or a panel.

    Returns where the texts are, in pixels.
    """
    canvas: Any = FigureCanvasAgg(figure)
    canvas.draw()
    boxes = check_texts(figure, drawn=True)
    check_boxes(figure)
    check_edge(figure, np.asarray(canvas.buffer_rgba()))
    return boxes


def check_edge(figure: Figure, pixels: np.ndarray) -> None:
    """That the outermost pixels are empty."""
    paper = np.round(255 * np.array(to_rgba(figure.get_facecolor())))
    for side in (pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]):
        assert (side == paper).all(), "the figure is cut off"


def check_boxes(figure: Figure) -> None:
    """That panels and legends are on the page and apart, and markers inside of their panel."""
    page = figure.bbox
    boxes = [axes.get_window_extent() for axes in figure.axes]
    boxes += [legend.get_window_extent() for legend in figure.legends]
    for box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0, "outside the page"
        assert box.x1 <= page.width and box.y1 <= page.height, "outside the page"
    for one, other in combinations(boxes, 2):
        apart = one.x1 <= other.x0 or other.x1 <= one.x0 or one.y1 <= other.y0 or other.y1 <= one.y0
        assert apart, "panels and legends overlap"
    for axes in figure.axes:
        frame = axes.get_window_extent()
        for line in marked(axes):
            half = line.get_markersize() / 2 * figure.dpi / 72
            at = pixels_of(axes, line)
            assert (at - half >= frame.min).all() and (at + half <= frame.max).all(), "a cut marker"


def marked(axes: Axes) -> list[Line2D]:
    """The lines with markers."""
    return [line for line in axes.lines if line.get_marker() not in ("None", "")]


def pixels_of(axes: Axes, line: Line2D) -> Points:
    return axes.transData.transform(places(line))


def points(axes: Axes) -> list[tuple[float, float]]:
    """The data of all markers except the ridges."""
    lines = (line for line in marked(axes) if line.get_label() != "_ridge")
    return [(float(x), float(y)) for line in lines for x, y in places(line)]


def ridges(axes: Axes) -> list[tuple[float, float]]:
    lines = (line for line in axes.lines if line.get_label() == "_ridge")
    return [(float(places(line)[0, 0]), float(places(line)[0, 1])) for line in lines]


# SVG ---------------------------------------------------------------------------------------------


def check_svg(figure: Figure, boxes: list[Box], path: Path) -> None:
    """That the file has every text and marker of the artists at its place, and no other text.

    ``boxes`` are from ``check_png``.
    """
    figures.save(figure, path)
    root = ElementTree.parse(path).getroot()
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    inches = np.array([width, height]) / 72
    assert np.allclose(inches, figure.get_size_inches(), atol=1e-4)
    written = list(text_ink(root))
    for ink in written:
        assert ink.min() >= 0, "a text is cut off"
        assert ink[:, 0].max() <= width and ink[:, 1].max() <= height, "a text is cut off"
    assert len(written) == len(boxes)
    check_places(written, [text for text, _ in boxes], _in_svg(figure, _stack(boxes)))
    _check_markers(figure, root)


def _stack(boxes: list[Box]) -> Points:
    return np.stack([box for _, box in boxes])


def check_places(written: list[Points], names: list[str], boxes: Points) -> None:
    """That the ink of each text is inside the box of one text, and of each text only one."""
    middles = (boxes + np.roll(boxes, -1, axis=1)) / 2
    out = middles - boxes.mean(axis=1, keepdims=True)
    half = np.linalg.norm(out, axis=2)
    normals = out / half[..., None]
    room = NEAR + WIDER * half
    taken = []
    for ink in written:
        centre = (ink.min(0) + ink.max(0)) / 2
        far = ((centre - middles) * normals).sum(2).max(1)
        inside = np.flatnonzero(far <= 0)
        assert len(inside) == 1, f"{len(inside)} texts at {centre}"
        [i] = inside
        excess = ((ink[:, None] - middles[i]) * normals[i]).sum(2).max(0) - room[i]
        assert excess.max() <= 0, f"{names[i]!r} is {excess.max():.1f} points larger than its box"
        taken.append(i)
    assert len(set(taken)) == len(names), "two texts at one place"
    _check_apart([ink for ink, i in zip(written, taken, strict=True) if _upright(boxes[i])])


def _upright(box: Points) -> bool:
    return bool(np.ptp(box[:2, 1]) < 1e-6)


def _check_apart(inks: list[Points]) -> None:
    low, high = (np.array([reach(ink, 0) for ink in inks]) for reach in (np.min, np.max))
    for i in range(len(inks)):
        touching = ((low[i] < high) & (low < high[i])).all(axis=1)
        assert touching.sum() == 1, "texts overlap"


def _in_svg(figure: Figure, pixels: Points) -> Points:
    """From pixels, up, to points, down."""
    turned = pixels * [1, -1] + [0, figure.bbox.height]
    return turned * 72 / figure.dpi


def _check_markers(figure: Figure, root: ElementTree.Element) -> None:
    uses = [use for use in root.iter(f"{SVG}use") if "y" in use.attrib]
    at = np.array([(float(use.attrib["x"]), float(use.attrib["y"])) for use in uses])
    for axes in figure.axes:
        for line in marked(axes):
            for point in _in_svg(figure, pixels_of(axes, line)):
                assert np.abs(at - point).max(1).min() < 0.01, "a marker is not at its place"


def text_ink(root: ElementTree.Element) -> Iterator[Points]:
    """The points of the outlines of each text."""
    shapes = {
        node.attrib["id"]: _path(node) for node in root.iter(f"{SVG}path") if "id" in node.attrib
    }
    for group in root.iter(f"{SVG}g"):
        if group.attrib.get("id", "").startswith("text_"):
            yield np.concatenate(list(_ink(group, np.eye(3), shapes)))


def _ink(node: ElementTree.Element, outer: Points, shapes: dict[str, Points]) -> Iterator[Points]:
    matrix = outer @ _matrix(node.attrib.get("transform", ""))
    if node.tag == f"{SVG}path":
        yield _moved(_path(node), outer)
    elif node.tag == f"{SVG}use":
        yield _moved(shapes[node.attrib[LINK].removeprefix("#")], matrix)
    elif node.tag != f"{SVG}defs":
        for child in node:
            yield from _ink(child, matrix, shapes)


def _path(node: ElementTree.Element) -> Points:
    """The points of an outline, moved by its own transform; none for a space."""
    numbers = re.findall(r"-?\d[\d.]*(?:e-?\d+)?", node.attrib.get("d", ""))
    outline = np.array(numbers, dtype=float).reshape(-1, 2)
    return _moved(outline, _matrix(node.attrib.get("transform", "")))


def _moved(shape: Points, matrix: Points) -> Points:
    return shape @ matrix[:2, :2].T + matrix[:2, 2]


def _matrix(text: str) -> Points:
    """The matrix of a list of translations, rotations and scales."""
    matrix = Affine2D()
    for name, inside in reversed(re.findall(r"(\w+)\(([^)]*)\)", text)):
        values = [float(value) for value in re.split(r"[ ,]+", inside.strip())]
        getattr(matrix, "rotate_deg" if name == "rotate" else name)(*values)
    return matrix.get_matrix()
