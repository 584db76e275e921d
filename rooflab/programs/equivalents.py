"""Which problem of a workload a call of PyTorch's operations is, if it is exactly that one. Pure.

Then kernels that are measured with ``rooflab sweep`` do the same as those that the call launches:
with operands of the same sizes, types and order in memory. Results in place and views of a part of
a tensor are other problems, and so is attention that keeps sums for gradients. ``epsilon`` of a
norm is left at its default, because the time does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.model.problem import Problem
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import Tensor
from rooflab.workloads import build

Parameters = tuple[str, Tensor, dict[str, int | str]]
"""A workload, a tensor of its precision, and its parameters."""

Equivalent = Callable[..., Parameters | None]
"""Takes an operation's arguments in the order of its schema."""


def equivalent(call: Operation) -> Problem | None:
    """The problem of a call; raises what a rule raises if its arguments are others."""
    find = _KNOWN.get(call.name.removeprefix("aten::"))
    found = find(*call.arguments) if find else None
    if found is None:
        return None
    workload, tensor, parameters = found
    if tensor.precision not in _TYPES or not all(map(_plain, (call.results or ())[:1])):
        return None
    try:
        return build(workload, tensor.precision, parameters)
    except UsageError:  # such as an extent of 0
        return None


_TYPES: Final = ("fp64", "fp32", "fp16", "bf16", "int32", "int64")
"""Precisions with one type for inputs and results."""


# In memory ---------------------------------------------------------------------------------------


def _dense(one: Tensor, order: Sequence[int]) -> bool:
    """Whether elements are without gaps, in the order of these dimensions, the slowest first."""
    if len(one.strides) != len(one.shape) or not one.elements:
        return False
    wide = [i for i in order if one.shape[i] > 1]
    steps = [(one.strides[i], one.shape[i]) for i in wide]
    inner = not steps or steps[-1][0] == 1
    return inner and all(a == b * size for (a, _), (b, size) in pairwise(steps))


def _plain(one: Tensor) -> bool:
    """Whether it is row-major; a result whose strides are not known is."""
    return not one.strides or _dense(one, range(len(one.shape)))


def _rows(one: Tensor) -> bool:
    """Whether it is known to be row-major."""
    return bool(one.strides or not one.shape) and _plain(one)


def _order(one: Tensor) -> str:
    """``n`` for a row-major matrix, ``t`` for one stored transposed, or a batch of them."""
    *batch, row, column = range(len(one.shape))
    if _dense(one, [*batch, row, column]):
        return "n"
    return "t" if _dense(one, [*batch, column, row]) else ""


# Operations --------------------------------------------------------------------------------------


def _product(a: Tensor, b: Tensor, *_: Any) -> Parameters | None:
    *batch, m, k = a.shape
    layout = _order(a) + _order(b)
    if len(layout) != 2 or a.type != b.type or b.shape[:-1] != (*batch, k):
        return None
    sizes = {"m": m, "n": b.shape[-1], "k": k, "batch": prod(batch)}
    return "gemm", a, {**sizes, "layout": layout}


