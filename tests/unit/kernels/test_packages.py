"""Kernels of packages beside PyTorch, on stand-ins with the signatures of the packages' sources."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any

import fake
import numpy as np
import pytest

from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.libraries import packages, pytorch
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.workloads import build

KERNELS = {
    one.id: one
    for one in discover().all()
    if one.library and one.unavailable.__module__ == "rooflab.kernels.libraries.packages"
}


class Tensor(np.ndarray[Any, Any]):
    """An array with what the kernels ask of a tensor."""

    copies = 0

    def data_ptr(self) -> int:
        return int(self.ctypes.data)

    def numel(self) -> int:
        return self.size

    def view(self, *shape: Any) -> Any:  # type: ignore[override]
        return self.reshape(*shape) if isinstance(shape[0], int | tuple) else super().view(*shape)

    def transpose(self, *axes: Any) -> Any:
        return self.swapaxes(*axes)

    def stride(self) -> tuple[int, ...]:
        return tuple(step // self.itemsize for step in self.strides)

    def copy_(self, numbers: Any) -> None:
        Tensor.copies += 1
        self[...] = numbers


class Mode:
    """PyTorch's, which sees the functions that are called while it is entered."""

    entered: Mode | None = None

    def __enter__(self) -> None:
        Mode.entered = self

    def __exit__(self, *_: object) -> None:
        Mode.entered = None


def seen(function: Any) -> Any:
    """A function of PyTorch: a mode may do something else."""

    def called(*given: Any, **words: Any) -> Any:
        mode, Mode.entered = Mode.entered, None
        try:
            if mode:
                return mode.__torch_function__(called, (), given, words)  # type: ignore[attr-defined]
            return function(*given, **words)
        finally:
            Mode.entered = mode

    return called


def of(values: Any) -> Tensor:
    return np.asarray(values).view(Tensor)


TORCH: dict[str, Any] = {
    "no_grad": nullcontext,
    "empty": seen(lambda shape, dtype, device="": of(np.empty(shape, dtype))),
    "empty_like": seen(lambda one: of(np.empty_like(one))),
    "zeros_like": seen(lambda one: of(np.zeros_like(one))),
    "zeros": lambda shape, dtype, device: of(np.zeros(shape, dtype)),
    "full": np.full,
    "arange": lambda count, dtype, device="": np.arange(count, dtype=dtype),
    "sum": np.sum,
    **{name: getattr(np, name) for name in ("float32", "uint8", "int32")},
    "cuda": SimpleNamespace(current_stream=lambda: SimpleNamespace(cuda_stream=77)),
}
"""The stand-in's functions."""


def rms_norm_forward(x: Any, w: Any, eps: float, offset: float, mode: int, by: Any) -> Any:
    assert (offset, mode, by) == (0.0, 1, None)
    y = TORCH["empty"](x.shape, dtype=x.dtype)
    rstd = TORCH["empty"]((len(x),), dtype=np.float32)
    rstd[...] = 1 / np.sqrt((x * x).mean(1) + eps)
    y[...] = x * rstd[:, None] * w
    return y, x, rstd, 16, 4, mode


def rms_norm_backward(dy: Any, x: Any, w: Any, rstd: Any, *settings: Any) -> Any:
    assert settings == (0.0, 1, 16, 4, False, None)
    return layer_norm_backward(dy, x, w, w, 0 * rstd, rstd, centred=False)[:2]


def layer_norm_forward(x: Any, w: Any, b: Any, eps: float) -> Any:
    y, off = TORCH["empty"](x.shape, dtype=x.dtype), x - x.mean(1, keepdims=True)
    y[...] = w * off / np.sqrt((off * off).mean(1, keepdims=True) + eps) + b
    return y, x, None, None, 16, 4


def layer_norm_backward(
    dy: Any, x: Any, w: Any, b: Any, mean: Any, rstd: Any, centred: bool = True
) -> Any:
    dx, each = TORCH["zeros_like"](dy), w * dy
    normal = (x - mean[:, None]) * rstd[:, None]
    along = normal * (each * normal).mean(1, keepdims=True)
    dx[...] = rstd[:, None] * (each - along - centred * each.mean(1, keepdims=True))
    return dx, of((dy * normal).sum(0)), of(dy.sum(0))


def swiglu_forward(a: Any, b: Any) -> Any:
    c = TORCH["empty_like"](a)
    c[...] = a / (1 + np.exp(-a)) * b
    return a, b, c


