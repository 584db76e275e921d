"""GEMV: a matrix times a vector, the main operation in decoding a language model."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

from rooflab.model.precision import Precision
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    Hard,
    Inputs,
    Operand,
    Piece,
    Problem,
    boxes,
    extent,
    scattered,
)


def row_scales(precision: Precision) -> dict[str, float]:
    """Half-widths of uniform numbers, by what they are.

    Times others of up to 100, large integers have sums that floating-point numbers cannot hold.
    """
    integers = 2.0 ** (6 * precision.input.bytes - 4)
    scale = integers if precision.integer else precision.input.scale
    small = {} if precision.integer else {"small numbers": 1 / scale}
    return {"zeros": 0.0, "large numbers": scale, **small}


@dataclass(frozen=True, kw_only=True)
class Gemv(Problem):
    """Each element of the matrix is used once, so memory limits it at every size."""

    workload: ClassVar = "gemv"
    title: ClassVar = "matrix times vector"
    formula: ClassVar = "y = A·x, A row-major"
    work: ClassVar = "2·M·N"
    sizes: ClassVar = ("m", "n")

    m: int = extent("rows of A, elements of y")
    n: int = extent("columns of A, elements of x")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The matrix, the vector, the result."""
        given, result = self.precision.input, self.precision.output
        return (
            Operand("a", (self.m, self.n), given),
            Operand("x", (self.n,), given),
            Operand("y", (self.m,), result, "out"),
        )

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each element of A."""
        return 2 * self.m * self.n

    @property
    def tolerance(self) -> float:
        """The tolerance of sums of N products."""
        return self.precision.dot_product(self.n)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The product."""
        rows = inputs.shape("a")[0]
        step = max(1, PIECE_ELEMENTS // rows)
        total: Any = 0
        for start in range(0, self.n, step):
            some = slice(start, start + step)
            total = total + inputs.part("a", (slice(None), some)) @ inputs.part("x", (some,))
        return {"y": total}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of N random products has sqrt(N) times the size of one product."""
        return sqrt(self.n) * rms["a"] * rms["x"]

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Every row, some at a time."""
        for (rows,) in boxes((self.m,), max(1, PIECE_ELEMENTS // self.n)):
            yield Piece({"a": (rows, slice(None)), "y": (rows,)})

    def hard(self, arrays: Any, draw: random.Random) -> Sequence[Hard]:
        """Rows of A that are zero, tiny or huge."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        scales = row_scales(self.precision)
        found = []
        for title, rows in scattered(draw, self.m, sorted(scales)).items():
            values = scales[title] * (2 * numbers.random((len(rows), self.n)) - 1)
            index = (rows, slice(None))
            found.append(
                Hard(f"rows of {title}", {"a": (index, values)}, Piece({"a": index, "y": (rows,)}))
            )
        return found
