"""From source to cubin, on a machine without a GPU: the cache on disk, and what errors say."""

from __future__ import annotations

import logging
import os
import shutil
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from documents import example

from rooflab import workloads
from rooflab.devices.cuda import compiler
from rooflab.devices.cuda.compiler import Compiled
from rooflab.errors import KernelError, UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file.kernel import check_file, read_file
from rooflab.model.problem import Problem

NAIVE, TILED = (kernels_dir() / "gemm" / f"{name}.cu" for name in ("01_naive", "03_tiled"))

HEADER = """/*
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
block = [32, 32]
tile = [32, 32]
*/
"""

PLAIN = (
    HEADER
    + """
extern "C" __global__ void mine(int M, int N, int K, float alpha, const float* A, const float* B,
                                float beta, float* C) {
    C[0] = alpha;
}
"""
)

SHARING = (
    HEADER
    + """
#include "gemm.cuh"
#include "parts/mine.cuh"
extern "C" __global__ void mine(int M, int N, int K, Accumulate alpha, const Input* A,
                                const Input* B, Accumulate beta, Output* C) {
    store(C, 0, 0, N, half_of(widen(A[0])), alpha, beta);
}
"""
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler with an empty cache. In CI a missing one is a failure."""
    if reason := compiler.unavailable():
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def sharing(tmp_path: Path) -> Path:
    """A user's kernel that includes gemm.cuh and a header of its own, which includes another."""
    folder = tmp_path / "elsewhere"
    (folder / "parts").mkdir(parents=True)
    (folder / "mine.cu").write_text(SHARING)
    (folder / "parts" / "mine.cuh").write_text(
        '#include "deep.cuh"\n__device__ inline Accumulate half_of(Accumulate x) '
        "{ return x / DIVISOR; }\n"
    )
    (folder / "parts" / "deep.cuh").write_text("constexpr int DIVISOR = 2;\n")
    return folder / "mine.cu"


def gemm(precision: str, layout: str) -> Problem:
    return workloads.build("gemm", precision, {"m": 64, "n": 64, "k": 64, "layout": layout})


def build(
    source: Path, precision: str = "fp32", layout: str = "nn", arch: str = "sm_80"
) -> Compiled:
    file = read_file(source)
    problem = gemm(precision, layout)
    return file.compile(problem, file.header.all_variants[0], arch)


def written_at(compiled: Compiled) -> tuple[int, int]:
    """Differs after the file has been written again, even within one tick of the clock."""
    status = compiled.cubin.stat()
    return status.st_ino, status.st_mtime_ns


def test_shared_memory_is_what_the_source_says() -> None:
    assert build(NAIVE).static_shared_bytes == 0
    assert build(TILED, layout="nn").static_shared_bytes == 2 * 32 * 32 * 4
    assert build(TILED, layout="tn").static_shared_bytes == (33 + 32) * 32 * 4


def test_the_manifest_learns_what_was_compiled() -> None:
    file = read_file(TILED)
    assert file.as_kernel().builds() == []
    problem = gemm("fp16", "nt")
    for _ in range(2):  # also from the cache, and once for all
        compiled = file.compile(problem, file.header.all_variants[0], "sm_80")
        (info,) = file.as_kernel().builds()
    build_of = {"precision": "fp16", "layout": "nt", "arch": "sm_80"}
    assert build_of.items() <= info.items()
    assert info["registers"] == compiled.registers
    assert info["shared_bytes"] == compiled.static_shared_bytes
    assert info["spill_bytes"] == 0
    assert len(str(info["source_sha256"])) == 64


def test_a_second_compilation_comes_from_the_cache() -> None:
    first = build(TILED)
    before = written_at(first)
    second = build(TILED)
    assert second == first
    assert written_at(second) == before


def test_the_example_with_tma_compiles(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(example("CONTRIBUTING.md", "cuda"))
    compiled = build(path, arch="sm_90a")
    assert compiled.static_shared_bytes >= 2 * 32 * 32 * 4
    assert compiled.spill_bytes == 0


def append(path: Path, text: str = "constexpr int CHANGED = 1;") -> None:
    path.write_text(path.read_text() + f"\n{text}\n")


@pytest.mark.parametrize(
    "change",
    [
        lambda source: append(source),
        lambda source: append(source.parent / "parts" / "mine.cuh"),
        lambda source: append(source.parent / "parts" / "deep.cuh"),
    ],
    ids=["source", "neighbour", "neighbour's include"],
)
def test_a_changed_file_is_compiled_again(sharing: Path, change: Callable[[Path], None]) -> None:
    before = build(sharing)
    change(sharing)
    assert build(sharing).cubin != before.cubin


def test_a_changed_comment_changes_no_cubin(sharing: Path) -> None:
    before = build(sharing)
    append(sharing, '// changed\n\n/* and\nthis "too */')
    assert build(sharing).cubin == before.cubin
    append(sharing, 'constexpr char NAME[] = "/* not this */";')
    assert build(sharing).cubin != before.cubin


def test_a_changed_shared_header_compiles_everything_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = shutil.copytree(kernels_dir(), tmp_path / "kernels")
    monkeypatch.setattr(compiler, "kernels_dir", lambda: kernels)
    naive = kernels / "gemm" / "01_naive.cu"
    before = build(naive)
    append(kernels / "include" / "gemm.cuh")
    assert build(naive).cubin != before.cubin


def test_cubin_is_whole() -> None:
    """The last of its program headers, with which it ends, is there: nvdisasm insists."""
    cubin = build(TILED).cubin.read_bytes()
    (start,) = struct.unpack_from("<Q", cubin, 32)
    size, count = struct.unpack_from("<HH", cubin, 54)
    assert start + size * count == len(cubin)


def test_precision_layout_and_arch_have_cubins_of_their_own() -> None:
    builds = [
        build(NAIVE),
        build(NAIVE, precision="fp64"),
        build(NAIVE, layout="nt"),
        build(NAIVE, arch="sm_90a"),
    ]
    assert len({compiled.cubin for compiled in builds}) == len(builds)


def test_what_lies_in_other_folders_is_known_by_its_version(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "other.cuh").write_text("#pragma once\nconstexpr int FACTOR = 2;\n")
    source = tmp_path / "mine.cu"
    source.write_text('#include "other.cuh"\n' + PLAIN.replace("alpha;", "alpha * FACTOR;"))

    def build_with(version: str) -> Compiled:
        library = compiler.Library("other", version, (tmp_path / "other",))
        return compiler.compile_file(source, "mine", [], "sm_80", (library,))

    first = build_with("1.0")
    assert build_with("1.0").cubin == first.cubin
    assert build_with("1.1").cubin != first.cubin


@pytest.mark.parametrize("suffix", [".cubin", ".json"])
@pytest.mark.parametrize("damage", [b"", b"torn"])
def test_a_damaged_entry_is_built_again(suffix: str, damage: bytes) -> None:
    good = build(NAIVE)
    content = good.cubin.read_bytes()
    good.cubin.with_suffix(suffix).write_bytes(damage)
    again = build(NAIVE)
    assert again.cubin == good.cubin
    assert again.cubin.read_bytes() == content
    assert again.registers == good.registers


def test_a_cache_that_cannot_be_written_costs_a_warning_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        first, second = build(NAIVE), build(TILED)
    assert first.cubin.is_file()
    assert second.cubin.parent == first.cubin.parent
    assert caplog.text.count("cannot be kept in") == 1
    assert "set ROOFLAB_CACHE_DIR" in caplog.text


def test_a_cache_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shared = tmp_path / "shared"
    (shared / "cubins").mkdir(parents=True)
    (shared / "cubins").chmod(0o777)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(shared))
    with caplog.at_level(logging.WARNING):
        compiled = build(NAIVE)
    assert compiled.cubin.is_file()
    assert not list((shared / "cubins").iterdir())
    assert "can be written by other users" in caplog.text


def test_several_threads_may_compile_the_same_kernel() -> None:
    with ThreadPoolExecutor(4) as pool:
        builds = list(pool.map(lambda _: build(TILED, "bf16"), range(8)))
    assert len({compiled.cubin for compiled in builds}) == 1
    assert build(TILED, "bf16").cubin.read_bytes().startswith(b"\x7fELF")
    assert {path.suffix for path in builds[0].cubin.parent.iterdir()} == {".cubin", ".json"}


def test_a_users_file_needs_no_include(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(PLAIN)
    assert build(tmp_path / "mine.cu").registers > 0


def test_a_users_file_may_include_ours_and_its_own(sharing: Path) -> None:
    assert build(sharing).registers > 0


def test_an_error_starts_with_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN.replace("C[0] = alpha;", "int unused;\n    C[0] = gamma_;"))
    line = 1 + path.read_text().splitlines().index("    C[0] = gamma_;")
    with pytest.raises(KernelError) as caught:
        build(path)
    first_line = str(caught.value).splitlines()[0]
    assert first_line.startswith(f"{path}({line}): error: ")
    assert "gamma_" in first_line


def test_an_error_in_an_included_file_names_that_file(sharing: Path) -> None:
    header = sharing.parent / "parts" / "deep.cuh"
    header.write_text("constexpr int DIVISOR = ;\n")
    with pytest.raises(KernelError) as caught:
        build(sharing)
    first_line = str(caught.value).splitlines()[0]
    assert "deep.cuh(1): error: " in first_line


def test_too_much_shared_memory_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        PLAIN.replace(
            "C[0] = alpha;",
            "__shared__ float big[1 << 16]; big[threadIdx.x] = alpha; __syncthreads(); "
            "C[0] = big[threadIdx.y];",
        )
    )
    with pytest.raises(KernelError, match="too much shared data") as caught:
        build(path)
    assert str(path) in str(caught.value).splitlines()[0]


