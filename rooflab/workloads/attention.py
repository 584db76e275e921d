"""Attention: O = softmax(Q·Kᵀ / √d)·V, the forward pass, with grouped heads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf, prod, sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.problem import (
    PIECE_ELEMENTS,
    SFU,
    Hard,
    Index,
    Inputs,
    Operand,
    Piece,
    Problem,
    boxes,
    extent,
    in_and_out,
    scattered,
    setting,
)
from rooflab.workloads.parts import ALL, FAR

SWITCH: Final = ("off", "on")
ONE: Final = slice(0, 1)

WHOLE_FLOPS: Final = 4e9
"""Up to this work all queries are compared, above it samples."""

RUN: Final = 16
"""Queries in a sample, one after the other: all that are decoded at once."""

RUNS: Final = 8
"""Samples of some heads."""

PARTS: Final = 32
"""The heads are sampled in so many parts, each at other queries."""

FEW: Final = 64
"""Causal queries that see less than 1 / FEW of the keys are compared on their own."""

MARK: Final = 16.0
"""A number of a key that every format holds exactly."""

FIRST: Final = "first queries"


@dataclass(frozen=True, kw_only=True)
class Attention(Problem):
    """The layer in which tokens look at each other: compute limits prefill, memory limits decode.

    Q and O have the shape (batch, heads, queries, head_size), K and V (batch, kv_heads, keys,
    head_size). ``heads / kv_heads`` heads that follow each other share keys and values (Ainslie et
    al., "GQA", 2023). Causal queries are the last ones of the keys: query i sees the first
    ``keys - queries + i + 1`` keys, so that decoding is the same problem with few queries. The
    default heads are those of an 8B model of the Llama family.
    """

    workload: ClassVar = "attention"
    title: ClassVar = "attention, forward"
    formula: ClassVar = "O = softmax(Q·Kᵀ / √head_size)·V"
    work: ClassVar = "4·batch·heads·pairs·head_size, pairs of a query and a key that it sees"
    sizes: ClassVar = ("queries", "keys")
    arguments: ClassVar[tuple[str, ...]] = (
        *("batch", "heads", "kv_heads", "queries", "keys", "head_size"),
        *("q", "k", "v", "o"),
    )
    index_type: ClassVar = "int32"
    large: ClassVar = "large values"
    """A title of hard inputs."""

    queries: int = extent("tokens that look")
    keys: int = extent("tokens that they look at")
    heads: int = extent("heads of queries", 32)
    kv_heads: int = extent("heads of keys and values, each for as many heads of queries", 8)
    head_size: int = extent("numbers of a head", 128)
    batch: int = extent("number of sequences", 1)
    causal: str = setting("off", "whether a query sees no later token", SWITCH)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.heads % self.kv_heads:
            fitting = [n for n in range(1, min(self.heads, 4096) + 1) if self.heads % n == 0]
            shown = ", ".join(map(str, fitting[:12])) + ", …" * (len(fitting) > 12)
            raise UsageError(
                f"heads = {self.heads} is not a multiple of kv_heads = {self.kv_heads}: "
                f"kv_heads can be {shown}"
            )
        if self.masked and self.queries > self.keys:
            raise UsageError(
                f"causal queries are among the keys: queries = {self.queries} are more than "
                f"keys = {self.keys}"
            )

    @property
    def masked(self) -> bool:
        """Whether a query sees no later token."""
        return self.causal == "on"

    @property
    def group(self) -> int:
        """Heads of queries that share keys and values."""
        return self.heads // self.kv_heads

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Queries, keys, values, and what the queries find."""
        of_queries = (self.batch, self.heads, self.queries, self.head_size)
        of_keys = (self.batch, self.kv_heads, self.keys, self.head_size)
        return in_and_out(self.precision, q=of_queries, k=of_keys, v=of_keys, o=of_queries)

    @property
    def pairs(self) -> int:
        """Scores that are needed: pairs of a query and a key that it sees, of all heads."""
        unseen = self.queries * (self.queries - 1) // 2 if self.masked else 0
        return self.batch * self.heads * (self.queries * self.keys - unseen)

    @property
    def flops(self) -> int:
        """Two products for each pair; softmax is not counted.

        So count Dao et al. ("FlashAttention", 2022) and Shah et al. ("FlashAttention-3", 2024):
        4·queries·keys·head_size·heads, and half of it if causal. They halve the square; here the
        diagonal counts whole, which is 1 / keys more, and one causal query counts all its keys.
        """
        return 4 * self.pairs * self.head_size

    @property
    def units(self) -> Mapping[str, int]:
        """One exponential for each pair."""
        return {SFU: self.pairs}

    @property
    def tolerance(self) -> float:
        """That of a sum over ``keys`` products of sums over ``head_size``, and of rounded weights.

        The error of a score is that of a dot product, and becomes a relative error of its weight.
        Kernels round weights to the type that is multiplied, by at most half its epsilon (in FP8
        too: Shah et al., "FlashAttention-3", 2024), and exponentials have an error of 2 units in
        the last place, as in softmax. Both errors differ from key to key, as do the values: the
        result is as far off as one weight.
        """
        precision = self.precision
        return precision.dot_product(self.keys + self.head_size) + 0.5 * precision.multiply.epsilon

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """The mean of random values: no other weights make it smaller."""
        return rms["v"] / sqrt(self.keys)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """In FP64, some keys at a time: sums are relative to the largest score so far.

        Within a piece the last query sees all keys, as in the whole problem.
        """
        batch, heads, queries, size = inputs.shape("q")
        kv_heads, keys = inputs.shape("k")[1:3]
        rows = heads // kv_heads * queries
        q = inputs["q"].reshape(batch, kv_heads, rows, size) / sqrt(size)
        last = arrays.arange(rows)[:, None] % queries + (keys - queries)
        step = max(1, PIECE_ELEMENTS // (batch * kv_heads * max(rows, size)))
        largest: Any = -inf
        total: Any = 0
        found: Any = 0
        for start in range(0, keys, step):
            some = (ALL, ALL, slice(start, min(start + step, keys)))
            scores = q @ inputs.part("k", some).swapaxes(2, 3)
            if self.masked:
                unseen = arrays.arange(some[2].start, some[2].stop) > last
                scores[:, :, unseen] = -inf
            higher = arrays.maximum(largest, scores.max(axis=-1, keepdims=True))
            weights, kept = arrays.exp(scores - higher), arrays.exp(largest - higher)
            total = kept * total + weights.sum(axis=-1, keepdims=True)
            found = kept * found + weights @ inputs.part("v", some)
            largest = higher
        return {"o": (found / total).reshape(batch, heads, queries, size)}

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Heads of keys, and the queries that share one of them: they follow each other in Q."""
        return (self.batch * self.kv_heads, self.group * self.queries)

    @property
    def macros(self) -> dict[str, int | str]:
        """Whether queries are causal, and the size of a head, which decides about registers."""
        return {"ROOFLAB_CAUSAL": int(self.masked), "ROOFLAB_HEAD_SIZE": self.head_size}

    # Verification.

    def _piece(self, batch: slice, kv_heads: slice, queries: slice) -> Piece:
        """Neighbouring queries of some heads, and the keys that they see."""
        heads = slice(kv_heads.start * self.group, kv_heads.stop * self.group)
        seen = self.keys - self.queries + queries.stop if self.masked else self.keys
        of_queries = (batch, heads, queries, ALL)
        of_keys = (batch, kv_heads, slice(0, seen), ALL)
        return Piece({"q": of_queries, "k": of_keys, "v": of_keys, "o": of_queries})

    @property
    def _first(self) -> int:
        """The first query that sees more than 1 / FEW of the keys."""
        return max(0, self.keys // FEW - (self.keys - self.queries)) if self.masked else 0

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Some queries; ``hard`` has those that see few keys, whose errors are larger."""
        return self._runs(draw, self.queries, self._first, self._piece)

    def _runs(
        self,
        draw: random.Random,
        count: int,
        first: int,
        piece: Callable[[slice, slice, slice], Piece],
    ) -> Iterator[Piece]:
        """All queries, or keys, from ``first`` on of small problems, else some of each head.

        The first and the last are among them.
        """
        extents, last = (self.batch, self.kv_heads), max(0, count - RUN)
        most = max(1, PIECE_ELEMENTS // (self.group * self.head_size))
        if self.flops <= WHOLE_FLOPS:
            shape = (*extents, count - first)
            for box in boxes(shape, most):
                z, heads, some = whole(box, shape)
                yield piece(z, heads, slice(first + some.start, first + some.stop))
            return
        for box in boxes(extents, max(1, min(most // RUN, prod(extents) // PARTS))):
            starts = {last, first, *(draw.randint(0, last) for _ in range(RUNS - 2))}
            z, heads = whole(box, extents)
            for start in sorted({max(first, start) for start in starts}):
                yield piece(z, heads, slice(start, min(start + RUN, count)))

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Scores that overflow or vanish without their maximum, and one key that decides.

        Each is for the heads that share some keys and values.
        """
        far = FAR[self.precision.accumulate.bytes]
        titles = [f"scores of {far:g}", f"scores of -{far:g}", "scores of 0", self.large]
        titles += ["a first key that decides", "a last key that decides", FIRST]
        for title, places in scattered(draw, self.batch * self.kv_heads, titles, 1).items():
            z, head = divmod(places[0], self.kv_heads)
            piece = self._hard_piece(draw, title, (slice(z, z + 1), slice(head, head + 1)))
            yield Hard(title, self._values(arrays, draw, title, piece), piece)

    def _hard_piece(self, draw: random.Random, title: str, at: tuple[slice, slice]) -> Piece:
        """Some neighbouring queries, which of a causal problem may see few keys."""
        start = draw.randint(0, max(0, self.queries - RUN))
        if title == FIRST:
            start = draw.choice((0, draw.randrange(max(1, self._first))))
        return self._piece(*at, slice(start, min(start + RUN, self.queries)))

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """The inputs that belong to a title of ``hard``."""
        of_q, of_k = piece.select["q"], piece.select["k"]
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        if title == self.large:
            keys = sorted(draw.sample(range(of_k[2].stop), min(8, of_k[2].stop)))
            values = 2 * numbers.random((1, 1, len(keys), self.head_size)) - 1
            return {"v": ((*of_k[:2], keys, ALL), self.precision.input.scale * values)}
        queries = (1, self.group, of_q[2].stop - of_q[2].start, self.head_size)
        if title == FIRST:
            return {"q": (of_q, 2 * numbers.random(queries) - 1)}
        decides = "decides" in title
        score = FAR[self.precision.accumulate.bytes] if decides else float(title.split()[-1])
        asked = arrays.zeros(queries)
        asked[..., 0] = score * sqrt(self.head_size) / MARK
        marks = arrays.full((1, 1, of_k[2].stop, 1), 0.0 if decides else MARK)
        if decides:
            marks[:, :, 0 if "first" in title else -1] = MARK
        return {"q": (of_q, asked), "k": ((*of_k[:3], ONE), marks)}


def whole(parts: Sequence[slice], extents: Sequence[int]) -> list[slice]:
    """Slices with both of their ends."""
    return [slice(*one.indices(n)[:2]) for one, n in zip(parts, extents, strict=True)]
