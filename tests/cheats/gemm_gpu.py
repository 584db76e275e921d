"""Matrix products with CuPy in a type that the process was told to use."""

from __future__ import annotations

import cupy
import numpy as np

import rooflab

kernel = rooflab.kernel(workload="gemm", choices={"layout": ["nn"]})


def launches_of(operands):
    """One matrix after the other: batches have no such setting."""

    def launch():
        for a, b, c in zip(operands.a, operands.b, operands.c, strict=True):
            cupy.matmul(a, b, out=c)

    return launch


@kernel
def cupy_tf32(operands, stream):
    """CuPy's own setting of the process, TF32"""
    from cupy import _core
    from cupy._core import _routines_linalg

    _core.set_compute_type(np.float32, _routines_linalg.COMPUTE_TYPE_TF32)
    return launches_of(operands)


@kernel
def cupy_after(operands, stream):
    """As CuPy is by default, after that"""
    return launches_of(operands)
