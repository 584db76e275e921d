"""Every CUDA kernel against float64, in every precision and layout, on awkward shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rooflab.device import Device
from rooflab.problem import PRECISIONS, Problem

from rooflab.backends import cublas, cuda, discover, nvrtc
from rooflab.measure.buffers import Operands, allocate, decode, poison
from rooflab.registry import Kernel, Prepare

pytestmark = pytest.mark.gpu

# CUTLASS's are many and slow to compile: test_cutlass_kernels.py
KERNELS = {
    kernel.name: kernel
    for kernel in discover().all()
    if kernel.device_kind == "cuda" and kernel.backend != "cutlass"
}
CASES = [
    (name, precision, layout)
    for name, kernel in KERNELS.items()
    for precision in kernel.precisions
    for layout in kernel.layouts
]
# The odd ones first; then what kernels take whose copies are 16 bytes, or whole tiles.
SHAPES = (
    *((1, 1, 1), (7, 127, 129), (129, 1, 65), (1000, 37, 513)),
    *((1, 1, 8), (127, 129, 136), (1000, 37, 512), (333, 1001, 264)),
    *((256, 256, 256), (128, 384, 448)),
)
BATCHES = ((7, 127, 129), (7, 127, 136), (128, 256, 192))
SCALARS = ((1.0, 0.0), (1.5, 0.0), (0.5, -2.0))

PLAIN = """/*
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
block = [64]
tile = [1, 1]
shared_bytes = 65536
*/

// One block per element of C. Its last thread stands 64 KB away from the first: out of reach
// unless the launch has asked for all of it.
extern "C" __global__ void mine(int M, int N, int K, float alpha, const float* A, const float* B,
                                float beta, float* C) {
    extern __shared__ float sums[];
    float sum = 0;
    for (int k = threadIdx.x; k < K; k += 64) {
        sum += A[blockIdx.y * K + k] * B[k * N + blockIdx.x];
    }
    sums[threadIdx.x * 256 + 255] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int other = 1; other < 64; ++other) sum += sums[other * 256 + 255];
    float* c = C + blockIdx.y * N + blockIdx.x;
    *c = alpha * sum + (beta != 0 ? beta * *c : 0);
}
"""


@pytest.fixture(scope="module", autouse=True)
def compiled(device: Device, cache: None) -> None:
    """All cubins, compiled in parallel."""
    arch = nvrtc.arch_for(cuda.compute_capability(device))

    def build(name: str, precision: str, layout: str) -> None:
        kernel = KERNELS[name]
        if kernel.source and not kernel.unavailable(device):
            cuda.compile_kernel(cuda.read_file(kernel.source), precision, layout, arch)

    with ThreadPoolExecutor() as pool:
        list(pool.map(build, *zip(*CASES, strict=True)))


def reference(device: Device, operands: Operands) -> tuple[Any, float]:
    """alpha·op(A)·op(B) + beta·C in float64, and the norm of its two terms.

    Errors are taken relative to the terms: a small C may be left of two large ones.
    """
    arrays, problem = device.arrays, operands.problem
    a = decode(arrays, operands.a, problem.precision.input)
    b = decode(arrays, operands.b, problem.precision.input)
    a = a.swapaxes(1, 2) if problem.layout[0] == "t" else a
    b = b.swapaxes(1, 2) if problem.layout[1] == "t" else b
    product = problem.alpha * arrays.matmul(a, b)
    if operands.c_before is None:
        return product, norm(arrays, product)
    before = problem.beta * decode(arrays, operands.c_before, problem.precision.output)
    return product + before, norm(arrays, product) + norm(arrays, before)


def norm(arrays: Any, matrices: Any) -> float:
    return float(arrays.linalg.norm(matrices.ravel()))


def check(device: Device, kernel: Kernel, problem: Problem, prepare: Prepare | None = None) -> None:
    """Two launches on poisoned outputs, each within the precision's tolerance."""
    operands = allocate(device, problem, seed=problem.m + problem.n + problem.k)
    expected, scale = reference(device, operands)
    launch = (prepare or kernel.prepare)(device, operands)
    for _ in range(2):
        poison(device, operands)
        launch()
        device.synchronize()
        computed = decode(device.arrays, operands.c, problem.precision.output)
        error = norm(device.arrays, computed - expected) / scale
        tolerance = problem.precision.tolerance(problem.k)
        what = f"{problem.shape} alpha {problem.alpha} beta {problem.beta}"
        assert error <= tolerance, f"{what}: relative error {error:.2e} > {tolerance:.2e}"


@pytest.mark.parametrize(("name", "precision", "layout"), CASES)
def test_kernel_is_correct(device: Device, name: str, precision: str, layout: str) -> None:
    kernel = KERNELS[name]
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    for m, n, k in SHAPES:
        for alpha, beta in SCALARS:
            problem = Problem(m, n, k, PRECISIONS[precision], layout, 1, alpha, beta)
            if not kernel.refuses(problem):
                check(device, kernel, problem)


@pytest.mark.parametrize(("name", "precision", "layout"), CASES)
def test_batch_is_correct(device: Device, name: str, precision: str, layout: str) -> None:
    kernel = KERNELS[name]
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    problems = [Problem(*shape, PRECISIONS[precision], layout, 3, 0.5, -2.0) for shape in BATCHES]
    if taken := [problem for problem in problems if not kernel.refuses(problem)]:
        check(device, kernel, taken[0])
    else:
        pytest.skip(kernel.refuses(problems[-1]))


def test_a_users_plain_file_with_much_shared_memory(device: Device, tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN)
    check(device, cuda.load_file(path), Problem(33, 65, 129, alpha=0.5, beta=-2.0))


def test_what_was_compiled_before_is_compiled_again(
    device: Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVRTC has a cache of its own, which keeps no log."""
    naive, arch = KERNELS["naive"].source, nvrtc.arch_for(cuda.compute_capability(device))
    assert naive
    for folder in ("one", "other"):
        monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / folder))
        assert cuda.compile_kernel(cuda.read_file(naive), "fp32", "nn", arch).registers > 0


def test_the_library_tells_its_version() -> None:
    assert int(cublas.library_version().split(".")[0]) >= 12
