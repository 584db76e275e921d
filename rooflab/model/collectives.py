"""Collectives of a program of several processes, as one of its ranks recorded them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

_NAME: Final = re.compile(r"nccl(?:Dev)?Kernel_?(\w*)", re.IGNORECASE)
_NVSHMEM: Final = re.compile(r"nvshmem\w*", re.IGNORECASE)
_WORDS: Final = (
    "AllReduce",
    "AllGather",
    "ReduceScatter",
    "AllToAll",
    "SendRecv",
    "Broadcast",
    "Reduce",
)


def collective_of(kernel: str) -> str:
    """``AllReduce`` for ``ncclDevKernel_AllReduce_Sum_bf16_RING_LL``; empty for other kernels.

    Names as in NCCL's and NVSHMEM's kernels; others of theirs are called by the library.
    """
    if found := _NAME.search(kernel):
        words = (word for word in _WORDS if found[1].lower().startswith(word.lower()))
        return next(words, found[1].partition("_")[0] or "NCCL")
    if "nccl" in kernel.lower():
        return "NCCL"
    return "NVSHMEM" if _NVSHMEM.search(kernel) else ""


class CollectiveLaunch(NamedTuple):
    """A launch of a collective, on the rank's own clock. ``row`` is the number of its row, from 0.

    ``exposed_ns`` is the part of ``ns`` in which no other kernel of the rank ran.
    """

    step: int
    row: int
    start_ns: int
    ns: int
    exposed_ns: int

    @property
    def end_ns(self) -> int:
        """When it ended."""
        return self.start_ns + self.ns


@dataclass(frozen=True, slots=True)
class Collectives:
    """All collectives of so many steps.

    Ranks with one ``clock`` share it; those of other hosts add ``epoch_ns``, with which it is that
    of the host since 1970.
    """

    steps: int
    clock: str
    epoch_ns: int
    launches: tuple[CollectiveLaunch, ...] = ()