def _linear(x: Tensor, weight: Tensor, bias: Any = None, *_: Any) -> Parameters | None:
    n, k = weight.shape
    sizes: dict[str, int | str] = {"m": x.elements // k, "n": n, "k": k}
    if not _rows(x) or not _rows(weight) or x.type != weight.type:
        return None
    if bias is None:
        return "gemm", x, {**sizes, "layout": "nt"}
    return ("linear", x, sizes) if _each(bias, n, x) else None


def _each(one: Any, columns: int, like: Tensor) -> bool:
    """Whether it has a number for each column."""
    fits = isinstance(one, Tensor) and (one.shape, one.type) == ((columns,), like.type)
    return fits and _rows(one)


def _added(
    bias: Tensor, x: Tensor, weight: Tensor, beta: Any = 1, alpha: Any = 1, *_: Any
) -> Parameters | None:
    """A linear layer, whose weights are seen transposed."""
    product = _product(x, weight)
    if not product or product[2]["layout"] != "nt" or (beta, alpha) != (1, 1):
        return None
    sizes = {name: product[2][name] for name in "mnk"}
    return ("linear", x, sizes) if _each(bias, weight.shape[-1], x) else None


def _added_and_gelu(
    bias: Tensor, x: Tensor, weight: Tensor, beta: Any = 1, alpha: Any = 1, gelu: Any = False
) -> Parameters | None:
    found = _added(bias, x, weight, beta, alpha)
    return (*found[:2], {**found[2], "epilogue": "gelu"}) if found and gelu is True else None


def _vector(a: Tensor, x: Tensor, *_: Any) -> Parameters | None:
    if not _rows(a) or not _rows(x) or a.type != x.type:
        return None
    return "gemv", a, {"m": a.shape[0], "n": a.shape[1]}


def _in_rows(workload: str, x: Tensor, *vectors: Any) -> Parameters | None:
    """With vectors that have a number for each column."""
    columns = x.shape[-1]
    if not _rows(x) or not all(_each(one, columns, x) for one in vectors):
        return None
    return workload, x, {"rows": prod(x.shape[:-1]), "columns": columns}


def _softmax(x: Tensor, dim: Any, other_type: Any = None, *_: Any) -> Parameters | None:
    last = dim in (-1, len(x.shape) - 1)
    return _in_rows("softmax", x) if last and other_type in (None, False) else None


def _rms_norm(x: Tensor, _: Any, weight: Any = None, *__: Any) -> Parameters | None:
    return _in_rows("rmsnorm", x, weight)


def _layer_norm(x: Tensor, _: Any, weight: Any, bias: Any, *__: Any) -> Parameters | None:
    return _in_rows("layernorm", x, weight, bias)


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Any,
    sums: Any,
    dropout: Any = 0,
    causal: Any = False,
    *more: Any,
) -> Parameters | None:
    """A scale comes last. Causal queries are those of all keys."""
    batch, heads, queries, size = q.shape
    kv_heads, keys = k.shape[1:3]
    scales = (None, False, size**-0.5)  # or, before it, whether random numbers are returned
    if bias is not None or sums is not False or dropout != 0 or not set(more) <= {*scales}:
        return None
    same = k.shape == v.shape == (batch, kv_heads, keys, size) and q.type == k.type == v.type
    if not same or not all(map(_rows, (q, k, v))) or causal not in (True, False):
        return None
    if causal and queries != keys:
        return None
    heads_of = {"heads": heads, "kv_heads": kv_heads, "head_size": size, "batch": batch}
    masked = {"causal": "on" if causal else "off"}
    return "attention", q, {"queries": queries, "keys": keys, **heads_of, **masked}


def _add(a: Tensor, b: Any, alpha: Any = 1, *_: Any) -> Parameters | None:
    if not isinstance(b, Tensor) or (a.shape, a.type) != (b.shape, b.type) or alpha != 1:
        return None
    return ("add", a, {"columns": a.elements}) if _rows(a) and _rows(b) else None


def _sum(x: Tensor, other_type: Any = None, *more: Any) -> Parameters | None:
    if other_type is not None or more or not _rows(x):
        return None
    return "sum", x, {"elements": x.elements}


_KNOWN: Final[dict[str, Equivalent]] = {
    "mm": _product,
    "bmm": _product,
    "linear": _linear,
    "addmm": _added,
    "_addmm_activation": _added_and_gelu,
    "mv": _vector,
    "_softmax": _softmax,
    "softmax": _softmax,
    "_fused_rms_norm": _rms_norm,
    "rms_norm": _rms_norm,
    "native_layer_norm": _layer_norm,
    "layer_norm": _layer_norm,
    "_scaled_dot_product_cudnn_attention": _attention,
    "_scaled_dot_product_efficient_attention": _attention,
    "add": _add,
    "sum": _sum,
}