class CrossEntropy:
    """A kernel of Triton's, which takes a grid first."""

    def __getitem__(self, grid: tuple[int]) -> Any:
        return lambda **given: self.launch(grid, **given)

    def launch(self, grid: tuple[int], **given: Any) -> None:
        x, targets = given["X_ptr"], given["Y_ptr"]
        assert grid == (len(x),) and not given["HAS_GRADIENTS"] and given["reduction"] == "none"
        assert len(given) == 29, "the arguments of liger-kernel 0.8.5, and the number of warps"
        powers = np.exp(x.astype(float))
        given["loss_ptr"][...] = np.log(powers.sum(1)) - x[np.arange(len(x)), targets]


LIGER: dict[str, dict[str, Any]] = {
    "liger_kernel.ops.utils": {"calculate_settings": lambda columns: (16, 4)},
    "liger_kernel.ops.rms_norm": {
        "rms_norm_forward": rms_norm_forward,
        "rms_norm_backward": rms_norm_backward,
    },
    "liger_kernel.ops.layer_norm": {
        "layer_norm_forward": layer_norm_forward,
        "layer_norm_backward": layer_norm_backward,
    },
    "liger_kernel.ops.swiglu": {"swiglu_forward": swiglu_forward},
    "liger_kernel.ops.cross_entropy": {
        "MAX_FUSED_SIZE": 32768,
        "liger_cross_entropy_kernel": CrossEntropy(),
    },
}


def rmsnorm_fwd(
    x: Any, w: Any, out: Any, bias: Any = None, *, eps: float, is_layernorm: bool = False
) -> None:
    if is_layernorm:
        out[...] = layer_norm_forward(x, w, bias, eps)[0]
    else:
        out[...] = rms_norm_forward(x, w, eps, 0.0, 1, None)[0]


def rmsnorm_bwd(x: Any, w: Any, dy: Any, rstd: Any, dx: Any, dw: Any, **given: Any) -> None:
    """The first block has all rows."""
    mean, centred = given["mean"], given["is_layernorm"]
    sums = layer_norm_backward(dy, x, w, w, 0 * rstd if mean is None else mean, rstd, centred)
    dx[...] = sums[0]
    for part, total in zip((dw, given["db_partial"]), sums[1:], strict=True):
        if part is not None:
            assert part.shape == (given["sm_count"], x.shape[1]) and part.dtype == np.float32
            part[...] = 0
            part[0] = total


def softmax(x: Any, out: Any) -> None:
    powers = np.exp(x.astype(float))
    out[...] = powers / powers.sum(1, keepdims=True)


def cross_entropy(x: Any, targets: Any, *given: Any) -> None:
    logits, losses, lse, dx, weight = given
    assert logits is lse is weight is None and losses.dtype == np.float32
    places = np.arange(len(x)), targets
    losses[...] = np.log(np.exp(x.astype(float)).sum(1)) - x[places]
    if dx is not None:
        softmax(x, dx)
        dx[places] -= 1


def rotary(x: Any, cos: Any, sin: Any, *given: Any) -> None:
    """Of (batch, tokens, heads, head_size)."""
    *absent, out, tokens, interleaved, conjugate = given
    assert absent == [None, None] and not interleaved and not conjugate and tokens == x.shape[1]
    first, second = np.split(x, 2, axis=3)
    cos, sin = cos[:, None], sin[:, None]
    out[...] = np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=3)


QUACK: dict[str, dict[str, Any]] = {
    "quack.softmax": {"_softmax_fwd": softmax},
    "quack.rmsnorm": {
        "_rmsnorm_fwd": rmsnorm_fwd,
        "_rmsnorm_bwd": rmsnorm_bwd,
        "get_sm_count": lambda columns, device: 3,
    },
    "quack.cross_entropy": {"cross_entropy_fwd_out": cross_entropy},
    "quack.rotary": {"_rotary_fwd_out": rotary},
}


def attend(causal: bool, *given: Any) -> Any:
    """Of (batch, heads, tokens, head_size)."""
    q, k, v = given
    group = q.shape[1] // k.shape[1]
    keys, values = (np.asarray(one, float).repeat(group, axis=1) for one in (k, v))
    scores = np.asarray(q, float) @ keys.swapaxes(2, 3) / np.sqrt(q.shape[3])
    seen = np.tril(np.ones(scores.shape[2:], bool), k.shape[2] - q.shape[2])
    powers = np.exp(np.where(seen | (not causal), scores, -np.inf))
    return powers / powers.sum(-1, keepdims=True) @ values


def flash_attention(*given: Any, causal: bool, out: Any) -> None:
    """Of (batch, tokens, heads, head_size)."""
    out[...] = attend(causal, *(one.swapaxes(1, 2) for one in given)).swapaxes(1, 2)


