"""Workloads over a batch of images or matrices, and the first of them: blur."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rooflab.model.problem import Hard, Inputs, Operand, extent, in_and_out, scattered
from rooflab.workloads.parts import Parts

ONE: Final = "one number"
"""A title of hard inputs."""

BLUR_RMS: Final = 3 / 8
"""√Σw² of blur's weights: the size of blurred noise, relative to the noise."""


@dataclass(frozen=True, kw_only=True)
class Batch(Parts):
    """Their base: the first axis of every operand counts independent images or matrices."""

    axes: ClassVar = ("batch",)

    batch: int = extent("number of images or matrices", 1)

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Images or matrices of equal numbers, and with one number, which is not 0."""
        equal = self.hard_numbers()
        given = [one for one in self.operands if one.role == "in"]
        for title, places in scattered(draw, self.batch, [*equal, ONE], 1).items():
            parts, piece = {}, self._piece(places)
            for one in given:
                values = arrays.full((1, *one.shape[1:]), equal.get(title, 0.0))
                if title == ONE:
                    values[(0, *(draw.randrange(extent) for extent in one.shape[1:]))] = 1.0
                parts[one.name] = (piece.select[one.name], values)
            yield Hard(f"an image or matrix of {title}", parts, piece)

    def hard_numbers(self) -> dict[str, float]:
        """By title the number that all of an image or a matrix is."""
        return {"zeros": 0.0, "ones": 1.0}


@dataclass(frozen=True, kw_only=True)
class Blur(Batch):
    """A stencil: neighbouring outputs share inputs, so that caches decide how often each is read.

    The weights are (1 2 1; 2 4 2; 1 2 1) / 16. A pixel outside the image counts with the value of
    the nearest pixel inside.
    """

    workload: ClassVar = "blur"
    title: ClassVar = "3 x 3 blur of images"
    formula: ClassVar = "y[r, c] = Σ w[i, j]·x[r + i, c + j], i and j from -1 to 1"
    work: ClassVar = "17·batch·rows·columns"
    sizes: ClassVar = ("rows", "columns")
    each: ClassVar = 17
    """Nine multiplications and eight additions for each pixel."""
    roundings: ClassVar = 16
    """Nine of terms that are up to 8 / 3 of the size of a blurred random image.

    The weights are powers of two, so products are exact; only the eight additions and the
    conversion round. Sixteen epsilons are less than a wrong pixel or weight changes.
    """

    rows: int = extent("rows of an image")
    columns: int = extent("columns of an image")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The images and the blurred images, of (batch, rows, columns)."""
        shape = (self.batch, self.rows, self.columns)
        return in_and_out(self.precision, x=shape, y=shape)

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Tiles are parts of an image."""
        return (self.batch, self.rows, self.columns)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Blurred noise; a checkerboard cancels to zero."""
        return BLUR_RMS * rms["x"]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """(1 2 1) along the rows, then along the columns: their product is the nine weights."""
        return {"y": _smooth(arrays, _smooth(arrays, inputs["x"], 1), 2) / 16}


def _smooth(arrays: Any, x: Any, axis: int) -> Any:
    """The sum of each element, twice, and its two neighbours along ``axis``."""
    last = x.shape[axis] - 1
    places = arrays.arange(last + 1)
    before, after = arrays.maximum(places - 1, 0), arrays.minimum(places + 1, last)
    return x.take(before, axis=axis) + 2 * x + x.take(after, axis=axis)
