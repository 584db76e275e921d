"""Which problem of a workload a call of PyTorch's operations is, if it is exactly that one. Pure.

Then kernels that are measured with ``rooflab sweep`` do the same as those that the call launches:
with operands of the same sizes, types and order in memory. Products with a bias, results in place
and views of a part of a tensor are other problems. ``epsilon`` of a norm is left at its default,
because the time does not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import prod
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.model.problem import Problem
from rooflab.programs.rules.base import Operation
from rooflab.programs.tensors import TYPES, Tensor
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
    precision = TYPES.get(tensor.type, (0, ""))[1]
    if precision not in _TYPES or not all(map(_plain, call.results or ())):
        return None
    try:
        return build(workload, precision, parameters)
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
    if bias is not None or not _rows(x) or not _rows(weight) or x.type != weight.type:
        return None
    n, k = weight.shape
    return "gemm", x, {"m": x.elements // k, "n": n, "k": k, "layout": "nt"}


def _vector(a: Tensor, x: Tensor, *_: Any) -> Parameters | None:
    if not _rows(a) or not _rows(x) or a.type != x.type:
        return None
    return "gemv", a, {"m": a.shape[0], "n": a.shape[1]}


def _softmax(x: Tensor, dim: Any, other_type: Any = None, *_: Any) -> Parameters | None:
    last = dim in (-1, len(x.shape) - 1)
    if not last or other_type not in (None, False) or not _rows(x):
        return None
    return "softmax", x, {"rows": prod(x.shape[:-1]), "columns": x.shape[-1]}


def _rms_norm(x: Tensor, _: Any, weight: Any = None, *__: Any) -> Parameters | None:
    if not isinstance(weight, Tensor) or len(weight.shape) != 1 or weight.type != x.type:
        return None
    if x.shape[-1:] != weight.shape or not _rows(x) or not _rows(weight):
        return None
    return "rmsnorm", x, {"rows": prod(x.shape[:-1]), "columns": x.shape[-1]}


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
    "mv": _vector,
    "_softmax": _softmax,
    "softmax": _softmax,
    "_fused_rms_norm": _rms_norm,
    "rms_norm": _rms_norm,
    "add": _add,
    "sum": _sum,
}
