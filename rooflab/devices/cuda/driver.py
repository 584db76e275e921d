"""CUDA driver calls that CuPy does not have: TMA descriptors, clusters, attributes of launches and
of streams.

They use ctypes, not cuda-bindings: that keeps a CUtensorMap in a Python object, aligned to 16 bytes
where CUDA requires 64 (https://github.com/NVIDIA/cuda-python/pull/1692).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from rooflab.errors import KernelError

TENSOR_MAP_BYTES: Final = 128
TENSOR_MAP_ALIGNMENT: Final = 64
"""Size and alignment of CUtensorMap (CUDA driver API, "Tensor Map Object Management")."""

ACCESS_POLICY_WINDOW: Final = 1
CLUSTER_DIMENSION: Final = 4
PROGRAMMATIC_STREAM_SERIALIZATION: Final = 6
"""CUlaunchAttributeID (CUDA driver API, "Data Types")."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled, the innermost dimension first.

    ``data_type``, ``swizzle`` and ``promotion`` are numbers of CUtensorMapDataType,
    CUtensorMapSwizzle and CUtensorMapL2promotion. ``strides`` are in bytes, without the innermost
    one, which is one element.
    """

    data_type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int


def encode(tensor_map: TensorMap, address: int) -> Any:
    """The 128 bytes of the CUtensorMap for the array at ``address``.

    Without interleaving, and with zeros outside the tensor.
    Raises ``KernelError`` if the driver has no such function or returns an error.
    """
    import numpy as np

    buffer = np.zeros(TENSOR_MAP_BYTES + TENSOR_MAP_ALIGNMENT, np.uint8)
    start = -buffer.ctypes.data % TENSOR_MAP_ALIGNMENT
    aligned = buffer[start : start + TENSOR_MAP_BYTES]
    rank = len(tensor_map.extents)
    extents = np.array(tensor_map.extents, np.uint64)
    strides = np.array([*tensor_map.strides, 0], np.uint64)
    box, steps = np.array(tensor_map.box, np.uint32), np.ones(rank, np.uint32)
    pointer, number = ctypes.c_void_p, ctypes.c_uint
    types = (pointer, number, number, *[pointer] * 5, *[number] * 4)
    status = _driver("cuTensorMapEncodeTiled", types)(
        *(aligned.ctypes.data, tensor_map.data_type, rank, address),
        *(array.ctypes.data for array in (extents, strides, box, steps)),
        *(0, tensor_map.swizzle, tensor_map.promotion, 0),
    )
    if status:
        raise KernelError(
            f"the driver refuses a TMA descriptor ({_error(status)}) of {tensor_map.extents} "
            f"elements at {address:#x}, strides {tensor_map.strides} bytes, box {tensor_map.box}"
        )
    return aligned


# Launches ----------------------------------------------------------------------------------------


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an identifier, and a value of 64 bytes at offset 8."""

    _fields_ = (("id", ctypes.c_uint), ("padding", ctypes.c_uint), ("value", ctypes.c_uint * 16))


Attributes = Mapping[int, Sequence[int]]
"""Values of a launch by CUlaunchAttributeID."""


