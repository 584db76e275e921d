"""Every workload: its work and traffic by hand, its reference against plain loops, and that
verification passes right results and finds wrong ones, on the exact device."""

from __future__ import annotations

import math
from math import isnan
from typing import Any

import fake
import numpy as np
import pytest
from numpy.typing import NDArray

from rooflab.config import SweepConfig, Timing
from rooflab.errors import KernelError
from rooflab.kernels import Operands
from rooflab.measure import buffers
from rooflab.measure.buffers import allocate, poison, rotate
from rooflab.measure.protocol import Protocol
from rooflab.measure.verify import unlike, verify
from rooflab.model.dtypes import PRECISIONS
from rooflab.model.encoding import decode, encode
from rooflab.model.problem import Problem
from rooflab.workloads import build, catalogue

DEVICE = fake.FakeDevice()
TIMING = Timing(warmup_s=0, warmup_launches=1, min_rounds=3, max_rounds=3, batch_us=0)

EXAMPLES: dict[str, dict[str, Any]] = {
    "gemm": {"m": 17, "n": 9, "k": 33, "batch": 2, "layout": "tn", "alpha": 0.5, "beta": -2},
    "gemv": {"m": 37, "n": 53},
    "add": {"rows": 3, "columns": 41, "batch": 2},
    "copy": {"rows": 3, "columns": 41, "batch": 2},
    "triad": {"columns": 211, "alpha": -1.25},
    "sum": {"elements": 1001},
    "softmax": {"rows": 7, "columns": 61},
    "rmsnorm": {"rows": 7, "columns": 61, "epsilon": 0.01},
}
FLOATS = [name for name, precision in PRECISIONS.items() if not precision.integer]
INTEGERS = ["int32", "int64"]
EXACT = ["add", "copy", "sum", "gemm", "gemv"]
"""Those that have a meaning for integers."""


def example(workload: str, precision: str = "fp32", **other: Any) -> Problem:
    parameters = dict(EXAMPLES[workload])
    if PRECISIONS[precision].integer and workload == "gemm":
        parameters |= {"alpha": 1.0, "beta": 0.0}
    return build(workload, precision, parameters | other)


def computed(problem: Problem, seed: int = 5) -> Operands:
    """Operands as the exact device's kernels leave them."""
    operands = allocate(DEVICE, problem, seed)
    poison(operands)
    fake.compute(operands)()
    return operands


def output(operands: Operands) -> Any:
    """The array of the one output."""
    (one,) = (one for one in operands.problem.operands if one.written)
    return operands[one.name]


def test_every_workload_has_an_example() -> None:
    """A new one must be added here."""
    assert EXAMPLES.keys() == catalogue().keys()


@pytest.mark.parametrize("workload", EXAMPLES)
def test_every_workload_describes_itself(workload: str) -> None:
    kind = catalogue()[workload]
    assert kind.workload == workload
    assert kind.title and kind.formula and kind.work
    assert set(kind.sizes) <= set(kind.parameters())
    assert all(parameter.description for parameter in kind.parameters().values())
    problem = example(workload)
    names = {one.name for one in problem.operands}
    for argument in kind.arguments:
        assert argument in names or isinstance(getattr(problem, argument), (int, float))


# Work and traffic --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "precision", "flops", "bytes_"),
    [
        ("gemm", "fp32", 2 * 2 * 17 * 9 * 33, 4 * 2 * (17 * 33 + 33 * 9 + 2 * 17 * 9)),
        ("gemv", "fp32", 2 * 37 * 53, 4 * (37 * 53 + 53 + 37)),
        ("add", "fp64", 246, 3 * 8 * 246),
        ("copy", "fp16", 0, 2 * 2 * 246),
        ("triad", "fp32", 2 * 211, 3 * 4 * 211),
        ("sum", "int64", 1001, 8 * 1002),
        ("softmax", "fp16_fp32", 5 * 427, 427 * (2 + 4)),
        ("rmsnorm", "bf16", 4 * 427, 2 * (2 * 427 + 61)),
    ],
)
def test_work_and_bytes_by_hand(workload: str, precision: str, flops: int, bytes_: int) -> None:
    problem = example(workload, precision)
    assert (problem.flops, problem.bytes) == (flops, bytes_)
    assert problem.traffic == {"dram": bytes_}


