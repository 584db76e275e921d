"""Number formats, and precisions: the input, accumulate and output formats of a kernel together."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import Final


@dataclass(frozen=True, slots=True)
class DataType:
    """A number format.

    ``epsilon`` is the distance from 1 to the next number, 2**-(mantissa bits), and 0 for integers,
    whose arithmetic is exact. ``smallest`` is the smallest positive number, the rounding step of
    tiny results; 0 if it is negligible. ``storage`` is the NumPy type in memory: ``bf16`` and
    ``fp8_e4m3`` are stored as bits, because not every array library has them; ``nan`` has the bits
    of a NaN then. ``signalling`` are two bytes that make up a signalling NaN, which any arithmetic
    changes. ``cuda`` and ``nccl`` are the libraries' names, empty if they have none.
    """

    name: str
    bytes: int
    epsilon: float
    storage: str
    smallest: float = 0.0
    scale: float = 2.0**20
    nan: int | None = None
    signalling: int = 0x7FA0
    cuda: str = ""
    nccl: str = ""

    @property
    def integer(self) -> bool:
        """Whether this is an integer format."""
        return self.epsilon == 0

    @property
    def subnormal(self) -> float:
        """A positive number below the normal ones, or zero if the format has none."""
        smallest = {"float64": 2.0**-1074, "float16": 2.0**-24, "uint8": 2.0**-9}
        return 3 * smallest.get(self.storage, 2.0**-133)


FP64: Final = DataType(
    *("fp64", 8, 2.0**-52, "float64"), signalling=0x7FF4, cuda="CUDA_R_64F", nccl="NCCL_FLOAT64"
)
FP32: Final = DataType("fp32", 4, 2.0**-23, "float32", cuda="CUDA_R_32F", nccl="NCCL_FLOAT32")
TF32: Final = DataType("tf32", 4, 2.0**-10, "float32")  # FP32 with 10 mantissa bits multiplied
TF32X2: Final = DataType("tf32x2", 4, 2.0**-21, "float32")  # FP32 as a sum of two TF32 numbers
FP16: Final = DataType(
    *("fp16", 2, 2.0**-10, "float16", 2.0**-24, 2.0**6),
    signalling=0x7DA0,
    cuda="CUDA_R_16F",
    nccl="NCCL_FLOAT16",
)
BF16: Final = DataType(
    *("bf16", 2, 2.0**-7, "uint16"), nan=0x7FFF, cuda="CUDA_R_16BF", nccl="NCCL_BFLOAT16"
)
FP8_E4M3: Final = DataType(  # OCP E4M3: finite up to 448, one NaN
    *("fp8_e4m3", 1, 2.0**-3, "uint8"),
    scale=2.0**4,
    nan=0x7F,
    signalling=0x7F7F,
    cuda="CUDA_R_8F_E4M3",
)
FP22: Final = DataType("fp22", 4, 2.0**-13, "float32")  # FP32 with 13 mantissa bits kept
UINT8: Final = DataType("uint8", 1, 0.0, "uint8")
INT32: Final = DataType("int32", 4, 0.0, "int32", nccl="NCCL_INT32")
INT64: Final = DataType("int64", 8, 0.0, "int64", nccl="NCCL_INT64")


@dataclass(frozen=True, slots=True)
class Precision:
    """Input, accumulate and output types together.

    ``multiply`` differs from ``input`` only for TF32, which rounds FP32 operands before it
    multiplies, and for 3×TF32: each operand is split into two TF32 numbers, and three of the four
    products are summed. ``partial`` differs from ``accumulate`` only for FP8: the tensor cores of
    Ada and Hopper keep fewer bits of its sums than FP32 has.

    ``tensor_cores``: its peak is that of tensor cores, from compute capability ``oldest`` on, by
    ``products`` products for one multiplication. Its peak is the published rate named ``rate``, by
    default its own. ``compute`` is cuBLAS's compute type, and ``heuristics`` the types of A and B,
    of the sums and of C in nvMatmulHeuristics; both are empty if the library lacks it.
    """

    name: str
    title: str
    input: DataType
    multiply: DataType
    accumulate: DataType
    output: DataType
    partial: DataType | None = None
    tensor_cores: bool = False
    oldest: float = 0.0
    products: int = 1
    rate: str = ""
    compute: str = ""
    heuristics: str = ""

    @property
    def integer(self) -> bool:
        """Whether results are exact integers, which wrap around."""
        return self.output.integer

    def factor(self, value: float) -> float:
        """``value`` where it multiplies numbers of this precision: whole if all are, so that wide
        products wrap around too."""
        return int(value) if self.integer and value % 1 == 0 else value

    def rounding(self, operations: float) -> float:
        """Largest relative error of an output element after a few operations.

        The output is rounded once, by at most half its epsilon. Each of ``operations`` may add an
        accumulate epsilon.
        """
        return 0.5 * self.output.epsilon + operations * self.accumulate.epsilon

    def dot_product(self, k: int) -> float:
        """Largest relative error, ‖C - ref‖ / ‖ref‖, of correct sums of ``k`` products.

        One rounding of the output adds about a quarter of its epsilon in this norm. A sum of ``k``
        products in the accumulate type adds sqrt(k) epsilons (Higham & Mary, "A New Approach to
        Probabilistic Rounding Error Analysis", 2019). Each term has a margin of at least two, and
        the total stays below 1 / sqrt(k): one lost product in ``k`` is detected at every size that
        rooflab sweeps by default.

        FP8 tensor cores add 32 products at a time to an accumulator of 13 mantissa bits and
        truncate (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, section 3.5.2; Zhang et al.,
        "SageAttention2", 2024). Only some kernels promote their sums to FP32 at intervals. An
        emulation on random operands has an error of 0.2 sqrt(k) epsilons of the 13 bits. Twice
        that still detects a lost product up to k = 11,700.
        """
        rounded_operands = 2 * self.multiply.epsilon if self.multiply != self.input else 0.0
        per_sum = 0.4 * self.partial.epsilon if self.partial else 4 * self.accumulate.epsilon
        return 0.5 * self.output.epsilon + sqrt(k) * per_sum + rounded_operands


PRECISIONS: Final[dict[str, Precision]] = {
    precision.name: precision
    for precision in (
        Precision("fp64", "FP64", FP64, FP64, FP64, FP64, compute="CUBLAS_COMPUTE_64F"),
        # Full FP32 if the handle's math mode is the default. The PEDANTIC type has fewer algorithms
        # and is not more exact for FP32 operands.
        Precision("fp32", "FP32", FP32, FP32, FP32, FP32, compute="CUBLAS_COMPUTE_32F"),
        Precision(
            *("tf32", "TF32", FP32, TF32, FP32, FP32),
            tensor_cores=True,
            oldest=8.0,
            compute="CUBLAS_COMPUTE_32F_FAST_TF32",
            heuristics="SSS",
        ),
        Precision(
            *("fp32_3xtf32", "FP32 by 3×TF32", FP32, TF32X2, FP32, FP32),
            tensor_cores=True,
            oldest=8.0,
            products=3,
            rate="tf32",
        ),
        Precision(
            *("fp16", "FP16", FP16, FP16, FP32, FP16),
            tensor_cores=True,
            compute="CUBLAS_COMPUTE_32F",
            heuristics="HSH",
        ),
        Precision(
            *("bf16", "BF16", BF16, BF16, FP32, BF16),
            tensor_cores=True,
            oldest=8.0,
            compute="CUBLAS_COMPUTE_32F",
            heuristics="TST",
        ),
        Precision(
            *("fp16_fp32", "FP16→FP32", FP16, FP16, FP32, FP32),
            tensor_cores=True,
            rate="fp16",
            compute="CUBLAS_COMPUTE_32F",
            heuristics="HSS",
        ),
        Precision(
            *("fp8", "FP8", FP8_E4M3, FP8_E4M3, FP32, BF16, FP22),
            tensor_cores=True,
            oldest=8.9,
            compute="CUBLAS_COMPUTE_32F",
            heuristics="QQTST",
        ),
        Precision("int32", "INT32", INT32, INT32, INT32, INT32),
        Precision("int64", "INT64", INT64, INT64, INT64, INT64),
    )
}


def precision_name(text: str) -> str:
    """The name of a precision for its name or title in any case; other text unchanged."""
    wanted = text.casefold()
    titles = {one.title.casefold(): one.name for one in PRECISIONS.values()}
    return titles.get(wanted, wanted if wanted in PRECISIONS else text)
