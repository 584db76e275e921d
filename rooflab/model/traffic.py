"""DRAM traffic that is to be expected where operands are read several times. Pure.

A product of matrices that does not fit in L2 reads its operands several times. Each multiprocessor
computes one tile at a time, and these tiles together are a **wave**: a rectangle of the result. A
wave reads its rows of A and its columns of B once, so the larger it is, the less is read again. How
large it can be is known, since its sums are in registers. The panel that two waves share is read
once if it stays in L2 until the second one.

A kernel that reads a row once more, as softmax does with one that is too long for shared memory,
finds it in L2 as far as the rows that are read at the same time fit there.

This is no bound and no count. It is never used for a roof.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Final

from rooflab.model.facts import Fact

ACCUMULATORS: Final = 32768
"""Elements of the result that a multiprocessor holds, in half of its 65,536 registers of 32 bits
(CUDA C++ Programming Guide, technical specifications). cuBLAS's tiles for large products have
32,768 to 40,960.
"""

FILLED: Final = 0.7
"""The share of that rectangle which is as good as a square that is computed in step.

Fitted to 49 products by cuBLAS on one H200 (docs/lab/traffic.md): waves are longer than wide, and
their blocks not quite at the same place of K.
"""

PARTITIONS: Final = 2
"""L2 has two partitions, each for half of the multiprocessors, and both keep what all of them read
(NVIDIA A100 Tensor Core GPU Architecture, whitepaper; later GPUs of that class are alike).
"""

MEASURED: Final = ("bf16", "fp16")
"""Precisions in which products have been counted. FP32 without tensor cores has smaller tiles."""


@dataclass(frozen=True, slots=True)
class Product:
    """``batch`` products of M × K and K × N, whose elements have ``element_bytes`` each."""

    m: int
    n: int
    k: int
    batch: int = 1
    element_bytes: int = 2


@dataclass(frozen=True, slots=True)
class LongRows:
    """``count`` rows, each for a block: ``bytes`` are those of a row of all operands and results,
    ``again`` those that the block reads after it has read them all once."""

    count: int
    bytes: int
    again: int


Again = Product | LongRows
"""What says how much is read again."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What must be known of a GPU: how many multiprocessors it has, and how many bytes of L2."""

    multiprocessors: float
    l2_bytes: float

    @classmethod
    def of(cls, facts: Mapping[str, Fact]) -> Chip | None:
        """That of a device with these facts; None if one of the two is not known."""
        found = [facts[name].value for name in ("sm_count", "l2_cache") if name in facts]
        numbers = [float(one) for one in found if isinstance(one, int | float) and one > 0]
        return cls(*numbers) if len(numbers) == len(cls.__slots__) else None


def read_again(product: Product, chip: Chip, filled: float = FILLED) -> float:
    """Bytes of A and B that are read from DRAM beyond the first time, by all of the batch.

    With the compulsory bytes this was within 20 % of the counted DRAM bytes for each of 49
    products in BF16 by cuBLAS on one H200 (``results/benchmarks/traffic.csv``).
    """
    m, n, k = product.m, product.n, product.k
    held = chip.multiprocessors * ACCUMULATORS
    if m * n <= held:  # one wave
        return 0.0
    height, width = _wave(m, n, filled * held)
    a_again = m * k * (n / width - 1)
    b_again = n * k * (m / height - 1)
    moved = product.element_bytes * ((height + width) * k + height * width)
    kept = moved <= chip.l2_bytes / PARTITIONS  # one operand's panel, until the next wave
    again = min(a_again, b_again) if kept else a_again + b_again
    return product.batch * product.element_bytes * again


def _wave(m: int, n: int, elements: float) -> tuple[float, float]:
    """Rows and columns of a wave: a square, or longer where the result is narrower."""
    height = min(m, sqrt(elements))
    width = min(n, elements / height)
    return min(m, elements / width), width


def rows_read_again(rows: LongRows, chip: Chip, blocks: int) -> float:
    """Bytes that are read from DRAM once more, with ``blocks`` on each multiprocessor at once.

    With the compulsory bytes, and 2 and 4 blocks at once, this is 10 % above and 1 % below the
    counted DRAM bytes of PyTorch's ``log_softmax`` of 8192 rows of 32,000 and of its gradient, on
    an H200 (docs/lab/traffic.md).
    """
    at_once = min(rows.count, chip.multiprocessors * blocks) * rows.bytes
    kept = min(1.0, chip.l2_bytes / PARTITIONS / at_once) if at_once else 1.0
    return rows.count * rows.again * (1 - kept)