class _LaunchConfig(ctypes.Structure):
    """CUlaunchConfig (CUDA driver API, "Data Types")."""

    _fields_ = (
        *((f"grid_{axis}", ctypes.c_uint) for axis in "xyz"),
        *((f"block_{axis}", ctypes.c_uint) for axis in "xyz"),
        ("shared_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("attribute_count", ctypes.c_uint),
    )


def launcher(
    function: int,
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    arguments: Sequence[Any],
    attributes: Attributes,
) -> Callable[[int], None]:
    """A launch of the CUfunction ``function`` with launch ``attributes``, which takes the stream.

    ``arguments`` are CuPy arrays, passed as pointers, or NumPy scalars and arrays of one element,
    passed byte for byte.
    """
    import numpy as np

    call = _driver("cuLaunchKernelEx", (*[ctypes.c_void_p] * 4,))
    values = [
        np.array(argument.data.ptr if hasattr(argument.data, "ptr") else argument, ndmin=1)
        for argument in arguments
    ]
    pointers = (ctypes.c_void_p * len(values))(*(value.ctypes.data for value in values))
    config = _configuration(grid, block, shared_bytes, attributes)
    address = ctypes.addressof(config)

    def launch(stream: int, alive: object = values) -> None:  # `pointers` does not own them
        config.stream = stream
        if status := call(address, function, pointers, None):
            raise KernelError(
                f"the driver refuses the launch ({_error(status)} of cuLaunchKernelEx) of "
                f"{tuple(grid)} blocks of {tuple(block)} threads with {shared_bytes} bytes of "
                f"shared memory and attributes {dict(attributes)}"
            )

    return launch


def _configuration(
    grid: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    attributes: Attributes,
) -> _LaunchConfig:
    given = (_Attribute * len(attributes))(
        *(_Attribute(name, 0, (*value,)) for name, value in attributes.items())
    )
    dimensions = [*grid, *[1] * (3 - len(grid)), *block, *[1] * (3 - len(block))]
    return _LaunchConfig(*dimensions, shared_bytes, None, given, len(attributes))


def active_clusters(
    function: int,
    cluster: Sequence[int],
    block: Sequence[int],
    shared_bytes: int,
    attributes: Attributes,
) -> int:
    """Number of clusters of the CUfunction ``function`` that are resident on the device at once.

    ``attributes`` are those of the launch: empty if the source fixes the size of its clusters.

    A cluster cannot span GPCs, so some multiprocessors may not be usable. A persistent kernel that
    counted them would start its last clusters after all others have ended.
    """
    config = _configuration(cluster, block, shared_bytes, attributes)
    found = ctypes.c_int()
    query = _driver("cuOccupancyMaxActiveClusters", (*[ctypes.c_void_p] * 3,))
    status = query(ctypes.addressof(found), function, ctypes.addressof(config))
    if status:
        raise KernelError(
            "the driver does not report how many clusters fit on the device at once "
            f"({_error(status)} of cuOccupancyMaxActiveClusters)"
        )
    return found.value


# Streams -----------------------------------------------------------------------------------------


def l2_window(stream: int) -> tuple[int, ...]:
    """The 64 bytes of a stream's access policy window: what stays in L2; empty if unknown."""
    value = (ctypes.c_uint * 16)()
    return () if _of_stream("cuStreamGetAttribute", stream, value) else tuple(value)


def set_l2_window(stream: int, window: Sequence[int]) -> None:
    """Write what ``l2_window`` returned, and let go of the lines that stay in L2."""
    if window:
        _of_stream("cuStreamSetAttribute", stream, (ctypes.c_uint * 16)(*window))
        _driver("cuCtxResetPersistingL2Cache", ())()


def _of_stream(name: str, stream: int, value: Any) -> int:
    pointer = ctypes.c_void_p
    call = _driver(name, (pointer, ctypes.c_uint, pointer))
    return int(call(stream, ACCESS_POLICY_WINDOW, ctypes.addressof(value)))


def _error(status: int) -> str:
    """The driver's name of an error, such as ``CUDA_ERROR_INVALID_VALUE``."""
    name = ctypes.c_char_p()
    _driver("cuGetErrorName", (ctypes.c_uint, ctypes.c_void_p))(status, ctypes.byref(name))
    return name.value.decode() if name.value else f"CUDA error {status}"


_LIBRARY: Final = "nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1"


def share() -> None:
    """Let libraries that are loaded from now on use the driver without being linked with it."""
    ctypes.CDLL(_LIBRARY, mode=ctypes.RTLD_GLOBAL)


@cache
def _driver(name: str, argument_types: tuple[Any, ...]) -> Any:
    """The function of that name in CUDA's driver API, which returns an error number."""
    try:
        function = getattr(ctypes.CDLL(_LIBRARY), name)
    except (OSError, AttributeError) as error:
        raise KernelError(f"this kernel needs {name} of a CUDA 12 driver: {error}") from error
    function.argtypes, function.restype = argument_types, ctypes.c_uint
    return function
