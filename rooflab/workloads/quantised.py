"""Matrix products of numbers in few bits, with scales: 4-bit weights, and blocks in FP8."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.model.precision import FP8_E4M3, FP32, PRECISIONS, UINT8, Precision
from rooflab.model.problem import Hard, Index, Inputs, Operand, Piece, scattered
from rooflab.workloads.linear import TokenProduct
from rooflab.workloads.parts import ALL
from rooflab.workloads.rows import row_scales

GROUP: Final = 128
"""Numbers along K that share a scale."""

ZERO: Final = 8
"""The 4-bit number that stands for zero."""

WEIGHT_RMS: Final = sqrt(21.5)
"""Root mean square of -8 to 7, all as frequent."""

ONE: Final = "rows with one number"
ONE_GROUP: Final = "rows with one scale"


@dataclass(frozen=True, kw_only=True)
class QuantisedProduct(TokenProduct):
    """Their base. The last group of a row may be shorter.

    Weights and their scales stay the same in all launches, so kernels may lay them out anew before.
    """

    group: ClassVar = GROUP
    work: ClassVar = "2·M·N·K"
    others: ClassVar[tuple[str, ...]] = ()
    """More titles of hard inputs."""

    @property
    def groups(self) -> int:
        """Groups along K."""
        return -(-self.k // GROUP)

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each product; scales are not counted."""
        return 2 * self.m * self.n * self.k

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The product in FP64 of the numbers that are meant."""
        return {"y": self._sum(arrays, inputs, lambda w: w)}

    @property
    def of_tokens(self) -> Precision:
        """A precision with the type of X."""
        return self.precision

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Rows of X that are zero, tiny or huge, and rows that show one weight of each column."""
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        scales = row_scales(self.of_tokens)
        titles = [*sorted(scales), ONE, *self.others]
        for title, rows in scattered(draw, self.m, titles).items():
            x = 2 * numbers.random((len(rows), self.k)) - 1
            piece = self._piece(rows, ALL)
            values = self._values(arrays, draw, title, piece)
            if title == ONE:
                x *= arrays.arange(self.k) == draw.choice((self.k - 1, draw.randrange(self.k)))
            elif title in scales:
                x *= scales[title]
                title = f"rows of {title}"
            yield Hard(title, {"x": (piece.select["x"], x), **values}, piece)

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """What else belongs to a title of ``hard``."""
        return {}


