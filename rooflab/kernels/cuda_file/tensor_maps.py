"""TMA descriptors of operands, from the box that a header asks for. Pure.

Extents are in the order of an operand's shape, the contiguous one last, as in ``tile``.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

from rooflab.devices.cuda.driver import TensorMap
from rooflab.model.precision import DataType, Precision
from rooflab.model.problem import Operand

MAX_RANK: Final = 5
MAX_BOX: Final = 256
STRIDE_BYTES: Final = 16
"""Limits of cuTensorMapEncodeTiled (CUDA driver API, "Tensor Map Object Management")."""

SWIZZLES: Final = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle by the number of bytes that it spans."""

PROMOTIONS: Final = {0: 0, 64: 1, 128: 2, 256: 3}
"""CUtensorMapL2promotion by the number of bytes that L2 fetches at a time."""

_DATA_TYPES: Final = {
    "uint8": 0,
    "uint16": 1,
    "int32": 3,
    "int64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
}
"""CUtensorMapDataType by an operand's type in memory. Bits are copied unchanged."""

_TFLOAT32: Final = 11
"""Copies into shared memory round FP32 to TF32."""


def box_mistake(box: Sequence[int], swizzle: int, element: DataType) -> str:
    """Why TMA cannot copy boxes of these extents, empty if it can."""
    if not all(1 <= extent <= MAX_BOX for extent in box):
        return f"extents of a box are 1 to {MAX_BOX}"
    inner = box[-1] * element.bytes
    if inner % STRIDE_BYTES:
        multiple = STRIDE_BYTES // element.bytes
        return f"the last extent of a box of {element.name} must be a multiple of {multiple}"
    if swizzle and inner > swizzle:
        most = swizzle // element.bytes
        return (
            f"with swizzle = {swizzle} the last extent of a box of {element.name} is at most {most}"
        )
    return ""


def uneven(operand: Operand, rank: int) -> bool:
    """Whether TMA in ``rank`` dimensions needs other rows than ``operand`` has."""
    return rank > 1 and pitch_bytes(operand) > operand.shape[-1] * operand.type.bytes


def pitch_bytes(operand: Operand) -> int:
    """Bytes from one row to the next that TMA can address."""
    return -(-operand.shape[-1] * operand.type.bytes // STRIDE_BYTES) * STRIDE_BYTES


def refusal(operand: Operand, rank: int, *, padded: bool = False) -> str:
    """Why TMA cannot address ``operand``, or a ``padded`` copy, in ``rank`` dimensions.

    Empty if it can.
    """
    if leading := prod(operand.shape[:-rank]) - 1:
        return f"{operand.name} has {leading + 1} parts of {rank} dimensions, TMA takes one"
    if uneven(operand, rank) and not padded:
        multiple = STRIDE_BYTES // operand.type.bytes
        return (
            f"TMA needs rows of {operand.name} that are multiples of {STRIDE_BYTES} bytes, "
            f"{operand.shape[-1]} elements are {operand.shape[-1] * operand.type.bytes}: "
            f"use a multiple of {multiple}"
        )
    return ""


def tensor_map(
    operand: Operand, box: Sequence[int], swizzle: int, promotion: int, precision: Precision
) -> TensorMap:
    """The descriptor of ``operand``, for boxes of these extents; L2 fetches ``promotion`` bytes.

    Its rows follow each other, padded to a multiple of 16 bytes if they are none.
    """
    shape = operand.shape[-len(box) :]
    strides = [prod(shape[axis:-1]) * pitch_bytes(operand) for axis in range(1, len(shape))]
    rounds = operand.role == "in" and precision.multiply.name == "tf32"
    return TensorMap(
        _TFLOAT32 if rounds else _DATA_TYPES[operand.type.storage],
        tuple(reversed(shape)),
        tuple(reversed(strides)),
        tuple(reversed(box)),
        SWIZZLES[swizzle],
        PROMOTIONS[promotion],
    )
