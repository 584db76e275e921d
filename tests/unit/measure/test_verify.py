"""The check must pass correct arithmetic in every precision and catch every planted error."""

from __future__ import annotations

from collections.abc import Mapping
from math import copysign, isnan, sqrt
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from fake import FakeDevice, compute
from synthetic import gemm

from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.measure.buffers import SENTINELS, Rotation, allocate, poison, rotate
from rooflab.measure.verify import unlike, verify
from rooflab.model.encoding import count_nan, decode, encode
from rooflab.model.precision import BF16, FP8_E4M3, FP16, FP32, INT32, INT64, PRECISIONS
from rooflab.model.problem import Inputs, Operand, Problem
from rooflab.workloads import build, parts, rows
from rooflab.workloads import gemm as product
from rooflab.workloads.gemm import LAYOUTS

DEVICE = FakeDevice()


def computed(problem: Problem, seed: int = 7) -> Operands:
    operands = allocate(DEVICE, problem, seed)
    poison(operands)
    compute(operands)()
    return operands


@pytest.fixture(params=["full", "sampled"])
def coverage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "sampled":
        monkeypatch.setattr(product, "WHOLE_FLOPS", 0)
        monkeypatch.setattr(product, "BANDS", 8)
        # Several pieces of the rows and columns, and of K.
        monkeypatch.setattr(product, "PIECE_ELEMENTS", 500)
    return str(request.param)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", list(PRECISIONS))
def test_right_results_pass(name: str, layout: str, coverage: str) -> None:
    problem = gemm(127, 65, 193, name, layout=layout)
    verdict = verify(DEVICE, computed(problem), seed=1)
    assert verdict.reason == ""
    assert verdict.rel_error <= problem.tolerance


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 1, 1000), (1, 300, 7), (300, 1, 7)])
def test_thin_shapes_pass_for_many_inputs(shape: tuple[int, int, int], coverage: str) -> None:
    for seed in range(30):
        assert verify(DEVICE, computed(gemm(*shape), seed), seed).reason == ""


def test_alpha_beta_and_batch_pass(coverage: str) -> None:
    problem = gemm(33, 20, 50, alpha=-1.5, beta=0.25, batch=3)
    assert verify(DEVICE, computed(problem), 0).reason == ""


def test_unwritten_elements_are_counted(coverage: str) -> None:
    operands = computed(gemm(30, 20, 10, "bf16"))
    operands.c[0, 29, 18:] = 0x7FFF
    verdict = verify(DEVICE, operands, 0)
    assert isnan(verdict.rel_error)
    assert "2 of 600 elements of C are NaN" in verdict.reason


def test_one_wrong_corner_is_found_and_named(coverage: str) -> None:
    operands = computed(gemm(200, 100, 300))
    operands.c[0, 199, 99] += 1.0
    assert "C[199, 99]" in verify(DEVICE, operands, 0).reason


def test_a_lost_product_is_found(coverage: str) -> None:
    problem = gemm(100, 80, 600, "bf16")
    operands = computed(problem)
    short = decode(np, operands.a[0], BF16)[:, :-1] @ decode(np, operands.b[0], BF16)[:-1]
    operands.c[0] = encode(np, short, BF16)
    assert "relative error" in verify(DEVICE, operands, 0).reason