def test_an_entry_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN.replace('entry = "mine"', 'entry = "yours"'))
    with pytest.raises(KernelError, match=r"no kernel is called 'yours' \(found: mine\)"):
        build(path)


def test_an_architecture_beyond_the_compiler_is_refused() -> None:
    with pytest.raises(KernelError, match=r"NVRTC \d+\.\d+ compiles for sm_.* and not for sm_999a"):
        build(NAIVE, arch="sm_999a")


def test_a_thread_that_finds_nvrtc_busy_compiles_in_a_process_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_text(PLAIN)
    (tmp_path / "wrong.cu").write_text(PLAIN.replace("alpha;", "gamma_;"))
    with compiler._nvrtc_is_free:
        compiled = build(tmp_path / "mine.cu")
        with pytest.raises(KernelError, match=r"wrong\.cu\(\d+\): error: .*gamma_"):
            build(tmp_path / "wrong.cu")
    assert build(tmp_path / "mine.cu") == compiled
    assert compiled.cubin.read_bytes().startswith(b"\x7fELF")


def test_what_several_threads_want_is_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, runs = tmp_path / "mine.cu", []
    path.write_text(PLAIN)
    run = compiler._run_nvrtc

    def counted(*how: Any) -> Any:
        runs.append(how)
        return run(*how)

    monkeypatch.setattr(compiler, "_run_nvrtc", counted)
    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(lambda _: build(path), range(3))
    assert len(runs) == 1
    assert others == [first, first]


