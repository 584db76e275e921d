"""Inputs that a shortcut does not survive: right kernels pass them, usual mistakes do not."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import numpy as np
import pytest
from fake import FakeDevice, compute
from synthetic import gemm

from rooflab.kernels.base import Operands
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import Expected, put, right, verify
from rooflab.model.encoding import decode, encode
from rooflab.model.precision import BF16, FP8_E4M3, PRECISIONS, DataType
from rooflab.model.problem import Hard, Piece, Problem, Turns, scattered
from rooflab.workloads import build
from rooflab.workloads.attention import Attention
from rooflab.workloads.experts import GroupedGemm
from rooflab.workloads.linear import EPILOGUES
from rooflab.workloads.optimizers import AdamW

DEVICE = FakeDevice()


def computed(problem: Problem, seed: int = 7) -> Operands:
    operands = allocate(DEVICE, problem, seed)
    poison(operands)
    compute(operands)()
    return operands


def hardened(problem: Problem, seed: int = 7) -> tuple[Operands, list[Hard]]:
    """Operands with hard inputs, and right results."""
    operands, hard = given(problem, seed)
    compute(operands)()
    return operands, hard


def given(problem: Problem, seed: int) -> tuple[Operands, list[Hard]]:
    """Operands with hard inputs, and no results."""
    operands = allocate(DEVICE, problem, seed)
    hard = list(problem.hard(np, Random(seed)))
    for one in hard:
        put(DEVICE, operands, one)
    poison(operands)
    return operands, hard


# Parts with hard inputs --------------------------------------------------------------------------


@pytest.mark.parametrize("most_bytes", [0, 2**30])
def test_every_part_is_judged_for_itself(most_bytes: int) -> None:
    """What is much in a small number is nothing beside large ones."""
    operands, hard = hardened(build("gemv", "fp32", {"m": 40, "n": 30}))
    expected = Expected(DEVICE, operands, 0, most_bytes, hard)
    assert expected.kept == bool(most_bytes)
    assert expected.verdict(operands).reason == ""
    titles = {one.title for one in hard}
    assert titles == {"rows of zeros", "rows of large numbers", "rows of small numbers"}
    right = operands.y.copy()
    for one in hard:
        (rows,) = one.piece.select["y"]
        place = rows[-1]
        operands.y[place] = operands.y[place] * 1.5 if operands.y[place] else 1e-30
        wrong = expected.verdict(operands)
        assert wrong.reason.startswith(f"on {one.title}: ")
        assert f"Y[{place}]" in wrong.reason
        # Beside all other rows only an error in the large numbers shows.
        whole = verify(DEVICE, operands, 0)
        assert bool(whole.reason) == ("large" in one.title)
        operands.y[...] = right


def test_what_is_elsewhere_is_not_compared_with_hard_parts() -> None:
    operands, hard = hardened(build("gemv", "fp32", {"m": 40, "n": 30}))
    compared = {row for one in hard for row in one.piece.select["y"][0]}
    expected = Expected(DEVICE, operands, 0, 2**30, hard)
    for row in set(range(40)) - compared:
        operands.y[row] += 1
    assert expected.verdict(operands).reason == ""
    (other,) = [one for one in hard if "zeros" in one.title]
    operands.y[other.piece.select["y"][0][0]] = np.nan
    assert expected.verdict(operands).reason == "on rows of zeros: Y is NaN there"
    operands.y[min(set(range(40)) - compared)] = np.nan  # not only there
    assert "2 of 40 elements of Y are NaN" in expected.verdict(operands).reason


def test_a_reference_is_that_of_the_inputs_that_were_there() -> None:
    for most_bytes, reason in ((2**30, True), (0, False)):
        operands = computed(gemm(20, 20, 20))
        expected = Expected(DEVICE, operands, 0, most_bytes)
        operands.a[...] = 0
        compute(operands)()
        assert bool(expected.verdict(operands).reason) == reason


def test_hard_inputs_are_put_and_taken_back() -> None:
    for problem in (gemm(20, 10, 30, "bf16", beta=1.0, layout="tt"), gemm(9, 9, 9, "fp8", batch=2)):
        operands = allocate(DEVICE, problem, 1)
        before = {name: array.copy() for name, array in operands.items()}
        hard = list(problem.hard(np, Random(3)))
        old = [put(DEVICE, operands, one) for one in hard]
        assert any((operands[name] != before[name]).any() for name in ("a", "b"))
        for one, stored in zip(reversed(hard), reversed(old), strict=True):
            put(DEVICE, operands, one, stored)
        assert all((operands[name] == before[name]).all() for name in before)


def test_numbers_of_what_is_read_and_written_are_put_where_it_begins() -> None:
    operands = allocate(DEVICE, gemm(4, 4, 4, beta=1.0), 1)
    put(DEVICE, operands, Hard("", {"c": (([0, 5],), np.array([7.0, 8.0]))}, Piece()))
    assert operands.initial["c"].reshape(-1)[[0, 5]].tolist() == [7, 8]
    assert operands.c.reshape(-1)[0] != 7


@pytest.mark.parametrize("workload", ["gemm", "softmax", "fft", "sum"])
def test_right_results_can_be_written(workload: str) -> None:
    shape = {"gemm": (5, 6, 7), "softmax": (3, 9), "fft": (4,), "sum": (100,)}[workload]
    names = {"gemm": "mnk", "softmax": ("rows", "columns"), "fft": "n", "sum": ("elements",)}
    problem = build(workload, "fp32", dict(zip(names[workload], shape, strict=True)))
    operands = allocate(DEVICE, problem, 1)
    poison(operands)
    right(DEVICE, operands)
    assert verify(DEVICE, operands, 0).reason == ""


# Right kernels -----------------------------------------------------------------------------------

VECTORS = ({"columns": 1}, {"columns": 2}, {"columns": 1000, "rows": 3, "batch": 5})
ROWS = tuple({"rows": m, "columns": n} for m, n in ((1, 1), (1, 1000), (2, 7), (7, 129), (127, 1)))
MATRICES = tuple({"batch": batch, "n": n} for batch, n in ((1, 1), (1, 7), (2, 13), (5, 16)))
SHAPES: dict[str, list[dict[str, Any]]] = {
    "gemm": [
        *({"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (1, 7, 513), (33, 1, 5), (2, 3, 1))),
        {"m": 127, "n": 65, "k": 33, "batch": 3, "layout": "tn"},
        {"m": 20, "n": 30, "k": 40, "layout": "nt", "beta": 1.0},
        {"m": 20, "n": 30, "k": 1000, "layout": "tt", "alpha": -2.0},
    ],
    "grouped_gemm": [
        {"tokens": 1, "n": 1, "k": 1},
        {"tokens": 3, "n": 9, "k": 70, "experts": 1},
        *(
            {"tokens": 61, "n": 9, "k": 70, "experts": 5, "spread": spread}
            for spread in ("uniform", "skewed", "single")
        ),
    ],
    **{
        name: [{"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 1), (3, 7, 130), (40, 33, 1001))]
        for name in ("w4a16", "block_gemm")
    },
    "linear": [
        {"m": m, "n": n, "k": k, "epilogue": epilogue}
        for m, n, k in ((1, 1, 1), (3, 7, 130), (40, 33, 1001))
        for epilogue in EPILOGUES
    ],
    "gemv": [{"m": 1, "n": 1}, {"m": 1, "n": 1000}, {"m": 129, "n": 1}, {"m": 37, "n": 513}],
    **{name: list(VECTORS) for name in ("add", "copy", "triad")},
    "sum": [{"elements": n} for n in (1, 2, 7, 1000, 100_003)],
    **{name: list(ROWS) for name in ("softmax", "rmsnorm", "layernorm", "cross_entropy")},
    **{name: list(ROWS) for name in ("rmsnorm_backward", "layernorm_backward")},
    "cross_entropy_backward": [*ROWS, {"rows": 7, "columns": 129, "scale": 0.001}],
    "quantize": [*ROWS, {"rows": 9, "columns": 300}],
    **{
        name: [
            {"tokens": n, "experts": m, "chosen": k}
            for n, m, k in ((1, 1, 1), (3, 20, 4), (50, 16, 16))
        ]
        for name in ("route", "sort_experts")
    },
    "combine": [
        {"tokens": n, "columns": m, "chosen": k} for n, m, k in ((1, 1, 1), (3, 20, 4), (50, 9, 8))
    ],
    "embedding": [
        {"tokens": n, "words": m, "columns": k}
        for n, m, k in ((1, 1, 1), (2, 9, 1), (100, 3, 7), (50, 1, 30), (3, 1000, 20))
    ],
    "swiglu": list(VECTORS),
    "adamw": [{"elements": n} for n in (1, 2, 1000)],
    "rope": [
        {"tokens": n, "heads": h, "head_size": d, "batch": z}
        for n, h, d, z in ((1, 1, 2, 1), (3, 2, 10, 2), (70, 8, 64, 1))
    ],
    "blur": [
        {"batch": batch, "rows": m, "columns": n}
        for batch, m, n in ((1, 1, 1), (1, 9, 1), (2, 1, 7), (5, 37, 13))
    ],
    **{name: list(MATRICES) for name in ("fft", "spectrum", "filter")},
    "attention": [
        {"queries": n, "keys": m, "heads": h, "kv_heads": kv, "head_size": d, "causal": causal}
        for n, m, h, kv, d, causal in (
            *((1, 1, 1, 1, 1, "off"), (1, 1, 2, 2, 64, "on"), (3, 40, 9, 3, 5, "off")),
            *((16, 1000, 8, 8, 128, "on"), (200, 200, 9, 9, 16, "on")),
        )
    ],
}
SHAPES["attention_backward"] = SHAPES["attention"]
PRODUCTS = (
    *("gemm", "grouped_gemm", "w4a16", "block_gemm", "linear", "gemv", "spectrum"),
    *("attention", "attention_backward"),
)
INTEGERS = ("gemm", "gemv", *("add", "copy", "triad"), "sum")
"""Workloads that are defined for integers."""

SHARED = ("b", "bias")
"""Operands of which several parts may write the same numbers."""

CASES = [
    (workload, precision, number)
    for workload, shapes in SHAPES.items()
    for precision in PRECISIONS
    if workload in INTEGERS or not PRECISIONS[precision].integer
    if workload in PRODUCTS or "tf32" not in precision
    for number in range(len(shapes))
]


class Narrow:
    """Inputs in the type in which a kernel computes, instead of FP64."""

    def __init__(self, operands: Operands) -> None:
        self._operands = operands
        self._types = {one.name: one.type for one in operands.problem.operands}

    def __getitem__(self, name: str) -> Any:
        return self.part(name, (...,))

    def part(self, name: str, index: tuple[Any, ...]) -> Any:
        precision = self._operands.problem.precision
        stored = self._operands.initial.get(name, self._operands[name])[index]
        values = decode(np, stored, self._types[name]).astype(precision.accumulate.storage)
        if precision.multiply is precision.input or name in ("c", "lse"):
            return values
        return multiplied(values, precision.multiply)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._operands[name].shape)


def multiplied(values: Any, kind: DataType) -> Any:
    """Rounded to the mantissa of what is multiplied: that of TF32, or of two of them."""
    mantissa, exponent = np.frexp(values)
    bits = 1 - round(np.log2(kind.epsilon))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(values.dtype)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
@pytest.mark.parametrize(("workload", "precision", "number"), CASES)
def test_right_kernels_pass(workload: str, precision: str, number: int) -> None:
    """They compute in the accumulate type, and round to the output's."""
    problem = build(workload, precision, SHAPES[workload][number])
    for seed in range(3):
        operands, hard = given(problem, seed)
        results = problem.reference(np, Narrow(operands))
        for one in problem.operands:
            if one.written:
                kind = problem.precision.accumulate
                exact = kind.integer or one.type.integer
                assert exact or results[one.name].dtype == kind.storage
                operands[one.name][...] = encode(np, results[one.name], one.type)
        assert Expected(DEVICE, operands, seed, 2**30, hard).verdict(operands).reason == ""