class Node:
    """A tensor of a graph of cuDNN."""

    def set_output(self, wanted: bool) -> Node:
        assert wanted
        return self

    def set_dim(self, shape: list[int]) -> Node:
        self.shape = shape
        return self

    def set_stride(self, steps: list[int]) -> None:
        self.steps = steps


class Graph:
    """One of cuDNN, with one node."""

    def __init__(self, handle: str, **types: str) -> None:
        assert handle == "handle" and types["compute_data_type"] == "FLOAT"

    def tensor_like(self, tensor: Any) -> Node:
        return Node()

    def sdpa(self, *nodes: Node, attn_scale: float, generate_stats: bool, **mask: Any) -> Any:
        assert not generate_stats
        self.scale, self.mask, self.inputs, self.output = attn_scale, mask, nodes, Node()
        return self.output, None

    def build(self, modes: list[str]) -> None:
        assert modes == ["A"] and self.output.shape

    def get_workspace_size(self) -> int:
        return 0

    def execute(self, memory: dict[Node, Any], workspace: Any, handle: str) -> None:
        q, *given = (memory[node] for node in self.inputs)
        assert self.scale == pytest.approx(q.shape[3] ** -0.5)
        assert self.mask in ({}, {"diagonal_alignment": "last", "diagonal_band_right_bound": 0})
        memory[self.output][...] = attend(bool(self.mask), q, *given)


CUDNN = {
    "create_handle": lambda: "handle",
    "set_stream": lambda handle, stream: None,
    "pygraph": Graph,
    "data_type": SimpleNamespace(HALF="HALF", BFLOAT16="BFLOAT16", FLOAT="FLOAT"),
    "heur_mode": SimpleNamespace(A="A"),
    "diagonal_alignment": SimpleNamespace(BOTTOM_RIGHT="last"),
}


class Decode:
    """FlashInfer's, of pages in the layout HND."""

    causal = False
    queries = 1

    def __init__(self, workspace: Any, layout: str, use_tensor_cores: bool = True) -> None:
        assert workspace.nbytes == 2**27 and layout == "HND" and use_tensor_cores

    def plan(self, starts: Any, pages: Any, filled: Any, *sizes: int, q_data_type: Any) -> None:
        assert starts.tolist() == [*range(len(pages) + 1)] and set(filled) == {sizes[3]}
        self.sizes = sizes

    def run(self, q: Any, cache: tuple[Any, Any], out: Any = None) -> Any:
        heads, kv_heads, size, keys = self.sizes
        assert cache[0].shape[1:] == (kv_heads, keys, size)
        asked = q.reshape(-1, self.queries, heads, size).swapaxes(1, 2)
        found = of(attend(self.causal, asked, *cache).swapaxes(1, 2).reshape(q.shape))
        if out is not None:
            out[...] = found
        return found


class Prefill(Decode):
    def plan(self, *given: Any, causal: bool = False, **words: Any) -> None:
        asked, *others = given
        super().plan(*others, **words)
        self.queries, self.causal = int(asked[1]), causal


def flashinfer_rmsnorm(x: Any, w: Any, eps: float, out: Any) -> None:
    x = x.astype(float)
    out[...] = x / np.sqrt((x * x).mean(1, keepdims=True) + eps) * w


FLASHINFER = {
    "rmsnorm": flashinfer_rmsnorm,
    "BatchDecodeWithPagedKVCacheWrapper": Decode,
    "BatchPrefillWithPagedKVCacheWrapper": Prefill,
}

MODULES: dict[str, dict[str, Any]] = {
    "torch": TORCH,
    "torch.overrides": {"TorchFunctionMode": Mode},
    **LIGER,
    **QUACK,
    "flash_attn.cute.interface": {"_flash_attn_fwd": flash_attention},
    "cudnn": CUDNN,
    "flashinfer": FLASHINFER,
}


@pytest.fixture(autouse=True)
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the place of the packages."""
    for name, content in MODULES.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    for name in {name.rpartition(".")[0] for name in MODULES} - {"", *MODULES}:
        while name:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
            name = name.rpartition(".")[0]
    monkeypatch.setattr(pytorch, "queue_of", lambda torch, device: nullcontext())
    monkeypatch.setattr(pytorch, "tensors", lambda operands: [of(a) for a in operands.values()])
    monkeypatch.setattr(Tensor, "copies", 0)


SHAPES: dict[str, dict[str, Any]] = {
    "rmsnorm": {"rows": 5, "columns": 12, "epsilon": 0.01},
    "layernorm": {"rows": 5, "columns": 12, "epsilon": 0.01},
    "rmsnorm_backward": {"rows": 5, "columns": 12},
    "layernorm_backward": {"rows": 5, "columns": 12},
    "cross_entropy": {"rows": 5, "columns": 12},
    "swiglu": {"rows": 3, "columns": 11},
    "softmax": {"rows": 5, "columns": 12},
    "cross_entropy_backward": {"rows": 5, "columns": 12},
    "rope": {"tokens": 5, "heads": 3, "head_size": 8, "batch": 2},
    "attention": {"queries": 5, "keys": 9, "heads": 4, "kv_heads": 2, "head_size": 64, "batch": 2},
}

COPIES = {
    "rmsnorm_backward": 1,  # sums over rows
    "layernorm_backward": 2,
    "cross_entropy/quack": 1,
    "attention/flashinfer": 1,
}
"""By workload or kernel: all but FlashInfer's of several queries are small."""


