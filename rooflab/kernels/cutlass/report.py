"""The report of a plan on a kernel's parameters, and its check."""

from __future__ import annotations

from typing import Any, Final

import numpy as np  # noqa: TID253  imported late itself

from rooflab.devices.cuda import cutlass_headers
from rooflab.devices.cuda.driver import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES
from rooflab.errors import KernelError
from rooflab.kernels.cuda_file.header import MAX_THREADS
from rooflab.kernels.cuda_file.kernel import MAX_GRID

PARAMS_LIMIT: Final = 4096
"""Bytes of kernel parameters that every driver supports."""

MAGIC: Final = 0x524C4301
"""Identifies the report's layout: REPORT_MAGIC in kernels/include/cutlass_plan.cuh."""


def _struct(*fields: tuple[str, Any]) -> np.dtype[np.void]:
    """A struct of C: names of its fields, and their type."""
    return np.dtype([(name, kind) for names, kind in fields for name in names.split()], align=True)


PROBLEM: Final = _struct(
    ("M N K batch", "i4"),
    ("alpha beta", "f4"),
    ("A B C workspace", "u8"),
    ("multiprocessors active_clusters splits swizzle raster", "i4"),
)

_POINTER: Final = _struct(("offset operand", "u4"))

_DESCRIPTOR: Final = _struct(
    ("offset operand data_type rank swizzle", "u4"),
    ("box", "5u4"),
    ("extents", "5u8"),
    ("strides", "4u8"),
)

REPORT: Final = _struct(
    ("magic takes_problem params_bytes shared_bytes threads", "u4"),
    ("grid cluster", "3u4"),
    ("pointers descriptors reserved", "u4"),
    ("workspace_bytes zeroed_offset zeroed_bytes", "u8"),
    ("pointer", (_POINTER, 4)),
    ("descriptor", (_DESCRIPTOR, 4)),
)
"""The struct of that name in kernels/include/cutlass_plan.cuh."""


def check_report(report: Any, what: str) -> None:
    """Raise ``KernelError`` if the ``report`` of a plan is invalid.

    An invalid report comes from another version of CUTLASS or of our files, and a launch with wrong
    parameters may write anywhere.
    """
    mistake = _mistake(report)
    if not mistake:
        return
    found = cutlass_headers.library()
    raise KernelError(
        f"{what} cannot be launched: {mistake}; CUTLASS {found.version if found else '?'} is "
        f"installed, {cutlass_headers.tested()} is tested: {cutlass_headers.install_line()}"
    )


def _mistake(report: Any) -> str:
    if report["magic"] != MAGIC:
        return f"its plan reports {int(report['magic']):#x} instead of {MAGIC:#x}"
    size = int(report["params_bytes"])
    if not 0 < size <= PARAMS_LIMIT:
        return f"its parameters have {size} bytes, {PARAMS_LIMIT} are possible"
    grid, threads = [int(extent) for extent in report["grid"]], int(report["threads"])
    if min(grid) < 1 or max(grid[1:]) > MAX_GRID["y"] or not 0 < threads <= MAX_THREADS:
        return f"its grid is {'x'.join(map(str, grid))} blocks of {threads} threads"
    if report["zeroed_offset"] + report["zeroed_bytes"] > report["workspace_bytes"]:
        return "its counters are outside its workspace"
    if report["pointers"] > 4 or report["descriptors"] > 4:
        return f"it has {report['pointers']} addresses and {report['descriptors']} descriptors"
    return _misplaced(report, size)


def _misplaced(report: Any, size: int) -> str:
    """What is wrong with the places of addresses and TMA descriptors in the parameters."""
    pointers = report["pointer"][: report["pointers"]]
    descriptors = report["descriptor"][: report["descriptors"]]
    patches = [("address", 8, 8, one) for one in pointers]
    patches += [
        ("TMA descriptor", TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT, one) for one in descriptors
    ]
    taken: list[tuple[int, int]] = []
    for name, length, alignment, patch in patches:
        start, operand = int(patch["offset"]), int(patch["operand"])
        if operand > 2:
            return f"its {name} is that of operand {operand}"
        if start % alignment or start + length > size:
            return f"its {name} of {'ABC'[operand]} is at {start} of {size} bytes"
        if any(start < end and begin < start + length for begin, end in taken):
            return f"its {name} of {'ABC'[operand]} at {start} overlaps another"
        taken.append((start, start + length))
    if not any(int(patch["operand"]) == 2 for *_, patch in patches):
        return "it has no place for C"
    for one in descriptors:
        rank, swizzle, box = int(one["rank"]), int(one["swizzle"]), one["box"]
        if not 1 <= rank <= 5 or swizzle > 3 or not all(1 <= n <= 256 for n in box[:rank]):
            return f"its TMA descriptor has {rank} dimensions, swizzle {swizzle}, box {box}"
    return ""
