"""Gradients of attention in pieces: samples of large problems, and references in many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from fake import FakeDevice, compute

from rooflab.kernels.base import Operands
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.model.problem import PIECE_ELEMENTS
from rooflab.workloads import attention, attention_gradients, build

DEVICE = FakeDevice()
SIZES = {"heads": 4, "kv_heads": 2, "head_size": 8, "batch": 2}
CORNERS = [(name, at) for name in ("dq", "dk", "dv") for at in (0, -1)]


def computed(queries: int, keys: int, causal: str) -> Operands:
    shape = {"queries": queries, "keys": keys, **SIZES, "causal": causal}
    operands = allocate(DEVICE, build("attention_backward", "fp32", shape), 5)
    poison(operands)
    compute(operands)()
    return operands


@pytest.mark.parametrize("whole", [attention.WHOLE_FLOPS, 0])
@pytest.mark.parametrize("most", [PIECE_ELEMENTS, 700])
@pytest.mark.parametrize(
    ("queries", "keys", "causal"), [(90, 90, "on"), (33, 70, "on"), (50, 40, "off"), (1, 9, "on")]
)
def test_both_ends_of_every_gradient_are_compared(
    queries: int, keys: int, causal: str, most: int, whole: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    operands = computed(queries, keys, causal)
    monkeypatch.setattr(attention, "WHOLE_FLOPS", whole)
    for module in (attention, attention_gradients):
        monkeypatch.setattr(module, "PIECE_ELEMENTS", most)
    assert verify(DEVICE, operands, 0).reason == ""
    for name, at in CORNERS:
        array: Any = operands[name]
        right = array[1, -1, at, 3]
        array[1, -1, at, 3] += np.abs(array).max()
        place = at % array.shape[2]
        assert f"{name}[1, {array.shape[1] - 1}, {place}, 3]" in verify(DEVICE, operands, 0).reason
        array[1, -1, at, 3] = right


def test_hard_scores_are_numbers_of_every_format() -> None:
    for number in (110.0, -110.0, 77.8, 1.0, 0.0, 5e-3):
        short = attention_gradients.short(number)
        assert abs(number) <= abs(short) <= 1.25 * abs(number) and short * number >= 0
        mantissa, _ = np.frexp(short)
        assert mantissa * 8 % 1 == 0


def test_it_is_two_and_a_half_times_the_forward_pass_and_as_many_exponentials() -> None:
    shape = {"queries": 33, "keys": 70, "causal": "on"}
    forward = build("attention", "bf16", shape)
    backward = build("attention_backward", "bf16", shape)
    assert 2 * backward.flops == 5 * forward.flops
    assert backward.units == forward.units
