"""PyTorch's kernels: the backends of its attention, and layers as they are and compiled."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any, Final

from rooflab.devices.base import Device, Launch
from rooflab.errors import KernelError
from rooflab.kernels.base import Operands
from rooflab.kernels.libraries.cuda import guarded, needs
from rooflab.kernels.registry import register
from rooflab.model.encoding import E4M3_MAX
from rooflab.model.precision import DataType
from rooflab.model.problem import NOWHERE, Problem
from rooflab.workloads.attention import Attention
from rooflab.workloads.optimizers import AdamW
from rooflab.workloads.quantised import GROUP, ZERO
from rooflab.workloads.quantization import BLOCK

BACKENDS: Final = {
    "cudnn": "CUDNN_ATTENTION",
    "flash": "FLASH_ATTENTION",
    "math": "MATH",
}
"""Names of ``torch.nn.attention.SDPBackend``."""


def without_torch(device: Device | None) -> str:
    """Why no kernel of PyTorch can run, empty if one can."""
    return "" if find_spec("torch") else "PyTorch is not installed: pip install torch"


def without_torch_on_a_gpu(device: Device | None) -> str:
    """The same for GPUs."""
    return needs()(device) or without_torch(device)


def _version() -> str:
    return f"PyTorch {version('torch')}"


BITS: Final = {"bf16": "bfloat16", "fp8_e4m3": "float8_e4m3fn"}
"""PyTorch's names of types that are stored as bits."""


def add(
    prepare: Callable[..., Launch],
    name: str,
    title: str,
    workload: str,
    device_kind: str,
    *precisions: str,
    **facts: Any,
) -> None:
    """Register a kernel of PyTorch."""
    without = without_torch if device_kind == "cpu" else without_torch_on_a_gpu
    told = {"backend": "torch", "unavailable": without, "compiler": _version}
    register(
        name,
        title=title,
        workload=workload,
        library=True,
        composed=device_kind == "cuda",
        device_kind=device_kind,
        precisions=precisions,
        **{**told, "fingerprint": _version, **facts},
    )(prepare)


def tensors(operands: Operands) -> list[Any]:
    """A tensor on the memory of each operand."""
    types = {one.name: one.type for one in operands.problem.operands}
    return [_tensor(array, types[name]) for name, array in operands.items()]


def _tensor(array: Any, data_type: DataType) -> Any:
    """A tensor on the memory of an array."""
    import torch

    shared, name = torch.from_dlpack(array), BITS.get(data_type.name)
    return shared.view(getattr(torch, name)) if name else shared


def _mask(torch: Any, backend: str, problem: Attention, on: Any) -> dict[str, Any]:
    """The arguments that say what a query sees.

    ``is_causal`` aligns queries at the first key. One query sees all keys.
    """
    queries, keys = problem.queries, problem.keys
    if not problem.masked or queries == 1:
        return {}
    if queries == keys:
        return {"is_causal": True}
    if backend == "flash" and on.type == "cuda":
        return {"attn_mask": torch.nn.attention.bias.causal_lower_right(queries, keys)}
    seen = torch.ones(queries, keys, dtype=torch.bool, device=on)
    return {"attn_mask": seen.tril(keys - queries)}


def queue_of(torch: Any, device: Device) -> AbstractContextManager[Any]:
    """Work in it is for rooflab's stream."""
    if device.kind == "cpu":
        threads = device.fact("threads")
        torch.set_num_threads(threads if isinstance(threads, int) else 1)
        return nullcontext()
    if not torch.cuda.is_available():
        raise KernelError(
            "this PyTorch has no CUDA, or none that fits the driver: pip install torch"
        )
    queue: AbstractContextManager[Any] = torch.cuda.stream(
        torch.cuda.ExternalStream(device.stream.ptr)
    )
    return queue


def launch_on(
    queue: AbstractContextManager[Any], work: Callable[[], object], told: str, operands: Operands
) -> Launch:
    """What PyTorch does in ``work``, on a queue and without saving anything for gradients."""
    import torch

    def call() -> None:
        with queue, torch.no_grad():
            work()

    return guarded(call, RuntimeError, told, alive=operands)


