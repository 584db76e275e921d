"""Mistakes of routing that its verification must find."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from fake import FakeDevice, compute

from rooflab.errors import UsageError
from rooflab.kernels.base import Operands
from rooflab.measure.buffers import allocate
from rooflab.measure.verify import verify
from rooflab.workloads import build

DEVICE = FakeDevice()
SHAPE = {"tokens": 40, "chosen": 4}


def swap(one: Operands, first: int, second: int) -> None:
    """Two rows, consistently."""
    for name in ("sources", "shares"):
        one[name][[first, second]] = one[name][[second, first]]
    places = one["places"]
    slots = np.argsort(places)
    places[slots[[first, second]]] = second, first


def not_sorted(one: Operands) -> None:
    swap(one, 0, len(one["sources"]) - 1)


def not_stable(one: Operands) -> None:
    swap(one, 0, 1)


def dropped(one: Operands) -> None:
    one["sources"][-1] = one["sources"][0]


def of_another_token(one: Operands) -> None:
    one["shares"][...] = np.roll(one["shares"], 1)


def ends_off_by_one(one: Operands) -> None:
    one["ends"][...] -= 1


def starts_for_ends(one: Operands) -> None:
    one["ends"][...] = np.concatenate(([0], one["ends"][:-1]))


def not_normalised(one: Operands) -> None:
    one["weights"][...] *= 0.9


def out_of_order(one: Operands) -> None:
    for name in ("weights", "ids"):
        one[name][...] = one[name][:, ::-1]


def another_expert(one: Operands) -> None:
    one["ids"][7, 3] = (one["ids"][7, 3] + 1) % 16


def without_the_last(one: Operands) -> None:
    last = one["places"].reshape(-1, 4)[:, 3]
    one["y"][...] -= one["shares"][last][:, None] * one["rows"][last]


def by_slot(one: Operands) -> None:
    """The weights that are at the place of the slot, and not of its row."""
    shares, rows = one["shares"].reshape(-1, 4, 1), one["rows"][one["places"]]
    one["y"][...] = (shares * rows.reshape(40, 4, -1)).sum(axis=1)


MISTAKES: list[tuple[str, Callable[[Operands], None]]] = [
    *(("route", one) for one in (not_normalised, out_of_order, another_expert)),
    *(("sort_experts", one) for one in (not_sorted, not_stable, dropped, of_another_token)),
    *(("sort_experts", one) for one in (ends_off_by_one, starts_for_ends)),
    *(("combine", one) for one in (without_the_last, by_slot)),
]


@pytest.mark.parametrize(("workload", "mistake"), MISTAKES)
def test_a_mistake_is_found(workload: str, mistake: Callable[[Operands], None]) -> None:
    other = {"columns": 9} if workload == "combine" else {"experts": 16}
    operands = allocate(DEVICE, build(workload, "fp32", SHAPE | other), 3)
    compute(operands)()
    assert verify(DEVICE, operands, 0).reason == ""
    mistake(operands)
    assert verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("workload", ["route", "sort_experts"])
def test_no_token_has_more_experts_than_there_are(workload: str) -> None:
    with pytest.raises(UsageError, match="chosen = 9 are more than all 8 experts"):
        build(workload, "fp32", {"tokens": 1, "experts": 8, "chosen": 9})


def test_logits_must_differ_in_their_precision() -> None:
    with pytest.raises(UsageError, match="logits apart at most"):
        build("route", "bf16", {"tokens": 1, "experts": 10**6})


def test_rows_have_numbers_of_32_bits() -> None:
    sizes = {"experts": 8, "chosen": 4}
    assert build("sort_experts", "fp32", {"tokens": 2**29 - 1, **sizes})
    with pytest.raises(UsageError, match="tokens x chosen = 2147483648 must be below"):
        build("sort_experts", "fp32", {"tokens": 2**29, **sizes})
