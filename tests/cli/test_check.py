"""``rooflab check``: a .cu file is compiled without a GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from commands import Rooflab, joined

from rooflab.cuda import compiler
from rooflab.files import kernels_dir


@pytest.fixture
def mine(elsewhere: Path) -> Path:
    if compiler.unavailable():
        pytest.skip("there is no compiler")
    return Path(shutil.copy(kernels_dir() / "gemm" / "tiled.cu", elsewhere / "mine.cu"))


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
        (["mine.py"], "error: mine.py is not a .cu file"),
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
