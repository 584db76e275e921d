"""A GPU that is not here: a sweep can be planned for it, and nothing else."""

from __future__ import annotations

import sys

from rooflab.devices.cuda.device import CudaDevice
from rooflab.model.problem import MOST_GPUS
from rooflab.model.roofline import Roofline


class AbsentGpu(CudaDevice):
    """It has room for everything, and whatever a kernel needs; no fact of it is known."""

    absent = True
    group_size = MOST_GPUS

    def __init__(self) -> None:
        self.id, self.name, self.facts = "cuda:0", "a GPU", {}

    def free_bytes(self) -> int:
        """Enough."""
        return sys.maxsize

    def roofline(self) -> Roofline:
        """None is known."""
        return Roofline(())