@pytest.mark.parametrize("step", [1, 2, 10, 1000, 100_000])
@pytest.mark.parametrize(("beta1", "beta2"), [(0.9, 0.999), (0.95, 0.98), (0.5, 0.9999)])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_step_may_round_its_betas_first(
    precision: str, beta1: float, beta2: float, step: int
) -> None:
    """And their powers, and 1 - β: PyTorch's fused AdamW does, also where nothing hides it."""
    plain = AdamW(precision=PRECISIONS[precision], elements=997)
    problem = dataclasses.replace(plain, beta1=beta1, beta2=beta2, step=float(step))
    one = np.float32(1)
    b1, b2 = np.float32(beta1), np.float32(beta2)
    for seed in range(3):
        operands, hard = given(problem, seed)
        x = Narrow(operands)
        g, epsilon = x["g"], np.float32(problem.epsilon)
        m = b1 * x["m"] + (one - b1) * g
        v = b2 * x["v"] + (one - b2) * g * g
        rate = np.float32(problem.lr) / (one - b1**step)
        root = np.sqrt(v) / np.sqrt(one - b2**step) + epsilon
        results = {"p": np.float32(problem.kept) * x["p"] - rate * m / root, "m": m, "v": v}
        for output in (one for one in problem.operands if one.written):
            operands[output.name][...] = encode(np, results[output.name], output.type)
        for parts in ([], hard):
            assert Expected(DEVICE, operands, seed, 2**30, parts).verdict(operands).reason == ""


LOOKED_AT = 6
"""Draws whose parts are looked at one by one."""


