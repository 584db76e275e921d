"""``rooflab check``: a .cu file is compiled without a GPU."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from commands import Rooflab, joined

from rooflab.devices.cuda import compiler, nvcc
from rooflab.files import kernels_dir


@pytest.fixture
def mine(elsewhere: Path) -> Path:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    return Path(shutil.copy(kernels_dir() / "gemm" / "03_tiled.cu", elsewhere / "mine.cu"))


def test_every_precision_has_its_registers_and_its_occupancy(rooflab: Rooflab, mine: Path) -> None:
    code, out, err = rooflab("check", mine, "--arch", "9.0,sm_86", "--compiler", "nvrtc")
    assert (code, err) == (0, "")
    assert f"{mine}: gemm, entry tiled, NVRTC" in joined(out)
    assert [line for line in out.splitlines() if line.startswith("compute")] == [
        "compute capability 9.0",
        "compute capability 8.6",
    ]
    rows = [line.split() for line in out.splitlines() if line.strip().startswith("fp32")]
    assert [row[1] for row in rows] == ["1024", "1024"]
    assert [row[4] for row in rows] == ["8192", "8192"]
    assert rows[0][5:] == ["2", "100", "%", "threads"]
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_warnings_are_shown_once(rooflab: Rooflab, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("Accumulate sum = 0;", "Accumulate sum = 0; int odd;"))
    code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 0
    assert out.count('warning #177-D: variable "odd" was declared but never referenced') == 1


def test_an_error_is_shown_with_its_line(rooflab: Rooflab, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("Accumulate sum = 0;", "Accumulate sum = zz;"))
    code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 1
    assert out.count('error: identifier "zz" is undefined') == 1
    assert "registers" not in out


def test_an_entry_with_other_parameters_than_the_workload_gives(
    rooflab: Rooflab, mine: Path
) -> None:
    """CUDA would copy the bytes as they come."""
    mine.write_text(mine.read_text().replace("Accumulate beta, ", "double beta, "))
    code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 1
    assert (
        f"{mine}: tiled takes parameters of 4, 4, 4, 4, 8, 8, 8, 8 bytes, and gemm in FP32 gives "
        "m 4, n 4, k 4, alpha 4, a 8, b 8, beta 4, c 8: (int m, int n, int k, Accumulate alpha, "
        "const Input* a, const Input* b, Accumulate beta, Output* c)"
    ) in joined(out)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["absent.cu"], "error: kernel file absent.cu cannot be read: No such file or directory"),
        (["mine.py"], "error: mine.py is not a .cu file: give the path of one"),
        (["mine.cu", "--arch", "9" * 5000], f"error: '{'9' * 40}' is not an architecture"),
        (["mine.cu", "--arch", "\u00b2\u00b2"], "error: '\u00b2\u00b2' is not an architecture"),
        (["mine.cu", "--arch", "hopper"], "error: 'hopper' is not an architecture: type 9.0 or"),
        (["mine.cu", "--compiler", "gcc"], "error: --compiler 'gcc': type auto, nvcc or nvrtc"),
    ],
)
def test_wrong_arguments_are_one_line(
    rooflab: Rooflab, mine: Path, arguments: list[str], says: str
) -> None:
    code, out, err = rooflab("check", *arguments)
    assert (code, out) == (2, "")
    assert joined(err).startswith(says)


def test_a_wrong_header_says_what_to_write(rooflab: Rooflab, mine: Path) -> None:
    mine.write_text(mine.read_text().replace("precisions", "precision", 1))
    code, _, err = rooflab("check", mine)
    assert code == 2
    assert "header" in err


# A kernel that compiles, and cannot be launched -------------------------------------------------

BOUNDED = """\
/*
workload = "add"
entry = "mine"
precisions = ["fp32"]
block = [1024]
tile = [1024]
shared_bytes = 4
*/
extern "C" __global__ void BOUNDS mine(long long n, const float* a, const float* b, float* c) {
  __shared__ float some[32];
  const long long i = (long long)blockIdx.x * 1024 + threadIdx.x;
  some[threadIdx.x % 32] = a[0];
  __syncthreads();
  if (i < n) c[i] = a[i] + b[i] * some[0];
}
"""


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        (
            "BOUNDS",
            "__launch_bounds__(256)",
            "mine cannot be launched: a block of 1024 threads, and __launch_bounds__ allow 256: "
            "make the block smaller or raise the bounds",
        ),
        (
            "shared_bytes = 4",
            "shared_bytes = 262144",
            "mine cannot be launched: 262272 bytes of shared memory per block, 128 of them static, "
            "and compute capability 9.0 has 232448: use less",
        ),
        (
            "  __syncthreads();",
            "  cooperative_groups::this_grid().sync();",
            "mine cannot be launched: a grid-wide barrier (cooperative_groups::this_grid().sync())",
        ),
    ],
)
def test_what_cannot_be_launched_is_an_error(
    rooflab: Rooflab, mine: Path, before: str, after: str, says: str
) -> None:
    source = BOUNDED.replace(before, after, 1).replace("BOUNDS", "")
    mine.write_text(source.replace("*/\n", "*/\n#include <cooperative_groups.h>\n"))
    for tool in ("nvrtc", "nvcc") if shutil.which("nvcc") else ("nvrtc",):
        code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", tool)
        assert code == 1
        assert says in joined(out)
        assert "%" not in out


def test_a_variant_that_does_not_fit_is_left_to_the_others(rooflab: Rooflab, mine: Path) -> None:
    """A sweep uses those that can be launched."""
    source = BOUNDED.replace("BOUNDS", "").replace("shared_bytes = 4", 'shared_bytes = "BYTES"')
    mine.write_text(source.replace("*/\n", "variants = [{ BYTES = 4 }, { BYTES = 262144 }]\n*/\n"))
    code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 0
    assert "mine BYTES=262144 cannot be launched: 262272 bytes of shared memory" in joined(out)
    assert "compute capability 9.0, BYTES=4" in out
    assert "compute capability 9.0, BYTES=262144" not in out


def test_a_barrier_that_the_kernel_only_asks_about_is_none(rooflab: Rooflab, mine: Path) -> None:
    source = BOUNDED.replace("BOUNDS", "").replace("*/\n", "*/\n#include <cooperative_groups.h>\n")
    mine.write_text(
        source.replace("if (i < n)", "if (i < n && !cooperative_groups::this_grid().is_valid())")
    )
    code, _, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 0


def test_a_file_is_checked_within_its_own_limits(rooflab: Rooflab) -> None:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    file = kernels_dir() / "fft" / "01_naive.cu"
    code, out, _ = rooflab("check", file, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 0
    assert [line.split()[4] for line in out.splitlines() if line.startswith("  fp")] == [
        "41984",
        "83968",
    ]


def test_several_files_at_once(rooflab: Rooflab, mine: Path) -> None:
    good = kernels_dir() / "add" / "01_naive.cu"
    mine.write_text(BOUNDED.replace("BOUNDS", "__launch_bounds__(32)"))
    code, out, _ = rooflab("check", good, mine, "--arch", "9.0", "--compiler", "nvrtc")
    assert code == 1
    assert f"{good}: add, entry naive" in joined(out)
    assert "mine cannot be launched" in joined(out)
    code, out, _ = rooflab("check", good, good, "--arch", "9.0", "--compiler", "nvrtc")
    assert (code, out.count("compute capability 9.0")) == (0, 2)


@pytest.mark.parametrize(
    ("header", "instead"),
    [
        ("<stdint.h>", "include <cuda/std/cstdint>, or use --compiler nvcc (pip install"),
        ("<limits>", "include <cuda/std/limits>, or use --compiler nvcc"),
        ("<stdio.h>", "leave it out (printf and mathematics are built in), or use --compiler nvcc"),
        ("<vector>", "NVRTC has no headers of a host compiler: use --compiler nvcc"),
        ('"mine.cuh"', ""),
    ],
)
def test_a_header_that_nvrtc_lacks_has_a_way_out(
    rooflab: Rooflab, mine: Path, header: str, instead: str
) -> None:
    mine.write_text(BOUNDED.replace("BOUNDS", "").replace("*/\n", f"*/\n#include {header}\n"))
    code, out, _ = rooflab("check", mine, "--arch", "9.0", "--compiler", "nvrtc")
    (first,) = [line for line in out.splitlines() if "cannot open source file" in line]
    assert (code, instead in first) == (1, True)
    assert ("--compiler nvcc" in out) == bool(instead)


def test_the_compiler_is_told_if_it_is_not_nvcc(
    rooflab: Rooflab, mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter([]))
    code, _, err = rooflab("check", mine, "--arch", "9.0")
    assert code == 0
    assert joined(err).startswith("NVRTC compiles your .cu files: there is no nvcc: ")


@pytest.mark.slow
def test_nvcc_needs_no_cupy(
    rooflab: Rooflab, mine: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("there is no nvcc")
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "cupy", None)
    compiler.unavailable.cache_clear()
    code, out, _ = rooflab("check", mine, "--arch", "9.0")
    compiler.unavailable.cache_clear()
    assert code == 0
    assert "nvcc" in out


@pytest.mark.slow
def test_host_code_is_compiled_by_nvcc_alone(rooflab: Rooflab, elsewhere: Path) -> None:
    if not shutil.which("nvcc"):
        pytest.skip("there is no nvcc")
    path = elsewhere / "mine.cu"
    head = '/*\nworkload = "add"\nlauncher = "run"\nprecisions = ["fp32"]\n*/\n'
    path.write_text(f"{head}void run(int, float*, float*, float*, cudaStream_t) {{}}")
    code, out, _ = rooflab("check", path, "--arch", "9.0")
    assert code == 0
    assert f"{path}: add, launcher run, nvcc" in joined(out)
    code, _, err = rooflab("check", path, "--compiler", "nvrtc")
    assert code == 2
    assert "only nvcc compiles a launcher: leave out --compiler nvrtc" in joined(err)
