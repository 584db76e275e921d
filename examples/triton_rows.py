"""Softmax and RMS norm in Triton, after its tutorial "Fused Softmax".

A program loads a whole row, padded to a power of two, computes in registers and stores the result.
"""

from __future__ import annotations

import rooflab

PRECISIONS = ("fp32", "fp16", "bf16")
REQUIRES = ("torch", "triton")


def tensors(operands):
    """The operands as tensors on the same memory."""
    import torch

    shared = (torch.from_dlpack(array) for array in operands.values())
    bits = operands.problem.precision.name == "bf16"
    return [tensor.view(torch.bfloat16) if bits else tensor for tensor in shared]


def bound(kernel, operands, stream, *scalars):
    """The launch of one program per row."""
    import torch
    import triton

    rows, columns = operands.problem.extents.values()
    block = triton.next_power_of_2(columns)
    warps = max(1, min(16, block * operands.problem.precision.input.bytes // 1024))
    arguments = (*tensors(operands), columns, *scalars)
    queue = torch.cuda.ExternalStream(stream.ptr)

    def launch():
        with torch.cuda.stream(queue):
            kernel[(rows,)](*arguments, BLOCK=block, num_warps=warps)

    return launch


@rooflab.kernel(workload="softmax", precisions=PRECISIONS, requires=REQUIRES)
def triton_softmax(operands, stream):
    """Fused softmax in Triton"""
    return bound(_kernels()[0], operands, stream)


@rooflab.kernel(workload="rmsnorm", precisions=PRECISIONS, requires=REQUIRES)
def triton_rmsnorm(operands, stream):
    """Fused RMS norm in Triton"""
    return bound(_kernels()[1], operands, stream, operands.problem.epsilon)


def _kernels():
    """Both kernels; defined here, so that the file loads without Triton."""
    global _compiled
    if _compiled is None:
        _compiled = _define()
    return _compiled


_compiled = None


def _define():
    global tl  # Triton looks names up in the module

    import triton
    import triton.language as tl

    @triton.jit
    def softmax(X, Y, columns, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        inside = offsets < columns
        start = tl.program_id(0).to(tl.int64) * columns
        x = tl.load(X + start + offsets, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp(x - tl.max(x, axis=0))
        y = powers / tl.sum(powers, axis=0)
        tl.store(Y + start + offsets, y.to(Y.dtype.element_ty), mask=inside)

    @triton.jit
    def rmsnorm(X, W, Y, columns, epsilon, BLOCK: tl.constexpr):
        offsets = tl.arange(0, BLOCK)
        inside = offsets < columns
        start = tl.program_id(0).to(tl.int64) * columns
        x = tl.load(X + start + offsets, mask=inside, other=0.0).to(tl.float32)
        w = tl.load(W + offsets, mask=inside, other=0.0).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, axis=0) / columns + epsilon)
        tl.store(Y + start + offsets, (x * scale * w).to(Y.dtype.element_ty), mask=inside)

    return softmax, rmsnorm