def attention(backend: str, device: Device, operands: Operands) -> Launch:
    """Heads that share keys are ``enable_gqa``; there is no ``out``, so the result is copied."""
    import torch
    import torch.nn.attention.bias
    from torch.nn.attention import SDPBackend, sdpa_kernel

    problem = operands.problem
    assert isinstance(problem, Attention)
    q, k, v, o = tensors(operands)
    queue, chosen = queue_of(torch, device), getattr(SDPBackend, BACKENDS[backend])
    attend = partial(
        torch.nn.functional.scaled_dot_product_attention,
        *(q, k, v),
        enable_gqa=problem.group > 1,
        **_mask(torch, backend, problem, q.device),
    )

    def work() -> None:
        with sdpa_kernel(chosen):
            o.copy_(attend())

    return launch_on(queue, work, f"PyTorch's {backend} attention", operands)


def _add(device_kind: str, name: str, title: str, *precisions: str, **facts: Any) -> None:
    title = f"PyTorch's attention, {title}, and a copy of the result"
    prepare = partial(attention, name)
    add(prepare, f"torch_{name}", title, "attention", device_kind, *precisions, **facts)


def aligned(most: int) -> Callable[[Any], str]:
    """Why a tensor-core backend does not support a problem."""

    def refuses(problem: Any) -> str:
        if (size := problem.head_size) % 8 or size > most:
            return f"it supports a head_size that is a multiple of 8, up to {most}; it is {size}"
        return ""

    return refuses


_add("cuda", "cudnn", "by cuDNN", "fp16", "bf16", unsupported=aligned(256))
_add("cuda", "flash", "FlashAttention-2", "fp16", "bf16", unsupported=aligned(256))
_add("cuda", "math", "a kernel for each step", "fp64", "fp32", "fp16", "bf16")
_add("cpu", "flash", "in blocks", "fp64", "fp32")
_add("cpu", "math", "a pass for each step", "fp64", "fp32")


# Other layers ------------------------------------------------------------------------------------


def _layernorm(torch: Any, problem: Any, x: Any, w: Any, b: Any, y: Any) -> None:
    y.copy_(torch.nn.functional.layer_norm(x, (problem.columns,), w, b, problem.epsilon))


def _cross_entropy(torch: Any, problem: Any, x: Any, targets: Any, y: Any) -> None:
    y.copy_(torch.nn.functional.cross_entropy(x, targets.long(), reduction="none"))


def _swiglu(torch: Any, problem: Any, gate: Any, up: Any, out: Any) -> None:
    torch.mul(torch.nn.functional.silu(gate), up, out=out)


def _swiglu_steps(torch: Any, problem: Any, gate: Any, up: Any, out: Any) -> None:
    out.copy_(torch.nn.functional.silu(gate) * up)


def _rope(torch: Any, problem: Any, x: Any, cos: Any, sin: Any, y: Any) -> None:
    """As transformers writes it, whose tables have each number twice."""
    first, second = x.chunk(2, dim=-1)
    turned, halves = torch.cat((-second, first), dim=-1), (*x.shape[:-1], 2, problem.half)
    plain = x.view(halves) * cos.unsqueeze(-2)
    torch.add(plain, turned.view(halves) * sin.unsqueeze(-2), out=y.view(halves))


def _rope_steps(torch: Any, problem: Any, x: Any, cos: Any, sin: Any, y: Any) -> None:
    first, second = x.chunk(2, dim=-1)
    y[..., : problem.half] = first * cos - second * sin
    y[..., problem.half :] = second * cos + first * sin


def unpacked(torch: Any, w: Any, k: int) -> Any:
    """4-bit weights, one per byte."""
    return torch.stack((w & 15, w >> 4), dim=2).reshape(w.shape[0], -1)[:, :k]


def _w4a16(torch: Any, problem: Any, x: Any, w: Any, scales: Any, y: Any) -> None:
    weights = unpacked(torch, w, problem.k).to(x.dtype) - ZERO
    weights *= scales.repeat_interleave(GROUP, dim=1)[:, : problem.k]
    y.copy_(x @ weights.T)


def _linear(torch: Any, problem: Any, x: Any, w: Any, *others: Any) -> None:
    *bias, y = others
    if problem.epilogue == "bias":
        torch.addmm(*bias, x, w.T, out=y)
        return
    z = torch.nn.functional.linear(x, w, *bias)
    if problem.epilogue == "gelu":
        torch.ops.aten.gelu.out(z, approximate="tanh", out=y)
    else:
        gate, up = z.chunk(2, dim=1)
        torch.mul(torch.nn.functional.silu(gate), up, out=y)


