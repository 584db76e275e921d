"""Operations on elements, of one tensor or of lists of them, and copies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final, Literal

from rooflab.programs.rules.base import RULES, Model, Operation, each, like, rule
from rooflab.programs.tensors import MISSING, Tensor, broadcast, promoted, tensors, type_of


@dataclass(frozen=True, slots=True)
class PerElement:
    """``inputs`` is how many arguments may be tensors that are read; one more is a result.

    ``kind`` is the type of the result: that of the inputs, a real one at least, or ``bool``.
    """

    flops: int = 0
    inputs: int = 1
    kind: Literal["", "real", "bool"] = ""


ELEMENTWISE: Final[dict[str, PerElement]] = {
    **each("neg relu abs square", PerElement(1)),
    **each("sqrt exp exp2 log log2 log1p log10 reciprocal", PerElement(1, kind="real")),
    **each("expm1 rsqrt", PerElement(2, kind="real")),
    **each("sin cos tan tanh sigmoid erf erfinv atan log_sigmoid", PerElement(kind="real")),
    **each("gelu silu mish softplus elu leaky_relu hardswish hardsigmoid selu", PerElement()),
    **each("clone contiguous tril triu roll flip round floor ceil trunc nan_to_num", PerElement()),
    **each("hardtanh threshold sign bitwise_not", PerElement()),
    **each("mul maximum minimum fmax fmin clamp_min clamp_max", PerElement(1, 2)),
    **each("add sub rsub", PerElement(1, 2)),
    **each("div true_divide", PerElement(1, 2, "real")),
    **each("atan2", PerElement(0, 2, "real")),
    **each("pow remainder fmod floor_divide", PerElement(0, 2)),
    **each("bitwise_and bitwise_or bitwise_xor", PerElement(0, 2)),
    **each("eq ne lt le gt ge logical_and logical_or logical_xor", PerElement(0, 2, "bool")),
    **each("isnan isinf isfinite logical_not", PerElement(0, 1, "bool")),
    **each("addcmul", PerElement(2, 3)),
    **each("addcdiv", PerElement(2, 3, "real")),
    **each("lerp", PerElement(3, 3)),
    **each("where masked_fill", PerElement(0, 3)),
    **each("clamp", PerElement(1, 3)),
    **each("gelu_backward silu_backward softplus_backward mish_backward", PerElement(0, 2)),
    **each("hardtanh_backward threshold_backward leaky_relu_backward", PerElement(0, 2)),
    **each("hardswish_backward hardsigmoid_backward", PerElement(0, 2)),
    **each("sigmoid_backward tanh_backward", PerElement(3, 2)),
    **each("elu_backward", PerElement(0, 6)),
    **each("native_dropout_backward _masked_scale", PerElement(2, 2)),
}


def _inputs(arguments: Sequence[Any], count: int) -> list[Tensor]:
    """The tensors that are read. A trace has numbers as tensors of 64 bits without dimensions."""
    given = tensors(arguments[:count])
    types = {one.type for one in given if one.type not in ("float64", "int64")}
    return [one for one in given if one.shape or one.type in types or not types]


def _scale_flops(call: Operation, arguments: Sequence[Any]) -> int:
    """A factor, as ``alpha`` of add and ``value`` of addcmul, is another multiplication."""
    at = {"add": 2, "sub": 2, "rsub": 2, "addcmul": 3, "addcdiv": 3}.get(call.base, len(arguments))
    return int(at < len(arguments) and type(arguments[at]) in (int, float) and arguments[at] != 1)


def _elementwise(call: Operation, *arguments: Any) -> Model:
    what = ELEMENTWISE[call.base]
    given = _inputs(arguments, what.inputs)
    shape = broadcast(one.shape for one in given)
    numbers = [one for one in arguments[: what.inputs] if isinstance(one, (int, float))]
    values = given[1:] if call.base == "where" else given[:1] if "fill" in call.base else given
    kind = "bool" if what.kind == "bool" else promoted(values, numbers)
    if what.kind == "real" and kind and not Tensor((), kind).floating:
        kind = "float32"
    out = Tensor(shape, kind)
    writes = tensors(arguments[:1]) if call.in_place else call.made(out)
    each = what.flops + (_scale_flops(call, arguments) if what.flops else 0)
    return Model(each * out.elements, given, writes)


rule(*ELEMENTWISE)(_elementwise)


@rule("copy")
def _copy(call: Operation, target: Tensor, source: Tensor, *_: Any) -> Model:
    """``copy_``: the target is only written."""
    return Model(0, [source], [target] if call.in_place else call.made(like(target)))


@rule("_to_copy")
def _to_copy(call: Operation, x: Tensor, kind: Any = None, *_: Any) -> Model:
    """To another type or device."""
    return Model(0, [x], call.made(like(x, type_of(kind)) if kind is not MISSING else None))


@rule("fill", "zero", "bernoulli", "normal", "uniform", "random", "exponential")
def _filled(call: Operation, target: Tensor, *_: Any) -> Model | None:
    """In place: the target is only written."""
    return Model(0, [], [target]) if call.in_place else None


@rule("zeros_like", "ones_like", "full_like", "rand_like", "randn_like")
def _made_like(call: Operation, x: Tensor, *more: Any) -> Model:
    kind = more[1] if call.base == "full_like" and len(more) > 1 else (more or (None,))[0]
    return Model(0, [], call.made(like(x, type_of(kind))))


@rule("zeros", "ones", "full", "rand", "randn", "new_zeros", "new_ones", "new_full")
def _made(call: Operation, *arguments: Any) -> Model:
    """A type that is not given is PyTorch's default, which is not known."""
    of_other = call.base.startswith("new_")
    other, (size, *more) = (arguments[0], arguments[1:]) if of_other else (None, arguments)
    kind = type_of((more[1:] if "full" in call.base else more or [None])[0])
    out = Tensor(tuple(size), kind or (other.type if other else ""))
    return Model(0, [], call.made(out))


