"""Workloads over independent rows of a matrix: softmax and RMS norm."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

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
    setting,
)


@dataclass(frozen=True, kw_only=True)
class RowsProblem(Problem):
    """Their base: x and y of (rows, columns)."""

    sizes: ClassVar = ("rows", "columns")
    stream_extent: ClassVar = "rows"

    rows: int = extent("independent rows")
    columns: int = extent("elements of a row")

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Every row, some at a time."""
        for (some,) in boxes((self.rows,), max(1, PIECE_ELEMENTS // self.columns)):
            index = (some, slice(None))
            yield Piece({"x": index, "y": index})

    def hard(self, arrays: Any, draw: random.Random) -> Sequence[Hard]:
        """Some rows of each kind in ``hard_rows``."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        kinds = self.hard_rows()
        found = []
        for title, rows in scattered(draw, self.rows, sorted(kinds)).items():
            scale, shift, peak = kinds[title]
            values = scale * (2 * numbers.random((len(rows), self.columns)) - 1) + shift
            values[:, draw.randrange(self.columns)] += peak
            index = (rows, slice(None))
            found.append(Hard(title, {"x": (index, values)}, Piece({"x": index, "y": index})))
        return found

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """By title the half-width of uniform numbers, their mean, and what is added to one."""
        raise NotImplementedError

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the rows."""
        return (self.rows,)


@dataclass(frozen=True, kw_only=True)
class Softmax(RowsProblem):
    """Three passes over a row by definition, one if the row stays on the chip."""

    workload: ClassVar = "softmax"
    title: ClassVar = "softmax of each row"
    formula: ClassVar = "y = exp(x - max x) / Σ exp(x - max x)"
    work: ClassVar = "5·rows·columns"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The logits and the probabilities."""
        shape = (self.rows, self.columns)
        return (
            Operand("x", shape, self.precision.input),
            Operand("y", shape, self.precision.output, "out"),
        )

    @property
    def flops(self) -> int:
        """Comparison, subtraction, exponential, addition and scaling, one each per element."""
        return 5 * self.rows * self.columns

    @property
    def tolerance(self) -> float:
        """A fast exponential has an error of 2 units in the last place, sum and scale of a few.

        A typical output is 1 / columns. In FP16 this is a subnormal number for wide rows, with a
        rounding error of half the smallest step.
        """
        return self.precision.rounding(32) + 0.5 * self.precision.output.smallest * self.columns

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Exponentials that overflow or vanish unless the maximum is subtracted."""
        far = 1000.0 if self.precision.accumulate.bytes == 8 else 110.0
        return {
            f"rows near {far:g}": (1.0, far, 0.0),
            f"rows near -{far:g}": (1.0, -far, 0.0),
            "rows with one large number": (1.0, 0.0, far),
            "rows of zeros": (0.0, 0.0, 0.0),
        }

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Shifted by the maximum, so that nothing overflows."""
        x = inputs["x"]
        powers = arrays.exp(x - x.max(axis=1, keepdims=True))
        return {"y": powers / powers.sum(axis=1, keepdims=True)}


@dataclass(frozen=True, kw_only=True)
class RmsNorm(RowsProblem):
    """Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019."""

    workload: ClassVar = "rmsnorm"
    title: ClassVar = "RMS norm of each row"
    formula: ClassVar = "y = w·x / √(mean(x²) + epsilon)"
    work: ClassVar = "4·rows·columns"
    arguments: ClassVar = ("rows", "columns", "epsilon", "x", "w", "y")

    epsilon: float = setting(1e-6, "keeps rows of zeros finite")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows, a weight for each column, the normalised rows."""
        shape = (self.rows, self.columns)
        return (
            Operand("x", shape, self.precision.input),
            Operand("w", (self.columns,), self.precision.input),
            Operand("y", shape, self.precision.output, "out"),
        )

    @property
    def flops(self) -> int:
        """Square, addition and two multiplications for each element."""
        return 4 * self.rows * self.columns

    @property
    def tolerance(self) -> float:
        """The mean, its root and two multiplications: a few roundings."""
        return self.precision.rounding(32)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Squares that overflow in FP16, and rows that depend on epsilon."""
        kinds = {
            "rows of large numbers": (300.0, 0.0, 0.0),
            "rows with one number": (0.0, 0.0, 9.0),
        }
        if self.epsilon:
            kinds["rows of zeros"] = (0.0, 0.0, 0.0)
            kinds["rows whose squares are below epsilon"] = (sqrt(self.epsilon), 0.0, 0.0)
        return kinds

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Each row over the root of its mean square, times the weights."""
        x = inputs["x"]
        mean = (x * x).mean(axis=1, keepdims=True)
        return {"y": inputs["w"] * x / arrays.sqrt(mean + self.epsilon)}
