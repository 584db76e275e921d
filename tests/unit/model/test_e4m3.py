"""FP8 as bytes: every code, every tie, and what does not fit."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np
import pytest
import synthetic
from fake import FakeDevice

from rooflab.measure.buffers import allocate
from rooflab.model.encoding import count_nan, decode, encode
from rooflab.model.precision import FP8_E4M3

CODES = np.arange(256, dtype=np.uint8)
VALUES = decode(np, CODES, FP8_E4M3)
NUMBERS = VALUES[:127]
"""Zero to 448, ascending, by code."""


def codes(*values: float, dtype: type = np.float64) -> list[int]:
    stored = encode(np, np.array(values, dtype), FP8_E4M3)
    assert stored.dtype == np.uint8
    return [int(code) for code in stored]


def test_landmarks_of_the_format() -> None:
    landmarks = {0x01: 2**-9, 0x07: 7 * 2**-9, 0x08: 2**-6, 0x38: 1, 0x39: 1.125, 0x7E: 448}
    assert {code: VALUES[code] for code in landmarks} == landmarks
    assert np.all(np.diff(NUMBERS) > 0)
    assert np.array_equal(VALUES[128:255], -NUMBERS)
    assert list(np.flatnonzero(np.isnan(VALUES))) == [0x7F, 0xFF]
    assert count_nan(np, CODES, FP8_E4M3) == 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_every_code_comes_back(dtype: type) -> None:
    kept = np.delete(CODES, [0x7F, 0xFF])
    assert codes(*VALUES[kept], dtype=dtype) == list(kept)
    assert codes(nan, dtype=dtype) == [0x7F]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_what_lies_between_goes_to_the_nearest_and_ties_to_even(dtype: type) -> None:
    between = (NUMBERS[:-1] + NUMBERS[1:]) / 2
    lower = list(range(126))
    assert codes(*between, dtype=dtype) == [code + code % 2 for code in lower]
    near: Any = np.array(between, dtype)
    assert codes(*np.nextafter(near, dtype(0)), dtype=dtype) == lower
    assert codes(*np.nextafter(near, dtype(inf)), dtype=dtype) == [code + 1 for code in lower]
    assert codes(*-between, dtype=dtype) == [code + code % 2 + 128 for code in lower]


def test_too_large_saturates_and_too_small_is_zero() -> None:
    assert codes(449, 464, 465, 1e30, inf, -500, -inf) == [0x7E] * 5 + [0xFE] * 2
    assert codes(2**-10, 5e-324, -0.0, -(2**-11)) == [0, 0, 0x80, 0x80]


@pytest.mark.parametrize("fill", ["uniform", "normal", "ints", "zeros"])
def test_operands_are_bytes_with_the_wanted_numbers(fill: str) -> None:
    operands = allocate(FakeDevice(), synthetic.gemm(64, 64, 64, "fp8", beta=1.0), 3, fill)
    assert (operands.a.dtype, operands.b.dtype) == (np.uint8, np.uint8)
    assert (operands.c.dtype, operands.initial["c"].dtype) == (np.uint16, np.uint16)
    a = decode(np, operands.a, FP8_E4M3)
    if fill == "zeros":
        assert not a.any()
    elif fill == "ints":
        assert set(a.ravel()) == {-2, -1, 0, 1, 2}
    else:
        assert abs(a.mean()) < 0.1
        assert a.std() == pytest.approx(3**-0.5 if fill == "uniform" else 1, rel=0.1)