# References --------------------------------------------------------------------------------------

Inputs = dict[str, NDArray[np.float64]]


def loops(problem: Problem, inputs: Inputs) -> NDArray[np.float64]:
    """The output, element by element as the formula says."""
    settings, extents = problem.settings, problem.extents
    if problem.workload == "gemm":
        a = inputs["a"].swapaxes(1, 2)  # of layout tn
        b, c = inputs["b"], inputs["c"]
        made = np.empty(c.shape)
        for z, i, j in np.ndindex(*c.shape):
            total = math.fsum(a[z, i, k] * b[z, k, j] for k in range(extents["k"]))
            made[z, i, j] = settings["alpha"] * total + settings["beta"] * c[z, i, j]
        return made
    if problem.workload == "gemv":
        rows = (math.fsum(row * inputs["x"]) for row in inputs["a"])
        return np.array(list(rows))
    if problem.workload == "sum":
        return np.array([math.fsum(inputs["x"])])
    if problem.workload in ("add", "copy", "triad"):
        a = inputs["a"]
        other = {"add": 1.0, "copy": 0.0, "triad": settings.get("alpha")}[problem.workload]
        b = inputs.get("b", np.zeros_like(a))
        flat = [x + other * y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)]
        return np.array(flat).reshape(a.shape)
    made = np.empty(inputs["x"].shape)
    for row, out in zip(inputs["x"], made, strict=True):
        if problem.workload == "softmax":
            powers = [math.exp(x) for x in row]
            out[:] = [power / math.fsum(powers) for power in powers]
        else:
            mean = math.fsum(x * x for x in row) / len(row)
            scale = 1 / math.sqrt(mean + settings["epsilon"])
            out[:] = [w * x * scale for x, w in zip(row, inputs["w"], strict=True)]
    return made


@pytest.mark.parametrize("workload", EXAMPLES)
def test_references_are_what_the_formulas_say(workload: str) -> None:
    problem = example(workload, "fp64")
    operands = allocate(DEVICE, problem, 3)
    inputs = {
        one.name: operands.initial.get(one.name, operands[one.name])
        for one in problem.operands
        if one.read
    }
    wanted = loops(problem, {name: array.copy() for name, array in inputs.items()})
    poison(operands)
    fake.compute(operands)()
    np.testing.assert_allclose(output(operands), wanted, rtol=1e-11, atol=1e-12)


def test_softmax_of_large_numbers_is_finite() -> None:
    problem = build("softmax", "fp64", {"rows": 1, "columns": 3})
    operands = allocate(DEVICE, problem, 0)
    operands.x[...] = [[1000.0, 1000.0, -1000.0]]
    fake.compute(operands)()
    assert operands.y.tolist() == [[0.5, 0.5, 0.0]]


# Verification ------------------------------------------------------------------------------------


def last_place(array: Any) -> str:
    """``[2, 8]``: the indices of the last element, without leading axes of one element."""
    shape = array.shape
    while len(shape) > 1 and shape[0] == 1:
        shape = shape[1:]
    return f"[{', '.join(str(n - 1) for n in shape)}]"


@pytest.mark.parametrize("precision", FLOATS)
@pytest.mark.parametrize("workload", EXAMPLES)
def test_right_results_pass(workload: str, precision: str) -> None:
    problem = example(workload, precision)
    verdict = verify(DEVICE, computed(problem), 0)
    assert verdict.reason == ""
    assert verdict.rel_error <= problem.tolerance


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
def test_right_integers_pass_and_are_exact(workload: str, precision: str) -> None:
    verdict = verify(DEVICE, computed(example(workload, precision)), 0)
    assert (verdict.rel_error, verdict.reason) == (0, "")


