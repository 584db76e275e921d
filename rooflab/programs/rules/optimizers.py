"""Optimizers whose step is one operation, in place on lists of tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rooflab.programs.rules.base import Model, Operation, rule
from rooflab.programs.tensors import tensors

_CHANGED = ("parameters", "means", "squares", "highest", "buffers")
_READ = ("grads", "steps", "rate")


def _step(each: int, given: Mapping[str, Any], scaled: Sequence[Any]) -> Model:
    """``scaled`` are a scale and a flag; with a scale, gradients are divided by it and written."""
    changed = [given[name] for name in _CHANGED if given.get(name)]
    read = [given.get(name) for name in _READ]
    unscaled = tensors(scaled[:1])
    writes = [*tensors(changed), *(given["grads"] if unscaled else [])]
    flops = (each + bool(unscaled)) * sum(one.elements for one in changed[0])
    return Model(flops, [*tensors(changed), *tensors(read), *tensors(scaled)], writes)


@rule(
    *("_fused_adam", "_fused_adamw"),
    takes="parameters grads means squares highest steps rate beta1 beta2 decay epsilon",
)
def _adam(call: Operation, decay: Any, more: Sequence[Any], **given: Any) -> Model:
    """Three FLOPs for the mean of gradients, four for that of squares, three for the denominator,
    three for the parameter; and weight decay, one in AdamW, two in Adam (Loshchilov & Hutter,
    "Decoupled Weight Decay Regularization", 2019, algorithm 2). AMSGrad adds a maximum.
    """
    decayed = 0 if decay == 0 else 1 if call.base == "_fused_adamw" else 2
    return _step(13 + decayed + bool(given["highest"]), given, more[2:4])


@rule(
    "_fused_sgd",
    takes="parameters grads buffers decay momentum rate dampening nesterov | maximize first",
)
def _sgd(
    call: Operation, decay: Any, more: Sequence[Any], first: Any = False, **given: Any
) -> Model:
    """Two FLOPs each for the parameter, weight decay, momentum and Nesterov's momentum.

    In its first step a buffer is only written.
    """
    buffers = given["buffers"]
    parts = 1 + (decay != 0) + bool(buffers) + (given["nesterov"] is True)
    model = _step(2 * parts, given, more)
    if first is not True or not buffers:
        return model
    fresh = {id(one) for one in buffers}
    return Model(model.flops, [one for one in model.reads if id(one) not in fresh], model.writes)
