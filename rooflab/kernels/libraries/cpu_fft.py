"""Workloads with a two-dimensional FFT on the CPU, by NumPy (pocketfft and BLAS)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from rooflab.kernels.registry import register
from rooflab.workloads.spectral import Filter

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.kernels.base import Launch, Operands

COMPLEX: Final = {"fp32": "complex64", "fp64": "complex128"}
"""NumPy's complex type of each precision."""

numpy_kernel = partial(
    register, "numpy", device_kind="cpu", backend="numpy", precisions=tuple(COMPLEX)
)


def _complex(operands: Operands, name: str) -> Any:
    """A view of pairs (real, imaginary) as complex numbers, of (batch, n, n)."""
    return operands[name].view(COMPLEX[operands.problem.precision.name])[..., 0]


@numpy_kernel(workload="fft", title="numpy.fft.fft2, one thread")
def fft(device: Device, operands: Operands) -> Launch:
    """NumPy's FFT in the precision of the operands."""
    x, y = _complex(operands, "x"), _complex(operands, "y")
    return partial(device.arrays.fft.fft2, x, out=y)


@numpy_kernel(workload="spectrum", title="numpy.matmul, then numpy.fft.fft2")
def spectrum(device: Device, operands: Operands) -> Launch:
    """BLAS on all threads, then an FFT on one."""
    matmul, fft2 = device.arrays.matmul, device.arrays.fft.fft2
    a, b, y = (_complex(operands, name) for name in ("a", "b", "y"))
    product = device.arrays.empty_like(y)

    def launch() -> None:
        matmul(a, b, out=product)
        fft2(product, out=y)

    return launch


@numpy_kernel(workload="filter", title="NumPy, a pass for each step")
def filter_images(device: Device, operands: Operands) -> Launch:
    """The definition, one pass over memory per step; NumPy's inverse FFT scales."""
    numpy, x, y, problem = device.arrays, operands.x, operands.y, operands.problem
    assert isinstance(problem, Filter)
    mask, threshold = problem.mask(numpy), x.dtype.type(problem.threshold)

    def launch() -> None:
        spectrum = numpy.fft.fft2(numpy.where(x < threshold, x.dtype.type(0), x))
        numpy.multiply(spectrum, mask, out=spectrum)
        y[...] = numpy.fft.ifft2(spectrum).real

    return launch
