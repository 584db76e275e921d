"""GEMM on the CPU: a short ladder from the textbook loop to the vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rooflab.errors import KernelError
from rooflab.kernels.libraries.numba_threads import numba_threads, without_numba
from rooflab.kernels.registry import register

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.kernels.base import Launch, Operands

cpu = partial(register, device_kind="cpu", workload="gemm", precisions=("fp32", "fp64"))


def _operand_views(operands: Operands) -> tuple[Any, Any]:
    """A as (batch, M, K) and B as (batch, K, N): views, in any layout."""
    layout = str(operands.problem.settings["layout"])
    a = operands.a.swapaxes(1, 2) if layout[0] == "t" else operands.a
    b = operands.b.swapaxes(1, 2) if layout[1] == "t" else operands.b
    return a, b


def _factors(operands: Operands) -> tuple[float, float]:
    settings = operands.problem.settings
    return float(settings["alpha"]), float(settings["beta"])


def _numba_gemm(device: Device) -> tuple[ModuleType, int]:
    """The module of Numba kernels, and their number of threads."""
    try:
        from rooflab.kernels.libraries import _numba_gemm

        return _numba_gemm, numba_threads(device)
    except ImportError as error:
        raise KernelError(f"Numba cannot be imported: {error}") from error


def _bind(function: Callable[..., None], operands: Operands, *workspace: Any) -> Launch:
    """``function`` with its arguments, after a first run, which starts Numba's threads."""
    a, b = _operand_views(operands)
    c, (alpha, beta) = operands.c, _factors(operands)
    element = c[:1, :1, :1].copy()
    function(element, element, element, 0.0, 0.0, *workspace)
    return lambda: function(a, b, c, alpha, beta, *workspace)


@cpu(
    "naive",
    backend="numba",
    title="Triple loop, rows in parallel (Numba)",
    teaches="the cost of reading B by columns and of adding to a single scalar",
    unavailable=without_numba,
)
def naive(device: Device, operands: Operands) -> Launch:
    """The textbook i-j-k loop."""
    gemm, _ = _numba_gemm(device)
    return _bind(gemm.compiled(gemm.naive, operands.problem.precision.name), operands)


@cpu(
    "tiled",
    backend="numba",
    title="Packed cache tiles, vectors along N (Numba)",
    teaches="packing, cache tiles and register reuse: more arithmetic per load",
    unavailable=without_numba,
)
def tiled(device: Device, operands: Operands) -> Launch:
    """Tiles packed to fit the caches, four rows and four steps of K at a time."""
    gemm, threads = _numba_gemm(device)
    function = gemm.compiled(gemm.tiled, operands.problem.precision.name, workspace=True)
    return _bind(function, operands, gemm.shared_workspace(threads, operands.c.dtype))


@cpu(
    "blas",
    backend="numpy",
    title="NumPy's BLAS library",
    teaches="a vendor's library, the baseline on this machine",
    library=True,
)
def blas(device: Device, operands: Operands) -> Launch:
    """``numpy.matmul``, which has no alpha and beta: they need additional passes over C."""
    matmul, scale, add = device.arrays.matmul, device.arrays.multiply, device.arrays.add
    a, b = _operand_views(operands)
    c, (alpha, beta) = operands.c, _factors(operands)

    def multiply() -> None:
        matmul(a, b, out=c)

    def multiply_and_scale() -> None:
        matmul(a, b, out=c)
        scale(c, alpha, out=c)

    if beta == 0:
        return multiply if alpha == 1 else multiply_and_scale
    product = device.arrays.empty_like(c)

    def multiply_and_add() -> None:
        matmul(a, b, out=product)
        scale(product, alpha, out=product)
        scale(c, beta, out=c)
        add(c, product, out=c)

    return multiply_and_add
