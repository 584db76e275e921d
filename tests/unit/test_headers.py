"""The header of a .cu file is its registration. Nothing here needs CuPy."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rooflab.device import Device
from rooflab.problem import PRECISIONS, Problem

from rooflab.backends import cuda, cutlass_headers, nvrtc
from rooflab.errors import UsageError

MINIMAL = """
entry = "mine"
precisions = ["fp32"]
layouts = ["nn"]
block = [16, 16]
tile = [32, 64]
"""


def write(folder: Path, header: str, name: str = "mine.cu") -> Path:
    path = folder / name
    path.write_text(f"/*{header}*/\n", encoding="utf-8")
    return path


def device(compute_capability: str | None) -> Device:
    facts = {"compute_capability": compute_capability}
    return cast(Device, SimpleNamespace(name="Some GPU", fact=facts.get))


def test_shipped_kernels_are_a_ladder() -> None:
    kernels = cuda.shipped_kernels()
    assert [kernel.name for kernel in kernels][:3] == ["naive", "coalesced", "tiled"]
    assert all(kernel.teaches and kernel.device_kind == "cuda" for kernel in kernels)
    in_cute = [one.name for one in kernels if one.source and one.source.parent.name == "cute"]
    assert in_cute[0] == "cute_gemm"
    assert in_cute[-1] == "cute_rasterized"


def test_five_lines_register_a_file(tmp_path: Path) -> None:
    kernel = cuda.load_file(write(tmp_path, MINIMAL))
    assert (kernel.name, kernel.title, kernel.backend) == ("mine", "mine", "cuda")
    assert (kernel.precisions, kernel.layouts, kernel.variant) == (("fp32",), ("nn",), "")
    assert kernel.source == tmp_path / "mine.cu"


def test_the_first_variant_is_used_and_named(tmp_path: Path) -> None:
    header = MINIMAL + "variants = [{ STAGES = 3, LOAD = 'float4' }, { STAGES = 4 }]\n"
    assert cuda.load_file(write(tmp_path, header)).variant == "STAGES=3,LOAD=float4"


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.cu cannot be read: No such file"):
        cuda.load_file(tmp_path / "none.cu")


@pytest.mark.parametrize("text", ["", "// a comment\n", "int x; /* entry = 'late' */", "/* open"])
def test_a_file_without_header_learns_what_to_write(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(text)
    with pytest.raises(UsageError, match=r'mine\.cu has no header: .* entry = "mine"'):
        cuda.load_file(path)


def test_invalid_toml_is_reported_with_the_line_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.cu"
    path.write_text('\n\n/*\nentry = "mine"\nblock = 16, 16\n*/')
    with pytest.raises(UsageError, match=r"mine\.cu: .* not a TOML table: .*line 5"):
        cuda.load_file(path)


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    header = """
    entry = "two words"
    precisions = ["fp32", "fp33"]
    block = [64, 32]
    tile = [32]
    batchd = true
    shared_bytes = "48k"
    min_compute_capability = 9.0
    constraints = { m = 4 }
    needs = ["thrust"]
    variants = [{ "1ST" = 1 }]
    """
    with pytest.raises(UsageError) as caught:
        cuda.load_file(write(tmp_path, header))
    message = str(caught.value)
    assert "\n" not in message
    for part in (
        "entry: ",
        "(got 'two words')",
        "precisions: fp33 is not one of fp64, fp32",
        "'layouts' is missing, write layouts = [",
        "block: 2048 threads are more than the 1024",
        "tile: ",
        "'batchd' is not a key, did you mean 'batched'?",
        "shared_bytes: Input should be a valid integer (got '48k'), write shared_bytes = 65536",
        'write min_compute_capability = "9.0"',
        "constraints: m is not one of M, N, K",
        "needs: Input should be 'cutlass' (got 'thrust'), write needs = [\"cutlass\"]",
        "variants: ",
    ):
        assert part in message


@pytest.mark.parametrize("value", ["true", "1.5", "0", "-1", '"32"'])
def test_extents_are_positive_whole_numbers(tmp_path: Path, value: str) -> None:
    header = MINIMAL.replace("[16, 16]", f"[{value}, 16]")
    with pytest.raises(UsageError, match=r"block: .*write block = \[32, 32\]"):
        cuda.load_file(write(tmp_path, header))


@pytest.mark.parametrize(
    ("extra", "problem", "reason"),
    [
        ("", Problem(7, 129, 1), ""),
        ("", Problem(8, 8, 8, batch=2), "mine multiplies one pair of matrices at a time"),
        ("batched = true", Problem(8, 8, 8, batch=2), ""),
        ("batched = true", Problem(8, 8, 8, batch=65536), "65536 blocks for batch = 65536"),
        ("", Problem(2**20, 8, 8), ""),
        ("constraints = { K = 8 }", Problem(7, 7, 16), ""),
        ("constraints = { K = 8 }", Problem(7, 7, 12), "K to be a multiple of 8, it is 12"),
    ],
)
def test_objections_give_the_numbers(
    tmp_path: Path, extra: str, problem: Problem, reason: str
) -> None:
    kernel = cuda.load_file(write(tmp_path, MINIMAL + extra))
    refused = kernel.refuses(problem)
    assert reason in refused if reason else not refused


def test_a_grid_taller_than_cuda_allows_is_refused(tmp_path: Path) -> None:
    kernel = cuda.load_file(write(tmp_path, MINIMAL.replace("[32, 64]", "[8, 64]")))
    reason = kernel.refuses(Problem(2**20, 8, 8))
    assert reason == "mine needs 131072 blocks for M = 1048576, CUDA allows 65535"


def test_precision_and_layout_outside_the_header_are_refused(tmp_path: Path) -> None:
    kernel = cuda.load_file(write(tmp_path, MINIMAL))
    assert kernel.refuses(Problem(8, 8, 8, PRECISIONS["fp64"])) == "mine has no fp64"
    assert kernel.refuses(Problem(8, 8, 8, layout="nt")) == "mine takes layout nn only"


@pytest.mark.parametrize(
    ("present", "reason"),
    [
        ("8.9", "mine needs compute capability 9.0, Some GPU has 8.9"),
        (None, "Some GPU does not tell its compute capability"),
        ("9.0", ""),
        ("10.0", ""),
    ],
)
def test_the_device_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: str | None, reason: str
) -> None:
    monkeypatch.setattr(nvrtc, "compiler_unavailable", lambda: "")
    kernel = cuda.load_file(write(tmp_path, MINIMAL + 'min_compute_capability = "9.0"'))
    assert kernel.unavailable(device(present)) == reason


def test_variants_are_named_by_their_macros(tmp_path: Path) -> None:
    one = cuda.load_file(write(tmp_path, MINIMAL))
    assert (one.variant, one.variants) == ("", ())
    text = MINIMAL + "variants = [{ STAGES = 3, WARPS = 4 }, { STAGES = 4 }]"
    several = cuda.load_file(write(tmp_path, text))
    assert [variant.name for variant in several.variants] == ["STAGES=3,WARPS=4", "STAGES=4"]
    assert several.variant == "STAGES=3,WARPS=4"


def test_needs_is_met_by_headers_that_can_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nvrtc, "compiler_unavailable", lambda: "")
    kernel = cuda.load_file(write(tmp_path, MINIMAL + 'needs = ["cutlass"]'))
    plain = tmp_path / "plain"
    plain.mkdir()
    for reason in ("", "CUTLASS is not installed: pip install 'rooflab[cuda12,cutlass]'"):
        monkeypatch.setattr(cutlass_headers, "unavailable", lambda reason=reason: reason)
        assert kernel.unavailable(device("9.0")) == reason
        assert cuda.load_file(write(plain, MINIMAL)).unavailable(device("9.0")) == ""


@pytest.fixture
def fresh_probe() -> Iterator[None]:
    nvrtc.compiler_unavailable.cache_clear()
    yield
    nvrtc.compiler_unavailable.cache_clear()


@pytest.mark.usefixtures("fresh_probe")
def test_without_cupy_the_reason_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast("dict[str, Any]", sys.modules), "cupy", None)
    reason = nvrtc.compiler_unavailable()
    assert "pip install 'rooflab[cuda12]'" in reason
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
    assert nvrtc.arch_for(compute_capability) == arch
