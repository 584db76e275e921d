"""Numba's threads, for every backend that uses them."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from rooflab.devices.cpu.ceilings import fix_numba_threads

if TYPE_CHECKING:
    from rooflab.devices.base import Device


def without_numba(device: Device | None) -> str:
    """Why no Numba kernel can run, empty if it can."""
    return "" if find_spec("numba") else "Numba is not installed: pip install numba"


def numba_threads(device: Device) -> int:
    """Set Numba's threads to the device's; returns their number. Raises ``ImportError``."""
    threads = device.fact("threads")
    return fix_numba_threads(threads if isinstance(threads, int) else 1)
