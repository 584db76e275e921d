"""Conversion between numbers and stored bits, on any array module (``numpy`` or ``cupy``)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import nan
from typing import Any, Final

from rooflab.model.precision import DataType


@dataclass(frozen=True, slots=True)
class Codec:
    """How a format is stored that array libraries lack.

    ``encode(arrays, values)`` and ``decode(arrays, stored)`` convert, ``is_nan(stored)`` says which
    elements are none.
    """

    encode: Callable[[Any, Any], Any]
    decode: Callable[[Any, Any], Any]
    is_nan: Callable[[Any], Any]


def encode(arrays: Any, values: Any, data_type: DataType) -> Any:
    """``values`` rounded to nearest, ties to even, in ``data_type``'s storage.

    Integers wrap around. E4M3 has no infinity: larger values become the largest number.
    """
    if codec := CODECS.get(data_type.name):
        return codec.encode(arrays, values)
    return values.astype(data_type.storage, copy=False)


def decode(arrays: Any, stored: Any, data_type: DataType) -> Any:
    """The values of ``stored``: FP64, and INT64 for integers."""
    if data_type.integer:
        return stored.astype(arrays.int64)
    if codec := CODECS.get(data_type.name):
        stored = codec.decode(arrays, stored)
    return stored.astype(arrays.float64)


def count_nan(arrays: Any, stored: Any, data_type: DataType) -> int:
    """Number of NaN elements in ``stored``."""
    if data_type.integer:
        return 0
    codec = CODECS.get(data_type.name)
    return int((codec.is_nan(stored) if codec else arrays.isnan(stored)).sum())


def _encode_bf16(arrays: Any, values: Any) -> Any:
    bits = values.astype(arrays.float32).view(arrays.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(arrays.uint16)


def _decode_bf16(arrays: Any, stored: Any) -> Any:
    return (stored.astype(arrays.uint32) << 16).view(arrays.float32)


def _e4m3(byte: int) -> float:
    """The value: sign, 4 bits of exponent, 3 of mantissa (Open Compute Project, OFP8, 2023)."""
    exponent, mantissa = (byte & 0x7F) >> 3, byte & 7
    if exponent == 15 and mantissa == 7:
        return nan
    # The lowest exponent has no hidden bit: its numbers are multiples of 2^-9, down to zero.
    size = (mantissa + (8 if exponent else 0)) * 2.0 ** (max(exponent, 1) - 10)
    return -size if byte & 0x80 else size


E4M3: Final = tuple(map(_e4m3, range(256)))
"""The value of each byte."""

E4M3_MAX: Final = 448.0


def _encode_e4m3(arrays: Any, values: Any) -> Any:
    """The byte of the nearest E4M3 number, ties to even; larger values become the largest."""
    sizes = arrays.fmin(arrays.abs(values), E4M3_MAX)
    # A size below 2^exponent is rounded to steps of 2^(exponent - 4). 8 to 15 steps are the 8 bytes
    # after those of the next lower exponent, and 16 steps the first byte of the next higher one.
    # Sizes below 2^-6 are rounded to the steps of 2^-6.
    _, exponents = arrays.frexp(arrays.maximum(sizes, 2.0**-6))
    steps = arrays.rint(arrays.ldexp(sizes, 4 - exponents)).astype(arrays.uint8)
    codes = steps + (8 * (exponents + 5)).astype(arrays.uint8)
    codes += arrays.isnan(values)  # fmin turned NaN into the largest number; NaN's byte is the next
    return codes | (arrays.signbit(values).astype(arrays.uint8) << 7)


def _decode_e4m3(arrays: Any, stored: Any) -> Any:
    return arrays.asarray(E4M3)[stored]


CODECS: Final = {
    "bf16": Codec(_encode_bf16, _decode_bf16, lambda stored: (stored & 0x7FFF) > 0x7F80),
    "fp8_e4m3": Codec(_encode_e4m3, _decode_e4m3, lambda stored: (stored & 0x7F) == 0x7F),
}
"""By the name of the format."""
