"""What is around the products of a mixture of experts: the choice, the order, the weighted sum.

Rows between them are gathered as by ``embedding``. The default experts are those of Mixtral 8x7B.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar, Final

from rooflab.errors import UsageError
from rooflab.model.precision import INT32, INT64
from rooflab.model.problem import (
    MAX_EXTENT,
    PIECE_ELEMENTS,
    SFU,
    Hard,
    Index,
    Inputs,
    Operand,
    Piece,
    boxes,
    extent,
    scattered,
    setting,
)
from rooflab.workloads.parts import ALL, Exact, Parts

SPREAD: Final = 64
"""The largest logit of a row is less than this above the least: no exponential vanishes."""

CLOSE: Final = 2.0**-9
"""Steps between logits whose exponentials are the same in 16 bits."""

FINE: Final = "logits that fewer bits do not tell apart"
"""Steps between them grow: a rank does not follow from the distance to the largest."""

FAR: Final = {4: 256.0, 8: 1024.0}
"""Logits whose exponentials overflow, by bytes of the sums; powers of two."""


@dataclass(frozen=True, kw_only=True)
class Route(Parts):
    """The experts of each token: Shazeer et al., "Outrageously Large Neural Networks", 2017.

    Logits have the shape (tokens, experts), weights and ids (tokens, chosen). The expert with the
    largest weight comes first. Without ``normalised`` the weights are shares of all experts. The
    logits of a row differ, so that ids are the same in every correct kernel: they are multiples of
    a step that each precision holds. Ids have 64 bits, as in PyTorch.
    """

    workload: ClassVar = "route"
    title: ClassVar = "the experts of each token, and their weights"
    formula: ClassVar = "ids = top-k of logits, weights = softmax(logits)[ids], over their sum"
    work: ClassVar = "tokens·(experts + 4·chosen); not normalised tokens·(4·experts + chosen)"
    sizes: ClassVar = ("tokens",)
    axes: ClassVar = ("tokens",)
    roundings: ClassVar = 32
    """As in softmax, of weights that are no smaller than 2**-93."""

    tokens: int = extent("tokens")
    experts: int = extent("experts", 8)
    chosen: int = extent("experts of a token", 2)
    normalised: str = setting("on", "whether the weights of a token add up to 1", ("on", "off"))

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_chosen(self.chosen, self.experts)
        if self.experts > (most := round(4 / (self.precision.input.epsilon or 2.0**-20))):
            title = self.precision.title
            raise UsageError(f"experts = {self.experts}: {title} tells {most} logits apart at most")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Logits, the weights of the chosen experts, their numbers."""
        step = 2.0 ** -max(0, (self.experts - 1).bit_length() - SPREAD.bit_length() + 1)
        least = -(self.experts // 2) * step
        within = (least, least + (self.experts - 1) * step)
        shape, found = (self.tokens, self.experts), (self.tokens, self.chosen)
        return (
            Operand("logits", shape, self.precision.input, within=within, step=step),
            Operand("weights", found, self.precision.output, "out"),
            Operand("ids", found, INT64, "out"),
        )

    @property
    def _powers(self) -> int:
        """Exponentials of a token."""
        return self.chosen if self.normalised == "on" else self.experts

    @property
    def flops(self) -> int:
        """A comparison for each logit.

        For each exponential a difference, the exponential, a sum; for each weight a quotient.
        """
        return self.tokens * (self.experts + 3 * self._powers + self.chosen)

    @property
    def units(self) -> Mapping[str, int]:
        """The exponentials."""
        return {SFU: self.tokens * self._powers}

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """The smallest normal number of FP32, or the step of tiny weights: they may be zero."""
        return max(2.0**-126, self.precision.output.smallest)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """By a sort of each row, and exponentials that do not overflow."""
        logits = inputs["logits"]
        ids = arrays.argsort(-logits, axis=1)[:, : self.chosen]
        largest = arrays.take_along_axis(logits, ids, axis=1)
        powers = arrays.exp(largest - largest[:, :1])
        whole = powers if self.normalised == "on" else arrays.exp(logits - largest[:, :1])
        return {"weights": powers / whole.sum(axis=1, keepdims=True), "ids": ids}

    # Verification.

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """Logits that differ too."""
        first, step, ordered = self.hard_parts()[title]
        places = [i * (i + 1) // 2 if title == FINE else i for i in range(self.experts)]
        tokens = piece.select["logits"][0]
        rows = [places if ordered else draw.sample(places, self.experts) for _ in tokens]
        numbers = first + step * arrays.asarray(rows, dtype=arrays.float64)
        return {"logits": (piece.select["logits"], numbers)}

    def hard_parts(self) -> dict[str, tuple[float, float, bool]]:
        """By title the first logit, the step to the next one, and whether they are in order.

        Of large ones a step is as small as the precision has them.
        """
        far, half = FAR[self.precision.accumulate.bytes], self.experts // 2
        epsilon = self.precision.input.epsilon
        least = far / 2 * epsilon
        room = self.experts * (self.experts - 1) // 2 * epsilon < 1  # one epsilon is that of 1 to 2
        fine = {FINE: (1.0, epsilon, False)} if room else {}
        return fine | {
            "large logits": (far, -max(1.0, least), False),
            "logits far below zero": (-far, max(least, min(1.0, far / 4 / self.experts)), False),
            "logits that are close": (-half * CLOSE, CLOSE, False),
            "the first experts": (half / 8, -1 / 8, True),
            "the last experts": (-half / 8, 1 / 8, True),
        }


@dataclass(frozen=True, kw_only=True)
class SortExperts(Exact):
    """Tokens in the order of their experts, as a grouped product needs them.

    A slot is an expert of a token, with the number token·chosen + j. Slots are sorted by expert,
    those of an expert by their number. ``sources`` has the token of each row, ``shares`` its
    weight, ``places`` the row of each slot, ``ends`` the row after the last one of each expert.
    The experts of a token differ. All but weights and ends have 64 bits, as in PyTorch.
    """

    workload: ClassVar = "sort_experts"
    title: ClassVar = "tokens in the order of their experts"
    formula: ClassVar = "rows = slots sorted by expert: sources, shares, places, ends"
    work: ClassVar = "0"
    sizes: ClassVar = ("tokens",)

    tokens: int = extent("tokens")
    experts: int = extent("experts", 8)
    chosen: int = extent("experts of a token", 2)

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_chosen(self.chosen, self.experts)
        if self.rows >= MAX_EXTENT:
            raise UsageError(f"tokens x chosen = {self.rows} must be below {MAX_EXTENT}")

    @property
    def rows(self) -> int:
        """The slots of all tokens."""
        return self.tokens * self.chosen

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Ids and weights of each token; by row token and weight; by slot its row; ends."""
        shape, rows = (self.tokens, self.chosen), (self.rows,)
        return (
            Operand("ids", shape, INT64, within=(0, self.experts - 1), step=1.0),
            Operand("weights", shape, self.precision.input),
            Operand("sources", rows, INT64, "out"),
            Operand("shares", rows, self.precision.output, "out"),
            Operand("places", rows, INT64, "out"),
            Operand("ends", (self.experts,), INT32, "out"),
        )

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the experts."""
        return (self.experts,)

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """By a sort of numbers that differ: expert first, then slot."""
        ids, weights = (inputs[name].reshape(-1) for name in ("ids", "weights"))
        ids, slots = ids.astype(arrays.int64), arrays.arange(len(ids))
        order = arrays.argsort(ids * len(ids) + slots)
        places = arrays.empty_like(order)
        places[order] = slots
        ends = arrays.searchsorted(ids[order], arrays.arange(self.experts), side="right")
        sources = order // self.chosen
        return {"sources": sources, "shares": weights[order], "places": places, "ends": ends}

    def hard(self, arrays: Any, draw: random.Random) -> Iterable[Hard]:
        """One of eight tokens has the last experts, all others the first ones, in one order."""
        experts = list(range(self.experts))
        ends = experts[: self.chosen], experts[-self.chosen :]
        rows = [ends[i % 8 == 7] for i in range(self.tokens)]
        draw.shuffle(rows)
        ids = arrays.asarray(rows, dtype=arrays.int64)
        yield Hard("experts that most tokens chose, or none", {"ids": ((ALL, ALL), ids)}, Piece())


@dataclass(frozen=True, kw_only=True)
class Combine(Parts):
    """The results of its experts, weighted and added up, for each token.

    Row ``places[token·chosen + j]`` is what the j-th expert of a token made; its weight is in
    ``shares`` at the same place. Places are those of all rows, in a random order.
    """

    workload: ClassVar = "combine"
    title: ClassVar = "weighted sums of the rows of each token's experts"
    formula: ClassVar = "y[t] = Σ shares[p]·rows[p] over the places p of token t"
    work: ClassVar = "2·tokens·chosen·columns"
    sizes: ClassVar = ("tokens", "columns")
    axes: ClassVar = ("tokens",)
    each: ClassVar = 2
    """A multiplication and an addition for each element."""

    tokens: int = extent("tokens")
    columns: int = extent("elements of a row")
    chosen: int = extent("experts of a token", 2)

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Rows of all experts, their weights, the places of each token's rows, the sums."""
        given, count = self.precision.input, self.tokens * self.chosen
        return (
            Operand("rows", (count, self.columns), given),
            Operand("shares", (count,), given),
            Operand("places", (count,), INT64, within=(0, count - 1), step=1.0),
            Operand("y", (self.tokens, self.columns), self.precision.output, "out"),
        )

    @property
    def tolerance(self) -> float:
        """The tolerance of sums of so many products, which may be rounded before."""
        return self.precision.dot_product(self.chosen)

    def magnitude(self, rms: Mapping[str, float]) -> float:
        """Of random products, which may cancel."""
        return sqrt(self.chosen) * rms["rows"] * rms["shares"]

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        """The sums. A piece with fewer rows has them in the order of its places."""
        places = inputs["places"].astype(int)
        if inputs.shape("rows")[0] < self.tokens * self.chosen:
            places = arrays.arange(len(places))
        shares, rows = inputs.part("shares", (places,)), inputs.part("rows", (places, ALL))
        products = (shares[:, None] * rows).reshape(-1, self.chosen, self.columns)
        return {"y": products.sum(axis=1)}

    # Verification.

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Every token, some at a time."""
        most = max(1, PIECE_ELEMENTS // (self.columns * self.chosen))
        for (some,) in boxes((self.tokens,), most):
            slots = slice(some.start * self.chosen, some.stop * self.chosen)
            yield Piece({"places": (slots,), "y": (some, ALL)})

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Some tokens of each kind, whose rows are in the order of their slots."""
        kinds, chosen = self.hard_tokens(), self.chosen
        for title, tokens in scattered(draw, self.tokens, sorted(kinds)).items():
            number, share, rest = kinds[title]
            slots = [token * chosen + j for token in tokens for j in range(chosen)]
            shares = arrays.full(len(slots), rest)
            shares[::chosen] = share
            values: dict[str, Any] = {
                "rows": ((slots, ALL), number),
                "shares": ((slots,), shares),
                "places": ((slots,), arrays.asarray(slots)),
            }
            select = {name: index for name, (index, _) in values.items()}
            yield Hard(title, values, Piece({**select, "y": (tokens, ALL)}))

    def hard_tokens(self) -> dict[str, tuple[float, float, float]]:
        """By title the number in each row, the weight of the first row, and of the others."""
        scale = self.precision.input.scale
        return {
            "large numbers": (scale, 0.5, 0.25),
            "small numbers": (1 / scale, 0.5, 0.25),
            "one expert that counts": (0.75, 1.0, 0.0),
            "weights that cancel": (0.75, (self.chosen - 1) / 16, -0.0625),
        }


def _check_chosen(chosen: int, experts: int) -> None:
    """Raise ``UsageError`` if a token has more experts than there are."""
    if chosen > experts:
        raise UsageError(f"chosen = {chosen} are more than all {experts} experts")
