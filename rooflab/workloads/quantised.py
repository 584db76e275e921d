"""W4A16: a matrix product whose weights have 4 bits, and whose activations have 16."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.model.precision import UINT8
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    Hard,
    Inputs,
    Operand,
    Piece,
    Problem,
    extent,
    scattered,
)
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.rows import row_scales

ALL: Final = slice(None)

GROUP: Final = 128
"""Weights along K that share a scale."""

ZERO: Final = 8
"""The 4-bit number that stands for zero."""

WEIGHT_RMS: Final = sqrt(21.5)
"""Root mean square of -8 to 7, all as frequent."""

ONE: Final = "rows with one number"


@dataclass(frozen=True, kw_only=True)
class W4A16(Problem):
    """Weights of 4 bits: Frantar et al., "GPTQ", 2023; Lin et al., "AWQ", 2024.

    W has a row for each column of Y, of two weights per byte along K, the first one in the low four
    bits. A weight is (bits - 8) times the scale of its 128 neighbours along K; the last ones of a
    row may be fewer. Weights and scales stay the same, so kernels may lay them out anew before.
    """

    workload: ClassVar = "w4a16"
    title: ClassVar = "matrix product with 4-bit weights"
    formula: ClassVar = "Y = X·Wᵀ, W[n][k] = (bits[n][k] - 8)·scales[n][k / 128]"
    work: ClassVar = "2·M·N·K"
    sizes: ClassVar = ("m", "n", "k")
    arguments: ClassVar = ("m", "n", "k", "x", "w", "scales", "y")
    index_type: ClassVar = "int32"

    m: int = extent("rows of X and Y: tokens")
    n: int = extent("columns of Y")
    k: int = extent("length of the sums")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Activations, packed weights, scales, results."""
        given, groups = self.precision.input, -(-self.k // GROUP)
        packed = (self.n, -(-self.k // 2))
        return (
            Operand("x", (self.m, self.k), given),
            Operand("w", packed, UINT8, within=(0, 255), constant=True),
            Operand("scales", (self.n, groups), given, within=(1 / 16, 1 / 4), constant=True),
            Operand("y", (self.m, self.n), self.precision.output, "out"),
        )

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each product; scales are not counted."""
        return 2 * self.m * self.n * self.k

    @property
    def tolerance(self) -> float:
        """That of sums of K products, and of weights that kernels may round to 16 bits."""
        return self.precision.dot_product(self.k) + 0.5 * self.precision.multiply.epsilon

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of K random products has sqrt(K) times the size of one product."""
        return sqrt(self.k) * rms["x"] * rms["scales"] * WEIGHT_RMS

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The product in FP64 with the weights that the bits stand for."""
        return {"y": self._sum(arrays, inputs, lambda w: w)}

    def _sum(self, arrays: Any, inputs: Inputs, change: Callable[[Any], Any]) -> Any:
        """X times changed weights, over some of K at a time to limit the memory."""
        most = PIECE_ELEMENTS // max(inputs.shape("x")[0], inputs.shape("w")[0])
        step = max(1, most // GROUP) * GROUP
        total: Any = 0
        for start in range(0, self.k, step):
            x = inputs.part("x", (ALL, slice(start, start + step)))
            w = self._weights(arrays, inputs, start, start + x.shape[1])
            total = total + x @ change(w.T)
        return total

    def _weights(self, arrays: Any, inputs: Inputs, start: int, end: int) -> Any:
        """Those of W from ``start``, the first of a group, to ``end``."""
        groups = slice(start // GROUP, -(-end // GROUP))
        scales = inputs.part("scales", (ALL, groups))
        packed = inputs.part("w", (ALL, slice(start // 2, -(-end // 2)))).astype(arrays.int32)
        both = arrays.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
        each = scales.repeat(GROUP, axis=1)[:, : end - start]
        return (both[:, : end - start] - ZERO).astype(scales.dtype) * each

    # Verification: as of GEMM.

    @property
    def _product(self) -> Gemm:
        return Gemm(precision=self.precision, m=self.m, n=self.n, k=self.k)

    def _piece(self, rows: Any, columns: Any) -> Piece:
        weights = (columns, ALL)
        return Piece({"x": (rows, ALL), "w": weights, "scales": weights, "y": (rows, columns)})

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Everything of small problems, else sampled rows and columns."""
        for piece in self._product.pieces(draw):
            yield self._piece(*piece.select["c"][1:])

    @property
    def sketched(self) -> str:
        """Y of large products."""
        return "y" if self._product.sketched else ""

    def sketch(self, arrays: Any, inputs: Inputs, weights: Any) -> Any:
        """X·(Wᵀ·weights) in FP64."""
        return self._sum(arrays, inputs, lambda w: w @ weights)

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Rows of X that are zero, tiny or huge, and rows that show one weight of each column."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        scales = row_scales(self.precision)
        for title, rows in scattered(draw, self.m, [*sorted(scales), ONE]).items():
            x = 2 * numbers.random((len(rows), self.k)) - 1
            if title == ONE:
                x *= arrays.arange(self.k) == draw.choice((self.k - 1, draw.randrange(self.k)))
            else:
                x *= scales[title]
                title = f"rows of {title}"
            piece = self._piece(rows, ALL)
            yield Hard(title, {"x": (piece.select["x"], x)}, piece)
