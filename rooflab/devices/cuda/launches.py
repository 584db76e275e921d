"""A kernel's machine code and its launch: what it is compiled for, what fits on a multiprocessor,
why CUDA refuses it. Pure.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". Allocation:
the CUDA occupancy calculator: registers of a warp in units of 256, and from 8.0 on 1 KiB of shared
memory of each block for the system.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, prod
from struct import error, unpack_from
from typing import Any, Final

WARP: Final = 32
REGISTERS_PER_SM: Final = 65536
REGISTER_UNIT: Final = 256
SHARED_UNIT: Final = 128


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one multiprocessor: warps, blocks, KiB of shared memory, and KiB reserved per block."""

    warps: int
    blocks: int
    shared_kib: int
    reserved_kib: int = 1

    @property
    def shared_bytes_per_block(self) -> int:
        """Most shared memory of one block, static and dynamic."""
        return (self.shared_kib - self.reserved_kib) * 1024


LIMITS: Final = {
    "7.0": Limits(64, 32, 96, 0),
    "7.2": Limits(64, 32, 96, 0),
    "7.5": Limits(32, 16, 64, 0),
    "8.0": Limits(64, 32, 164),
    "8.6": Limits(48, 16, 100),
    "8.7": Limits(48, 16, 164),
    "8.9": Limits(48, 24, 100),
    "9.0": Limits(64, 32, 228),
    "10.0": Limits(64, 32, 228),
    "12.0": Limits(48, 24, 100),
}
"""By compute capability."""


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks, their share of the possible warps, and what limits them."""

    blocks: int
    percent: float
    limit: str


def occupancy(
    compute_capability: str, threads: int, registers: int, shared_bytes: int
) -> Occupancy | None:
    """Blocks of ``threads`` threads with ``registers`` each and ``shared_bytes`` in all.

    None if the limits of the compute capability are not known.
    """
    limits = LIMITS.get(compute_capability)
    if limits is None:
        return None
    warps = ceil(threads / WARP)
    shared = ceil(shared_bytes / SHARED_UNIT) * SHARED_UNIT + limits.reserved_kib * 1024
    fits = {
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
        "regs": REGISTERS_PER_SM // _of_a_warp(max(registers, 1)) // warps,
        "shared": limits.shared_kib * 1024 // shared if shared else inf,
    }
    limit = min(fits, key=lambda name: fits[name])
    blocks = int(fits[limit])
    return Occupancy(blocks, 100 * blocks * warps / limits.warps, limit)


def _of_a_warp(registers: int) -> int:
    """Registers that a warp gets for so many per thread."""
    return ceil(registers * WARP / REGISTER_UNIT) * REGISTER_UNIT


class Builds:
    """Records of one kernel's compilations; notes on the same one are merged."""

    def __init__(self) -> None:
        self._records: dict[tuple[str, ...], dict[str, Any]] = {}

    def note(self, build: dict[str, str], **found: Any) -> None:
        """Add ``found`` to the record of ``build`` (variant, precision, arch …)."""
        shown = {name: value for name, value in build.items() if value}
        self._records.setdefault(tuple(build.values()), shown).update(found)

    def records(self) -> list[dict[str, Any]]:
        """``registers`` and ``spill_bytes`` per thread, ``shared_bytes`` per block."""
        return list(self._records.values())


# Refusals ----------------------------------------------------------------------------------------

BARRIER: Final = (
    "a grid-wide barrier (cooperative_groups::this_grid().sync()) needs a cooperative launch, and "
    "rooflab launches .cu files in the ordinary way: make two kernels of it, or launch it from a "
    ".py file with CuPy's RawKernel(…, enable_cooperative_groups=True)"
)

MEMCHECK: Final = "find the line with compute-sanitizer --tool memcheck"


@dataclass(frozen=True, slots=True)
class Bounds:
    """``threads`` in x, y and z that a kernel is compiled for: the most, or if ``exact`` all."""

    threads: tuple[int, int, int]
    exact: bool = False


@dataclass(frozen=True, slots=True)
class Launched:
    """What is known of a kernel and its launch; zero and None are unknown.

    ``registers`` per thread; ``static_bytes`` and ``dynamic_bytes`` of shared memory per block;
    ``barrier`` whether it waits for the whole grid.
    """

    block: tuple[int, ...] = ()
    bounds: Bounds | None = None
    registers: int = 0
    static_bytes: int = 0
    dynamic_bytes: int = 0
    barrier: bool = False
    compute_capability: str = ""


UNKNOWN: Final = Launched()


