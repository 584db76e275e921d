"""TMA descriptors of operands, and what headers and problems may ask of TMA. No GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from synthetic import gemm

from rooflab.devices.cuda import driver
from rooflab.devices.cuda.driver import (
    CLUSTER_DIMENSION,
    PROGRAMMATIC_STREAM_SERIALIZATION,
    TensorMap,
)
from rooflab.errors import KernelError, UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.kernels.cuda_file.tensor_maps import tensor_map
from rooflab.model.problem import Problem
from rooflab.workloads import build

MINIMAL = """
entry = "mine"
precisions = ["bf16", "tf32"]
layouts = ["nt"]
block = [128]
tile = [128, 256]
"""
A_MAP = 'tensor_maps = [{ operand = "a", box = [128, "128 // input_bytes"], swizzle = 128 }]'


def read(folder: Path, *lines: str) -> CudaFile:
    path = folder / "mine.cu"
    path.write_text("\n".join(["/*", MINIMAL, *lines, "*/"]), encoding="utf-8")
    return read_file(path)


def maps(file: CudaFile, problem: Problem) -> list[TensorMap]:
    choice = file.header.all_variants[0]
    return [made for _, made in file.geometry(problem, choice, 132).tensor_maps]


# Descriptors -------------------------------------------------------------------------------------


def test_a_descriptor_has_the_contiguous_extent_first(tmp_path: Path) -> None:
    (made,) = maps(read(tmp_path, A_MAP), gemm(1000, 37, 520, "bf16", layout="nt"))
    uint16, swizzle_128, promotion_128 = 1, 3, 2
    assert made == TensorMap(uint16, (520, 1000), (1040,), (64, 128), swizzle_128, promotion_128)


def test_a_map_says_how_much_l2_fetches(tmp_path: Path) -> None:
    line = 'tensor_maps = [{ operand = "a", box = [8, 64], promotion = 256 }]'
    (made,) = maps(read(tmp_path, line), gemm(64, 8, 64, "bf16", layout="nt"))
    assert made.promotion == 3
    (made,) = maps(read(tmp_path, line.replace("256", "0")), gemm(64, 8, 64, "bf16", layout="nt"))
    assert made.promotion == 0


def test_a_box_may_have_all_dimensions_of_an_operand(tmp_path: Path) -> None:
    file = read(tmp_path, 'tensor_maps = [{ operand = "a", box = [1, 64, 16], swizzle = 64 }]')
    (made,) = maps(file, gemm(100, 8, 16, "bf16", layout="nt", batch=3))
    assert (made.extents, made.strides, made.box) == ((16, 100, 3), (32, 3200), (16, 64, 1))


def test_weights_of_experts_are_matrices_of_their_own() -> None:
    file = read_file(kernels_dir() / "grouped_gemm" / "03_persistent.cu")
    sizes = {"tokens": 100, "n": 136, "k": 72, "experts": 5}
    problem = build("grouped_gemm", "bf16", sizes)
    assert not file.unsupported(problem)
    x, w, y = maps(file, problem)
    assert (x.extents, x.box) == ((72, 100), (64, 128))
    assert (w.extents, w.strides, w.box) == ((136, 72, 5), (272, 272 * 72), (64, 64, 1))
    assert (y.extents, y.box) == ((136, 100), (64, 16))
    assert file.geometry(problem, file.header.all_variants[0], 132).grid == (5, 1, 1)
    refused = build("grouped_gemm", "bf16", {**sizes, "n": 132})
    assert "n to be a multiple of 8, it is 132" in file.unsupported(refused)


def test_packed_weights_are_bytes() -> None:
    file = read_file(kernels_dir() / "w4a16" / "04_wgmma.cu")
    problem = build("w4a16", "fp16", {"m": 300, "n": 136, "k": 672})
    assert not file.unsupported(problem)
    _, w, _ = maps(file, problem)
    uint8, plain = 0, 0
    assert w == TensorMap(uint8, (336, 136), (336,), (32, 128), plain, 2)
    assert file.geometry(problem, file.header.all_variants[0], 3).grid == (3, 1, 1)
    refused = build("w4a16", "fp16", {"m": 300, "n": 136, "k": 80})
    assert "k to be a multiple of 32, it is 80" in file.unsupported(refused)


def test_only_inputs_in_tf32_are_rounded(tmp_path: Path) -> None:
    line = """tensor_maps = [
      { operand = "b", box = [64, 16] },
      { operand = "c", box = [64, 16], pointer = true },
    ]"""
    b, c = maps(read(tmp_path, line), gemm(8, 12, 16, "tf32", layout="nt"))
    float32, tfloat32 = 7, 11
    assert (b.data_type, c.data_type) == (tfloat32, float32)
    assert (b.extents, c.extents) == ((16, 12), (12, 8))
    b, _ = maps(read(tmp_path, line), gemm(8, 12, 16, "fp32_3xtf32", layout="nt"))
    assert b.data_type == float32  # the kernel needs the bits that TF32 lacks


def test_a_box_follows_the_variant(tmp_path: Path) -> None:
    line = 'tensor_maps = [{ operand = "b", box = ["WIDE", 32], swizzle = 128 }]'
    file = read(tmp_path, line, "variants = [{ WIDE = 64 }, { WIDE = 256 }]")
    problem = gemm(8, 8, 16, "bf16", layout="nt")
    boxes = []
    for choice in file.header.all_variants:
        ((_, made),) = file.geometry(problem, choice, 132).tensor_maps
        boxes.append(made.box)
    assert boxes == [(32, 64), (32, 256)]


def test_a_box_of_extents_is_checked_with_the_problem(tmp_path: Path) -> None:
    file = read(tmp_path, 'tensor_maps = [{ operand = "a", box = ["m", 32] }]')
    assert maps(file, gemm(200, 8, 16, "bf16", layout="nt"))[0].box == (32, 200)
    with pytest.raises(KernelError, match=r"extents of a box are 1 to 256 \(got \(300, 32\)\)"):
        maps(file, gemm(300, 8, 16, "bf16", layout="nt"))


# Headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('[{ operand = "d", box = [8, 8] }]', "tensor_maps: d is not one of a, b, c"),
        ('[{ operand = "a", box = [512, 8] }]', "extents of a box are 1 to 256 (got [512, 8])"),
        ('[{ operand = "a", box = [8, 4] }]', "of a box of bf16 must be a multiple of 8"),
        ('[{ operand = "a", box = [8, 64], swizzle = 64 }]', "box of bf16 is at most 32"),
        ('[{ operand = "a", box = [8, "WIDE"] }]', "'WIDE' uses WIDE, which is not an extent"),
        ('[{ operand = "a", box = [1, 1, 8, 8] }]', "a has 3 dimensions, its box 4"),
        ('[{ operand = "a", box = [8, 8], swizzle = 100 }]', "Input should be 0, 32, 64 or 128"),
        ('[{ operand = "a", box = [8, 8], promotion = 512 }]', "should be 0, 64, 128 or 256"),
        (
            '[{ operand = "a", box = [2, 256, 64] }]',
            "the first dimension of a is the batch, of which a box takes 1: write box = [256, 64]",
        ),
        ('[{ operand = "a", box = [8, 8], swizle = 64 }]', "write tensor_maps = [{ operand"),
        ('[{ operand = "a" }]', "write tensor_maps = [{ operand"),
    ],
)
def test_a_wrong_map_is_named(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, f"tensor_maps = {line}")
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("cluster = [16]", "cluster: 16 blocks are more than the 8 of a cluster"),
        ("cluster = [0]", "cluster: 0 is not possible, write cluster = [2]"),
        ("flat = 1", "write flat = true"),
        ('early_launch = "yes!"', "is not arithmetic"),
    ],
)
def test_a_wrong_launch_is_named(tmp_path: Path, line: str, told: str) -> None:
    with pytest.raises(UsageError) as caught:
        read(tmp_path, line)
    assert told in str(caught.value)


# Launches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "blocks"),
    [
        ((), (4, 3, 1)),
        (("flat = true",), (12, 1, 1)),
        (("flat = true", "blocks_per_sm = 1"), (10, 1, 1)),
        (("cluster = [2]",), (4, 3, 1)),
        (("cluster = [1, 2]",), (4, 4, 1)),
        (("cluster = [8]", "flat = true"), (16, 1, 1)),
        (("cluster = [4]", "flat = true", "blocks_per_sm = 1"), (8, 1, 1)),
        (("cluster = [4]", "flat = true", "blocks_per_tile = 2"), (24, 1, 1)),
    ],
)
def test_grids_are_whole_clusters(
    tmp_path: Path, lines: tuple[str, ...], blocks: tuple[int, int, int]
) -> None:
    file = read(tmp_path, *lines)
    problem = gemm(300, 1000, 64, "bf16", layout="nt")
    assert file.geometry(problem, file.header.all_variants[0], 10).grid == blocks


def test_only_what_was_asked_for_is_a_launch_attribute(tmp_path: Path) -> None:
    def attributes(*lines: str) -> list[dict[int, tuple[int, ...]]]:
        file = read(tmp_path, *lines)
        return [file.geometry(gemm(8, 8, 8), one).attributes for one in file.header.all_variants]

    assert attributes() == attributes("cluster = [1]") == [{}]
    wide, early = 'cluster = ["WIDE", 2]', "early_launch = 1"
    assert attributes(wide, early, "variants = [{ WIDE = 3 }]") == [
        {CLUSTER_DIMENSION: (3, 2, 1), PROGRAMMATIC_STREAM_SERIALIZATION: (1,)}
    ]
    with pytest.raises(KernelError, match="a cluster of \\(5, 2\\) blocks is not possible"):
        attributes(wide, "variants = [{ WIDE = 5 }]")


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        (gemm(7, 9, 8, "bf16", layout="nt"), ""),
        (gemm(7, 9, 4, "tf32", layout="nt"), ""),
        (gemm(7, 9, 12, "bf16", layout="nt"), "12 elements are 24: use a multiple of 8"),
        (gemm(7, 9, 8, "bf16", layout="nt", batch=2), "mine computes one of a batch"),
    ],
)
def test_rows_that_tma_cannot_address_are_refused(
    tmp_path: Path, problem: Problem, reason: str
) -> None:
    told = read(tmp_path, A_MAP).as_kernel().refuses(problem)
    assert reason in told if reason else not told


def test_a_batch_needs_a_box_with_its_dimension(tmp_path: Path) -> None:
    problem = gemm(7, 9, 8, "bf16", layout="nt", batch=2)
    told = read(tmp_path, A_MAP, "batched = true").as_kernel().refuses(problem)
    assert told == "mine: a has 2 parts of 2 dimensions, TMA takes one"
    three = A_MAP.replace("[128,", "[1, 128,")
    assert not read(tmp_path, three, "batched = true").as_kernel().refuses(problem)


def test_the_driver_gets_what_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a launch with attributes: the configuration, and the bytes of each argument."""
    seen: list[object] = []

    def launch_kernel(address: int, function: int, arguments: Any, extra: None) -> int:
        config = driver._LaunchConfig.from_address(address)
        attribute = config.attributes[0]
        seen.append((config.grid_x, config.grid_y, config.block_x, config.block_z))
        seen.append((config.shared_bytes, config.stream, function, config.attribute_count))
        seen.append((attribute.id, attribute.value[:3]))
        seen.append(ctypes.cast(arguments[0], ctypes.POINTER(ctypes.c_int))[0])
        seen.append(ctypes.string_at(arguments[1], 128))
        return len(seen) // 6  # an error from the second launch on

    monkeypatch.setattr(driver, "_driver", lambda name, types: launch_kernel)
    monkeypatch.setattr(driver, "_error", {1: "CUDA_ERROR_INVALID_VALUE"}.get)
    made = np.arange(128, dtype=np.uint8).view("V128")
    launch = driver.launcher(
        77, (6, 5), (384,), 1024, (np.int32(-3), made), {CLUSTER_DIMENSION: (2, 1, 1)}
    )
    launch(99)
    assert seen == [
        *((6, 5, 384, 1), (1024, 99, 77, 1), (4, [2, 1, 1]), -3),
        bytes(range(128)),
    ]
    with pytest.raises(
        KernelError, match=r"CUDA_ERROR_INVALID_VALUE of cuLaunchKernelEx.*\(6, 5\) blocks"
    ):
        launch(99)


def test_a_descriptor_is_aligned(monkeypatch: pytest.MonkeyPatch) -> None:
    def encode(at: int, data_type: int, rank: int, address: int, *more: int) -> int:
        assert (at % 64, data_type, rank, address) == (0, 1, 2, 0xABC0)
        extents = ctypes.cast(more[0], ctypes.POINTER(ctypes.c_uint64))
        assert extents[:2] == [520, 1000]
        assert more[4:] == (0, 3, 2, 0)
        return int(extents[0] > 520)

    monkeypatch.setattr(driver, "_driver", lambda name, types: encode)
    made = driver.encode(TensorMap(1, (520, 1000), (1040,), (64, 128), 3, 2), 0xABC0)
    assert made.nbytes == 128


def test_a_descriptor_of_an_operand_alone() -> None:
    (operand, *_) = gemm(16, 8, 64, "fp32").operands
    made = tensor_map(operand, (4, 32), 128, 64, gemm(16, 8, 64, "fp32").precision)
    assert made == TensorMap(7, (64, 16), (256,), (32, 4), 3, 1)