SIZES = [256, 512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("k", SIZES)
def test_a_lost_fp8_product_is_found_at_every_default_size(k: int) -> None:
    operands = allocate(DEVICE, gemm(48, 40, k, "fp8"), seed=k)
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
    operands = allocate(DEVICE, gemm(24, 24, k, "fp8"), k, fill)
    a, b = decode(np, operands.a[0], FP8_E4M3), decode(np, operands.b[0], FP8_E4M3)
    operands.c[0] = encode(np, narrow_sums(a, b), BF16)
    verdict = verify(DEVICE, operands, 0)
    assert verdict.reason == ""
    assert verdict.rel_error < operands.problem.tolerance / 2


def test_a_wrong_batch_is_found() -> None:
    operands = computed(gemm(20, 20, 20, batch=3))
    operands.c[2] *= 1.01
    assert "worst at C[2, " in verify(DEVICE, operands, 0).reason


def test_a_transposed_result_is_found(coverage: str) -> None:
    operands = computed(gemm(64, 64, 64))
    operands.c[0] = operands.c[0].T.copy()
    assert verify(DEVICE, operands, 0).rel_error > 0.5


def test_ignored_beta_is_found(coverage: str) -> None:
    operands = computed(gemm(64, 64, 64, beta=1.0))
    operands.c[...] -= operands.initial["c"]
    assert verify(DEVICE, operands, 0).reason


# What is said ------------------------------------------------------------------------------------


def told(operands: Operands) -> str:
    return verify(DEVICE, operands, 0).reason


def element_size(operands: Operands) -> float:
    """Of the result, or what is expected of such inputs if that is more."""
    a, b, c = (float(np.sqrt(np.mean(one**2))) for one in (operands.a, operands.b, operands.c))
    return max(c, a * b * sqrt(operands.problem.extents["k"]))


def test_what_is_not_a_number_is_counted() -> None:
    operands = computed(gemm(30, 20, 10))
    operands.c[0, 3, 4] = operands.c[0, 5, 6] = np.nan
    assert told(operands) == "2 of 600 elements of C are NaN: not written, or not a number"


def test_an_error_is_named_with_its_limit_and_its_worst_place() -> None:
    """All elements are off by a hundredth, one by a tenth."""
    operands = computed(gemm(30, 20, 10, "fp64"))
    operands["c"][...] *= 1.01
    operands.c[0, 7, 11] *= 1.1 / 1.01
    error = verify(DEVICE, operands, 0).rel_error
    limit = 0.5 * 2**-52 + 4 * 2**-52 * 10**0.5
    assert told(operands) == (f"relative error {error:.2g} is above {limit:.2g}; worst at C[7, 11]")


def test_a_relative_error_is_that_of_the_norms() -> None:
    for seed in range(4):
        operands = computed(gemm(30, 20, 10, "fp64"), seed)
        off = np.linspace(-1, 1, 600).reshape(operands.c.shape)
        expected = float(np.sqrt(np.mean(off**2))) / element_size(operands)
        operands["c"][...] += off
        assert verify(DEVICE, operands, 0).rel_error == pytest.approx(expected)


def test_a_single_element_may_be_off_by_sixteen_tolerances() -> None:
    """Of a typical element's size and of its own."""
    problem = gemm(300, 300, 90, "fp64")
    size = element_size(computed(problem))
    for factor, wrong in ((15.5, False), (16.5, True), (-16.5, True)):
        operands = computed(problem)
        own = 16 * abs(operands.c[0, 299, 1])
        operands.c[0, 299, 1] += problem.tolerance * (factor * size + copysign(own, factor))
        found = told(operands)
        assert bool(found) == wrong
        if wrong:
            off = abs(factor) * problem.tolerance
            assert found.startswith("C[299, 1] is off by ")
            assert float(found.split()[5]) == pytest.approx(off, rel=0.02)
            assert found.endswith(" of a typical element's size")


def test_an_error_may_be_as_large_as_the_tolerance() -> None:
    problem = gemm(30, 20, 10, "fp64")
    for factor, wrong in ((0.9, False), (1.1, True)):
        operands = computed(problem)
        operands["c"][...] *= 1 + factor * problem.tolerance
        assert bool(told(operands)) == wrong


def test_wrong_integers_are_counted() -> None:
    operands = computed(build("add", "int32", {"rows": 3, "columns": 50}))
    operands.c[0, 1, 2] += 5
    operands.c[0, 2, 49] -= 9
    assert told(operands) == "2 of 150 elements are wrong; worst at C[2, 49]"


@pytest.mark.parametrize("pattern", [0, 1])
def test_integers_that_keep_their_poison_are_not_written(pattern: int) -> None:
    operands = computed(build("add", "int32", {"rows": 3, "columns": 50}))
    operands.c[0, 1, 7:9] = SENTINELS[pattern]
    operands.c[0, 0, 0] += 1
    assert told(operands) == "2 of 150 elements of C are not written"
    # A result may be what poison is.
    operands = computed(build("add", "int32", {"columns": 5}))
    operands.a[0, 0, 3], operands.b[0, 0, 3] = SENTINELS[pattern], 0
    compute(operands)()
    assert told(operands) == ""


def test_integers_wrap_around() -> None:
    operands = computed(build("add", "int32", {"columns": 5}))
    operands.a[0, 0, 3] = operands.b[0, 0, 3] = 2**31 - 1
    compute(operands)()
    assert operands.c[0, 0, 3] == -2
    assert told(operands) == ""


def test_the_place_of_an_output_of_one_element_has_an_index() -> None:
    operands = computed(build("sum", "int32", {"elements": 9}))
    operands.y[0] += 1
    assert told(operands) == "1 of 1 elements are wrong; worst at Y[0]"


def test_a_reference_that_cancels_is_no_error() -> None:
    """The size of an element is expected, not measured, where the inputs cancel."""
    operands = computed(gemm(8, 8, 64, "fp64"))
    operands.a[...] = 1.0
    operands.b[0, ::2], operands.b[0, 1::2] = 1.0, -1.0
    compute(operands)()
    operands["c"][...] += 2**-52
    assert told(operands) == ""
    operands["c"][...] += 1.28e-10
    assert told(operands).startswith("relative error 1.6e-11 is above ")  # of sqrt(64)


class Two(product.Gemm):
    """Two outputs; the second is not always in the reference."""

    known: ClassVar[tuple[str, ...]] = ("c", "total")

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*super().operands, Operand("total", (1,), self.precision.output, "out"))

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        product_of = super().reference(arrays, inputs)["c"]
        both = {"c": product_of, "total": product_of.sum().reshape(1)}
        return {name: both[name] for name in self.known}


