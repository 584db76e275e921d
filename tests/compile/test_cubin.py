"""Parameters and launch bounds of a kernel, from its machine code; each compilation uses them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rooflab.devices.cuda import compiler
from rooflab.devices.cuda.launches import Bounds, launch_bounds, parameter_bytes
from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file.arguments import parameters
from rooflab.kernels.cuda_file.kernel import read_file
from rooflab.workloads import build


@pytest.fixture(scope="module")
def champion() -> bytes:
    if reason := compiler.unavailable():
        pytest.skip(reason)
    file = read_file(kernels_dir() / "gemm" / "hopper" / "26_champion.cu")
    problem = build("gemm", "bf16", {"m": 128, "n": 128, "k": 128, "layout": "nt"})
    assert [size for _, size in parameters(problem, file.header.tensor_maps)] == SIZES
    return file.compile(problem, file.header.variants[0], "sm_90a").cubin.read_bytes()


SIZES = [4, 4, 4, 4, 128, 128, 4, 8, 128]


def test_numbers_pointers_and_maps(champion: bytes) -> None:
    assert parameter_bytes(champion, "champion") == tuple(SIZES)
    assert parameter_bytes(champion, "champio") is None
    assert parameter_bytes(b"", "champion") is None


def test_damaged_machine_code_is_no_error(champion: bytes) -> None:
    draw = random.Random(1)
    for _ in range(300):
        damaged = bytearray(champion)
        for _ in range(20):
            place = draw.randrange(draw.choice([64, len(damaged)]))
            damaged[place] = draw.randrange(256)
        end = draw.choice([len(damaged), draw.randrange(9000)])
        parameter_bytes(bytes(damaged[:end]), "champion")
        launch_bounds(bytes(damaged[:end]), "champion")


def test_the_threads_that_a_kernel_is_compiled_for(
    champion: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))
    source = tmp_path / "mine.cu"
    source.write_text(
        'extern "C" __global__ void any() {}\n'
        'extern "C" __global__ void __launch_bounds__(256, 2) most() {}\n'
    )
    cubin = compiler.compile_file(source, "most", [], "sm_90a").cubin.read_bytes()
    assert launch_bounds(cubin, "most") == Bounds((256, 1, 1))
    assert launch_bounds(cubin, "any") is None
    assert launch_bounds(cubin, "absent") is None
    assert launch_bounds(champion, "champion") == Bounds((384, 1, 1))
