"""What counters may say against a measured ceiling."""

from __future__ import annotations

import pytest

from rooflab.devices.base import Counters
from rooflab.devices.cuda.ceilings import contradiction
from rooflab.model.roofline import Ceiling


def counters(dram: float | None, l2: float | None, l1: float | None) -> Counters:
    return Counters({}, dram, l2, l1, 1e6, 1980.0)


@pytest.mark.parametrize(
    ("key", "found", "words"),
    [
        ("HBM_read", (1000, 1000, 1000), ""),
        ("HBM_read", (500, 1000, 1000), "counters found 50% of the bytes at DRAM"),
        ("L2", (10, 1000, 1000), ""),
        ("L2", (600, 1000, 1000), "counters found 60% of the bytes at DRAM"),
        ("L2", (0, 100, 1000), "counters found 10% of the bytes at L2"),
        ("L1", (1, 2, 1000), ""),
        ("L1", (1, 900, 1000), "counters found 90% of the bytes at L2"),
        ("shared", (0, 0, 0), ""),
        ("shared", (0, 100, 0), "counters found 10% of the bytes at L2"),
        ("L2", (None, None, None), ""),
    ],
)
def test_the_bytes_must_come_from_the_level(
    key: str, found: tuple[float | None, float | None, float | None], words: str
) -> None:
    assert contradiction(key, 1000, counters(*found)) == words


def test_an_empty_launch_is_a_time() -> None:
    assert Ceiling("launch", "launch", 1.284e-6, "measured", "").amount == "1.28 µs"