def test_the_first_wrong_output_is_named_and_the_largest_error_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operands = computed(Two(m=8, n=8, k=8, precision=PRECISIONS["fp64"]))
    assert told(operands) == ""
    operands["total"][0] *= 1 + 2**-30
    assert told(operands).endswith("worst at total[0]")
    assert verify(DEVICE, operands, 0).rel_error == pytest.approx(2**-30)
    operands["total"][0] = np.nan
    assert told(operands) == "1 of 1 elements of total are NaN: not written, or not a number"
    operands["total"][0] = 0
    monkeypatch.setattr(Two, "known", ("c",))
    with pytest.raises(KernelError) as error:
        verify(DEVICE, operands, 0)
    assert str(error.value) == "the reference of gemm returns 'c', not total"


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
    first, again = (allocate(DEVICE, gemm(200, 200, 200), 3) for _ in range(2))
    other = allocate(DEVICE, gemm(200, 200, 200), 4)
    assert np.array_equal(first.a, again.a)
    assert not np.array_equal(first.a, other.a)
    assert not np.array_equal(first.a, first.b)
    assert -1 <= first.a.min() < -0.99
    assert 0.99 < first.a.max() <= 1


@pytest.mark.parametrize("fill", ["uniform", "normal", "ints", "zeros"])
def test_integers_are_filled_with_whole_numbers_of_some_size(fill: str) -> None:
    x = allocate(DEVICE, build("sum", "int32", {"elements": 4000}), 3, fill).x
    assert x.dtype == np.int32
    largest = {"uniform": 100, "normal": 500, "ints": 2, "zeros": 0}[fill]
    assert abs(x).max() <= largest
    assert len(set(x.tolist())) >= {"uniform": 190, "normal": 300, "ints": 5, "zeros": 1}[fill]


