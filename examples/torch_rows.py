"""PyTorch's softmax and RMS norm, eager and compiled."""

from __future__ import annotations

import rooflab

PRECISIONS = ("fp32", "fp16", "bf16")


def tensor(array, precision):
    """A CuPy array as a tensor on the same memory."""
    import torch

    shared = torch.from_dlpack(array)
    return shared.view(torch.bfloat16) if precision.name == "bf16" else shared


def on(stream, work):
    """``work`` as a launch on rooflab's stream."""
    import torch

    queue = torch.cuda.ExternalStream(stream.ptr)

    def launch():
        with torch.cuda.stream(queue), torch.no_grad():
            work()

    return launch


@rooflab.kernel(workload="softmax", precisions=PRECISIONS, requires=["torch"])
def torch_softmax(operands, stream):
    """torch.softmax"""
    import torch

    x, y = (tensor(array, operands.problem.precision) for array in operands.values())
    return on(stream, lambda: torch.softmax(x, dim=-1, out=y))


@rooflab.kernel(workload="softmax", precisions=PRECISIONS, requires=["torch"])
def torch_softmax_compiled(operands, stream):
    """torch.softmax under torch.compile"""
    import torch

    x, y = (tensor(array, operands.problem.precision) for array in operands.values())
    compiled = torch.compile(_softmax_into, dynamic=False)
    return on(stream, lambda: compiled(x, y))


@rooflab.kernel(workload="rmsnorm", precisions=PRECISIONS, requires=["torch"])
def torch_rmsnorm_compiled(operands, stream):
    """torch.nn.functional.rms_norm under torch.compile, which fuses the store into y"""
    import torch

    x, w, y = (tensor(array, operands.problem.precision) for array in operands.values())
    epsilon = operands.problem.epsilon
    compiled = torch.compile(_rmsnorm_into, dynamic=False)
    return on(stream, lambda: compiled(x, w, y, epsilon))


@rooflab.kernel(workload="rmsnorm", precisions=PRECISIONS, requires=["torch"])
def torch_rmsnorm(operands, stream):
    """torch.nn.functional.rms_norm, and a copy into y: it has no output argument"""
    x, w, y = (tensor(array, operands.problem.precision) for array in operands.values())
    epsilon = operands.problem.epsilon
    return on(stream, lambda: _rmsnorm_into(x, w, y, epsilon))


def _softmax_into(x, y):
    import torch

    y.copy_(torch.softmax(x, dim=-1))


def _rmsnorm_into(x, w, y, epsilon):
    from torch.nn import functional

    y.copy_(functional.rms_norm(x, (x.shape[-1],), w, epsilon))