@pytest.mark.parametrize(("workload", "precision", "number"), CASES)
def test_parts_are_inside_apart_and_of_every_kind_that_there_is_room_for(
    workload: str, precision: str, number: int
) -> None:
    problem = build(workload, precision, SHAPES[workload][number])
    shapes = {one.name: one.shape for one in problem.operands}
    roles = {one.name: one.role for one in problem.operands}
    titles: set[str] = set()
    for seed in range(24):
        hard = list(problem.hard(np, Random(seed)))
        assert hard
        titles |= {one.title for one in hard}
        if seed >= LOOKED_AT:
            continue
        written = {name: np.zeros(shape, int) for name, shape in shapes.items()}
        for one in hard:
            assert set(one.values) <= {name for name, role in roles.items() if role != "out"}
            for name, (part, values) in one.values.items():
                axes = zip(shapes[name], part, strict=True)
                index = np.ix_(*(np.arange(extent)[places] for extent, places in axes))
                written[name][index] += 1
                assert np.size(values) in (1, written[name][index].size)
                assert np.isfinite(values).all()
        assert all(
            count.max(initial=0) <= 1 for name, count in written.items() if name not in SHARED
        )
    kinds = len(list(roomy(problem).hard(np, Random(0))))
    assert len(titles) == kinds
    assert len(hard) == min(kinds, room(problem))


def room(problem: Problem) -> int:
    """How many parts may differ."""
    if problem.workload == "sum":
        return 1
    if isinstance(problem, Attention):
        return problem.extents["batch"] * problem.extents["kv_heads"]
    if isinstance(problem, GroupedGemm):
        return max(problem.counts)
    extent = {"gemm": "m", "add": "columns", "copy": "columns", "triad": "columns"}
    extent["swiglu"] = "columns"
    return problem.extents[extent.get(problem.workload, next(iter(problem.extents)))]


def roomy(problem: Problem) -> Problem:
    """One with room for every kind of part. How many there are depends on the number of experts."""
    extents: dict[str, Any] = dict.fromkeys(problem.extents, 16)
    if problem.workload == "grouped_gemm":
        extents["spread"] = "single"
    if problem.workload == "linear":
        extents["epilogue"] = problem.settings["epilogue"]
    if problem.workload == "route":
        extents |= {name: problem.extents[name] for name in ("experts", "chosen")}
    return build(problem.workload, problem.precision.name, extents)


# Mistakes ----------------------------------------------------------------------------------------

Work = Callable[[Problem, Mapping[str, Any]], Any]
"""From the inputs in FP64 to the output in FP64."""


def single(values: Any) -> Any:
    return values.astype(np.float32)


def half(values: Any) -> Any:
    return values.astype(np.float16).astype(np.float64)


def without_maximum(problem: Problem, x: Mapping[str, Any]) -> Any:
    kind = problem.precision.accumulate.storage
    powers = np.exp(x["x"].astype(kind))
    return powers / powers.sum(axis=1, keepdims=True)


def without_epsilon(problem: Problem, x: Mapping[str, Any]) -> Any:
    return x["w"] * x["x"] / np.sqrt((x["x"] ** 2).mean(axis=1, keepdims=True))


def epsilon_outside(problem: Any, x: Mapping[str, Any]) -> Any:
    mean = (x["x"] ** 2).mean(axis=1, keepdims=True)
    return x["w"] * x["x"] / (np.sqrt(mean) + problem.epsilon)


def half_squares(problem: Any, x: Mapping[str, Any]) -> Any:
    squares = half(half(x["x"]) ** 2)
    return x["w"] * x["x"] / np.sqrt(squares.mean(axis=1, keepdims=True) + problem.epsilon)


def loss_without_maximum(problem: Problem, x: Mapping[str, Any]) -> Any:
    kind = problem.precision.accumulate.storage
    chosen = x["x"][np.arange(len(x["x"])), x["targets"]]
    return np.log(np.exp(x["x"].astype(kind)).sum(axis=1)) - chosen


def shares_without_maximum(problem: Problem, x: Mapping[str, Any]) -> Any:
    return without_maximum(problem, x) + only_targets(problem, x)


def only_targets(problem: Problem, x: Mapping[str, Any]) -> Any:
    """All other gradients are small in wide rows."""
    return -1.0 * (np.arange(x["x"].shape[1]) == x["targets"][:, None])


def without_the_last_row(problem: Problem, x: Mapping[str, Any]) -> Any:
    return x["table"][np.minimum(x["ids"], len(x["table"]) - 2)]


def rows_flushed(problem: Problem, x: Mapping[str, Any]) -> Any:
    return flushed(problem, {"a": x["table"][x["ids"]]})


def chosen_by(keys: Any, problem: Any, x: Mapping[str, Any]) -> Any:
    """Right weights of the experts with the largest keys, the first ones of equal keys."""
    right = problem.reference(np, x)
    return {**right, "ids": np.argsort(-keys, axis=1, kind="stable")[:, : problem.chosen]}


def chosen_by_exponentials(problem: Any, x: Mapping[str, Any]) -> Any:
    powers = np.exp(x["logits"] - x["logits"].max(1, keepdims=True))
    return chosen_by(decode(np, encode(np, powers, BF16), BF16), problem, x)


def chosen_in_half(problem: Any, x: Mapping[str, Any]) -> Any:
    return chosen_by(half(x["logits"]), problem, x)


def chosen_by_equal_steps(problem: Any, x: Mapping[str, Any]) -> Any:
    """As if the distance to the largest logit told the rank."""
    below = x["logits"].max(1, keepdims=True) - x["logits"]
    ranks = np.rint(below / below.max(1, keepdims=True) * (problem.experts - 1)).astype(int)
    found = np.zeros_like(ranks)
    np.put_along_axis(found, ranks, np.arange(problem.experts)[None], 1)
    return {**problem.reference(np, x), "ids": found[:, : problem.chosen]}


def route_without_maximum(problem: Any, x: Mapping[str, Any]) -> Any:
    right = problem.reference(np, x)
    powers = np.exp(single(np.take_along_axis(x["logits"], right["ids"], axis=1)))
    return {**right, "weights": powers / powers.sum(axis=1, keepdims=True)}


