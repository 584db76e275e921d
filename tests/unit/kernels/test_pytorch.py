"""PyTorch's kernels on a stand-in that does what PyTorch documents."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import fake
import numpy as np
import pytest

from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.libraries import pytorch, pytorch_products
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.model.encoding import decode, encode
from rooflab.model.precision import BF16, FP8_E4M3, DataType
from rooflab.model.problem import Problem
from rooflab.workloads import build

KERNELS = [one for one in discover().all() if one.backend == "torch"]
ALL_ON_GPUS = [one for one in KERNELS if one.device_kind == "cuda"]
ON_GPUS = [one for one in ALL_ON_GPUS if one.workload == "attention"]
LAYERS = [one for one in ALL_ON_GPUS if one.workload != "attention"]


class Numbers(np.ndarray[Any, Any]):
    """A tensor that was computed: its type does not matter."""

    def to(self, kind: Any) -> Numbers:
        return self.astype(float).view(Numbers)

    def contiguous(self) -> Numbers:
        return self


class Tensor:
    """An array, whose numbers may be stored as bits."""

    def __init__(self, array: Any, bits: DataType | None = None) -> None:
        self.array, self.bits = array, bits
        self.device = SimpleNamespace(type="cuda")
        self.dtype = "wide"

    @property
    def numbers(self) -> Any:
        return decode(np, self.array, self.bits) if self.bits else self.array.astype(float)

    def view(self, kind: Any) -> Tensor:
        if isinstance(kind, tuple):
            return Tensor(self.array.reshape(kind), self.bits)
        bits = {"bfloat16": BF16, "float8_e4m3fn": FP8_E4M3}[kind]
        assert self.array.dtype == bits.storage
        return Tensor(self.array, bits)

    def copy_(self, numbers: Any) -> None:
        numbers = getattr(numbers, "numbers", numbers)
        self.array[...] = encode(np, numbers, self.bits) if self.bits else numbers

    __array_ufunc__ = None  # numbers times a tensor are numbers

    def __array__(self, *_: Any, **__: Any) -> Any:
        return self.array

    def __mul__(self, other: Any) -> Any:
        return self.numbers * getattr(other, "numbers", other)

    __rmul__ = __mul__

    def __neg__(self) -> Any:
        return -self.numbers

    def __rmatmul__(self, other: Any) -> Any:
        return other @ self.numbers

    def __matmul__(self, other: Any) -> Any:
        return self.numbers @ getattr(other, "numbers", other)

    def __and__(self, bits: int) -> Any:
        return (self.array & bits).view(Numbers)

    def __rshift__(self, bits: int) -> Any:
        return (self.array >> bits).view(Numbers)

    def __lshift__(self, bits: int) -> Any:
        return (self.array << bits).view(Numbers)

    def __getitem__(self, index: Any) -> Tensor:
        return Tensor(self.array[index], self.bits)

    @property
    def T(self) -> Any:  # noqa: N802  PyTorch's name
        return self.numbers.T

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.array.shape)

    def repeat_interleave(self, count: int, dim: int) -> Any:
        return self.numbers.repeat(count, axis=dim)

    def __setitem__(self, index: Any, numbers: Any) -> None:
        Tensor(self.array[index], self.bits).copy_(numbers)

    def __sub__(self, other: Any) -> Any:
        return self.numbers - getattr(other, "numbers", other)

    def to(self, kind: str) -> Any:
        assert kind in (self.dtype, "float32", "float64")
        return self.numbers.view(Numbers)

    def unsqueeze(self, axis: int) -> Tensor:
        return Tensor(np.expand_dims(self.array, axis), self.bits)

    def new_full(self, shape: Any, value: float) -> Any:
        return np.full(shape, value)

    def scatter_add_(self, axis: int, places: Tensor, values: Any) -> None:
        assert axis == 1
        numbers = self.numbers
        numbers[np.arange(len(numbers))[:, None], places.array] += values
        self.copy_(numbers)

    def scatter_(self, axis: int, places: Tensor, values: Any) -> None:
        assert axis == 0
        self.array[places.array] = values

    def mul_(self, factor: float) -> None:
        self.copy_(self.numbers * factor)

    def long(self) -> Tensor:
        assert self.array.dtype == np.int32
        return self

    def reshape(self, *shape: Any) -> Tensor:
        return Tensor(self.array.reshape(*shape), self.bits)

    def chunk(self, count: int, dim: int) -> list[Tensor]:
        return [Tensor(part, self.bits) for part in np.split(self.array, count, dim)]

    def tril(self, diagonal: int) -> Tensor:
        return Tensor(np.tril(self.array, diagonal))


class Torch:
    """What was called, and whether it was on the stream."""

    def __init__(self) -> None:
        self.stream = ""
        self.backend = ""
        self.compiled: list[Any] = []
        self.compiling = 0
        self.masks: list[str] = []

    def attend(
        self, q: Any, k: Any, v: Any, attn_mask: Any = None, is_causal: bool = False, **words: bool
    ) -> Any:
        assert self.stream == "rooflab's"
        group = q.numbers.shape[1] // k.numbers.shape[1]
        assert words == {"enable_gqa": group > 1}
        keys, values = (one.numbers.repeat(group, axis=1) for one in (k, v))
        scores = q.numbers @ keys.swapaxes(2, 3) / np.sqrt(q.numbers.shape[3])
        seen = np.ones(scores.shape[2:], bool)
        if is_causal:
            seen = np.tril(seen)
        elif isinstance(attn_mask, tuple):
            assert attn_mask[:2] == seen.shape
            seen = np.tril(seen, attn_mask[1] - attn_mask[0])
        elif attn_mask is not None:
            seen = attn_mask.array
        self.masks.append("causal" if is_causal else type(attn_mask).__name__)
        weights = np.exp(np.where(seen, scores, -np.inf))
        return weights / weights.sum(axis=-1, keepdims=True) @ values

    def saving(self, backend: str) -> Any:
        """A forward pass, of which the shape of what it saves and its last results matter."""

        def forward(q: Any, k: Any, v: Any, *others: Any) -> tuple[Any, ...]:
            assert self.stream == "rooflab's"
            assert others[:-1] == ((None, True, 0.0) if backend == "cudnn" else (0.0,))
            shape = (*q.shape[:3], 1) if backend == "cudnn" else q.shape[:3]
            return (None, Tensor(np.zeros(shape)), *self.ENDS, "seed", "offset", None)

        return forward

    ENDS = ("first queries", "first keys", "queries", "keys")

    def gradients_by_flash(self, *given: Any) -> tuple[Any, ...]:
        assert given[6:11] == (*self.ENDS, 0.0) and given[12:] == ("seed", "offset")
        assert given[5].array.ndim == 3
        return self.attention_gradients(*given[:6], causal=given[11])

    def gradients_by_cudnn(self, *given: Any) -> tuple[Any, ...]:
        assert given[6:-1] == ("seed", "offset", None, *self.ENDS, 0.0)
        assert given[5].array.ndim == 4
        return self.attention_gradients(*given[:6], causal=given[-1])

    def attention_gradients(self, *given: Any, causal: bool) -> tuple[Any, ...]:
        assert self.stream == "rooflab's"
        dout, q, k, v, o, lse = (one.numbers for one in given)
        group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
        keys, values = (one.repeat(group, axis=1) for one in (k, v))
        weights = np.exp(q @ keys.mT * scale - lse.reshape(*q.shape[:3], 1))
        if causal:
            weights = np.tril(weights, k.shape[2] - q.shape[2])
        changes = weights * (dout @ values.mT - (dout * o).sum(3, keepdims=True)) * scale
        found = (changes.mT @ q, weights.mT @ dout)
        shape = (*k.shape[:2], group, *k.shape[2:])
        return (changes @ keys, *(one.reshape(shape).sum(2) for one in found))

    def layer_norm(self, x: Any, shape: Any, w: Any, b: Any, epsilon: float) -> Any:
        assert self.stream == "rooflab's" and shape == w.numbers.shape
        off = x.numbers - x.numbers.mean(axis=1, keepdims=True)
        variance = (off**2).mean(axis=1, keepdims=True)
        return off / np.sqrt(variance + epsilon) * w.numbers + b.numbers

    def rms_norm(self, x: Any, shape: Any, w: Any, epsilon: float) -> Any:
        assert self.stream == "rooflab's" and shape == w.numbers.shape
        return x.numbers / np.sqrt((x.numbers**2).mean(1, keepdims=True) + epsilon) * w.numbers

    def add(self, a: Any, b: Any, out: Any) -> None:
        assert self.stream == "rooflab's"
        out.copy_(getattr(a, "numbers", a) + getattr(b, "numbers", b))

    def mul(self, a: Any, b: Any, out: Any) -> None:
        assert self.stream == "rooflab's"
        out.copy_(a * b)

    def cat(self, parts: Any, dim: int) -> Tensor:
        assert self.stream == "rooflab's"
        return Tensor(np.concatenate([getattr(one, "numbers", one) for one in parts], dim))

    def cross_entropy(self, x: Any, targets: Any, reduction: str) -> Any:
        assert self.stream == "rooflab's" and reduction == "none"
        sums = np.log(np.exp(x.numbers).sum(axis=1))
        return sums - x.numbers[np.arange(len(sums)), targets.array]

    def rms_norm_backward(
        self, dy: Any, x: Any, shape: Any, rstd: Any, w: Any, wanted: Any
    ) -> tuple[Any, ...]:
        zero = Tensor(0 * rstd.array)
        return self.layer_norm_backward(dy, x, shape, zero, rstd, w, None, wanted, centred=False)[
            :2
        ]

    def layer_norm_backward(
        self, dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, *others: Any, **words: bool
    ) -> tuple[Any, ...]:
        w, _, wanted = others
        assert self.stream == "rooflab's" and all(wanted) and shape == [*w.numbers.shape]
        normal, each = (x - mean) * rstd.numbers, dy * w
        along = normal * (each * normal).mean(axis=1, keepdims=True)
        offset = each.mean(axis=1, keepdims=True) * words.get("centred", True)
        sums = (dy * normal).sum(axis=0), dy.numbers.sum(axis=0)
        return (rstd * (each - offset - along), *sums)

    def embedding(self, ids: Any, table: Any) -> Any:
        assert self.stream == "rooflab's"
        return table.numbers[ids.array]

    def index_select(self, table: Any, axis: int, ids: Any, out: Any = None) -> Any:
        assert axis == 0
        found = self.embedding(ids, table)
        return out.copy_(found) if out else found

    def index(self, table: Any, places: list[Any], out: Any) -> None:
        out.copy_(self.embedding(places[0], table))

    def sum(self, x: Any, axis: int, out: Any = None, **more: Any) -> Any:
        assert self.stream == "rooflab's"
        found = np.sum(x, axis, **more)
        return out.copy_(found) if out else found

    def topk(self, x: Tensor, count: int, axis: int) -> tuple[Tensor, Tensor]:
        assert self.stream == "rooflab's"
        places = np.argsort(-x.numbers, axis)[:, :count]
        return Tensor(np.take_along_axis(x.numbers, places, axis)), Tensor(places)

    def pad(self, numbers: Any, ends: tuple[int, int]) -> Any:
        assert self.stream == "rooflab's"
        return np.pad(numbers, ((0, 0), ends))

    def softmax(self, x: Any, axis: int, out: Any = None) -> Any:
        assert self.stream == "rooflab's"
        powers = np.exp(x.numbers)
        shares = powers / powers.sum(axis, keepdims=True)
        return out.copy_(shares) if out else shares

    def fused_adamw(self, *lists: list[Any], **given: Any) -> None:
        assert self.stream == "rooflab's" and not given["amsgrad"] and not given["maximize"]
        (p,), (g,), (m,), (v,), none, (step,) = lists
        assert none == []
        m.copy_(given["beta1"] * m.numbers + (1 - given["beta1"]) * g.numbers)
        v.copy_(given["beta2"] * v.numbers + (1 - given["beta2"]) * g.numbers**2)
        first = m.numbers / (1 - given["beta1"] ** step)
        root = np.sqrt(v.numbers / (1 - given["beta2"] ** step)) + given["eps"]
        p.copy_(p.numbers - given["lr"] * (first / root + given["weight_decay"] * p.numbers))

    def mm(self, x: Any, w: Any, out: Any) -> None:
        assert self.stream == "rooflab's"
        out.copy_(x @ w)

    def grouped_mm(self, x: Any, w: Any, offs: Any) -> Any:
        assert self.stream == "rooflab's" and offs.array.dtype == np.int32
        rows = zip(np.split(x.numbers, offs.array[:-1]), w.numbers, strict=True)
        return np.concatenate([some @ weights for some, weights in rows])

    def scaled_mm(self, x: Any, w: Any, *scales: Any, out_dtype: str, out: Any) -> None:
        assert self.stream == "rooflab's" and out_dtype == "bfloat16"
        of_x, of_w = (one.repeat(128, axis=1 - i) for i, one in enumerate(scales))
        out.copy_((x.numbers * of_x) @ (w * of_w.repeat(128, axis=1)[:, : w.shape[1]]))

    def pack(self, bits: Any, inner: int) -> Any:
        """Its layout is PyTorch's own: here a number for each weight, those in high bits first."""
        assert self.stream == "rooflab's" and inner == 8 and bits.dtype == np.uint8
        return np.stack([bits >> 4, bits & 15], 2).reshape(len(bits), -1)

    def int4_mm(self, x: Any, packed: Any, group: int, pairs: Any) -> Any:
        assert self.stream == "rooflab's" and pairs.shape == (x.shape[1] // group, len(packed), 2)
        scales, zeros = pairs.transpose(2, 1, 0).repeat(group, axis=2)
        return x @ ((packed.astype(float) - 8) * scales + zeros).T

    def linear(self, x: Tensor, w: Tensor, bias: Tensor | None = None) -> Tensor:
        assert self.stream == "rooflab's"
        return Tensor(x.numbers @ w.T + (bias.numbers if bias else 0))

    def addmm(self, bias: Tensor, x: Tensor, w: Any, out: Tensor) -> None:
        assert self.stream == "rooflab's"
        out.copy_(bias.numbers + x.numbers @ w)

    def gelu(self, z: Tensor, approximate: str, out: Tensor | None = None) -> Any:
        assert self.stream == "rooflab's" and approximate == "tanh"
        inner = np.sqrt(2 / np.pi) * (z.numbers + 0.044715 * z.numbers**3)
        found = 0.5 * z.numbers * (1 + np.tanh(inner))
        return out.copy_(found) if out else found

    def silu(self, x: Any) -> Any:
        assert self.stream == "rooflab's"
        return x.numbers / (1 + np.exp(-x.numbers))

    def compile(self, function: Any, dynamic: bool) -> Any:
        assert not dynamic
        self.compiled.append(function)
        return function

    @contextmanager
    def patch(self, **options: int) -> Iterator[None]:
        assert options == {"compile_threads": 1} and self.stream == ""
        self.compiling += 1
        yield

    def on(self, stream: str) -> Queue:
        return Queue(self, stream)

    @contextmanager
    def choose(self, backend: str) -> Iterator[None]:
        self.backend = backend
        yield


class Queue:
    """The context of a stream, which may be entered again."""

    def __init__(self, torch: Torch, stream: str) -> None:
        self.torch, self.stream = torch, stream

    def __enter__(self) -> None:
        self.torch.stream = self.stream

    def __exit__(self, *_: object) -> None:
        self.torch.stream = ""


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Torch:
    """The stand-in, in the place of the package."""
    here = Torch()
    module, attention, bias = (ModuleType(f"torch{name}") for name in ("", ".nn.attention", ".b"))
    cuda = SimpleNamespace(
        is_available=lambda: True, ExternalStream=lambda ptr: f"rooflab's{ptr}", stream=here.on
    )
    functional = SimpleNamespace(
        scaled_dot_product_attention=here.attend,
        layer_norm=here.layer_norm,
        rms_norm=here.rms_norm,
        cross_entropy=here.cross_entropy,
        silu=here.silu,
        linear=here.linear,
        gelu=here.gelu,
        embedding=here.embedding,
        pad=here.pad,
    )
    aten = SimpleNamespace(
        index=here.index,
        gelu=SimpleNamespace(out=here.gelu),
        native_layer_norm_backward=here.layer_norm_backward,
        _fused_rms_norm_backward=here.rms_norm_backward,
        _scaled_dot_product_flash_attention=here.saving("flash"),
        _scaled_dot_product_cudnn_attention=here.saving("cudnn"),
        _scaled_dot_product_flash_attention_backward=here.gradients_by_flash,
        _scaled_dot_product_cudnn_attention_backward=here.gradients_by_cudnn,
    )
    vars(bias).update(causal_lower_right=lambda queries, keys: (queries, keys))
    names = {name: name for name in pytorch.BACKENDS.values()}
    vars(attention).update(SDPBackend=SimpleNamespace(**names), sdpa_kernel=here.choose, bias=bias)
    vars(module).update(
        from_dlpack=Tensor,
        bfloat16="bfloat16",
        bool=bool,
        ones=lambda *shape, dtype, device: Tensor(np.ones(shape, dtype)),
        no_grad=nullcontext,
        compile=here.compile,
        float32="float32",
        float64="float64",
        float8_e4m3fn="float8_e4m3fn",
        abs=np.abs,
        amax=np.max,
        clamp=lambda numbers, **least: np.maximum(numbers, least["min"]),
        full=lambda shape, value, dtype, device: np.full(shape, value),
        triu=np.triu,
        exp=np.exp,
        _fused_adamw_=here.fused_adamw,
        mm=here.mm,
        addmm=here.addmm,
        add=here.add,
        mul=here.mul,
        cat=here.cat,
        pow=np.power,
        rsqrt=lambda numbers: 1 / np.sqrt(numbers),
        stack=lambda parts, dim: np.stack(parts, dim).view(Numbers),
        zeros_like=np.zeros_like,
        _grouped_mm=here.grouped_mm,
        _convert_weight_to_int4pack=here.pack,
        _weight_int4pack_mm=here.int4_mm,
        _scaled_mm=here.scaled_mm,
        cuda=cuda,
        mean=lambda x, axis, keepdim: np.mean(x, axis, keepdims=keepdim),
        sum=here.sum,
        softmax=here.softmax,
        index_select=here.index_select,
        topk=here.topk,
        gather=lambda x, axis, places: np.take_along_axis(x, places.array, axis),
        argsort=lambda x, stable: Tensor(np.argsort(x.array, stable=stable)),
        div=lambda x, by, rounding_mode: x.array // by,
        searchsorted=lambda x, values, right: np.searchsorted(x, values, "right"),
        arange=lambda count, device: np.arange(count),
        eq=lambda numbers, tensor: Tensor(numbers == tensor.array),
        ops=SimpleNamespace(aten=aten),
        nn=SimpleNamespace(functional=functional, attention=attention),
    )
    modules = {"torch": module, "torch.nn": ModuleType("torch.nn")}
    modules |= {"torch.nn.attention": attention, "torch.nn.attention.bias": bias}
    inductor = ModuleType("torch._inductor")
    vars(inductor).update(config=SimpleNamespace(patch=here.patch))
    modules |= {"torch._inductor": inductor}
    for name, one in modules.items():
        monkeypatch.setitem(sys.modules, name, one)
    return here


class Gpu(fake.FakeDevice):
    """The exact device with a stream."""

    kind = "cuda"
    stream: Any = SimpleNamespace(ptr="")


def problem(queries: int, keys: int, precision: str, causal: str) -> Problem:
    sizes = {"heads": 4, "kv_heads": 2, "head_size": 8, "batch": 2}
    shape = {"queries": queries, "keys": keys, **sizes, "causal": causal}
    return build("attention", precision, shape)


def launched(one: Kernel, problem: Problem) -> Operands:
    device = Gpu()
    operands = allocate(device, problem, 3)
    launch = one.prepare(device, operands)
    poison(operands)
    launch()
    return operands


@pytest.mark.parametrize("one", ON_GPUS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("queries", "keys", "causal", "masks"),
    [
        (5, 9, "off", {"NoneType"}),
        (1, 9, "on", {"NoneType"}),
        (9, 9, "on", {"causal"}),
        (5, 9, "on", {"tuple", "Tensor"}),
    ],
)
def test_every_backend_is_asked_for_the_same(
    torch: Torch, one: Kernel, queries: int, keys: int, causal: str, masks: set[str]
) -> None:
    for precision in one.precisions:
        asked = problem(queries, keys, precision, causal)
        assert not one.refuses(asked)
        operands = launched(one, asked)
        assert verify(fake.FakeDevice(), operands, 0).reason == ""
        assert torch.backend == pytorch.BACKENDS[one.name.removeprefix("torch_")]
    assert set(torch.masks) <= masks
    if masks == {"tuple", "Tensor"}:
        assert torch.masks[0] == ("tuple" if one.name == "torch_flash" else "Tensor")


SHAPES: dict[str, dict[str, Any]] = {
    "layernorm": {"rows": 5, "columns": 12, "epsilon": 0.01},
    "cross_entropy": {"rows": 5, "columns": 12},
    "rmsnorm_backward": {"rows": 5, "columns": 12},
    "layernorm_backward": {"rows": 5, "columns": 12},
    "cross_entropy_backward": {"rows": 5, "columns": 12, "scale": 0.2},
    "embedding": {"tokens": 9, "words": 5, "columns": 12},
    "quantize": {"rows": 5, "columns": 300},
    "route": {"tokens": 5, "experts": 12, "chosen": 3},
    "sort_experts": {"tokens": 5, "experts": 7, "chosen": 3},
    "combine": {"tokens": 5, "columns": 12, "chosen": 3},
    "rmsnorm": {"rows": 5, "columns": 12},
    "add": {"rows": 3, "columns": 11},
    "copy": {"rows": 3, "columns": 11},
    "attention_backward": {
        "queries": 9,
        "keys": 9,
        "heads": 4,
        "kv_heads": 2,
        "head_size": 8,
        "causal": "on",
    },
    "adamw": {"elements": 33, "lr": 0.1, "step": 2},
    "grouped_gemm": {"tokens": 37, "n": 16, "k": 24, "spread": "skewed"},
    "w4a16": {"m": 5, "n": 16, "k": 256},
    "block_gemm": {"m": 5, "n": 144, "k": 512},
    "linear": {"m": 5, "n": 16, "k": 24},
    "swiglu": {"columns": 33},
    "rope": {"tokens": 5, "heads": 2, "head_size": 6, "batch": 2},
}


@pytest.mark.parametrize("one", LAYERS, ids=lambda one: one.id)
def test_every_layer_is_what_its_workload_says(torch: Torch, one: Kernel) -> None:
    for precision in one.precisions:
        operands = launched(one, build(one.workload, precision, SHAPES[one.workload]))
        assert verify(fake.FakeDevice(), operands, 0).reason == ""
    assert len(torch.compiled) == ("compiled" in one.name) * len(one.precisions)
    assert torch.compiling == len(torch.compiled)
    codes = {id(function.__code__) for function in torch.compiled}
    assert len(codes) == len(torch.compiled), "of one code, torch.compile compiles eight versions"


@pytest.mark.parametrize("epilogue", ["gelu", "swiglu"])
@pytest.mark.parametrize("one", [one for one in LAYERS if one.workload == "linear"])
def test_so_are_other_epilogues(torch: Torch, one: Kernel, epilogue: str) -> None:
    for precision in one.precisions:
        problem = build("linear", precision, {**SHAPES["linear"], "epilogue": epilogue})
        assert verify(fake.FakeDevice(), launched(one, problem), 0).reason == ""


GRADIENTS = [one for one in LAYERS if one.workload == "attention_backward"]


@pytest.mark.parametrize("one", GRADIENTS, ids=lambda one: one.name)
def test_gradients_of_any_queries_are_those_of_the_last_tokens(torch: Torch, one: Kernel) -> None:
    for queries, causal in ((5, "on"), (1, "on"), (5, "off")):
        shape = {"queries": queries, "keys": 9, "heads": 4, "kv_heads": 2, "head_size": 8}
        problem = build("attention_backward", "bf16", {**shape, "causal": causal})
        if told := one.refuses(problem):
            assert one.name == "torch_cudnn"
            assert told == (
                "it supports 2 or more queries and keys, these are 1 and 9"
                if queries == 1
                else "it supports as many causal queries as keys, these are 5 and 9"
            )
            continue
        assert one.name != "torch_cudnn" or causal == "off"
        assert verify(fake.FakeDevice(), launched(one, problem), 0).reason == ""


def test_what_tensor_core_kernels_cannot_take_is_told() -> None:
    for one in (*ON_GPUS, *GRADIENTS):
        most = 128 if (one.name, one.workload) == ("torch_cudnn", "attention_backward") else 256
        for size in (12, 264):
            shape = {"queries": 4, "keys": 4, "head_size": size}
            told = one.refuses(build(one.workload, "fp16", shape))
            why = f"it supports a head_size that is a multiple of 8, up to {most}; it is {size}"
            assert told == ("" if "math" in one.name else why)


def test_what_products_cannot_take_is_told() -> None:
    kernels = {one.name: one for one in LAYERS}
    shape = {"tokens": 5, "n": 16, "k": 24}
    refuses = kernels["torch_grouped"].refuses
    assert refuses(build("grouped_gemm", "bf16", shape)) == ""
    told = refuses(build("grouped_gemm", "bf16", {**shape, "k": 12}))
    assert told == "torch_grouped needs K to be a multiple of 8, not 12"
    refuses = kernels["torch_int4"].refuses
    assert refuses(build("w4a16", "bf16", {"m": 1, "n": 16, "k": 384})) == ""
    told = refuses(build("w4a16", "bf16", {"m": 1, "n": 16, "k": 192}))
    assert told == "torch_int4 needs K to be a multiple of 128, not 192"


@pytest.mark.parametrize(
    ("present", "capability", "says"),
    [
        ("2.8.0", "9.0", ""),
        ("2.11.1+cu130", "10.0", ""),
        ("2.7.1", "9.0", "PyTorch 2.7.1 has no grouped product: pip install 'torch>=2.8'"),
        ("2.11.1", "12.0", "on 12.0 it waits for the host"),
    ],
)
def test_where_pytorch_has_no_grouped_product_is_told(
    monkeypatch: pytest.MonkeyPatch, present: str, capability: str, says: str
) -> None:
    monkeypatch.setattr(pytorch_products, "version", lambda name: present)
    monkeypatch.setattr(pytorch_products, "without_torch_on_a_gpu", lambda device: "")
    device = Gpu()
    monkeypatch.setattr(device, "fact", lambda name: capability)
    (one,) = [one for one in LAYERS if one.name == "torch_grouped"]
    told = one.unavailable(device)
    assert told.endswith(says) and bool(told) == bool(says)


def test_without_pytorch_the_reason_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pytorch, "find_spec", lambda name: None)
    monkeypatch.setattr(pytorch, "needs", lambda: lambda device: "")
    for one in KERNELS:
        assert pytorch.without_torch(None) == "PyTorch is not installed: pip install torch"
        assert pytorch.without_torch_on_a_gpu(Gpu()).endswith("pip install torch"), one.name


def test_a_pytorch_without_cuda_is_an_error(torch: Torch) -> None:
    sys.modules["torch"].cuda.is_available = lambda: False
    with pytest.raises(KernelError, match="this PyTorch has no CUDA"):
        launched(ON_GPUS[0], problem(2, 2, "fp16", "off"))


def test_a_backend_that_refuses_fails_its_row(torch: Torch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise RuntimeError("No available kernel. Aborting execution.")

    sys.modules["torch"].nn.functional.scaled_dot_product_attention = refuse
    with pytest.raises(KernelError, match=r"PyTorch's cudnn attention: No available kernel"):
        launched(ON_GPUS[0], problem(2, 2, "fp16", "off"))
