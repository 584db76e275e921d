"""Calls of PyTorch's operations that are a problem of a workload, and those that nearly are."""

from __future__ import annotations

from typing import Any

import pytest

from rooflab.programs.equivalents import equivalent
from rooflab.programs.operations import modelled, work_of
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import MISSING, Tensor
from rooflab.runs.notation import written


def of(*shape: int, strides: tuple[int, ...] | None = None, kind: str = "bfloat16") -> Tensor:
    """A tensor, row-major unless its strides are given."""
    made, step = [], 1
    for size in reversed(shape):
        made.append(step)
        step *= size
    return Tensor(shape, kind, tuple(reversed(made)) if strides is None else strides)


def said(name: str, *arguments: Any, results: list[Tensor] | None = None) -> str:
    problem = equivalent(Operation(f"aten::{name}", arguments, results))
    return written(problem) if problem else ""


A, B = of(8, 4), of(4, 6)
A_T, B_T = of(8, 4, strides=(1, 8)), of(4, 6, strides=(1, 4))
WIDE = of(8, 4, strides=(5, 1))


@pytest.mark.parametrize(
    ("a", "b", "layout"),
    [(A, B, ""), (A, B_T, " layout=nt"), (A_T, B, " layout=tn"), (A_T, B_T, " layout=tt")],
)
def test_a_product_has_the_layout_of_its_operands_in_memory(
    a: Tensor, b: Tensor, layout: str
) -> None:
    assert said("mm", a, b) == f"gemm bf16 m=8 n=6 k=4{layout}"


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("bmm", (of(3, 8, 4), of(3, 4, 6)), "gemm bf16 m=8 n=6 k=4 batch=3"),
        (
            "bmm",
            (of(3, 8, 4), of(3, 4, 6, strides=(24, 1, 4))),
            "gemm bf16 m=8 n=6 k=4 batch=3 layout=nt",
        ),
        ("linear", (of(2, 8, 4), of(6, 4)), "gemm bf16 m=16 n=6 k=4 layout=nt"),
        ("linear", (of(2, 8, 4), of(6, 4), of(6)), "linear bf16 m=16 n=6 k=4"),
        ("addmm", (of(6), A, B_T), "linear bf16 m=8 n=6 k=4"),
        ("addmm", (of(6), A, B_T, 1, 1), "linear bf16 m=8 n=6 k=4"),
        (
            "_addmm_activation",
            (of(6), A, B_T, 1, 1, True),
            "linear bf16 m=8 n=6 k=4 epilogue=gelu",
        ),
        (
            "native_layer_norm",
            (of(2, 8, 4), [4], of(4), of(4), 1e-5),
            "layernorm bf16 rows=16 columns=4",
        ),
        ("mv", (of(8, 4), of(4)), "gemv bf16 m=8 n=4"),
        ("_softmax", (of(2, 8, 4), 2, False), "softmax bf16 rows=16 columns=4"),
        ("softmax", (of(8, 4, kind="float32"), -1, None), "softmax fp32 rows=8 columns=4"),
        ("_fused_rms_norm", (of(2, 8, 4), [4], of(4), None), "rmsnorm bf16 rows=16 columns=4"),
        ("add", (of(8, 4), of(8, 4), 1), "add bf16 columns=32"),
        ("sum", (of(8, 4, kind="int64"), None), "sum int64 elements=32"),
    ],
)
def test_calls_that_are_a_problem(name: str, arguments: tuple[Any, ...], expected: str) -> None:
    assert said(name, *arguments) == expected


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("mm", (WIDE, B)),  # rows with gaps
        ("mm", (Tensor((8, 4), "bfloat16"), B)),  # of unknown strides
        ("mm", (A, of(4, 6, kind="float16"))),
        ("mm", (of(8, 4, kind="int8"), of(4, 6, kind="int8"))),
        ("mm", (of(8, 4, kind=""), of(4, 6, kind=""))),
        ("mm", (of(8, 0), of(0, 6))),
        ("bmm", (of(3, 8, 4, strides=(64, 4, 1)), of(3, 4, 6))),
        ("bmm", (of(3, 8, 4, strides=(0, 4, 1)), of(3, 4, 6))),  # one matrix, expanded
        ("addmm", (of(6), A, B)),
        ("addmm", (of(8, 6), A, B_T)),  # a matrix is added
        ("addmm", (of(6), A, B_T, 0.5, 1)),
        ("_addmm_activation", (of(6), A, B_T, 1, 1, False)),  # ReLU
        ("linear", (A, of(6, 4), of(6, kind="float32"))),
        ("linear", (WIDE, of(6, 4))),
        ("native_layer_norm", (A, [4], of(4), None, 1e-5)),
        ("native_layer_norm", (A, [8, 4], of(8, 4), of(8, 4), 1e-5)),
        ("mv", (of(8, 4, strides=(1, 8)), of(4))),
        ("_softmax", (A, 0, False)),  # of columns
        ("_softmax", (A, -1, True)),  # of another type than its input
        ("_softmax", (A_T, -1, False)),
        ("_softmax", (A, MISSING, False)),
        ("_log_softmax", (A, 1, False)),
        ("_fused_rms_norm", (A, [4], None, None)),  # without a weight
        ("_fused_rms_norm", (A, [8, 4], of(8, 4), None)),
        ("add", (A, of(4), 1)),  # which is broadcast
        ("add", (A, A, 2)),
        ("add", (A, A_T, 1)),
        ("add", (A, 3, 1)),
        ("add_", (A, A, 1)),
        ("sum", (A, [1], True)),
        ("sum", (A, 6)),
        ("gelu", (A,)),
    ],
)
def test_calls_that_are_none(name: str, arguments: tuple[Any, ...]) -> None:
    assert said(name, *arguments) == ""


