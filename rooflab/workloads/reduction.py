"""Reductions: from many numbers to one."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log2, sqrt
from typing import Any, ClassVar, Final

from rooflab.model.problem import Hard, Inputs, Operand, Piece, Problem, boxes, extent, in_and_out

CHAIN: Final = 2**16
"""Longest chain of dependent additions that a parallel sum is expected to have."""


@dataclass(frozen=True, kw_only=True)
class Sum(Problem):
    """Reads all elements and writes one number, which tests the read roof."""

    workload: ClassVar = "sum"
    title: ClassVar = "sum of a vector"
    formula: ClassVar = "y = Σ x"
    work: ClassVar = "elements"
    sizes: ClassVar = ("elements",)

    elements: int = extent("elements of x")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The vector and its sum."""
        return in_and_out(self.precision, x=(self.elements,), y=(1,))

    @property
    def flops(self) -> int:
        """One addition for each element."""
        return self.elements

    @property
    def tolerance(self) -> float:
        """The tolerance of parallel partial sums over at most ``CHAIN`` elements each.

        One accumulator for a long vector is not accurate enough: its error grows with the number
        of elements, and its result is ``incorrect``.
        """
        if self.precision.integer:
            return 0.0
        return self.precision.dot_product(min(self.elements, CHAIN))

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The sum of partial sums."""
        parts = [inputs.part("x", box).sum() for box in boxes((self.elements,))]
        return {"y": sum(parts[1:], start=parts[0]).reshape(1)}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of N random numbers has sqrt(N) times the size of one number."""
        return sqrt(self.elements) * rms["x"]

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Numbers of one sign, most of the sum at the ends: a single accumulator loses digits.

        Integers wrap around, and floating-point numbers of as many bytes cannot hold their sum.
        """
        numbers, given = arrays.random.default_rng(draw.getrandbits(32)), self.precision.input
        scale = 100.0 if given.integer else 2.0 ** -min(14, int(log2(self.elements)))
        values = scale * (1 + 0.2 * numbers.random(self.elements))
        end = 2.0 ** (8 * given.bytes - 2) if given.integer else scale * max(1, self.elements // 4)
        values[[0, self.elements - 1]] = end
        everything = (slice(0, self.elements),)
        yield Hard("positive numbers, large at the ends", {"x": (everything, values)}, Piece())

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the elements."""
        return (self.elements,)
