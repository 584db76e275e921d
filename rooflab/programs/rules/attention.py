"""Attention."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from rooflab.programs.rules.base import Model, Operation, like, rule, statistics
from rooflab.programs.tensors import MISSING, Tensor, tensors

_HEAD = "_scaled_dot_product"


@rule(f"{_HEAD}_flash_attention_for_cpu", takes="q k v dropout causal bias")
@rule(
    f"{_HEAD}_efficient_attention",
    f"{_HEAD}_cudnn_attention",
    takes="q k v bias saves | dropout causal",
)
@rule(f"{_HEAD}_fused_attention_overrideable", takes="q k v | bias dropout causal")
@rule(
    "_cudnn_attention_forward",
    takes="q k v bias starts_q starts_k max_q max_k saves | dropout causal",
)
@rule(  # its sequences are as long as its tensors, whatever their starts
    f"{_HEAD}_flash_attention_backward",
    takes="grad q k v out sums from_q from_k max_q max_k dropout causal",
)
@rule(
    f"{_HEAD}_flash_attention_for_cpu_backward", takes="grad q k v out sums dropout causal | bias"
)
@rule(
    f"{_HEAD}_cudnn_attention_backward",
    "_cudnn_attention_backward",
    takes="grad q k v out sums seed offset bias starts_q starts_k max_q max_k dropout causal",
)
def _attention(
    call: Operation,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Any = MISSING,
    bias: Any = None,
    saves: Any = True,
    grad: Tensor | None = None,
    out: Any = None,
    sums: Any = None,
    starts_q: Any = None,
    starts_k: Any = None,
    of_bias: Any = False,
    heads_at: int = 1,
    known: bool = True,
    **_: Any,
) -> Model:
    """Q·Kᵀ and P·V; backward Q·Kᵀ again, and the products of four gradients.

    Shapes are batch, heads, length and head dimension, or have the heads third. As in
    ``torch.utils.flop_counter``, K and V may have fewer heads than Q. Of causal attention over
    itself a kernel needs half of each product, and half is counted if the arguments say so (Dao et
    al., "FlashAttention", 2022, and its benchmarks); if lengths differ, or it is not known to be
    causal, all of it. ``known`` is false, or there are ``starts``, for sequences of several lengths
    in one tensor, whose lengths are on the device: their FLOPs are None. ``saves`` is false where
    no gradient is needed.
    """
    flops: int | None = None
    starts = tensors([starts_q, starts_k])
    if grad:  # where an empty tensor stands for none
        starts = [one for one in starts if one.shape and one.elements]
    if known and not starts:
        batch, heads, length = q.shape[0], q.shape[heads_at], q.shape[3 - heads_at]
        others, d, dv = k.shape[3 - heads_at], q.shape[3], v.shape[3]
        if k.shape[3] != d or v.shape[3 - heads_at] != others or heads % k.shape[heads_at]:
            raise ValueError("no attention")
        products = 3 * d + 2 * dv if grad else d + dv
        flops = 2 * batch * heads * length * others * products
        flops //= 2 if causal is True and length == others else 1
    if grad:
        made = [q, k, v, *([bias] if of_bias and isinstance(bias, Tensor) else [])]
        reads = tensors([grad, q, k, v, bias, out, sums])
        return Model(flops, reads, [like(one) for one in made], [q])
    result = Tensor((*q.shape[:-1], v.shape[-1]), q.type)
    kept = [] if saves is False else [statistics(q, prod(q.shape[:-1]))]
    return Model(flops, tensors([q, k, v, bias]), call.made(result, *kept), [q])


@rule(
    f"{_HEAD}_efficient_attention_backward",
    takes="grad q k v bias out sums seed offset dropout wanted | causal",
)
def _efficient_backward(call: Operation, wanted: Any, **given: Any) -> Model:
    return _attention(call, of_bias=wanted[3], **given)


@rule(
    "_efficient_attention_forward",
    takes="q k v bias starts_q starts_k max_q max_k dropout mask | saves",
)
@rule(
    "_efficient_attention_backward",
    takes="grad q k v bias out starts_q starts_k max_q max_k sums dropout seed offset mask of_bias",
)
def _efficient_inside(
    call: Operation, mask: Any, more: Sequence[Any], of_bias: Any = False, **given: Any
) -> Model:
    """``mask`` is 0 for none, 1 and 2 for causal. A scale, lengths or splits, and a window follow.

    Heads are third here.
    """
    causal = MISSING if mask is MISSING else mask in (1, 2)
    window = _at(more, 2)
    known = not tensors([_at(more, 1)]) and not (type(window) is int and window > 0)
    given |= {"causal": causal, "of_bias": of_bias is True, "heads_at": 2, "known": known}
    return _attention(call, **given)


@rule(f"{_HEAD}_flash_attention", takes="q k v")
def _flash(call: Operation, more: Sequence[Any], **given: Any) -> Model:
    """``dropout_p`` and ``is_causal`` follow, in FP8 after three scales."""
    return _attention(call, causal=_at(_after_scales(more), 1), **given)


@rule(
    "_flash_attention_forward",
    takes="q k v starts_q starts_k max_q max_k dropout causal debug",
)
@rule(
    "_flash_attention_backward",
    takes="grad q k v out sums starts_q starts_k max_q max_k dropout causal state unused",
)
def _flash_inside(call: Operation, q: Tensor, more: Sequence[Any], **given: Any) -> Model:
    """A scale, the sides of a window, and lengths and blocks that the device knows follow.

    A window and a table of blocks leave out what is not known. Heads are third here.
    """
    more = _after_scales(more)
    window = any(type(one) is int and one >= 0 for one in more[1:3])
    known = len(q.shape) == 4 and not window and not tensors([_at(more, 3), _at(more, 5)])
    return _attention(call, q, heads_at=2, known=known, **given)


def _after_scales(more: Sequence[Any]) -> Sequence[Any]:
    return more[3:] if any(isinstance(one, Tensor) for one in more[:3]) else more


def _at(values: Sequence[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