FREE: Final = (
    "view _unsafe_view reshape _reshape_alias view_as_real view_as_complex t transpose permute "
    "movedim expand expand_as squeeze unsqueeze select slice narrow split split_with_sizes chunk "
    "unbind unfold diagonal as_strided detach alias lift_fresh flatten unflatten real imag "
    "empty empty_like empty_strided new_empty new_empty_strided resize set _conj resolve_conj "
    "resolve_neg result_type is_same_size"
)
"""What only changes how memory is seen, or allocates it."""


@rule(*FREE.split())
def _free(call: Operation, *_: Any) -> Model:
    return Model(0)


# Lists of tensors --------------------------------------------------------------------------------


@rule("cat", "stack", "concat")
def _cat(call: Operation, parts: Sequence[Tensor], *_: Any) -> Model:
    """The result is as large as all parts."""
    kind = promoted(parts)
    return Model(0, parts, call.made(Tensor((sum(one.elements for one in parts),), kind)))


def foreach(call: Operation, *arguments: Any) -> Model:
    """Of ``_foreach_`` operations: the same of each element of the lists."""
    count = len(arguments[0])
    name = call.base.removeprefix("_foreach_") + "_" * call.in_place
    lists = [
        one if isinstance(one, (list, tuple)) and len(one) == count else [one] * count
        for one in arguments
    ]
    calls = [Operation(name, values) for values in zip(*lists, strict=True)]
    found = [model for one in calls if (model := RULES[one.base](one, *one.arguments))]
    if len(found) < count:
        raise ValueError("an element is not known")
    return Model(
        sum(one.flops or 0 for one in found),
        list(chain.from_iterable(one.reads for one in found)),
        list(chain.from_iterable(one.writes for one in found)),
    )


@rule("_amp_foreach_non_finite_check_and_unscale")
def _unscaled(call: Operation, grads: Sequence[Tensor], *flags: Any) -> Model:
    """Gradients times a factor, in place."""
    return Model(sum(one.elements for one in grads), [*grads, *tensors(flags)], grads)


# Parts of tensors --------------------------------------------------------------------------------


@rule("index_select")
def _index_select(call: Operation, x: Tensor, dim: Any, index: Tensor, *_: Any) -> Model:
    if not isinstance(dim, int):
        raise ValueError("the dimension is not known")
    shape = list(x.shape)
    shape[dim] = index.elements
    out = Tensor(tuple(shape), x.type)
    return Model(0, [out, index], call.made(out), [x])


@rule("gather", "take_along_dim")
def _gather(call: Operation, x: Tensor, dim: Any, index: Tensor, *_: Any) -> Model:
    out = like(index, x.type)
    return Model(0, [out, index], call.made(out), [x])


@rule("index", "_unsafe_index")
def _index(call: Operation, x: Tensor, indices: Any, *_: Any) -> Model | None:
    """Of a trace the indices are not known, so neither is the result."""
    if call.results is None:
        return None
    (out,) = call.results
    return Model(0, [out, *tensors(indices)], [out], [x])


@rule("index_put", "_index_put_impl")
def _index_put(
    call: Operation, x: Tensor, indices: Any, values: Tensor, accumulate: Any = False, *_: Any
) -> Model | None:
    """In place; the values may be broadcast, which only the indices say."""
    if not call.in_place or not tensors(indices or []):
        return None
    places = broadcast(one.shape for one in tensors(indices))
    size = max(values.elements, Tensor(places).elements)
    changed = Tensor((size,), x.type)
    reads = [values, *tensors(indices), *([changed] if accumulate else [])]
    return Model(size if accumulate else 0, reads, [changed], [x])


@rule("scatter", "scatter_add")
def _scatter(
    call: Operation, x: Tensor, dim: Any, index: Tensor, source: Any, *_: Any
) -> Model | None:
    """In place, at as many places as there are indices."""
    if not call.in_place:
        return None
    adds = "add" in call.base
    changed = like(index, x.type)
    reads = [index, *([like(index, source.type)] if isinstance(source, Tensor) else [])]
    return Model(index.elements * adds, [*reads, *([changed] if adds else [])], [changed], [x])


@rule("slice_backward", "select_backward")
def _slice_backward(call: Operation, grad: Tensor, sizes: Any, *_: Any) -> Model:
    """Zeros around the gradient."""
    return Model(0, [grad], call.made(Tensor(tuple(sizes), grad.type)))


@rule("glu")
def _glu(call: Operation, x: Tensor, *_: Any) -> Model:
    return Model(0, [x], call.made(Tensor((x.elements // 2,), x.type)))


@rule("glu_backward")
def _glu_backward(call: Operation, grad: Tensor, x: Tensor, *_: Any) -> Model:
    return Model(0, [grad, x], call.made(like(x)))


@rule("native_dropout", "_fused_dropout")
def _dropout(call: Operation, x: Tensor, *_: Any) -> Model:
    """Times a mask and a scale; random numbers are not counted."""
    return Model(2 * x.elements, [x], call.made(like(x), like(x, "bool")))
