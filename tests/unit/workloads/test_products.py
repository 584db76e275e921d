"""Products of experts, 4-bit weights and layers: counts of tokens, how large ones are verified."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from fake import FakeDevice, compute

from rooflab.errors import UsageError
from rooflab.kernels.base import Operands
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.model.encoding import decode, encode
from rooflab.model.problem import Problem
from rooflab.workloads import build, gemm
from rooflab.workloads.experts import SPREADS, GroupedGemm

DEVICE = FakeDevice()


def experts(tokens: int, count: int, spread: str, n: int = 8, k: int = 8) -> GroupedGemm:
    sizes = {"tokens": tokens, "n": n, "k": k, "experts": count, "spread": spread}
    problem = build("grouped_gemm", "bf16", sizes)
    assert isinstance(problem, GroupedGemm)
    return problem


def computed(problem: Problem) -> Operands:
    operands = allocate(DEVICE, problem, 7)
    poison(operands)
    compute(operands)()
    return operands


# Counts ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize(("tokens", "count"), [(1, 1), (1, 8), (7, 3), (1000, 8), (4096, 128)])
def test_every_token_has_an_expert(tokens: int, count: int, spread: str) -> None:
    problem = experts(tokens, count, spread)
    assert len(problem.counts) == len(problem.ends) == count
    assert sum(problem.counts) == problem.ends[-1] == tokens
    assert min(problem.counts) >= 0


def test_uniform_counts_differ_by_one() -> None:
    assert experts(1003, 8, "uniform").counts == [125, 125, 126, 125, 125, 126, 125, 126]


def test_skewed_counts_follow_zipf_and_some_experts_have_none() -> None:
    counts = experts(4900, 8, "skewed").counts
    assert sorted(counts) == [0, 0, 333, 400, 500, 667, 1000, 2000]
    assert counts[0] == 0 < counts[7]


def test_one_expert_may_have_all() -> None:
    assert experts(1003, 8, "single").counts == [0] * 7 + [1003]


def test_other_spreads_are_told() -> None:
    with pytest.raises(UsageError, match="choose from uniform, skewed, single"):
        experts(5, 2, "zipf")


@pytest.mark.parametrize(("spread", "busy"), [("uniform", 8), ("skewed", 6), ("single", 1)])
def test_weights_of_experts_without_tokens_are_not_moved(spread: str, busy: int) -> None:
    problem = experts(4900, 8, spread, 16, 32)
    assert problem.flops == 2 * 4900 * 16 * 32
    assert problem.bytes == 2 * (4900 * (16 + 32) + busy * 16 * 32) + 4 * 8
    assert problem.operand_bytes == 2 * (4900 * (16 + 32) + 8 * 16 * 32) + 4 * 8


def test_ends_are_in_memory() -> None:
    problem = experts(61, 5, "skewed")
    assert allocate(DEVICE, problem, 1)["ends"].tolist() == list(problem.ends)


# Large products ----------------------------------------------------------------------------------

LARGE = (
    *(("grouped_gemm", {"tokens": 61, "n": 70, "k": 50, "spread": s}) for s in SPREADS),
    ("w4a16", {"m": 37, "n": 70, "k": 259}),
    ("block_gemm", {"m": 37, "n": 300, "k": 259}),
    ("linear", {"m": 37, "n": 70, "k": 259}),
)


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some rows and columns are compared, and products with random numbers."""
    monkeypatch.setattr(gemm, "WHOLE_FLOPS", 0)
    monkeypatch.setattr(gemm, "BANDS", 2)


@pytest.mark.parametrize(("workload", "shape"), LARGE)
@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_right_results_of_large_products_pass(
    large: None, workload: str, shape: dict[str, Any], precision: str
) -> None:
    problem = build(workload, precision, shape)
    assert problem.sketched == "y"
    operands = computed(problem)
    for seed in range(3):
        assert verify(DEVICE, operands, seed).reason == ""


@pytest.mark.parametrize(("workload", "shape"), LARGE)
def test_a_wrong_element_of_a_large_product_is_found(
    large: None, workload: str, shape: dict[str, Any]
) -> None:
    problem = build(workload, "bf16", shape)
    operands, draw = computed(problem), Random(5)
    kind = problem.precision.output
    right = operands.y.copy()
    for seed in range(20):
        place = tuple(map(draw.randrange, right.shape))
        size = np.sqrt((decode(np, right, kind) ** 2).mean())
        operands.y[place] = encode(np, decode(np, right[place], kind) + size, kind)
        assert "Y" in verify(DEVICE, operands, seed).reason
        operands.y[...] = right


@pytest.mark.parametrize("epilogue", ["gelu", "swiglu"])
@pytest.mark.parametrize("precision", ["fp64", "fp32", "fp16", "bf16"])
def test_a_wrong_row_or_column_before_an_activation_is_found(
    large: None, epilogue: str, precision: str
) -> None:
    """Single elements are found only where samples have them."""
    problem = build("linear", precision, {"m": 37, "n": 70, "k": 259, "epilogue": epilogue})
    assert problem.sketched == ""
    operands, draw = computed(problem), Random(5)
    kind, right = problem.precision.output, operands.y.copy()
    for seed in range(10):
        assert verify(DEVICE, operands, seed).reason == ""
        row, column = draw.randrange(37), draw.randrange(70)
        for place in ((row, slice(None)), (slice(None), column)):
            operands.y[place] = encode(np, decode(np, right[place], kind) + 1, kind)
            assert "Y" in verify(DEVICE, operands, seed).reason
            operands.y[...] = right


@pytest.mark.parametrize("spread", SPREADS)
def test_pieces_have_rows_of_one_expert_and_all_rows_come(spread: str) -> None:
    problem = experts(61, 5, spread)
    rows = [0] * 61
    for piece in problem.pieces(Random(1)):
        some, (expert, _, _) = piece.select["x"][0], piece.select["w"]
        assert problem.ends[expert.start] >= some.stop
        assert problem.ends[expert.start] - problem.counts[expert.start] <= some.start
        assert expert.stop == expert.start + 1
        for row in range(some.start, some.stop):
            rows[row] += 1
    assert rows == [1] * 61


# Weights of 4 bits -------------------------------------------------------------------------------


def test_bits_are_weights_in_order() -> None:
    problem = build("w4a16", "fp32", {"m": 1, "n": 2, "k": 259})
    operands = allocate(DEVICE, problem, 1)
    operands["w"][...] = 0x88
    operands["w"][1, 64] = 0xF3  # weights 128 and 129
    operands["scales"][1] = [1, 0.5, 2]
    for k, weight in ((127, 0.0), (128, (3 - 8) * 0.5), (129, (15 - 8) * 0.5)):
        operands["x"][...] = 0
        operands["x"][0, k] = 1
        compute(operands)()
        assert operands["y"].tolist() == [[0, weight]]


def test_what_is_past_the_last_weight_does_not_matter() -> None:
    problem = build("w4a16", "fp32", {"m": 2, "n": 3, "k": 7})
    operands = computed(problem)
    right = operands["y"].copy()
    operands["w"][:, -1] ^= 0xF0
    compute(operands)()
    assert (operands["y"] == right).all()


def test_weights_of_gate_and_up_have_rows_of_32_bits() -> None:
    shape = {"m": 1, "n": 2**30, "k": 8}
    assert build("linear", "bf16", shape)
    with pytest.raises(UsageError, match="W has 2147483648 rows, which must be below"):
        build("linear", "bf16", {**shape, "epilogue": "swiglu"})
