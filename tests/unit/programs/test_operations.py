"""Needs of PyTorch's operations: by hand, for odd shapes, as a trace describes the calls."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.devices.records import Needs
from rooflab.model.traffic import LongRows, Product
from rooflab.programs.operations import modelled, work_of
from rooflab.programs.rules.base import RULES, Operation, rule
from rooflab.programs.tensors import Tensor

F32, BF16, F16, F8 = "float", "c10::BFloat16", "c10::Half", "c10::Float8_e4m3fn"
I64, LIST = "long int", "TensorList"
ONES = [1, 1], [0, 0], [1, 1], 1


def traced(name: str, *arguments: Any) -> Needs | None:
    """FLOPs and bytes of a call, without what its traffic is expected to be."""
    found = described(name, *arguments)
    return replace(found, once=True, again=None) if found else None


def described(name: str, *arguments: Any) -> Needs | None:
    """A call as a trace has it. A pair is a tensor, None an absent one, all else a value."""
    shapes: list[Any] = []
    types: list[str] = []
    values: list[str] = []
    for one in arguments:
        tensor = isinstance(one, tuple)
        shapes.append(one[1] if tensor else [])
        scalar = "ScalarList" if isinstance(one, list) else "Scalar"
        types.append(one[0] if tensor else "" if one is None else scalar)
        values.append("" if tensor or one is None else str(one))
    return work_of(f"aten::{name}", shapes, types, values)


def a(kind: str, *shape: int) -> tuple[str, list[int]]:
    return kind, list(shape)


def test_a_product_of_matrices() -> None:
    work = traced("mm", a(BF16, 127, 7), a(BF16, 7, 129))
    assert work == Needs(2 * 127 * 7 * 129, 2 * (127 * 7 + 7 * 129 + 127 * 129), "bf16")
    assert traced("mm", a(F32, 5, 0), a(F32, 0, 3)) == Needs(0, 60, "fp32")
    bias = traced("addmm", a(F32, 3), a(F32, 5, 7), a(F32, 7, 3), 1, 1)
    assert bias == Needs(210, 4 * (3 + 35 + 21 + 15), "fp32")
    alone = traced("addmm", a(F32, 3), a(F32, 5, 7), a(F32, 7, 3), 0, 1)
    assert alone == Needs(210, 4 * (35 + 21 + 15), "fp32")
    inside = traced("addmm_", a(F32, 5, 3), a(F32, 5, 7), a(F32, 7, 3), 1, 1)
    assert inside == Needs(210, 4 * (15 + 35 + 21 + 15), "fp32")


def test_products_of_batches_and_groups() -> None:
    batch = traced("bmm", a(F16, 3, 5, 7), a(F16, 3, 7, 11))
    assert batch == Needs(2 * 3 * 5 * 7 * 11, 2 * 3 * (35 + 77 + 55), "fp16")
    added = traced("baddbmm", a(F32, 1, 1, 11), a(F32, 3, 5, 7), a(F32, 3, 7, 11), 1, 1)
    assert added == Needs(2310, 4 * (11 + 3 * (35 + 77 + 55)), "fp32")
    rows = traced("_grouped_mm", a(BF16, 33, 8), a(BF16, 4, 8, 16), a("int", 4), None, None)
    assert rows == Needs(2 * 33 * 8 * 16, 2 * (33 * 8 + 4 * 8 * 16 + 33 * 16) + 16, "bf16")
    slices = traced("_grouped_mm", a(BF16, 33, 8), a(BF16, 8, 16), a("int", 4), None, None)
    assert slices == Needs(2 * 33 * 8 * 16, 2 * (33 * 8 + 8 * 16 + 4 * 33 * 16) + 16, "bf16")


def test_products_of_small_numbers() -> None:
    scales = a(F32), a(F32)
    eight = traced("_scaled_mm", a(F8, 16, 32), a(F8, 32, 48), *scales, None, None, 15, True)
    assert eight == Needs(2 * 16 * 32 * 48, 16 * 32 + 32 * 48 + 8 + 2 * 16 * 48, "fp8")
    four = "c10::Float4_e2m1fn_x2"
    packed = traced("_scaled_mm", a(four, 16, 32), a(four, 32, 48), *scales, None, None, 15, True)
    assert packed == Needs(2 * 16 * 64 * 48, 16 * 32 + 32 * 48 + 8 + 2 * 16 * 48, "")
    whole = traced("_int_mm", a("signed char", 17, 8), a("signed char", 8, 16))
    assert whole == Needs(2 * 17 * 8 * 16, 17 * 8 + 8 * 16 + 4 * 17 * 16, "")


@pytest.mark.parametrize(
    ("call", "product"),
    [
        (("mm", a(BF16, 127, 7), a(BF16, 7, 129)), Product(127, 129, 7)),
        (("addmm", a(F16, 3), a(F16, 5, 7), a(F16, 7, 3), 1, 1), Product(5, 3, 7)),
        (("bmm", a(F16, 3, 5, 7), a(F16, 3, 7, 11)), Product(5, 11, 7, 3)),
        (("linear", a(BF16, 2, 5, 7), a(BF16, 3, 7), None), Product(10, 3, 7)),
        (("mm", a(F32, 127, 7), a(F32, 7, 129)), None),  # maybe without tensor cores
        (("_scaled_mm", a(F8, 16, 32), a(F8, 32, 48), a(F32), a(F32)), None),
        (("_grouped_mm", a(BF16, 33, 8), a(BF16, 4, 8, 16), a("int", 4), None, None), None),
        (("conv2d", a(BF16, 2, 6, 9, 11), a(BF16, 4, 6, 3, 2), None, *ONES), None),
    ],
)
def test_what_may_be_read_again_is_known_of_products_of_16_bits(
    call: tuple[Any, ...], product: Product | None
) -> None:
    work = described(*call)
    assert work and not work.once and work.again == product


@pytest.mark.parametrize(
    ("call", "rows"),
    [
        (("_log_softmax", a(F32, 8, 32000), -1, False), LongRows(8, 256_000, 256_000)),
        (("softmax", a(BF16, 4, 2, 32000), 2), LongRows(8, 128_000, 128_000)),
        (("_softmax", a(BF16, 8, 32000), 1, True), LongRows(8, 192_000, 128_000)),
        (("_softmax", a(F32, 8, 12_288), -1, False), None),  # 48 KiB are in shared memory
        (("_softmax", a(F32, 32000, 8), 0, False), None),  # another kernel
        (
            ("_log_softmax_backward_data", a(F32, 8, 32000), a(F32, 8, 32000), 1, 6),
            LongRows(8, 384_000, 128_000),
        ),
        (
            ("_softmax_backward_data", a(F32, 8, 32000), a(F32, 8, 32000), 1, 6),
            LongRows(8, 384_000, 256_000),
        ),
    ],
)
def test_long_rows_are_read_again(call: tuple[Any, ...], rows: LongRows | None) -> None:
    work = described(*call)
    assert work and work.once == (rows is None) and work.again == rows


def test_all_else_is_read_once() -> None:
    work = described("gelu", a(BF16, 127, 7))
    assert work and work.once and work.again is None


def test_a_convolution() -> None:
    x, weight, bias = a(F32, 2, 6, 9, 11), a(F32, 4, 3, 3, 2), a(F32, 4)
    # (9 + 2·1 - 3) // 2 + 1 = 5 rows and 11 - 2·(2 - 1) = 9 columns
    out = 2 * 4 * 5 * 9
    expected = Needs(2 * out * 3 * 3 * 2, 4 * (2 * 6 * 9 * 11 + 4 * 18 + 4 + out), "fp32")
    settings = [2, 1], [1, 0], [1, 2]
    assert traced("convolution", x, weight, bias, *settings, False, [0, 0], 2) == expected
    assert traced("conv2d", x, weight, bias, *settings, 2) == expected
    own = traced("cudnn_convolution", x, weight, [1, 0], [2, 1], [1, 2], 2, True, False, True)
    assert own == Needs(expected.flops, (expected.bytes or 0) - 16, "fp32")


def test_a_transposed_convolution() -> None:
    x, weight = a(BF16, 1, 3, 5), a(BF16, 3, 7, 4)
    out = 7 * ((5 - 1) * 2 - 2 + 3 + 1 + 1)
    settings = [2], [1], [1], True, [1], 1
    work = traced("convolution", x, weight, None, *settings)
    assert work == Needs(2 * 5 * 3 * 7 * 4, 2 * (15 + 84 + out), "bf16")


def test_gradients_of_a_convolution() -> None:
    grad, x, weight = a(F32, 2, 4, 7), a(F32, 2, 6, 9), a(F32, 4, 3, 3)
    settings = [1], [0], [1], False, [0], 2
    once = 2 * 2 * 4 * 7 * 3 * 3
    both = traced("convolution_backward", grad, x, weight, [4], *settings, [True, True, True])
    assert both == Needs(2 * once, 4 * (56 + 2 * 108 + 2 * 36 + 4), "fp32")
    first = traced("convolution_backward", grad, x, weight, [0], *settings, [False, True, False])
    assert first == Needs(once, 4 * (56 + 108 + 36), "fp32")


# Attention ---------------------------------------------------------------------------------------

Q, K, V = a(BF16, 2, 6, 33, 24), a(BF16, 2, 3, 57, 24), a(BF16, 2, 3, 57, 40)
PAIRS = 2 * 6 * 33 * 57
OUT = a(BF16, 2, 6, 33, 40)
SUMS = a(F32, 2, 6, 33)
IN = 2 * (2 * 6 * 33 * 24 + 2 * 3 * 57 * (24 + 40))
WRITTEN = 2 * 2 * 6 * 33 * 40 + 4 * 2 * 6 * 33
FORWARD = Needs(2 * PAIRS * (24 + 40), IN + WRITTEN, "bf16")
BACKWARD = Needs(2 * PAIRS * (3 * 24 + 2 * 40), 2 * IN + WRITTEN + 2 * 2 * 6 * 33 * 40, "bf16")


def turned(one: tuple[str, list[int]]) -> tuple[str, list[int]]:
    kind, (batch, heads, length, width) = one
    return a(kind, batch, length, heads, width)


def test_attention_forward() -> None:
    head, inner = "_scaled_dot_product", [turned(one) for one in (Q, K, V)]
    assert traced(f"{head}_flash_attention", Q, K, V, 0.0, False, False, None) == FORWARD
    assert traced(f"{head}_efficient_attention", Q, K, V, None, True, 0.0, False, None) == FORWARD
    assert (
        traced(f"{head}_cudnn_attention", Q, K, V, None, True, 0.0, False, False, None) == FORWARD
    )
    assert (
        traced("_flash_attention_forward", *inner, None, None, 33, 57, 0.0, False, False) == FORWARD
    )
    none = [None] * 5
    assert traced("_efficient_attention_forward", *inner, *none, 0.0, 0, True) == FORWARD
    inference = traced("_efficient_attention_forward", *inner, *none, 0.0, 0, False)
    assert inference == Needs(FORWARD.flops, IN + WRITTEN - 4 * 2 * 6 * 33, "bf16")


def test_attention_backward() -> None:
    head, seeds = "_scaled_dot_product", [a(I64), a(I64)]
    lengths = [None, None, 33, 57]
    assert (
        traced(
            f"{head}_flash_attention_backward",
            *(OUT, Q, K, V, OUT, SUMS, *lengths, 0.0, False, *seeds, None),
        )
        == BACKWARD
    )
    assert (
        traced(
            f"{head}_efficient_attention_backward",
            *(OUT, Q, K, V, None, OUT, SUMS, *seeds, 0.0, [True, True, True, False], False, None),
        )
        == BACKWARD
    )
    assert (
        traced(
            f"{head}_cudnn_attention_backward",
            *(OUT, Q, K, V, OUT, SUMS, *seeds, None, *lengths, 0.0, False, None),
        )
        == BACKWARD
    )
    out, q, k, v = map(turned, (OUT, Q, K, V))
    assert (
        traced("_flash_attention_backward", out, q, k, v, out, SUMS, *lengths, 0.0, False, *seeds)
        == BACKWARD
    )
    assert (
        traced(
            "_efficient_attention_backward",
            *(out, q, k, v, None, out, *lengths, SUMS, 0.0, *seeds, 0, False),
        )
        == BACKWARD
    )


def test_causal_attention_over_itself_is_half() -> None:
    def flops(*arguments: Any) -> int | None:
        work = traced("_scaled_dot_product_flash_attention", *arguments)
        return work.flops if work else None

    whole = 2 * 2 * 6 * 33 * 33 * (24 + 24)
    assert flops(Q, Q, Q, 0.0, False, False) == whole
    assert flops(Q, Q, Q, 0.0, True, False) == whole // 2
    assert flops(Q, K, V, 0.0, True, False) == FORWARD.flops  # one query may see all, or none
    shapes = [Q[1]] * 3 + [[], [], []]
    kinds = [BF16] * 3 + ["Scalar"] * 3
    unsaid = work_of("aten::_scaled_dot_product_flash_attention", shapes, kinds, [])
    assert unsaid == Needs(whole, 2 * 4 * 2 * 6 * 33 * 24 + 4 * 2 * 6 * 33, "bf16")


def test_flops_of_sequences_of_several_lengths_are_not_known() -> None:
    packed, starts = a(BF16, 90, 6, 24), a("int", 4)
    work = traced(
        "_flash_attention_forward", packed, packed, packed, starts, starts, 40, 40, 0.0, True, False
    )
    assert work == Needs(None, 2 * 4 * 90 * 6 * 24 + 4 * 90 * 6, "bf16")
    window = [turned(Q)] * 3 + [None, None, 33, 33, 0.0, True, False, None, 8, 0]
    local = traced("_flash_attention_forward", *window)
    assert local and local.flops is None


# All else ----------------------------------------------------------------------------------------


def test_rows() -> None:
    x = a(BF16, 37, 129)
    n = 37 * 129
    assert traced("_softmax", x, -1, False) == Needs(5 * n, 4 * n, "bf16")
    assert traced("_softmax", x, -1, True) == Needs(5 * n, 6 * n, "bf16")
    assert traced("_log_softmax_backward_data", x, x, 1, 15) == Needs(4 * n, 6 * n, "bf16")
    w = a(BF16, 129)
    layer = traced("native_layer_norm", x, [129], w, w, 1e-5)
    assert layer == Needs(7 * n, 4 * n + 4 * 129 + 8 * 37, "bf16")
    rms = traced("_fused_rms_norm", x, [129], w, None)
    assert rms == Needs(4 * n, 4 * n + 2 * 129 + 4 * 37, "bf16")
    row = a(F32, 37, 1)
    back = traced("native_layer_norm_backward", x, x, [129], row, row, w, w, [True, True, True])
    assert back == Needs(0, 6 * n + 2 * 3 * 129 + 8 * 37, "bf16")


def test_norms_of_images() -> None:
    x, c = a(F32, 2, 6, 5, 7), a(F32, 6)
    n = 2 * 6 * 35
    training = traced("native_batch_norm", x, c, c, c, c, True, 0.1, 1e-5)
    assert training == Needs(7 * n, 4 * (2 * n + 4 * 6 + 2 * 6 + 2 * 6), "fp32")
    after = traced("native_batch_norm", x, c, c, c, c, False, 0.1, 1e-5)
    assert after == Needs(4 * n, 4 * (2 * n + 4 * 6), "fp32")
    mask = [True, True, True]
    back = traced("native_batch_norm_backward", x, x, c, c, c, c, c, True, 1e-5, mask)
    assert back == Needs(0, 4 * (3 * n + 5 * 6), "fp32")
    group = traced("native_group_norm", x, c, c, 2, 6, 35, 3, 1e-5)
    assert group == Needs(7 * n, 4 * (2 * n + 2 * 6 + 2 * 6), "fp32")


def test_an_embedding_reads_no_row_twice() -> None:
    few = traced("embedding", a(BF16, 1000, 37), a(I64, 3, 5))
    assert few == Needs(0, 8 * 15 + 2 * 2 * 15 * 37, "bf16")
    many = traced("embedding", a(BF16, 7, 37), a(I64, 3, 5))
    assert many == Needs(0, 8 * 15 + 2 * (7 + 15) * 37, "bf16")
    back = traced("embedding_dense_backward", a(BF16, 3, 5, 37), a(I64, 3, 5), 1000, -1, False)
    assert back == Needs(15 * 37, 2 * 15 * 37 + 8 * 15 + 2 * 37000, "bf16")


def test_a_loss_reads_one_element_of_each_row() -> None:
    x, target = a(F32, 129, 1000), a(I64, 129)
    forward = traced("nll_loss_forward", x, target, None, 1, -100)
    assert forward == Needs(129, 12 * 129 + 8, "fp32")
    back = traced("nll_loss_backward", a(F32), x, target, None, 1, -100, a(F32))
    assert back == Needs(0, 4 * 129000 + 8 * 129 + 8, "fp32")


def test_elements() -> None:
    x, row, n = a(BF16, 3, 1, 7), a(BF16, 5, 1), 3 * 5 * 7
    assert traced("add", x, row, 1) == Needs(n, 2 * (21 + 5 + n), "bf16")
    assert traced("add", x, row, 2) == Needs(2 * n, 2 * (21 + 5 + n), "bf16")
    assert traced("mul_", a(F32, 3, 5, 7), row) == Needs(n, 4 * 2 * n + 2 * 5, "fp32")
    assert traced("gelu", x, "none") == Needs(0, 4 * 21, "bf16")
    assert traced("gt", x, 0) == Needs(0, 3 * 21, "bf16")
    assert traced("where", a("bool", 5, 1), x, a(BF16)) == Needs(0, 5 + 42 + 2 + 2 * n, "bf16")
    assert traced("copy_", a(BF16, 7, 5), a(F32, 7, 1), False) == Needs(0, 2 * 35 + 28, "fp32")
    assert traced("fill_", x, 0) == Needs(0, 42, "bf16")
    assert traced("native_dropout", x, 0.1, True) == Needs(42, 2 * 42 + 21, "bf16")
    assert traced("silu_backward", x, x) == Needs(0, 3 * 42, "bf16")


def test_types_of_results() -> None:
    whole, half, single = a("int", 9), a(F16, 9), a(F32, 9)
    assert traced("div", whole, 2) == Needs(9, 9 * 8, "int32")
    assert traced("mul", whole, 2.5) == Needs(9, 9 * 8, "int32")
    assert traced("mul", half, a(BF16, 9)) == Needs(9, 9 * 8, "fp16")
    assert traced("mul", half, a(F32)) == Needs(9, 9 * 4 + 4, "fp16")
    assert traced("mul", half, a("double")) == Needs(9, 9 * 4, "fp16")  # a number of Python
    assert traced("add", half, single, 1) == Needs(9, 9 * (2 + 4 + 4), "fp16")
    assert traced("_to_copy", single, 15) == Needs(0, 9 * 6, "fp32")


def test_results_and_expanded_arguments_are_counted_as_they_are_in_memory() -> None:
    out = work_of("aten::mul", [[9], [9], [9]], [F32] * 3, [""] * 3)
    assert out == Needs(9, 4 * 27, "fp32")
    strides = [[0, 1], [7, 1]]
    wide = work_of("aten::mul", [[5, 7], [5, 7]], [F32] * 2, ["", ""], strides)
    assert wide == Needs(35, 4 * (7 + 35 + 35), "fp32")


def test_reductions() -> None:
    x = a(BF16, 3, 5, 7)
    assert traced("sum", x, None) == Needs(105, 212, "bf16")
    assert traced("sum", x, [-2], True, None) == Needs(105, 210 + 42, "bf16")
    assert traced("sum", x, [0, 2], False, 6) == Needs(105, 210 + 20, "bf16")
    assert traced("mean", x, [0], False, None) == Needs(105, 210 + 70, "bf16")
    assert traced("linalg_vector_norm", x, 2, None, False, None) == Needs(210, 212, "bf16")
    assert traced("max", x, 1, False) == Needs(105, 210 + 21 * 10, "bf16")
    assert traced("max", x) == Needs(105, 212, "bf16")
    assert traced("max", x, x) == Needs(105, 630, "bf16")
    assert work_of("aten::sum", [[3, 5], [], [], []], [F32, "ScalarList", "Scalar", ""], []) is None


def test_lists_of_tensors() -> None:
    shapes = [[3, 5], [7]]
    lists = work_of(
        "aten::_foreach_add_", [shapes, shapes, []], [LIST, LIST, "Scalar"], ["", "", "2"]
    )
    assert lists == Needs(2 * 22, None, "")
    cat = work_of("aten::cat", [shapes, []], [LIST, "Scalar"], ["", "0"])
    assert cat == Needs(0, None, "")
    known = [Tensor((3, 5), "float32"), Tensor((7,), "float32")]
    assert modelled(Operation("aten::_foreach_mul_", [known, 0.5])) == Needs(22, 2 * 88, "fp32")
    assert modelled(Operation("aten::_foreach_norm", [known, 2, None])) == Needs(44, 88 + 8, "fp32")
    assert modelled(Operation("aten::cat", [known, 0])) == Needs(0, 2 * 88, "fp32")


def test_optimizers() -> None:
    weights, steps = [Tensor((3, 5), "float32")], [Tensor((), "float32")]
    settings = [1e-3, 0.9, 0.999, 0.01, 1e-8, False, False, None, None]
    adam = Operation(
        "aten::_fused_adamw_", [weights, weights, weights, weights, [], steps, *settings]
    )
    # Parameters and both moments are read and written; gradients and steps are read.
    assert modelled(adam) == Needs(14 * 15, 4 * (15 * 7 + 1), "fp32")
    scaled = [*settings[:-2], Tensor((), "float32"), Tensor((), "float32")]
    with_scale = Operation("aten::_fused_adam_", [*[weights] * 4, [], steps, *scaled])
    assert modelled(with_scale) == Needs(16 * 15, 4 * (15 * 8 + 3), "fp32")
    plain = [0, 0.0, 0.1, 0, False, False, True, None, None]
    assert modelled(Operation("aten::_fused_sgd_", [weights, weights, [], *plain])) == Needs(
        30, 4 * 45, "fp32"
    )
    momentum = [0, 0.9, 0.1, 0, False, False, False, None, None]
    assert modelled(
        Operation("aten::_fused_sgd_", [weights, weights, weights, *momentum])
    ) == Needs(60, 4 * 75, "fp32")


def test_the_real_results_decide_if_they_are_known() -> None:
    x = Tensor((9,), "float16")
    results = [Tensor((9,), "float32"), Tensor((64,), "uint8")]
    assert modelled(Operation("aten::silu", [x], results)) == Needs(0, 18 + 36, "fp16")
    table, places = Tensor((50, 7), "float32"), [Tensor((3,), "int64")]
    assert modelled(
        Operation("aten::index", [table, places], [Tensor((3, 7), "float32")])
    ) == Needs(0, 24 + 2 * 84, "fp32")


def test_views_do_nothing() -> None:
    assert traced("view", a(F32, 9), [3, 3]) == traced("t", a(F32, 3, 3)) == Needs(0, 0)


def test_nothing_is_guessed() -> None:
    x = a(F32, 3, 5)
    assert traced("_cudnn_rnn", x) is None
    assert work_of("mine::mm", [[3, 5], [5, 7]], [F32, F32], ["", ""]) is None
    assert traced("mm", x, x) is None
    assert traced("add", x, a(F32, 4, 5), 1) is None
    assert traced("convolution", x, x, None, [1], [0], [1], False, [0], 1) is None
    assert traced("conv1d", a(F32, 1, 2, 3), a(F32, 1, 2, 5)) is None  # a filter that is too large
    assert traced("mm", a("c10::complex<float>", 3, 5), a("c10::complex<float>", 5, 7)) == Needs(
        None, 8 * (15 + 35 + 21), "fp32"
    )
    assert traced("relu", a("c10::quint8", 9)) == Needs(9, None, "")
    with pytest.raises(ValueError, match="mm has a rule"):
        rule("mm")(lambda call: None)
    assert traced("mm", a(F32, 3, 5)) is None
    assert traced("bernoulli", x) is None  # that reads x, and the one in place does not


SHAPE = st.lists(st.integers(0, 5), max_size=4)
ARGUMENT: st.SearchStrategy[tuple[str, list[Any], str]] = st.one_of(
    st.tuples(st.sampled_from([F32, BF16, I64, "bool", "odd"]), SHAPE, st.just("")),
    st.tuples(st.just(LIST), st.lists(SHAPE, max_size=3), st.just("")),
    st.tuples(
        st.sampled_from(["Scalar", "ScalarList", ""]),
        st.just([]),
        st.sampled_from(["", "0", "1", "-1", "True", "[0, 1]", "[]", "[True, False]", "inf", "x["]),
    ),
)
NAMES = sorted(RULES) + [f"_foreach_{name}" for name in ("add", "copy", "norm", "mm")]


@given(st.sampled_from(NAMES), st.sampled_from(["", "_"]), st.lists(ARGUMENT, max_size=16))
def test_whatever_a_trace_says_is_work_or_none(name: str, sign: str, given_: list[Any]) -> None:
    kinds, shapes, values = zip(*given_, strict=True) if given_ else ((), (), ())
    work = work_of(f"aten::{name}{sign}", list(shapes), list(kinds), list(values))
    for number in (work.flops, work.bytes) if work else ():
        assert number is None or number >= 0


def test_pytorch_is_not_imported_for_it() -> None:
    code = "import sys, rooflab.programs.watch as w; assert 'torch' not in sys.modules\n"
    code += "watch = w.OperationWatch(print, print, modules=True)\n"
    code += "with watch: pass\nassert not watch.calls and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
