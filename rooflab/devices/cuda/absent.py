"""A GPU that is not here: a sweep can be planned for it, and nothing else."""

from __future__ import annotations

import sys
from typing import Any

from rooflab.devices.base import Device
from rooflab.errors import UnavailableError
from rooflab.model.facts import Fact
from rooflab.model.problem import MOST_GPUS
from rooflab.model.roofline import Roofline


class AbsentGpu(Device):
    """It has room for everything, and whatever a kernel needs."""

    id = "cuda:0"
    kind = "cuda"
    name = "a GPU"
    has_own_memory = True
    absent = True
    group_size = MOST_GPUS

    @property
    def facts(self) -> dict[str, Fact]:
        """None are known."""
        return {}

    def free_bytes(self) -> int:
        """Enough."""
        return sys.maxsize

    def roofline(self) -> Roofline:
        """None is known."""
        return Roofline(())

    def _nothing(self, *arguments: object, **named: object) -> Any:
        raise UnavailableError("there is no GPU here")

    arrays = property(_nothing)
    last_level_cache_bytes = nothing = synchronize = release = _nothing
    time = time_batch = _nothing
