"""Kernels of the ladder as C++ on the CPU, under sanitizers: those in FP32, and Hopper's.

The same sources, compiled with tests/host in place of CUDA, on exactly sized operands. What the
copy engine and tensor cores do happens as late as the kernel allows. ThreadSanitizer finds races.
A colon and a number after a name stand for a variant.
"""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import numpy as np
import pytest
from fake import FakeDevice

from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file import expression
from rooflab.kernels.cuda_file.header import Configuration, Map
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.measure.buffers import allocate, poison
from rooflab.measure.verify import Accuracy, verify
from rooflab.model.encoding import decode, encode
from rooflab.model.precision import DataType
from rooflab.model.problem import Operand, Problem
from rooflab.workloads import build
from rooflab.workloads.gemm import Gemm

pytestmark = pytest.mark.slow

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

HOPPER = (
    *("wgmma tf32 nt", "clusters fp16 nt", "overlapped tf32 nt"),
    *("champion fp16 nt", "champion:1 fp16 nn", "champion tf32 nt"),
    *("large fp16 nn", "large tf32 nt"),
    *("skinny:12 fp16 nt", "skinny:15 tf32 nt", "split:2 fp32_3xtf32 nt"),
)
"""Rung, precision, layout. The variants: clusters, tiles, splits, several boxes and consumers."""

HOPPER_SHAPES = ((1, 8, 8, 1, 0.0), (70, 24, 1320, 1, -2.0), (300, 504, 1000, 1, 0.0))
"""Rows are multiples of 16 bytes, as TMA needs them. The last has tiles with many steps, one after
the other."""

KEEPING_SHAPES = (
    *((200, 264, 96, 1, 0.0), (200, 264, 352, 1, 0.0), (200, 264, 480, 1, -2.0)),
    *((200, 264, 704, 1, 0.0), (2100, 8, 104, 1, 0.0)),
)
"""For `champion`: tiles too short to keep C of the one before, and just long enough; a whole group,
whose first copies come before all else. The first, of fewer steps than stages, for `large` too."""

HOW = ("-std=c++17", "-Og", "-g1", "-fno-sanitize-recover=all", "-Wno-unknown-pragmas")
MEMORY = "address,undefined"
HANGS_S = 200
"""Programs take 3 s at most alone, and 40 s at low priority on a busy machine."""
TOLERANCES = {"fp32": 1e-4, "fp32_3xtf32": 1e-4, "tf32": 1e-4, "fp16": 0.02, "fp8": 0.5}
"""Largest errors of an element. The CPU multiplies TF32 as FP32."""


def compiled(file: CudaFile, choice: Configuration, problem: Problem, sanitizer: str) -> Path:
    """The program that runs a variant of a rung in a precision and layout."""
    macros = {
        "SOURCE": f'"{file.source}"',
        "ENTRY": file.header.entry,
        f"ROOFLAB_PRECISION_{problem.precision.name.upper()}": 1,
        **problem.macros,
        **choice.macros,
        **maps(file, choice, problem),
    }
    main = {"gemm": "main.cpp", "attention": "attention.cpp"}.get(problem.workload, "plain.cpp")
    if problem.workload == "attention" and file.header.tensor_maps:
        main = "plain.cpp"
    return built(sanitizer, main, *(f"-D{name}={value}" for name, value in macros.items()))


@cache
def built(sanitizer: str, main: str, *macros: str) -> Path:
    """The program of a source of tests/host."""
    program = Path(mkdtemp(dir=folder().name)) / "program"
    common = standard(sanitizer)
    command = [*compiler(sanitizer), f"-I{common}", "-include", "standard.hpp", f"-I{includes()}"]
    files = (HOST / main, common / "runtime.o")
    subprocess.run([*command, *macros, *files, "-o", program], check=True)
    return program


def compiler(sanitizer: str) -> list[str]:
    """The beginning of its command."""
    if not shutil.which("g++"):
        (pytest.fail if os.environ.get("CI") else pytest.skip)("there is no g++")
    return ["g++", *HOW, f"-fsanitize={sanitizer}"]


@cache
def standard(sanitizer: str) -> Path:
    """A folder with what all programs have in common, compiled."""
    common = Path(mkdtemp(dir=folder().name))
    for kind, source, result in (
        ("-xc++-header", "standard.hpp", "standard.hpp.gch"),
        ("-c", "runtime.cpp", "runtime.o"),
    ):
        subprocess.run(
            [*compiler(sanitizer), kind, HOST / source, "-o", common / result], check=True
        )
    return common


@cache
def folder() -> TemporaryDirectory[str]:
    """Where all that is compiled lies until the tests end."""
    return TemporaryDirectory()


