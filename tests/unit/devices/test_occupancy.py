"""Against NVIDIA's occupancy calculator."""

from __future__ import annotations

import pytest

from rooflab.devices.cuda.launches import occupancy


@pytest.mark.parametrize(
    ("capability", "threads", "registers", "shared_bytes", "blocks", "percent", "limit"),
    [
        ("9.0", 256, 32, 0, 8, 100, "threads"),
        ("9.0", 1024, 64, 0, 1, 50, "regs"),
        ("9.0", 384, 168, 200_000, 1, 18.75, "regs"),
        ("9.0", 128, 40, 100 * 1024, 2, 12.5, "shared"),
        ("9.0", 32, 16, 0, 32, 50, "blocks"),
        ("8.6", 256, 40, 0, 6, 100, "threads"),
        ("8.6", 128, 255, 0, 2, 16.67, "regs"),
        ("7.5", 1024, 32, 0, 1, 100, "threads"),
        ("7.0", 256, 33, 0, 6, 75, "regs"),
        ("8.0", 256, 128, 164 * 1024, 0, 0, "shared"),
    ],
)
def test_blocks_per_multiprocessor(
    capability: str,
    threads: int,
    registers: int,
    shared_bytes: int,
    blocks: int,
    percent: float,
    limit: str,
) -> None:
    found = occupancy(capability, threads, registers, shared_bytes)
    assert found is not None
    assert (found.blocks, found.limit) == (blocks, limit)
    assert found.percent == pytest.approx(percent, abs=0.01)


def test_an_unknown_chip_has_none() -> None:
    assert occupancy("99.0", 256, 32, 0) is None
