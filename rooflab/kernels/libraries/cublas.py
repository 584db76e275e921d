"""NVIDIA's cuBLAS through CuPy: the baseline of all other CUDA kernels.

cuBLAS is column-major, and a row-major matrix read by columns is its transpose. So the row-major
C = A·B is computed as Cᵀ = Bᵀ·Aᵀ: the operands change places, and each keeps its transposition.
"""

from __future__ import annotations

import os
from functools import partial
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries.cuda import guarded, needs, require_tensor_cores
from rooflab.kernels.registry import register
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

OF_GEMM_EX: Final = tuple(
    one.name for one in PRECISIONS.values() if one.compute and one.input.bytes > 1
)
"""Precisions of gemmEx: FP8 needs cublasLtMatmul."""

unavailable = needs("cublas")


def unsupported(problem: Problem) -> str:
    """Why the environment changes the precision that cuBLAS computes in, empty if it does not."""
    precision, override = problem.precision, os.environ.get("NVIDIA_TF32_OVERRIDE")
    if (precision.name, override) in (("fp32", "1"), ("tf32", "0")):
        return f"NVIDIA_TF32_OVERRIDE={override} changes what {precision.title} means: unset it"
    return ""


def _handle() -> int:
    """CuPy's handle, with scalars in host memory and each precision's own arithmetic."""
    from cupy.cuda import cublas
    from cupy.cuda import device as cupy_device

    handle: int = cupy_device.get_cublas_handle()
    cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    return handle


def multiply(operands: Operands, names: str, scalars: Any, field: str, *, batched: bool) -> Launch:
    """C = alpha·op(A)·op(B) + beta·C by gemmEx, or if ``batched`` gemmStridedBatchedEx.

    ``names`` are those of A, B and C, of (batch, rows, columns, …); ``scalars`` alpha and beta in
    the type of sums. Numbers are real, ``field`` R, or complex, C.
    """
    from cupy.cuda import cublas, runtime

    problem = operands.problem
    precision, layout = problem.precision, str(problem.settings.get("layout", "nn"))
    a, b, c = (operands[name] for name in names)
    batch, m, n = c.shape[:3]
    k = a.shape[1 if layout[0] == "t" else 2]
    op_a, op_b = (cublas.CUBLAS_OP_T if letter == "t" else cublas.CUBLAS_OP_N for letter in layout)
    alpha = scalars.ctypes.data

    def matrix(array: Any, number: str) -> tuple[int, ...]:
        """Address, type, leading dimension and, in a batch, the stride."""
        kind = getattr(runtime, number.replace("_R_", f"_{field}_"))
        rows, columns = array.shape[1:3]
        return (array.data.ptr, kind, columns, *((rows * columns,) if batched else ()))

    gemm = partial(
        cublas.gemmStridedBatchedEx if batched else cublas.gemmEx,
        *(_handle(), op_b, op_a, n, m, k),
        *(alpha, *matrix(b, precision.input.cuda), *matrix(a, precision.input.cuda)),
        *(alpha + scalars.itemsize, *matrix(c, precision.output.cuda)),
        *((batch,) if batched else ()),
        *(getattr(cublas, precision.compute), cublas.CUBLAS_GEMM_DEFAULT),
    )
    told = f"cuBLAS refuses {problem.size}"
    return guarded(gemm, cublas.CUBLASError, told, alive=(scalars, operands))


library = partial(
    register,
    "cublas",
    backend="cublas",
    device_kind="cuda",
    library=True,
    unavailable=unavailable,
)


@library(
    precisions=OF_GEMM_EX,
    teaches="the vendor's library, the baseline on this device",
    unsupported=unsupported,
)
def prepare(device: Device, operands: Operands) -> Launch:
    """cuBLAS."""
    import numpy as np

    problem, settings = operands.problem, operands.problem.settings
    require_tensor_cores("cublas", device, problem.precision)
    wide = problem.precision.accumulate.name == "fp64"
    scalars = np.array([settings["alpha"], settings["beta"]], np.float64 if wide else np.float32)
    return multiply(operands, "abc", scalars, "R", batched=problem.extents["batch"] > 1)


@library(workload="gemv", precisions=("fp64", "fp32", "fp16", "bf16"))
def prepare_gemv(device: Device, operands: Operands) -> Launch:
    """cuBLAS gemv; gemmEx for FP16 and BF16."""
    # y = A·x. Row-major A is column-major Aᵀ, so cuBLAS computes (Aᵀ)ᵀ·x.
    import numpy as np
    from cupy.cuda import cublas, runtime

    problem, precision = operands.problem, operands.problem.precision
    m, n = problem.extents.values()
    scalars = np.array([1, 0], np.float64 if precision.name == "fp64" else np.float32)
    alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    a, x, y = (array.data.ptr for array in operands.values())
    transposed = (_handle(), cublas.CUBLAS_OP_T)
    if precision.name in ("fp64", "fp32"):
        gemv = cublas.dgemv if precision.name == "fp64" else cublas.sgemv
        call = partial(gemv, *transposed, n, m, alpha, a, n, x, 1, beta, y, 1)
    else:
        number = getattr(runtime, precision.input.cuda)
        call = partial(
            cublas.gemmEx,
            *(*transposed, cublas.CUBLAS_OP_N, m, 1, n),
            *(alpha, a, number, n, x, number, n),
            *(beta, y, number, m, cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT),
        )
    told = f"cuBLAS refuses {problem.size}"
    return guarded(call, cublas.CUBLASError, told, alive=(scalars, operands))
