"""Convolutions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from rooflab.programs.rules.base import Model, Operation, like, rule
from rooflab.programs.tensors import MISSING, Tensor, tensors


def _each(value: Any, count: int) -> list[int]:
    """A setting of each dimension: PyTorch accepts one for all."""
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(values) not in (1, count) or not all(isinstance(one, int) for one in values):
        raise ValueError("a setting is not known")
    return values * count if len(values) == 1 else values


def _convolved(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    also: Sequence[Any],
    stride: Any,
    padding: Any,
    dilation: Any,
    *,
    transposed: Any = False,
    output_padding: Any = 0,
    groups: Any = 1,
) -> Model:
    """Each output, or input if it is transposed, meets each element of the filter.

    Padding is counted as if it were multiplied.
    """
    sizes, kernel = x.shape[2:], weight.shape[2:]
    if transposed is MISSING or len(sizes) != len(kernel) or not sizes:
        raise ValueError("no convolution")
    rows = zip(
        *(sizes, kernel),
        *(_each(one, len(sizes)) for one in (stride, padding, dilation, output_padding)),
        strict=True,
    )
    if transposed:
        places = tuple((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in rows)
        channels = weight.shape[1] * int(groups)
    else:
        places = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in rows)
        channels = weight.shape[0]
    out = Tensor((x.shape[0], channels, *places), x.type)
    meetings = x.shape[0] * prod(sizes if transposed else places)
    reads = tensors([x, weight, *also])
    return Model(2 * meetings * weight.elements, reads, call.made(out), [x], once=False)


@rule("convolution", "_convolution", "convolution_overrideable")
def _convolution(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    *_: Any,
) -> Model:
    return _convolved(
        *(call, x, weight, [bias], stride, padding, dilation),
        transposed=transposed,
        output_padding=output_padding,
        groups=groups,
    )


@rule("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu")
def _conv(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    *_: Any,
) -> Model:
    return _convolved(call, x, weight, [bias], stride, padding, dilation)


@rule("cudnn_convolution")
def _cudnn_convolution(
    call: Operation, x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, *_: Any
) -> Model:
    return _convolved(call, x, weight, [], stride, padding, dilation)


@rule("mkldnn_convolution")
def _mkldnn_convolution(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    bias: Any,
    padding: Any,
    stride: Any,
    dilation: Any,
    *_: Any,
) -> Model:
    return _convolved(call, x, weight, [bias], stride, padding, dilation)


@rule("cudnn_convolution_add_relu")
def _cudnn_convolution_add_relu(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    z: Tensor,
    alpha: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    *_: Any,
) -> Model:
    return _convolved(call, x, weight, [z, bias], stride, padding, dilation)


@rule("cudnn_convolution_transpose")
def _cudnn_convolution_transpose(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: Any,
    *_: Any,
) -> Model:
    return _convolved(
        *(call, x, weight, [], stride, padding, dilation),
        transposed=True,
        output_padding=output_padding,
        groups=groups,
    )


@rule("_conv_depthwise2d", "_slow_conv2d_forward", "conv_depthwise3d")
def _conv_with_kernel_size(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Any,
    stride: Any,
    padding: Any,
    dilation: Any = 1,
    *_: Any,
) -> Model:
    spread = 1 if isinstance(dilation, Tensor) else dilation  # a result that it was given
    return _convolved(call, x, weight, [bias], stride, padding, spread)


@rule("convolution_backward")
def _convolution_backward(
    call: Operation,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    transposed: Any,
    output_padding: Any,
    groups: Any,
    mask: Any,
    *_: Any,
) -> Model:
    """The gradients of x and of the weight each cost what the convolution costs.

    ``torch.utils.flop_counter`` counts that of a grouped convolution's weight ``groups`` times,
    because it multiplies all channels with all.
    """
    if MISSING in (transposed, mask):
        raise ValueError("settings are not known")
    of_x, of_weight, of_bias = mask
    once = 2 * x.shape[0] * prod((x if transposed else grad).shape[2:]) * weight.elements
    reads = [grad] + [x] * bool(of_weight) + [weight] * bool(of_x)
    bias = Tensor(tuple(bias_sizes or grad.shape[1:2]), grad.type)
    made = [(of_x, like(x)), (of_weight, like(weight)), (of_bias, bias)]
    flops = once * (bool(of_x) + bool(of_weight))
    return Model(flops, reads, [one for has, one in made if has], [grad], once=False)
