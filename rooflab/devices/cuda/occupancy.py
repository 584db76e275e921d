"""How many blocks of a kernel fit on a multiprocessor. Pure.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Allocation:
the CUDA occupancy calculator: registers of a warp in units of 256, and from 8.0 on 1 KiB of shared
memory of each block for the system.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, inf
from typing import Final

WARP: Final = 32
REGISTERS_PER_SM: Final = 65536
REGISTER_UNIT: Final = 256
SHARED_UNIT: Final = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one multiprocessor: warps, blocks, KiB of shared memory, and KiB reserved per block."""

    warps: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1

    @property
    def shared_bytes_per_block(self) -> int:
        """Most shared memory of one block, static and dynamic."""
        return (self.shared_kib - self.reserved_kib) * 1024


LIMITS: Final = {
    "7.0": Limits(64, 32, 96, 0),
    "7.2": Limits(64, 32, 96, 0),
    "7.5": Limits(32, 16, 64, 0),
    "8.0": Limits(64, 32, 164),
    "8.6": Limits(48, 16, 100),
    "8.7": Limits(48, 16, 164),
    "8.9": Limits(48, 24, 100),
    "9.0": Limits(64, 32, 228),
    "10.0": Limits(64, 32, 228),
    "12.0": Limits(48, 24, 100),
}
"""By compute capability."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks, their share of the possible warps, and what limits them."""

    blocks: int
    percent: float
    limit: str


def occupancy(
    compute_capability: str, threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """Blocks of ``threads`` threads with ``registers`` each and ``shared_bytes`` in all.

    None if the limits of the compute capability are not known.
    """
    limits = LIMITS.get(compute_capability)
    if limits is None:
        return None
    warps = ceil(threads / WARP)
    of_a_warp = ceil(max(registers, 1) * WARP / REGISTER_UNIT) * REGISTER_UNIT
    shared = ceil(shared_bytes / SHARED_UNIT) * SHARED_UNIT + limits.reserved_kib * 1024
    fits = {
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
        "regs": REGISTERS_PER_SM // of_a_warp // warps,
        "shared": limits.shared_kib * 1024 // shared if shared else inf,
    }
    limit = min(fits, key=lambda name: fits[name])
    blocks = int(fits[limit])
    return Occupancy(blocks, 100 * blocks * warps / limits.warps, limit)