# A user's file without a GPU ---------------------------------------------------------------------


def test_a_file_is_checked_without_a_gpu(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN)
    check_file(path)
    path.write_text(PLAIN.replace("alpha;", "gamma_;"))
    with pytest.raises(UsageError, match=r"mine\.cu\(\d+\): error: .*gamma_"):
        check_file(path)
    path.write_text(PLAIN.replace('entry = "mine"', 'entry = "yours"'))
    with pytest.raises(UsageError, match="no kernel is called 'yours'"):
        check_file(path)


@pytest.mark.parametrize(
    ("workload", "others"),
    [
        ("add", "const Input* b, "),
        ("sum", ""),
        ("gemv", "long long columns, const Input* b, "),
        ("softmax", "long long columns, "),
    ],
)
def test_arguments_of_other_workloads_are_checked_too(
    tmp_path: Path, workload: str, others: str
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(
        f'''/*
workload = "{workload}"
entry = "mine"
precisions = ["fp32"]
block = [256]
tile = [256]
*/
#include "types.cuh"
extern "C" __global__ void mine(long long count, {others}const Input* x, Output* y) {{
    static_assert(sizeof(Input) == 4 && sizeof(Accumulate) == 4 && sizeof(Output) == 4, "");
    y[0] = Output(x[count - 1]);
}}
'''
    )
    check_file(path)


@pytest.mark.parametrize(
    ("precision", "sizes"),
    [("fp64", (8, 8, 8)), ("fp16", (2, 4, 2)), ("fp8", (1, 4, 2)), ("int64", (8, 8, 8))],
)
def test_types_are_those_of_the_precision(
    tmp_path: Path, precision: str, sizes: tuple[int, int, int]
) -> None:
    path = tmp_path / "mine.cu"
    given, sums, result = sizes
    path.write_text(
        f'''/*
workload = "copy"
entry = "mine"
precisions = ["{precision}"]
block = [256]
tile = [256]
*/
#include "types.cuh"
static_assert(sizeof(Input) == {given}, "Input");
static_assert(sizeof(Accumulate) == {sums}, "Accumulate");
static_assert(sizeof(Output) == {result}, "Output");
extern "C" __global__ void mine(long long elements, const Input* a, Output* c) {{}}
'''
    )
    check_file(path)


def test_without_a_compiler_a_file_is_not_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(PLAIN.replace("alpha;", "gamma_;"))
    monkeypatch.setattr(compiler, "unavailable", lambda: "CuPy is not installed")
    check_file(path)
    with pytest.raises(KernelError, match=r"mine\.cu cannot be compiled: CuPy is not installed"):
        build(path)


@pytest.mark.parametrize(
    ("file", "entry", "arch"),
    [
        *(("ceilings.cu", "read_memory", arch) for arch in ("sm_75", "sm_80", "sm_90", "sm_120")),
        ("wgmma.cu", "wgmma_bf16", "sm_90a"),
    ],
)
def test_the_microkernels_of_ceilings_compile(file: str, entry: str, arch: str) -> None:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    source = Path(compiler.__file__).with_name(file)
    compiled = compiler.compile_file(source, entry, (), arch)
    assert compiled.spill_bytes == 0
    assert "warning" not in compiled.log