@pytest.mark.parametrize("workload", EXAMPLES)
def test_a_float_that_is_not_written_is_counted(workload: str) -> None:
    operands = computed(example(workload))
    last = output(operands).reshape(-1)
    last[-1] = np.nan
    verdict = verify(DEVICE, operands, 0)
    assert isnan(verdict.rel_error)
    assert f"1 of {last.size} elements of " in verdict.reason
    assert "NaN" in verdict.reason


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
@pytest.mark.parametrize("pattern", [0, 1])
def test_an_integer_that_is_not_written_is_counted(
    workload: str, precision: str, pattern: int
) -> None:
    """Whichever of the two patterns it was poisoned with."""
    operands = computed(example(workload, precision))
    right = output(operands).copy()
    poison(operands, pattern)
    output(operands).reshape(-1)[1:] = right.reshape(-1)[1:]
    assert verify(DEVICE, operands, 0).reason.startswith(f"1 of {right.size} elements of ")
    assert "not written" in verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("workload", EXACT)
def test_a_wrong_integer_is_found_and_named(workload: str, precision: str) -> None:
    operands = computed(example(workload, precision))
    flat = output(operands).reshape(-1)
    flat[-1] += 1
    reason = verify(DEVICE, operands, 0).reason
    assert reason.startswith(f"1 of {flat.size} elements are wrong; worst at ")
    assert reason.endswith(last_place(output(operands)))


@pytest.mark.parametrize("workload", EXAMPLES)
def test_a_wrong_float_is_found_and_named(workload: str) -> None:
    operands = computed(example(workload))
    array = output(operands)
    array.reshape(-1)[-1] += 2
    assert last_place(array) in verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("workload", [name for name in EXAMPLES if name != "copy"])
def test_rounding_of_one_digit_too_many_is_found(workload: str) -> None:
    """A kernel that computes FP32 with the ten bits of TF32."""
    operands = computed(example(workload))
    bits = output(operands).view(np.uint32)
    bits &= np.uint32(0xFFFFE000)
    assert verify(DEVICE, operands, 0).reason


def test_a_copy_must_be_exact() -> None:
    operands = computed(example("copy"))
    first = operands.c.reshape(-1)[:1]
    first[...] = np.nextafter(first, np.float32(2))
    assert "relative error" in verify(DEVICE, operands, 0).reason


def test_integers_that_wrap_around_are_right() -> None:
    operands = allocate(DEVICE, build("add", "int32", {"columns": 4}), 0)
    operands.a[...] = 2**31 - 1
    operands.b[...] = 1
    operands.c[...] = -(2**31)
    assert verify(DEVICE, operands, 0).reason == ""
    total = allocate(DEVICE, build("sum", "int32", {"elements": 3}), 0)
    total.x[...] = 2**31 - 1
    total.y[...] = 2**31 - 3
    assert verify(DEVICE, total, 0).reason == ""


def test_a_value_that_looks_like_poison_but_is_right_passes() -> None:
    operands = allocate(DEVICE, build("copy", "int32", {"columns": 4}), 0)
    operands.a[...] = list(buffers.SENTINELS) * 2
    poison(operands)
    operands.c[...] = operands.a
    assert verify(DEVICE, operands, 0).reason == ""


def test_a_sum_that_cancels_is_not_called_wrong() -> None:
    problem = build("sum", "fp32", {"elements": 10_000})
    operands = allocate(DEVICE, problem, 1)
    operands.x[5000:] = -operands.x[:5000]
    operands.y[...] = 1e-5  # far from zero in proportion, and near in what is summed
    assert verify(DEVICE, operands, 0).reason == ""
    operands.y[...] = 1.0
    assert "relative error" in verify(DEVICE, operands, 0).reason