def launched(one: Kernel, **settings: Any) -> Operands:
    device = fake.FakeDevice()
    problem = build(one.workload, one.precisions[0], {**SHAPES[one.workload], **settings})
    assert not one.refuses(problem)
    operands = allocate(device, problem, 3)
    launch = one.prepare(device, operands)
    poison(operands)
    Tensor.copies = 0
    launch()
    return operands


@pytest.mark.parametrize("one", KERNELS.values(), ids=KERNELS)
def test_each_computes_its_workload_and_copies_no_matrix(one: Kernel) -> None:
    assert verify(fake.FakeDevice(), launched(one), 0).reason == ""
    assert Tensor.copies == COPIES.get(one.id, COPIES.get(one.workload, 0))


@pytest.mark.parametrize("name", ["fa4", "cudnn", "flashinfer"])
@pytest.mark.parametrize("causal", ["off", "on"])
@pytest.mark.parametrize("queries", [1, 5, 9])
def test_causal_queries_are_the_last_ones(name: str, causal: str, queries: int) -> None:
    operands = launched(KERNELS[f"attention/{name}"], causal=causal, queries=queries)
    assert verify(fake.FakeDevice(), operands, 0).reason == ""
    assert Tensor.copies == (name == "flashinfer" and queries > 1)


def test_what_packages_lack_is_told() -> None:
    refuses = KERNELS["cross_entropy_backward/quack"].refuses
    problem = build("cross_entropy_backward", "bf16", {"rows": 5, "columns": 12, "scale": 0.5})
    assert refuses(problem) == "quack has gradients of each row's loss: scale must be 1"
    told = KERNELS["rope/quack"].refuses(build("rope", "bf16", {"tokens": 5, "head_size": 12}))
    assert told == "quack needs head_size to be a multiple of 8, not 12"
    shape = {"queries": 1, "keys": 9, "head_size": 96}
    told = KERNELS["attention/flashinfer"].refuses(build("attention", "bf16", shape))
    assert told == "flashinfer has head_size 64, 128, 256 only"


def test_a_package_that_fails_fails_its_row() -> None:
    def refuse(*_: Any) -> None:
        raise TypeError("got an unexpected keyword")

    sys.modules["liger_kernel.ops.swiglu"].swiglu_forward = refuse  # type: ignore[attr-defined]
    with pytest.raises(KernelError, match="Liger's swiglu: got an unexpected keyword"):
        launched(KERNELS["swiglu/liger"])


@pytest.mark.parametrize("one", KERNELS.values(), ids=KERNELS)
def test_without_the_package_the_reason_is_one_line(
    monkeypatch: pytest.MonkeyPatch, one: Kernel
) -> None:
    monkeypatch.setattr(pytorch, "without_torch_on_a_gpu", lambda device: "")
    monkeypatch.setattr(packages, "find_spec", lambda name: None)
    told = one.unavailable(None)
    assert " is not installed: pip install " in told and "\n" not in told
    monkeypatch.setattr(packages, "find_spec", lambda name: SimpleNamespace())
    assert one.unavailable(None) == told, "another package has a module of that name"
    monkeypatch.setattr(packages, "version", lambda name: f"of {name}")
    assert one.unavailable(None) == ""
    assert one.compiler().endswith(", PyTorch of torch")


def test_operands_in_host_memory_are_refused() -> None:
    problem = replace(build("rmsnorm", "bf16", SHAPES["rmsnorm"]), host="pinned")
    told = KERNELS["rmsnorm/liger"].refuses(problem)
    assert told == "PyTorch takes operands in device memory"


def test_rows_that_triton_cannot_hold_are_refused() -> None:
    refuses = KERNELS["swiglu/liger"].refuses
    assert refuses(build("swiglu", "bf16", {"columns": 65536})) == ""
    told = refuses(build("swiglu", "bf16", {"columns": 65537}))
    assert told == "liger takes rows of up to 65536 elements"
