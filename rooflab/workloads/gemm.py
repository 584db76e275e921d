"""GEMM: C = alpha · op(A) · op(B) + beta · C, row-major, ``batch`` of them back to back."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod, sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    Block,
    Hard,
    Inputs,
    Operand,
    Piece,
    Problem,
    Task,
    boxes,
    extent,
    parts,
    scattered,
    setting,
    spreading,
)
from rooflab.workloads.parts import ALL
from rooflab.workloads.rows import row_scales

LAYOUTS: Final = ("nn", "nt", "tn", "tt")
SPLITS: Final = ("rows", "columns")

WHOLE_FLOPS: Final = 4e9
"""Up to this work the whole product is compared, above it sampled rows and columns."""

BANDS: Final = 128
"""Number of bands: one row (and one column) of each is sampled, and both edges."""


@dataclass(frozen=True, kw_only=True)
class Gemm(Problem):
    """One matrix product, or a batch of them."""

    workload: ClassVar = "gemm"
    title: ClassVar = "matrix product"
    formula: ClassVar = "C = alpha·op(A)·op(B) + beta·C"
    work: ClassVar = "2·M·N·K·batch"
    sizes: ClassVar = ("m", "n", "k")
    arguments: ClassVar = ("m", "n", "k", "alpha", "a", "b", "beta", "c")
    index_type: ClassVar = "int32"

    m: int = extent("rows of C")
    n: int = extent("columns of C")
    k: int = extent("length of the sums")
    batch: int = extent("number of products", 1)
    layout: str = setting("nn", "row-major transposition of A and B: nt stores B as N×K", LAYOUTS)
    alpha: float = setting(1.0, "factor of the product")
    beta: float = setting(0.0, "factor of the old C")
    gpus: int = spreading(1, "GPUs of this host that share the product")
    split: str = spreading("rows", "the part of C that each GPU computes", SPLITS)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """A and B as stored; C, which is read if beta is not 0."""
        batch, m, n, k = self.batch, self.m, self.n, self.k
        given, result = self.precision.input, self.precision.output
        return (
            Operand("a", self._of_a(batch, m, k), given),
            Operand("b", self._of_b(batch, k, n), given),
            Operand("c", (batch, m, n), result, "inout" if self.beta else "out"),
        )

    def _of_a(self, z: Any, row: Any, k: Any) -> tuple[Any, Any, Any]:
        """In the order of A's axes, as it is stored."""
        return (z, row, k) if self.layout[0] == "n" else (z, k, row)

    def _of_b(self, z: Any, k: Any, column: Any) -> tuple[Any, Any, Any]:
        """In the order of B's axes, as it is stored."""
        return (z, k, column) if self.layout[1] == "n" else (z, column, k)

    @property
    def tasks(self) -> tuple[Task, ...]:
        """A product for each block of C, and the GPU that computes it.

        With ``split`` rows each GPU has its rows of A and C, and of B some columns, which move to
        all others; with columns A and B change roles. A GPU begins with what it has, and goes on in
        the order of the GPUs after it, so that each of them sends to another one.
        """
        gpus = range(self.gpus)
        owners = [(gpu, (gpu + step) % self.gpus) for gpu in gpus for step in gpus]
        return tuple(self._task(gpu, other) for gpu, other in owners)

    def _task(self, gpu: int, other: int) -> Task:
        """The block of C for which ``gpu`` needs what ``other`` has."""
        i, j = (gpu, other) if self.split == "rows" else (other, gpu)
        rows, columns = parts(self.m, self.gpus)[i], parts(self.n, self.gpus)[j]
        m, n = rows[1] - rows[0], columns[1] - columns[0]
        batch, k = (0, self.batch), (0, self.k)
        blocks = {
            "a": Block(i, self._of_a(batch, rows, k)),
            "b": Block(j, self._of_b(batch, k, columns)),
            "c": Block(gpu, (batch, rows, columns)),
        }
        return Task(gpu, replace(self, m=m, n=n, gpus=1), blocks)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gpus > min(self.m, self.n):
            raise UsageError(f"gpus = {self.gpus} are too many for {self.m}x{self.n}")

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each product of two elements."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def tolerance(self) -> float:
        """The tolerance of sums of K products."""
        return self.precision.dot_product(self.k)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The product in FP64, summed over slices of K to limit the memory of widened operands."""
        rows, columns = (prod(inputs.shape(name)) // self.k for name in ("a", "b"))
        step = max(1, PIECE_ELEMENTS // max(rows, columns))
        alpha, beta = map(self.precision.factor, (self.alpha, self.beta))
        total: Any = 0
        for start in range(0, self.k, step):
            a, b = self._slices(inputs, slice(start, start + step))
            total = total + a @ b
        return {"c": alpha * total + beta * inputs["c"] if beta else alpha * total}

    def _slices(self, inputs: Inputs, some: slice) -> tuple[Any, Any]:
        """A's columns and B's rows in a slice of K, whatever the layout."""
        a = inputs.part("a", self._of_a(ALL, ALL, some))
        b = inputs.part("b", self._of_b(ALL, some, ALL))
        return a.transpose(self._of_a(0, 1, 2)), b.transpose(self._of_b(0, 1, 2))

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of K random products has sqrt(K) times the size of one product."""
        return abs(self.alpha) * sqrt(self.k) * rms["a"] * rms["b"]

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """All of C for small problems; else one row, and one column, out of each of 128 bands.

        Corners and edges are always among them; of a batch the first, middle and last matrix.
        """
        if self.flops <= WHOLE_FLOPS:
            for z, i, j in boxes((self.batch, self.m, self.n)):
                yield self._piece(z, i, j)
            return
        some_rows, some_columns = _bands(draw, self.m), _bands(draw, self.n)
        for z in sorted({0, self.batch // 2, self.batch - 1}):
            matrix = slice(z, z + 1)
            for (j,) in boxes((self.n,), PIECE_ELEMENTS // len(some_rows)):
                yield self._piece(matrix, some_rows, j)
            for (i,) in boxes((self.m,), PIECE_ELEMENTS // len(some_columns)):
                yield self._piece(matrix, i, some_columns)

    @property
    def sketched(self) -> str:
        """C of large products."""
        exact = self.precision.integer and (self.alpha % 1 or self.beta % 1)
        return "" if self.flops <= WHOLE_FLOPS or exact else "c"

    def sketch(self, arrays: Any, inputs: Inputs, weights: Any) -> Any:
        """alpha·A·(B·W) + beta·C·W in FP64, in INT64 for integers."""
        alpha, beta = map(self.precision.factor, (self.alpha, self.beta))
        step = max(1, PIECE_ELEMENTS // (self.batch * max(self.m, self.n)))
        total: Any = 0
        for start in range(0, self.k, step):
            a, b = self._slices(inputs, slice(start, start + step))
            total = total + a @ (b @ weights)
        total = alpha * total
        if beta:
            for z, i in boxes((self.batch, self.m), max(1, PIECE_ELEMENTS // self.n)):
                total[z, i] += beta * (inputs.part("c", (z, i, ALL)) @ weights)
        return total

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Rows of A that are zero, tiny or huge, and rows that cancel with columns of B."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        scales = row_scales(self.precision)
        z = draw.randrange(self.batch)
        cancel = "sums that cancel"
        for title, rows in scattered(draw, self.m, [*sorted(scales), cancel]).items():
            a = 2 * numbers.random((1, len(rows), self.k)) - 1
            columns: Any = ALL
            b = {}
            if title == cancel:
                a = mirrored(arrays, a, -1)
                columns = sorted(draw.sample(range(self.n), min(8, self.n)))
                equal = mirrored(arrays, 2 * numbers.random((1, len(columns), self.k)) - 1, 1)
                b = {"b": equal.transpose(self._of_b(0, 2, 1))}
            else:
                a *= scales[title]
                title = f"rows of A with {title}"
            given = {"a": a.transpose(self._of_a(0, 1, 2)), **b}
            piece = self._piece(slice(z, z + 1), rows, columns)
            values = {name: (piece.select[name], value) for name, value in given.items()}
            yield Hard(title, values, piece)

    def _piece(self, z: Any, i: Any, j: Any) -> Piece:
        """Matrices ``z``, rows ``i`` and columns ``j`` of C, and the parts of A and B for them."""
        a, b = self._of_a(z, i, ALL), self._of_b(z, ALL, j)
        return Piece({"a": a, "b": b, "c": (z, i, j)})

    @property
    def macros(self) -> dict[str, int | str]:
        """Whether each operand is stored transposed."""
        return {
            "ROOFLAB_TRANSPOSE_A": int(self.layout[0] == "t"),
            "ROOFLAB_TRANSPOSE_B": int(self.layout[1] == "t"),
        }


def mirrored(arrays: Any, vectors: Any, sign: int) -> Any:
    """Vectors whose second half is the first one times ``sign``; the middle of odd ones is zero."""
    half = vectors.shape[-1] // 2
    first = vectors[..., :half]
    middle = arrays.zeros_like(vectors[..., : vectors.shape[-1] % 2])
    return arrays.concatenate([first, middle, sign * first], axis=-1)


def _bands(draw: random.Random, total: int) -> list[int]:
    """One index out of each of BANDS bands, with the first and the last."""
    edges = [total * band // BANDS for band in range(BANDS + 1)]
    inner = {draw.randrange(low, high) for low, high in pairwise(edges) if low < high}
    return sorted(inner | {0, total - 1})
