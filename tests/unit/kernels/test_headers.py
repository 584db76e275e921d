"""The header of a .cu file is its registration. Nothing here needs CuPy."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from synthetic import gemm

from rooflab.devices.base import Device
from rooflab.devices.cuda import compiler, cutlass_headers
from rooflab.errors import UsageError
from rooflab.kernels.base import Kernel
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file, shipped_kernels
from rooflab.model.problem import Problem
from rooflab.workloads import build

MINIMAL = """
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
block = [16, 16]
tile = [32, 64]
"""

FLAT = """
workload = "add"
entry = "mine"
precisions = ["fp32"]
block = ["THREADS"]
tile = ["THREADS * 16 // input_bytes"]
variants = [{ THREADS = 256 }, { THREADS = 512 }]
"""


def write(folder: Path, header: str, name: str = "mine.cu") -> Path:
    path = folder / name
    path.write_text(f"/*{header}*/\n", encoding="utf-8")
    return path


def load(folder: Path, header: str) -> Kernel:
    return read_file(write(folder, header)).as_kernel()


def device(compute_capability: str | None) -> Device:
    facts = {"compute_capability": compute_capability}
    return cast(Device, SimpleNamespace(name="Some GPU", fact=facts.get))


def refused(folder: Path, header: str) -> str:
    """What is wrong with the header, in one line."""
    with pytest.raises(UsageError) as caught:
        read_file(write(folder, header))
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{folder / 'mine.cu'}: ")
    return message


def grid(file: CudaFile, problem: Problem, multiprocessors: int = 100) -> tuple[int, int, int]:
    return file.geometry(problem, file.header.all_variants[0], multiprocessors).grid


# Registration ------------------------------------------------------------------------------------


def test_shipped_kernels_are_ladders() -> None:
    kernels = shipped_kernels()
    names = [kernel.name for kernel in kernels if kernel.workload == "gemm"]
    assert names[:3] == ["naive", "coalesced", "tiled"]
    assert all(kernel.teaches and kernel.device_kind == "cuda" for kernel in kernels)
    in_cute = [one.name for one in kernels if one.source and one.source.parent.name == "cute"]
    assert in_cute[0] == "cute_gemm"
    assert in_cute[-1] == "cute_rasterized"
    for workload in {kernel.workload for kernel in kernels}:
        rungs = [
            read_file(kernel.source).header.rung
            for kernel in kernels
            if kernel.workload == workload and kernel.source
        ]
        assert rungs == sorted(set(rungs)), f"{workload} has two kernels on one rung"


def test_a_few_lines_register_a_file(tmp_path: Path) -> None:
    kernel = load(tmp_path, MINIMAL)
    assert (kernel.name, kernel.title, kernel.backend) == ("mine", "mine", "cuda")
    assert (kernel.workload, kernel.precisions) == ("gemm", ("fp32",))
    assert (kernel.choices, kernel.variant) == ({"layout": ("nn",)}, "")
    assert kernel.source == tmp_path / "mine.cu"


def test_the_first_variant_is_used_and_named(tmp_path: Path) -> None:
    header = MINIMAL + "variants = [{ STAGES = 3, LOAD = 'float4' }, { STAGES = 4 }]\n"
    assert load(tmp_path, header).variant == "STAGES=3,LOAD=float4"


def test_variants_are_named_by_their_macros(tmp_path: Path) -> None:
    one = load(tmp_path, MINIMAL)
    assert (one.variant, one.variants) == ("", ())
    several = load(tmp_path, MINIMAL + "variants = [{ STAGES = 3, WARPS = 4 }, { STAGES = 4 }]")
    assert [variant.name for variant in several.variants] == ["STAGES=3,WARPS=4", "STAGES=4"]
    assert several.variant == "STAGES=3,WARPS=4"


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_bytes(b"\xef\xbb\xbf\n \n/*" + MINIMAL.encode() + b"*/")
    assert read_file(path).header.entry == "mine"


# Files without a header --------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.cu cannot be read: No such file"):
        read_file(tmp_path / "none.cu")
    with pytest.raises(UsageError, match=r"cannot be read: Is a directory"):
        read_file(tmp_path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.cu").write_bytes(b"\x7fELF\xff\xfe")
    with pytest.raises(UsageError, match=r"mine\.cu cannot be read: it is not UTF-8 text"):
        read_file(tmp_path / "mine.cu")


@pytest.mark.parametrize("text", ["", "// a comment\n", "int x; /* entry = 'late' */", "/* open"])
def test_a_file_without_header_learns_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    with pytest.raises(UsageError, match=r'mine\.cu has no header: .* entry = "mine"') as caught:
        read_file(path)
    example = str(caught.value).split("as in ")[1].split(";")[0]
    assert read_file(Path(example)).header.entry == "naive"


def test_invalid_toml_is_reported_with_the_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text('\n\n/*\nentry = "mine"\nblock = 16, 16\n*/')
    with pytest.raises(UsageError, match=r"mine\.cu: .* not a TOML table: .*line 5"):
        read_file(path)


@pytest.mark.parametrize("text", ["[" * 50_000, "a = " + "9" * 5000, "a." * 5000 + "a = 1"])
def test_hostile_toml_is_reported_in_a_line(tmp_path: Path, text: str) -> None:
    assert len(refused(tmp_path, text)) < 1000


# Mistakes ----------------------------------------------------------------------------------------


def test_wrong_types_are_reported_at_once(tmp_path: Path) -> None:
    header = """
    entry = "two words"
    precisions = "fp32"
    min_compute_capability = 9.0
    needs = ["thrust"]
    variants = [{ "1ST" = 1 }]
    """
    message = refused(tmp_path, header)
    for part in (
        "entry: ",
        "(got 'two words')",
        "precisions: ",
        'write precisions = ["fp32"]',
        'write min_compute_capability = "9.0"',
        "needs: Input should be 'cutlass' (got 'thrust'), write needs = [\"cutlass\"]",
        "variants: ",
        "(got '1ST'), write variants = [{ STAGES = 3 }]",
    ):
        assert part in message


def test_wrong_names_are_reported_at_once(tmp_path: Path) -> None:
    header = """
    precisions = ["fp32", "fp33"]
    layouts = ["nn", "xy"]
    entry = "mine"
    block = [64, 32]
    tile = [0, "a"]
    batchd = ["x"]
    shared_bytes = "TILE * 4"
    constraints = { Q = 4 }
    limits = { rows = 4 }
    variants = [{ STAGES = 3 }, { STAGES = 3, precisions = ["fp99"] }]
    """
    message = refused(tmp_path, header)
    for part in (
        "precisions: fp33 is not one of fp64, fp32",
        "precisions: fp99 is not one of",
        "layouts: xy is not one of nn, nt, tn, tt",
        "block: 2048 threads are more than the 1024",
        "tile: 0 is not possible",
        "'batchd' is not a key, did you mean 'batched'?",
        "'TILE * 4' uses TILE, which is not an extent of gemm, a macro",
        "'a' uses a, which is not an extent of gemm, a macro",
        "constraints: q is not one of m, n, k, batch",
        "limits: rows is not one of m, n, k, batch",
        "two variants are called STAGES=3",
    ):
        assert part in message


@pytest.mark.parametrize("key", ["entry", "precisions", "block", "tile"])
def test_what_is_missing_is_named_with_an_example(tmp_path: Path, key: str) -> None:
    lines = [line for line in MINIMAL.splitlines() if not line.startswith(key)]
    assert f"'{key}' is missing, write {key} = " in refused(tmp_path, "\n".join(lines))


@pytest.mark.parametrize("value", ["true", "1.5", "0", "-1", '"x y"'])
@pytest.mark.parametrize("key", ["block", "tile"])
def test_blocks_and_tiles_are_positive_whole_numbers(tmp_path: Path, key: str, value: str) -> None:
    header = MINIMAL.replace(f"{key} = [", f"{key} = [{value}, ").replace(", 64]", "]")
    message = refused(tmp_path, header)
    assert f"{key}: " in message
    assert f"write {key} = [32, 32]" in message


@pytest.mark.parametrize("value", ['"48k"', "1.5", "true", "-1", "[1]"])
def test_shared_memory_is_a_number_or_arithmetic(tmp_path: Path, value: str) -> None:
    message = refused(tmp_path, MINIMAL + f"shared_bytes = {value}")
    assert "shared_bytes: " in message
    assert "write shared_bytes = 65536" in message


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('workload = "gem"', r"no workload 'gem': did you mean"),
        ('workload = "sum"', "'layouts' is not a key"),
        ('layout = ["nn"]', "'layout' is not a key, did you mean 'layouts'?"),
        ('layouts = "nn"', 'layouts: Input should be a valid list, write layouts = ["nn"]'),
        ("layouts = []", "layouts is empty, name some of nn, nt, tn, tt"),
        ('alphas = ["1"]', "'alphas' is not a key"),
        ("batched = 1", "batched: "),
        ('rung = "first"', "rung: "),
        ('launch = "cooperative"', "launch: Input should be 'grid' or 'plan'"),
        ("variants = [{ splits = 0 }]", "variants: Input should be greater than 0"),
        ("variants = [{ tile_m = 8 }]", "variants: "),
        ("constraints = { M = 0 }", "constraints: "),
        ('k_major = ["fp99"]', "fp99 is not one of"),
        ('compute_capability = "9"', "compute_capability: "),
    ],
)
def test_one_mistake_is_named(tmp_path: Path, line: str, told: str) -> None:
    key = line.split(" = ")[0]
    lines = [one for one in MINIMAL.splitlines() if key not in one]
    message = refused(tmp_path, "\n".join([*lines, line]))
    assert told in message


@pytest.mark.parametrize("name", ["my::gemm<float>", "gemm<float, 128, ns::Wide<2>>", "::gemm"])
def test_an_entry_is_what_cpp_calls_it(tmp_path: Path, name: str) -> None:
    if name.startswith(":"):
        assert "entry: it is not the name" in refused(tmp_path, MINIMAL.replace("mine", name))
        return
    header = MINIMAL.replace("mine", name)
    assert read_file(write(tmp_path, header)).header.entry == name


@pytest.mark.parametrize("name", ["two words", "f; x", "f<1>; int y = g<2>", "f(1)", 'f<\\"a\\">'])
def test_an_entry_is_nothing_but_a_name(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, MINIMAL.replace("mine", name))
    assert "entry: it is not the name of a function, such as mine or ns::mine<float, 4>" in message


def test_a_fixed_number_of_blocks_is_the_grid(tmp_path: Path) -> None:
    header = "\n".join(line for line in MINIMAL.splitlines() if "tile" not in line)
    kernel = read_file(write(tmp_path, header + "\nblocks = 128"))
    assert grid(kernel, gemm(1000, 10, 10)) == grid(kernel, gemm(1, 1, 1)) == (128, 1, 1)
    assert kernel.launch_shape(gemm(1, 1, 1), "", 132) is None  # blocks loop over the work
    assert "one of a batch at a time" in kernel.unsupported(gemm(8, 8, 8, batch=2))
    pairs = header + '\nblocks = "multiprocessors - 1"\ncluster = [2]\nbatched = true'
    assert grid(read_file(write(tmp_path, pairs)), gemm(8, 8, 8, batch=3), 132) == (132, 1, 3)
    assert "blocks is the whole grid: leave out tile" in refused(tmp_path, MINIMAL + "blocks = 4")
    assert "'tile' is missing" in refused(tmp_path, header)


def test_shared_memory_may_be_what_only_the_compiler_knows(tmp_path: Path) -> None:
    file = read_file(write(tmp_path, MINIMAL + 'shared_bytes = "sizeof(Shared) + 1024"'))
    assert file.geometry(gemm(8, 8, 8), file.header.all_variants[0]).shared_bytes == 0
    message = refused(tmp_path, MINIMAL + 'shared_bytes = "sizeof(x); int y"')
    assert "is not an expression such as sizeof(Shared) + 1024" in message


def test_a_workload_that_is_not_there_offers_near_ones(tmp_path: Path) -> None:
    message = refused(tmp_path, FLAT.replace('"add"', '"ad"'))
    assert "no workload 'ad': did you mean " in message
    assert "add" in message.split("did you mean ")[1]
    assert "rooflab workloads" in message


# Arithmetic --------------------------------------------------------------------------------------


def test_arithmetic_uses_macros_extents_and_built_in_names(tmp_path: Path) -> None:
    file = read_file(write(tmp_path, FLAT))
    small = build("add", "fp32", {"columns": 100_000})
    first, second = file.header.variants
    # 256 threads of 16 bytes each: 1024 numbers per block.
    assert file.geometry(small, first, 1).grid == (98, 1, 1)
    assert file.geometry(small, second, 1).grid == (49, 1, 1)
    bounded = FLAT + 'blocks_per_sm = "2 * 8 // input_bytes"'
    file = read_file(write(tmp_path, bounded))
    assert grid(file, small, multiprocessors=10) == (40, 1, 1)
    assert grid(file, build("add", "fp32", {"columns": 5}), multiprocessors=10) == (1, 1, 1)
    file = read_file(write(tmp_path, FLAT + '\nblocks_per_tile = "THREADS // 128"'))
    assert grid(file, small) == (196, 1, 1)
    file = read_file(write(tmp_path, bounded + "\nblocks_per_tile = 3"))
    assert grid(file, small, multiprocessors=10) == (39, 1, 1)  # whole tiles


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        ('"THREDS * 2"', "'THREDS * 2' uses THREDS, which is not an extent of add"),
        ('"ONE * 2"', "uses ONE"),  # not a macro of each variant
        ('"m * 2"', "uses m"),  # an extent of another workload
        ('"NAME * 2"', "uses NAME"),  # a macro that is no number
        ('"min"', "uses min"),
        ('"THREADS ** 2"', "use + - * // %, min, max, ceildiv and whole numbers"),
        ('"THREADS / 2"', "use + - * // %"),
        ('"THREADS *"', "is not arithmetic"),
        ("\"__import__('os')\"", "the functions are min, max and ceildiv"),
        ('"2.5"', "2.5 is not a whole number"),
    ],
)
@pytest.mark.parametrize("key", ["shared_bytes", "blocks_per_sm", "blocks_per_tile"])
def test_wrong_arithmetic_is_named(tmp_path: Path, key: str, amount: str, told: str) -> None:
    variants = 'variants = [{ THREADS = 256, ONE = 1, NAME = "x" }, { THREADS = 512, NAME = "x" }]'
    lines = [line for line in FLAT.splitlines() if not line.startswith("variants")]
    assert told in refused(tmp_path, "\n".join([*lines, variants, f"{key} = {amount}"]))


@pytest.mark.parametrize("amount", ["elements", "rows * columns", "multiprocessors", "batch"])
def test_extents_and_arguments_of_the_workload_may_be_used(tmp_path: Path, amount: str) -> None:
    header = FLAT.replace('block = ["THREADS"]', f'block = ["min(THREADS, {amount})"]')
    assert read_file(write(tmp_path, header)).header.block == [f"min(THREADS, {amount})"]


# Grids and refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "blocks"),
    [
        (gemm(7, 129, 1), (3, 1, 1)),
        (gemm(33, 64, 8), (1, 2, 1)),
        (gemm(33, 64, 8, batch=5), (1, 2, 5)),
    ],
)
def test_tiles_cover_the_problem(
    tmp_path: Path, problem: Problem, blocks: tuple[int, int, int]
) -> None:
    assert grid(read_file(write(tmp_path, MINIMAL)), problem) == blocks


@pytest.mark.parametrize(
    ("extra", "problem", "reason"),
    [
        ("", gemm(7, 129, 1), ""),
        ("", gemm(8, 8, 8, batch=2), "mine computes one of a batch at a time, batch is 2"),
        ("batched = true", gemm(8, 8, 8, batch=2), ""),
        ("batched = true", gemm(8, 8, 8, batch=65536), "mine needs 65536 blocks along z"),
        ("", gemm(2**20, 8, 8), ""),
        ("constraints = { K = 8 }", gemm(7, 7, 16), ""),
        ("constraints = { K = 8 }", gemm(7, 7, 12), "K to be a multiple of 8, it is 12"),
        ("access_bytes = 16", gemm(7, 8, 12), ""),
        ("access_bytes = 16", gemm(7, 8, 10), "mine needs K to be a multiple of 4, it is 10"),
        ("limits = { k = 64 }", gemm(7, 7, 64), ""),
        ("limits = { k = 64 }", gemm(7, 7, 65), "mine supports k up to 64, it is 65"),
        ("", gemm(2**31, 1, 1), "mine counts in 32 bits"),
    ],
)
def test_refusals_give_the_numbers(
    tmp_path: Path, extra: str, problem: Problem, reason: str
) -> None:
    told = load(tmp_path, MINIMAL + extra).refuses(problem)
    assert reason in told if reason else not told


def test_a_grid_taller_than_cuda_allows_is_refused(tmp_path: Path) -> None:
    kernel = load(tmp_path, MINIMAL.replace("[32, 64]", "[8, 64]"))
    reason = kernel.refuses(gemm(2**20, 8, 8))
    assert reason == "mine needs 131072 blocks along y, CUDA allows 65535"


def test_a_tile_has_the_extents_of_the_workload(tmp_path: Path) -> None:
    message = refused(tmp_path, FLAT.replace('tile = ["', 'tile = [8, "'))
    assert "tile: add has 1 extent to tile, this has 2: write tile = [32]" in message
    message = refused(tmp_path, MINIMAL.replace("tile = [32, 64]", "tile = [32]"))
    assert "tile: gemm has 2 extents to tile, this has 1: write tile = [32, 32]" in message
    rows = MINIMAL.replace("tile = [32, 64]", "tile = [32]\nbatched = true")
    assert grid(read_file(write(tmp_path, rows)), gemm(7, 64, 8, batch=3)) == (2, 7, 3)


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (gemm(7, 8, 8), ""),
        (gemm(7, 8, 9), "wide needs K to be a multiple of 4, it is 9"),
        (gemm(7, 6, 8), "wide needs N to be a multiple of 4, it is 6"),
        (gemm(7, 8, 8, layout="tn"), "wide needs M to be a multiple of 4, it is 7"),
    ],
)
def test_a_variant_may_need_aligned_rows(tmp_path: Path, problem: Problem, reason: str) -> None:
    variants = 'variants = [{ name = "wide", access_bytes = 16 }, { name = "narrow" }]'
    kernel = load(tmp_path, MINIMAL.replace('layouts = ["nn"]', "") + variants)
    wide, narrow = kernel.variants
    assert wide.unsupported(problem) == reason
    assert not narrow.unsupported(problem) and not kernel.refuses(problem)


def test_a_variant_whose_grid_is_too_tall_leaves_the_others(tmp_path: Path) -> None:
    header = MINIMAL.replace("[32, 64]", '["TILE", 64]') + "variants = [{TILE = 8}, {TILE = 64}]"
    kernel = load(tmp_path, header.replace("TILE = 8}, {TILE = 64", "TILE = 64}, {TILE = 8"))
    small, large = gemm(8, 8, 8), gemm(2**20, 8, 8)
    assert kernel.refuses(small) == kernel.refuses(large) == ""
    assert [bool(one.unsupported(small)) for one in kernel.variants] == [False, False]
    assert [bool(one.unsupported(large)) for one in kernel.variants] == [False, True]


def test_precision_and_layout_outside_the_header_are_refused(tmp_path: Path) -> None:
    kernel = load(tmp_path, MINIMAL)
    assert kernel.refuses(gemm(8, 8, 8, "fp64")) == "mine does not support fp64"
    assert kernel.refuses(gemm(8, 8, 8, layout="nt")) == "mine supports layout nn only"


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        ("8.9", "mine needs compute capability 9.0, Some GPU has 8.9"),
        (None, "Some GPU does not report its compute capability"),
        ("9.0", ""),
        ("10.0", ""),
    ],
)
def test_the_device_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str | None, reason: str
) -> None:
    monkeypatch.setattr(compiler, "unavailable", lambda: "")
    kernel = load(tmp_path, MINIMAL + 'min_compute_capability = "9.0"')
    assert kernel.unavailable(device(present)) == reason


def test_a_kernel_for_one_architecture_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "unavailable", lambda: "")
    kernel = load(tmp_path, MINIMAL + 'compute_capability = "9.0"')
    assert kernel.unavailable(device("9.0")) == ""
    assert kernel.unavailable(device("10.0")) == (
        "mine requires exactly compute capability 9.0, Some GPU has 10.0"
    )


def test_needs_is_met_by_headers_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "unavailable", lambda: "")
    kernel = load(tmp_path, MINIMAL + 'needs = ["cutlass"]')
    plain = tmp_path / "plain"
    plain.mkdir()
    for reason in ("", "CUTLASS is not installed: pip install 'rooflab[cuda12,cutlass]'"):
        monkeypatch.setattr(cutlass_headers, "unavailable", lambda reason=reason: reason)
        assert kernel.unavailable(device("9.0")) == reason
        assert load(plain, MINIMAL).unavailable(device("9.0")) == ""


# The compiler ------------------------------------------------------------------------------------


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    compiler.unavailable.cache_clear()
    yield
    compiler.unavailable.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
def test_without_cupy_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "cupy", None)
    reason = compiler.unavailable()
    assert "\n" not in reason
    assert "pip install 'rooflab[cuda" in reason
    assert "'rooflab[nvrtc]'" in reason


@pytest.mark.parametrize(
    ("compute_capability", "arch"),
    [
        ("7.5", "sm_75"),
        ("8.9", "sm_89"),
        ("9.0", "sm_90a"),
        ("10.0", "sm_100a"),
        ("12.0", "sm_120a"),
    ],
)
def test_arch_of_a_compute_capability(compute_capability: str, arch: str) -> None:
    assert compiler.arch_for(compute_capability) == arch


# Hashes of sources -------------------------------------------------------------------------------


def code_hash(folder: Path, text: str) -> str:
    """What the cache knows a source by."""
    path = folder / "mine.cu"
    path.write_text(text)
    return compiler.source_sha256(path, comments=False)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("int x;", "int x; // why"),
        ("int x;", "int x;\n\n\n"),
        ("int x;", "/* a\n * b */\nint x;"),
        ("int x; int y;", "int x;/* not a token */int y;"),
        ("char c = '\"';", "char c = '\"'; // then \" a comment"),
        ("char c = '\"'; int x;", "char c = '\"';/* and \" one more */int x;"),
        ("char c = '\\'';", "char c = '\\''; // it's"),
        ('auto s = "//";', 'auto s = "//"; // not this'),
        ("int x = 1'000'000;", "int x = 1'000'000; // a million's"),
        ("// it's\nint x;", "int x; // one that isn't"),
    ],
)
def test_comments_and_empty_lines_do_not_change_the_code(
    tmp_path: Path, one: str, other: str
) -> None:
    assert code_hash(tmp_path, one) == code_hash(tmp_path, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('auto s = "/* a */";', 'auto s = "/* b */";'),
        ('auto s = "// a";', 'auto s = "// b";'),
        ("char c = '\"'; int x; // \"", "char c = '\"'; int y; // \""),
        ('char c = \'"\'; auto s = "//a";', 'char c = \'"\'; auto s = "//b";'),
        ('auto s = "\\"//a";', 'auto s = "\\"//b";'),
        ("int x = 1'000; int y = 2'000;", "int x = 1'000; int y = 3'000;"),
        ('auto s = R"(// a)";', 'auto s = R"(// b)";'),  # raw strings: nothing is taken away
        ("int xy;", "int x y;"),
    ],
)
def test_what_only_looks_like_a_comment_is_code(tmp_path: Path, one: str, other: str) -> None:
    assert code_hash(tmp_path, one) != code_hash(tmp_path, other)


def test_a_hash_is_kept_until_a_file_or_a_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, header = tmp_path / "mine.cu", tmp_path / "near.cuh"
    source.write_text('#include "near.cuh"\n#include "later.cuh"\n')
    header.write_text("int one;\n")
    read: list[Path] = []
    included = compiler._included

    def noted(path: Path) -> list[Path]:
        read.append(path)
        return included(path)

    monkeypatch.setattr(compiler, "_included", noted)
    seen: set[str] = set()
    changes: list[Callable[[], object]] = [
        lambda: None,
        lambda: header.write_text("int two, three;\n"),
        lambda: (tmp_path / "later.cuh").write_text("int later;\n"),
        header.unlink,
    ]
    for change in changes:
        change()
        for path in (*tmp_path.iterdir(), tmp_path):
            os.utime(path, (len(seen), len(seen)))
        hashes = {compiler.source_sha256(source) for _ in range(3)}
        assert len(hashes) == 1
        seen |= hashes
    assert len(seen) == len(read) == 4


def test_a_hash_of_a_file_that_was_just_written_is_not_kept(tmp_path: Path) -> None:
    source = tmp_path / "mine.cu"
    source.write_text("int one;\n")
    status = source.stat()
    before = compiler.source_sha256(source)
    source.write_text("int two;\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert compiler.source_sha256(source) != before


def test_what_a_source_includes_is_part_of_it(tmp_path: Path) -> None:
    (tmp_path / "near.cuh").write_text('#include "deep.cuh"\n')
    (tmp_path / "deep.cuh").write_text("int deep;\n")
    text = '#include "near.cuh"\n#include <types.cuh>\n#include <vector>\n'
    before = code_hash(tmp_path, text)
    (tmp_path / "deep.cuh").write_text("int deeper;\n")
    assert code_hash(tmp_path, text) != before
    # A file that includes itself, or is not there, is no obstacle.
    (tmp_path / "deep.cuh").write_text('#include "near.cuh"\n#include "nowhere.cuh"\n')
    assert len(code_hash(tmp_path, text)) == 64
