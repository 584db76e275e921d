"""Memory-bound workloads on the CPU: NumPy's functions, and one parallel loop in Numba."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rooflab.errors import KernelError
from rooflab.kernels.libraries.numba_threads import numba_threads, without_numba
from rooflab.kernels.registry import register

if TYPE_CHECKING:
    from types import ModuleType

    from rooflab.devices.base import Device
    from rooflab.kernels.base import Launch, Operands

FLOATS: Final = ("fp32", "fp64")
NUMBERS: Final = (*FLOATS, "int32", "int64")

PARTS: Final = 64
"""Partial sums per thread: enough for short chains of additions, few enough to add quickly."""

numpy_kernel = partial(register, "numpy", device_kind="cpu", backend="numpy")
numba_kernel = partial(
    register, "numba", device_kind="cpu", backend="numba", unavailable=without_numba
)


def _kernels(device: Device) -> tuple[ModuleType, int]:
    """The module of Numba kernels, and their number of threads."""
    try:
        from rooflab.kernels.libraries import _numba_memory

        return _numba_memory, numba_threads(device)
    except ImportError as error:
        raise KernelError(f"Numba cannot be imported: {error}") from error


def _flat(operands: Operands) -> list[Any]:
    return [array.reshape(-1) for array in operands.values()]


def _started(function: Callable[..., None], *arguments: Any) -> Launch:
    """``function`` with its arguments, after a first run, which compiles it."""
    function(*arguments)
    return lambda: function(*arguments)


# Elementwise -------------------------------------------------------------------------------------


@numpy_kernel(workload="add", title="numpy.add, one thread", precisions=NUMBERS)
def numpy_add(device: Device, operands: Operands) -> Launch:
    """NumPy's own loop."""
    return partial(device.arrays.add, operands.a, operands.b, out=operands.c)


@numba_kernel(workload="add", title="One loop, all threads (Numba)", precisions=NUMBERS)
def numba_add(device: Device, operands: Operands) -> Launch:
    """A parallel loop."""
    return _started(_kernels(device)[0].add, *_flat(operands))


@numpy_kernel(workload="copy", title="numpy.copyto, one thread", precisions=NUMBERS)
def numpy_copy(device: Device, operands: Operands) -> Launch:
    """NumPy's own loop."""
    return partial(device.arrays.copyto, operands.c, operands.a)


@numba_kernel(workload="copy", title="One loop, all threads (Numba)", precisions=NUMBERS)
def numba_copy(device: Device, operands: Operands) -> Launch:
    """A parallel loop."""
    return _started(_kernels(device)[0].copy, *_flat(operands))


@numpy_kernel(workload="triad", title="numpy.multiply, then numpy.add", precisions=FLOATS)
def numpy_triad(device: Device, operands: Operands) -> Launch:
    """Two passes, because NumPy has no fused one: C is written, read and written again."""
    multiply, add = device.arrays.multiply, device.arrays.add
    a, b, c = operands.a, operands.b, operands.c
    alpha = c.dtype.type(operands.problem.settings["alpha"])

    def launch() -> None:
        multiply(b, alpha, out=c)
        add(a, c, out=c)

    return launch


@numba_kernel(workload="triad", title="One loop, all threads (Numba)", precisions=FLOATS)
def numba_triad(device: Device, operands: Operands) -> Launch:
    """A parallel loop."""
    alpha = float(operands.problem.settings["alpha"])
    return _started(_kernels(device)[0].triad, *_flat(operands), alpha)


# Reductions --------------------------------------------------------------------------------------


@numpy_kernel(workload="sum", title="numpy.sum, one thread", precisions=NUMBERS)
def numpy_sum(device: Device, operands: Operands) -> Launch:
    """NumPy's pairwise sum."""
    x, y = operands.x, operands.y
    return partial(device.arrays.sum, x, out=y[0, ...], dtype=y.dtype)


