"""The FP32 kernels of the ladder as C++ on the CPU, under sanitizers.

The same sources, compiled with tests/host in place of CUDA, on exactly sized operands.
A colon and a number after a name stand for a variant. Marked ``slow``: another layout, other
variants, and races, which ThreadSanitizer finds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from rooflab.backends import expression
from rooflab.backends.cuda_file import CudaFile, read_file
from rooflab.backends.header import Variant
from rooflab.files import kernels_dir
from rooflab.workloads import build
from rooflab.workloads.gemm import Gemm

HOST = Path(__file__).parents[1] / "host"
RUNGS = (
    *("naive", "coalesced", "tiled", "blocktile_1d", "blocktile_2d"),
    *("vectorized", "warptiled", "pipelined"),
    *("serpentine", "producers", "fed"),
)
SHAPES = (
    *((1, 1, 1, 1, 0.0), (7, 131, 37, 2, -2.0), (132, 4, 20, 1, 0.0)),
    *((129, 12, 40, 1, 0.0), (3, 8, 330, 1, 0.0), (260, 132, 100, 1, -2.0)),
)
"""M, N, K, batch and beta: odd ones, rows of whole quads, several tiles, many steps of K."""

MEMORY = "address,undefined"


def compiled(file: CudaFile, choice: Variant, layout: str, sanitizer: str, folder: Path) -> Path:
    """The program that runs a variant of a rung in a layout."""
    if not shutil.which("g++"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no g++")
    program = folder / file.name
    macros = {
        "SOURCE": f'"{file.source}"',
        "ENTRY": file.name,
        "ROOFLAB_PRECISION_FP32": 1,
        "ROOFLAB_TRANSPOSE_A": int(layout[0] == "t"),
        "ROOFLAB_TRANSPOSE_B": int(layout[1] == "t"),
        **choice.macros,
        **boxes(file, choice),
    }
    options = [f"-D{name}={value}" for name, value in macros.items()]
    options += [f"-fsanitize={sanitizer}", "-fno-sanitize-recover=all", "-Wno-unknown-pragmas"]
    folders = [f"-I{HOST}", f"-I{kernels_dir() / 'include'}"]
    command = ["g++", "-std=c++17", "-O1", "-g", "-pthread", *options, *folders]
    subprocess.run([*command, HOST / "main.cpp", "-o", program], check=True)
    return program


def boxes(file: CudaFile, choice: Variant) -> dict[str, str]:
    """Rows, columns and swizzle of the boxes of each operand."""
    values = {name: value for name, value in choice.macros.items() if type(value) is int}
    return {
        f"BOX_{one.operand.upper()}": ",".join(
            str(expression.evaluate(amount, values)) for amount in (*one.box, one.swizzle)
        )
        for one in file.header.tensor_maps
    }


def check(program: Path, file: CudaFile, choice: Variant, problem: Gemm) -> None:
    """Run it on random numbers, C poisoned unless it is read, and compare with NumPy."""
    random = np.random.default_rng()
    batch, (m, n, k) = problem.batch, (problem.m, problem.n, problem.k)
    a = random.uniform(-1, 1, (batch, m, k)).astype(np.float32)
    b = random.uniform(-1, 1, (batch, k, n)).astype(np.float32)
    c = random.uniform(-1, 1, (batch, m, n)).astype(np.float32)
    expected = problem.alpha * (a.astype(float) @ b) + problem.beta * c
    if problem.beta == 0:
        c[:] = np.nan
    stored_a, stored_b = (
        np.swapaxes(matrix, 1, 2) if letter == "t" else matrix
        for matrix, letter in zip((a, b), problem.layout, strict=True)
    )
    block = (*file.block(problem, choice), 1)[:2]
    numbers = (m, n, k, problem.alpha, problem.beta, batch, *file.grid(problem, choice, 1), *block)
    numbers = (*numbers, max(16, file.dynamic_shared(problem, choice)))
    result = subprocess.run(
        [program, *map(str, numbers)],
        input=b"".join(matrix.tobytes() for matrix in (stored_a, stored_b, c)),
        capture_output=True,
        timeout=300,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()[:4000]
    given = np.frombuffer(result.stdout, np.float32).reshape(c.shape)
    np.testing.assert_allclose(given, expected, atol=1e-4)


def check_all(rung: str, layout: str, sanitizer: str, folder: Path) -> None:
    name, _, number = rung.partition(":")
    file = read_file(kernels_dir() / "gemm" / f"{name}.cu")
    choice = file.header.all_variants[int(number or 0)]
    program = compiled(file, choice, layout, sanitizer, folder)
    checked = 0
    for m, n, k, batch, beta in SHAPES:
        parameters = {"m": m, "n": n, "k": k, "batch": batch, "alpha": 0.5, "beta": beta}
        problem = build("gemm", "fp32", {**parameters, "layout": layout})
        assert isinstance(problem, Gemm)
        if file.header.batched >= (batch > 1) and not file.unsupported(problem):
            check(program, file, choice, problem)
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_in_its_arrays(rung: str, tmp_path: Path) -> None:
    check_all(rung, "nn", MEMORY, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rung", [rung for rung in RUNGS if rung != "fed"])  # in nn only
def test_so_it_is_with_both_operands_transposed(rung: str, tmp_path: Path) -> None:
    check_all(rung, "tt", MEMORY, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("rung", ["serpentine:3", "producers:1", "producers:3", "fed:1", "fed:2"])
def test_so_are_other_tiles_and_slices(rung: str, tmp_path: Path) -> None:
    check_all(rung, "nn", MEMORY, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "rung", ["tiled", "vectorized", "pipelined", "serpentine", "producers", "fed", "fed:1"]
)
def test_no_thread_reads_what_another_may_still_write(rung: str, tmp_path: Path) -> None:
    check_all(rung, "nn", "thread", tmp_path)
