"""Optimizers whose step is one operation, in place on lists of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflab.programs.rules.base import Model, Operation, rule
from rooflab.programs.tensors import Tensor, tensors


def _step(
    each: int, changed: Sequence[Sequence[Tensor]], read: Sequence[Any], scaled: Sequence[Any]
) -> Model:
    """``scaled`` are a scale and a flag; with a scale, gradients are divided by it and written."""
    lists = [one for one in changed if one]
    parameters, (grads, *_) = lists[0], read
    unscaled = tensors(scaled[:1])
    writes = [*tensors(lists), *(grads if unscaled else [])]
    flops = (each + bool(unscaled)) * sum(one.elements for one in parameters)
    return Model(flops, [*tensors(lists), *tensors(read), *tensors(scaled)], writes)


@rule("_fused_adam", "_fused_adamw")
def _adam(
    call: Operation,
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    means: Sequence[Tensor],
    squares: Sequence[Tensor],
    highest: Sequence[Tensor],
    steps: Sequence[Tensor],
    rate: Any,
    beta1: Any,
    beta2: Any,
    decay: Any,
    epsilon: Any,
    *more: Any,
) -> Model:
    """Three FLOPs for the mean of gradients, four for that of squares, three for the denominator,
    three for the parameter; and weight decay, one in AdamW, two in Adam (Loshchilov & Hutter,
    "Decoupled Weight Decay Regularization", 2019, algorithm 2). AMSGrad adds a maximum.
    """
    decayed = 0 if decay == 0 else 1 if call.base == "_fused_adamw" else 2
    changed = [parameters, means, squares, highest]
    scaled = more[2:4]
    return _step(13 + decayed + bool(highest), changed, [grads, steps, rate], scaled)


@rule("_fused_sgd")
def _sgd(
    call: Operation,
    parameters: Sequence[Tensor],
    grads: Sequence[Tensor],
    buffers: Sequence[Tensor],
    decay: Any,
    momentum: Any,
    rate: Any,
    dampening: Any,
    nesterov: Any,
    maximize: Any = False,
    first: Any = False,
    *scaled: Any,
) -> Model:
    """Two FLOPs each for the parameter, weight decay, momentum and Nesterov's momentum.

    In its first step a buffer is only written.
    """
    parts = 1 + (decay != 0) + bool(buffers) + (nesterov is True)
    model = _step(2 * parts, [parameters, buffers], [grads, rate], scaled)
    if first is not True or not buffers:
        return model
    fresh = {id(one) for one in buffers}
    return Model(model.flops, [one for one in model.reads if id(one) not in fresh], model.writes)
