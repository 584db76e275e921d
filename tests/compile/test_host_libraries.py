"""Host code, built by the real nvcc into a library, which is loaded and called without a GPU."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from synthetic import gemm

from rooflab.devices.cuda import compiler
from rooflab.devices.cuda.nvcc import Nvcc, find_nvcc
from rooflab.errors import KernelError, UnavailableError
from rooflab.kernels.cuda_file import check, host
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.model.problem import Problem

pytestmark = pytest.mark.slow

GRID = """
template <int WIDE>
__global__ void kernel(int n, const float* a, const float* b, float* c) {
    const int i = blockIdx.x * WIDE + threadIdx.x;
    if (i < n) c[i] = plus(a[i], b[i]);
}
namespace mine {
template <typename T> void run(int n, const T* a, const T* b, T* c, cudaStream_t stream) {
    kernel<EACH><<<(n + EACH - 1) / EACH, EACH, 0, stream>>>(n, a, b, c);
}
}
"""

NO_DRIVER = (35, 100)
"""cudaErrorInsufficientDriver, cudaErrorNoDevice."""


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nvcc:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))
    try:
        return find_nvcc(None)
    except UnavailableError as error:
        pytest.skip(str(error))


def write(folder: Path, nvcc: Nvcc, body: str, *lines: str, workload: str = "add") -> CudaFile:
    path = folder / "mine.cu"
    head = [f'workload = "{workload}"', 'precisions = ["fp32"]', *lines]
    path.write_text("\n".join(["/*", *head, "*/", body]))
    return read_file(path, nvcc)


def add(columns: int = 8) -> Problem:
    from rooflab.workloads import build

    return build("add", "fp32", {"columns": columns})


def built(file: CudaFile, problem: Problem) -> Any:
    """The function that rooflab calls."""
    compiled = file.compile(problem, file.header.all_variants[0], "sm_90a")
    function = getattr(ctypes.CDLL(str(compiled.cubin)), host.ENTRY)
    function.argtypes = host.types(problem, file.header)
    return function


def test_a_template_in_a_namespace_with_an_include_of_its_own(tmp_path: Path, nvcc: Nvcc) -> None:
    """Its options are relative to its folder, from wherever it is compiled."""
    (tmp_path / "parts").mkdir()
    header = tmp_path / "parts" / "plus.h"
    header.write_text("__device__ float plus(float a, float b) { return a + b; }")
    file = write(
        *(tmp_path, nvcc, f'#include "plus.h"{GRID}', 'launcher = "mine::run<float>"'),
        'options = ["-Iparts", "-std=c++20", "--expt-relaxed-constexpr", "-w", "-lcuda"]',
        "variants = [{ EACH = 128 }, { EACH = 256 }]",
    )
    function = built(file, add())
    assert function(8, None, None, None, None) in NO_DRIVER  # it launches
    first, second = (
        file.compile(add(), variant, "sm_90a").cubin for variant in file.header.variants
    )
    assert first != second
    assert file.compile(add(), file.header.variants[0], "sm_90a").registers > 0
    header.write_text("__device__ float plus(float a, float b) { return a - b; }")
    assert file.compile(add(), file.header.variants[0], "sm_90a").cubin not in (first, second)


def test_what_it_returns_comes_back_and_numbers_are_converted(tmp_path: Path, nvcc: Nvcc) -> None:
    body = """
