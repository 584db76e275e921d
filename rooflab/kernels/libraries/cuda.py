"""What the kernels of CUDA's libraries share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda import install
from rooflab.devices.cuda.device import availability
from rooflab.errors import KernelError
from rooflab.model.precision import Precision
from rooflab.model.problem import Problem


def needs(*libraries: str) -> Callable[[Device | None], str]:
    """``Kernel.unavailable`` of kernels that use CuPy, and of it these modules of ``cupy.cuda``."""

    def unavailable(device: Device | None) -> str:
        if device is None:
            return availability()
        for name in libraries:
            try:
                getattr(import_module("cupy.cuda"), name)
            except (AttributeError, ImportError):
                return f"lib{name} is not installed: {install.line(install.extra())}"
        return ""

    return unavailable


def require_tensor_cores(library: str, device: Device, precision: Precision) -> None:
    """Raise ``KernelError`` if ``device`` is too old for ``precision``.

    Without tensor cores for it cuBLAS fails, or computes in FP32 without an error.
    """
    capability = str(device.fact("compute_capability") or "")
    if capability and float(capability) < precision.oldest:
        raise KernelError(
            f"{library} has {precision.title} from compute capability {precision.oldest} on, "
            f"{device.name} has {capability}"
        )


def guarded(call: Callable[[], object], error: type[Exception], told: str, alive: object) -> Launch:
    """The launch ``call``, with ``error`` raised as a ``KernelError`` that begins with ``told``.

    What the library gets are plain addresses: ``alive`` keeps their memory allocated.
    """

    def launch(alive: object = alive) -> None:
        try:
            call()
        except error as failed:
            raise KernelError(f"{told}: {failed}") from failed

    return launch


def multiples(kernel: str, **wanted: int) -> Callable[[Problem], str]:
    """``Kernel.unsupported`` of a kernel that needs these extents to be multiples."""

    def unsupported(problem: Problem) -> str:
        for name, multiple in wanted.items():
            if (given := problem.extents[name]) % multiple:
                return f"{kernel} needs {name.upper()} to be a multiple of {multiple}, not {given}"
        return ""

    return unsupported


def scales_of_128(capability: str) -> str:
    """``Kernel.unfit`` of FP8 products with such scales."""
    only = "cuBLASLt has scales of 128 for compute capability 9.0 only"
    return "" if capability == "9.0" else only
