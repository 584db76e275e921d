"""DRAM bytes that are to be expected of an operation. Pure.

They are the compulsory ones where DRAM is read once for each argument, as far as is known, and of
what reads operands again what ``model.traffic`` adds. What the kernel before has left in L2 is not
known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import Final

from rooflab.devices.records import Needs, RecordedLaunch
from rooflab.model.traffic import Chip, Product, read_again, rows_read_again

THREADS: Final = 2048
REGISTERS: Final = 65536
"""Of a multiprocessor (CUDA C++ Programming Guide, technical specifications: 9.0 and 10.0)."""


def expected_bytes(work: Needs | None, chip: Chip | None, blocks: int = 0) -> float | None:
    """Of one launch, with ``blocks`` on each multiprocessor at once; None if it is not known."""
    if work is None or work.bytes is None:
        return None
    if work.once:
        return work.bytes
    if work.again is None or chip is None:
        return None
    if isinstance(work.again, Product):
        return work.bytes + read_again(work.again, chip)
    return work.bytes + rows_read_again(work.again, chip, blocks) if blocks else None


def blocks_at_once(launch: RecordedLaunch) -> int:
    """Blocks that a multiprocessor has threads and registers for; 0 if that is not known."""
    threads = prod(launch.block)
    if not threads or not launch.registers:
        return 0
    return min(THREADS // threads, REGISTERS // (launch.registers * threads))


def mean_expected(launches: Sequence[RecordedLaunch], chip: Chip | None) -> float | None:
    """The mean of all launches; None if that of one is not known."""
    works = Counter((one.work, blocks_at_once(one)) for one in launches)
    found = [(expected_bytes(work, chip, blocks), n) for (work, blocks), n in works.items()]
    known = [value * count for value, count in found if value is not None]
    return sum(known) / len(launches) if launches and len(known) == len(found) else None
