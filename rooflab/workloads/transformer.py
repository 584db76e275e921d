"""Layers of a language model between its products: embedding, SwiGLU and rotary embedding."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.precision import INT32
from rooflab.model.problem import DRAM, SFU, Index, Inputs, Operand, Piece, extent, in_and_out
from rooflab.workloads.elementwise import Elementwise
from rooflab.workloads.parts import ALL, FAR, Moves, Parts

ODD: Final = "a row of subnormal numbers and negative zeros"


@dataclass(frozen=True, kw_only=True)
class SwiGlu(Elementwise):
    """The gate of a feed-forward layer: Shazeer, "GLU Variants Improve Transformer", 2020."""

    workload: ClassVar = "swiglu"
    title: ClassVar = "SwiGLU: silu of a gate times another array"
    formula: ClassVar = "out = gate / (1 + exp(-gate)) · up"
    work: ClassVar = "4·elements"
    names: ClassVar = ("gate", "up", "out")
    arguments: ClassVar = ("elements", "gate", "up", "out")
    each: ClassVar = 4
    """Exponential, addition, division and multiplication."""
    roundings: ClassVar = 32
    """As in softmax: a fast exponential is off by a few roundings, more for large numbers."""

    @property
    def units(self) -> Mapping[str, int]:
        """One exponential, or one hyperbolic tangent, for each element."""
        return {SFU: self.elements}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """The smallest normal number of FP32: smaller results may be zero."""
        return 2.0**-126

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """Gates whose exponentials overflow, and gates of which little is left."""
        far, small = FAR[self.precision.accumulate.bytes], 1 / self.precision.input.scale
        gates = {"gates far above zero": far, "gates far below zero": -far, "gates of -8": -8.0}
        gates |= {"small gates": small, "gates of zero": 0.0}
        return {title: {"gate": gate, "up": 0.75} for title, gate in gates.items()}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """By exponentials of negative numbers, which do not overflow."""
        gate = inputs["gate"]
        logistic = arrays.exp(arrays.minimum(gate, 0)) / (1 + arrays.exp(-abs(gate)))
        return {"out": gate * logistic * inputs["up"]}


@dataclass(frozen=True, kw_only=True)
class Rope(Parts):
    """Tells attention where a token is: Su et al., "RoFormer", 2021.

    X and Y have the shape (batch, heads, tokens, head_size), ``cos`` and ``sin`` (tokens,
    head_size / 2), as a model computes them once. A pair is an element of the first half of a head
    and the one at the same place in the second half, as in Llama. The default heads are those of
    the queries of an 8B model.
    """

    workload: ClassVar = "rope"
    title: ClassVar = "rotary embedding"
    formula: ClassVar = "y₁ = x₁·cos - x₂·sin, y₂ = x₂·cos + x₁·sin, of the halves of each head"
    work: ClassVar = "3·batch·heads·tokens·head_size"
    sizes: ClassVar = ("tokens",)
    axes: ClassVar = ("batch", "heads", "tokens")
    arguments: ClassVar = ("pairs", "tokens", "half", "x", "cos", "sin", "y")
    each: ClassVar = 3
    """Two multiplications, and an addition or a subtraction."""
    roundings: ClassVar = 3
    """Two products and their sum."""

    tokens: int = extent("tokens, each with angles of its own")
    heads: int = extent("heads", 32)
    head_size: int = extent("numbers of a head", 128)
    batch: int = extent("number of sequences", 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head_size % 2:
            raise UsageError(f"head_size = {self.head_size} has no halves: give an even number")

    @property
    def half(self) -> int:
        """Pairs of a head."""
        return self.head_size // 2

    @property
    def pairs(self) -> int:
        """Pairs of all heads."""
        return self.batch * self.heads * self.tokens * self.half

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The heads, cosine and sine of each angle, the turned heads."""
        shape, angles = (*self.counts, self.head_size), (self.tokens, self.half)
        return in_and_out(self.precision, x=shape, cos=angles, sin=angles, y=shape)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Of the products, which may cancel."""
        return rms["x"] * max(rms["cos"], rms["sin"])

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the pairs."""
        return (self.pairs,)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """Each pair turned by its angle."""
        x, cos, sin = inputs["x"], inputs["cos"], inputs["sin"]
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        turned = (first * cos - second * sin, second * cos + first * sin)
        return {"y": arrays.concatenate(turned, axis=-1)}

    def _piece(self, *some: Any) -> Piece:
        """Some tokens of some heads, and their angles."""
        x, angles = (*some, ALL), (some[-1], ALL)
        return Piece({"x": x, "y": x, "cos": angles, "sin": angles})

    def hard_parts(self) -> dict[str, dict[str, float]]:
        """By title the number in each input."""
        scale = self.precision.input.scale
        return {
            "large numbers": {"x": scale},
            "small numbers": {"x": 1 / scale},
            "quarter turns": {"cos": 0.0, "sin": 1.0},
            "turns that cancel": {"x": 0.75, "cos": 0.5, "sin": 0.5},
        }


@dataclass(frozen=True, kw_only=True)
class Embedding(Moves, Parts):
    """How a language model begins: each token is a row of a table.

    Of the table only the rows that tokens have are compulsory, each once. Tokens are drawn evenly
    from all words, so bytes are those of the rows that this gives on average.
    """

    workload: ClassVar = "embedding"
    title: ClassVar = "rows of a table, one for each token"
    formula: ClassVar = "y[i] = table[ids[i]]"
    work: ClassVar = "0"
    sizes: ClassVar = ("tokens", "words", "columns")
    arguments: ClassVar = ("tokens", "columns", "ids", "table", "y")
    axes: ClassVar = ("tokens",)
    whole: ClassVar = ("table",)

    tokens: int = extent("tokens")
    words: int = extent("rows of the table")
    columns: int = extent("elements of a row")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The row of each token, the table, the rows."""
        shapes = {"table": (self.words, self.columns), "y": (self.tokens, self.columns)}
        ids = Operand("ids", (self.tokens,), INT32, within=(0, self.words - 1))
        return (ids, *in_and_out(self.precision, **shapes))

    @property
    def distinct(self) -> int:
        """Rows of the table that are read, on average."""
        return round(self.words * (1 - (1 - 1 / self.words) ** self.tokens))

    @property
    def traffic(self) -> dict[str, int]:
        """Rows of the table that several tokens share count once, rows that no token has do not."""
        ids, table, y = self.operands
        return {DRAM: ids.bytes + self.distinct * table.bytes // self.words + y.bytes}

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The rows."""
        return {"y": inputs.part("table", (inputs["ids"].astype(int), ALL))}

    def hard_parts(self) -> dict[str, Any]:
        """The row of some tokens: at both ends of the table, and many of one odd row."""
        return {"the first row": 0, "the last row": self.words - 1, ODD: None}

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        if title != ODD:
            return {"ids": (piece.select["ids"], self.hard_parts()[title])}
        row, subnormal = draw.randrange(self.words), self.precision.input.subnormal
        odd = arrays.where(arrays.arange(self.columns) % 2 == 0, subnormal, -0.0)[None]
        return {"ids": (piece.select["ids"], row), "table": ((slice(row, row + 1), ALL), odd)}
