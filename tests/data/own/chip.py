"""A kind of device of a user's own, and a kernel for it: its clock moves when a launch says so."""

import numpy as np

import rooflab
from rooflab.devices.base import Costs, Device, Timed
from rooflab.model.facts import Fact
from rooflab.model.roofline import Ceiling, Roofline

LAUNCH_US = 1000.0


class Chip(Device):
    """1 GFLOP/s and 100 MB/s."""

    id = kind = "chip"
    name = "Chip 1"
    needs = "a chip"
    measures_roofs = True
    costs = Costs(start_s=7200.0)
    arrays = np

    @property
    def facts(self):
        return {"memory_total": Fact(10**9, "B", "its data sheet")}

    def roofline(self):
        compute = Ceiling("compute", "fp32", 1e9, "measured", "its data sheet")
        memory = Ceiling("bandwidth", "DRAM", 1e8, "measured", "its data sheet")
        return Roofline((compute, memory))

    def free_bytes(self):
        return 10**9

    def last_level_cache_bytes(self):
        return 0

    def time(self, launches, before=None):
        for launch in launches:
            launch()
        return Timed([LAUNCH_US] * len(launches))

    def synchronize(self):
        pass


@rooflab.kernel(device="chip", workload="add")
def adder(operands, stream):
    """The adder of the chip"""
    return lambda: operands.c.__setitem__(..., operands.a + operands.b)
