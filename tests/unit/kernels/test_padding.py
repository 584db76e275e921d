"""Copies with padded rows, for operands that TMA cannot address. No GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda import driver
from rooflab.errors import UsageError
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.cuda_file import arguments, padding
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.measure.buffers import allocate
from rooflab.measure.protocol import Protocol
from rooflab.model.problem import Problem

HEADER = """/*
entry = "mine"
precisions = ["bf16", "fp32"]
block = [128]
tile = [64, 64]
tensor_maps = [
  { operand = "a", box = [8, 16], padded = true },
  { operand = "c", box = [8, 16], pointer = true, PADDED },
]
*/
"""


def copy(to: Any, source: Any) -> None:
    """As ``padding.copy_rows``."""
    columns = min(to.shape[-1], source.shape[-1])
    to[..., :columns] = source[..., :columns]


def read(folder: Path, padded: str = "padded = true") -> CudaFile:
    path = folder / "mine.cu"
    path.write_text(HEADER.replace("PADDED", padded), encoding="utf-8")
    return read_file(path)


@pytest.mark.parametrize(
    ("padded", "problem", "reason"),
    [
        ("padded = true", gemm(7, 9, 13), ""),
        ("padded = false", gemm(7, 12, 13), ""),
        ("padded = false", gemm(7, 9, 13), "TMA needs rows of c that are multiples of 16 bytes"),
        ("padded = true", gemm(7, 9, 13, batch=2), "mine computes one of a batch"),
    ],
)
def test_rows_of_padded_maps_may_be_any(
    tmp_path: Path, padded: str, problem: Problem, reason: str
) -> None:
    told = read(tmp_path, padded).as_kernel().refuses(problem)
    assert reason in told if reason else not told


def test_padded_is_a_word_of_toml(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="tensor_maps"):
        read(tmp_path, 'padded = "yes"')


def test_only_uneven_operands_with_a_map_are_copied(tmp_path: Path) -> None:
    maps = read(tmp_path).header.tensor_maps
    device = fake.FakeDevice()
    shapes = {
        problem: {n: a.shape for n, a in padding.copies(device, problem, maps).items()}
        for problem in (gemm(7, 8, 12), gemm(7, 9, 12), gemm(7, 9, 13), gemm(7, 9, 13, "bf16"))
    }
    assert list(shapes.values()) == [
        {},
        {"c": (1, 7, 12)},
        {"a": (1, 7, 16), "c": (1, 7, 12)},
        {"a": (1, 7, 16), "c": (1, 7, 16)},
    ]


def test_a_map_of_a_copy_has_its_pitch_and_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, problem = read(tmp_path), gemm(7, 9, 13)
    made = file.geometry(problem, file.header.all_variants[0]).tensor_maps
    assert [(one.extents, one.strides) for _, one in made] == [((13, 7), (64,)), ((9, 7), (48,))]

    class Array:
        def __init__(self, address: int) -> None:
            self.data = type("Data", (), {"ptr": address})

    seen: list[int] = []

    def encode(tensor_map: object, address: int) -> Any:
        seen.append(address)
        return np.zeros(driver.TENSOR_MAP_BYTES, np.uint8)

    monkeypatch.setattr(driver, "encode", encode)
    operands = Operands(problem, {"a": Array(1), "b": Array(2), "c": Array(3)}, {})
    bound = arguments.bind(operands, made, {"c": Array(30)})
    assert seen == [1, 30]
    assert bound[-2] is operands.c  # its pointer stays that of the operand


@pytest.mark.parametrize("beta", [0.0, 0.5])
def test_each_launch_copies_in_and_out(tmp_path: Path, beta: float) -> None:
    """The launch multiplies what is in the copies, and writes into that of C."""
    problem = gemm(7, 9, 13, beta=beta)
    device = fake.FakeDevice()
    operands = allocate(device, problem, 0)
    copies = padding.copies(device, problem, read(tmp_path).header.tensor_maps)
    copies["c"][...] = np.nan

    def multiply() -> None:
        product = copies["a"][..., :13] @ operands.b
        old = beta * copies["c"][..., :9] if beta else 0
        copies["c"][..., :9] = product + old

    launch = padding.padded_launch(multiply, operands, copies, copy)
    for _ in range(2):
        before = operands.c.copy()
        operands.a[...] += 1  # other numbers must arrive too
        launch()
        expected = operands.a @ operands.b + (beta * before if beta else 0)
        np.testing.assert_allclose(operands.c, expected, rtol=1e-5)


def test_a_row_says_so(tmp_path: Path) -> None:
    maps = read(tmp_path).header.tensor_maps
    exact = fake.exact("padding", 0.5)

    def prepare(device: Device, operands: Operands) -> Launch:
        launch = exact.prepare(device, operands)
        arrays = padding.copies(device, operands.problem, maps[:1])
        return padding.padded_launch(launch, operands, arrays, copy) if arrays else launch

    kernel = Kernel("padding", "exact", "exact", "", ("fp32",), prepare)
    timing = Timing(warmup_s=0, warmup_launches=1, min_rounds=3, max_rounds=3, batch_us=0)
    protocol = Protocol(fake.FakeDevice(), SweepConfig(timing=timing))
    for k, flags in ((12, []), (13, ["padded"])):
        (outcome,) = protocol.measure(gemm(7, 9, k), [kernel])
        assert (outcome.status, outcome.flags) == ("ok", flags)