def test_one_accumulator_in_half_precision_is_not_accurate_enough() -> None:
    problem = build("sum", "fp16", {"elements": 20_000})
    operands = allocate(DEVICE, problem, 1)
    total = np.float16(0)
    for value in operands.x:
        total = np.float16(total + value)
    operands.y[...] = total
    assert verify(DEVICE, operands, 0).reason


# Copies of the operands --------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "int32", "bf16"])
def test_copies_with_other_results_are_found(precision: str) -> None:
    problem = example("add", precision)
    rotation = rotate(DEVICE, allocate(DEVICE, problem, 2), cold=True)
    rotation.poison(4, 0)
    for operands in rotation.copies[:4]:
        fake.compute(operands)()
    assert unlike(DEVICE, rotation, 4) == []
    wrong = output(rotation.copies[2]).reshape(-1)
    value = decode(np, wrong[:1], problem.precision.output) + 50
    wrong[:1] = encode(np, value, problem.precision.output)
    assert unlike(DEVICE, rotation, 4) == [2]
    assert unlike(DEVICE, rotation, 2) == []


def test_copies_hold_the_same_numbers_at_other_addresses() -> None:
    rotation = rotate(DEVICE, allocate(DEVICE, example("triad"), 2), cold=True)
    first, second = rotation.copies[:2]
    assert np.array_equal(first.a, second.a)
    assert not np.shares_memory(first.a, second.a)
    rotation.refill(DEVICE, 9, "uniform")
    assert np.array_equal(first.a, second.a)
    assert np.array_equal(first.b, rotation.copies[-1].b)
    assert np.array_equal(first.a, allocate(DEVICE, example("triad"), 9).a)


# The whole protocol ------------------------------------------------------------------------------


def run(problem: Problem, spoil: Any = None) -> Any:
    kernel = fake.exact("one", 0.5, spoil, problem.workload, (problem.precision.name,))
    (outcome,) = Protocol(fake.FakeDevice(), SweepConfig(timing=TIMING)).measure(problem, [kernel])
    return outcome


@pytest.mark.parametrize("workload", EXAMPLES)
def test_every_workload_is_measured(workload: str) -> None:
    problem = example(workload)
    outcome = run(problem)
    assert (outcome.status, outcome.reason, outcome.flags) == ("ok", "", [])
    roof = DEVICE.roofline().roof("fp32", problem.flops, problem.traffic)
    assert roof is not None
    assert outcome.summary.median == pytest.approx(2 * roof.us)


@pytest.mark.parametrize("workload", ["add", "copy", "sum"])
def test_integers_are_measured(workload: str) -> None:
    outcome = run(example(workload, "int32"))
    assert (outcome.status, outcome.rel_error) == ("ok", 0)


def test_a_kernel_that_leaves_integers_alone_is_incorrect() -> None:
    def forget(operands: Operands) -> None:
        operands.c.reshape(-1)[:7] = buffers.SENTINELS[0]

    outcome = run(example("add", "int32"), forget)
    assert outcome.status == "incorrect"
    assert outcome.reason == "7 of 246 elements of C are not written"


def test_a_kernel_that_is_off_by_one_is_incorrect() -> None:
    def spoil(operands: Operands) -> None:
        operands.y += 1

    outcome = run(example("sum", "int32"), spoil)
    assert (outcome.status, outcome.summary) == ("incorrect", None)
    assert "1 of 1 elements are wrong" in outcome.reason


def test_a_reference_that_returns_another_name_is_told_so() -> None:
    kind = catalogue()["copy"]

    class Misnamed(kind):  # type: ignore[misc, valid-type]
        def reference(self, arrays: Any, inputs: Any) -> dict[str, Any]:
            return {"z": inputs["a"]}

    problem = Misnamed(precision=PRECISIONS["fp32"], columns=8)
    operands = allocate(DEVICE, problem, 0, "uniform")
    with pytest.raises(KernelError, match=r"the reference of copy returns 'z', not \w+"):
        verify(DEVICE, operands, 0)