@cache
def includes() -> Path:
    """A folder with the kernels' headers, where tests/host has no other of that name."""
    merged = Path(mkdtemp(dir=folder().name))
    headers = [*(kernels_dir() / "include").iterdir(), *HOST.iterdir()]
    for name, header in {header.name: header for header in headers}.items():
        (merged / name).symlink_to(header)
    return merged


def shipped(name: str, workload: str = "gemm") -> CudaFile:
    """The rung of that name."""
    (path,) = (kernels_dir() / workload).rglob(f"[0-9][0-9]_{name}.cu")
    return read_file(path)


def numbers_of(choice: Configuration, problem: Problem) -> dict[str, int]:
    """What the header's arithmetic may name."""
    macros = {**choice.macros, **problem.macros}
    numbers = {name: value for name, value in macros.items() if type(value) is int}
    types = problem.precision
    return {**numbers, "input_bytes": types.input.bytes, "output_bytes": types.output.bytes}


def maps(file: CudaFile, choice: Configuration, problem: Problem) -> dict[str, str | int]:
    """Rows, columns and swizzle of the boxes of each operand; whether its pointer comes first."""
    names = numbers_of(choice, problem)
    found: dict[str, str | int] = {}
    for one in file.header.tensor_maps:
        amounts = [expression.evaluate(amount, names) for amount in (*one.box, one.swizzle)]
        found[f"BOX_{one.operand.upper()}"] = ",".join(map(str, amounts))
        if one.pointer:
            found[f"POINTER_{one.operand.upper()}"] = 1
    return found


def check(
    program: Path, file: CudaFile, choice: Configuration, problem: Gemm, multiprocessors: int = 1
) -> None:
    """Run it on random numbers, C poisoned unless it is read, and compare with NumPy."""
    random = np.random.default_rng()
    stored = np.float16 if problem.precision.name == "fp16" else np.float32
    batch, (m, n, k) = problem.batch, (problem.m, problem.n, problem.k)
    a = random.uniform(-1, 1, (batch, m, k)).astype(stored)
    b = random.uniform(-1, 1, (batch, k, n)).astype(stored)
    c = random.uniform(-1, 1, (batch, m, n)).astype(stored)
    expected = problem.alpha * (a.astype(float) @ b.astype(float)) + problem.beta * c.astype(float)
    if problem.beta == 0:
        c[:] = np.nan
    stored_a, stored_b = (
        np.swapaxes(matrix, 1, 2) if letter == "t" else matrix
        for matrix, letter in zip((a, b), problem.layout, strict=True)
    )
    block = (*file.geometry(problem, choice).block, 1)[:2]
    shared = max(16, file.geometry(problem, choice).shared_bytes)
    names = numbers_of(choice, problem)
    cluster = math.prod(expression.evaluate(blocks, names) for blocks in file.header.cluster)
    grid = file.geometry(problem, choice, multiprocessors).grid
    numbers = (m, n, k, problem.alpha, problem.beta, batch, *grid, *block)
    result = subprocess.run(
        [program, *map(str, (*numbers, shared, cluster))],
        input=b"".join(matrix.tobytes() for matrix in (stored_a, stored_b, c)),
        capture_output=True,
        timeout=HANGS_S,
        check=False,
    )
    assert result.returncode == 0, result.stderr.decode()[:4000]
    given: Any = np.frombuffer(result.stdout, stored).reshape(c.shape)
    np.testing.assert_allclose(given, expected, atol=TOLERANCES[problem.precision.name])


def check_all(rung: str, layout: str, sanitizer: str, precision: str = "fp32") -> None:
    name, _, number = rung.partition(":")
    file = shipped(name)
    choice = file.header.all_variants[int(number or 0)]
    program = None
    checked = 0
    shapes: Sequence[tuple[int, int, int, int, float]]
    shapes = SHAPES if precision == "fp32" else HOPPER_SHAPES
    if file.name in ("champion", "large"):
        shapes = (*shapes, *KEEPING_SHAPES[: None if file.name == "champion" else 1])
    if sanitizer == "thread":  # which is slow, most of all where 1024 threads meet
        shapes = SHAPES[2 : -1 if file.header.block == [32, 32] else None]
    for m, n, k, batch, beta in shapes:
        parameters = {"m": m, "n": n, "k": k, "batch": batch, "alpha": 0.5, "beta": beta}
        problem = build("gemm", precision, {**parameters, "layout": layout})
        assert isinstance(problem, Gemm)
        if file.header.batched >= (batch > 1) and not file.unsupported(problem):
            program = program or compiled(file, choice, problem, sanitizer)
            check(program, file, choice, problem)
            checked += 1
    assert checked >= 3


