"""The CPU with given roofs and a small cache: nothing but kernels is measured, on few copies."""

from __future__ import annotations

from functools import cached_property

from rooflab.devices.cpu.device import CpuDevice
from rooflab.model.roofline import Ceiling, MissingCeiling, Roofline
from rooflab.workloads import gemm


class Quick(CpuDevice):
    """No honest kernel reaches its roofs."""

    id = "cheats.quick:Quick"

    def __init__(self) -> None:
        super().__init__(threads=1)

    @cached_property
    def _ceilings(self) -> Roofline:
        return Roofline(
            ceilings=(
                Ceiling("bandwidth", "DRAM", 1e12, "measured", "given"),
                Ceiling("compute", "fp32", 1e13, "measured", "given"),
            ),
            memory="DRAM",
            prefer=("measured", "derived"),
        )

    def levels(self) -> list[Ceiling | MissingCeiling]:
        return []

    def last_level_cache_bytes(self) -> int:
        return 2**16


class Sampling(Quick):
    """Verifies small products as if they were large."""

    id = "cheats.quick:Sampling"

    def claim(self) -> None:
        """Only in the process that measures."""
        super().claim()
        vars(gemm).update(WHOLE_FLOPS=0, BANDS=32)
