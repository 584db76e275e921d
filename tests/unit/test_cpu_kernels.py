from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from rooflab.devices.cpu import CpuDevice
from rooflab.problem import LAYOUTS, PRECISIONS, Problem

from rooflab.backends import cpu
from rooflab.errors import KernelError
from rooflab.measure.buffers import Operands, allocate, poison
from rooflab.registry import BUILTIN

KERNELS = {"naive": cpu.naive, "tiled": cpu.tiled, "blas": cpu.blas}


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice()


def relative_error(operands: Operands) -> float:
    """‖C - ref‖ / ‖ref‖ against NumPy in FP64."""
    problem = operands.problem
    a, b = operands.a.astype(np.float64), operands.b.astype(np.float64)
    a = a.swapaxes(1, 2) if problem.layout[0] == "t" else a
    b = b.swapaxes(1, 2) if problem.layout[1] == "t" else b
    reference = problem.alpha * (a @ b)
    if operands.c_before is not None:
        reference += problem.beta * operands.c_before.astype(np.float64)
    return float(np.linalg.norm(operands.c - reference) / np.linalg.norm(reference))


def check(device: CpuDevice, kernel: str, problem: Problem) -> None:
    operands = allocate(device, problem, seed=int(np.random.default_rng().integers(2**32)))
    launch = KERNELS[kernel](device, operands)
    for _ in range(2):
        poison(device, operands)
        launch()
        assert relative_error(operands) <= problem.precision.tolerance(problem.k)


@pytest.mark.parametrize("shape", [(1, 1, 1), (7, 127, 129), (129, 1, 65), (37, 513, 100)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_correct_at_odd_shapes_in_every_layout(
    device: CpuDevice, kernel: str, precision: str, layout: str, shape: tuple[int, int, int]
) -> None:
    check(device, kernel, Problem(*shape, PRECISIONS[precision], layout))


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.5])
@pytest.mark.parametrize("alpha", [1.0, 0.25])
@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_alpha_and_beta(
    device: CpuDevice, kernel: str, precision: str, alpha: float, beta: float
) -> None:
    problem = Problem(70, 65, 131, PRECISIONS[precision], "nt", batch=3, alpha=alpha, beta=beta)
    check(device, kernel, problem)


@pytest.mark.parametrize("kernel", KERNELS)
def test_nan_and_infinity_reach_the_output(device: CpuDevice, kernel: str) -> None:
    operands = allocate(device, Problem(9, 70, 70), seed=1)
    operands.a[0, 2, 69] = np.nan
    operands.a[0, 5, 0] = np.inf
    operands.b[0] = np.abs(operands.b[0]) + 1
    poison(device, operands)
    with np.errstate(invalid="ignore"):
        KERNELS[kernel](device, operands)()
    assert np.isnan(operands.c[0, 2]).all()
    assert np.isposinf(operands.c[0, 5]).all()
    assert np.isfinite(np.delete(operands.c[0], [2, 5], axis=0)).all()


@pytest.mark.parametrize("kernel", ["naive", "tiled"])
def test_what_an_earlier_launch_left_in_the_workspace_does_not_count(
    device: CpuDevice, kernel: str
) -> None:
    operands = allocate(device, Problem(65, 30, 67), seed=2)
    launch = KERNELS[kernel](device, operands)
    a = operands.a.copy()
    operands.a.fill(np.nan)
    launch()
    operands.a[...] = a
    launch()
    assert relative_error(operands) <= operands.problem.precision.tolerance(67)


def test_registered_for_the_cpu() -> None:
    chosen = BUILTIN.select(list(KERNELS), "cpu")
    assert [kernel.name for kernel in chosen] == list(KERNELS)
    assert {kernel.backend for kernel in chosen} == {"cpu"}
    assert not any(kernel.refuses(Problem(8, 8, 8, layout="tt")) for kernel in chosen)
    assert chosen[0].refuses(Problem(8, 8, 8, PRECISIONS["bf16"])) == "naive has no bf16"


def test_without_numba_the_reason_is_one_line(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu, "find_spec", lambda name: None)
    chosen = BUILTIN.select(list(KERNELS), "cpu")
    assert [bool(kernel.unavailable(device)) for kernel in chosen] == [True, True, False]
    assert "pip install numba" in chosen[0].unavailable(None)


def test_a_broken_numba_costs_the_kernel_and_no_more(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "numba", None)
    with pytest.raises(KernelError, match="Numba cannot be imported"):
        cpu.tiled(device, allocate(device, Problem(2, 2, 2), seed=0))


def test_importing_the_backend_imports_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, rooflab.backends.cpu, rooflab.devices.cpu\n"
        "sys.exit(bool({'numba', 'numpy', 'llvmlite'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
