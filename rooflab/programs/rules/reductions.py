"""Reductions, along some dimensions or all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rooflab.programs.rules.base import RULES, Model, Operation, each, like, rule
from rooflab.programs.tensors import MISSING, Tensor, type_of


@dataclass(frozen=True, slots=True)
class Reduction:
    """``flops`` of an element. ``kinds`` are the types of the results; an empty one is that of the
    argument."""

    flops: int
    kinds: tuple[str, ...] = ("",)


_NORMS: Final = "norm linalg_vector_norm"

REDUCTIONS: Final[dict[str, Reduction]] = {
    **each("sum nansum mean prod amax amin", Reduction(1)),
    **each("argmax argmin", Reduction(1, ("int64",))),
    **each("any all", Reduction(0, ("bool",))),
    **each("count_nonzero", Reduction(0, ("int64",))),
    **each(_NORMS, Reduction(2)),
    **each("var std", Reduction(4)),  # a mean, differences, squares and their sum
    **each("var_mean std_mean", Reduction(4, ("", ""))),
    **each("logsumexp", Reduction(4)),  # a maximum, differences, exponentials and their sum
}


def _left(shape: Sequence[int], dims: Any) -> tuple[int, ...]:
    """The sizes that are left, without those of 1."""
    if dims is MISSING:
        raise ValueError("dimensions are not known")
    if dims is None or isinstance(dims, (bool, str)) or dims == []:
        return ()
    gone = {dim % len(shape) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}
    return tuple(size for i, size in enumerate(shape) if i not in gone)


@rule(*REDUCTIONS.keys() - _NORMS.split(), takes="x | dims keepdim kind")
@rule(*_NORMS.split(), takes="x | p dims keepdim kind")
def _reduced(
    call: Operation, x: Tensor, dims: Any = None, keepdim: Any = ..., kind: Any = None, **_: Any
) -> Model:
    """``sum(x, dtype)`` has a type where the dimensions are in ``sum(x, dims, keepdim, dtype)``."""
    what = REDUCTIONS[call.base]
    if call.base in ("sum", "mean", "nansum", "prod") and keepdim is ...:
        dims, kind = None, dims
    whole = call.base in ("sum", "prod", "nansum") and ("int" in x.type or x.type == "bool")
    kinds = [one or type_of(kind) or ("int64" if whole else x.type) for one in what.kinds]
    left = _left(x.shape, dims)
    return Model(what.flops * x.elements, [x], call.made(*(Tensor(left, one) for one in kinds)))


@rule("max", "min")
def _extreme(call: Operation, x: Tensor, other: Any = None, *_: Any) -> Model | None:
    """Of all elements; along a dimension, with its index; or of two tensors."""
    if isinstance(other, Tensor):
        name = f"aten::{call.base}imum"
        return RULES[call.base + "imum"](Operation(name, [x, other], call.results), x, other)
    left = Tensor(_left(x.shape, other), x.type)
    made = [left] if other is None else [left, like(left, "int64")]
    return Model(x.elements, [x], call.made(*made))


@rule("cumsum", "cumprod")
def _scan(call: Operation, x: Tensor, dim: Any, kind: Any = None, *_: Any) -> Model:
    """One operation for each element, as in one after the other."""
    whole = "int64" if "int" in x.type or x.type == "bool" else ""
    return Model(x.elements, [x], call.made(like(x, type_of(kind) or whole)))