@pytest.mark.parametrize("rung", RUNGS)
def test_a_rung_is_right_and_stays_in_its_arrays(rung: str) -> None:
    check_all(rung, "nn", MEMORY)


@pytest.mark.parametrize("which", HOPPER)
def test_a_rung_of_hopper_is_right_however_late_copies_and_products_are(which: str) -> None:
    rung, precision, layout = which.split()
    check_all(rung, layout, "address", precision)


def test_first_copies_are_those_of_a_blocks_tile_in_whole_groups_and_in_others() -> None:
    file = shipped("champion")
    choice = next(one for one in file.header.all_variants if one.title == "64x128")
    problem = build("gemm", "fp16", {"m": 1032, "n": 264, "k": 72, "layout": "nt"})
    assert isinstance(problem, Gemm)
    program = compiled(file, choice, problem, "address")
    assert (
        file.geometry(problem, choice, 60).grid[0] == 51
    )  # 17 x 3 tiles: a group of 16 rows, one of 1
    check(program, file, choice, problem, 60)


@pytest.mark.parametrize(("rung", "m"), [("clusters", 2136), ("champion:1", 2136), ("large", 3160)])
def test_blocks_in_step_compute_every_tile_and_go_on_alone(rung: str, m: int) -> None:
    """A wave and a part of one. Here blocks run one after the other, so that none meets another."""
    name, _, index = rung.partition(":")
    file = shipped(name)
    choice = file.header.all_variants[int(index or 0)]
    problem = build("gemm", "fp16", {"m": m, "n": 2040, "k": 136, "layout": "nt"})
    assert isinstance(problem, Gemm)
    program = compiled(file, choice, problem, "address")
    assert file.geometry(problem, choice, 132).grid[0] == 132  # of which four have nothing to do
    check(program, file, choice, problem, 132)


@pytest.mark.parametrize("rung", RUNGS[1:-1:2])  # fed is in nn only
def test_so_it_is_with_both_operands_transposed(rung: str) -> None:
    check_all(rung, "tt", MEMORY)


@pytest.mark.parametrize("rung", ["serpentine:3", "producers:3", "fed:1"])
def test_so_are_other_tiles_and_slices(rung: str) -> None:
    check_all(rung, "nn", MEMORY)


@pytest.mark.parametrize("rung", ["tiled", "pipelined", "producers", "fed"])
def test_no_thread_reads_what_another_may_still_write(rung: str) -> None:
    check_all(rung, "nn", "thread")


# What it is made of ------------------------------------------------------------------------------

MEETING = """
extern "C" __global__ void meeting(float* values) {
    __shared__ float exchanged[64];
    exchanged[threadIdx.x] = values[threadIdx.x];
    %s
    values[threadIdx.x] = exchanged[63 - threadIdx.x];
}
"""


def met(between: str, sanitizer: str, folder: Path) -> tuple[int, str, bytes]:
    """The exit code, messages and result of two warps that reverse 64 numbers."""
    source = folder / "meeting.cu"
    source.write_text(MEETING % between)
    program = built(sanitizer, "plain.cpp", f'-DSOURCE="{source}"', "-DENTRY=meeting")
    numbers = np.arange(64, dtype=np.float32)
    command = [str(program), *map(str, (1, 1, 1, 64, 16, numbers.nbytes))]
    ended = subprocess.run(
        command, input=numbers.tobytes(), capture_output=True, timeout=HANGS_S, check=False
    )
    return ended.returncode, ended.stderr.decode(), ended.stdout


@pytest.mark.parametrize("sanitizer", [MEMORY, "thread"])
def test_threads_that_meet_are_right(sanitizer: str, tmp_path: Path) -> None:
    code, _, output = met("__syncthreads();", sanitizer, tmp_path)
    assert code == 0
    assert np.frombuffer(output, np.float32).tolist() == [*range(63, -1, -1)]


def test_a_race_between_threads_is_found(tmp_path: Path) -> None:
    code, said, _ = met("__syncwarp();", "thread", tmp_path)
    assert code != 0 and "data race" in said


@pytest.mark.parametrize("sanitizer", [MEMORY, "thread"])
def test_threads_that_wait_for_ever_end_with_a_message(sanitizer: str, tmp_path: Path) -> None:
    code, said, _ = met("if (threadIdx.x < 32) __syncthreads();", sanitizer, tmp_path)
    assert code == 3 and "Every thread waits for others" in said


# Attention ---------------------------------------------------------------------------------------

ATTENTION = (
    *((1, 1, 1, 1, 1, "off"), (5, 70, 4, 2, 24, "on"), (1, 100, 6, 2, 33, "off")),
    *((40, 40, 2, 1, 64, "on"), (3, 33, 2, 2, 16, "on")),
)
"""Queries, keys, heads, heads of keys, their size, whether causal; a batch of two."""

