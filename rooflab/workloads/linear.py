"""A linear layer with what follows its product: a bias, GELU, or the gate of SwiGLU."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import pi, sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.problem import (
    MAX_EXTENT,
    PIECE_ELEMENTS,
    SFU,
    Hard,
    Index,
    Inputs,
    Operand,
    Piece,
    Problem,
    extent,
    scattered,
    setting,
)
from rooflab.workloads.gemm import Gemm, mirrored
from rooflab.workloads.parts import ALL
from rooflab.workloads.rows import row_scales

EPILOGUES: Final = ("bias", "gelu", "swiglu")

ACTIVATION_FLOPS: Final = {"bias": 1, "gelu": 8, "swiglu": 4}
"""For an element of Y. Bias: an addition. GELU as z / (1 + exp(-z·(a + b·z²))): a bias, four
multiplications and additions of the exponent, an exponential, an addition, a division. SwiGLU as
gate / (1 + exp(-gate))·up: an exponential, an addition, a division, a multiplication."""

CUBE: Final = 0.044715
"""Of GELU's approximation: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016."""

REACH: Final = 3.0
"""Weights are within REACH / sqrt(K), so that sums of random products have unit variance."""

MOST_IN_FP16: Final = 40.0
"""Large numbers of which two sums have a product in FP16, and exponentials overflow in FP32."""

CANCEL: Final = "sums that cancel"
SMALL: Final = "small numbers"


