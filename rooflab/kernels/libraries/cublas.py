"""NVIDIA's cuBLAS through CuPy: the baseline of all other CUDA kernels.

cuBLAS is column-major, and a row-major matrix read by columns is its transpose. So the row-major
C = A·B is computed as Cᵀ = Bᵀ·Aᵀ: the operands change places, and each keeps its transposition.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from rooflab.errors import KernelError
from rooflab.kernels.registry import register
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.kernels.base import Launch, Operands

OF_GEMM_EX: Final = tuple(
    one.name for one in PRECISIONS.values() if one.compute and one.input.bytes > 1
)
"""Precisions of gemmEx: FP8 needs cublasLtMatmul."""


def unavailable(device: Device | None) -> str:
    """Why cuBLAS cannot run on ``device``, empty if it can."""
    if device is None:
        from rooflab.devices.cuda.device import availability

        return availability()
    try:
        from cupy.cuda import cublas  # noqa: F401
    except ImportError:
        from rooflab.devices.cuda import install

        return f"libcublas is not installed: {install.line(install.extra())}"
    return ""


def unsupported(problem: Problem) -> str:
    """Why the environment changes the precision that cuBLAS computes in, empty if it does not."""
    precision, override = problem.precision, os.environ.get("NVIDIA_TF32_OVERRIDE")
    if (precision.name, override) in (("fp32", "1"), ("tf32", "0")):
        return f"NVIDIA_TF32_OVERRIDE={override} changes what {precision.title} means: unset it"
    return ""


@register(
    "cublas",
    backend="cublas",
    device_kind="cuda",
    title="cuBLAS",
    precisions=OF_GEMM_EX,
    teaches="the vendor's library, the baseline on this device",
    library=True,
    unavailable=unavailable,
    unsupported=unsupported,
)
def prepare(device: Device, operands: Operands) -> Launch:
    """Bind the arguments of gemmEx, or of gemmStridedBatchedEx for a batch."""
    import numpy as np
    from cupy.cuda import cublas, runtime
    from cupy.cuda import device as cupy_device

    problem = operands.problem
    precision, settings = problem.precision, problem.settings
    m, n, k, batch = problem.extents.values()
    capability = str(device.fact("compute_capability") or "")
    # Without tensor cores for it cuBLAS fails, or computes in FP32 without an error.
    if capability and float(capability) < precision.oldest:
        raise KernelError(
            f"cublas has {precision.title} from compute capability {precision.oldest} on, "
            f"{device.name} has {capability}"
        )

    handle = cupy_device.get_cublas_handle()
    cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)

    wide = precision.accumulate.name == "fp64"
    scalars = np.array([settings["alpha"], settings["beta"]], np.float64 if wide else np.float32)
    alpha = scalars.ctypes.data
    beta = alpha + scalars.itemsize
    input_type = getattr(runtime, precision.input.cuda)
    output_type = getattr(runtime, precision.output.cuda)
    compute_type = getattr(cublas, precision.compute)
    op_a, op_b = (
        cublas.CUBLAS_OP_T if letter == "t" else cublas.CUBLAS_OP_N
        for letter in str(settings["layout"])
    )
    batched = batch > 1

    def matrix(array: Any, data_type: int) -> tuple[int, ...]:
        """Address, type, leading dimension and, in a batch, the stride."""
        _, rows, columns = array.shape
        return (array.data.ptr, data_type, columns, *((rows * columns,) if batched else ()))

    arguments = (
        *(handle, op_b, op_a, n, m, k),
        *(alpha, *matrix(operands.b, input_type), *matrix(operands.a, input_type)),
        *(beta, *matrix(operands.c, output_type)),
        *((batch,) if batched else ()),
        *(compute_type, cublas.CUBLAS_GEMM_DEFAULT),
    )
    gemm = cublas.gemmStridedBatchedEx if batched else cublas.gemmEx

    # The arguments are plain addresses: `alive` keeps their memory allocated.
    def launch(alive: object = (scalars, operands)) -> None:
        try:
            gemm(*arguments)
        except cublas.CUBLASError as error:
            raise KernelError(f"cuBLAS refuses {problem.size}: {error}") from error

    return launch


@register(
    "cublas",
    backend="cublas",
    device_kind="cuda",
    workload="gemv",
    title="cuBLAS gemv; gemmEx for FP16 and BF16",
    precisions=("fp64", "fp32", "fp16", "bf16"),
    unavailable=unavailable,
    library=True,
)
def prepare_gemv(device: Device, operands: Operands) -> Launch:
    """y = A·x. Row-major A is column-major Aᵀ, so cuBLAS computes (Aᵀ)ᵀ·x."""
    import numpy as np
    from cupy.cuda import cublas, runtime
    from cupy.cuda import device as cupy_device

    precision = operands.problem.precision
    m, n = operands.problem.extents.values()
    handle = cupy_device.get_cublas_handle()
    cublas.setMathMode(handle, cublas.CUBLAS_DEFAULT_MATH)
    cublas.setPointerMode(handle, cublas.CUBLAS_POINTER_MODE_HOST)
    scalars = np.array([1, 0], np.float64 if precision.name == "fp64" else np.float32)
    alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
    a, x, y = (array.data.ptr for array in operands.values())
    arguments: tuple[Any, ...]
    if precision.name in ("fp64", "fp32"):
        gemv = cublas.dgemv if precision.name == "fp64" else cublas.sgemv
        arguments = (handle, cublas.CUBLAS_OP_T, n, m, alpha, a, n, x, 1, beta, y, 1)
    else:
        gemv, number = cublas.gemmEx, getattr(runtime, precision.input.cuda)
        arguments = (
            *(handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, 1, n),
            *(alpha, a, number, n, x, number, n),
            *(beta, y, number, m, cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT),
        )

    def launch(alive: object = (scalars, operands)) -> None:
        try:
            gemv(*arguments)
        except cublas.CUBLASError as error:
            raise KernelError(f"cuBLAS refuses {operands.problem.size}: {error}") from error

    return launch