def refusal(kernel: Launched) -> str:
    """Why the launch cannot succeed and what to change, empty if it may."""
    bounds, threads = kernel.bounds, prod(kernel.block)
    if bounds and kernel.block:
        block = "x".join(map(str, kernel.block))
        block += f" = {threads}" if len(kernel.block) > 1 else ""
        if bounds.exact and (*kernel.block, 1, 1)[:3] != bounds.threads:
            only = "x".join(map(str, bounds.threads))
            return (
                f"a block of {block} threads, and the source fixes it to {only}: make them the same"
            )
        if threads > (most := prod(bounds.threads)):
            return (
                f"a block of {block} threads, and __launch_bounds__ allow {most}: make "
                "the block smaller or raise the bounds"
            )
    limits = LIMITS.get(kernel.compute_capability)
    total = kernel.static_bytes + kernel.dynamic_bytes
    if limits and total > limits.shared_bytes_per_block:
        static = f", {kernel.static_bytes} of them static" if kernel.static_bytes else ""
        return (
            f"{total} bytes of shared memory per block{static}, and compute capability "
            f"{kernel.compute_capability} has {limits.shared_bytes_per_block}: use less"
        )
    if kernel.block and ceil(threads / WARP) * _of_a_warp(kernel.registers) > REGISTERS_PER_SM:
        return (
            f"{threads} threads of {kernel.registers} registers each need more than the "
            f"{REGISTERS_PER_SM} of a multiprocessor: write __launch_bounds__({threads}) or make "
            "the block smaller"
        )
    return BARRIER if kernel.barrier else ""


_CAUSES: Final[Sequence[tuple[str, str]]] = (
    (
        "LAUNCHFAILURE|LAUNCHFAILED",
        "it ended itself (trap), as a grid-wide barrier does without a cooperative launch, or it "
        f"used a barrier or its stack wrongly: {MEMCHECK}",
    ),
    ("ILLEGALADDRESS", f"it accessed memory outside its arrays: {MEMCHECK}"),
    ("MISALIGNEDADDRESS", f"it accessed an address that its type does not allow: {MEMCHECK}"),
    ("HARDWARESTACKERROR", f"its call stack is broken: {MEMCHECK}"),
    ("ILLEGALINSTRUCTION", "its machine code is for another GPU, or it ended itself (trap)"),
    ("ASSERT", "an assert in it failed; CUDA printed the line"),
    ("LAUNCHTIMEOUT", "it ran longer than the driver allows while this GPU draws a screen"),
    ("LAUNCHOUTOFRESOURCES", "its registers or its shared memory do not fit: make blocks smaller"),
    ("INVALIDCONFIGURATION|INVALIDVALUE", "block, grid or shared memory are beyond a limit"),
    ("NOBINARYFORGPU|NOKERNELIMAGE", "its machine code is for another GPU"),
)


def likely_cause(error: str, kernel: Launched = UNKNOWN) -> str:
    """``error``, a message of CUDA, with the cause that fits it and what is known of the kernel.

    Names of the runtime (``cudaErrorIllegalAddress``) and of the driver
    (``CUDA_ERROR_ILLEGAL_ADDRESS``) are understood. Other messages are returned unchanged.
    """
    found = re.search(r"cuda_?error_?(\w+)", error, re.IGNORECASE)
    name = found[1].replace("_", "").upper() if found else ""
    cause = next((text for names, text in _CAUSES if re.fullmatch(names, name)), "")
    if not cause:
        return error
    known = refusal(kernel)
    # A wrong address is not what a launch beyond the limits gives.
    given = name.startswith(("LAUNCH", "INVALID")) and known
    return f"{error}: {known if given else f'probably {cause}'}"


# Machine code ------------------------------------------------------------------------------------
# A cubin is an ELF file of 64 bits. Its section .nv.info.KERNEL is a list of attributes; NVIDIA's
# cuobjdump -elf prints them, and calls those that are read here EIATTR_KPARAM_INFO,
# EIATTR_MAX_THREADS (of __launch_bounds__) and EIATTR_REQNTID (of __block_size__).

_SIZED: Final = 4
"""The format of an attribute whose two bytes of size are followed by as many bytes."""

_PARAMETER: Final = 0x17
_MAX_THREADS: Final = 0x05
_REQUIRED_THREADS: Final = 0x10


def parameter_bytes(cubin: bytes, entry: str) -> tuple[int, ...] | None:
    """The size of each parameter of the kernel ``entry``, in order; None if it cannot be told."""
    places = _attributes(cubin, entry, {_PARAMETER: "<4xH2xI"})
    if places is None:
        return None
    return tuple(packed >> 18 for _, packed in sorted(dict(at for _, at in places).items()))


def launch_bounds(cubin: bytes, entry: str) -> Bounds | None:
    """The threads that the kernel ``entry`` is compiled for; None if it is for any or unknown."""
    formats = dict.fromkeys((_MAX_THREADS, _REQUIRED_THREADS), "<III")
    for attribute, threads in _attributes(cubin, entry, formats) or ():
        return Bounds(threads, exact=attribute == _REQUIRED_THREADS)
    return None


def _attributes(
    cubin: bytes, entry: str, formats: Mapping[int, str]
) -> list[tuple[int, Any]] | None:
    """The values of a kernel's attributes in these formats; None if the file is of another kind."""
    found: list[tuple[int, Any]] = []
    try:
        at, end = _section(cubin, f".nv.info.{entry}")
        while at < end:
            form, attribute, size = unpack_from("<BBH", cubin, at)
            at += 4
            if attribute in formats:
                found.append((attribute, unpack_from(formats[attribute], cubin, at)))
            at += size if form == _SIZED else 0
    except (error, ValueError, OverflowError):
        return None
    return found


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
