"""Memory-bound workloads by CuPy and CUDA's runtime: the baseline of our kernels."""

from __future__ import annotations

from functools import partial
from typing import Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries.cuda import guarded, needs
from rooflab.kernels.registry import register

# CuPy has no BF16 arithmetic: operands are stored as bits.
FLOATS: Final = ("fp64", "fp32", "fp16")
INTEGERS: Final = ("int32", "int64")

BLUR_WEIGHTS: Final = [[[1, 2, 1], [2, 4, 2], [1, 2, 1]]]
"""Sixteenths."""


def _wide(operands: Operands) -> str:
    """The type of sums."""
    return operands.problem.precision.accumulate.storage


library = partial(
    register,
    device_kind="cuda",
    backend="cupy",
    precisions=FLOATS,
    unavailable=needs(),
    library=True,
)


@library("memcpy", workload="copy", precisions=(*FLOATS, "bf16", *INTEGERS))
def memcpy(device: Device, operands: Operands) -> Launch:
    """cudaMemcpyAsync, device to device."""
    # The measured copy roof of a GPU.
    runtime = device.arrays.cuda.runtime
    addresses = operands.c.data.ptr, operands.a.data.ptr
    kind, stream = runtime.memcpyDeviceToDevice, device.stream.ptr
    call = partial(runtime.memcpyAsync, *addresses, operands.a.nbytes, kind, stream)
    return guarded(call, runtime.CUDARuntimeError, "cudaMemcpyAsync", alive=operands)


@library("cupy", workload="add", precisions=(*FLOATS, *INTEGERS))
def add(device: Device, operands: Operands) -> Launch:
    """cupy.add."""
    return partial(device.arrays.add, operands.a, operands.b, operands.c)


@library("cupy", workload="triad")
def triad(device: Device, operands: Operands) -> Launch:
    """cupy.ElementwiseKernel."""
    wide = _wide(operands)
    kernel = device.arrays.ElementwiseKernel(
        f"T a, T b, {wide} alpha",
        "T c",
        "c = static_cast<T>(a + alpha * b)",
        f"rooflab_triad_{wide}",
    )
    alpha = float(operands.problem.settings["alpha"])
    return partial(kernel, operands.a, operands.b, alpha, operands.c)


@library("cupy", workload="sum", precisions=(*FLOATS, *INTEGERS))
def total(device: Device, operands: Operands) -> Launch:
    """cupy.sum."""
    x, y, arrays = operands.x, operands.y, device.arrays
    wide = arrays.empty((), dtype=_wide(operands))
    if wide.dtype == y.dtype:
        return partial(arrays.sum, x, dtype=wide.dtype, out=y[0])

    def launch() -> None:
        arrays.sum(x, dtype=wide.dtype, out=wide)
        y[0] = wide

    return launch


@library("cupy", workload="softmax", composed=True)
def softmax(device: Device, operands: Operands) -> Launch:
    """CuPy, a kernel for each step."""
    arrays, x, y = device.arrays, operands.x, operands.y
    wide = _wide(operands)

    def launch() -> None:
        powers = arrays.exp((x - x.max(axis=1, keepdims=True)).astype(wide, copy=False))
        arrays.divide(powers, powers.sum(axis=1, keepdims=True), out=y, casting="same_kind")

    return launch


@library("cupy", workload="rmsnorm", composed=True)
def rmsnorm(device: Device, operands: Operands) -> Launch:
    """CuPy, a kernel for each step."""
    arrays, x, w, y = device.arrays, operands.x, operands.w, operands.y
    wide = _wide(operands)
    epsilon = float(operands.problem.settings["epsilon"])

    def launch() -> None:
        values = x.astype(wide, copy=False)
        mean = (values * values).mean(axis=1, keepdims=True)
        scaled = values / arrays.sqrt(mean + epsilon)
        arrays.multiply(scaled, w, out=y, casting="same_kind")

    return launch


@library("cupy", workload="blur", composed=True)
def blur(device: Device, operands: Operands) -> Launch:
    """cupyx.scipy.ndimage.correlate."""
    # One kernel for the whole batch: the weights have one element along its axis.
    from cupyx.scipy.ndimage import correlate

    # Sums are in the type of the weights. `convolve` would reverse and copy them in each launch.
    weights = device.arrays.asarray(BLUR_WEIGHTS, dtype=_wide(operands)) / 16
    return partial(correlate, operands.x, weights, operands.y, mode="nearest")
