"""Attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from rooflab.programs.rules.base import Model, Operation, like, rule, statistics
from rooflab.programs.tensors import MISSING, Tensor, tensors


def _attention(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Any,
    bias: Any = None,
    grad: Tensor | None = None,
    saved: Sequence[Any] = (),
    of_bias: bool = False,
    heads_at: int = 1,
    known: bool = True,
) -> Model:
    """Q·Kᵀ and P·V; backward Q·Kᵀ again, and the products of four gradients.

    Shapes are batch, heads, length and head dimension, or have the heads third. As in
    ``torch.utils.flop_counter``, K and V may have fewer heads than Q. Of causal attention over
    itself a kernel needs half of each product, and half is counted if the arguments say so (Dao et
    al., "FlashAttention", 2022, and its benchmarks); if lengths differ, or it is not known to be
    causal, all of it. ``known`` is false for sequences of several lengths in one tensor, whose
    lengths are on the device: their FLOPs are None.
    """
    flops: int | None = None
    if known:
        batch, heads, length = q.shape[0], q.shape[heads_at], q.shape[3 - heads_at]
        others, d, dv = k.shape[3 - heads_at], q.shape[3], v.shape[3]
        if k.shape[3] != d or v.shape[3 - heads_at] != others or heads % k.shape[heads_at]:
            raise ValueError("no attention")
        products = 3 * d + 2 * dv if grad else d + dv
        flops = 2 * batch * heads * length * others * products
        flops //= 2 if causal is True and length == others else 1
    if grad:
        made = [q, k, v, *([bias] if of_bias and isinstance(bias, Tensor) else [])]
        reads = tensors([grad, q, k, v, bias, *saved])
        return Model(flops, reads, [like(one) for one in made], [q])
    out = Tensor((*q.shape[:-1], v.shape[-1]), q.type)
    sums = statistics(q, prod(q.shape[:-1]))
    return Model(flops, tensors([q, k, v, bias]), call.made(out, sums), [q])


@rule("_scaled_dot_product_flash_attention")
def _flash(call: Operation, q: Tensor, k: Tensor, v: Tensor, *more: Any) -> Model:
    """``dropout_p`` and ``is_causal`` follow, in FP8 after three scales."""
    settings = more if not _scales(more) else more[3:]
    return _attention(call, q, k, v, causal=_at(settings, 1))


def _scales(more: Sequence[Any]) -> bool:
    return any(isinstance(one, Tensor) for one in more[:3])


@rule("_scaled_dot_product_flash_attention_for_cpu")
def _flash_for_cpu(
    call: Operation, q: Tensor, k: Tensor, v: Tensor, dropout: Any, causal: Any, mask: Any, *_: Any
) -> Model:
    return _attention(call, q, k, v, causal=causal, bias=mask)


@rule("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention")
def _efficient(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    sums: Any,
    dropout: Any = 0,
    causal: Any = MISSING,
    *_: Any,
) -> Model:
    return _without_sums(_attention(call, q, k, v, causal=causal, bias=bias), sums)


def _without_sums(model: Model, sums: Any) -> Model:
    """``compute_log_sumexp`` is false where no gradient is needed."""
    if sums is not False:
        return model
    return Model(model.flops, model.reads, model.writes[:1], model.main)


@rule("_scaled_dot_product_fused_attention_overrideable")
def _overrideable(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any = None,
    dropout: Any = 0,
    causal: Any = MISSING,
    *_: Any,
) -> Model:
    return _attention(call, q, k, v, causal=causal, bias=bias)


@rule("_flash_attention_forward")
def _flash_forward(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Any,
    causal: Any,
    debug: Any,
    *more: Any,
) -> Model:
    """Heads are third here. A window and a table of blocks leave out what is not known."""
    known = not tensors([starts_q, starts_k]) and not _windowed(more[3 if _scales(more) else 0 :])
    return _attention(call, q, k, v, causal=causal, heads_at=2, known=known)


def _windowed(more: Sequence[Any]) -> bool:
    """``scale``, the sides of the window, and lengths that the device knows."""
    sides = any(type(one) is int and one >= 0 for one in more[1:3])
    return sides or bool(tensors([_at(more, 3), _at(more, 5)]))


@rule("_efficient_attention_forward")
def _efficient_forward(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Any,
    mask: Any,
    sums: Any = MISSING,
    *more: Any,
) -> Model:
    """``custom_mask_type`` is 0 for none, 1 and 2 for causal. ``scale``, lengths, window follow."""
    known = not tensors([starts_q, starts_k, _at(more, 1)]) and not _positive(_at(more, 2))
    model = _attention(call, q, k, v, causal=_masked(mask), bias=bias, heads_at=2, known=known)
    return _without_sums(model, sums)


def _masked(mask: Any) -> Any:
    return MISSING if mask is MISSING else mask in (1, 2)


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


@rule("_cudnn_attention_forward")
def _cudnn_forward(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    sums: Any,
    dropout: Any = 0,
    causal: Any = MISSING,
    *_: Any,
) -> Model:
    known = not tensors([starts_q, starts_k])
    return _without_sums(_attention(call, q, k, v, causal=causal, bias=bias, known=known), sums)


@rule("_scaled_dot_product_flash_attention_backward")
def _flash_backward(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Any,
    causal: Any,
    *_: Any,
) -> Model:
    return _attention(call, q, k, v, grad=grad, saved=[out, sums], causal=causal)


@rule("_scaled_dot_product_flash_attention_for_cpu_backward")
def _flash_for_cpu_backward(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    dropout: Any,
    causal: Any,
    mask: Any = None,
    *_: Any,
) -> Model:
    return _attention(call, q, k, v, grad=grad, saved=[out, sums], causal=causal, bias=mask)


@rule("_flash_attention_backward")
def _flash_backward_inside(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Any,
    causal: Any,
    state: Any,
    unused: Any,
    *more: Any,
) -> Model:
    """Without sequences of several lengths, a tensor of their starts is empty or absent."""
    known = len(q.shape) == 4 and not _filled([starts_q, starts_k]) and not _windowed(more[:3])
    return _attention(
        *(call, q, k, v),
        grad=grad,
        saved=[out, sums],
        causal=causal,
        heads_at=2,
        known=known,
    )


def _filled(starts: Sequence[Any]) -> bool:
    return any(one.elements for one in tensors(starts) if one.shape)


@rule("_scaled_dot_product_efficient_attention_backward")
def _efficient_backward(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    out: Tensor,
    sums: Tensor,
    seed: Any,
    offset: Any,
    dropout: Any,
    mask: Any,
    causal: Any = MISSING,
    *_: Any,
) -> Model:
    if mask is MISSING:
        raise ValueError("which gradients are wanted is not known")
    saved = [out, sums]
    return _attention(
        call, q, k, v, grad=grad, saved=saved, causal=causal, bias=bias, of_bias=mask[3]
    )


@rule("_efficient_attention_backward")
def _efficient_backward_inside(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    out: Tensor,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    sums: Tensor,
    dropout: Any,
    seed: Any,
    offset: Any,
    mask: Any,
    of_bias: Any,
    *more: Any,
) -> Model:
    """``scale``, a number of splits and the window follow."""
    return _attention(
        *(call, q, k, v),
        grad=grad,
        saved=[out, sums],
        causal=_masked(mask),
        bias=bias,
        of_bias=of_bias is True,
        heads_at=2,
        known=not _filled([starts_q, starts_k]) and not _positive(_at(more, 2)),
    )


@rule("_scaled_dot_product_cudnn_attention_backward", "_cudnn_attention_backward")
def _cudnn_backward(
    call: Operation,
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    sums: Tensor,
    seed: Any,
    offset: Any,
    bias: Any,
    starts_q: Any,
    starts_k: Any,
    max_q: Any,
    max_k: Any,
    dropout: Any,
    causal: Any,
    *_: Any,
) -> Model:
    known = not _filled([starts_q, starts_k])
    saved = [out, sums]
    return _attention(call, q, k, v, grad=grad, saved=saved, causal=causal, bias=bias, known=known)


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
