"""Ceilings of the links between host and device memory: derived from PCIe, measured by copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import perf_counter
from typing import Any, Final

from rooflab.devices.base import Device, MarkedLaunch
from rooflab.errors import RooflabError
from rooflab.model.roofline import Ceiling, MissingCeiling

COPY_BYTES: Final = 2**28
WINDOWS: Final = 7
WARMUP_S: Final = 0.1

LANE_GBPS: Final = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""GB/s of one lane and direction by PCIe generation, after its encoding (PCI-SIG)."""


def derive_links(device: Device) -> list[Ceiling | MissingCeiling]:
    """Generation × lanes, the same in both directions."""
    generation, lanes = device.fact("pcie_generation"), device.fact("pcie_width")
    rate = LANE_GBPS.get(int(generation or 0))
    if rate is None or not lanes:
        reason = "NVML reports no PCIe generation or width"
        return [MissingCeiling("bandwidth", key, reason) for key in ("H2D", "D2H")]
    formula = f"PCIe {generation}: {rate:g} GB/s × {lanes} lanes"
    value = rate * int(lanes) * 1e9
    return [Ceiling("bandwidth", key, value, "derived", formula) for key in ("H2D", "D2H")]


class _Copy:
    """Copies of COPY_BYTES, each in a queue of its own, at the same time."""

    def __init__(self, device: Device, ways: tuple[str, ...], *, pinned: bool) -> None:
        self._device = device
        shape = (COPY_BYTES,)
        self._queues = device.queues(len(ways))
        self._pairs = []
        for way in ways:
            host = device.host_array(shape, "uint8", pinned=pinned)
            own = device.arrays.zeros(shape, "uint8")
            self._pairs.append((own, host) if way == "H2D" else (host, own))

    def __call__(self) -> None:
        """Queue the copies."""
        self._device.fork(self._queues)
        for (target, source), queue in zip(self._pairs, self._queues, strict=True):
            self._device.copy(target, source, queue)
        self._device.join(self._queues)


def measure_links(device: Device) -> list[Ceiling | MissingCeiling]:
    """Each way alone and both at once with pinned memory, each way with pageable memory."""
    return [*_measured(device, pinned=True), *_measured(device, pinned=False)]


def _measured(device: Device, *, pinned: bool) -> Iterator[Ceiling | MissingCeiling]:
    suffix = "" if pinned else "_PAGEABLE"
    cases: dict[str, tuple[str, ...]] = {"H2D": ("H2D",), "D2H": ("D2H",)}
    if pinned:
        cases |= {"H2D_BOTH": ("H2D", "D2H")}
    for key, ways in cases.items():
        names = [f"{way}_BOTH" for way in ways] if len(ways) > 1 else [key + suffix]
        try:
            us = best_us(device, MarkedLaunch(_Copy(device, ways, pinned=pinned), gated=pinned))
        except (RooflabError, MemoryError) as error:
            yield from (MissingCeiling("bandwidth", n, f"not measured: {error}") for n in names)
            continue
        memory = "pinned" if pinned else "pageable"
        both = ", both ways at once" if len(ways) > 1 else ""
        formula = f"{COPY_BYTES / 1e6:.0f} MB of {memory} memory{both}, best of {WINDOWS}"
        rate = COPY_BYTES / us * 1e6
        yield from (Ceiling("bandwidth", name, rate, "measured", formula) for name in names)


def best_us(device: Device, copy: Callable[[], Any]) -> float:
    """The least microseconds of WINDOWS copies, after WARMUP_S of copies: the link wakes up."""
    end = perf_counter() + WARMUP_S
    copy()
    device.synchronize()
    while perf_counter() < end:
        copy()
        device.synchronize()
    return min(device.time([copy]).times_us[0] for _ in range(WINDOWS))
