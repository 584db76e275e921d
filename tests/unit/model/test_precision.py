"""Formats and precisions, by their definitions."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest

from rooflab.model import precision
from rooflab.model.encoding import decode, encode
from rooflab.model.precision import PRECISIONS, DataType

FORMATS = {
    # bytes, bits of the mantissa, storage, smallest number if it matters
    "fp64": (8, 52, "float64", 0),
    "fp32": (4, 23, "float32", 0),
    "tf32": (4, 10, "float32", 0),
    "tf32x2": (4, 21, "float32", 0),
    "fp16": (2, 10, "float16", 2**-24),
    "bf16": (2, 7, "uint16", 0),
    "fp8_e4m3": (1, 3, "uint8", 0),
    "fp22": (4, 13, "float32", 0),
    "uint8": (1, None, "uint8", 0),
    "int32": (4, None, "int32", 0),
    "int64": (8, None, "int64", 0),
}
KNOWN = {one.name: one for one in vars(precision).values() if isinstance(one, DataType)}

PARTS = {
    # input, multiplied as, accumulated in, output, partial sums in
    "fp64": ("fp64", "fp64", "fp64", "fp64", None),
    "fp32": ("fp32", "fp32", "fp32", "fp32", None),
    "tf32": ("fp32", "tf32", "fp32", "fp32", None),
    "fp32_3xtf32": ("fp32", "tf32x2", "fp32", "fp32", None),
    "fp16": ("fp16", "fp16", "fp32", "fp16", None),
    "bf16": ("bf16", "bf16", "fp32", "bf16", None),
    "fp16_fp32": ("fp16", "fp16", "fp32", "fp32", None),
    "fp8": ("fp8_e4m3", "fp8_e4m3", "fp32", "bf16", "fp22"),
    "int32": ("int32", "int32", "int32", "int32", None),
    "int64": ("int64", "int64", "int64", "int64", None),
}


def test_all_formats_and_precisions_are_here() -> None:
    assert set(FORMATS) == set(KNOWN)
    assert set(PARTS) == set(PRECISIONS)


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_its_bits(name: str) -> None:
    size, mantissa, storage, smallest = FORMATS[name]
    one = KNOWN[name]
    assert (one.bytes, one.storage, one.smallest) == (size, storage, smallest)
    assert one.epsilon == (0 if mantissa is None else 2.0**-mantissa)
    assert one.integer == (mantissa is None)
    assert np.dtype(one.storage).itemsize == one.bytes
    if name == one.storage.replace("float", "fp") and mantissa:
        assert one.epsilon == np.finfo(one.storage).eps
    if one.smallest:
        assert one.smallest == np.finfo(one.storage).smallest_subnormal


SCALES = {"fp16": 2.0**6, "fp8_e4m3": 2.0**4}


@pytest.mark.parametrize("name", FORMATS)
def test_large_numbers_of_a_format_can_still_be_multiplied(name: str) -> None:
    assert KNOWN[name].scale == SCALES.get(name, 2.0**20)


LEAST_NORMAL = {
    "fp64": 2.0**-1022,
    "fp32": 2.0**-126,
    "fp16": 2.0**-14,
    "bf16": 2.0**-126,
    "fp8_e4m3": 2.0**-6,
}


@pytest.mark.parametrize("name", LEAST_NORMAL)
def test_a_subnormal_number_is_one(name: str) -> None:
    number = KNOWN[name].subnormal
    stored = encode(np, np.array([number]), KNOWN[name])
    assert 0 < decode(np, stored, KNOWN[name])[0] == number < LEAST_NORMAL[name]


@pytest.mark.parametrize("name", PARTS)
def test_a_precision_is_its_formats(name: str) -> None:
    one = PRECISIONS[name]
    parts = (one.input, one.multiply, one.accumulate, one.output, one.partial)
    assert tuple(part and part.name for part in parts) == PARTS[name]
    assert one.name == name
    assert one.integer == name.startswith("int")


def test_tolerances_by_hand() -> None:
    fp32, bf16 = PRECISIONS["fp32"], PRECISIONS["bf16"]
    assert fp32.rounding(3) == 3.5 * 2**-23
    assert bf16.rounding(3) == pytest.approx(0.5 * 2**-7 + 3 * 2**-23, rel=1e-12)
    assert fp32.dot_product(64) == (0.5 + 4 * 8) * 2**-23
    assert bf16.dot_product(64) == pytest.approx(0.5 * 2**-7 + 32 * 2**-23, rel=1e-12)
    tf32, split = PRECISIONS["tf32"], PRECISIONS["fp32_3xtf32"]
    assert tf32.dot_product(64) == pytest.approx(32.5 * 2**-23 + 2 * 2**-10, rel=1e-12)
    assert split.dot_product(64) == pytest.approx(32.5 * 2**-23 + 2 * 2**-21, rel=1e-12)
    narrow = 0.5 * 2**-7 + 0.4 * sqrt(100) * 2**-13
    assert PRECISIONS["fp8"].dot_product(100) == pytest.approx(narrow, rel=1e-12)
