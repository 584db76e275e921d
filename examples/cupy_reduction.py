"""A sum written with ``cupy.ReductionKernel``."""

from __future__ import annotations

import rooflab


@rooflab.kernel(workload="sum", precisions=["fp32", "fp64"], requires=["cupy"])
def cupy_reduction(operands, stream):
    """cupy.ReductionKernel"""
    import cupy

    add = cupy.ReductionKernel("T x", "T y", "x", "a + b", "y = a", "0", "example_sum")
    x, y = operands.x, operands.y.reshape(())
    return lambda: add(x, y)