def with_a_capacity(problem: Any, x: Mapping[str, Any]) -> Any:
    """An expert takes at most three times as many tokens as if all were alike."""
    right = problem.reference(np, x)
    most = max(1, 3 * problem.rows // problem.experts)
    return {**right, "ends": np.cumsum(np.minimum(np.diff(right["ends"], prepend=0), most))}


def without_empty_experts(problem: Any, x: Mapping[str, Any]) -> Any:
    """Their end is zero."""
    right = problem.reference(np, x)
    return {**right, "ends": np.where(np.diff(right["ends"], prepend=0), right["ends"], 0)}


def combined_in_half(problem: Any, x: Mapping[str, Any]) -> Any:
    products = half(x["shares"][x["places"]][:, None] * x["rows"][x["places"]])
    return products.reshape(-1, problem.chosen, problem.columns).sum(axis=1)


def by_scales(x: Any, scales: Any, blocks: int) -> dict[str, Any]:
    each = scales.repeat(128, axis=1)[:, : x.shape[1]] if scales.shape[1] > 1 else scales
    return {"scales": np.broadcast_to(scales, (len(x), blocks)), "q": x / each}


def scale_of_a_row(problem: Any, x: Mapping[str, Any]) -> Any:
    largest = np.maximum(abs(x["x"]).max(axis=1, keepdims=True), problem.least)
    return by_scales(x["x"], largest / 448, problem.blocks)


def truncated(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Quotients with the three digits that E4M3 has, and no rounding."""
    right = problem.reference(np, x)  # type: ignore[arg-type]
    quotients = by_scales(x["x"], right["scales"], right["scales"].shape[1])["q"]
    mantissa, exponent = np.frexp(quotients)
    return {**right, "q": np.ldexp(np.trunc(mantissa * 16) / 16, exponent)}


def without_least(problem: Any, x: Mapping[str, Any]) -> Any:
    right = problem.reference(np, x)
    whole = np.pad(abs(x["x"]), ((0, 0), (0, -problem.columns % 128)))
    largest = whole.reshape(len(whole), -1, 128).max(axis=2)
    return {**right, "scales": largest / 448}


def one_pass(problem: Any, x: Mapping[str, Any]) -> Any:
    """The mean of the squares, less the square of the mean, in single precision."""
    rows = single(x["x"])
    mean = rows.mean(axis=1, keepdims=True)
    variance = (rows * rows).mean(axis=1, keepdims=True) - mean * mean
    return x["w"] * (rows - mean) / np.sqrt(variance + problem.epsilon) + x["b"]


def of_large_exponentials(problem: Problem, x: Mapping[str, Any]) -> Any:
    powers = np.exp(x["gate"].astype(problem.precision.accumulate.storage))
    return x["gate"] * powers / (1 + powers) * x["up"]


def one_accumulator(problem: Problem, x: Mapping[str, Any]) -> Any:
    return np.cumsum(single(x["x"]))[-1:]


def adamw(problem: Any, x: Mapping[str, Any], root: Callable[[Any, float], Any]) -> Any:
    """A step of AdamW with another ``root`` of the corrected second moment and epsilon."""
    right = problem.reference(np, x)
    update = problem.rate * right["m"] / root(right["v"] * problem.correction**2, problem.epsilon)
    return {**right, "p": problem.kept * x["p"] - update}


def without_epsilon_in_a_step(problem: Problem, x: Mapping[str, Any]) -> Any:
    return adamw(problem, x, lambda v, epsilon: np.sqrt(v))


def epsilon_inside_the_root(problem: Problem, x: Mapping[str, Any]) -> Any:
    return adamw(problem, x, lambda v, epsilon: np.sqrt(v + epsilon))


def no_correction_of_the_first_moment(problem: Any, x: Mapping[str, Any]) -> Any:
    right = problem.reference(np, x)
    factor = 1 - problem.beta1**problem.step
    return {**right, "p": problem.kept * x["p"] + factor * (right["p"] - problem.kept * x["p"])}


def a_step_too_many(problem: Any, x: Mapping[str, Any]) -> Any:
    return dataclasses.replace(problem, step=problem.step + 1).reference(np, x)


def without_the_last_column(problem: Problem, x: Mapping[str, Any]) -> Any:
    powers = np.exp(x["x"] - x["x"].max(axis=1, keepdims=True))
    return powers / powers[:, :-1].sum(axis=1, keepdims=True)


def largest_of_others_than_the_last(problem: Problem, x: Mapping[str, Any]) -> Any:
    powers = np.exp(single(x["x"] - x["x"][:, :-1].max(axis=1, keepdims=True)))
    return powers / powers.sum(axis=1, keepdims=True)


def padding_as_target(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Rows whose target is the first column do not count."""
    right = problem.reference(np, x)["y"]  # type: ignore[arg-type]
    return np.where(x["targets"] == 0, 0, right)


def no_last_target(problem: Any, x: Mapping[str, Any]) -> Any:
    """Of the last column."""
    targets = x["targets"]
    right = problem.reference(np, x)["dx"]
    right[:, -1] += problem.scale * (targets == problem.columns - 1)
    return right


def above_the_threshold(problem: Any, x: Mapping[str, Any]) -> Any:
    """Not at it."""
    threshold = np.float32(problem.threshold)
    kept = np.where(x["x"] > threshold, x["x"], threshold - 1)
    return problem.reference(np, {"x": kept})["y"]


def saturated_sum(problem: Problem, x: Mapping[str, Any]) -> Any:
    return np.clip(x["x"].sum(keepdims=True), -(2**31), 2**31 - 1)


def without_the_last(problem: Problem, x: Mapping[str, Any]) -> Any:
    return x["x"][:-1].sum(keepdims=True)


def linear(
    problem: Any, x: Mapping[str, Any], activation: Callable[..., Any] | None = None, **wrong: Any
) -> Any:
    """A linear layer with something wrong: its activation, the bias, or the product."""
    product = wrong.get("product", lambda a, b: a @ b)
    sums = product(x["x"], x["w"].T)
    if problem.gated:
        return activation(*np.hsplit(sums, 2)) if activation else swish(*np.hsplit(sums, 2))
    z = sums + wrong.get("bias", x.get("bias"))
    return activation(z) if activation else gelu(z) if problem.epilogue == "gelu" else z


def swish(gate: Any, up: Any) -> Any:
    return gate / (1 + np.exp(-gate)) * up


def gelu(z: Any) -> Any:
    return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))


def without_bias(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, bias=0)


def bias_of_the_next_column(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, bias=np.roll(x["bias"], -1))


def bias_of_a_row(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, bias=x["bias"][: len(x["x"]), None])


def with_relu(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, lambda z: np.maximum(z, 0))


def without_activation(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, lambda *z: z[0] * z[1] if len(z) > 1 else z[0])


def gelu_by_a_sigmoid(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, lambda z: z / (1 + np.exp(-1.702 * z)))


