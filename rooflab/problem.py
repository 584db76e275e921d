"""One GEMM and its model: FLOPs, compulsory bytes, arithmetic intensity. Pure.

C = alpha * op(A) * op(B) + beta * C, all matrices row-major, ``batch`` of them back to back.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final

from rooflab.errors import UsageError


@dataclass(frozen=True, slots=True)
class DataType:
    """A number format.

    ``epsilon`` is the distance from 1 to the next number, 2**-(mantissa bits).
    """

    name: str
    bytes: int
    epsilon: float


FP64: Final = DataType("fp64", 8, 2.0**-52)
FP32: Final = DataType("fp32", 4, 2.0**-23)
TF32: Final = DataType("tf32", 4, 2.0**-10)  # an FP32 word whose multiplier sees 10 mantissa bits
FP16: Final = DataType("fp16", 2, 2.0**-10)
BF16: Final = DataType("bf16", 2, 2.0**-7)
FP8_E4M3: Final = DataType("fp8_e4m3", 1, 2.0**-3)  # OCP E4M3: finite up to 448, one NaN
FP22: Final = DataType("fp22", 4, 2.0**-13)  # an FP32 word of which 13 mantissa bits are kept


@dataclass(frozen=True, slots=True)
class Precision:
    """Input, accumulate and output types together.

    ``multiply`` differs from ``input`` only for TF32, which rounds FP32 operands on their way
    into the tensor cores. ``partial`` differs from ``accumulate`` only for FP8, of whose sums the
    tensor cores of Ada and Hopper keep fewer bits than FP32 has.
    """

    name: str
    title: str
    input: DataType
    multiply: DataType
    accumulate: DataType
    output: DataType
    partial: DataType | None = None

    def tolerance(self, k: int) -> float:
        """Largest relative error, ‖C - ref‖ / ‖ref‖, that correct arithmetic may show.

        Rounding the output once costs about a quarter of its epsilon in this norm; a sum of ``k``
        products in the accumulate type wanders by sqrt(k) epsilons (Higham & Mary, "A New
        Approach to Probabilistic Rounding Error Analysis", 2019). Each term has a margin of at
        least two, and the whole stays below 1 / sqrt(k): one lost product in ``k`` is caught at
        every size that rooflab sweeps by default.

        FP8 operands are what they are, so that nothing is lost before they are multiplied. But the
        tensor cores add 32 products at a time to an accumulator of 13 mantissa bits and truncate
        (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.5.2; Zhang et al.,
        "SageAttention2", 2024), and only some kernels move their sums to FP32 now and then. That
        arithmetic, emulated on random operands, wanders by 0.2 sqrt(k) epsilons of the 13 bits.
        Twice that leaves a lost product in sight up to k = 11,700.
        """
        rounded_operands = 2 * self.multiply.epsilon if self.multiply != self.input else 0.0
        wander = 0.4 * self.partial.epsilon if self.partial else 4 * self.accumulate.epsilon
        return 0.5 * self.output.epsilon + sqrt(k) * wander + rounded_operands


PRECISIONS: Final[dict[str, Precision]] = {
    precision.name: precision
    for precision in (
        Precision("fp64", "FP64", FP64, FP64, FP64, FP64),
        Precision("fp32", "FP32", FP32, FP32, FP32, FP32),
        Precision("tf32", "TF32", FP32, TF32, FP32, FP32),
        Precision("fp16", "FP16", FP16, FP16, FP32, FP16),
        Precision("bf16", "BF16", BF16, BF16, FP32, BF16),
        Precision("fp16_fp32", "FP16→FP32", FP16, FP16, FP32, FP32),
        Precision("fp8", "FP8", FP8_E4M3, FP8_E4M3, FP32, BF16, FP22),
    )
}

LAYOUTS: Final = ("nn", "nt", "tn", "tt")
"""Row-major transposition of A and B: ``nt`` means that B is stored N×K."""

MAX_EXTENT: Final = 2**20
"""Largest M, N, K or batch that is taken for a wish and not for a slip of the finger."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One GEMM. Extents count elements; construction raises ``UsageError`` on nonsense."""

    m: int
    n: int
    k: int
    precision: Precision = PRECISIONS["fp32"]
    layout: str = "nn"
    batch: int = 1
    alpha: float = 1.0
    beta: float = 0.0

    def __post_init__(self) -> None:
        for name in ("m", "n", "k", "batch"):
            extent = getattr(self, name)
            if not 1 <= extent <= MAX_EXTENT:
                raise UsageError(
                    f"{name.upper() if name != 'batch' else name} = {extent} is out of range: "
                    f"give a whole number from 1 to {MAX_EXTENT}"
                )
        if self.layout not in LAYOUTS:
            raise UsageError(f"unknown layout {self.layout!r}: choose from {', '.join(LAYOUTS)}")

    @property
    def shape(self) -> str:
        """``MxNxK``, with ``xBATCH`` where there is more than one."""
        batch = f"x{self.batch}" if self.batch > 1 else ""
        return f"{self.m}x{self.n}x{self.k}{batch}"

    @property
    def a_shape(self) -> tuple[int, int, int]:
        """Shape of A as stored: (batch, M, K), or (batch, K, M) when transposed."""
        rows, columns = (self.m, self.k) if self.layout[0] == "n" else (self.k, self.m)
        return (self.batch, rows, columns)

    @property
    def b_shape(self) -> tuple[int, int, int]:
        """Shape of B as stored: (batch, K, N), or (batch, N, K) when transposed."""
        rows, columns = (self.k, self.n) if self.layout[1] == "n" else (self.n, self.k)
        return (self.batch, rows, columns)

    @property
    def c_shape(self) -> tuple[int, int, int]:
        """Shape of C as stored: (batch, M, N)."""
        return (self.batch, self.m, self.n)

    @property
    def flops(self) -> int:
        """2·M·N·K·batch: one multiplication and one addition for each product."""
        return 2 * self.m * self.n * self.k * self.batch

    @property
    def operand_bytes(self) -> int:
        """Bytes that A, B and C occupy."""
        inputs = (self.m * self.k + self.k * self.n) * self.precision.input.bytes
        return (inputs + self.m * self.n * self.precision.output.bytes) * self.batch

    @property
    def bytes(self) -> int:
        """Compulsory traffic: A and B read once, C written once, and read where beta is not 0."""
        c_read = self.m * self.n * self.precision.output.bytes * self.batch if self.beta else 0
        return self.operand_bytes + c_read

    @property
    def intensity(self) -> float:
        """Arithmetic intensity, FLOP per compulsory byte."""
        return self.flops / self.bytes
