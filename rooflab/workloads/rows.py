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
    Inputs,
    Operand,
    extent,
    in_and_out,
    scattered,
    setting,
)
from rooflab.workloads.parts import FAR, Parts


def row_scales(precision: Precision) -> dict[str, float]:
    """Half-widths of uniform numbers, by what they are.

    Times others of up to 100, large integers have sums that floating-point numbers cannot hold.
    """
    integers = 2.0 ** (6 * precision.input.bytes - 4)
    scale = integers if precision.integer else precision.input.scale
    small = {} if precision.integer else {"small numbers": 1 / scale}
    return {"zeros": 0.0, "large numbers": scale, **small}


def far_rows(precision: Precision) -> dict[str, tuple[float, float, float]]:
    """Rows whose exponentials overflow or vanish unless the maximum is subtracted."""
    far = FAR[precision.accumulate.bytes]
    return {
        f"rows near {far:g}": (1.0, far, 0.0),
        f"rows near -{far:g}": (1.0, -far, 0.0),
        "rows with one large number": (1.0, 0.0, far),
        "rows of zeros": (0.0, 0.0, 0.0),
    }


def ends_and_others(draw: random.Random, count: int, total: int) -> list[int]:
    """``count`` of ``total`` places, of three or more both ends: there loops go wrong."""
    first = draw.sample([0, total - 1, draw.randrange(total)], 3)
    return [*first, *(draw.randrange(total) for _ in range(count))][:count]


@dataclass(frozen=True, kw_only=True)
class RowsProblem(Parts):
    """Their base: the first operand is the matrix."""

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Some rows of each kind in ``hard_rows``."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        kinds, matrix = self.hard_rows(), self.operands[0]
        total, columns = matrix.shape
        for title, rows in scattered(draw, total, sorted(kinds)).items():
            scale, shift, peak = kinds[title]
            values = scale * (2 * numbers.random((len(rows), columns)) - 1) + shift
            places = arrays.asarray(ends_and_others(draw, len(rows), columns))
            values[arrays.arange(len(rows)), places] += peak
            piece = self._piece(rows)
            yield Hard(title, {matrix.name: (piece.select[matrix.name], values)}, piece)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """By title the half-width of uniform numbers, their mean, and what one number has more.

        Here rows that are zero, tiny or huge.
        """
        scales = row_scales(self.precision)
        return {f"rows of {title}": (scale, 0.0, 0.0) for title, scale in scales.items()}


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
    axes: ClassVar = ("m",)
    whole: ClassVar = ("x",)
    each: ClassVar = 2
    """One multiplication and one addition for each element of A."""

    m: int = extent("rows of A, elements of y")
    n: int = extent("columns of A, elements of x")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The matrix, the vector, the result."""
        return in_and_out(self.precision, a=(self.m, self.n), x=(self.n,), y=(self.m,))

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


@dataclass(frozen=True, kw_only=True)
class Normalisation(RowsProblem):
    """The base of softmax and norms: each element of a row depends on the whole row."""

    sizes: ClassVar = ("rows", "columns")
    stream_extent: ClassVar = "rows"
    axes: ClassVar = ("rows",)
    whole: ClassVar = ("w", "b", "dw", "db")
    roundings: ClassVar = 32
    """A mean or two, a root, some products; of a fast exponential 2 units in the last place."""

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
    each: ClassVar = 5
    """Comparison, subtraction, exponential, addition and scaling."""

    @property
    def tolerance(self) -> float:
        """A fast exponential has an error of 2 units in the last place, sum and scale of a few.

        A typical output is 1 / columns. In FP16 this is a subnormal number for wide rows, with a
        rounding error of half the smallest step.
        """
        return super().tolerance + 0.5 * self.precision.output.smallest * self.columns

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Exponentials that overflow or vanish unless the maximum is subtracted."""
        return far_rows(self.precision)

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
    each: ClassVar = 4
    """Square, addition and two multiplications."""

    epsilon: float = setting(1e-6, "keeps rows of zeros finite")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows, a weight for each column, the normalised rows."""
        shape = (self.rows, self.columns)
        return in_and_out(self.precision, x=shape, w=(self.columns,), y=shape)

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
class LayerNorm(RmsNorm):
    """Ba, Kiros and Hinton, "Layer Normalization", 2016."""

    workload: ClassVar = "layernorm"
    title: ClassVar = "layer norm of each row"
    formula: ClassVar = "y = w·(x - mean x) / √(mean((x - mean x)²) + epsilon) + b"
    work: ClassVar = "7·rows·columns"
    each: ClassVar = 7
    """Two sums, difference, square, two multiplications and a bias."""
    roundings: ClassVar = 128
    """In hard rows the mean is 55 standard deviations, and is itself rounded.

    A mean of the squares, less the square of the mean, is off by thousands of roundings there.
    """

    epsilon: float = setting(1e-5, "keeps rows of equal numbers finite")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The rows, a weight and a bias for each column, the normalised rows."""
        shape, each = (self.rows, self.columns), (self.columns,)
        return in_and_out(self.precision, x=shape, w=each, b=each, y=shape)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Also a mean that is far from zero."""
        return super().hard_rows() | {"rows far from zero": (1.0, 32.0, 0.0)}

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
    each: ClassVar = 4
    """Comparison, subtraction, exponential and addition."""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Logits, the column that each row should choose, the loss of each row."""
        x, y = in_and_out(self.precision, x=(self.rows, self.columns), y=(self.rows,))
        return (x, Operand("targets", (self.rows,), INT32, within=(0, self.columns - 1)), y)

    @property
    def units(self) -> Mapping[str, int]:
        """An exponential for each element, a logarithm for each row."""
        return {SFU: self.rows * (self.columns + 1)}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """The loss of a row of equal numbers: that of a certain row is nearly zero."""
        return log(self.columns)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Those of softmax, and rows whose target has a weight of almost one."""
        far = FAR[self.precision.accumulate.bytes]
        return far_rows(self.precision) | {TARGETS: (1.0, 0.0, far)}

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Those of softmax, with targets at both ends, and rows that are certain and right."""
        for one in super().hard(arrays, draw):
            where, x = one.values["x"]
            right = x.argmax(axis=1)
            if one.title != TARGETS:
                right = arrays.asarray(ends_and_others(draw, len(x), self.columns))
            targets = (one.piece.select["targets"], right)
            yield Hard(one.title, {"x": (where, x), "targets": targets}, one.piece)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Shifted by the maximum, so that nothing overflows."""
        x, targets = inputs["x"], inputs["targets"].astype(int)
        shifted = x - x.max(axis=1, keepdims=True)
        chosen = shifted[arrays.arange(len(x)), targets]
        return {"y": arrays.log(arrays.exp(shifted).sum(axis=1)) - chosen}