# What is left unwritten --------------------------------------------------------------------------


@pytest.mark.parametrize("name", PRECISIONS)
def test_outputs_are_poisoned_in_every_type(name: str) -> None:
    operands = allocate(DEVICE, gemm(8, 8, 8, name), 0)
    before = operands.a.copy()
    for pattern in (0, 1):
        poison(operands, pattern)
        output = PRECISIONS[name].output
        if output.integer:
            assert set(operands.c.reshape(-1).tolist()) == {SENTINELS[pattern]}
        else:
            assert count_nan(np, operands.c, output) == operands.c.size
    assert np.array_equal(operands.a, before)


def test_what_is_read_and_written_starts_as_it_was() -> None:
    rotation = rotate(DEVICE, gemm(8, 8, 8, beta=1.0), 0, cold=True)
    operands = rotation.copies[0]
    first = operands.c.copy()
    assert np.array_equal(first, operands.initial["c"])
    assert all(np.array_equal(copy.c, first) for copy in rotation.copies)
    compute(operands)()
    assert not np.array_equal(operands.c, first)
    poison(operands, 1)
    assert np.array_equal(operands.c, first)
    rotation.strips["c"].rows[...] = 0
    rotation.poison(1)
    assert all(np.array_equal(copy.c, first) for copy in rotation.copies)


@pytest.mark.parametrize(
    ("data_type", "bits", "count"),
    [
        (BF16, [0x7F80, 0xFF80, 0x7F81, 0xFFC0, 0], 2),  # infinities are no NaN
        (FP16, [0x7C00, 0x7E00, 0xFE00], 2),
        (INT32, [0, -1], 0),
        (INT64, [0, -1], 0),
    ],
)
def test_nan_is_counted_in_every_type(data_type: Any, bits: list[int], count: int) -> None:
    storage = {"fp16": np.uint16, "bf16": np.uint16}.get(data_type.name, data_type.storage)
    stored = np.array(bits, storage).view(data_type.storage)
    assert count_nan(np, stored, data_type) == count


@pytest.mark.parametrize("data_type", [FP32, BF16, FP16, INT32, INT64])
def test_numbers_come_back_from_their_storage(data_type: Any) -> None:
    values = np.array([-2.0, 0.0, 1.0, 96.0])
    stored = encode(np, values, data_type)
    assert stored.dtype == data_type.storage
    back = decode(np, stored, data_type)
    assert back.dtype == (np.int64 if data_type.integer else np.float64)
    assert back.tolist() == values.tolist()


