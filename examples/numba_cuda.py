"""Vector addition with Numba's CUDA compiler: a grid-stride loop."""

from __future__ import annotations

from functools import cache

import rooflab

THREADS = 256
BLOCKS_PER_SM = 16


@rooflab.kernel(workload="add", precisions=["fp32", "fp64"], requires=["numba"])
def numba_cuda_add(operands, stream):
    """A grid-stride loop in Numba"""
    from numba import cuda

    a, b, c = (cuda.as_cuda_array(array.reshape(-1)) for array in operands.values())
    blocks = BLOCKS_PER_SM * cuda.get_current_device().MULTIPROCESSOR_COUNT
    configured = compiled()[blocks, THREADS, cuda.external_stream(stream.ptr)]
    return lambda: configured(a, b, c)


@cache
def compiled():
    """The kernel, compiled once: rooflab prepares a launch for each copy of the operands."""
    from numba import cuda

    @cuda.jit
    def add(a, b, c):
        for i in range(cuda.grid(1), c.size, cuda.gridsize(1)):
            c[i] = a[i] + b[i]

    return add
