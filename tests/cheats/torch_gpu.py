"""Matrix products with PyTorch: settings of the whole process, TF32, another stream."""

from __future__ import annotations

import rooflab

kernel = rooflab.kernel(workload="gemm", choices={"layout": ["nn"]}, requires=["torch"])


def bind(operands, stream):
    """torch.matmul on the given stream."""
    import torch

    a, b, c = (torch.from_dlpack(array) for array in operands.values())
    queue = torch.cuda.ExternalStream(stream.ptr)

    def launch():
        with torch.cuda.stream(queue), torch.no_grad():
            torch.matmul(a, b, out=c)

    return launch


@kernel
def torch_before(operands, stream):
    """torch.matmul as it is by default"""
    return bind(operands, stream)


@kernel
def torch_tf32(operands, stream):
    """Allows TF32 for the whole process"""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = True
    return bind(operands, stream)


@kernel
def torch_new_tf32(operands, stream):
    """The same by the setting that PyTorch has had since 2.9"""
    import torch

    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = "tf32"
    else:
        torch.backends.cuda.matmul.allow_tf32 = True
    return bind(operands, stream)


@kernel
def torch_threads(operands, stream):
    """torch.set_num_threads(1)"""
    import torch

    torch.set_num_threads(1)
    return bind(operands, stream)


@kernel
def torch_default(operands, stream):
    """torch.set_default_dtype(torch.float64)"""
    import torch

    torch.set_default_dtype(torch.float64)
    return bind(operands, stream)


@kernel
def torch_deterministic(operands, stream):
    """torch.use_deterministic_algorithms(True), which warns only"""
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    return bind(operands, stream)


@kernel
def torch_events(operands, stream):
    """Replaces the time between two events of PyTorch, which nobody asks for"""
    import torch

    torch.cuda.Event.elapsed_time = lambda self, end: 0.001
    return bind(operands, stream)


@kernel
def torch_side_stream(operands, stream):
    """On a stream of PyTorch's own"""
    import torch

    a, b, c = (torch.from_dlpack(array) for array in operands.values())
    side = SIDES.setdefault("side", torch.cuda.Stream())

    def launch():
        with torch.cuda.stream(side), torch.no_grad():
            torch.matmul(a, b, out=c)

    return launch


SIDES = {}


@kernel
def torch_half(operands, stream):
    """In half precision"""
    import torch

    a, b, c = (torch.from_dlpack(array) for array in operands.values())
    queue = torch.cuda.ExternalStream(stream.ptr)

    def launch():
        with torch.cuda.stream(queue), torch.no_grad():
            c.copy_(torch.matmul(a.half(), b.half()))

    return launch


@kernel
def torch_after(operands, stream):
    """torch.matmul as it is by default, after the others"""
    return bind(operands, stream)
