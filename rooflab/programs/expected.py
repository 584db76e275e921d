"""DRAM bytes that are to be expected of an operation. Pure.

They are the compulsory ones where DRAM is read once for each argument, as far as is known, and of
products of matrices what ``model.traffic`` adds for panels that are read again. What the kernel
before has left in L2 is not known.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rooflab.devices.records import Launch, Needs
from rooflab.model.traffic import Chip, read_again


def expected_bytes(work: Needs | None, chip: Chip | None) -> float | None:
    """Of one launch; None if it is not known."""
    if work is None or work.bytes is None:
        return None
    if work.once:
        return work.bytes
    if work.product is None or chip is None:
        return None
    return work.bytes + read_again(work.product, chip)


def mean_expected(launches: Sequence[Launch], chip: Chip | None) -> float | None:
    """The mean of all launches; None if that of one is not known."""
    works = Counter(one.work for one in launches)
    found = [(expected_bytes(work, chip), count) for work, count in works.items()]
    known = [value * count for value, count in found if value is not None]
    return sum(known) / len(launches) if launches and len(known) == len(found) else None