FOR_TENSOR_CORES = (
    *((1, 1, 1, 1, 16, "on"), (5, 70, 4, 2, 32, "on"), (1, 130, 6, 2, 16, "off")),
    *((80, 80, 2, 1, 16, "on"), (40, 40, 3, 3, 48, "on"), (3, 90, 1, 1, 144, "off")),
)


def half(shapes: Sequence[Any], which: str) -> Sequence[Any]:
    """Of several variants each has every second shape: one the first, the next one the others."""
    return shapes[int(which[-1]) % 2 :: 2]


def attend(which: str, precision: str, sanitizer: str, shapes: Sequence[Any]) -> None:
    """Every shape is a program of its own, because the size of a head is a macro."""
    name, _, number = which.partition(":")
    file = shipped(name, "attention")
    choice = file.header.all_variants[int(number or 0)]
    random = np.random.default_rng()
    for queries, keys, heads, kv_heads, size, causal in shapes:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_size": size, "batch": 2}
        shape = {"queries": queries, "keys": keys, **sizes, "causal": causal}
        problem = build("attention", precision, shape)
        program = compiled(file, choice, problem, sanitizer)
        *given, result = problem.operands
        values = {one.name: random.normal(0, 2, one.shape) for one in given}
        stored = {name: encode(np, value, given[0].type) for name, value in values.items()}
        arrays = [array.tobytes() for array in stored.values()]
        geometry = file.geometry(problem, choice)
        block, cluster = (*geometry.block, 1)[:2], choice.macros.get("CLUSTER", 1)
        if file.header.tensor_maps:
            command = plain_arguments(file, choice, problem)
            arrays.append(b"\xff" * result.bytes)  # NaN
        else:
            shape_of = (2, heads, kv_heads, queries, keys, size, geometry.grid[0], *block)
            command = [*map(str, (*shape_of, geometry.shared_bytes, cluster))]
        done = subprocess.run(
            [program, *command],
            input=b"".join(arrays),
            capture_output=True,
            timeout=HANGS_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()[:4000]
        output = done.stdout[-result.bytes :]
        written: Any = np.frombuffer(output, result.type.storage).reshape(result.shape)
        found = decode(np, written, result.type)
        expected = problem.reference(np, Decoded(stored, given[0].type))["o"]
        np.testing.assert_allclose(found, expected, atol=TOLERANCES[precision])
        error = np.linalg.norm(found - expected) / np.linalg.norm(expected)
        assert error < problem.tolerance


class Decoded(dict[str, Any]):
    """Inputs in FP64, as a reference takes them."""

    def __init__(self, stored: dict[str, Any], data_type: DataType) -> None:
        super().__init__(stored)
        self._type = data_type

    def __getitem__(self, name: str) -> Any:
        return decode(np, super().__getitem__(name), self._type)

    def part(self, name: str, index: Any) -> Any:
        return self[name][index]

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self[name].shape)


@pytest.mark.parametrize("which", ["naive", *(f"flash:{i}" for i in range(5))])
def test_attention_is_right_and_stays_in_its_arrays(which: str) -> None:
    attend(
        which,
        "fp32",
        MEMORY,
        ATTENTION[1:2] if which == "naive" else half(ATTENTION, which),
    )


def test_attention_in_half_precision_is_right() -> None:
    attend("flash:3", "fp16", MEMORY, ATTENTION[1:3])


@pytest.mark.parametrize("which", ["naive", "flash:2"])
def test_attention_in_fp8_is_right(which: str) -> None:
    attend(which, "fp8", MEMORY, ATTENTION[1:3])


@pytest.mark.parametrize("which", ["mma:0", "mma:2", "mma:3", "split:1", "split:2", "split:5"])
def test_attention_by_tensor_cores_is_right(which: str) -> None:
    attend(which, "fp16", "address", half(FOR_TENSOR_CORES, which))


FOR_WARPGROUPS = [
    *((1, 1, 1, 1, 64, "on"), (150, 300, 2, 1, 128, "on"), (37, 513, 6, 3, 64, "off")),
    *((300, 300, 1, 1, 64, "on"), (100, 131, 4, 2, 128, "off")),
]
"""One tile of keys, several, an even and an odd number of them; rows of two heads in one tile."""


@pytest.mark.parametrize("which", ["wgmma:0", "wgmma:1", "wgmma:2"])
def test_attention_by_warpgroups_is_right(which: str) -> None:
    attend(which, "fp16", "address", half(FOR_WARPGROUPS, which))


