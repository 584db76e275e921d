"""The CPU's kernels are right at odd shapes, whatever the workload."""

from __future__ import annotations

import subprocess
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest
from synthetic import gemm

from rooflab.devices.cpu.device import CpuDevice
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.libraries import cpu
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import verify
from rooflab.model.problem import Problem
from rooflab.workloads import build
from rooflab.workloads.gemm import LAYOUTS

REGISTRY = discover()
KERNELS = ["naive", "tiled", "blas"]
MEMORY = [
    kernel
    for kernel in REGISTRY.all()
    if kernel.device_kind == "cpu" and kernel.workload != "gemm"
    if kernel.backend != "torch" or not kernel.unavailable(None)
]


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice()


def kernel(name: str, workload: str = "gemm") -> Kernel:
    found = REGISTRY.get("cpu", workload, name)
    assert found is not None
    return found


def relative_error(operands: Operands) -> float:
    """‖C - ref‖ / ‖ref‖ against NumPy in FP64."""
    settings = operands.problem.settings
    layout, alpha, beta = (settings[name] for name in ("layout", "alpha", "beta"))
    a, b = operands.a.astype(np.float64), operands.b.astype(np.float64)
    a = a.swapaxes(1, 2) if str(layout)[0] == "t" else a
    b = b.swapaxes(1, 2) if str(layout)[1] == "t" else b
    reference = float(alpha) * (a @ b)
    if "c" in operands.initial:
        reference += float(beta) * operands.initial["c"].astype(np.float64)
    return float(np.linalg.norm(operands.c - reference) / np.linalg.norm(reference))


def check(device: CpuDevice, name: str, problem: Problem) -> None:
    operands = allocate(device, problem, seed=11)
    launch = kernel(name).prepare(device, operands)
    for _ in range(2):
        poison(operands)
        launch()
        assert relative_error(operands) <= problem.tolerance


# Numba compiles a kernel once for each type, which takes seconds.
TYPES = ["fp32", pytest.param("fp64", marks=pytest.mark.slow)]


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 127, 129), (129, 1, 65), (37, 513, 100)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_correct_at_odd_shapes_in_every_layout(
    device: CpuDevice, name: str, precision: str, layout: str, shape: tuple[int, int, int]
) -> None:
    check(device, name, gemm(*shape, precision, layout=layout))


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("precision", TYPES)
@pytest.mark.parametrize("name", KERNELS)
def test_alpha_and_beta(
    device: CpuDevice, name: str, precision: str, alpha: float, beta: float
) -> None:
    problem = gemm(70, 65, 131, precision, layout="nt", batch=3, alpha=alpha, beta=beta)
    check(device, name, problem)


@pytest.mark.parametrize("name", KERNELS)
def test_nan_and_infinity_reach_the_output(device: CpuDevice, name: str) -> None:
    operands = allocate(device, gemm(9, 70, 70), seed=1)
    operands.a[0, 2, 69] = np.nan
    operands.a[0, 5, 0] = np.inf
    operands.b[0] = np.abs(operands.b[0]) + 1
    poison(operands)
    with np.errstate(invalid="ignore"):
        kernel(name).prepare(device, operands)()
    assert np.isnan(operands.c[0, 2]).all()
    assert np.isposinf(operands.c[0, 5]).all()
    assert np.isfinite(np.delete(operands.c[0], [2, 5], axis=0)).all()


@pytest.mark.parametrize("name", ["naive", "tiled"])
def test_what_an_earlier_launch_left_in_the_workspace_does_not_count(
    device: CpuDevice, name: str
) -> None:
    operands = allocate(device, gemm(65, 30, 67), seed=2)
    launch = kernel(name).prepare(device, operands)
    a = operands.a.copy()
    operands.a.fill(np.nan)
    launch()
    operands.a[...] = a
    launch()
    assert relative_error(operands) <= operands.problem.tolerance


# Memory-bound workloads --------------------------------------------------------------------------

