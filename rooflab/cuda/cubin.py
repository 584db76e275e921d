"""The parameters of a kernel, read from its machine code.

A cubin is an ELF file of 64 bits. Its section ``.nv.info.KERNEL`` is a list of attributes; NVIDIA's
``cuobjdump -elf`` prints them, and calls the one that is read here ``EIATTR_KPARAM_INFO``.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import error, unpack_from
from typing import Final

_SIZED: Final = 4
"""The format of an attribute whose two bytes of size are followed by as many bytes."""

_PARAMETER: Final = 0x17


def parameter_bytes(cubin: bytes, entry: str) -> tuple[int, ...] | None:
    """The size of each parameter of the kernel ``entry``, in order; None if it cannot be told."""
    try:
        found = dict(_parameters(_section(cubin, f".nv.info.{entry}")))
    except (error, ValueError, OverflowError):  # another format than the one described here
        return None
    return tuple(found[place] for place in sorted(found))


def _section(elf: bytes, wanted: str) -> bytes:
    """The content of a section. Raises ``ValueError``, or ``struct.error``."""
    (table,) = unpack_from("<Q", elf, 0x28)
    step, count, names = unpack_from("<HHH", elf, 0x3A)
    places = [unpack_from("<I20xQQ", elf, table + i * step) for i in range(count)]
    start = places[names][1] if names < count else 0
    for name, offset, size in places:
        if elf[start + name : elf.index(b"\0", start + name)] == wanted.encode():
            return elf[offset : offset + size]
    raise ValueError(wanted)


def _parameters(info: bytes) -> Iterator[tuple[int, int]]:
    """Place and size of each parameter. Raises ``struct.error``."""
    at = 0
    while at < len(info):
        form, attribute, size = unpack_from("<BBH", info, at)
        at += 4
        if attribute == _PARAMETER:
            place, packed = unpack_from("<4xH2xI", info, at)
            yield place, packed >> 18
        at += size if form == _SIZED else 0
