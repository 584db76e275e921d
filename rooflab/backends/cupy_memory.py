"""Memory-bound workloads as CuPy and CUDA's runtime do them: what our own kernels must beat."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from rooflab.cuda.device import availability
from rooflab.errors import KernelError
from rooflab.registry import register

if TYPE_CHECKING:
    from rooflab.device import Device
    from rooflab.kernels import Launch, Operands

# BF16 operands are bits to CuPy, which cannot compute with them.
FLOATS: Final = ("fp64", "fp32", "fp16")
INTEGERS: Final = ("int32", "int64")


def unavailable(device: Device | None) -> str:
    """Why CuPy cannot run on ``device``, empty if it can."""
    return availability() if device is None else ""


def _wide(operands: Operands) -> str:
    """The type that sums are kept in."""
    return operands.problem.precision.accumulate.storage


library = partial(
    register, device_kind="cuda", backend="cupy", unavailable=unavailable, library=True
)


@library(
    "memcpy",
    workload="copy",
    title="cudaMemcpyAsync, device to device",
    precisions=(*FLOATS, "bf16", *INTEGERS),
)
def memcpy(device: Device, operands: Operands) -> Launch:
    """What CUDA's runtime makes of a copy: the measured copy roof of a GPU."""
    runtime = device.arrays.cuda.runtime
    target, source, count = operands.c.data.ptr, operands.a.data.ptr, operands.a.nbytes
    stream = device.stream.ptr

    def launch(alive: object = operands) -> None:
        try:
            runtime.memcpyAsync(target, source, count, runtime.memcpyDeviceToDevice, stream)
        except runtime.CUDARuntimeError as error:
            raise KernelError(f"cudaMemcpyAsync: {error}") from error

    return launch


@library("cupy", workload="add", title="cupy.add", precisions=(*FLOATS, *INTEGERS))
def add(device: Device, operands: Operands) -> Launch:
    """CuPy's elementwise kernel."""
    return partial(device.arrays.add, operands.a, operands.b, operands.c)


@library("cupy", workload="triad", title="cupy.ElementwiseKernel", precisions=FLOATS)
def triad(device: Device, operands: Operands) -> Launch:
    """One fused kernel, which CuPy writes."""
    wide = _wide(operands)
    kernel = device.arrays.ElementwiseKernel(
        f"T a, T b, {wide} alpha",
        "T c",
        "c = static_cast<T>(a + alpha * b)",
        f"rooflab_triad_{wide}",
    )
    alpha = float(operands.problem.settings["alpha"])
    return partial(kernel, operands.a, operands.b, alpha, operands.c)


@library("cupy", workload="sum", title="cupy.sum", precisions=(*FLOATS, *INTEGERS))
def total(device: Device, operands: Operands) -> Launch:
    """CuPy's reduction, summed in the accumulate type."""
    x, y, arrays = operands.x, operands.y, device.arrays
    wide = arrays.empty((), dtype=_wide(operands))
    if wide.dtype == y.dtype:
        return partial(arrays.sum, x, dtype=wide.dtype, out=y[0])

    def launch() -> None:
        arrays.sum(x, dtype=wide.dtype, out=wide)
        y[0] = wide

    return launch


@library("cupy", workload="softmax", title="CuPy, a kernel for each step", precisions=FLOATS)
def softmax(device: Device, operands: Operands) -> Launch:
    """As it is written down, each step a pass over memory."""
    arrays, x, y = device.arrays, operands.x, operands.y
    wide = _wide(operands)

    def launch() -> None:
        powers = arrays.exp((x - x.max(axis=1, keepdims=True)).astype(wide, copy=False))
        arrays.divide(powers, powers.sum(axis=1, keepdims=True), out=y, casting="same_kind")

    return launch


@library("cupy", workload="rmsnorm", title="CuPy, a kernel for each step", precisions=FLOATS)
def rmsnorm(device: Device, operands: Operands) -> Launch:
    """As it is written down, each step a pass over memory."""
    arrays, x, w, y = device.arrays, operands.x, operands.w, operands.y
    wide = _wide(operands)
    epsilon = float(operands.problem.settings["epsilon"])

    def launch() -> None:
        values = x.astype(wide, copy=False)
        mean = (values * values).mean(axis=1, keepdims=True)
        scaled = values / arrays.sqrt(mean + epsilon)
        arrays.multiply(scaled, w, out=y, casting="same_kind")

    return launch