@dataclass(frozen=True, kw_only=True)
class W4A16(QuantisedProduct):
    """Weights of 4 bits: Frantar et al., "GPTQ", 2023; Lin et al., "AWQ", 2024.

    W has two weights per byte along K, the first one in the low four bits. A weight is (bits - 8)
    times the scale of its 128 neighbours along K.
    """

    workload: ClassVar = "w4a16"
    title: ClassVar = "matrix product with 4-bit weights"
    formula: ClassVar = "Y = X·Wᵀ, W[n][k] = (bits[n][k] - 8)·scales[n][k / 128]"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Activations, packed weights, scales, results."""
        given, packed = self.precision.input, (self.n, -(-self.k // 2))
        scales = (self.n, self.groups)
        return (
            Operand("x", (self.m, self.k), given),
            Operand("w", packed, UINT8, within=(0, 255), constant=True),
            Operand("scales", scales, given, within=(1 / 16, 1 / 4), constant=True),
            Operand("y", (self.m, self.n), self.precision.output, "out"),
        )

    @property
    def tolerance(self) -> float:
        """That of sums of K products, and of weights that kernels may round to 16 bits."""
        return self.precision.dot_product(self.k) + 0.5 * self.precision.multiply.epsilon

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of K random products has sqrt(K) times the size of one product."""
        return sqrt(self.k) * rms["x"] * rms["scales"] * WEIGHT_RMS

    def _weights(self, arrays: Any, inputs: Inputs, start: int, end: int) -> Any:
        """What the bits stand for."""
        groups = slice(start // GROUP, -(-end // GROUP))
        scales = inputs.part("scales", (ALL, groups))
        packed = inputs.part("w", (ALL, slice(start // 2, -(-end // 2)))).astype(arrays.int32)
        both = arrays.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)
        each = scales.repeat(GROUP, axis=1)[:, : end - start]
        return (both[:, : end - start] - ZERO).astype(scales.dtype) * each

    def _piece(self, rows: Any, columns: Any) -> Piece:
        weights = (columns, ALL)
        return Piece({"x": (rows, ALL), "w": weights, "scales": weights, "y": (rows, columns)})


@dataclass(frozen=True, kw_only=True)
class BlockGemm(QuantisedProduct):
    """Both in E4M3, as in DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.3.2.

    A scale is for 128 neighbours along K of a row of X, and for 128 x 128 of W. ``x_scales`` has a
    row for each group, as cuBLASLt and DeepGEMM take it. The precision is that of sums and results.
    """

    workload: ClassVar = "block_gemm"
    title: ClassVar = "matrix product in FP8 with scales of blocks"
    formula: ClassVar = "Y = Σ x[m][k]·x_scales[k / 128][m]·w[n][k]·w_scales[n / 128][k / 128]"
    others: ClassVar = (ONE_GROUP,)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Activations, weights, the scales of both, results."""
        of_x, of_w = (self.groups, self.m), (-(-self.n // GROUP), self.groups)
        limits = (0.0, 0.25)
        return (
            Operand("x", (self.m, self.k), FP8_E4M3),
            Operand("w", (self.n, self.k), FP8_E4M3, constant=True),
            Operand("x_scales", of_x, FP32, within=limits),
            Operand("w_scales", of_w, FP32, within=limits, constant=True),
            Operand("y", (self.m, self.n), self.precision.output, "out"),
        )

    @property
    def tolerance(self) -> float:
        """That of sums of K products; sums of a group may stay in FP8's tensor cores."""
        sums = replace(self.precision, partial=None).dot_product(self.k)
        partial = self.precision.partial
        within = 0.4 * sqrt(min(self.k, GROUP)) * partial.epsilon if partial else 0.0
        return sums + within

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of K random products has sqrt(K) times the size of one product."""
        return sqrt(self.k) * rms["x"] * rms["w"] * rms["x_scales"] * rms["w_scales"]

    @property
    def of_tokens(self) -> Precision:
        """That of E4M3."""
        return PRECISIONS["fp8"]

    def _tokens(self, inputs: Inputs, start: int, end: int) -> Any:
        """With their scales."""
        scales = inputs.part("x_scales", (slice(start // GROUP, -(-end // GROUP)), ALL))
        x = super()._tokens(inputs, start, end)
        return x * scales.T.repeat(GROUP, axis=1)[:, : end - start]

    def _weights(self, arrays: Any, inputs: Inputs, start: int, end: int) -> Any:
        """With their scales: a row of them for each column of a piece, or for 128 of all."""
        w = inputs.part("w", (ALL, slice(start, end)))
        scales = inputs.part("w_scales", (ALL, slice(start // GROUP, -(-end // GROUP))))
        if len(scales) < len(w):
            scales = scales.repeat(GROUP, axis=0)[: len(w)]
        return w * scales.repeat(GROUP, axis=1)[:, : end - start]

    def _piece(self, rows: Any, columns: Any) -> Piece:
        places = range(*columns.indices(self.n)) if isinstance(columns, slice) else columns
        of_w = ([int(column) // GROUP for column in places], ALL)
        given = {"x": (rows, ALL), "w": (columns, ALL), "x_scales": (ALL, rows), "w_scales": of_w}
        return Piece({**given, "y": (rows, columns)})

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """Scales of which those of one group are not zero."""
        if title != ONE_GROUP:
            return {}
        scales = arrays.where(arrays.arange(self.groups) == draw.randrange(self.groups), 0.25, 0.0)
        where: Index = piece.select["x_scales"]
        return {"x_scales": (where, scales[:, None].repeat(len(where[1]), axis=1))}
