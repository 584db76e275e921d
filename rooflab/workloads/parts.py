"""What most workloads share: the same work for each of many parts, which depend on nothing else."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, ClassVar, Final

from rooflab.model.problem import PIECE_ELEMENTS, Hard, Index, Piece, Problem, boxes, scattered

ALL: Final = slice(None)

FAR: Final = {4: 110.0, 8: 1000.0}
"""Numbers whose exponentials overflow, and vanish with a minus, by bytes of the sums."""


@dataclass(frozen=True, kw_only=True)
class Parts(Problem):
    """Their base. The first axes of operands count the parts."""

    axes: ClassVar[tuple[str, ...]]
    """The extents that count the parts."""
    whole: ClassVar[tuple[str, ...]] = ()
    """Operands that belong to all parts."""
    each: ClassVar[int]
    """FLOPs for each combination of all extents."""
    roundings: ClassVar[int]
    """Roundings of an element before that to the output, at most."""

    @property
    def flops(self) -> int:
        """As many for each combination of all extents."""
        return self.each * prod(self.extents.values())

    @property
    def tolerance(self) -> float:
        """That of a few roundings in the accumulate type, and one to the output."""
        return self.precision.rounding(self.roundings)

    @property
    def counts(self) -> list[int]:
        """The extents that count the parts."""
        return [self.extents[name] for name in self.axes]

    @property
    def grid_extents(self) -> tuple[int, ...]:
        """Blocks tile the parts."""
        return (prod(self.counts),)

    def _piece(self, *some: Any) -> Piece:
        """Some parts: of every operand but those that belong to all."""
        parted = (one for one in self.operands if one.name not in self.whole)
        return Piece({n.name: (*some, *(ALL,) * len(n.shape))[: len(n.shape)] for n in parted})

    def pieces(self, draw: random.Random) -> Iterator[Piece]:
        """Every part, some at a time."""
        sizes = [one.elements for one in self.operands if one.name not in self.whole]
        largest = max(sizes) // prod(self.counts)
        for box in boxes(self.counts, max(1, PIECE_ELEMENTS // largest)):
            yield self._piece(*box)

    def hard(self, arrays: Any, draw: random.Random) -> Iterator[Hard]:
        """Some parts of each kind in ``hard_parts``, along the last of their axes."""
        *others, last = self.counts
        before = [slice(place, place + 1) for place in map(draw.randrange, others)]
        for title, places in scattered(draw, last, sorted(self.hard_parts())).items():
            piece = self._piece(*before, places)
            yield Hard(title, self._values(arrays, draw, title, piece), piece)

    def hard_parts(self) -> dict[str, Any]:
        """By title the number in each input."""
        raise NotImplementedError

    def _values(
        self, arrays: Any, draw: random.Random, title: str, piece: Piece
    ) -> dict[str, tuple[Index, Any]]:
        """The inputs that belong to a title of ``hard``."""
        numbers = self.hard_parts()[title]
        return {name: (piece.select[name], number) for name, number in numbers.items()}


@dataclass(frozen=True, kw_only=True)
class Exact(Problem):
    """The base of workloads without arithmetic."""

    @property
    def flops(self) -> int:
        """None."""
        return 0

    @property
    def tolerance(self) -> float:
        """A copy is exact."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Moves(Exact):
    """The base of workloads that only move numbers."""

    @property
    def moves(self) -> bool:
        """Unless it converts."""
        return self.precision.input == self.precision.output
