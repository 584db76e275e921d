"""Which nvcc is used, and what it is asked to do; with a script in its place."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rooflab.devices.cuda import compiler, nvcc
from rooflab.devices.cuda.nvcc import Choice, Nvcc, choose, find_nvcc
from rooflab.errors import KernelError, UnavailableError, UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file.kernel import read_file
from rooflab.workloads import build

SCRIPT = """#!/bin/sh
if [ "$1" = --version ]; then
    echo 'Cuda compilation tools, release 13.0, V13.0.88'
    exit
fi
echo "$@" > arguments
while [ "$1" != -o ]; do shift; done
{compile}
"""

GOOD = """printf cubin > "$2"
echo "ptxas info    : Compiling entry function 'mine' for 'sm_90a'" >&2
echo 'ptxas info    : Used 17 registers, 8 bytes spill stores, 64 bytes smem' >&2"""

BAD = """echo 'note'
echo 'mine.cu(9): error: identifier "x" is undefined' >&2
exit 2"""

SOURCE = """/*
precisions = ["fp32"]
entry = "mine"
block = [32]
tile = [32]
workload = "copy"
options = ["-use_fast_math", "-maxrregcount=64"]
*/
extern "C" __global__ void mine(long long elements, const float* a, float* c) {}
"""

Install = Callable[[str], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Puts a script into CUDA_PATH, and nothing anywhere else."""
    monkeypatch.setenv("CUDA_PATH", str(tmp_path / "cuda"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))

    def write(compile_text: str) -> Path:
        path = tmp_path / "cuda" / "bin" / "nvcc"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SCRIPT.format(compile=compile_text))
        path.chmod(0o755)
        return path

    return write


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter([Path("/nowhere/nvcc")]))


def test_the_first_that_the_driver_supports_is_used(install: Install) -> None:
    path = install(GOOD)
    for driver in (None, (13, 0), (13, 2), (14, 0)):
        found = find_nvcc(driver)
        assert (found.path, found.version, found.title) == (path, (13, 0), "nvcc 13.0")


def test_one_of_a_newer_major_version_than_the_driver_is_not(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = install(GOOD)
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter([path]))
    with pytest.raises(UnavailableError) as caught:
        find_nvcc((12, 4))
    assert str(caught.value) == f"{path} is newer than the driver, which supports CUDA 12.4"


def test_what_is_missing_is_named_with_its_command(
    install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(GOOD)
    monkeypatch.delenv("NVCC_CCBIN", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UnavailableError, match=r"needs a C\+\+ compiler: .*apt install g\+\+"):
        find_nvcc(None)
    monkeypatch.setenv("NVCC_CCBIN", "/opt/clang++")
    assert find_nvcc(None).host == Path("/opt/clang++")
    nothing(monkeypatch)
    with pytest.raises(UnavailableError, match=r"set CUDA_PATH, or pip install 'rooflab\[nvcc\]'"):
        find_nvcc(None)


def test_auto_is_nvcc_for_users_files(install: Install, monkeypatch: pytest.MonkeyPatch) -> None:
    install(GOOD)
    auto, forced = choose("auto", "13.0"), choose("nvcc", "13.0")
    assert isinstance(auto.users, Nvcc)
    assert (auto.own, auto.note) == (None, "")
    assert forced.users == forced.own == auto.users
    assert choose("nvrtc", "13.0") == choose("nvcc", "") == Choice()
    nothing(monkeypatch)
    assert choose("auto", "13.0").note.startswith("NVRTC compiles your .cu files: there is no nvcc")
    with pytest.raises(UnavailableError):
        choose("nvcc", "13.0")


def test_a_file_is_compiled_with_its_options(install: Install, elsewhere: Path) -> None:
    if compiler.unavailable():
        pytest.skip("there is no CuPy")
    install(GOOD)
    source = elsewhere / "mine.cu"
    source.write_text(SOURCE)
    file = read_file(source, find_nvcc(None))
    problem = build("copy", "fp32", {"columns": 100})
    compiled = file.compile(problem, file.header.all_variants[0], "sm_90a")
    assert compiled.cubin.read_bytes() == b"cubin"
    assert (compiled.compiler, compiled.registers, compiled.spill_bytes) == ("nvcc 13.0", 17, 8)
    given = Path("arguments").read_text().split()
    for option in ("-cubin", "-arch=sm_90a", "-use_fast_math", "-maxrregcount=64", "-std=c++17"):
        assert option in given
    assert f"-I{elsewhere}" in given
    (record,) = file.builds.records()
    assert record["compiler"] == "nvcc 13.0"
    assert file.fingerprint() != read_file(source).fingerprint()

    Path("arguments").unlink()
    assert file.compile(problem, file.header.all_variants[0], "sm_90a") == compiled
    assert not Path("arguments").exists()  # it was in the cache
    assert (
        read_file(source)
        .compile(problem, file.header.all_variants[0], "sm_90a")
        .compiler.startswith("NVRTC")
    )


def test_an_error_is_its_first_line(install: Install, elsewhere: Path) -> None:
    if compiler.unavailable():
        pytest.skip("there is no CuPy")
    install(BAD)
    source = elsewhere / "mine.cu"
    source.write_text(SOURCE)
    file = read_file(source, find_nvcc(None))
    with pytest.raises(KernelError, match=r'mine\.cu\(9\): error: identifier "x" is undefined$'):
        file.compile(build("copy", "fp32", {"columns": 9}), file.header.all_variants[0], "sm_90a")


@pytest.mark.parametrize("option", ["-o/tmp/x", "-ccbin=evil", "--run", "-Xcompiler", "x", "-D="])
def test_options_that_could_run_something_are_refused(option: str, elsewhere: Path) -> None:
    source = elsewhere / "mine.cu"
    source.write_text(SOURCE.replace("-use_fast_math", option))
    with pytest.raises(UsageError, match="is not an option for a kernel: use -use_fast_math"):
        read_file(source)


@pytest.mark.slow
def test_both_compilers_compile_our_kernels(tmp_path: Path) -> None:
    """With the real nvcc: the extra of that name installs it."""
    if not shutil.which("g++") or compiler.unavailable():
        pytest.skip("there is no compiler")
    real = find_nvcc(None)
    for name, workload in (("gemm/03_tiled", "gemm"), ("softmax/03_registers", "softmax")):
        for chosen in (None, real):
            path = kernels_dir() / f"{name}.cu"
            file = read_file(path, chosen)
            extents = {"m": 64, "n": 64, "k": 64} if workload == "gemm" else {"rows": 8}
            problem = build(workload, "fp32", extents | ({} if "m" in extents else {"columns": 64}))
            compiled = file.compile(problem, file.header.all_variants[0], "sm_90a")
            assert compiled.registers > 0
            assert compiled.spill_bytes == 0
