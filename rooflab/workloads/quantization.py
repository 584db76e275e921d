"""Quantization: numbers of a model in fewer bits, with the scales that give them back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.encoding import E4M3_MAX, decode, encode
from rooflab.model.precision import FP8_E4M3, FP32
from rooflab.model.problem import Inputs, Operand, setting
from rooflab.workloads.rows import Normalisation

BLOCK: Final = 128
"""Columns that share a scale, as in DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, 3.3.2."""


@dataclass(frozen=True, kw_only=True)
class Quantize(Normalisation):
    """To FP8 with an FP32 scale per 1x128 block, as activations are before a product in FP8."""

    workload: ClassVar = "quantize"
    title: ClassVar = "numbers in FP8 with a scale per 1x128 block"
    formula: ClassVar = "scale = max(least, max |x| of the block) / 448, q = x / scale in E4M3"
    work: ClassVar = "2·rows·columns"
    each: ClassVar = 2
    """A comparison and a quotient."""

    least: float = setting(1e-4, "smallest size of a block, gives blocks of zeros a scale")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least <= 0:
            raise UsageError(f"least = {self.least:g} gives zeros no scale: give more than 0")

    @property
    def blocks(self) -> int:
        """Blocks of a row; the last may be shorter."""
        return -(-self.columns // BLOCK)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Rows, the scales of their blocks, the quantized rows."""
        shape = (self.rows, self.columns)
        return (
            Operand("x", shape, self.precision.input),
            Operand("scales", (self.rows, self.blocks), FP32, "out"),
            Operand("q", shape, FP8_E4M3, "out"),
        )

    @property
    def tolerance(self) -> float:
        """Of Q: all but a few elements are the same, and those are off by one step.

        A step is an eighth of a number at most, and ``verify.OUTLIER`` of these a fifth. Elements
        between two numbers may be rounded to either. If half of them were, as in a conversion that
        truncates, this would be 0.06.
        """
        return 0.0125

    def tolerance_of(self, operand: Operand) -> float:
        """Scales have two roundings, or that of a reciprocal."""
        return 4 * FP32.epsilon if operand.name == "scales" else self.tolerance

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks of threads tile the blocks of all rows."""
        return (self.rows * self.blocks,)

    def hard_rows(self) -> dict[str, tuple[float, float, float]]:
        """Sizes that FP8 lacks, one number that matters only to its block, the need of ``least``.

        Equal numbers are all the largest of their block, at the end of what FP8 has.
        """
        return super().hard_rows() | {
            "rows with one large number": (1.0, 0.0, 400.0),
            "rows of equal numbers": (0.0, 0.7, 0.0),
        }

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Numbers of FP8 that are nearest to the quotients."""
        x = inputs["x"]
        whole = arrays.zeros((len(x), self.blocks * BLOCK), dtype=x.dtype)
        whole[:, : self.columns] = x
        parts = whole.reshape(len(x), self.blocks, BLOCK)
        scales = arrays.maximum(abs(parts).max(axis=2), self.least) / E4M3_MAX
        quotients = (parts / scales[:, :, None]).reshape(whole.shape)[:, : self.columns]
        q = decode(arrays, encode(arrays, quotients, FP8_E4M3), FP8_E4M3)
        return {"scales": scales, "q": q.astype(x.dtype)}
