"""The check must pass correct arithmetic in every precision and catch every planted error."""

from __future__ import annotations

from math import isnan

import numpy as np
import pytest
from fake import FakeDevice, product
from rooflab.problem import BF16, FP8_E4M3, FP16, LAYOUTS, PRECISIONS, Problem

from rooflab.measure import verify as verifying
from rooflab.measure.buffers import Operands, allocate, decode, encode, poison
from rooflab.measure.verify import verify

DEVICE = FakeDevice()


def computed(problem: Problem, seed: int = 7) -> Operands:
    operands = allocate(DEVICE, problem, seed)
    poison(DEVICE, operands)
    product(operands)()
    return operands


@pytest.fixture(params=["full", "sampled"])
def coverage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(verifying, "FULL_FLOPS", 0)
        monkeypatch.setattr(verifying, "BANDS", 8)
        monkeypatch.setattr(verifying, "CHUNK_BYTES", 20_000)  # several pieces of K
    return str(request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(PRECISIONS))
def test_right_results_pass(name: str, layout: str, coverage: str) -> None:
    problem = Problem(127, 65, 193, PRECISIONS[name], layout)
    verdict = verify(DEVICE, computed(problem), seed=1)
    assert verdict.reason == ""
    assert verdict.rel_error <= problem.precision.tolerance(problem.k)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 1000), (1, 300, 7), (300, 1, 7)])
def test_thin_shapes_pass_for_many_inputs(shape: tuple[int, int, int], coverage: str) -> None:
    for seed in range(30):
        assert verify(DEVICE, computed(Problem(*shape), seed), seed).reason == ""


def test_alpha_beta_and_batch_pass(coverage: str) -> None:
    problem = Problem(33, 20, 50, alpha=-1.5, beta=0.25, batch=3)
    assert verify(DEVICE, computed(problem), 0).reason == ""


def test_unwritten_elements_are_counted(coverage: str) -> None:
    operands = computed(Problem(30, 20, 10, PRECISIONS["bf16"]))
    operands.c[0, 29, 18:] = 0x7FFF
    verdict = verify(DEVICE, operands, 0)
    assert isnan(verdict.rel_error)
    assert "2 of 600 elements are NaN" in verdict.reason


def test_one_wrong_corner_is_found_and_named(coverage: str) -> None:
    operands = computed(Problem(200, 100, 300))
    operands.c[0, 199, 99] += 1.0
    assert "C[199, 99]" in verify(DEVICE, operands, 0).reason


def test_a_lost_product_is_found(coverage: str) -> None:
    problem = Problem(100, 80, 600, PRECISIONS["bf16"])
    operands = computed(problem)
    short = decode(np, operands.a[0], BF16)[:, :-1] @ decode(np, operands.b[0], BF16)[:-1]
    operands.c[0] = encode(np, short, BF16)
    assert "relative error" in verify(DEVICE, operands, 0).reason


SIZES = [256, 512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("k", SIZES)
def test_a_lost_fp8_product_is_found_at_every_default_size(k: int) -> None:
    operands = allocate(DEVICE, Problem(48, 40, k, PRECISIONS["fp8"]), seed=k)
    a, b = decode(np, operands.a[0], FP8_E4M3), decode(np, operands.b[0], FP8_E4M3)
    operands.c[0] = encode(np, a[:, :-1] @ b[:-1], BF16)
    assert "relative error" in verify(DEVICE, operands, 0).reason


def cut(values: np.ndarray, exponents: np.ndarray) -> np.ndarray:
    """``values`` < 2^exponents without what lies below 13 bits after the first, toward zero."""
    step = np.ldexp(1.0, exponents - 14)
    return np.asarray(np.trunc(values / step) * step)


def narrow_sums(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A·B as Hopper's tensor cores take it: 32 products and the sum so far, aligned and cut."""
    total = np.zeros((a.shape[0], b.shape[1]))
    for k in range(0, a.shape[1], 32):
        terms = a[:, None, k : k + 32] * b[k : k + 32].T
        terms = np.concatenate([terms, total[..., None]], axis=2)
        total = cut(terms, np.frexp(terms)[1].max(axis=2, keepdims=True)).sum(axis=2)
        total = cut(total, np.frexp(total)[1])
    return total


@pytest.mark.parametrize("fill", ["uniform", "normal"])
@pytest.mark.parametrize("k", SIZES)
def test_narrow_fp8_sums_pass(k: int, fill: str) -> None:
    operands = allocate(DEVICE, Problem(24, 24, k, PRECISIONS["fp8"]), k, fill)
    a, b = decode(np, operands.a[0], FP8_E4M3), decode(np, operands.b[0], FP8_E4M3)
    operands.c[0] = encode(np, narrow_sums(a, b), BF16)
    verdict = verify(DEVICE, operands, 0)
    assert verdict.reason == ""
    assert verdict.rel_error < operands.problem.precision.tolerance(k) / 2


def test_a_wrong_batch_is_found() -> None:
    operands = computed(Problem(20, 20, 20, batch=3))
    operands.c[2] *= 1.01
    assert "of batch 2" in verify(DEVICE, operands, 0).reason


def test_a_transposed_result_is_found(coverage: str) -> None:
    operands = computed(Problem(64, 64, 64))
    operands.c[0] = operands.c[0].T.copy()
    assert verify(DEVICE, operands, 0).rel_error > 0.5


def test_ignored_beta_is_found(coverage: str) -> None:
    operands = computed(Problem(64, 64, 64, beta=1.0))
    operands.c[...] -= operands.c_before
    assert verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("value", [1.0, -1.0, 0.5, 1 + 2**-8, 1 + 3 * 2**-8, 3.14159, 1e-3])
def test_bf16_rounds_to_nearest_even(value: float) -> None:
    stored = encode(np, np.array([value]), BF16)
    back = float(decode(np, stored, BF16)[0])
    assert abs(back - value) <= abs(value) * 2**-8
    if value == 1 + 2**-8:
        assert back == 1.0
    if value == 1 + 3 * 2**-8:
        assert back == 1 + 2**-6


def test_fp16_storage_is_numpys() -> None:
    assert encode(np, np.array([1.5]), FP16).dtype == np.float16


def test_inputs_fill_the_interval_and_repeat_with_the_seed() -> None:
    first, again = (allocate(DEVICE, Problem(200, 200, 200), 3) for _ in range(2))
    other = allocate(DEVICE, Problem(200, 200, 200), 4)
    assert np.array_equal(first.a, again.a)
    assert not np.array_equal(first.a, other.a)
    assert not np.array_equal(first.a, first.b)
    assert -1 <= first.a.min() < -0.99
    assert 0.99 < first.a.max() <= 1
