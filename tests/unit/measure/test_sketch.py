"""Large products are compared with a few rows and columns, and by products with random numbers."""

from __future__ import annotations

import re
from random import Random

import numpy as np
import pytest
from fake import FakeDevice, compute
from synthetic import gemm

from rooflab.kernels.base import Operands
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import SKETCHED, right, verify
from rooflab.model.encoding import decode, encode
from rooflab.model.precision import BF16, PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads import gemm as product
from rooflab.workloads.gemm import LAYOUTS

DEVICE = FakeDevice()


def computed(problem: Problem, seed: int = 7) -> Operands:
    operands = allocate(DEVICE, problem, seed)
    poison(operands)
    compute(operands)()
    return operands


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """All products are as large products: four rows and columns are compared, and products."""
    monkeypatch.setattr(product, "WHOLE_FLOPS", 0)
    monkeypatch.setattr(product, "BANDS", 2)


def compared(problem: Problem, seed: int) -> tuple[set[int], set[int]]:
    """The rows and the columns of C that are compared element by element."""
    rows: set[int] = set()
    columns: set[int] = set()
    for piece in problem.pieces(Random(seed)):
        _, i, j = piece.select["c"]
        rows |= set(i) if isinstance(i, list) else set()
        columns |= set(j) if isinstance(j, list) else set()
    return rows, columns


@pytest.mark.parametrize("name", PRECISIONS)
@pytest.mark.parametrize("shape", [(5, 7, 33), (40, 64, 50), (40, 65, 50), (30, 300, 20)])
def test_products_of_right_results_agree(name: str, shape: tuple[int, int, int]) -> None:
    for seed in range(10):
        problem = gemm(*shape, name, batch=3, beta=1.0, alpha=2.0)
        operands = computed(problem, seed)
        assert verify(DEVICE, operands, seed).reason == ""


@pytest.mark.parametrize("name", ["fp64", "fp32", "tf32", "fp16", "bf16", "fp8"])
def test_rounding_as_large_as_the_tolerance_passes(name: str) -> None:
    problem = gemm(64, 640, 40, name)
    for seed in range(10):
        operands = computed(problem, seed)
        values = decode(np, operands.c, problem.precision.output)
        size = float(np.sqrt((values**2).mean()))
        noise = np.random.default_rng(seed).standard_normal(values.shape)
        noise *= 0.8 * (problem.tolerance - 0.3 * problem.precision.output.epsilon) * size
        operands.c[...] = encode(np, values + noise, problem.precision.output)
        assert verify(DEVICE, operands, seed).reason == ""


@pytest.mark.parametrize("columns", [16, 64, 128, 400])
def test_elements_that_are_larger_than_others_are_rounded_more(columns: int) -> None:
    """An inspection puts some large numbers into A and B, which may meet."""
    problem = gemm(500, columns, 64, "bf16")
    for seed in range(5):
        operands = computed(problem, seed)
        draw = np.random.default_rng(seed)
        for array in (operands.a, operands.b):
            places = draw.integers(0, array.size, 64)
            array.reshape(-1)[places] = encode(np, draw.uniform(-8, 8, 64), BF16)
        compute(operands)()
        assert verify(DEVICE, operands, seed).reason == ""


@pytest.mark.parametrize("name", ["fp64", "fp32", "bf16", "fp8"])
@pytest.mark.parametrize("columns", [64, 256, 1000])
def test_a_single_error_between_the_samples_is_found(name: str, columns: int) -> None:
    """Six times as large as what rounding may do to a sum of so many elements."""
    problem = gemm(50, columns, 60, name, batch=2)
    operands = computed(problem)
    kind = problem.precision.output
    values = decode(np, operands.c, kind)
    size = float(np.sqrt((values**2).mean()))
    terms = np.sqrt(columns / min(64, columns))
    error = 6 * SKETCHED * problem.tolerance * size * terms
    draw = Random(columns)
    for seed in range(20):
        rows, sampled = compared(problem, seed)
        i = draw.choice(sorted(set(range(50)) - rows))
        j = draw.choice(sorted(set(range(columns)) - sampled))
        z = draw.randrange(2)
        before = operands.c[z, i, j]
        operands.c[z, i, j] = encode(np, values[z, i, j : j + 1] + error, kind)[0]
        reason = verify(DEVICE, operands, seed).reason
        operands.c[z, i, j] = before
        place, first, last = re.findall(r"\d+, \d+|\d+(?= to)|\d+$", reason)
        assert place == f"{z}, {i}"
        assert int(first) <= j <= int(last)


def test_a_single_error_below_the_limit_is_none() -> None:
    problem = gemm(50, 256, 60)
    for seed in range(20):
        operands = computed(problem, seed)
        operands.c[0, 17, 100] += problem.tolerance * float(np.sqrt((operands.c**2).mean()))
        assert verify(DEVICE, operands, seed).reason == ""


def test_results_that_wrap_around_are_right() -> None:
    problem = gemm(30, 70, 20, "int32")
    operands = allocate(DEVICE, problem, 0)
    for one in (operands.a, operands.b):
        one *= 12345
    right(DEVICE, operands)
    assert verify(DEVICE, operands, 0).reason == ""
    assert float(abs(decode(np, operands.c, problem.precision.output)).max()) > 2**29


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_any_wrong_bit_of_an_integer_is_found(name: str) -> None:
    problem = gemm(30, 70, 20, name, batch=2, alpha=2.0)
    operands = computed(problem)
    kind = np.uint32 if name == "int32" else np.uint64
    for bit in range(8 * kind(0).nbytes):
        for seed in range(4):
            rows, columns = compared(problem, seed)
            i = next(row for row in range(30) if row not in rows)
            j = next(column for column in range(9, 70) if column not in columns)
            operands.c.view(kind)[1, i, j] ^= kind(1) << kind(bit)
            assert f"elements of C[1, {i}] are wrong" in verify(DEVICE, operands, seed).reason
            operands.c.view(kind)[1, i, j] ^= kind(1) << kind(bit)
            assert verify(DEVICE, operands, seed).reason == ""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("matrix", range(5))
def test_every_matrix_of_a_batch_counts(matrix: int, layout: str) -> None:
    problem = gemm(30, 70, 20, "bf16", batch=5, layout=layout, beta=0.5)
    operands = computed(problem)
    values = decode(np, operands.c[matrix, 7:9, 20:40], BF16)
    operands.c[matrix, 7:9, 20:40] = encode(np, values + 40, BF16)
    reasons = [verify(DEVICE, operands, seed).reason for seed in range(5)]
    assert all(reasons)
    products = [one for one in reasons if "in columns" in one]
    assert all(f"C[{matrix}, " in one for one in products)
    if matrix in (1, 3):  # the others are sampled
        assert len(products) == 5


def test_of_one_matrix_no_number_is_told() -> None:
    operands = computed(gemm(30, 70, 20))
    rows, columns = compared(operands.problem, 0)
    i, j = min(set(range(30)) - rows), min(set(range(70)) - columns)
    operands.c[0, i, j] += 1e6
    place = re.escape(f"elements of C[{i}] are wrong in columns ")
    assert re.fullmatch(rf"{place}\d+ to \d+", verify(DEVICE, operands, 0).reason)


def test_fractions_of_integers_are_not_multiplied_with_random_numbers() -> None:
    assert gemm(8, 8, 8, "int32", alpha=0.5).sketched == ""
    assert gemm(8, 8, 8, "int32", beta=1.5).sketched == ""
    assert gemm(8, 8, 8, "int32", alpha=2.0).sketched == "c"
    assert gemm(8, 8, 8, alpha=0.5).sketched == "c"
