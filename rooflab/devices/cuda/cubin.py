"""The parameters and the launch bounds of a kernel, read from its machine code.

A cubin is an ELF file of 64 bits. Its section ``.nv.info.KERNEL`` is a list of attributes; NVIDIA's
``cuobjdump -elf`` prints them, and calls those that are read here ``EIATTR_KPARAM_INFO``,
``EIATTR_MAX_THREADS`` (of ``__launch_bounds__``) and ``EIATTR_REQNTID`` (of ``__block_size__``).
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import error, unpack_from
from typing import Final

from rooflab.devices.cuda.refusals import Bounds

_SIZED: Final = 4
"""The format of an attribute whose two bytes of size are followed by as many bytes."""

_PARAMETER: Final = 0x17
_MAX_THREADS: Final = 0x05
_REQUIRED_THREADS: Final = 0x10


def parameter_bytes(cubin: bytes, entry: str) -> tuple[int, ...] | None:
    """The size of each parameter of the kernel ``entry``, in order; None if it cannot be told."""
    try:
        places = [
            unpack_from("<4xH2xI", cubin, at)
            for attribute, at in _attributes(cubin, entry)
            if attribute == _PARAMETER
        ]
    except (error, ValueError, OverflowError):  # another format than the one described here
        return None
    return tuple(packed >> 18 for _, packed in sorted(dict(places).items()))


def launch_bounds(cubin: bytes, entry: str) -> Bounds | None:
    """The threads that the kernel ``entry`` is compiled for; None if it is for any or unknown."""
    try:
        for attribute, at in _attributes(cubin, entry):
            if attribute in (_MAX_THREADS, _REQUIRED_THREADS):
                exact = attribute == _REQUIRED_THREADS
                return Bounds(unpack_from("<III", cubin, at), exact)
    except (error, ValueError, OverflowError):
        pass
    return None


def _attributes(cubin: bytes, entry: str) -> Iterator[tuple[int, int]]:
    """Each attribute of a kernel, and where its value is. Raises as ``_section``."""
    at, end = _section(cubin, f".nv.info.{entry}")
    while at < end:
        form, attribute, size = unpack_from("<BBH", cubin, at)
        at += 4
        yield attribute, at
        at += size if form == _SIZED else 0


def _section(elf: bytes, wanted: str) -> tuple[int, int]:
    """Where a section begins and ends. Raises ``ValueError``, or ``struct.error``."""
    (table,) = unpack_from("<Q", elf, 0x28)
    step, count, names = unpack_from("<HHH", elf, 0x3A)
    places = [unpack_from("<I20xQQ", elf, table + i * step) for i in range(count)]
    start = places[names][1] if names < count else 0
    for name, offset, size in places:
        if elf[start + name : elf.index(b"\0", start + name)] == wanted.encode():
            return offset, min(offset + size, len(elf))
    raise ValueError(wanted)
