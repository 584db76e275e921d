"""One variant of each CUTLASS family compiles, on a machine without a GPU."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rooflab.files import kernels_dir

from rooflab.backends import cuda, cutlass, cutlass_headers, nvrtc

CHEAP = (
    ("cutlass_simt", "fp32", "nn", "sm_80"),
    ("cutlass_tf32", "tf32", "tn", "sm_80"),
    ("cutlass_fp16", "fp16_fp32", "tt", "sm_90a"),
    ("cutlass_bf16", "bf16", "nt", "sm_80"),
)
HOPPER = (
    ("128x128 2x1 pingpong", "bf16", False),
    ("128x256 2x1", "bf16", True),
    ("128x256 2x1 fast", "fp8", False),
)
"""Variant, precision, and whether C is read."""


@pytest.fixture(autouse=True)
def cutlass_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler with an empty cache. In CI a missing one is a failure."""
    if reason := nvrtc.compiler_unavailable() or cutlass_headers.unavailable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))


def build(
    name: str, precision: str, layout: str, arch: str, variant: str = "", reads_c: bool = False
) -> nvrtc.Compiled:
    kernel = cutlass.read_file(kernels_dir() / "cutlass" / f"{name}.cu")
    choices = {choice.name: choice for choice in kernel.header.variants}
    choice = choices[variant] if variant else kernel.header.variants[0]
    return cutlass.compile_kernel(kernel, choice, precision, layout, arch, reads_c=reads_c)


@pytest.mark.parametrize(("name", "precision", "layout", "arch"), CHEAP)
def test_cuda_cores_and_mma_compile(name: str, precision: str, layout: str, arch: str) -> None:
    compiled = build(name, precision, layout, arch)
    assert compiled.spill_bytes == 0
    assert "warning" not in compiled.log
    assert build(name, precision, layout, arch) == compiled
    (info,) = [one for one in cuda.compiled_info()[name] if one["precision"] == precision]
    assert info["registers"] == compiled.registers


def test_hopper_compiles_in_parallel() -> None:
    def compile_one(variant: str, precision: str, reads_c: bool) -> nvrtc.Compiled:
        return build("cutlass_hopper", precision, "nt", "sm_90a", variant, reads_c)

    with ThreadPoolExecutor(len(HOPPER)) as pool:
        builds = list(pool.map(compile_one, *zip(*HOPPER, strict=True)))
    for compiled in builds:
        # A producer has 40 registers and a consumer 232, of what makes 168 for each of 384 threads.
        assert compiled.registers == 168
        assert compiled.spill_bytes == 0
        assert "warning" not in compiled.log