def gelu_of_large_exponentials(problem: Problem, x: Mapping[str, Any]) -> Any:
    def activation(z: Any) -> Any:
        power = np.exp(single(2 * np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
        return z / 2 * (1 + (power - 1) / (power + 1))

    return linear(problem, x, activation)


def gate_of_large_exponentials(problem: Problem, x: Mapping[str, Any]) -> Any:
    def activation(gate: Any, up: Any) -> Any:
        power = np.exp(single(gate))
        return gate * power / (1 + power) * up

    return linear(problem, x, activation)


def gate_and_up_swapped(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, lambda gate, up: swish(up, gate))


def linear_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    return linear(problem, x, product=lambda a, b: half(half(a) @ half(b)))


def linear_with_half_sums(problem: Problem, x: Mapping[str, Any]) -> Any:
    def product(a: Any, b: Any) -> Any:
        total = np.zeros((len(a), b.shape[1]), np.float16)
        for k in range(a.shape[1]):
            total += (a[:, k, None] * b[k]).astype(np.float16)
        return total.astype(np.float64)

    return linear(problem, x, product=product)


def in_single(problem: Problem, x: Mapping[str, Any]) -> Any:
    return single(x["x"]).cumsum()[-1:].astype(np.int64)


def product_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    return half(x["a"]) @ half(x["b"])


def one_expert(problem: Any, x: Mapping[str, Any]) -> Any:
    """Of tiles of 8 rows, which begin anywhere."""
    experts = np.searchsorted(x["ends"], np.arange(problem.tokens) // 8 * 8, side="right")
    return np.stack([row @ x["w"][expert] for row, expert in zip(x["x"], experts, strict=True)])


def unpacked(problem: Any, x: Mapping[str, Any]) -> Any:
    bits = np.stack([x["w"] & 15, x["w"] >> 4], 2).reshape(problem.n, -1)[:, : problem.k]
    return (bits - 8) * x["scales"].repeat(128, axis=1)[:, : problem.k]


def groups_in_half(problem: Any, x: Mapping[str, Any]) -> Any:
    weights, starts = unpacked(problem, x), range(0, problem.k, 128)
    sums = (x["x"][:, i : i + 128] @ weights[:, i : i + 128].T for i in starts)
    return sum(map(half, map(half, sums)))


def without_the_last_weight(problem: Any, x: Mapping[str, Any]) -> Any:
    return x["x"][:, :-1] @ unpacked(problem, x)[:, :-1].T


def the_first_scale(problem: Any, x: Mapping[str, Any]) -> Any:
    """That of the first group, for all of a row."""
    scales = x["w_scales"].repeat(128, axis=0)[: problem.n].repeat(128, axis=1)[:, : problem.k]
    return x["x"] * x["x_scales"][0][:, None] @ (x["w"] * scales).T


def vector_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    return half(x["a"]) @ x["x"]


def product_of_large(problem: Problem, x: Mapping[str, Any]) -> Any:
    return np.where(np.abs(x["a"]) < 1e-3, 0, x["a"]) @ x["b"]


def rounded_sums(problem: Problem, x: Mapping[str, Any]) -> Any:
    """The two halves of K apart, each rounded to a narrow type."""
    half_k = x["a"].shape[2] // 2
    first = half(x["a"][:, :, :half_k] @ x["b"][:, :half_k])
    return first + half(x["a"][:, :, half_k:] @ x["b"][:, half_k:])


def saturated(problem: Problem, x: Mapping[str, Any]) -> Any:
    most = 2**31 - 1
    return np.clip(x["a"] + x["b"], -most - 1, most)


def sum_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    return half(x["a"]) + half(x["b"])


def flushed(problem: Problem, x: Mapping[str, Any]) -> Any:
    least = {"fp32": 2.0**-126, "fp64": 2.0**-1022, "fp16": 2.0**-14, "bf16": 2.0**-126}
    return np.where(np.abs(x["a"]) < least[problem.precision.name], x["a"] * 0, x["a"])


def plus_zero(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Minus zero becomes zero."""
    return x["a"] + 0.0


def by_float(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Through floating-point numbers of as many bytes."""
    return x["a"].astype(f"float{8 * problem.precision.input.bytes}").astype(np.int64)


def product_by_float(problem: Problem, x: Mapping[str, Any]) -> Any:
    a, b = x["a"].astype("float32"), x["b"].astype("float32")
    return (a @ b).astype(np.int64)


def dark_outside(problem: Problem, x: Mapping[str, Any]) -> Any:
    padded = np.pad(x["x"], ((0, 0), (1, 1), (1, 1)))
    rows = padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]
    return (rows[:, :, :-2] + 2 * rows[:, :, 1:-1] + rows[:, :, 2:]) / 16


def scaled_by_the_largest(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Which is zero in an image of zeros."""
    axes = tuple(range(1, x["x"].ndim))
    largest = np.abs(x["x"]).max(axis=axes, keepdims=True)
    return problem.reference(np, {"x": x["x"] / largest})["y"] * largest  # type: ignore[arg-type]


def attending(
    problem: Problem,
    x: Mapping[str, Any],
    late: int = 0,
    shift: bool = True,
    scale: bool = True,
    weight: Callable[[Any], Any] = np.asarray,
) -> Any:
    """Attention with each query ``late`` keys further, with or without the largest score and the
    scale; the second product gets ``weight(weights)``."""
    q, k, v = x["q"], x["k"], x["v"]
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3] if scale else 1)
    if problem.settings["causal"] == "on":
        last = np.arange(q.shape[2]) + k.shape[2] - q.shape[2] + late
        scores[..., np.arange(k.shape[2]) > last[:, None]] = -np.inf
    scores = scores - shift * scores.max(axis=-1, keepdims=True)
    weights = np.exp(single(scores))
    return weight(weights) / weights.sum(axis=-1, keepdims=True) @ v


def in_e4m3(raised: float) -> Callable[[Any], Any]:
    """Rounds weights times ``raised``, as kernels do that multiply them in FP8."""

    def rounded(weights: Any) -> Any:
        return decode(np, encode(np, weights * raised, FP8_E4M3), FP8_E4M3) / raised

    return rounded


def without_scale(problem: Problem, x: Mapping[str, Any]) -> Any:
    return attending(problem, x, scale=False)


def saturated_weights(problem: Problem, x: Mapping[str, Any]) -> Any:
    """Weights are raised too far: E4M3 ends at 448, and the largest ones lose more than half."""
    return attending(problem, x, weight=lambda weights: in_e4m3(1024.0)(weights.clip(max=0.4375)))


def without_largest(problem: Problem, x: Mapping[str, Any]) -> Any:
    return attending(problem, x, shift=False)


def one_key_further(problem: Problem, x: Mapping[str, Any]) -> Any:
    return attending(problem, x, late=1)


def without_the_first_key(problem: Problem, x: Mapping[str, Any]) -> Any:
    return attending(problem, {**x, "k": x["k"][:, :, 1:], "v": x["v"][:, :, 1:]})


def values_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    return attending(problem, {**x, "v": half(x["v"])})


def differentiated(
    problem: Problem, x: Mapping[str, Any], late: int = 0, apart: bool = False, **others: Any
) -> Any:
    """Gradients of attention with each query ``late`` keys further, or exponentials ``apart``."""
    q, k, v, dout = (x[name] for name in ("q", "k", "v", "dout"))
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    keys, values = k.repeat(group, axis=1), v.repeat(group, axis=1)
    scores, saved = single(q @ keys.swapaxes(2, 3) * scale), single(x["lse"])[..., None]
    weights = np.exp(scores) * np.exp(-saved) if apart else np.exp(scores - saved)
    if problem.settings["causal"] == "on":
        last = np.arange(q.shape[2]) + k.shape[2] - q.shape[2] + late
        weights[..., np.arange(k.shape[2]) > last[:, None]] = 0
    along = others.get("along", (dout * x["o"]).sum(axis=3, keepdims=True))
    changes = weights * (dout @ values.swapaxes(2, 3) - along) * scale
    found = (changes.swapaxes(2, 3) @ q, weights.swapaxes(2, 3) @ dout)
    shape = (*k.shape[:2], group, *k.shape[2:])
    dk, dv = (one.reshape(shape).sum(axis=2) for one in found)
    return {"dq": changes @ keys, "dk": dk, "dv": dv}


def exponentials_apart(problem: Problem, x: Mapping[str, Any]) -> Any:
    return differentiated(problem, x, apart=True)


def gradients_one_key_further(problem: Problem, x: Mapping[str, Any]) -> Any:
    return differentiated(problem, x, late=1)


def narrow_sums_along(problem: Problem, x: Mapping[str, Any]) -> Any:
    """In large gradients they overflow."""
    sums = half(half(x["dout"] * x["o"]).cumsum(axis=3, dtype=np.float16)[..., -1:])
    return differentiated(problem, x, along=sums)


def gradients(problem: Problem, x: Mapping[str, Any], normal: Any, share: float = 1.0) -> Any:
    """Of a norm, with only a share of the part along each row."""
    scale, each = x["rstd"][:, None], x["w"] * x["dy"]
    along = share * (each * normal).mean(axis=1, keepdims=True)
    offset = each.mean(axis=1, keepdims=True) if "mean" in x else 0
    right = problem.reference(np, x)  # type: ignore[arg-type]
    return {**right, "dx": scale * (each - offset - normal * along)}


def without_the_part_along(problem: Problem, x: Mapping[str, Any]) -> Any:
    """It hardly matters for random numbers in wide rows."""
    return gradients(problem, x, x["x"] * x["rstd"][:, None], 0.0)


def products_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    sums = half(half(x["w"] * x["dy"]) * x["x"]).cumsum(axis=1, dtype=np.float16)[:, -1:]
    along = sums / x["x"].shape[1] * x["rstd"][:, None]
    right = problem.reference(np, x)  # type: ignore[arg-type]
    scale = x["rstd"][:, None]
    return {**right, "dx": scale * (x["w"] * x["dy"] - x["x"] * scale * along)}


def differences_in_half(problem: Problem, x: Mapping[str, Any]) -> Any:
    scale = x["rstd"][:, None]
    return gradients(problem, x, half(x["x"] * scale) - half(x["mean"][:, None] * scale))


OVERFLOWING = (
    *(gelu_of_large_exponentials, gate_of_large_exponentials),
    route_without_maximum,
    *(without_maximum, without_largest, shares_without_maximum),
    *(exponentials_apart, gradients_one_key_further, narrow_sums_along),
)
MANY = {"queries": 4, "keys": 50_000, "heads": 8, "head_size": 16}

OF_LINEAR: tuple[tuple[str, Work, str, str], ...] = (
    ("bias", without_bias, "bf16", "rows of X with zeros"),
    ("gelu", without_bias, "fp16", "rows of X with (zeros|large numbers)"),
    ("bias", bias_of_the_next_column, "bf16", "rows of X with (zeros|small numbers)|cancel"),
    ("gelu", bias_of_a_row, "fp32", "rows of X with (zeros|small numbers)|cancel"),
    ("gelu", with_relu, "bf16", "rows of X with (zeros|small numbers)|cancel"),
    ("gelu", without_activation, "bf16", "rows of X|cancel"),
    ("swiglu", without_activation, "bf16", "rows of X with (large|small) numbers"),
    ("gelu", gelu_by_a_sigmoid, "fp16", "rows of X with (zeros|small numbers)|cancel"),
    ("gelu", gelu_by_a_sigmoid, "bf16", "rows of X with zeros"),
    ("gelu", gelu_of_large_exponentials, "fp16", "rows of X with large numbers"),
    ("gelu", gelu_of_large_exponentials, "bf16", "rows of X with large numbers"),
    ("swiglu", gate_of_large_exponentials, "fp16", "rows of X with large numbers"),
    ("swiglu", gate_of_large_exponentials, "fp32", "rows of X with large numbers"),
    ("swiglu", gate_and_up_swapped, "bf16", "rows of X with (large|small) numbers|cancel"),
    ("bias", linear_in_half, "fp32", "rows of X with (large|small) numbers|cancel"),
    ("gelu", linear_in_half, "bf16", "rows of X with (large|small) numbers|cancel"),
    ("swiglu", linear_in_half, "bf16", "rows of X with (large|small) numbers|cancel"),
    ("gelu", linear_with_half_sums, "fp16", "rows of X with|sums that cancel"),
    ("swiglu", linear_with_half_sums, "fp16", "rows of X with|sums that cancel"),
)
"""Epilogue, mistake, precision and what shows it."""

MISTAKES: dict[str, tuple[str, str, dict[str, Any], Work, str]] = {
    "softmax": ("softmax", "fp32", {"rows": 40, "columns": 70}, without_maximum, "rows near -?110"),
    "softmax of one row": (
        *("softmax", "fp32", {"rows": 1, "columns": 70}, without_maximum),
        "rows near -?110|rows with one large number",
    ),
    "FP64": ("softmax", "fp64", {"rows": 40, "columns": 70}, without_maximum, "rows near -?1000"),
    "no epsilon": (
        "rmsnorm",
        "fp32",
        {"rows": 40, "columns": 70},
        without_epsilon,
        "rows of zeros",
    ),
    "epsilon outside": (
        *("rmsnorm", "fp16", {"rows": 40, "columns": 70}, epsilon_outside),
        "rows whose squares are below epsilon",
    ),
    "narrow squares": (
        *("rmsnorm", "fp16", {"rows": 40, "columns": 70}, half_squares),
        "rows of large numbers|rows whose squares are below epsilon",
    ),
    "loss without maximum": (
        *("cross_entropy", "fp64", {"rows": 40, "columns": 70}, loss_without_maximum),
        "rows near -?1000|large number",
    ),
    "one pass": (
        *("layernorm", "fp32", {"rows": 40, "columns": 70}, one_pass),
        "rows far from zero",
    ),
    "without the part along rows": (
        *("rmsnorm_backward", "bf16", {"rows": 8, "columns": 70_000}, without_the_part_along),
        "rows with one large number|rows whose gradients follow them",
    ),
    "narrow products": (
        *("rmsnorm_backward", "fp16", {"rows": 40, "columns": 700}, products_in_half),
        "rows of large numbers|rows with one large number|rows whose gradients follow them",
    ),
    "narrow differences": (
        *("layernorm_backward", "fp16", {"rows": 40, "columns": 70}, differences_in_half),
        "rows whose gradients follow them, far from zero",
    ),
    "gradient without maximum": (
        *("cross_entropy_backward", "fp32", {"rows": 40, "columns": 70}, shares_without_maximum),
        "rows near -?110|rows with one large number|large number|rows of large numbers",
    ),
    "only targets": (
        *("cross_entropy_backward", "bf16", {"rows": 8, "columns": 140_000}, only_targets),
        "rows with one large number|rows whose target|rows of large numbers",
    ),
    "without the last row": (
        *("embedding", "bf16", {"tokens": 40, "words": 500, "columns": 9}, without_the_last_row),
        "the last row",
    ),
    "table by arithmetic": (
        *("embedding", "fp32", {"tokens": 40, "words": 500, "columns": 9}, rows_flushed),
        "a row of subnormal numbers",
    ),
    "experts by exponentials": (
        *("route", "fp32", {"tokens": 40, "experts": 64, "chosen": 8}, chosen_by_exponentials),
        "logits that are close|logits that fewer bits do not tell apart",
    ),
    "experts in half precision": (
        *("route", "fp32", {"tokens": 40, "experts": 64, "chosen": 8}, chosen_in_half),
        "logits that fewer bits do not tell apart",
    ),
    "experts by equal steps": (
        *("route", "bf16", {"tokens": 40, "experts": 8, "chosen": 2}, chosen_by_equal_steps),
        "logits that fewer bits do not tell apart",
    ),
    "weights without maximum": (
        *("route", "fp32", {"tokens": 40, "experts": 64, "chosen": 8}, route_without_maximum),
        "large logits|logits far below zero",
    ),
    "experts with a capacity": (
        *("sort_experts", "bf16", {"tokens": 40, "experts": 16, "chosen": 2}, with_a_capacity),
        "experts that most tokens chose, or none",
    ),
    "experts without tokens": (
        *("sort_experts", "fp32", {"tokens": 400, "experts": 16, "chosen": 2}),
        *(without_empty_experts, "experts that most tokens chose, or none"),
    ),
    "narrow weighted sums": (
        *("combine", "fp32", {"tokens": 40, "columns": 9}, combined_in_half),
        "large numbers|small numbers",
    ),
    "a scale per row": (
        *("quantize", "bf16", {"rows": 40, "columns": 300}, scale_of_a_row),
        "rows with one large number|rows of ",
    ),
    "truncated quotients": (
        *("quantize", "bf16", {"rows": 40, "columns": 300}, truncated),
        "rows of small numbers|rows of large numbers|rows with one large number",
    ),
    "zeros without a scale": (
        *("quantize", "fp32", {"rows": 40, "columns": 300}, without_least),
        "rows of small numbers|rows of zeros",
    ),
    "large exponentials": (
        *("swiglu", "fp32", {"columns": 70}, of_large_exponentials),
        "gates far above zero",
    ),
    "one accumulator": ("sum", "fp32", {"elements": 2**22}, one_accumulator, "positive numbers"),
    "the last": ("sum", "fp32", {"elements": 1001}, without_the_last, "positive numbers"),
    "the last of integers": ("sum", "int32", {"elements": 1001}, without_the_last, "positive"),
    "not an integer": ("sum", "int64", {"elements": 10**6}, in_single, "positive numbers"),
    "narrow product": (
        *("gemm", "fp32", {"m": 60, "n": 50, "k": 64}, product_in_half),
        "rows of A with large numbers|rows of A with small numbers|sums that cancel",
    ),
    "small numbers": (
        *("gemm", "bf16", {"m": 60, "n": 50, "k": 64, "batch": 2}, product_of_large),
        "rows of A with small numbers",
    ),
    "narrow sums": (
        *("gemm", "fp16_fp32", {"m": 60, "n": 50, "k": 64}, rounded_sums),
        "rows of A|sums that cancel",
    ),
    "the expert of a tile's first row": (
        *("grouped_gemm", "bf16", {"tokens": 61, "n": 9, "k": 40, "spread": "skewed"}, one_expert),
        "rows of A with|sums that cancel",
    ),
    "sums of a group in half": (
        *("w4a16", "bf16", {"m": 60, "n": 50, "k": 512}, groups_in_half),
        "rows of large numbers|rows of small numbers",
    ),
    "without the last weight": (
        *("w4a16", "bf16", {"m": 60, "n": 50, "k": 1}, without_the_last_weight),
        "rows of|rows with one number",
    ),
    "the scale of the first group": (
        *("block_gemm", "fp8", {"m": 60, "n": 50, "k": 512}, the_first_scale),
        "rows of|rows with one number|rows with one scale",
    ),
    **{
        f"{epilogue}, {work.__name__}, {precision}": (
            *("linear", precision, {"m": 40, "n": 50, "k": 300, "epilogue": epilogue}),
            *(work, title),
        )
        for epilogue, work, precision, title in OF_LINEAR
    },
    "narrow vector": ("gemv", "fp32", {"m": 60, "n": 50}, vector_in_half, "rows of"),
    "no wrapping": ("add", "int32", {"columns": 99}, saturated, "large integers"),
    "narrow addition": ("add", "fp32", {"columns": 99}, sum_in_half, "large numbers|small numbers"),
    "subnormal FP32": ("copy", "fp32", {"columns": 99}, flushed, "subnormal numbers"),
    "subnormal FP64": ("copy", "fp64", {"columns": 99}, flushed, "subnormal numbers"),
    "subnormal FP16": ("copy", "fp16", {"columns": 99}, flushed, "subnormal numbers"),
    "subnormal BF16": ("copy", "bf16", {"columns": 99}, flushed, "subnormal numbers"),
    "minus zero FP32": ("copy", "fp32", {"columns": 99}, plus_zero, "negative zeros"),
    "minus zero BF16": ("copy", "bf16", {"columns": 99}, plus_zero, "negative zeros"),
    "INT32 by FP32": ("copy", "int32", {"columns": 99}, by_float, "large integers"),
    "INT64 by FP64": ("copy", "int64", {"columns": 99}, by_float, "large integers"),
    "INT32 sums in FP32": (
        *("gemm", "int32", {"m": 60, "n": 50, "k": 64}, product_by_float),
        "rows of A with large numbers",
    ),
    "without the largest score": (
        *("attention", "bf16", {"queries": 8, "keys": 40, "causal": "on"}, without_largest),
        "scores of -?110|a first key that decides|a last key that decides",
    ),
    "without the largest score in FP8": (
        *("attention", "fp8", {"queries": 8, "keys": 40, "causal": "on"}, without_largest),
        "scores of -?110|a first key that decides|a last key that decides",
    ),
    "without the scale in FP8": (
        *("attention", "fp8", {"queries": 8, "keys": 40, "causal": "on"}, without_scale),
        "large values|first queries",
    ),
    "weights that end at 448": (
        *("attention", "fp8", MANY, saturated_weights),
        "first queries|scores of|a first key that decides|a last key that decides",
    ),
    "one key further in FP8": (
        *("attention", "fp8", {**MANY, "causal": "on"}, one_key_further),
        "a last key that decides",
    ),
    "without the first key in FP8": (
        *("attention", "fp8", MANY, without_the_first_key),
        "a first key that decides",
    ),
    "one key further": (
        *("attention", "fp16", {"queries": 33, "keys": 40, "causal": "on"}, one_key_further),
        "first queries|scores of|a last key that decides|large values|a first key",
    ),
    "one key further of many": (
        *("attention", "bf16", {**MANY, "causal": "on"}, one_key_further),
        "a last key that decides",
    ),
    "without the first key": (
        *("attention", "bf16", MANY, without_the_first_key),
        "a first key that decides",
    ),
    "narrow values": (
        *("attention", "fp32", {"queries": 4, "keys": 100}, values_in_half),
        "large values|a first key that decides|a last key that decides|scores of|first queries",
    ),
    "exponentials apart": (
        *("attention_backward", "bf16", {"queries": 8, "keys": 40}, exponentials_apart),
        "scores of -?110|a first key that decides|a last key that decides",
    ),
    "gradients one key further": (
        *("attention_backward", "fp16", {"queries": 33, "keys": 40, "causal": "on"}),
        *(gradients_one_key_further, "key that decides|first queries|scores of|large gradients"),
    ),
    "narrow sums along": (
        *("attention_backward", "bf16", {"queries": 8, "keys": 40}, narrow_sums_along),
        "large gradients",
    ),
    "no epsilon in a step": (
        *("adamw", "bf16", {"elements": 99}, without_epsilon_in_a_step),
        "no gradients so far|moments as small as epsilon",
    ),
    "epsilon inside the root": (
        *("adamw", "fp16", {"elements": 99}, epsilon_inside_the_root),
        "moments as small as epsilon",
    ),
    "no correction of the first moment": (
        *("adamw", "bf16", {"elements": 99}, no_correction_of_the_first_moment),
        "parameters of zero|moments as small as epsilon",
    ),
    "a step too many": (
        *("adamw", "fp32", {"elements": 99}, a_step_too_many),
        "parameters of zero|moments as small as epsilon",
    ),
    "softmax without the last column": (
        *("softmax", "bf16", {"rows": 12, "columns": 2000}, without_the_last_column),
        "rows with one large number",
    ),
    "largest of others than the last": (
        *("softmax", "fp32", {"rows": 12, "columns": 2000}, largest_of_others_than_the_last),
        "rows with one large number",
    ),
    "padding as target": (
        *("cross_entropy", "bf16", {"rows": 20, "columns": 2000}, padding_as_target),
        "rows",
    ),
    "no last target": (
        *("cross_entropy_backward", "fp16", {"rows": 20, "columns": 2000}, no_last_target),
        "rows",
    ),
    "above the threshold": (
        *("filter", "fp32", {"batch": 4, "n": 8}, above_the_threshold),
        "pixels at the threshold",
    ),
    "saturated sum": ("sum", "int32", {"elements": 1000}, saturated_sum, "positive numbers"),
    "dark outside": ("blur", "fp32", {"batch": 3, "rows": 9, "columns": 7}, dark_outside, "ones"),
    "image of zeros": (
        *("blur", "fp32", {"batch": 3, "rows": 9, "columns": 7}, scaled_by_the_largest),
        "zeros",
    ),
    "filter of zeros": ("filter", "fp64", {"batch": 3, "n": 8}, scaled_by_the_largest, "zeros"),
    "FFT of zeros": ("fft", "fp64", {"batch": 3, "n": 8}, scaled_by_the_largest, "zeros"),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_named_with_the_inputs_that_show_it(name: str) -> None:
    workload, precision, parameters, work, title = MISTAKES[name]
    problem = build(workload, precision, parameters)
    types = {one.name: one.type for one in problem.operands}
    outputs = [one.name for one in problem.operands if one.written]
    for seed in range(3):
        operands, hard = hardened(problem, seed)
        stored = {**operands, **operands.initial}
        inputs = {
            one.name: decode(np, stored[one.name], one.type) for one in problem.operands if one.read
        }
        results = work(problem, inputs)
        results = results if len(outputs) > 1 else {outputs[0]: results}
        for one in outputs:
            operands[one][...] = encode(np, results[one], types[one])
        expected = Expected(DEVICE, operands, seed, 2**30, hard)
        reason = expected.verdict(operands).reason
        overflows = work in OVERFLOWING and "are NaN" in reason
        assert overflows or re.match(rf"on .*({title})", reason), reason
        assert any(re.search(title, one.title) for one in hard)


# Weights in FP8 ----------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [1.0, 256.0])
@pytest.mark.parametrize("number", range(len(SHAPES["attention"])))
def test_attention_in_fp8_may_round_its_weights(number: int, raised: float) -> None:
    problem = build("attention", "fp8", {**SHAPES["attention"][number], "batch": 2})
    for seed in range(3):
        operands, hard = hardened(problem, seed)
        write_attention(operands, weight=in_e4m3(raised))
        for one in ([], hard):
            verdict = Expected(DEVICE, operands, seed, 2**30, one).verdict(operands)
            assert verdict.reason == ""
            assert verdict.rel_error < 0.7 * problem.tolerance


@pytest.mark.parametrize("keys", [64, 1000, 8192])
@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_attention_in_fp8_may_not_lose_64_keys(keys: int, part: float) -> None:
    operands = allocate(DEVICE, build("attention", "fp8", {"queries": 4, "keys": keys}), 0)
    first = int(part * (keys - 64))

    def without_some(weights: Any) -> Any:
        kept = in_e4m3(256.0)(weights)
        kept[..., first : first + 64] = 0
        return kept

    write_attention(operands, weight=without_some)
    assert verify(DEVICE, operands, 0).reason


def test_attention_in_fp8_may_not_round_shares_of_one() -> None:
    """Weights that are divided by their sum before are too small for E4M3."""
    keys = 8192
    operands = allocate(DEVICE, build("attention", "fp8", {"queries": 4, "keys": keys}), 0)
    write_attention(operands, weight=in_e4m3(1 / keys))
    assert verify(DEVICE, operands, 0).reason


@pytest.mark.parametrize("late", [-1, 1])
def test_a_shifted_causal_mask_is_found_in_fp8(late: int) -> None:
    shape = {"queries": 32, "keys": 40, "causal": "on"}
    operands = allocate(DEVICE, build("attention", "fp8", shape), 0)
    write_attention(operands, late=late)
    assert verify(DEVICE, operands, 0).reason


def write_attention(operands: Operands, **words: Any) -> None:
    """Into ``o``, what ``attending`` finds with ``words``."""
    problem = operands.problem
    inputs = {name: decode(np, operands[name], FP8_E4M3) for name in "qkv"}
    found = attending(problem, inputs, **words)
    operands["o"][...] = encode(np, found, problem.precision.output)


@pytest.mark.parametrize("total", [1, 2, 3, 9])
def test_turns_have_every_title_once(total: int) -> None:
    titles, turns, found = ["a", "b", "c", "d", "e"], Turns(1), list[str]()
    found += scattered(turns, total, titles)
    while turns.left:
        found += scattered(turns, total, titles)
    assert sorted(found) == titles
    assert len(scattered(turns, total, titles)) == min(total, 5)  # from the beginning


@pytest.mark.parametrize(("total", "each"), [(1000, 8), (24, 8), (9, 3), (3, 1), (2, 1)])
def test_places_are_of_one_title_each(total: int, each: int) -> None:
    titles = ["a", "b", "c"]
    found = scattered(Random(1), total, titles)
    assert {len(places) for places in found.values()} == {each}
    assert len(found) == min(3, total)
    everywhere = [place for places in found.values() for place in places]
    assert len(set(everywhere)) == len(everywhere)
    assert set(everywhere) <= set(range(total))
    assert all(places == sorted(places) for places in found.values())