@numba_kernel(workload="sum", title="Partial sums on all threads (Numba)", precisions=NUMBERS)
def numba_sum(device: Device, operands: Operands) -> Launch:
    """A partial sum of each of many parts, then their sum."""
    kernels, threads = _kernels(device)
    x, y, total = operands.x, operands.y, device.arrays.sum
    parts = device.arrays.empty(PARTS * threads, dtype=y.dtype)
    kernels.sum_parts(x, parts)

    def launch() -> None:
        kernels.sum_parts(x, parts)
        total(parts, out=y[0, ...], dtype=y.dtype)

    return launch


@register(
    "blas",
    device_kind="cpu",
    backend="numpy",
    workload="gemv",
    title="NumPy's BLAS library",
    precisions=FLOATS,
    library=True,
)
def blas_gemv(device: Device, operands: Operands) -> Launch:
    """``numpy.matmul`` of a matrix and a vector."""
    return partial(device.arrays.matmul, operands.a, operands.x, out=operands.y)


@numba_kernel(workload="gemv", title="One row after the other, all threads", precisions=FLOATS)
def numba_gemv(device: Device, operands: Operands) -> Launch:
    """A parallel loop over rows."""
    return _started(_kernels(device)[0].gemv, *operands.values())


# Rows --------------------------------------------------------------------------------------------


@numpy_kernel(workload="softmax", title="NumPy, a pass for each step", precisions=FLOATS)
def numpy_softmax(device: Device, operands: Operands) -> Launch:
    """The definition, one pass over memory per step: five passes."""
    numpy, x, y = device.arrays, operands.x, operands.y

    def launch() -> None:
        numpy.subtract(x, x.max(axis=1, keepdims=True), out=y)
        numpy.exp(y, out=y)
        numpy.divide(y, y.sum(axis=1, keepdims=True), out=y)

    return launch


@numba_kernel(workload="softmax", title="A row at a time, all threads", precisions=FLOATS)
def numba_softmax(device: Device, operands: Operands) -> Launch:
    """A row stays in the cache while it is passed over."""
    return _started(_kernels(device)[0].softmax, *operands.values())


@numpy_kernel(workload="rmsnorm", title="NumPy, a pass for each step", precisions=FLOATS)
def numpy_rmsnorm(device: Device, operands: Operands) -> Launch:
    """The definition, one pass over memory per step."""
    numpy, x, w, y = device.arrays, operands.x, operands.w, operands.y
    epsilon = y.dtype.type(operands.problem.settings["epsilon"])

    def launch() -> None:
        numpy.multiply(x, x, out=y)
        scale = numpy.sqrt(y.mean(axis=1, keepdims=True) + epsilon)
        numpy.divide(x, scale, out=y)
        numpy.multiply(y, w, out=y)

    return launch


@numba_kernel(workload="rmsnorm", title="A row at a time, all threads", precisions=FLOATS)
def numba_rmsnorm(device: Device, operands: Operands) -> Launch:
    """A row stays in the cache while it is passed over."""
    epsilon = float(operands.problem.settings["epsilon"])
    return _started(_kernels(device)[0].rmsnorm, *operands.values(), epsilon)


# Images ------------------------------------------------------------------------------------------


@numpy_kernel(workload="blur", title="NumPy, a pass for each step", precisions=FLOATS)
def numpy_blur(device: Device, operands: Operands) -> Launch:
    """(1 2 1) down the columns, then along the rows, of images with a border of one pixel."""
    numpy, x, y = device.arrays, operands.x, operands.y
    batch, rows, columns = x.shape
    padded = numpy.empty((batch, rows + 2, columns + 2), dtype=x.dtype)

    def launch() -> None:
        padded[:, 1:-1, 1:-1] = x
        padded[:, 0], padded[:, -1] = padded[:, 1], padded[:, -2]
        padded[:, :, 0], padded[:, :, -1] = padded[:, :, 1], padded[:, :, -2]
        down = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
        numpy.add(down[:, :, :-2] + 2 * down[:, :, 1:-1], down[:, :, 2:], out=y)
        numpy.divide(y, 16, out=y)

    return launch


@numba_kernel(workload="blur", title="One row after the other, all threads", precisions=FLOATS)
def numba_blur(device: Device, operands: Operands) -> Launch:
    """A pass over the images: the rows above and below are in the cache."""
    return _started(_kernels(device)[0].blur, *operands.values())
