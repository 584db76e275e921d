"""Why CUDA does not launch a kernel, or ends it: its error in words, and what to change. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

from rooflab.devices.cuda.occupancy import LIMITS, REGISTER_UNIT, REGISTERS_PER_SM, WARP

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
    reasons = (_bounds, _shared, _registers, _barrier)
    return next(filter(None, (reason(kernel) for reason in reasons)), "")


def _bounds(kernel: Launched) -> str:
    bounds, threads = kernel.bounds, prod(kernel.block)
    if not bounds or not kernel.block:
        return ""
    block = "x".join(map(str, kernel.block))
    block += f" = {threads}" if len(kernel.block) > 1 else ""
    if bounds.exact and (*kernel.block, 1, 1)[:3] != bounds.threads:
        only = "x".join(map(str, bounds.threads))
        return f"a block of {block} threads, and the source fixes it to {only}: make them the same"
    if threads > (most := prod(bounds.threads)):
        return (
            f"a block of {block} threads, and __launch_bounds__ allow {most}: make "
            "the block smaller or raise the bounds"
        )
    return ""


def _shared(kernel: Launched) -> str:
    limits = LIMITS.get(kernel.compute_capability)
    if limits is None:
        return ""
    total, most = kernel.static_bytes + kernel.dynamic_bytes, limits.shared_bytes_per_block
    if total <= most:
        return ""
    static = f", {kernel.static_bytes} of them static" if kernel.static_bytes else ""
    return (
        f"{total} bytes of shared memory per block{static}, and compute capability "
        f"{kernel.compute_capability} has {most}: use less"
    )


def _registers(kernel: Launched) -> str:
    if not kernel.block:
        return ""
    threads = prod(kernel.block)
    of_a_warp = ceil(kernel.registers * WARP / REGISTER_UNIT) * REGISTER_UNIT
    if ceil(threads / WARP) * of_a_warp <= REGISTERS_PER_SM:
        return ""
    return (
        f"{threads} threads of {kernel.registers} registers each need more than the "
        f"{REGISTERS_PER_SM} of a multiprocessor: write __launch_bounds__({threads}) or make the "
        "block smaller"
    )


def _barrier(kernel: Launched) -> str:
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
