from __future__ import annotations

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab.problem import LAYOUTS, MAX_EXTENT, PRECISIONS, Precision, Problem

from rooflab.errors import UsageError

extents = st.integers(1, 10_000)
problems = st.builds(
    Problem,
    m=extents,
    n=extents,
    k=extents,
    precision=st.sampled_from(list(PRECISIONS.values())),
    layout=st.sampled_from(LAYOUTS),
    batch=st.integers(1, 8),
    beta=st.sampled_from([0.0, 1.0, -0.5]),
)


@given(problems)
def test_model_by_hand(p: Problem) -> None:
    read = (p.m * p.k + p.k * p.n) * p.precision.input.bytes
    c = p.m * p.n * p.precision.output.bytes
    assert p.flops == 2 * p.m * p.n * p.k * p.batch
    assert p.bytes == p.batch * (read + c * (2 if p.beta else 1))
    assert p.intensity == p.flops / p.bytes


@given(problems)
def test_stored_shapes_hold_the_operands(p: Problem) -> None:
    def size(shape: tuple[int, int, int]) -> int:
        return shape[0] * shape[1] * shape[2]

    assert size(p.a_shape) == p.batch * p.m * p.k
    assert size(p.b_shape) == p.batch * p.k * p.n
    assert p.a_shape[1:] == ((p.m, p.k) if p.layout[0] == "n" else (p.k, p.m))
    assert p.b_shape[1:] == ((p.k, p.n) if p.layout[1] == "n" else (p.n, p.k))


@given(st.integers(1, MAX_EXTENT))
def test_square_fp32_intensity_is_s_over_6_or_8(size: int) -> None:
    assert Problem(size, size, size).intensity == pytest.approx(size / 6)
    assert Problem(size, size, size, beta=1.0).intensity == pytest.approx(size / 8)


def test_mixed_precision_counts_each_operand_at_its_own_size() -> None:
    mixed = Problem(64, 32, 16, PRECISIONS["fp16_fp32"])
    assert mixed.bytes == 2 * (64 * 16 + 16 * 32) + 4 * 64 * 32


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("k", [1, 256, 8192, 16384])
def test_tolerance_catches_a_lost_product(precision: Precision, k: int) -> None:
    if precision.name == "fp8":
        k = min(k, 11_700)  # beyond, narrow sums wander as far
    assert precision.tolerance(k) < 1 / sqrt(k)


def test_fp8_is_a_byte_in_and_bf16_out() -> None:
    problem = Problem(64, 32, 16, PRECISIONS["fp8"], beta=1.0)
    assert problem.bytes == (64 * 16 + 16 * 32) + 2 * 2 * 64 * 32


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("extent", [0, -3, MAX_EXTENT + 1])
def test_extents_out_of_range_are_refused(name: str, extent: int) -> None:
    with pytest.raises(UsageError, match=f"(?i)^{name} = {extent} is out of range: give"):
        Problem(**{"m": 8, "n": 8, "k": 8, name: extent})


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown layout 'xy': choose from nn, nt, tn, tt"):
        Problem(8, 8, 8, layout="xy")
