"""Operators that no workload describes yet: their work, in one place. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rooflab.model.precision import INT32, Precision
from rooflab.model.problem import DRAM, SFU


@dataclass(frozen=True, slots=True)
class Formula:
    """The work of an operator: FLOPs, compulsory bytes of device memory, operations of ``units``.

    ``size`` is its name in tables.
    """

    kind: str
    size: str
    precision: Precision
    flops: int
    bytes: int
    units: Mapping[str, int] = field(default_factory=dict, hash=False)

    @property
    def flops_each(self) -> int:
        """On several GPUs, those of each."""
        return self.flops

    @property
    def traffic(self) -> dict[str, int]:
        """Bytes per link."""
        return {DRAM: self.bytes}


def largest(rows: int, columns: int, precision: Precision) -> Formula:
    """The column of the largest number of each row."""
    count = rows * columns * precision.input.bytes + rows * INT32.bytes
    return Formula("argmax", f"{rows}x{columns}", precision, rows * columns, count)


def attention(
    pairs: int, size: str, of_pair: tuple[int, int], elements: int, precision: Precision
) -> Formula:
    """Softmax of products, as the workload ``attention`` counts it, where heads differ from that.

    ``of_pair`` are the numbers of a key and of a value; ``elements`` all that are read or written.
    """
    flops = 2 * pairs * sum(of_pair)
    count = elements * precision.input.bytes
    return Formula("attention", size, precision, flops, count, {SFU: pairs})


def windowed_pairs(queries: int, window: int) -> int:
    """Pairs of a query and a key of a causal square in which each sees ``window`` tokens."""
    full = min(queries, window)
    return full * (full + 1) // 2 + (queries - full) * window


def latent_pairs(batch: int, heads: int, queries: int, keys: int) -> int:
    """Pairs of causal queries, the last ones of the keys."""
    return batch * heads * (queries * keys - queries * (queries - 1) // 2)


def experts_used(tokens: int, count: int, chosen: int) -> float:
    """The expected number of experts that are used, if every token chooses at random."""
    return float(count * (1 - (1 - chosen / count) ** tokens))
