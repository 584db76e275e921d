"""Workloads over the rows of a matrix: gemv, softmax, norms and cross entropy."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log, sqrt
from typing import Any, ClassVar, Final

from rooflab.model.precision import INT32, Precision
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    SFU,
    Hard,
    Index,
    Inputs,
    Operand,
    Piece,
    Problem,
    boxes,
    extent,
    in_and_out,
    scattered,
    setting,
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
class RowsProblem(Problem):
    """Their base: the first operand is the matrix, the last one has the result of each row."""

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the rows."""
        return self.operands[0].shape[:1]

    def _some(self, rows: Any) -> dict[str, Index]:
        """Some rows of the matrix and of the results."""
        first, *_, last = self.operands
        return {one.name: (rows, slice(None))[: len(one.shape)] for one in (first, last)}

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Every row, some at a time."""
        rows, columns = self.operands[0].shape
        for (some,) in boxes((rows,), max(1, PIECE_ELEMENTS // columns)):
            yield Piece(self._some(some))

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Some rows of each kind in ``hard_rows``."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        kinds, matrix = self.hard_rows(), self.operands[0]
        total, columns = matrix.shape
        for title, rows in scattered(draw, total, sorted(kinds)).items():
            scale, shift, peak = kinds[title]
            values = scale * (2 * numbers.random((len(rows), columns)) - 1) + shift
            values[:, draw.randrange(columns)] += peak
            piece = Piece(self._some(rows))
            yield Hard(title, {matrix.name: (piece.select[matrix.name], values)}, piece)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """By title the half-width of uniform numbers, their mean, and what is added to one."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Gemv(RowsProblem):
    """The main operation in decoding a language model: memory limits it at every size.

    Each element of the matrix is used once.
    """

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
        return in_and_out(self.precision, a=(self.m, self.n), x=(self.n,), y=(self.m,))

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
        step = max(1, PIECE_ELEMENTS // inputs.shape("a")[0])
        total: Any = 0
        for start in range(0, self.n, step):
            some = slice(start, start + step)
            total = total + inputs.part("a", (slice(None), some)) @ inputs.part("x", (some,))
        return {"y": total}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of N random products has sqrt(N) times the size of one product."""
        return sqrt(self.n) * rms["a"] * rms["x"]

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Rows of A that are zero, tiny or huge."""
        scales = row_scales(self.precision)
        return {f"rows of {title}": (scale, 0.0, 0.0) for title, scale in scales.items()}


@dataclass(frozen=True, kw_only=True)
class Normalisation(RowsProblem):
    """The base of softmax and norms: each element of a row depends on the whole row."""

    sizes: ClassVar = ("rows", "columns")
    stream_extent: ClassVar = "rows"

    rows: int = extent("independent rows")
    columns: int = extent("elements of a row")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows before and after."""
        shape = (self.rows, self.columns)
        return in_and_out(self.precision, x=shape, y=shape)


@dataclass(frozen=True, kw_only=True)
class Softmax(Normalisation):
    """Three passes over a row by definition, one if the row stays on the chip."""

    workload: ClassVar = "softmax"
    title: ClassVar = "softmax of each row"
    formula: ClassVar = "y = exp(x - max x) / Σ exp(x - max x)"
    work: ClassVar = "5·rows·columns"

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
class RmsNorm(Normalisation):
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
        return in_and_out(self.precision, x=shape, w=(self.columns,), y=shape)

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


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Normalisation):
    """Ba, Kiros and Hinton, "Layer Normalization", 2016."""

    workload: ClassVar = "layernorm"
    title: ClassVar = "layer norm of each row"
    formula: ClassVar = "y = w·(x - mean x) / √(mean((x - mean x)²) + epsilon) + b"
    work: ClassVar = "7·rows·columns"
    arguments: ClassVar = ("rows", "columns", "epsilon", "x", "w", "b", "y")

    epsilon: float = setting(1e-5, "keeps rows of equal numbers finite")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows, a weight and a bias for each column, the normalised rows."""
        shape, each = (self.rows, self.columns), (self.columns,)
        return in_and_out(self.precision, x=shape, w=each, b=each, y=shape)

    @property
    def flops(self) -> int:
        """Two sums, difference, square, two multiplications and a bias, one each per element."""
        return 7 * self.rows * self.columns

    @property
    def tolerance(self) -> float:
        """In hard rows the mean is 55 standard deviations, and is itself rounded.

        A mean of the squares, less the square of the mean, is off by thousands of roundings there.
        """
        return self.precision.rounding(128)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """A mean that is far from zero, squares that overflow in FP16, and the need of epsilon."""
        kinds = {
            "rows of large numbers": (300.0, 0.0, 0.0),
            "rows with one number": (0.0, 0.0, 9.0),
            "rows far from zero": (1.0, 32.0, 0.0),
        }
        if self.epsilon:
            kinds["rows of zeros"] = (0.0, 0.0, 0.0)
            kinds["rows whose squares are below epsilon"] = (sqrt(self.epsilon), 0.0, 0.0)
        return kinds

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Differences from the mean over the root of their mean square, weighted and shifted."""
        x = inputs["x"]
        off = x - x.mean(axis=1, keepdims=True)
        variance = (off * off).mean(axis=1, keepdims=True)
        scaled = inputs["w"] * off / arrays.sqrt(variance + self.epsilon)
        return {"y": scaled + inputs["b"]}


TARGETS: Final = "rows whose target is their large number"


@dataclass(frozen=True, kw_only=True)
class CrossEntropy(Normalisation):
    """The loss of a language model: a row for each token, a column for each word."""

    workload: ClassVar = "cross_entropy"
    title: ClassVar = "cross entropy of each row, forward"
    formula: ClassVar = "y = log Σ exp(x - max x) + max x - x[target]"
    work: ClassVar = "4·rows·columns"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Logits, the column that each row should choose, the loss of each row."""
        x, y = in_and_out(self.precision, x=(self.rows, self.columns), y=(self.rows,))
        return (x, Operand("targets", (self.rows,), INT32, within=(0, self.columns - 1)), y)

    @property
    def flops(self) -> int:
        """Comparison, subtraction, exponential and addition, one each per element."""
        return 4 * self.rows * self.columns

    @property
    def units(self) -> Mapping[str, int]:
        """An exponential for each element, a logarithm for each row."""
        return {SFU: self.rows * (self.columns + 1)}

    @property
    def tolerance(self) -> float:
        """That of softmax, whose sum this is; the logarithm makes errors smaller."""
        return self.precision.rounding(32)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """The loss of a row of equal numbers: that of a certain row is nearly zero."""
        return log(self.columns)

    def _some(self, rows: Any) -> dict[str, Index]:
        """Some rows of all operands."""
        return {one.name: (rows, slice(None))[: len(one.shape)] for one in self.operands}

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Exponentials that overflow or vanish unless the maximum is subtracted."""
        far = 1000.0 if self.precision.accumulate.bytes == 8 else 110.0
        return {
            f"rows near {far:g}": (1.0, far, 0.0),
            f"rows near -{far:g}": (1.0, -far, 0.0),
            "rows with one large number": (1.0, 0.0, far),
            TARGETS: (1.0, 0.0, far),
            "rows of zeros": (0.0, 0.0, 0.0),
        }

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Those of softmax, and rows that are certain and right."""
        for one in super().hard(arrays, draw):
            values = dict(one.values)
            if one.title == TARGETS:
                right = values["x"][1].argmax(axis=1)
                values["targets"] = (one.piece.select["targets"], right)
            yield Hard(one.title, values, one.piece)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Shifted by the maximum, so that nothing overflows."""
        x, targets = inputs["x"], inputs["targets"].astype(int)
        shifted = x - x.max(axis=1, keepdims=True)
        chosen = shifted[arrays.arange(len(x)), targets]
        return {"y": arrays.log(arrays.exp(shifted).sum(axis=1)) - chosen}
