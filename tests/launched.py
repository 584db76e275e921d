"""Launches for tests."""

from __future__ import annotations

from collections.abc import Iterable

from rooflab.devices.base import Counters
from rooflab.devices.records import RecordedLaunch


def launch(
    kernel: str = "k", us: float = 10, start_us: float = 0, **more: object
) -> RecordedLaunch:
    """One launch of a kernel with a grid of 4 blocks."""
    begin = round(start_us * 1000)
    given = {"grid": (4, 1, 1), "block": (128, 1, 1), **more}
    return RecordedLaunch(kernel=kernel, start_ns=begin, end_ns=begin + round(us * 1000), **given)  # type: ignore[arg-type]


def in_order(names: Iterable[str], us: float = 10, gap_us: float = 2) -> list[RecordedLaunch]:
    """One launch after the other, one for each name."""
    each = us + gap_us
    return [launch(name, us, i * each) for i, name in enumerate(names)]


def counters(flops: float = 0, dram_bytes: float = 0, pipe: str = "tensor_bf16") -> Counters:
    """What was counted of one launch."""
    found = {pipe: flops} if flops else {}
    return Counters(found, dram_bytes, None, None, 1e4, 1500.0)
