"""PyTorch's gradients of attention: those of its backends, from what a forward pass has saved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries.pytorch import add, aligned, launch_on, queue_of, tensors
from rooflab.model.problem import Problem
from rooflab.workloads.attention_gradients import AttentionBackward

Gradients = Callable[[], tuple[Any, ...]]
"""Computes dQ, dK and dV."""

RESULTS: Final = 3


def _causal(problem: AttentionBackward) -> bool:
    """One query sees all keys."""
    return problem.masked and problem.queries > 1


def _fused(backend: str, torch: Any, problem: AttentionBackward, *given: Any) -> Gradients:
    """One of PyTorch's backends. A forward pass tells what it saves beside O and lse, and how."""
    q, k, v, o, dout, lse = given
    name = f"_scaled_dot_product_{backend}_attention"
    forward, backward = (getattr(torch.ops.aten, name + end) for end in ("", "_backward"))
    before, causal = (None, True) if backend == "cudnn" else (), _causal(problem)
    _, logarithms, *ends, first, second, _ = forward(q, k, v, *before, 0.0, causal)
    saved = (dout, q, k, v, o, lse.reshape(logarithms.shape))
    if backend == "cudnn":
        return partial(backward, *saved, first, second, None, *ends, 0.0, causal)
    return partial(backward, *saved, *ends, 0.0, causal, first, second)


def _fused_on_cpus(torch: Any, problem: AttentionBackward, *given: Any) -> Gradients:
    """In blocks. ``is_causal`` aligns queries at the first key."""
    q, k, v, o, dout, lse = given
    mask: dict[str, Any] = {}
    if _causal(problem) and problem.queries != problem.keys:
        mask = {"attn_mask": _added(torch, problem, q)}
    backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    return partial(backward, *(dout, q, k, v, o, lse, 0.0), _causal(problem) and not mask, **mask)


def _added(torch: Any, problem: AttentionBackward, q: Any) -> Any:
    """What is added to scores: minus infinity where a query does not see a key."""
    shape, first = (problem.queries, problem.keys), problem.keys - problem.queries + 1
    return torch.triu(torch.full(shape, -inf, dtype=q.dtype, device=q.device), first)


def _steps(torch: Any, problem: AttentionBackward, *given: Any) -> Gradients:
    """A kernel for each step, in the type of sums, as PyTorch's own attention in steps."""
    kind, shared = given[-1].dtype, (problem.batch, problem.kv_heads, -1)
    scale = problem.head_size**-0.5
    whole = (problem.batch, problem.heads, problem.queries, problem.keys)
    mask = _added(torch, problem, given[-1]) if _causal(problem) else None

    def gradients() -> tuple[Any, ...]:
        wide = (one.to(kind).reshape(*shared, problem.head_size) for one in given[:-1])
        (q, k, v, o, dout), lse = wide, given[-1].to(kind).reshape(*shared, 1)
        scores = q @ k.mT * scale
        if mask is not None:
            scores = (scores.reshape(whole) + mask).reshape(scores.shape)
        weights = torch.exp(scores - lse)
        changes = weights * (dout @ v.mT - torch.sum(dout * o, 3)[..., None]) * scale
        return (changes @ k).reshape(given[0].shape), changes.mT @ q, weights.mT @ dout

    return gradients


def attention_backward(
    prepared: Callable[..., Gradients], device: Device, operands: Operands
) -> Launch:
    """There is no ``out``, so the results are copied."""
    import torch

    problem = operands.problem
    assert isinstance(problem, AttentionBackward)
    queue = queue_of(torch, device)
    given = tensors(operands)
    outputs, inputs = given[-RESULTS:], given[:-RESULTS]
    gradients: list[Gradients] = []

    def work() -> None:
        if not gradients:
            gradients.append(prepared(torch, problem, *inputs))
        for output, found in zip(outputs, gradients[0](), strict=True):
            output.copy_(found)

    launch = launch_on(queue, work, "PyTorch's gradients of attention", operands)
    launch()  # with a forward pass
    return launch


def _by_cudnn(problem: Any) -> str:
    if reason := aligned(128)(problem):
        return reason
    sizes = f"{problem.queries} and {problem.keys}"
    if min(problem.queries, problem.keys) == 1:
        return f"it supports 2 or more queries and keys, these are {sizes}"
    if problem.masked and problem.queries != problem.keys:
        return f"it supports as many causal queries as keys, these are {sizes}"
    return ""


def _add(
    prepared: Callable[..., Gradients],
    device_kind: str,
    name: str,
    title: str,
    *precisions: str,
    unsupported: Callable[[Problem], str] | None = None,
) -> None:
    title = f"PyTorch's gradients of attention, {title}, and a copy of the results"
    facts = {"unsupported": unsupported} if unsupported else {}
    prepare = partial(attention_backward, prepared)
    add(prepare, f"torch_{name}", title, "attention_backward", device_kind, *precisions, **facts)


_HALF: Final = ("fp16", "bf16")
_WIDE: Final = ("fp64", "fp32")
_flash, _cudnn = (partial(_fused, backend) for backend in ("flash", "cudnn"))
_add(_cudnn, "cuda", "cudnn", "by cuDNN", *_HALF, unsupported=_by_cudnn)
_add(_flash, "cuda", "flash", "FlashAttention-2", *_HALF, unsupported=aligned(256))
_add(_steps, "cuda", "math", "a kernel for each step", *_WIDE, *_HALF)
_add(_fused_on_cpus, "cpu", "flash", "in blocks", *_WIDE)
_add(_steps, "cpu", "math", "a pass for each step", *_WIDE)