def _linear_steps(torch: Any, problem: Any, x: Any, w: Any, *others: Any) -> None:
    *bias, y = others
    z = torch.nn.functional.linear(x, w, *bias)
    if problem.epilogue == "gelu":
        z = torch.nn.functional.gelu(z, approximate="tanh")
    elif problem.gated:
        gate, up = z.chunk(2, dim=1)
        z = torch.nn.functional.silu(gate) * up
    y.copy_(z)


def _gradients(torch: Any, w: Any, dy: Any, normal: Any, scale: Any, *, centred: bool) -> Any:
    """Those of rows and weights of a norm, step by step."""
    each = dy.to(scale.dtype) * w
    rest = each - normal * torch.mean(each * normal, 1, keepdim=True)
    if centred:
        rest = rest - torch.mean(each, 1, keepdim=True)
    return rest * scale, torch.sum(dy * normal, 0)


def _rmsnorm_steps(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, rstd: Any, dx: Any, dw: Any
) -> None:
    scale = rstd.unsqueeze(1)
    found = _gradients(torch, w, dy, x * scale, scale, centred=False)
    _copy((dx, dw), found)


def _rmsnorm_backward(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, rstd: Any, dx: Any, dw: Any
) -> None:
    fused = getattr(torch.ops.aten, "_fused_rms_norm_backward", None)
    if x.device.type == "cpu" or fused is None:
        _rmsnorm_steps(torch, problem, x, dy, w, rstd, dx, dw)
    else:
        _copy((dx, dw), fused(dy, x, [problem.columns], rstd.unsqueeze(1), w, [True, True]))


def _layernorm_backward(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, mean: Any, rstd: Any, *found: Any
) -> None:
    saved, shape = (mean.unsqueeze(1), rstd.unsqueeze(1)), [problem.columns]
    backward = torch.ops.aten.native_layer_norm_backward
    _copy(found, backward(dy, x, shape, *saved, w, w, [True, True, True]))


def _layernorm_steps(
    torch: Any, problem: Any, x: Any, dy: Any, w: Any, mean: Any, rstd: Any, *found: Any
) -> None:
    scale = rstd.unsqueeze(1)
    normal = (x - mean.unsqueeze(1)) * scale
    gradients = _gradients(torch, w, dy, normal, scale, centred=True)
    _copy(found, (*gradients, torch.sum(dy.to(scale.dtype), 0)))


def _cross_entropy_backward(torch: Any, problem: Any, x: Any, targets: Any, dx: Any) -> None:
    torch.softmax(x, 1, out=dx)
    dx.scatter_add_(1, targets.long().unsqueeze(1), dx.new_full((problem.rows, 1), -1.0))
    dx.mul_(problem.scale)


def _cross_entropy_steps(torch: Any, problem: Any, x: Any, targets: Any, dx: Any) -> None:
    columns = torch.arange(problem.columns, device=x.device)
    chosen = torch.eq(columns, targets.unsqueeze(1))
    dx.copy_((torch.softmax(x, 1) - chosen.to(x.dtype)) * problem.scale)


def _embedding(torch: Any, problem: Any, ids: Any, table: Any, y: Any) -> None:
    torch.index_select(table, 0, ids, out=y)


def _embedding_steps(torch: Any, problem: Any, ids: Any, table: Any, y: Any) -> None:
    y.copy_(torch.nn.functional.embedding(ids, table))


def _embedding_index(torch: Any, problem: Any, ids: Any, table: Any, y: Any) -> None:
    """As transformers gathers the rows of experts; PyTorch has another kernel for it."""
    torch.ops.aten.index(table, [ids], out=y)


def _quantize(torch: Any, problem: Any, x: Any, scales: Any, q: Any) -> None:
    wide = x.to(getattr(torch, problem.precision.accumulate.storage))
    if short := -problem.columns % BLOCK:
        wide = torch.nn.functional.pad(wide, (0, short))
    parts = wide.reshape(problem.rows, problem.blocks, BLOCK)
    found = torch.clamp(torch.amax(torch.abs(parts), 2), min=problem.least) / E4M3_MAX
    quotients = (parts / found[:, :, None]).reshape(problem.rows, -1)
    scales.copy_(found)
    q.copy_(quotients[:, : problem.columns])


