"""Softmax, norms, embeddings and losses.

FLOPs of each element: a softmax has a comparison, a subtraction, an exponential, an addition and a
scaling. A norm has an addition to the mean, a subtraction, a square, an addition to the variance
and a scaling; an RMS norm lacks the first two; a weight and a bias have one each. Backward passes
of norms have no such definition, and no FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from rooflab.model.traffic import LongRows
from rooflab.programs.rules.base import Model, Operation, like, rule, statistics
from rooflab.programs.tensors import MISSING, Tensor, tensors, type_of


@rule("_softmax", "_log_softmax", takes="x dim | to_float")
@rule("softmax", "log_softmax", takes="x dim | kind")
def _softmax(
    call: Operation, x: Tensor, dim: int, to_float: Any = False, kind: Any = None, **_: Any
) -> Model:
    """Of a long row PyTorch reads the input for its maximum, for the sum, and for the result."""
    out = like(x, "float32" if to_float is True else type_of(kind))
    again = _long_rows(x, dim, [x, out], [x, x])
    return Model(5 * x.elements, [x], call.made(out), once=not again, again=again)


@rule("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(
    call: Operation, grad: Tensor, out: Tensor, dim: Any, kind: Any = None, *_: Any
) -> Model:
    """y·(g - Σ g·y), and g - exp(y)·Σ g: a long row is read for the sum, and for the result."""
    made, given = like(grad, type_of(kind)), [grad, out]
    summed = [grad] if "log" in call.base else given
    again = _long_rows(grad, dim, [*given, made], summed)
    return Model(4 * grad.elements, given, call.made(made), once=not again, again=again)


SHARED_BYTES = 48 * 1024
"""PyTorch keeps a row that fits in so much shared memory."""


def _long_rows(
    x: Tensor, dim: int, moved: Sequence[Tensor], again: Sequence[Tensor]
) -> LongRows | None:
    """None if a row stays on the chip, or that is not known."""
    length = x.shape[dim]
    row = [(one.bytes or 0) * length // max(1, one.elements) for one in (x, *moved, *again)]
    if dim % len(x.shape) != len(x.shape) - 1 or row[0] <= SHARED_BYTES or 0 in row:
        return None
    count = 1 + len(moved)
    return LongRows(x.elements // length, sum(row[1:count]), sum(row[count:]))


# Norms -------------------------------------------------------------------------------------------


@rule("native_layer_norm", "layer_norm", takes="x normalized | weight bias")
@rule("_fused_rms_norm", "rms_norm", takes="x normalized | weight")
@rule("native_group_norm", takes="x weight bias n channels hxw groups")
@rule("group_norm", takes="x groups | weight bias")
def _norm(
    call: Operation,
    x: Tensor,
    normalized: Any = None,
    groups: Any = None,
    weight: Any = None,
    bias: Any = None,
    **_: Any,
) -> Model:
    """A mean and a scale are kept, of an RMS norm the scale: of each row, or of groups."""
    rms = "rms" in call.base
    if groups is not None:
        kept = statistics(x, x.shape[0], groups)
    else:
        row = weight.shape if normalized in (MISSING, None) else map(int, normalized)
        kept = statistics(x, x.elements // max(1, prod(row)))
    given = tensors([weight, bias])
    flops = ((3 if rms else 5) + len(given)) * x.elements
    return Model(flops, [x, *given], call.made(like(x), *[kept] * (1 if rms else 2)), [x])


@rule(
    *("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm", "batch_norm"),
    takes="x weight bias mean | variance training",
)
@rule("_batch_norm_with_update", takes="x weight bias mean variance")
def _batch_norm(
    call: Operation,
    x: Tensor,
    weight: Any,
    bias: Any,
    mean: Any,
    variance: Any = None,
    training: Any = None,
    **_: Any,
) -> Model:
    """In training the running statistics change, and the batch's are saved.

    Without running statistics, ``training`` stands in their place.
    """
    if not isinstance(training, bool):
        training = call.base == "_batch_norm_with_update" or mean
    if not isinstance(training, bool):
        raise ValueError("whether it trains is not known")
    kept, given = tensors([mean, variance]), tensors([weight, bias])
    saved = [statistics(x, x.shape[1])] * 2 if training else []
    out = call.made(like(x), *saved)
    flops = ((5 if training else 2) + len(given)) * x.elements
    return Model(flops, [x, *given, *kept], [*out, *(kept if training else [])], [x])


@rule("native_layer_norm_backward", takes="grad x normalized mean scale weight bias wanted")
@rule("_fused_rms_norm_backward", takes="grad x normalized scale weight wanted")
@rule("native_group_norm_backward", takes="grad x mean scale weight n channels hxw group wanted")
@rule(
    *("native_batch_norm_backward", "batch_norm_backward"),
    takes="grad x weight running_mean running_variance mean scale training epsilon wanted",
)
@rule("cudnn_batch_norm_backward", takes="x grad weight running_mean running_variance mean scale")
def _norm_backward(
    call: Operation,
    grad: Tensor,
    x: Tensor,
    weight: Any,
    scale: Any,
    mean: Any = None,
    bias: Any = None,
    channels: Any = None,
    running_mean: Any = None,
    running_variance: Any = None,
    training: Any = True,
    wanted: Any = (True, True, True),
    **_: Any,
) -> Model:
    """``wanted`` says which gradients are: of x, the weight and the bias.

    What is saved is read; by a batch norm that did not train, the running statistics.
    """
    if wanted is MISSING:
        raise ValueError("which gradients are wanted is not known")
    used = [mean, scale] if training else [running_mean, running_variance]
    others = [] if channels is None else [Tensor((channels,), x.type)]
    if "batch_norm" in call.base:
        others = [statistics(x, x.shape[1])]
    affine = next(iter([*tensors([weight, bias]), *others]), None)
    made = [x, affine, affine][: len(wanted)]
    writes = [like(one) for has, one in zip(wanted, made, strict=True) if has and one]
    return Model(0, tensors([grad, x, weight, *used]), writes, [x])


# Embeddings and losses ---------------------------------------------------------------------------


@rule("embedding")
def _embedding(call: Operation, weight: Tensor, indices: Tensor, *_: Any) -> Model:
    """A row for each index is written; at most each row of the table is read."""
    rows, width = weight.shape
    read = Tensor((min(rows, indices.elements), width), weight.type)
    out = Tensor((*indices.shape, width), weight.type)
    return Model(0, [indices, read], call.made(out), [weight])


@rule("embedding_dense_backward")
def _embedding_backward(
    call: Operation, grad: Tensor, indices: Tensor, rows: Any, *_: Any
) -> Model:
    """The table's gradient is dense: all of it is written. One addition for each element."""
    if not isinstance(rows, int):
        raise ValueError("the rows are not known")
    out = Tensor((rows, grad.shape[-1]), grad.type)
    return Model(grad.elements, [grad, indices], call.made(out), [grad])