@pytest.mark.parametrize("which", ["mma_fp8:0", "mma_fp8:2", "mma_fp8:3", "split:1", "split:2"])
def test_attention_in_fp8_by_tensor_cores_is_right(which: str) -> None:
    attend(which, "fp8", "address", half(FOR_TENSOR_CORES, which))


def test_threads_of_attention_wait_for_what_others_write() -> None:
    attend("flash:4", "fp32", "thread", ATTENTION[1:2])
    for which in ("mma:2", "split:5"):
        attend(which, "fp16", "thread", [(20, 70, 2, 1, 16, "on")])
    attend("mma_fp8:2", "fp8", "thread", [(20, 70, 2, 1, 16, "on")])


# Layers ------------------------------------------------------------------------------------------

LAYERS: dict[str, list[dict[str, Any]]] = {
    "layernorm": [{"rows": 1, "columns": 1}, {"rows": 3, "columns": 300}],
    "cross_entropy": [{"rows": 1, "columns": 1}, {"rows": 3, "columns": 300}],
    "rmsnorm_backward": [{"rows": 1, "columns": 1}, {"rows": 5, "columns": 300}],
    "layernorm_backward": [{"rows": 1, "columns": 1}, {"rows": 5, "columns": 300}],
    "cross_entropy_backward": [{"rows": 1, "columns": 1}, {"rows": 3, "columns": 300}],
    "embedding": [
        {"tokens": 1, "words": 1, "columns": 1},
        {"tokens": 9, "words": 5, "columns": 300},
    ],
    "quantize": [{"rows": 1, "columns": 1}, {"rows": 7, "columns": 300}],
    "route": [
        {"tokens": 1, "experts": 1, "chosen": 1},
        {"tokens": 9, "experts": 70, "chosen": 40},
    ],
    "sort_experts": [
        {"tokens": 1, "experts": 1, "chosen": 1},
        {"tokens": 300, "experts": 5, "chosen": 3},
    ],
    "combine": [
        {"tokens": 1, "columns": 1, "chosen": 1},
        {"tokens": 7, "columns": 300, "chosen": 3},
    ],
    "adamw": [{"elements": 1}, {"elements": 300, "step": 1}],
    "w4a16": [{"m": 1, "n": 1, "k": 1}, {"m": 67, "n": 3, "k": 259}],
    "block_gemm": [{"m": 1, "n": 1, "k": 1}, {"m": 67, "n": 131, "k": 259}],
    "linear": [{"m": 1, "n": 1, "k": 1}, {"m": 67, "n": 131, "k": 37}],
    "swiglu": [{"columns": 1}, {"rows": 3, "columns": 301}],
    "grouped_gemm": [
        {"tokens": 1, "n": 1, "k": 1},
        *({"tokens": 70, "n": 67, "k": 33, "spread": s} for s in ("uniform", "skewed", "single")),
    ],
    "rope": [{"tokens": 1, "heads": 1, "head_size": 2}, {"tokens": 7, "heads": 3, "batch": 2}],
}


def of_map(one: Map, operand: Operand, choice: Configuration, problem: Problem) -> str:
    """What plain.cpp makes a tensor map of. A box of three dimensions is part of one matrix."""
    *leading, rows, columns = one.view(operand).shape
    matrices = math.prod(leading) if len(one.box) > 2 else 1
    names = numbers_of(choice, problem)
    box = [expression.evaluate(amount, names) for amount in one.box[-2:]]
    size = 0 if one.pointer else operand.bytes
    numbers = (size, matrices, rows, columns, operand.type.bytes, *box, one.swizzle)
    return ",".join(map(str, numbers))


def plain_arguments(
    file: CudaFile,
    choice: Configuration,
    problem: Problem,
    blocks: int = 0,
    multiprocessors: int = 1,
) -> list[str]:
    """What plain.cpp is called with."""
    geometry = file.geometry(problem, choice, multiprocessors)
    operands = {operand.name: operand for operand in problem.operands}
    given: list[Any] = []
    for name in problem.argument_names:
        own = [one for one in file.header.tensor_maps if one.operand == name]
        if name not in operands:
            given.append(getattr(problem, name))
        elif not own or any(one.pointer for one in own):
            given.append(operands[name].bytes)
        given += [of_map(one, operands[name], choice, problem) for one in own]
    grid = (*((blocks,) if blocks else geometry.grid), 1, 1)[:3]
    return [*map(str, (*grid, geometry.block[0], max(16, geometry.shared_bytes), *given))]