@dataclass(frozen=True, kw_only=True)
class TokenProduct(Problem):
    """The base: X has a row for each token, W one for each column of Y, both K long."""

    sizes: ClassVar = ("m", "n", "k")
    index_type: ClassVar = "int32"
    group: ClassVar[int] = 1
    """Numbers along K that belong together."""

    m: int = extent("rows of X and Y: tokens")
    n: int = extent("columns of Y")
    k: int = extent("length of the sums")

    def _sum(self, arrays: Any, inputs: Inputs, change: Callable[[Any], Any]) -> Any:
        """X times changed weights, over some of K at a time to limit the memory."""
        most = PIECE_ELEMENTS // max(inputs.shape("x")[0], inputs.shape("w")[0])
        step = max(1, most // self.group) * self.group
        total: Any = 0
        for start in range(0, self.k, step):
            some = start, min(start + step, self.k)
            w = self._weights(arrays, inputs, *some)
            total = total + self._tokens(inputs, *some) @ change(w.T)
        return total

    def _tokens(self, inputs: Inputs, start: int, end: int) -> Any:
        """The numbers of X from ``start``, the first of a group, to ``end``."""
        return inputs.part("x", (ALL, slice(start, end)))

    def _weights(self, arrays: Any, inputs: Inputs, start: int, end: int) -> Any:
        """Those of W."""
        return inputs.part("w", (ALL, slice(start, end)))

    # Verification: as of GEMM.

    @property
    def _product(self) -> Gemm:
        return Gemm(precision=self.precision, m=self.m, n=self.n, k=self.k)

    def _piece(self, rows: Any, columns: Any) -> Piece:
        """Some of Y, and what it is computed from."""
        raise NotImplementedError

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


@dataclass(frozen=True, kw_only=True)
class Linear(TokenProduct):
    """What PyTorch calls ``torch.nn.Linear``, and an activation.

    X has the shape (M, K), W (N, K) and bias (N,), in the type of Y (M, N). GELU is the
    approximation by tanh, as in cuBLASLt. SwiGLU (Shazeer, "GLU Variants Improve Transformer",
    2020) has two matrices of weights and no bias, as in Llama: W is (2·N, K), first the N rows of
    the gate, then those of up, as vLLM stores them. A tile of both is two runs of rows.
    """

    workload: ClassVar = "linear"
    title: ClassVar = "linear layer with bias, GELU or SwiGLU"
    formula: ClassVar = "Y = X·Wᵀ + bias, gelu(X·Wᵀ + bias), or silu(X·W₁ᵀ)·(X·W₂ᵀ) of W = (W₁, W₂)"
    work: ClassVar = "2·M·N·K + M·N; gelu 2·M·N·K + 8·M·N; swiglu 4·M·N·K + 4·M·N"

    epilogue: str = setting("bias", "what follows the product", EPILOGUES)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (rows := self.weights * self.n) >= MAX_EXTENT and self.gated:
            raise UsageError(f"n = {self.n}: W has {rows} rows, which must be below {MAX_EXTENT}")

    @property
    def gated(self) -> bool:
        """Whether there are two matrices of weights, and no bias."""
        return self.epilogue == "swiglu"

    @property
    def weights(self) -> int:
        """Matrices of weights."""
        return 2 if self.gated else 1

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Activations, weights, the bias if there is one, results."""
        given, result, reach = self.precision.input, self.precision.output, REACH / sqrt(self.k)
        rows = self.weights * self.n
        bias = Operand("bias", (self.n,), result, within=(-1.0, 1.0))
        return (
            Operand("x", (self.m, self.k), given),
            Operand("w", (rows, self.k), given, within=(-reach, reach)),
            *(() if self.gated else (bias,)),
            Operand("y", (self.m, self.n), result, "out"),
        )

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each product, and what an element costs then."""
        elements = self.m * self.n
        return elements * (2 * self.k * self.weights + ACTIVATION_FLOPS[self.epilogue])

    @property
    def units(self) -> Mapping[str, int]:
        """One exponential, or one hyperbolic tangent, for each element that has an activation."""
        return {} if self.epilogue == "bias" else {SFU: self.m * self.n}

    @property
    def tolerance(self) -> float:
        """That of sums of K products, with SwiGLU of two of them.

        Before an activation they may be rounded, as between PyTorch's kernels. A fast exponential
        is off by a few roundings.
        """
        types = self.precision
        if self.epilogue == "bias":
            return types.dot_product(self.k)
        return types.dot_product(self.weights**2 * self.k) + types.rounding(32)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Of random sums, which may cancel each other or the bias. Activations leave half of it."""
        size = sqrt(self.k) * rms["x"] * rms["w"]
        if self.gated:
            return size**2 / 2
        z = sqrt(size**2 + rms["bias"] ** 2)
        return z / 2 if self.epilogue == "gelu" else z

    @property
    def macros(self) -> dict[str, int | str]:
        """The epilogue, and the number of matrices of weights."""
        return {**super().macros, "ROOFLAB_WEIGHTS": self.weights}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """In FP64, by exponentials and tangents that do not overflow."""
        sums = self._sum(arrays, inputs, lambda w: w)
        if self.gated:
            gate, up = sums[:, : sums.shape[1] // 2], sums[:, sums.shape[1] // 2 :]
            logistic = arrays.exp(arrays.minimum(gate, 0)) / (1 + arrays.exp(-abs(gate)))
            return {"y": gate * logistic * up}
        z = sums + inputs["bias"]
        if self.epilogue == "gelu":
            z = z / 2 * (1 + arrays.tanh(sqrt(2 / pi) * (z + CUBE * z * z * z)))
        return {"y": z}

    # Verification.

    def _rows(self, columns: Any) -> Any:
        """The rows of W that make up some columns of Y."""
        if not self.gated or columns == ALL:
            return columns
        some = range(*columns.indices(self.n)) if isinstance(columns, slice) else columns
        return [*some, *(self.n + column for column in some)]

    def _piece(self, rows: Any, columns: Any) -> Piece:
        select: dict[str, Index] = {"x": (rows, ALL), "w": (self._rows(columns), ALL)}
        bias: dict[str, Index] = {} if self.gated else {"bias": (columns,)}
        return Piece({**select, **bias, "y": (rows, columns)})

    @property
    def sketched(self) -> str:
        """Y of large products, if no activation follows."""
        return super().sketched if self.epilogue == "bias" else ""

    def sketch(self, arrays: Any, inputs: Inputs, weights: Any) -> Any:
        """X·(Wᵀ·weights) + bias·weights in FP64."""
        return super().sketch(arrays, inputs, weights) + inputs["bias"] @ weights

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Rows of X that are zero, tiny or huge, and rows that cancel with rows of W.

        Where results would be small beside a bias, it is zero: in some columns, which are compared.
        """
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        scales = self._scales()
        few = sorted(draw.sample(range(self.n), min(8, self.n)))
        for title, rows in scattered(draw, self.m, [*sorted(scales), CANCEL]).items():
            x = 2 * numbers.random((len(rows), self.k)) - 1
            small = title in (SMALL, CANCEL)
            piece = self._piece(rows, few if small else ALL)
            values: dict[str, tuple[Index, Any]] = {}
            if small and not self.gated:
                values["bias"] = ((few,), 0.0)
            if title == CANCEL:
                x = mirrored(arrays, x, -1)
                values["w"] = self._mirrored(arrays, numbers, few)
            else:
                x *= scales[title]
                title = f"rows of X with {title}"
            yield Hard(title, {"x": (piece.select["x"], x), **values}, piece)

    def _scales(self) -> dict[str, float]:
        """Half-widths of numbers in rows of X, by what they are."""
        scales = row_scales(self.precision)
        if self.gated and self.precision.output.smallest:
            return {title: min(scale, MOST_IN_FP16) for title, scale in scales.items()}
        return scales

    def _mirrored(self, arrays: Any, numbers: Any, columns: list[int]) -> tuple[Index, Any]:
        """Rows of W that rows of X cancel with: those of up, since nothing is left of two zeros."""
        weights = REACH / sqrt(self.k) * (2 * numbers.random((len(columns), self.k)) - 1)
        rows = self._rows(columns)[-len(columns) :]
        return (rows, ALL), mirrored(arrays, weights, 1)
