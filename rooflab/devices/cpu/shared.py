"""Memory that processes on a CPU share, in pages as large as those of a process's own arrays.

Linux gives large pages to a process's own memory, and to shared memory only if its administrator
says so. In small ones a launch on many buffer copies waits for the tables of pages too.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from mmap import MAP_POPULATE, MAP_SHARED, PROT_READ, PROT_WRITE, mmap
from typing import Final

LARGE: Final = 2**21
"""Bytes of a large page, and what its address is a multiple of."""

_MAP_FIXED: Final = 0x10
_COLLAPSE: Final = 25
"""<linux/mman.h>. What is collapsed gets large pages whatever the settings are, from Linux 6.1."""


def create(size: int) -> int:
    """The descriptor of a file in memory, which has no name, and whose size cannot be changed."""
    import fcntl

    descriptor = os.memfd_create("rooflab", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    # Who could shorten it could end another process, which reads it.
    seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


def mapped(descriptor: int, size: int) -> memoryview:
    """The bytes of such a file, in large pages where that is possible."""
    # Python's mmap has no address: the file is placed over a part of memory that it has, and frees.
    space = mmap(-1, size + LARGE)
    start = -_address(space) % LARGE
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    # Only pages that are there can be collapsed.
    kinds = PROT_READ | PROT_WRITE, MAP_SHARED | _MAP_FIXED | MAP_POPULATE
    at = ctypes.c_void_p(_address(space) + start)
    if libc.mmap(at, ctypes.c_size_t(size), *kinds, descriptor, ctypes.c_long(0)) != at.value:
        raise OSError(ctypes.get_errno(), "shared memory cannot be mapped")
    with suppress(OSError):  # it may be too small, or the memory in too many pieces
        space.madvise(_COLLAPSE, start, size)
    return memoryview(space)[start : start + size]


def _address(space: mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(space))