def _route(torch: Any, problem: Any, logits: Any, weights: Any, ids: Any) -> None:
    largest, places = torch.topk(logits, problem.chosen, 1)
    if problem.normalised == "on":
        found = torch.softmax(largest, 1)
    else:
        found = torch.gather(torch.softmax(logits, 1), 1, places)
    _copy((weights, ids), (found, places))


def _sort_experts(
    torch: Any, problem: Any, ids: Any, weights: Any, sources: Any, shares: Any, *others: Any
) -> None:
    """Nothing here waits for the host, as ``torch.bincount`` would."""
    (places, ends), flat, on = others, ids.reshape(-1), ids.device
    order = torch.argsort(flat, stable=True)
    sources.copy_(torch.div(order, problem.chosen, rounding_mode="floor"))
    torch.index_select(weights.reshape(-1), 0, order, out=shares)
    places.scatter_(0, order, torch.arange(problem.rows, device=on))
    experts = torch.arange(problem.experts, device=on)
    ends.copy_(torch.searchsorted(torch.index_select(flat, 0, order), experts, right=True))


def _weighted(torch: Any, problem: Any, rows: Any, shares: Any, places: Any) -> Any:
    """The rows of each token, as transformers writes it: rows are weighted where they are."""
    return (rows * shares.unsqueeze(-1))[places].reshape(problem.tokens, problem.chosen, -1)


def _combine(torch: Any, problem: Any, rows: Any, shares: Any, places: Any, y: Any) -> None:
    torch.sum(_weighted(torch, problem, rows, shares, places), 1, out=y)


def _combine_steps(torch: Any, problem: Any, rows: Any, shares: Any, places: Any, y: Any) -> None:
    y.copy_(torch.sum(_weighted(torch, problem, rows, shares, places), 1))


def _rmsnorm(torch: Any, problem: Any, x: Any, w: Any, y: Any) -> None:
    y.copy_(torch.nn.functional.rms_norm(x, (problem.columns,), w, problem.epsilon))


def _rmsnorm_forward_steps(torch: Any, problem: Any, x: Any, w: Any, y: Any) -> None:
    """As transformers writes it."""
    wide = x.to(torch.float32)
    squares = torch.mean(torch.pow(wide, 2), 1, keepdim=True)
    scale = torch.rsqrt(squares + problem.epsilon)
    torch.mul(w, (wide * scale).to(x.dtype), out=y)


def _sum(torch: Any, problem: Any, a: Any, b: Any, c: Any) -> None:
    torch.add(a, b, out=c)


def _same(torch: Any, problem: Any, a: Any, c: Any) -> None:
    c.copy_(a)


def _copy(outputs: Any, found: Any) -> None:
    for output, one in zip(outputs, found, strict=True):
        output.copy_(one)


LAYERS: Final[dict[str, Callable[..., None]]] = {
    "layernorm": _layernorm,
    "cross_entropy": _cross_entropy,
    "swiglu": _swiglu,
    "rope": _rope,
    "w4a16": _w4a16,
    "linear": _linear,
    "rmsnorm_backward": _rmsnorm_backward,
    "layernorm_backward": _layernorm_backward,
    "cross_entropy_backward": _cross_entropy_backward,
    "embedding": _embedding,
    "quantize": _quantize,
    "route": _route,
    "sort_experts": _sort_experts,
    "combine": _combine,
    "rmsnorm": _rmsnorm,
    "add": _sum,
    "copy": _same,
}
"""What PyTorch does for a workload, by its name."""

PLAIN: Final = ("rmsnorm", "add", "copy")
"""Those that other kernels here can do as well: PyTorch's are for GPUs, and are not compiled."""

STEPS: Final[dict[str, Callable[..., None]]] = {
    "rmsnorm_backward": _rmsnorm_steps,
    "layernorm_backward": _layernorm_steps,
    "cross_entropy_backward": _cross_entropy_steps,
    "embedding": _embedding_steps,
    "combine": _combine_steps,
    "swiglu": _swiglu_steps,
    "rope": _rope_steps,
    "linear": _linear_steps,
}
"""What ``torch.compile`` is given, if that is not the same."""