@rule("nll_loss_forward", "nll_loss", "nll_loss2d_forward", "nll_loss2d")
def _nll_loss(
    call: Operation,
    x: Tensor,
    target: Tensor,
    weight: Any = None,
    reduction: Any = MISSING,
    *_: Any,
) -> Model:
    """One element of each row is read; the sum of weights is a result too."""
    if not isinstance(reduction, int):
        raise ValueError("the reduction is not known")
    used = like(target, x.type)
    weights = [Tensor((min(one.elements, target.elements),), one.type) for one in tensors([weight])]
    out = used if reduction == 0 else Tensor((), x.type)
    flops = target.elements if reduction else 0
    return Model(flops, [used, target, *weights], call.made(out, Tensor((), x.type)), [x])


@rule(
    *("nll_loss_backward", "nll_loss2d_backward"),
    takes="grad x target weight reduction ignored total",
)
def _nll_loss_backward(
    call: Operation, grad: Tensor, x: Tensor, target: Tensor, weight: Any, total: Any, **_: Any
) -> Model:
    """The gradient is mostly zeros, and all of it is written; x itself is not read."""
    weights = [Tensor((min(one.elements, target.elements),), one.type) for one in tensors([weight])]
    return Model(0, [grad, target, *weights, *tensors([total])], call.made(like(x)), [x])


@rule("mse_loss")
def _mse_loss(call: Operation, x: Tensor, target: Tensor, reduction: Any = 1, *_: Any) -> Model:
    """Differences, squares and, if it is reduced, their sum."""
    if not isinstance(reduction, int):
        raise ValueError("the reduction is not known")
    out = Tensor((), x.type) if reduction else like(x)
    return Model((3 if reduction else 2) * x.elements, [x, target], call.made(out), [x])


@rule("mse_loss_backward")
def _mse_loss_backward(call: Operation, grad: Tensor, x: Tensor, target: Tensor, *_: Any) -> Model:
    """A difference, and its product with the gradient and a factor."""
    return Model(3 * x.elements, [grad, x, target], call.made(like(x)), [x])
