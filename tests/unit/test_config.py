from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab.problem import MAX_EXTENT

from rooflab import config
from rooflab.config import parse_shape, parse_sizes
from rooflab.errors import UsageError


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("512", [512]),
        ("256,512", [256, 512]),
        ("256:2048", [256, 512, 1024, 2048]),
        ("256:8192:x2", [256, 512, 1024, 2048, 4096, 8192]),
        ("256:1024:+256", [256, 512, 768, 1024]),
        ("256:1024:256", [256, 512, 768, 1024]),
        ("100:1000:x3", [100, 300, 900]),
        ("1:3:x1.4", [1, 2, 3]),
        ("8,16:64:x2", [8, 16, 32, 64]),
    ],
)
def test_sizes(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@given(st.integers(1, MAX_EXTENT), st.integers(1, MAX_EXTENT), st.floats(1.2, 8))
def test_sizes_rise_from_first_to_at_most_last(first: int, last: int, factor: float) -> None:
    low, high = sorted((first, last))
    sizes = parse_sizes(f"{low}:{high}:x{factor:.3f}")
    assert sizes[0] == low
    assert sizes[-1] <= high
    assert sizes == sorted(set(sizes))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0", "size 0 is out of range: give 1 to"),
        ("-4", "size -4 is out of range"),
        ("99999999", "size 99999999 is out of range"),
        ("256;512", "cannot read sizes '256;512': write 512, or"),
        ("", "cannot read sizes ''"),
        ("1e3", "cannot read sizes"),
        ("512:256", "run backwards: write 256:512"),
        ("256:512:x1", "never arrive"),
        ("256:512:+0", "never arrive"),
        ("1:1000000:+1", "are more than 1000: use a larger step"),
    ],
)
def test_bad_sizes(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_sizes(text)
    assert says in str(caught.value)


def test_shapes() -> None:
    assert parse_shape("4096x14336X8") == (4096, 14336, 8)
    for text in ("4096", "1x2", "1x2x3x4", "axbxc", "1.5x2x3"):
        with pytest.raises(UsageError, match="write MxNxK, such as 4096x4096x1024"):
            parse_shape(text)
    with pytest.raises(UsageError, match="N = 0 is out of range"):
        parse_shape("1x0x1")


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
@pytest.mark.parametrize("name", config.shipped())
def test_shipped_configurations_are_valid(name: str, kind: str) -> None:
    assert config.load(name, kind, {}).extents()


def test_shipped_names_leave_out_the_device_table() -> None:
    assert config.shipped() == ["cutlass", "default", "full", "llm", "quick"]


def test_device_section_and_options_win(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'kernels = "tiled"\nsizes = "64:128"\nprecisions = "fp32"\n[timing]\nmax_s = 3\n'
        "[cpu]\nsizes = 32\n[cpu.timing]\nmin_rounds = 4\n"
    )
    on_gpu = config.load(str(path), "cuda", {})
    assert (on_gpu.sizes, on_gpu.timing.max_s, on_gpu.timing.min_rounds) == ([64, 128], 3, 10)
    on_cpu = config.load(str(path), "cpu", {})
    assert (on_cpu.sizes, on_cpu.timing.max_s, on_cpu.timing.min_rounds) == ([32], 3, 4)
    with_options = config.load(str(path), "cpu", {"shapes": ["1x2x3"], "kernels": ["naive"]})
    assert with_options.extents() == [(1, 2, 3)]
    assert with_options.kernels == ["naive"]


def test_several_names_with_commas() -> None:
    options = {"kernels": ["naive,tiled", "./a,b.cu"], "layouts": ["nn, nt"], "precisions": "fp32"}
    settings = config.load("default", "cuda", options)
    assert settings.kernels == ["naive", "tiled", "./a,b.cu"]
    assert settings.layouts == ["nn", "nt"]
    assert settings.precisions == ["fp32"]


def test_all_errors_at_once(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        'kernel = "tiled"\nsizes = "0"\nprecisions = ["fp32", "fb16"]\nlayouts = "nm"\n'
        "[timing]\nmax_round = 4\nmin_rounds = 1\n[cpu]\nbatsh = 2\n"
    )
    with pytest.raises(UsageError) as caught:
        config.load(str(path), "cuda", {})
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    for part in (
        "unknown key 'kernel', did you mean 'kernels'?",
        "size 0 is out of range",
        "unknown precision 'fb16': did you mean",
        "unknown layout 'nm': did you mean",
        "unknown key 'timing.max_round', did you mean 'max_rounds'?",
        "timing.min_rounds: Input should be greater than or equal to 2 (given: 1)",
        "[cpu] unknown key 'batsh', did you mean 'batch'?",
    ):
        assert part in message


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no configuration 'defalt': name a TOML file or one of"):
        config.load("defalt", "cpu", {})
    path = tmp_path / "torn.toml"
    path.write_text("sizes = ")
    with pytest.raises(UsageError, match=r"torn.toml: Invalid value"):
        config.load(str(path), "cpu", {})
    path.write_text("kernels = 'tiled'")
    with pytest.raises(UsageError, match="names no sizes: add --sizes"):
        config.load(str(path), "cpu", {})