IN_PLACE: Final = (
    *("cross_entropy_backward", "embedding", "combine"),
    *("add", "copy", "swiglu", "rope", "linear"),
)
"""Those whose functions write the result where it should be."""


def layer(compiled: bool, device: Device, operands: Operands) -> Launch:
    """A layer with a copy of its result, which ``torch.compile`` makes a part of the kernel."""
    problem = operands.problem
    if not compiled:
        return _eager(LAYERS[problem.workload], device, operands)
    launch = _called(_compiled(problem), device, operands)
    with _compiled_here():
        launch()
    return launch


def _eager(work: Callable[..., None], device: Device, operands: Operands) -> Launch:
    import torch

    return _called(partial(work, torch, operands.problem), device, operands)


def _called(work: Callable[..., None], device: Device, operands: Operands) -> Launch:
    import torch

    queue, given = queue_of(torch, device), tensors(operands)
    told = f"PyTorch's {operands.problem.workload}"
    return launch_on(queue, partial(work, *given), told, operands)


@lru_cache(maxsize=1)
def _compiled(problem: Problem) -> Callable[..., None]:
    """By ``torch.compile``, once for all copies of the operands."""
    import torch

    work = partial((LAYERS | STEPS)[problem.workload], torch, problem)
    compiled: Callable[..., None] = torch.compile(_own_code(work), dynamic=False)
    return compiled


@contextmanager
def _compiled_here() -> Iterator[None]:
    """What ``torch.compile`` makes is compiled in this process, without its advice to developers.

    Its worker processes are as many as there are processors, and busy beside what is timed.
    """
    from torch._inductor import config

    with config.patch(compile_threads=1), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _own_code(work: Callable[..., None]) -> Callable[..., None]:
    """The same in code that ``torch.compile`` has not seen.

    Of one code it compiles eight versions, for all problems together; then it runs it as it is.
    """

    def own(*given: Any) -> None:
        work(*given)

    own.__code__ = own.__code__.replace()
    return own


def fused_adamw(device: Device, operands: Operands) -> Launch:
    """The kernel of ``torch.optim.AdamW(fused=True)``, which updates in place."""
    import torch

    problem, queue = operands.problem, queue_of(torch, device)
    assert isinstance(problem, AdamW)
    p, g, m, v = tensors(operands)
    step = torch.full((), problem.step, dtype=torch.float32, device=p.device)
    names = {"lr": problem.lr, "beta1": problem.beta1, "beta2": problem.beta2}
    names |= {"weight_decay": problem.decay, "eps": problem.epsilon}
    names |= {"amsgrad": False, "maximize": False}
    work = partial(torch._fused_adamw_, [p], [g], [m], [v], [], [step], **names)
    return launch_on(queue, work, "PyTorch's fused AdamW", operands)


for _kind in ("cuda", "cpu"):
    add(fused_adamw, "torch_fused", "PyTorch's fused AdamW", "adamw", _kind, "fp64", "fp32")


def _add_layer(workload: str, device_kind: str, compiled: bool, *precisions: str) -> None:
    plain = "PyTorch" if workload in IN_PLACE else "PyTorch, and a copy of the result"
    name, title = ("torch_compiled", "torch.compile") if compiled else ("torch", plain)
    facts = {"unsupported": streamed} if workload in PLAIN else {}
    add(partial(layer, compiled), name, title, workload, device_kind, *precisions, **facts)


def streamed(problem: Problem) -> str:
    """Why PyTorch's tensors are not the operands of a problem."""
    return "PyTorch takes operands in device memory" if problem.host != NOWHERE else ""


for _workload in LAYERS:
    _add_layer(_workload, "cuda", False, "fp64", "fp32", "fp16", "bf16")
    if _workload in PLAIN:
        continue
    _add_layer(_workload, "cuda", True, "fp64", "fp32", "fp16", "bf16")
    _add_layer(_workload, "cpu", False, "fp64", "fp32")

_norm = partial(_eager, _rmsnorm_forward_steps)
_title = "PyTorch, a kernel for each step, as transformers writes it"
add(_norm, "torch_steps", _title, "rmsnorm", "cuda", "fp32", "fp16", "bf16", unsupported=streamed)

_index, _title = partial(_eager, _embedding_index), "PyTorch, table[ids]"
add(_index, "torch_index", _title, "embedding", "cuda", "fp64", "fp32", "fp16", "bf16")