# Every element counts ----------------------------------------------------------------------------


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows and two columns are compared, and some of the edges."""
    monkeypatch.setattr(product, "WHOLE_FLOPS", 0)
    monkeypatch.setattr(product, "BANDS", 2)


@pytest.mark.usefixtures("few_samples")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int32"])
def test_an_element_that_no_sample_has_is_found(precision: str) -> None:
    """The 200 columns are in 64 parts: column 77 is in the 25th, from 75 to 78."""
    operands = computed(gemm(300, 200, 5, precision, batch=3))
    assert told(operands) == ""
    operands.c[1, 123, 77] += 100
    assert told(operands) == "elements of C[1, 123] are wrong in columns 75 to 78"
    operands = computed(gemm(300, 200, 5, precision))
    operands.c[0, 123, 195] += 100
    assert told(operands) == "elements of C[123] are wrong in columns 194 to 196"


@pytest.mark.usefixtures("few_samples")
def test_rounding_is_not_an_error_of_a_product_with_random_numbers() -> None:
    for seed in range(10):
        problem = gemm(300, 200, 50, "fp64")
        operands = computed(problem, seed)
        random = np.random.default_rng(seed)
        rounding = 0.9 * problem.tolerance * element_size(operands)
        operands["c"][...] += random.normal(0, rounding, operands.c.shape)
        assert verify(DEVICE, operands, seed).reason == ""
        operands.c[0, 123, 77] += 1000 * problem.tolerance * element_size(operands)
        assert verify(DEVICE, operands, seed).reason


# Copies of the operands --------------------------------------------------------------------------


def right_copies(problem: Problem) -> Rotation:
    """Copies of the operands with right results in all."""
    rotation = rotate(DEVICE, problem, 7, cold=True)
    rotation.poison(0)
    for copy in rotation.copies:
        compute(copy)()
    return rotation


@pytest.mark.parametrize(
    ("precision", "factor", "found"),
    [("fp64", 1.9, []), ("fp64", 2.1, [1, 3]), ("fp32", 1.9, []), ("fp32", 2.1, [1, 3])],
)
def test_copies_may_differ_by_the_rounding_of_both(
    precision: str, factor: float, found: list[int]
) -> None:
    problem = gemm(30, 20, 10, precision)
    rotation = right_copies(problem)
    assert len(rotation.copies) > 4
    for number in (1, 3):
        copy = rotation.copies[number].c
        copy += factor * problem.tolerance * copy
    assert unlike(DEVICE, rotation, range(4)) == found
    assert unlike(DEVICE, rotation, range(3)) == found[:1]
    assert unlike(DEVICE, rotation, [2, 3, 0]) == found[1:]


def test_a_copy_with_nan_or_another_integer_differs() -> None:
    for problem, value in (
        (gemm(30, 20, 10), np.nan),
        (build("add", "int32", {"columns": 50}), 1),
    ):
        rotation = right_copies(problem)
        assert unlike(DEVICE, rotation, range(3)) == []
        rotation.copies[1].c[0, 0, 5] -= value
        rotation.copies[2].c[0, 0, 5] += value
        assert unlike(DEVICE, rotation, range(3)) == [1, 2]


def test_every_output_of_a_copy_counts() -> None:
    rotation = right_copies(gemm(30, 20, 10))
    ((operand, rows),) = rotation.outputs()
    other = rows.copy()
    other[1] += 1
    both = SimpleNamespace(
        problem=rotation.problem, outputs=lambda: [(operand, rows), (operand, other)]
    )
    assert unlike(DEVICE, cast("Any", both), range(3)) == [1]


# Pieces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "parameters"),
    [
        ("gemv", {"m": 50, "n": 70}),
        ("softmax", {"rows": 50, "columns": 70}),
        ("rmsnorm", {"rows": 50, "columns": 70}),
        ("blur", {"batch": 50, "rows": 7, "columns": 10}),
        ("fft", {"batch": 50, "n": 8}),
        ("spectrum", {"batch": 50, "n": 8}),
        ("filter", {"batch": 50, "n": 12}),
    ],
)
def test_problems_in_pieces_are_compared_whole(
    workload: str, parameters: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (parts, rows):
        monkeypatch.setattr(module, "PIECE_ELEMENTS", 300)
    operands = computed(build(workload, "fp32", parameters))
    assert verify(DEVICE, operands, 0).reason == ""
    operands.y[33, ...] += 1
    assert "[33" in verify(DEVICE, operands, 0).reason


def test_more_elements_than_a_piece_has_are_summed_and_compared() -> None:
    operands = computed(build("sum", "int32", {"elements": 2**23 + 5}))
    assert verify(DEVICE, operands, 0).reason == ""
    operands.x[-1] += 1
    assert verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("corner", [(0, 0), (0, -1), (-1, 0), (-1, -1)])
def test_corners_are_always_among_the_samples(
    corner: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(product, "WHOLE_FLOPS", 0)
    monkeypatch.setattr(product, "BANDS", 2)
    operands = computed(gemm(90, 80, 5, batch=3))
    for seed in range(5):
        assert verify(DEVICE, operands, seed).reason == ""
    operands.c[(2, *corner)] += 100
    for seed in range(5):
        assert "C[2, " in verify(DEVICE, operands, seed).reason
