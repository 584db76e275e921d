"""Kernels with host code of their own on a GPU, and what else a header asks of a launch."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import rooflab
from rooflab.devices.cuda.nvcc import find_nvcc
from rooflab.errors import UnavailableError, UsageError
from rooflab.model.measurement import Measurement
from rooflab.runs.store import MEASUREMENTS

pytestmark = pytest.mark.gpu

TIMING = {"energy_s": 0, "device_warmup_s": 0, "contexts": 1, "min_rounds": 3, "max_rounds": 3}

ADD = """
__global__ void add(int n, const float* a, const float* b, float* c) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) c[i] = a[i] + b[i];
}
__global__ void wrong(int n, const float* a, const float* b, float* c) {
    const int i = blockIdx.x * 256 + threadIdx.x;
    if (i < n) c[i] = a[i] - b[i];
}
"""

TAKEN = "(int n, const float* a, const float* b, float* c, cudaStream_t stream)"
LAUNCH = "add<<<(n + 255) / 256, 256, 0, {stream}>>>(n, a, b, c);"

RUN = {
    "good": f"void run{TAKEN} {{ {LAUNCH.format(stream='stream')} }}",
    "in_order": f"void run{TAKEN} {{ {LAUNCH.format(stream='0')} }}",  # CUDA orders stream 0
    "wrong": f"void run{TAKEN} {{ wrong<<<(n + 255) / 256, 256, 0, stream>>>(n, a, b, c); }}",
    "escapes": f"""void run{TAKEN} {{
        static cudaStream_t own = nullptr;
        if (!own) cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
        {LAUNCH.format(stream="own")}
    }}""",
    "returns": f"cudaError_t run{TAKEN} {{ return cudaErrorNotSupported; }}",
    "too_wide": f"void run{TAKEN} {{ add<<<1, 2048, 0, stream>>>(n, a, b, c); }}",
    "waits": f"void run{TAKEN} {{ {LAUNCH.format(stream='stream')} cudaDeviceSynchronize(); }}",
}


@pytest.fixture(autouse=True)
def _nvcc() -> None:
    try:
        find_nvcc(None)
    except UnavailableError as error:
        pytest.skip(str(error))


def write(name: str, body: str, *lines: str, workload: str = "add") -> str:
    head = [f'workload = "{workload}"', *lines]
    if not any(line.startswith("precisions") for line in lines):
        head.append('precisions = ["fp32"]')
    Path(f"{name}.cu").write_text("\n".join(["/*", *head, "*/", body]))
    return f"{name}.cu"


def rows(*files: str, workload: str = "add", **more: Any) -> dict[str, Measurement]:
    run = rooflab.sweep(workload, kernels=list(files), timing=TIMING, **more)
    return {row.kernel: row for row in run.measurements}


def test_host_code_is_judged_like_any_other() -> None:
    files = [write(name, ADD + body, 'launcher = "run"') for name, body in RUN.items()]
    found = rows(*files, "cupy", sizes=[2**24])
    said = {name: (row.status, row.reason) for name, row in found.items()}
    for name in ("good", "in_order", "cupy"):
        assert said[name][0] == "ok", said[name]
    good_us, cupy_us = found["good"].time_us, found["cupy"].time_us
    assert good_us and cupy_us and 0.5 < good_us / cupy_us < 2
    in_order_us = found["in_order"].time_us
    assert in_order_us and 0.7 < in_order_us / good_us < 1.4
    assert said["wrong"][0] == said["escapes"][0] == "incorrect"
    assert "outside the given stream" in said["escapes"][1]
    assert said["returns"][0] == said["too_wide"][0] == said["waits"][0] == "failed"
    assert "returns.cu: run returned 801: cudaErrorNotSupported" in said["returns"][1]
    assert "cudaErrorInvalid" in said["too_wide"][1]
    assert "the launch waits for the device" in said["waits"][1]


def test_a_default_stream_of_each_thread_is_another_one() -> None:
    body = ADD + RUN["in_order"]
    options = 'options = ["--default-stream=per-thread"]'
    found = rows(write("apart", body, 'launcher = "run"', options), sizes=[2**24])
    assert found["apart"].status == "incorrect"
    assert "outside the given stream" in found["apart"].reason


def test_pointers_of_the_first_call_are_not_those_of_others() -> None:
    body = f"""void run{TAKEN} {{
        static float* first = nullptr;
        if (!first) first = c;
        c = first;
        {LAUNCH.format(stream="stream")}
    }}"""
    found = rows(write("first_only", ADD + body, 'launcher = "run"'), sizes=[2**16])
    assert found["first_only"].status == "incorrect"


GEMM = """
template <int TILE>
__global__ void product(int M, int N, int K, const float* A, const float* B, float* C) {
    __shared__ float a[TILE][TILE], b[TILE][TILE];
    const int x = threadIdx.x, y = threadIdx.y;
    const int row = blockIdx.y * TILE + y, column = blockIdx.x * TILE + x;
    float sum = 0;
    for (int k = 0; k < K; k += TILE) {
        a[y][x] = row < M && k + x < K ? A[size_t(row) * K + k + x] : 0;
        b[y][x] = column < N && k + y < K ? B[size_t(k + y) * N + column] : 0;
        __syncthreads();
        for (int i = 0; i < TILE; ++i) sum += a[y][i] * b[i][x];
        __syncthreads();
    }
    if (row < M && column < N) C[size_t(row) * N + column] = sum;
}
namespace mine {
template <typename T> void gemm(int M, int N, int K, const T* A, const T* B, T* C, cudaStream_t s) {
    const dim3 block(WIDE, WIDE), grid((N + WIDE - 1) / WIDE, (M + WIDE - 1) / WIDE);
    product<WIDE><<<grid, block, 0, s>>>(M, N, K, A, B, C);
}
}
"""


def test_a_product_with_variants_is_resumed_and_tells_what_it_cannot_do() -> None:
    file = write(
        *("mine", GEMM, 'launcher = "mine::gemm<float>"', 'layouts = ["nn"]'),
        'arguments = ["m", "n", "k", "a", "b", "c", "stream"]',
        "variants = [{ WIDE = 16 }, { WIDE = 32 }]",
        workload="gemm",
    )
    sizes: dict[str, Any] = {"shapes": "1000x37x513,512x512x512", "beta": "0,0.5"}
    run = rooflab.sweep("gemm", kernels=[file], timing=TIMING, **sizes)
    by_beta = {0.0: "ok", 0.5: "skipped"}
    for row in run.measurements:
        beta = row.problem.settings["beta"]
        assert row.status == by_beta[float(beta)], row.reason
        if row.status == "ok":
            assert row.variant in ("WIDE=16", "WIDE=32")
        else:
            assert "mine is not told beta, which is 0.5 and not 0" in row.reason
    table = run.path / MEASUREMENTS
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    assert len(rooflab.resume(run.path, kernels=[file]).measurements) == len(run.measurements)
    Path(file).write_text(Path(file).read_text() + "// changed")
    with pytest.raises(UsageError, match="has changed"):
        rooflab.resume(run.path, kernels=[file])


def test_operands_in_host_memory_need_the_stream() -> None:
    with_it = write("with_it", ADD + RUN["good"], 'launcher = "run"')
    body = ADD + RUN["in_order"].replace(", cudaStream_t stream", "")
    names = 'arguments = ["elements", "a", "b", "c"]'
    without = write("without", body, 'launcher = "run"', names)
    found = rows(with_it, without, shapes="4x1024x1024", host="pinned")
    assert found["with_it"].status == "ok", found["with_it"].reason
    assert found["without"].status == "failed"
    assert "takes no stream" in found["without"].reason


def test_a_library_that_is_ready() -> None:
    Path("ready.cu").write_text(ADD + f'extern "C" {RUN["good"]}')
    nvcc = find_nvcc(None)
    build = [str(nvcc.path), "-shared", "-Xcompiler", "-fPIC", "-arch=native"]
    host = shutil.which("g++") or str(nvcc.host)
    subprocess.run([*build, "-ccbin", host, "-o", "libready.so", "ready.cu"], check=True)
    file = write(
        *("mine", f'extern "C" void run{TAKEN};', 'launcher = "run"'),
        'libraries = ["libready.so"]',
    )
    found = rows(file, sizes=[2**20 + 3])
    assert found["mine"].status == "ok", found["mine"].reason


LOOPS = """
namespace mine {
struct Shared { float some[20000]; };
template <typename T, int EACH>
__global__ void CLUSTER add(long long n, const T* a, const T* b, T* c) {
    extern __shared__ float raw[];
    Shared& shared = *reinterpret_cast<Shared*>(raw);
    const long long step = (long long)gridDim.x * EACH;
    for (long long i = blockIdx.x * (long long)EACH + threadIdx.x; i < n; i += step) {
        shared.some[19999 - threadIdx.x] = a[i];
        c[i] = shared.some[19999 - threadIdx.x] + b[i];
    }
}
}
"""


@pytest.mark.parametrize("compiler", ["nvcc", "nvrtc"])
@pytest.mark.parametrize("fixed", [False, True])
def test_a_grid_of_fixed_size_and_what_only_the_compiler_knows(compiler: str, fixed: bool) -> None:
    lines = ['entry = "mine::add<float, 128>"', "block = [128]", "blocks = 100"]
    lines += ['shared_bytes = "sizeof(mine::Shared)"']
    if fixed:
        lines += ['compute_capability = "9.0"', "cluster = [2]"]
    body = LOOPS.replace("CLUSTER", "__cluster_dims__(2, 1, 1)" if fixed else "")
    found = rows(write("mine", body, *lines), sizes=[2**22 + 5], compiler=compiler)
    assert found["mine"].status == "ok", found["mine"].reason
