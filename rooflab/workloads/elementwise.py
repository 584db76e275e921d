"""Elementwise workloads: one pass over memory, which tests the memory roof.

An array is a vector, a matrix (``--shape ROWSxCOLUMNS``) or a batch of matrices. Kernels get it as
``elements`` consecutive numbers, because no element depends on another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from rooflab.model.problem import Inputs, Operand, extent, in_and_out, setting
from rooflab.workloads.parts import Moves, Parts


@dataclass(frozen=True, kw_only=True)
class Elementwise(Parts):
    """The base of ``add``, ``copy`` and ``triad``: arrays of one shape."""

    sizes: ClassVar = ("columns",)
    axes: ClassVar = ("batch", "rows", "columns")
    names: ClassVar[Sequence[str]]
    """Those of the operands, in the order of a kernel's arguments; the last one is the output."""

    rows: int = extent("rows", 1)
    columns: int = extent("columns: the elements of a vector")
    batch: int = extent("number of matrices", 1)

    @property
    def elements(self) -> int:
        """Elements of each array."""
        return self.batch * self.rows * self.columns

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Arrays of (batch, rows, columns)."""
        shape = (self.batch, self.rows, self.columns)
        return in_and_out(self.precision, **dict.fromkeys(self.names, shape))

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """By title the number in each input."""
        given, inputs = self.precision.input, self.names[:-1]
        if given.integer:
            # Twice it wraps around; a floating-point number of as many bytes cannot hold it.
            most = 2 ** (8 * given.bytes - 2) + 12345
            return {"large integers": dict.fromkeys(inputs, most)}
        return {
            "large numbers": dict.fromkeys(inputs, given.scale),
            "small numbers": dict.fromkeys(inputs, 1 / given.scale),
            "zeros": dict.fromkeys(inputs, 0.0),
        }


@dataclass(frozen=True, kw_only=True)
class Add(Elementwise):
    """One addition per three numbers moved."""

    workload: ClassVar = "add"
    title: ClassVar = "sum of two vectors or matrices"
    formula: ClassVar = "C = A + B"
    work: ClassVar = "elements"
    names: ClassVar = ("a", "b", "c")
    arguments: ClassVar = ("elements", "a", "b", "c")
    each: ClassVar = 1
    roundings: ClassVar = 1

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """Also numbers whose sum is zero."""
        return super().hard_parts() | {"numbers that cancel": {"a": 0.75, "b": -0.75}}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The sum."""
        return {"c": inputs["a"] + inputs["b"]}


@dataclass(frozen=True, kw_only=True)
class Copy(Moves, Elementwise):
    """No arithmetic, only memory traffic."""

    workload: ClassVar = "copy"
    title: ClassVar = "copy of an array"
    formula: ClassVar = "C = A"
    work: ClassVar = "0"
    names: ClassVar = ("a", "c")
    arguments: ClassVar = ("elements", "a", "c")

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """Also numbers that arithmetic may flush to zero or give another sign, and a copy not."""
        given = self.precision.input
        if given.integer:
            return super().hard_parts()
        also = {"subnormal numbers": given.subnormal, "negative zeros": -0.0}
        return super().hard_parts() | {title: {"a": number} for title, number in also.items()}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The input."""
        return {"c": inputs["a"]}


@dataclass(frozen=True, kw_only=True)
class Triad(Elementwise):
    """STREAM's triad (McCalpin, 1995): a multiplication and an addition per three numbers moved."""

    workload: ClassVar = "triad"
    title: ClassVar = "STREAM triad"
    formula: ClassVar = "C = A + alpha·B"
    work: ClassVar = "2·elements"
    names: ClassVar = ("a", "b", "c")
    arguments: ClassVar = ("elements", "alpha", "a", "b", "c")
    each: ClassVar = 2
    roundings: ClassVar = 2

    alpha: float = setting(3.0, "factor of B")

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """A plus the multiple of B."""
        return {"c": inputs["a"] + self.precision.factor(self.alpha) * inputs["b"]}
