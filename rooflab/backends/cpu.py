"""GEMM on the CPU: a short ladder from the textbook loop to the vendor's library."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from rooflab.devices.cpu import fix_numba_threads
from rooflab.errors import KernelError
from rooflab.registry import Launch, kernel

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.measure.buffers import Operands


def _without_numba(device: Device | None) -> str:
    return "" if find_spec("numba") else "Numba is not installed: pip install numba"


def _operand_views(operands: Operands) -> tuple[Any, Any]:
    """A as (batch, M, K) and B as (batch, K, N): views, whatever the layout."""
    transposed_a, transposed_b = (letter == "t" for letter in operands.problem.layout)
    a = operands.a.swapaxes(1, 2) if transposed_a else operands.a
    b = operands.b.swapaxes(1, 2) if transposed_b else operands.b
    return a, b


def _numba_gemm(device: Device) -> tuple[ModuleType, int]:
    """The module of Numba kernels and the number of threads that they run on."""
    threads = device.fact("threads")
    try:
        from rooflab.backends import _numba_gemm

        return _numba_gemm, fix_numba_threads(threads if isinstance(threads, int) else 1)
    except ImportError as error:
        raise KernelError(f"Numba cannot be imported: {error}") from error


def _bind(function: Callable[..., None], operands: Operands, *workspace: Any) -> Launch:
    """``function`` with its arguments, after a first run, which starts Numba's threads."""
    problem, c = operands.problem, operands.c
    a, b = _operand_views(operands)
    one = c[:1, :1, :1].copy()
    function(one, one, one, 0.0, 0.0, *workspace)
    return lambda: function(a, b, c, problem.alpha, problem.beta, *workspace)


@kernel(
    "naive",
    backend="cpu",
    device_kind="cpu",
    title="Triple loop, rows in parallel (Numba)",
    precisions=("fp32", "fp64"),
    teaches="what it costs to walk down the columns of B and to add into one scalar",
    unavailable=_without_numba,
)
def naive(device: Device, operands: Operands) -> Launch:
    """The textbook's i-j-k loop."""
    gemm, _ = _numba_gemm(device)
    return _bind(gemm.compiled(gemm.naive, operands.problem.precision.name), operands)


@kernel(
    "tiled",
    backend="cpu",
    device_kind="cpu",
    title="Packed cache tiles, vectors along N (Numba)",
    precisions=("fp32", "fp64"),
    teaches="how packing, cache tiles and register reuse turn loads into arithmetic",
    unavailable=_without_numba,
)
def tiled(device: Device, operands: Operands) -> Launch:
    """Tiles packed to fit the caches, four rows and four steps of K at a time."""
    gemm, threads = _numba_gemm(device)
    function = gemm.compiled(gemm.tiled, operands.problem.precision.name, workspace=True)
    return _bind(function, operands, gemm.shared_workspace(threads, operands.c.dtype))


@kernel(
    "blas",
    backend="cpu",
    device_kind="cpu",
    title="NumPy's BLAS library",
    precisions=("fp32", "fp64"),
    teaches="what a vendor's library makes of this machine",
)
def blas(device: Device, operands: Operands) -> Launch:
    """``numpy.matmul``, which has no alpha and beta: they cost passes over C of their own."""
    matmul, scale, add = device.arrays.matmul, device.arrays.multiply, device.arrays.add
    a, b = _operand_views(operands)
    c, alpha, beta = operands.c, operands.problem.alpha, operands.problem.beta

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