def run_plain(
    program: Path,
    file: CudaFile,
    choice: Configuration,
    problem: Problem,
    blocks: int = 0,
    multiprocessors: int = 1,
) -> Accuracy:
    """A launch on random numbers, of so many blocks if given; outputs hold NaN before it."""
    device = FakeDevice()
    operands = allocate(device, problem, 1)
    poison(operands)
    done = subprocess.run(
        [program, *plain_arguments(file, choice, problem, blocks, multiprocessors)],
        input=b"".join(operands[one.name].tobytes() for one in problem.operands),
        capture_output=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[:4000]
    start = 0
    for one in problem.operands:
        array, end = operands[one.name], start + one.bytes
        array[...] = np.frombuffer(done.stdout[start:end], array.dtype).reshape(one.shape)
        start = end
    return verify(device, operands, 0)


def differentiate(which: str, precision: str, sanitizer: str, shapes: Any) -> None:
    """Gradients of attention, of which every shape is a program of its own."""
    name, _, number = which.partition(":")
    file = shipped(name, "attention_backward")
    choice = file.header.all_variants[int(number or 0)]
    for queries, keys, heads, kv_heads, size, causal in shapes:
        sizes = {"heads": heads, "kv_heads": kv_heads, "head_size": size, "batch": 2}
        shape = {"queries": queries, "keys": keys, **sizes, "causal": causal}
        problem = build("attention_backward", precision, shape)
        program = compiled(file, choice, problem, sanitizer)
        assert run_plain(program, file, choice, problem).reason == ""


def test_gradients_of_attention_are_right() -> None:
    differentiate("naive", "fp32", MEMORY, ATTENTION[1:2])


def test_gradients_of_attention_in_half_precision_are_right() -> None:
    differentiate("naive", "fp16", MEMORY, ATTENTION[::2])


@pytest.mark.parametrize("which", ["mma:0", "mma:1", "mma:2"])
def test_gradients_of_attention_by_tensor_cores_are_right(which: str) -> None:
    differentiate(which, "fp16", "address", half(FOR_TENSOR_CORES[:-1], which))


@pytest.mark.parametrize("which", ["wgmma:0", "wgmma:1"])
def test_gradients_of_attention_by_warpgroups_are_right(which: str) -> None:
    differentiate(which, "fp16", "address", half(FOR_WARPGROUPS, which))


def test_threads_of_gradients_of_attention_wait_for_what_others_write() -> None:
    differentiate("mma:0", "fp16", "thread", [(40, 90, 2, 1, 16, "on")])


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("workload", LAYERS)
def test_layers_are_right(workload: str, precision: str) -> None:
    (path,) = (kernels_dir() / workload).glob("01_*.cu")
    file = read_file(path)
    choice = file.header.all_variants[0]
    shapes = LAYERS[workload]
    program = compiled(file, choice, build(workload, precision, shapes[0]), MEMORY)
    for shape in shapes:
        problem = build(workload, precision, shape)
        assert run_plain(program, file, choice, problem).reason == ""


def test_weights_may_be_shares_of_all_experts() -> None:
    shape = {"tokens": 9, "experts": 70, "chosen": 3, "normalised": "off"}
    check_variant("passes", "route", 0, MEMORY, [shape])


@pytest.mark.parametrize("workload", ["route", "sort_experts"])
def test_threads_of_routing_wait_for_what_others_write(workload: str) -> None:
    name = {"route": "passes", "sort_experts": "counting"}[workload]
    shape = {"tokens": 130, "experts": 9, "chosen": 4}
    check_variant(name, workload, 0, "thread", [shape])


BY_VECTORS: dict[str, list[dict[str, Any]]] = {
    "swiglu": [{"columns": 1}, {"rows": 3, "columns": 301}, {"rows": 2, "columns": 2056}],
    "rope": [
        {"tokens": 1, "heads": 1, "head_size": 2},
        {"tokens": 7, "heads": 3, "batch": 2},
        {"tokens": 5, "heads": 2, "head_size": 24},
    ],
    "adamw": [{"elements": 1}, {"elements": 300, "step": 1}, {"elements": 4099}],
    "embedding": [
        {"tokens": 1, "words": 1, "columns": 1},
        *({"tokens": 37, "words": 5, "columns": n} for n in (72, 300, 1040)),
    ],
    "quantize": [{"rows": r, "columns": n} for r, n in ((1, 1), (7, 300), (3, 264), (33, 128))],
}
ROWS = [{"rows": r, "columns": n} for r, n in ((1, 1), (3, 300), (2, 264), (2, 1024))]


OF_16_BYTES = [
    *((workload, 0) for workload in BY_VECTORS),
    *((name, 2) for name in ("rope", "embedding", "quantize")),
]


@pytest.mark.parametrize(("workload", "number"), OF_16_BYTES)
def test_accesses_of_16_bytes_are_right(workload: str, number: int) -> None:
    check_variant("vectorized", workload, number, MEMORY, BY_VECTORS[workload])


@pytest.mark.parametrize("number", [0, 2])
def test_rows_in_registers_are_right(number: int) -> None:
    check_variant("registers", "layernorm", number, MEMORY, ROWS)


NORMED = [{"rows": r, "columns": n} for r, n in ((1, 8), (37, 24), (5, 304), (3, 1024), (7, 2056))]


@pytest.mark.parametrize(("name", "number"), [("moments", 0), ("moments", 3), ("pipelined", 2)])
def test_moments_in_one_exchange_are_right(name: str, number: int) -> None:
    """Of one warp, of one with fewer columns, of several."""
    check_variant(name, "layernorm", number, MEMORY, NORMED)


def test_threads_wait_for_moments_and_for_rows_that_are_loaded_ahead() -> None:
    check_variant("moments", "layernorm", 0, "thread", NORMED[3:4])
    check_variant("pipelined", "layernorm", 0, "thread", NORMED[3:4])


SORTED = ((1, 1, 1), (300, 5, 3), (33, 300, 7), (257, 1024, 1))
"""Tokens, experts, chosen: one slot, a last part that is shorter, more experts than threads."""


def test_experts_are_sorted_by_parts() -> None:
    """One block has all slots: blocks run one after the other here, and would wait for ever."""
    file = shipped("chunks", "sort_experts")
    choice = file.header.all_variants[0]
    for sanitizer, shapes in ((MEMORY, SORTED), ("thread", SORTED[1:2])):
        for shape in shapes:
            sizes = dict(zip(("tokens", "experts", "chosen"), shape, strict=True))
            problem = build("sort_experts", "fp16", sizes)
            program = compiled(file, choice, problem, sanitizer)
            assert run_plain(program, file, choice, problem, blocks=1).reason == ""


def test_a_softmax_in_one_pass_is_right() -> None:
    shapes = [{"rows": r, "columns": n} for r, n in ((1, 1), (3, 300), (2, 4099))]
    check_variant("online", "cross_entropy", 0, MEMORY, shapes)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("workload", ["rmsnorm_backward", "layernorm_backward"])
def test_sums_of_persistent_blocks_are_right(workload: str, number: int) -> None:
    one_block("persistent", workload, number, ((1, 1), (5, 300), (9, 264), (4, 1024)))


@pytest.mark.parametrize(
    ("workload", "number"),
    [
        ("rmsnorm_backward", 0),
        *(("rmsnorm_backward", n) for n in (1, 2)),
        ("layernorm_backward", 2),
    ],
)
def test_rows_that_are_copied_ahead_are_right(workload: str, number: int) -> None:
    one_block("fed", workload, number, ((1, 8), (5, 304), (9, 264), (4, 1024)))


def one_block(name: str, workload: str, number: int, shapes: Sequence[tuple[int, int]]) -> None:
    """One block has all rows: blocks run one after the other here, and would wait for ever."""
    file = shipped(name, workload)
    choice = file.header.all_variants[number]
    for rows, columns in shapes:
        problem = build(workload, "fp16", {"rows": rows, "columns": columns})
        program = compiled(file, choice, problem, MEMORY)
        assert run_plain(program, file, choice, problem, blocks=1).reason == ""


FOR_EXPERTS = [
    {"tokens": 1, "n": 8, "k": 8},
    {"tokens": 20, "n": 16, "k": 8, "experts": 40, "spread": "skewed"},
    *({"tokens": 150, "n": 136, "k": 264, "spread": s} for s in ("skewed", "single")),
]

FOR_BLOCKS = [{"m": m, "n": n, "k": k} for m, n, k in ((1, 2, 16), (37, 134, 272), (150, 18, 400))]

FOR_FEW_BITS = [{"m": m, "n": n, "k": k} for m, n, k in ((1, 2, 32), (37, 70, 608), (150, 18, 288))]


def check_variant(
    name: str,
    workload: str,
    number: int,
    sanitizer: str,
    shapes: Sequence[Any],
    multiprocessors: int = 1,
    precision: str = "fp16",
) -> None:
    """A variant, by default on 16-bit numbers."""
    file = shipped(name, workload)
    choice = file.header.all_variants[number]
    program = compiled(file, choice, build(workload, precision, shapes[0]), sanitizer)
    for shape in shapes:
        problem = build(workload, precision, shape)
        ran = run_plain(program, file, choice, problem, multiprocessors=multiprocessors)
        assert ran.reason == ""


OF_SEVERAL_TILES = [
    *FOR_EXPERTS[1:],
    {"tokens": 1, "n": 8, "k": 8, "experts": 3},
    {"tokens": 300, "n": 264, "k": 872, "experts": 5, "spread": "skewed"},
]


@pytest.mark.parametrize("number", [0, 3])
def test_experts_by_warpgroups_are_right(number: int) -> None:
    """The last shape has tiles that store the one before. An expert may come after the next one."""
    check_variant("persistent", "grouped_gemm", number, "address", OF_SEVERAL_TILES, 3)


@pytest.mark.parametrize("number", [0, 3, 5])
def test_experts_by_tensor_cores_are_right(number: int) -> None:
    check_variant("mma", "grouped_gemm", number, "address", FOR_EXPERTS)


@pytest.mark.parametrize("number", [0, 5, 7])
def test_4_bit_weights_of_few_rows_are_right(number: int) -> None:
    shapes = [{"m": m, "n": n, "k": k} for m, n, k in ((1, 1, 32), (1, 41, 2080), (21, 70, 800))]
    check_variant("rows", "w4a16", number, MEMORY, shapes)


@pytest.mark.parametrize("number", [0, 3, 4])
def test_4_bit_weights_by_tensor_cores_are_right(number: int) -> None:
    check_variant("mma", "w4a16", number, "address", FOR_FEW_BITS)


@pytest.mark.parametrize("number", [0, 3])
def test_blocks_in_fp8_by_tensor_cores_are_right(number: int) -> None:
    check_variant(*("mma", "block_gemm", number, "address", FOR_BLOCKS), precision="fp8")


@pytest.mark.parametrize("number", [0, 2, 3])
def test_blocks_in_fp8_by_warpgroups_are_right(number: int) -> None:
    """One group, an even and an odd number of them, more than there are stages."""
    shapes = [(1, 8, 16), (300, 136, 400), (70, 264, 2320)]
    of = [dict(zip("mnk", shape, strict=True)) for shape in shapes]
    check_variant("wgmma", "block_gemm", number, "address", of, 2, precision="fp8")


FOR_EPILOGUES = [{"m": m, "n": n, "k": k} for m, n, k in ((1, 2, 8), (150, 18, 72), (37, 134, 264))]


@pytest.mark.parametrize("epilogue", ["gelu", "swiglu"])
def test_other_epilogues_are_right(epilogue: str) -> None:
    shapes = [{**shape, "epilogue": epilogue} for shape in LAYERS["linear"]]
    check_variant("tiled", "linear", 0, MEMORY, shapes)
    check_variant("tiled", "linear", 0, MEMORY, shapes, precision="fp32")


@pytest.mark.parametrize(
    ("epilogue", "number"), [("bias", 4), ("gelu", 1), ("swiglu", 0), ("swiglu", 6)]
)
def test_epilogues_of_tensor_cores_are_right(epilogue: str, number: int) -> None:
    shapes = [{**shape, "epilogue": epilogue} for shape in FOR_EPILOGUES]
    check_variant("mma", "linear", number, "address", shapes)


@pytest.mark.parametrize(
    ("epilogue", "number"), [("bias", 0), ("gelu", 3), ("swiglu", 0), ("swiglu", 3)]
)
def test_epilogues_of_warpgroups_are_right(epilogue: str, number: int) -> None:
    """The last shape has tiles that store the one before."""
    extents = ((1, 8, 8), (150, 264, 136), (300, 136, 872))
    shapes = [{"m": m, "n": n, "k": k, "epilogue": epilogue} for m, n, k in extents]
    check_variant("wgmma", "linear", number, "address", shapes, 2)


@pytest.mark.parametrize("number", [0, 2])
def test_4_bit_weights_by_warpgroups_are_right(number: int) -> None:
    shapes = [(1, 8, 32), (300, 136, 672), (70, 264, 1056)]
    of = [dict(zip("mnk", shape, strict=True)) for shape in shapes]
    check_variant("wgmma", "w4a16", number, "address", of, 2)


def test_threads_wait_for_operands_that_others_copy() -> None:
    of_two = {"tokens": 40, "n": 136, "k": 264, "experts": 2, "spread": "skewed"}
    check_variant("mma", "grouped_gemm", 3, "thread", [of_two])
    check_variant("mma", "w4a16", 3, "thread", FOR_FEW_BITS[1:2])
    of_gates = [{**FOR_EPILOGUES[2], "epilogue": "swiglu"}]
    check_variant("mma", "linear", 6, "thread", of_gates)
    check_variant("rows", "w4a16", 0, "thread", [{"m": 9, "n": 24, "k": 2080}])
    check_variant(*("mma", "block_gemm", 3, "thread", FOR_BLOCKS[1:2]), precision="fp8")
