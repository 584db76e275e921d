"""Grouped GEMM: the products of a mixture of experts, each with the tokens that chose it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.model.precision import INT32
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    Hard,
    Index,
    Inputs,
    Operand,
    Piece,
    Problem,
    extent,
    parts,
    setting,
)
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.parts import ALL

NAMES: Final = {"a": "x", "b": "w", "c": "y"}
"""Our operands by those of the GEMM of an expert."""

SPREADS: Final = ("uniform", "skewed", "single")


@dataclass(frozen=True, kw_only=True)
class GroupedGemm(Problem):
    """A layer in which each token goes through some of many experts.

    Shazeer et al., "Outrageously Large Neural Networks", 2017. The rows of X are sorted by expert,
    and ``ends`` has the row after the last one of each. A token that goes through two experts
    counts as two. W has the shape (experts, K, N). The default number of experts is that of Mixtral
    8x7B.
    """

    workload: ClassVar = "grouped_gemm"
    title: ClassVar = "matrix products of a mixture of experts"
    formula: ClassVar = "Y[rows of e] = X[rows of e]·W[e] for each expert e"
    work: ClassVar = "2·tokens·N·K"
    sizes: ClassVar = ("tokens", "n", "k")
    index_type: ClassVar = "int32"

    tokens: int = extent("rows of X, of all experts")
    n: int = extent("columns of Y")
    k: int = extent("length of the sums")
    experts: int = extent("matrices of weights", 8)
    spread: str = setting(
        "uniform", "tokens of the experts: alike, by Zipf's law, or all of one expert", SPREADS
    )

    @cached_property
    def counts(self) -> list[int]:
        """Tokens of each expert.

        Skewed: by Zipf's law 1, 1/2, 1/3 and so on of the most, and one expert in four has none.
        """
        if self.spread == "uniform":
            return [end - start for start, end in parts(self.tokens, self.experts)]
        order = [*range(0, self.experts, 2), *range(1, self.experts, 2)][::-1]
        busy = 1 if self.spread == "single" else max(1, 3 * self.experts // 4)
        sums = list(accumulate(1 / (rank + 1) for rank in range(busy)))
        edges = [0, *(round(self.tokens * one / sums[-1]) for one in sums)]
        shares = dict(zip(order, (end - start for start, end in pairwise(edges)), strict=False))
        return [shares.get(expert, 0) for expert in range(self.experts)]

    @cached_property
    def ends(self) -> tuple[int, ...]:
        """The row after the last one of each expert."""
        return tuple(accumulate(self.counts))

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Tokens, weights, of which those of experts without tokens stay idle, ends, results."""
        given, each = self.precision.input, self.k * self.n
        idle = self.counts.count(0) * each
        return (
            Operand("x", (self.tokens, self.k), given),
            Operand("w", (self.experts, self.k, self.n), given, idle=idle),
            Operand("ends", (self.experts,), INT32, constant=True, numbers=self.ends),
            Operand("y", (self.tokens, self.n), self.precision.output, "out"),
        )

    @property
    def flops(self) -> int:
        """One multiplication and one addition for each product of two elements."""
        return 2 * self.tokens * self.n * self.k

    @property
    def tolerance(self) -> float:
        """The tolerance of sums of K products."""
        return self.precision.dot_product(self.k)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """A sum of K random products has sqrt(K) times the size of one product."""
        return sqrt(self.k) * rms["x"] * rms["w"]

    @property
    def macros(self) -> dict[str, int | str]:
        """None: kernels read the ends."""
        return {}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The products in FP64. A piece has the weights of one expert, or of all."""
        one = inputs.shape("w")[0] == 1
        ends = (inputs.shape("x")[0],) if one else self.ends
        return {"y": self._products(arrays, inputs, ends)}

    def _products(
        self, arrays: Any, inputs: Inputs, ends: Sequence[int], weights: Any = None
    ) -> Any:
        """X·W of each expert, or X·(W·weights), summed over slices of K to limit the memory."""
        made = []
        step = max(1, PIECE_ELEMENTS // max(inputs.shape("x")[0], inputs.shape("w")[2]))
        for expert, rows in enumerate(pairwise((0, *ends))):
            total: Any = 0
            for start in range(0, self.k if rows[0] < rows[1] else 0, step):
                some = slice(start, start + step)
                w = inputs.part("w", (slice(expert, expert + 1), some, ALL))[0]
                w = w if weights is None else w @ weights
                total = total + inputs.part("x", (slice(*rows), some)) @ w
            made += [total] * (rows[0] < rows[1])
        return arrays.concatenate(made)

    # Verification: each expert is a GEMM.

    def _product(self, count: int) -> Gemm:
        """That of an expert with so many tokens."""
        return Gemm(precision=self.precision, m=count, n=self.n, k=self.k)

    def _index(self, expert: int, index: Index, name: str) -> Index:
        """The part of an operand that is a part of an operand of an expert's GEMM."""
        count = self.counts[expert]
        first = self.ends[expert] - count
        rows, columns = index[1:]
        if name == "b":
            return (slice(expert, expert + 1), rows, columns)
        if isinstance(rows, list):
            return ([first + row for row in rows], columns)
        start, stop, _ = rows.indices(count)
        return (slice(first + start, first + stop), columns)

    def _piece(self, expert: int, piece: Piece) -> Piece:
        """The piece that is one of an expert's GEMM."""
        select = {
            NAMES[name]: self._index(expert, index, name) for name, index in piece.select.items()
        }
        return Piece(select)

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Everything of small problems, else sampled rows and columns of each expert."""
        for expert, count in enumerate(self.counts):
            if count:
                for piece in self._product(count).pieces(draw):
                    yield self._piece(expert, piece)

    @property
    def sketched(self) -> str:
        """Y, if the product of an expert is a large one."""
        return "y" if self._product(max(self.counts)).sketched else ""

    def sketch(self, arrays: Any, inputs: Inputs, weights: Any) -> Any:
        """X·(W·weights) of each expert in FP64."""
        return self._products(arrays, inputs, self.ends, weights)

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Those of GEMM, in an expert with the most tokens."""
        most = max(self.counts)
        expert = draw.choice([i for i, count in enumerate(self.counts) if count == most])
        for one in self._product(most).hard(arrays, draw):
            values = {
                NAMES[name]: (
                    self._index(expert, index, name),
                    numbers if name == "b" else numbers[0],
                )
                for name, (index, numbers) in one.values.items()
            }
            yield Hard(one.title, values, self._piece(expert, one.piece))
