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
    "empty": seen(lambda shape, dtype: of(np.empty(shape, dtype))),
    "empty_like": seen(lambda one: of(np.empty_like(one))),
    "zeros_like": seen(lambda one: of(np.zeros_like(one))),
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

MODULES: dict[str, dict[str, Any]] = {
    "torch": TORCH,
    "torch.overrides": {"TorchFunctionMode": Mode},
    **LIGER,
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
}

COPIES = {"rmsnorm_backward": 1, "layernorm_backward": 2}
"""Sums over rows, which are small."""


def launched(one: Kernel) -> Operands:
    device = fake.FakeDevice()
    operands = allocate(device, build(one.workload, one.precisions[0], SHAPES[one.workload]), 3)
    launch = one.prepare(device, operands)
    poison(operands)
    Tensor.copies = 0
    launch()
    return operands


@pytest.mark.parametrize("one", KERNELS.values(), ids=KERNELS)
def test_each_computes_its_workload_and_copies_no_matrix(one: Kernel) -> None:
    assert verify(fake.FakeDevice(), launched(one), 0).reason == ""
    assert Tensor.copies == COPIES.get(one.workload, 0)


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
    assert one.unavailable(None) == ""
    monkeypatch.setattr(packages, "version", lambda name: f"of {name}")
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
