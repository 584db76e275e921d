"""cuDNN's attention through its Python frontend, on PyTorch's tensors."""

from __future__ import annotations

from functools import cache, partial
from math import sqrt
from typing import Any, Final

from rooflab.kernels.libraries.packages import HALVES, Package
from rooflab.kernels.libraries.pytorch import aligned

CUDNN: Final = Package("nvidia-cudnn-frontend", "cudnn", "cuDNN's frontend")

TYPES: Final = {"fp16": "HALF", "bf16": "BFLOAT16"}


@cache
def _handle(stream: int) -> Any:
    """cuDNN's handle of a stream, for the life of the process."""
    import cudnn

    handle = cudnn.create_handle()
    cudnn.set_stream(handle, stream)
    return handle


def _attention(torch: Any, problem: Any, *tensors: Any) -> Any:
    """A graph of one node, which writes the result where it should be."""
    import cudnn

    handle = _handle(torch.cuda.current_stream().cuda_stream)
    types = cudnn.data_type
    graph = cudnn.pygraph(
        io_data_type=getattr(types, TYPES[problem.precision.name]),
        intermediate_data_type=types.FLOAT,
        compute_data_type=types.FLOAT,
        handle=handle,
    )
    *given, out = tensors
    nodes = [graph.tensor_like(one) for one in given]
    words = {"attn_scale": 1 / sqrt(problem.head_size), "generate_stats": False}
    if problem.masked and problem.queries > 1:  # causal queries are the last ones
        words["diagonal_alignment"] = cudnn.diagonal_alignment.BOTTOM_RIGHT
        words["diagonal_band_right_bound"] = 0
    found, _ = graph.sdpa(*nodes, **words)
    found.set_output(True).set_dim(list(out.shape)).set_stride(list(out.stride()))
    graph.build([cudnn.heur_mode.A])
    size = max(1, graph.get_workspace_size())
    workspace = torch.empty(size, device=out.device, dtype=torch.uint8)
    memory = dict(zip((*nodes, found), tensors, strict=True))
    return partial(graph.execute, memory, workspace, handle=handle)


CUDNN.add(
    *("cudnn", "cuDNN's attention", "attention", _attention, *HALVES),
    plans=True,
    unsupported=aligned(256),
)
