"""What CUTLASS's host code asks of CUDA's driver: TMA descriptors, and clusters per device."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any, Final

import numpy as np  # noqa: TID253  imported late itself

from rooflab.backends.cutlass.report import DESCRIPTOR_ALIGNMENT, DESCRIPTOR_BYTES
from rooflab.errors import KernelError

_L2_PROMOTION_128B: Final = 2
"""What CUTLASS asks for; interleaving and NaN for what lies outside it does without (0)."""


def encode_tiled(descriptor: Any, address: int) -> Any:
    """The 128 bytes of the CUtensorMap that ``descriptor``, of a report, asks for at ``address``.

    Raises ``KernelError`` where the driver has none or refuses.
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
    """How many clusters of the CUfunction ``function`` the device holds at once.

    Multiprocessors of different GPCs form no cluster, so that some may be left over: a persistent
    kernel that counted on them would start its last clusters when all others have ended.
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
            "the driver cannot say how many clusters fit the device at once (CUDA error "
            f"{status} of cuOccupancyMaxActiveClusters)"
        )
    return found.value


@cache
def _driver(name: str, argument_types: tuple[Any, ...]) -> Any:
    """The function of that name in CUDA's driver interface, which returns an error's number."""
    library = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"
    try:
        function = getattr(ctypes.CDLL(library), name)
    except (OSError, AttributeError) as error:
        raise KernelError(f"CUTLASS on Hopper needs {name} of a CUDA 12 driver: {error}") from error
    function.argtypes, function.restype = argument_types, ctypes.c_uint
    return function
