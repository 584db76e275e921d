"""PyTorch's products for mixtures of experts, 4-bit weights and blocks in FP8."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries.cuda import multiples, scales_of_128
from rooflab.kernels.libraries.pytorch import (
    add,
    launch_on,
    queue_of,
    tensors,
    unpacked,
    without_torch,
    without_torch_on_a_gpu,
)
from rooflab.model.problem import Problem
from rooflab.workloads.experts import GroupedGemm
from rooflab.workloads.quantised import GROUP, W4A16

OLDEST: Final = {"cuda": (2, 8), "cpu": (2, 10)}
"""The first versions of PyTorch that have the grouped product."""

INNER_TILES: Final = 8
"""Pieces of 16 weights along K that PyTorch's layout keeps together, the most."""


def loop(device: Device, operands: Operands) -> Launch:
    """A product for each expert with tokens, whose counts the host knows."""
    import torch

    problem, queue = operands.problem, queue_of(torch, device)
    assert isinstance(problem, GroupedGemm)
    x, w, _, y = tensors(operands)
    rows = [slice(*ends) for ends in pairwise((0, *problem.ends))]
    products = [(x[some], w[e], y[some]) for e, some in enumerate(rows) if problem.counts[e]]

    def work() -> None:
        for tokens, weights, result in products:
            torch.mm(tokens, weights, out=result)

    return launch_on(queue, work, "PyTorch's products", operands)


def grouped(device: Device, operands: Operands) -> Launch:
    """One call for all experts; there is no ``out``, so the result is copied."""
    import torch

    queue = queue_of(torch, device)
    x, w, ends, y = tensors(operands)

    def work() -> None:
        y.copy_(torch._grouped_mm(x, w, offs=ends))

    return launch_on(queue, work, "PyTorch's grouped product", operands)


def _no_grouped(device_kind: str) -> Any:
    """Why PyTorch's grouped product cannot run, as ``Kernel.unavailable``."""

    def unavailable(device: Device | None) -> str:
        without = without_torch if device_kind == "cpu" else without_torch_on_a_gpu
        if reason := without(device):
            return reason
        oldest, present = OLDEST[device_kind], version("torch")
        if tuple(map(int, present.split(".")[:2])) < oldest:
            wanted = ".".join(map(str, oldest))
            return f"PyTorch {present} has no grouped product: pip install 'torch>={wanted}'"
        capability = str(device.fact("compute_capability") or "") if device else ""
        if capability and capability.split(".")[0] not in ("9", "10"):
            return (
                "PyTorch's grouped product is one kernel on compute capability 9.0 and 10.0 only: "
                f"on {capability} it waits for the host"
            )
        return ""

    return unavailable


def _rows(problem: Problem) -> str:
    """Why the grouped product does not support a problem: rows must be multiples of 16 bytes."""
    multiple = 16 // problem.precision.input.bytes
    return multiples("torch_grouped", n=multiple, k=multiple)(problem)


def int4(device: Device, operands: Operands) -> Launch:
    """Weights in PyTorch's own layout, which is made before the first launch."""
    import torch

    problem, queue, cpu = operands.problem, queue_of(torch, device), device.kind == "cpu"
    assert isinstance(problem, W4A16)
    x, w, scales, y = tensors(operands)
    with queue, torch.no_grad():
        # A pair is the scale, and what stands for 8: zero.
        each = scales.T
        pairs = torch.stack((each, torch.zeros_like(each)), dim=2).contiguous()
        if cpu:
            bits = unpacked(torch, w, problem.k).to(torch.int32)
            packed = torch._convert_weight_to_int4pack_for_cpu(bits, INNER_TILES)
        else:  # here the first weight of a byte is in the high half
            packed = torch._convert_weight_to_int4pack(w << 4 | w >> 4, INNER_TILES)
    multiply = torch._weight_int4pack_mm_for_cpu if cpu else torch._weight_int4pack_mm

    def work() -> None:
        y.copy_(multiply(x, packed, GROUP, pairs))

    return launch_on(queue, work, "PyTorch's product of 4-bit weights", operands)


def scaled(device: Device, operands: Operands) -> Launch:
    """cuBLASLt's product of blocks; scales of X have a row for each group, as it wants them."""
    import torch

    queue = queue_of(torch, device)
    x, w, x_scales, w_scales, y = tensors(operands)
    given = (x, w.T, x_scales.T, w_scales.T)
    work = partial(torch._scaled_mm, *given, out_dtype=torch.bfloat16, out=y)
    return launch_on(queue, work, "PyTorch's scaled product", operands)


FLOATS: Final = {"cuda": ("fp64", "fp32", "fp16", "bf16"), "cpu": ("fp64", "fp32")}
FAST: Final = {"cuda": "bf16", "cpu": "fp32"}

for _kind in ("cuda", "cpu"):
    add(
        *(grouped, "torch_grouped", "PyTorch's grouped product, and a copy of the result"),
        *("grouped_gemm", _kind, FAST[_kind]),
        unsupported=_rows,
        unavailable=_no_grouped(_kind),
    )
    add(
        *(loop, "torch_loop", "PyTorch, one expert after the other"),
        *("grouped_gemm", _kind, *FLOATS[_kind]),
    )
    add(
        *(int4, "torch_int4", "PyTorch's kernel for 4-bit weights, and a copy of the result"),
        *("w4a16", _kind, FAST[_kind]),
        unsupported=multiples("torch_int4", n=16, k=GROUP),
    )

add(
    *(scaled, "torch_scaled_mm", "PyTorch's scaled product, by cuBLASLt", "block_gemm"),
    *("cuda", "fp8"),
    unsupported=multiples("torch_scaled_mm", m=4, n=16, k=4 * GROUP),  # rows of scales: 16 bytes
    unfit=scales_of_128,
)