SHAPES: dict[str, list[dict[str, Any]]] = {
    "add": [{"columns": 1}, {"rows": 3, "columns": 1001, "batch": 2}],
    "copy": [{"columns": 1}, {"rows": 3, "columns": 1001, "batch": 2}],
    "triad": [{"columns": 1}, {"columns": 6001, "alpha": -0.5}],
    "sum": [{"elements": 1}, {"elements": 70_001}],
    "gemv": [{"m": 1, "n": 1}, {"m": 65, "n": 257}, {"m": 257, "n": 3}],
    "softmax": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129}],
    "rmsnorm": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129, "epsilon": 0.1}],
    "layernorm": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129, "epsilon": 0.1}],
    "cross_entropy": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129}],
    "rmsnorm_backward": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129}],
    "layernorm_backward": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 129}],
    "cross_entropy_backward": [
        {"rows": 1, "columns": 1},
        {"rows": 33, "columns": 129, "scale": -0.1},
    ],
    "embedding": [
        {"tokens": 1, "words": 1, "columns": 1},
        {"tokens": 129, "words": 33, "columns": 65},
    ],
    "quantize": [{"rows": 1, "columns": 1}, {"rows": 33, "columns": 300, "least": 0.1}],
    "route": [
        {"tokens": 1, "experts": 1, "chosen": 1},
        *({"tokens": 33, "experts": 70, "chosen": 3, "normalised": s} for s in ("on", "off")),
    ],
    "sort_experts": [
        {"tokens": 1, "experts": 1, "chosen": 1},
        {"tokens": 33, "experts": 7, "chosen": 3},
    ],
    "combine": [
        {"tokens": 1, "columns": 1, "chosen": 1},
        {"tokens": 33, "columns": 65, "chosen": 3},
    ],
    "adamw": [{"elements": 1}, {"elements": 1001, "step": 1, "lr": 0.1}],
    "grouped_gemm": [
        {"tokens": 1, "n": 1, "k": 1},
        *({"tokens": 70, "n": 33, "k": 65, "spread": s} for s in ("uniform", "skewed", "single")),
    ],
    "linear": [
        {"m": 1, "n": 1, "k": 1},
        *({"m": 5, "n": 33, "k": 65, "epilogue": one} for one in ("bias", "gelu", "swiglu")),
    ],
    "w4a16": [{"m": 1, "n": 1, "k": 1}, {"m": 5, "n": 33, "k": 259}],
    "block_gemm": [{"m": 1, "n": 1, "k": 1}, {"m": 5, "n": 133, "k": 259}],
    "swiglu": [{"columns": 1}, {"rows": 3, "columns": 1001, "batch": 2}],
    "rope": [
        {"tokens": 1, "heads": 1, "head_size": 2},
        {"tokens": 37, "heads": 3, "head_size": 6, "batch": 2},
    ],
    "blur": [
        {"rows": 1, "columns": 1},
        {"rows": 1, "columns": 33},
        {"rows": 33, "columns": 1},
        {"rows": 2, "columns": 2},
        {"batch": 3, "rows": 37, "columns": 130},
    ],
    "fft": [{"n": 1}, {"n": 2}, {"batch": 3, "n": 31}, {"batch": 5, "n": 64}],
    "spectrum": [{"n": 1}, {"batch": 3, "n": 31}, {"batch": 5, "n": 64}],
    "filter": [
        {"n": 1},
        {"n": 2},
        {"batch": 3, "n": 31, "threshold": 0.1, "cutoff": 0.3},
        {"batch": 5, "n": 64, "cutoff": 0.0},
        {"batch": 2, "n": 64, "threshold": -2.0, "cutoff": 2.0},
    ],
    "attention": [
        {"queries": n, "keys": m, "heads": h, "kv_heads": kv, "head_size": d, "batch": z, **words}
        for words in ({"causal": "off"}, {"causal": "on"})
        for n, m, h, kv, d, z in (
            *((1, 1, 1, 1, 1, 1), (33, 65, 6, 2, 7, 2), (1, 1030, 4, 1, 64, 3)),
            (130, 130, 2, 2, 96, 1),
        )
    ],
}
SHAPES["attention_backward"] = SHAPES["attention"]


@pytest.mark.parametrize(
    ("one", "precision"),
    [
        pytest.param(
            one,
            precision,
            marks=[pytest.mark.slow] * (one.backend == "numba" and precision != "fp32"),
            id=f"{one.id}-{precision}",
        )
        for one in MEMORY
        for precision in one.precisions
    ],
)
def test_memory_bound_kernels_are_right_at_odd_shapes(
    device: CpuDevice, one: Kernel, precision: str
) -> None:
    for shape in SHAPES[one.workload]:
        operands = allocate(device, build(one.workload, precision, shape), seed=3)
        launch = one.prepare(device, operands)
        for pattern in (0, 1):
            poison(operands, pattern)
            launch()
            assert verify(device, operands, 0).reason == "", (precision, shape)


def test_softmax_of_large_numbers_is_finite(device: CpuDevice) -> None:
    for name in ("numpy", "numba"):
        operands = allocate(device, build("softmax", "fp32", {"rows": 2, "columns": 9}), 0)
        operands["x"][...] *= 1e4
        kernel(name, "softmax").prepare(device, operands)()
        assert verify(device, operands, 0).reason == "", name


def test_attention_in_blocks_of_queries_is_right(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "SCORES", 1000)
    for workload, causal in product(("attention", "attention_backward"), ("off", "on")):
        sizes = {"queries": 37, "keys": 41, "heads": 6, "kv_heads": 2, "head_size": 24}
        problem = build(workload, "fp64", {**sizes, "batch": 2, "causal": causal})
        operands = allocate(device, problem, 0)
        poison(operands)
        kernel("numpy", workload).prepare(device, operands)()
        assert verify(device, operands, 0).reason == ""


# Registration ------------------------------------------------------------------------------------


def test_registered_for_the_cpu() -> None:
    chosen = REGISTRY.select(KERNELS, "cpu", "gemm")
    assert [one.name for one in chosen] == KERNELS
    assert [one.backend for one in chosen] == ["numba", "numba", "numpy"]
    assert not any(one.refuses(gemm(8, 8, 8, layout="tt")) for one in chosen)
    assert chosen[0].refuses(gemm(8, 8, 8, "bf16")) == "naive does not support bf16"
    library = REGISTRY.library("cpu", "gemm")
    assert library is chosen[2]


def test_without_numba_the_reason_is_one_line(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    chosen = REGISTRY.select(KERNELS, "cpu", "gemm")
    assert [bool(one.unavailable(device)) for one in chosen] == [True, True, False]
    assert "pip install numba" in chosen[0].unavailable(None)


@pytest.mark.parametrize("prepare", [cpu.tiled, cpu.numba_loop])
def test_a_broken_numba_costs_the_kernel_and_no_more(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch, prepare: Any
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(KernelError, match="Numba cannot be imported"):
        prepare(device, allocate(device, gemm(2, 2, 2), seed=0))


def test_importing_the_backends_imports_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, rooflab.devices.cpu.device\n"
        "from rooflab.kernels.libraries import cpu\n"
        "sys.exit(bool({'numba', 'numpy', 'llvmlite'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
