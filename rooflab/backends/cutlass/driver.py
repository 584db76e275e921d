"""CUDA driver calls of CUTLASS's host code: TMA descriptors, and clusters per device.

They use ctypes, not cuda-bindings: that keeps a CUtensorMap in a Python object, aligned to 16 bytes
where CUDA requires 64 (https://github.com/NVIDIA/cuda-python/pull/1692).
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Final

import numpy as np  # noqa: TID253  imported late itself

from rooflab.backends.cutlass.report import DESCRIPTOR_ALIGNMENT, DESCRIPTOR_BYTES
from rooflab.errors import KernelError

_L2_PROMOTION_128B: Final = 2
"""CUTLASS's value; it uses no interleaving and no NaN fill outside the tensor (0)."""


def encode_tiled(descriptor: Any, address: int) -> Any:
    """The 128 bytes of the CUtensorMap for a report's ``descriptor`` at ``address``.

    Raises ``KernelError`` if the driver has no such function or returns an error.
    """
    rank = int(descriptor["rank"])
    buffer = np.zeros(DESCRIPTOR_BYTES + DESCRIPTOR_ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % DESCRIPTOR_ALIGNMENT
    aligned = buffer[start : start + DESCRIPTOR_BYTES]
    extents, strides, box = (
        np.ascontiguousarray(descriptor[name]) for name in ("extents", "strides", "box")
    )
    steps = np.ones(5, np.uint32)
    status = _driver_encode()(
        aligned.ctypes.data,
        int(descriptor["data_type"]),
        rank,
        address,
        *(array.ctypes.data for array in (extents, strides, box, steps)),
        0,
        int(descriptor["swizzle"]),
        _L2_PROMOTION_128B,
        0,
    )
    if status:
        raise KernelError(
            f"the driver refuses a TMA descriptor (CUDA error {status}) of {extents[:rank]} "
            f"elements at {address:#x}, strides {strides[: rank - 1]} bytes, box {box[:rank]}"
        )
    return aligned


def _driver_encode() -> Any:
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    return _driver(
        "cuTensorMapEncodeTiled", (pointer, number, number, *[pointer] * 5, *[number] * 4)
    )


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig (CUDA driver API, "Data Types")."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint),
    )


def active_clusters(function: int, report: Any) -> int:
    """Number of clusters of the CUfunction ``function`` that are resident on the device at once.

    A cluster cannot span GPCs, so some multiprocessors may not be usable. A persistent kernel that
    counted them would start its last clusters after all others have ended.
    """
    config = _LaunchConfig(
        *(int(extent) for extent in report["cluster"]),
        *(int(report["threads"]), 1, 1, int(report["shared_bytes"])),
    )
    found = ctypes.c_int()
    pointer = ctypes.c_void_p
    status = _driver("cuOccupancyMaxActiveClusters", (pointer, pointer, pointer))(
        ctypes.addressof(found), function, ctypes.addressof(config)
    )
    if status:
        raise KernelError(
            "the driver does not report how many clusters fit on the device at once (CUDA error "
            f"{status} of cuOccupancyMaxActiveClusters)"
        )
    return found.value


@cache
def _driver(name: str, argument_types: tuple[Any, ...]) -> Any:
    """The function of that name in CUDA's driver API, which returns an error number."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError) as error:
        raise KernelError(f"CUTLASS on Hopper needs {name} of a CUDA 12 driver: {error}") from error
    function.argtypes, function.restype = argument_types, ctypes.c_uint
    return function
