"""Convolutions."""

from __future__ import annotations

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


@rule(
    *("convolution", "_convolution", "convolution_overrideable"),
    takes="x weight bias stride padding dilation transposed output_padding groups",
)
@rule(
    *("conv1d", "conv2d", "conv3d", "cudnn_convolution_relu"),
    takes="x weight | bias stride padding dilation",
)
@rule("cudnn_convolution", takes="x weight padding stride dilation")
@rule("mkldnn_convolution", takes="x weight bias padding stride dilation")
@rule("cudnn_convolution_add_relu", takes="x weight z alpha bias stride padding dilation")
@rule(
    "cudnn_convolution_transpose",
    takes="x weight padding output_padding stride dilation groups",
)
@rule("_slow_conv2d_forward", takes="x weight kernel_size bias stride padding")
@rule(
    *("_conv_depthwise2d", "conv_depthwise3d"),
    takes="x weight kernel_size bias stride padding | dilation",
)
def _convolution(
    call: Operation,
    x: Tensor,
    weight: Tensor,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    transposed: Any = None,
    output_padding: Any = 0,
    groups: Any = 1,
    z: Any = None,
    **_: Any,
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
    transposed = transposed or call.base.endswith("_transpose")
    if transposed:
        places = tuple((n - 1) * s - 2 * p + d * (k - 1) + o + 1 for n, k, s, p, d, o in rows)
        channels = weight.shape[1] * int(groups)
    else:
        places = tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in rows)
        channels = weight.shape[0]
    if min(places) < 0:
        raise ValueError("a filter is larger than what it meets")
    out = Tensor((x.shape[0], channels, *places), x.type)
    meetings = x.shape[0] * prod(sizes if transposed else places)
    reads = tensors([x, weight, bias, z])
    return Model(2 * meetings * weight.elements, reads, call.made(out), [x], once=False)


@rule(
    "convolution_backward",
    takes="grad x weight biases stride padding dilation transposed output_padding groups wanted",
)
def _convolution_backward(
    call: Operation,
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    biases: Any,
    transposed: Any,
    wanted: Any,
    **_: Any,
) -> Model:
    """The gradients of x and of the weight each cost what the convolution costs.

    ``biases`` is the shape of the bias. ``torch.utils.flop_counter`` counts the gradient of a
    grouped convolution's weight ``groups`` times, because it multiplies all channels with all.
    """
    if MISSING in (transposed, wanted):
        raise ValueError("settings are not known")
    of_x, of_weight, of_bias = wanted
    once = 2 * x.shape[0] * prod((x if transposed else grad).shape[2:]) * weight.elements
    reads = [grad] + [x] * bool(of_weight) + [weight] * bool(of_x)
    bias = Tensor(tuple(biases or grad.shape[1:2]), grad.type)
    made = [(of_x, like(x)), (of_weight, like(weight)), (of_bias, bias)]
    flops = once * (bool(of_x) + bool(of_weight))
    return Model(flops, reads, [one for has, one in made if has], [grad], once=False)
