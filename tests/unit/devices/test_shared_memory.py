"""Memory that processes share on a CPU."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import pytest

from rooflab.devices.cpu.device import CpuDevice

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="shared memory is of Linux")

LARGE = 2**21


def in_large_pages(address: int) -> int:
    """KiB that are mapped in large pages around an address."""
    for block in re.split(r"(?m)^(?=[0-9a-f]+-)", Path("/proc/self/smaps").read_text())[1:]:
        start, end = (int(word, 16) for word in block.split()[0].split("-"))
        if start <= address < end and (found := re.search(r"ShmemPmdMapped: +(\d+)", block)):
            return int(found[1])
    return 0


@pytest.mark.parametrize("size", [1, 5000, LARGE - 1, 3 * LARGE + 5000])
def test_both_see_what_one_writes(size: int) -> None:
    device = CpuDevice()
    shared = device.shared(size)
    opened = device.opened(shared.handle, size)
    assert shared.array.nbytes == opened.nbytes == size
    opened[...] = 7
    assert shared.array.sum() == 7 * size
    assert shared.descriptor is not None
    with pytest.raises(PermissionError):
        os.ftruncate(shared.descriptor, 0)
    os.close(shared.descriptor)


def test_pages_are_large() -> None:
    """In small ones launches take longer than on a process's own arrays."""
    version = tuple(map(int, re.findall(r"\d+", platform.release())[:2]))
    if version < (6, 1) or not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("this Linux gives no large pages to shared memory")
    device = CpuDevice()
    shared = device.shared(3 * LARGE + 5000)
    opened = device.opened(shared.handle, 3 * LARGE + 5000)
    for array in (shared.array, opened):
        assert in_large_pages(array.__array_interface__["data"][0]) == 3 * LARGE // 1024
    assert shared.descriptor is not None
    os.close(shared.descriptor)


def test_nothing_stays_mapped() -> None:
    device = CpuDevice()
    shared = device.shared(5000)
    assert shared.descriptor is not None
    os.close(shared.descriptor)
    mapping = f"{shared.array.__array_interface__['data'][0]:x}-"
    assert mapping in Path("/proc/self/maps").read_text()
    del shared
    assert mapping not in Path("/proc/self/maps").read_text()
