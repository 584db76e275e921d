"""Gradients of attention for queries, keys and values, from what the forward pass saves."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, e, frexp, inf, ldexp, log, log2, sqrt
from typing import Any, ClassVar, Final

from rooflab.model.problem import PIECE_ELEMENTS, Index, Inputs, Operand, Piece, in_and_out
from rooflab.workloads.attention import FIRST, MARK, ONE, RUN, Attention
from rooflab.workloads.parts import ALL, FAR

EXPONENT_ROUNDINGS: Final = 8.0
"""Scores, the saved logarithms and their difference: each is rounded, and a constant of each."""


@dataclass(frozen=True, kw_only=True)
class AttentionBackward(Attention):
    """The gradients of ``attention``, which training needs.

    Shapes are those of attention: dO and dQ have that of Q, dK and dV that of K. What the forward
    pass saves is given: O, and lse of shape (batch, heads, queries) in the type of sums, the
    logarithm of the sum of the exponentials of a query's scores. A kernel must use them, as those
    of FlashAttention and cuDNN do: random numbers do not fit to the queries.
    """

    workload: ClassVar = "attention_backward"
    title: ClassVar = "attention, gradients"
    formula: ClassVar = (
        "P = exp(Q·Kᵀ / √head_size - lse), dS = P∘(dO·Vᵀ - Σ dO∘O) / √head_size, "
        "dQ = dS·K, dK = dSᵀ·Q, dV = Pᵀ·dO"
    )
    work: ClassVar = "10·batch·heads·pairs·head_size, pairs of a query and a key that it sees"
    arguments: ClassVar = (
        *("batch", "heads", "kv_heads", "queries", "keys", "head_size"),
        *("q", "k", "v", "o", "dout", "lse", "dq", "dk", "dv"),
    )
    large: ClassVar = "large gradients"

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Those of attention, the gradient of O, what is saved, and three gradients."""
        types, (q, k, v, o) = self.precision, super().operands
        shapes = {one.name: one.shape for one in (q, k, v, o)} | {"dout": o.shape}
        *given, dq = in_and_out(types, **shapes, dq=q.shape)
        # Exponentials of random scores are about 1, seldom more than e.
        limits = (log(self.keys), log(self.keys) + 1)
        lse = Operand("lse", q.shape[:3], types.accumulate, within=limits)
        of_keys = (Operand(name, k.shape, types.output, "out") for name in ("dk", "dv"))
        return (*given, lse, dq, *of_keys)

    @property
    def flops(self) -> int:
        """Five products for each pair; exponentials and D = Σ dO∘O are not counted.

        So count Dao ("FlashAttention-2", 2023) and others: 2.5 times the forward pass. A kernel
        that computes the scores twice, so that no gradient has two writers, does seven.
        """
        return 10 * self.pairs * self.head_size

    @property
    def tolerance(self) -> float:
        """The largest of those of the outputs."""
        return max(self.tolerance_of(one) for one in self.operands if one.written)

    def tolerance_of(self, operand: Operand) -> float:
        """That of a sum of products of sums, of rounded weights, and of rounded exponents.

        Kernels round P and dS to the type that is multiplied, as attention does. Weights are about
        1 / keys: those of many keys are subnormal in FP16, and so are gradients of few queries. An
        exponent is the difference of a score and lse. Roundings of both are as large as they are,
        up to ``FAR``, and are the same for many keys, so that no sum makes them smaller.
        """
        types, terms = self.precision, self._terms(operand)
        lost = 0.5 * types.multiply.smallest * e * self.keys * (1 + 4 / sqrt(terms))
        exponents = EXPONENT_ROUNDINGS / 2 * FAR[types.accumulate.bytes] * types.accumulate.epsilon
        sums = types.dot_product(terms + self.head_size)
        return sums + 0.5 * types.multiply.epsilon + lost + exponents

    def _terms(self, operand: Operand) -> int:
        """Of the sum that an element is."""
        return self.keys if operand.name == "dq" else self.group * self.queries

    def magnitude_of(self, operand: Operand, rms: Mapping[str, float]) -> float:
        """Of random terms: those of dO·Vᵀ and D may cancel."""
        weight, terms = 1 / (e * self.keys), sqrt(self._terms(operand))
        if operand.name == "dv":
            return terms * weight * rms["dout"]
        change = weight * rms["dout"] * sqrt(rms["v"] ** 2 + rms["o"] ** 2)
        return terms * change * rms["k" if operand.name == "dq" else "q"]

    # The reference. As in attention, the last query of a piece sees its last key.

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """In FP64, some queries and keys at a time.

        A piece may have no dQ, or that of its last queries, and dK and dV of its first keys.
        """
        dq = self._of_queries(arrays, inputs)
        dk, dv = self._of_keys(arrays, inputs)
        return {"dq": dq, "dk": dk, "dv": dv}

    def _of_queries(self, arrays: Any, inputs: Inputs) -> Any:
        """dQ of the last queries, as many as the piece has."""
        shape = inputs.shape("dq")
        queries, keys, size = inputs.shape("q")[2], inputs.shape("k")[2], shape[3]
        most = PIECE_ELEMENTS // (shape[0] * shape[1])
        height = min(max(1, most // size), max(1, shape[2]))
        found = []
        for rows in _steps(queries - shape[2], queries, height):
            total: Any = 0
            for columns in _steps(0, keys, most // max(height, size)):
                one = _Tile(self, arrays, inputs, rows, columns)
                total = total + one.changes @ one.k
            found.append(total.reshape(*shape[:2], -1, size) / sqrt(size))
        return arrays.concatenate(found, axis=2) if found else arrays.zeros(shape)

    def _of_keys(self, arrays: Any, inputs: Inputs) -> tuple[Any, Any]:
        """dK and dV of the first keys, as many as the piece has."""
        shape, (batch, heads, queries, size) = inputs.shape("dk"), inputs.shape("q")
        most = PIECE_ELEMENTS // (batch * heads)
        width = min(max(1, most // size), max(1, shape[2]))
        found = []
        for columns in _steps(0, shape[2], width):
            dk: Any = 0
            dv: Any = 0
            for rows in _steps(0, queries, most // max(width, size)):
                one = _Tile(self, arrays, inputs, rows, columns)
                dk = dk + one.changes.swapaxes(2, 3) @ one.q
                dv = dv + one.weights.swapaxes(2, 3) @ one.dout
            found.append((dk / sqrt(size), dv))
        if not found:
            return arrays.zeros(shape), arrays.zeros(shape)
        all_dk, all_dv = zip(*found, strict=True)
        return arrays.concatenate(all_dk, axis=2), arrays.concatenate(all_dv, axis=2)

    # Verification.

    def _strips(
        self, batch: slice, kv_heads: slice, queries: slice, keys: slice, asked: int, found: int
    ) -> Piece:
        """The last ``asked`` of ``queries`` and the first ``found`` of ``keys``, of some heads."""
        heads = slice(kv_heads.start * self.group, kv_heads.stop * self.group)
        of_queries, of_keys = (batch, heads, queries), (batch, kv_heads, keys, ALL)
        dq = (batch, heads, slice(queries.stop - asked, queries.stop), ALL)
        dk = (batch, kv_heads, slice(keys.start, keys.start + found), ALL)
        return Piece(
            dict.fromkeys(("q", "o", "dout"), (*of_queries, ALL))
            | {"lse": of_queries, "k": of_keys, "v": of_keys}
            | {"dq": dq, "dk": dk, "dv": dk}
        )

    def _piece(self, batch: slice, kv_heads: slice, queries: slice) -> Piece:
        """Neighbouring queries of some heads, and the keys that they see."""
        seen = self.keys - self.queries + queries.stop if self.masked else self.keys
        asked = queries.stop - queries.start
        return self._strips(batch, kv_heads, queries, slice(0, seen), asked, 0)

    def _piece_of_keys(self, batch: slice, kv_heads: slice, keys: slice) -> Piece:
        """Neighbouring keys of some heads, and the queries that see them."""
        first = max(0, keys.start - (self.keys - self.queries)) if self.masked else 0
        queries, seen = slice(first, self.queries), slice(keys.start, self.keys)
        return self._strips(batch, kv_heads, queries, seen, 0, keys.stop - keys.start)

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Also of keys, and the queries that see them."""
        for count, piece in ((self.queries, self._piece), (self.keys, self._piece_of_keys)):
            yield from self._runs(draw, count, 0, piece)

    def _hard_piece(self, draw: random.Random, title: str, at: tuple[slice, slice]) -> Piece:
        """All queries, in case their logarithms make exponentials overflow or vanish."""
        few = min(RUN, self.queries)
        if title == FIRST:
            return self._piece(*at, slice(0, few))
        everything = slice(0, self.queries), slice(0, self.keys)
        return self._strips(*at, *everything, few, min(RUN, self.keys))

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """The inputs that belong to a title of ``hard``."""
        of_q, of_k, rows = (piece.select[name] for name in ("q", "k", "lse"))
        shape = (1, self.group, rows[2].stop - rows[2].start)
        if title == self.large:
            numbers = arrays.random.default_rng(draw.getrandbits(32))
            random_numbers = 2 * numbers.random((*shape, self.head_size)) - 1
            return {"dout": (of_q, self.precision.input.scale * random_numbers)}
        seen = self._seen(arrays, shape[2])
        if title == FIRST:
            return {"lse": (rows, arrays.zeros(shape) + arrays.log(seen))}
        decides = "decides" in title
        alone = decides and not (self.masked and "last" in title)  # it has the weight of all
        score = FAR[self.precision.accumulate.bytes] if decides else float(title.split()[-1])
        asked = arrays.zeros((*shape, self.head_size))
        asked[..., 0] = short(score * sqrt(self.head_size) / MARK)
        score = float(asked[0, 0, 0, 0]) * MARK / sqrt(self.head_size)
        marks = arrays.full((1, 1, self.keys, 1), 0.0 if decides else MARK)
        saved = score + arrays.log(seen)
        if decides:  # beside its exponential those of others are nothing
            key = 0 if "first" in title else self.keys - 1
            marks[:, :, key] = MARK
            saved = arrays.where(seen > key, score, arrays.log(seen))
        return {
            "q": (of_q, asked),
            "k": ((*of_k[:3], ONE), marks),
            "lse": (rows, arrays.zeros(shape) + saved),
            **self._of_one_sign(arrays, draw, (of_q, of_k), all_in_one=alone),
        }

    def _of_one_sign(
        self, arrays: Any, draw: random.Random, at: tuple[Index, Index], *, all_in_one: bool
    ) -> dict[str, tuple[Index, Any]]:
        """V and dO above zero, O zero: dK has one column, whose sums could cancel by chance.

        They must not overflow in FP16, nor be lost: with ``all_in_one`` one key has the gradients
        of all queries, else it shares them with others.
        """
        numbers = arrays.random.default_rng(draw.getrandbits(32))
        (of_q, of_k), group, size = at, self.group, self.head_size
        asked, found = ((one[2].stop - one[2].start) for one in at)
        exponent = min(-4, 2 - ceil(log2(group * asked))) if all_in_one else -4
        dout = ldexp(1.0, exponent) * (1 + numbers.random((1, group, asked, size)))
        return {
            "v": (of_k, (1 + numbers.random((1, 1, found, size))) / 2),
            "dout": (of_q, dout),
            "o": (of_q, arrays.zeros(dout.shape)),
        }

    def _seen(self, arrays: Any, queries: int) -> Any:
        """How many keys each of the first queries sees."""
        last = arrays.arange(1, queries + 1, dtype=float) + (self.keys - self.queries)
        return last if self.masked else last * 0 + self.keys


class _Tile:
    """Some queries of a piece and some of its keys: P, and dS·√head_size, in FP64.

    Heads that share keys are one matrix: (batch, kv_heads, heads / kv_heads · queries, …).
    """

    def __init__(
        self, problem: AttentionBackward, arrays: Any, inputs: Inputs, rows: slice, columns: slice
    ) -> None:
        (batch, _, queries, size), (kv_heads, keys) = inputs.shape("q"), inputs.shape("k")[1:3]

        def of_queries(name: str) -> Any:
            return inputs.part(name, (ALL, ALL, rows)).reshape(batch, kv_heads, -1, size)

        self.q, self.dout = of_queries("q"), of_queries("dout")
        self.k, v = (inputs.part(name, (ALL, ALL, columns)) for name in ("k", "v"))
        saved = inputs.part("lse", (ALL, ALL, rows)).reshape(batch, kv_heads, -1, 1)
        scores = self.q @ self.k.swapaxes(2, 3) / sqrt(size)
        if problem.masked:
            height = rows.stop - rows.start
            last = arrays.arange(self.q.shape[2])[:, None] % height + rows.start + (keys - queries)
            scores[:, :, arrays.arange(columns.start, columns.stop) > last] = -inf
        self.weights = arrays.exp(scores - saved)
        along = (self.dout * of_queries("o")).sum(axis=3, keepdims=True)
        self.changes = self.weights * (self.dout @ v.swapaxes(2, 3) - along)


def _steps(start: int, end: int, step: int) -> Iterator[slice]:
    """Slices of up to ``step`` from ``start`` to ``end``."""
    step = max(1, step)
    return (slice(i, min(i + step, end)) for i in range(start, end, step))


def short(number: float) -> float:
    """The next larger number of three bits, which every format holds exactly."""
    mantissa, exponent = frexp(number)
    sign = -1 if mantissa < 0 else 1
    return sign * ldexp(ceil(abs(mantissa) * 8), exponent - 3)