Q, KV = of(2, 8, 16, 64), of(2, 4, 16, 64)
CUDNN, EFFICIENT = (f"_scaled_dot_product_{name}_attention" for name in ("cudnn", "efficient"))


@pytest.mark.parametrize(
    ("name", "more", "causal"),
    [
        (CUDNN, (None, False), ""),
        (CUDNN, (None, False, 0.0, True, False), " causal=on"),
        (EFFICIENT, (None, False, 0.0, True), " causal=on"),
        (EFFICIENT, (None, False, 0.0, False, 0.125), ""),
    ],
)
def test_attention_whose_gradients_nobody_needs(
    name: str, more: tuple[Any, ...], causal: str
) -> None:
    sizes = "queries=16 keys=16 heads=8 kv_heads=4 head_size=64 batch=2"
    sums = of(2, 8, 0)
    assert said(name, Q, KV, KV, *more, results=[Q, sums]) == f"attention bf16 {sizes}{causal}"


@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        ((Q, KV, KV), (None, True, 0.0, True)),  # with sums for gradients
        ((Q, KV, KV), (None, False, 0.1, True)),
        ((Q, KV, KV), (of(16, 16), False, 0.0, False)),
        ((Q, KV, KV), (None, False, 0.0, False, 0.3)),  # another scale
        ((Q, KV, KV), (None, False, 0.0, MISSING)),
        ((of(2, 8, 1, 64), KV, KV), (None, False, 0.0, True)),  # sees the first key only
        ((Q, KV, of(2, 4, 16, 32)), (None, False)),
        ((of(2, 8, 16, 64, strides=(8192, 64, 512, 1)), KV, KV), (None, False)),
    ],
)
def test_attention_that_is_another_problem(
    arguments: tuple[Tensor, ...], more: tuple[Any, ...]
) -> None:
    assert said(EFFICIENT, *arguments, *more) == ""


def test_a_result_in_another_order_is_another_problem() -> None:
    assert said("mm", A, B, results=[of(8, 6)])
    assert not said("mm", A, B, results=[of(8, 6, strides=(1, 8))])


def test_a_dimension_of_one_has_any_stride() -> None:
    assert said("mm", of(1, 4, strides=(99, 1)), B) == "gemm bf16 m=1 n=6 k=4"


def test_work_says_the_problem() -> None:
    work = modelled(Operation("aten::mm", [A, B_T]))
    assert work and work.same_as == "gemm bf16 m=8 n=6 k=4 layout=nt"


def test_a_trace_says_it_if_it_has_strides() -> None:
    call = ("aten::mm", [[8, 4], [4, 6]], ["c10::BFloat16"] * 2, ["", ""])
    with_strides, without = work_of(*call, [[4, 1], [1, 4]]), work_of(*call)
    assert with_strides and with_strides.same_as == "gemm bf16 m=8 n=6 k=4 layout=nt"
    assert without and without.same_as == ""


def test_arguments_that_do_not_fit_are_survived() -> None:
    work = modelled(Operation("aten::sum", [A, None]))
    assert work and work.same_as == "sum bf16 elements=32"
    assert work_of("aten::mv", [[8, 4], [4]], ["float"] * 2, ["", ""], [[4], [1]])