int run(int m, size_t n, float alpha, const float* a, const void* b, float* c, cudaStream_t s) {
    const bool right = m == 8 && n == 16 && alpha == 0.5f && a == (float*)1 && s == (cudaStream_t)4;
    return right && b == (void*)2 && c == (float*)3 ? 42 : 1;
}"""
    names = 'arguments = ["m", "n", "alpha", "a", "b", "c", "stream"]'
    file = write(tmp_path, nvcc, body, 'launcher = "run"', names, workload="gemm")
    assert built(file, gemm(8, 16, 32, alpha=0.5))(8, 16, 0.5, 1, 2, 3, 4) == 42


@pytest.mark.parametrize(
    ("body", "lines", "told"),
    [
        ("void run(int n);", (), "too many arguments in function call"),
        ("void run(long long, int, int*, int*, int*, void*);", (), "no suitable conversion"),
        ("void other();", (), 'identifier "run" is undefined'),
        (
            "int other(); void run(long long, float*, float*, float*, void*) { other(); }",
            (),
            "mine.cu: nothing defines other(): name its library in libraries",
        ),
        (
            'extern "C" void run(long long, float*, float*, float*, void*);',
            ('libraries = ["none.so"]',),
            "none.so",
        ),
        ("syntax", (), "mine.cu(6): error: "),
    ],
)
def test_a_mistake_is_the_compilers_first_line(
    tmp_path: Path, nvcc: Nvcc, body: str, lines: tuple[str, ...], told: str
) -> None:
    file = write(tmp_path, nvcc, body, 'launcher = "run"', *lines)
    with pytest.raises(KernelError) as caught:
        file.compile(add(), file.header.all_variants[0], "sm_90a")
    first = str(caught.value).splitlines()[0]
    assert told in first
    assert first.startswith(str(tmp_path / "mine.cu"))


def test_a_library_that_is_ready(tmp_path: Path, nvcc: Nvcc) -> None:
    source = tmp_path / "ready.cpp"
    source.write_text('extern "C" int run(int n, float*, float*, float*, void*) { return n; }')
    library = tmp_path / "libready.so"
    command = [shutil.which("g++") or "g++", "-shared", "-fPIC", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    file = write(
        *(tmp_path, nvcc, 'extern "C" int run(int, float*, float*, float*, void*);'),
        *('launcher = "run"', 'libraries = ["libready.so"]'),
    )
    assert built(file, add())(17, None, None, None, None) == 17


def test_the_driver_needs_no_library_and_wgmma_is_compiled(tmp_path: Path, nvcc: Nvcc) -> None:
    body = """
#include <cuda.h>
__global__ void kernel() { asm volatile("wgmma.fence.sync.aligned;"); }
int run(long long, float*, float*, float*, cudaStream_t stream) {
    kernel<<<1, 128, 0, stream>>>();
    return cuInit(0);
}"""
    file = write(tmp_path, nvcc, body, 'launcher = "run"')
    compiled = file.compile(add(), file.header.all_variants[0], "sm_90a")
    assert "undefined" not in compiled.log


# Kernels that rooflab launches ------------------------------------------------------------------

ENTRY = """
namespace mine {
struct Shared { float rows[10][100]; };
template <typename T, int EACH> __global__ void sum(long long n, const T* a, const T* b, T* c) {
    extern __shared__ T some[];
    some[threadIdx.x] = a[0];
    c[0] = some[EACH] + b[0];
}
}
"""


@pytest.mark.parametrize("compiled_by", ["nvcc", "nvrtc"])
def test_a_name_of_cpp_and_the_size_of_a_type(tmp_path: Path, nvcc: Nvcc, compiled_by: str) -> None:
    if compiled_by == "nvrtc" and (reason := compiler.unavailable()):
        pytest.skip(reason)
    file = write(
        *(tmp_path, nvcc, ENTRY, 'entry = "mine::sum<float, 4>"', "block = [64]", "tile = [64]"),
        'shared_bytes = "sizeof(mine::Shared) + 24"',
    )
    file = read_file(file.source, nvcc if compiled_by == "nvcc" else None)
    compiled = file.compile(add(), file.header.all_variants[0], "sm_90a")
    assert compiled.entry.startswith("_ZN4mine3sumIfLi4E")
    assert file.geometry(add(), file.header.all_variants[0], 1, compiled).shared_bytes == 4024
    (shown,) = check.builds(file, "9.0")
    assert (shown.shared_bytes, shown.error) == (4024, "")
    swapped = file.source.read_text().replace("long long n", "int n")
    file.source.write_text(swapped)
    with pytest.raises(KernelError, match="takes parameters of 4, 8, 8, 8 bytes"):
        file.compile(add(), file.header.all_variants[0], "sm_90a")


@pytest.mark.parametrize("header", ["", "cluster = [4]", "cluster = [2]", "blocks_per_tile = 2"])
def test_clusters_that_the_source_fixes_are_in_the_header(
    tmp_path: Path, nvcc: Nvcc, header: str
) -> None:
    body = 'extern "C" __global__ void __cluster_dims__(2, 1, 1) f(long long n, const float* a, '
    body += "const float* b, float* c) { c[blockIdx.x] = a[0]; }"
    file = write(tmp_path, nvcc, body, 'entry = "f"', "block = [64]", "tile = [64]", header)
    config = file.header.all_variants[0]
    if header in ("", "cluster = [4]"):
        with pytest.raises(KernelError, match=r"__cluster_dims__\(2, 1, 1\): write cluster = \[2,"):
            file.compile(add(), config, "sm_90a")
        return
    compiled = file.compile(add(), config, "sm_90a")
    assert compiled.cluster == (2, 1, 1)
    assert not file.geometry(add(), config, 1, compiled).attributes  # the source has them
    assert file.compile(add(), config, "sm_90a") == compiled  # of the cache too
