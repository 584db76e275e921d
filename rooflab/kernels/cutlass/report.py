"""The report of a plan on a kernel's parameters, and its check."""

from __future__ import annotations

from typing import Any, Final

import numpy as np  # noqa: TID253  imported late itself

from rooflab.devices.cuda import cutlass_headers
from rooflab.devices.cuda.driver import TENSOR_MAP_ALIGNMENT, TENSOR_MAP_BYTES
from rooflab.errors import KernelError

PARAMS_LIMIT: Final = 4096
"""Bytes of kernel parameters that every driver supports."""

MAX_GRID_YZ: Final = 65535
MAX_THREADS: Final = 1024

MAGIC: Final = 0x524C4301
"""Identifies the report's layout: REPORT_MAGIC in kernels/include/cutlass_plan.cuh."""

PROBLEM: Final = np.dtype(
    [
        ("M", "i4"),
        ("N", "i4"),
        ("K", "i4"),
        ("batch", "i4"),
        ("alpha", "f4"),
        ("beta", "f4"),
        ("A", "u8"),
        ("B", "u8"),
        ("C", "u8"),
        ("workspace", "u8"),
        ("multiprocessors", "i4"),
        ("active_clusters", "i4"),
        ("splits", "i4"),
        ("swizzle", "i4"),
        ("raster", "i4"),
    ],
    align=True,
)

_POINTER: Final = np.dtype([("offset", "u4"), ("operand", "u4")])

_DESCRIPTOR: Final = np.dtype(
    [
        ("offset", "u4"),
        ("operand", "u4"),
        ("data_type", "u4"),
        ("rank", "u4"),
        ("swizzle", "u4"),
        ("box", "u4", 5),
        ("extents", "u8", 5),
        ("strides", "u8", 4),
    ]
)

REPORT: Final = np.dtype(
    [
        ("magic", "u4"),
        ("takes_problem", "u4"),
        ("params_bytes", "u4"),
        ("shared_bytes", "u4"),
        ("threads", "u4"),
        ("grid", "u4", 3),
        ("cluster", "u4", 3),
        ("pointers", "u4"),
        ("descriptors", "u4"),
        ("reserved", "u4"),
        ("workspace_bytes", "u8"),
        ("zeroed_offset", "u8"),
        ("zeroed_bytes", "u8"),
        ("pointer", _POINTER, 4),
        ("descriptor", _DESCRIPTOR, 4),
    ]
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
    if min(grid) < 1 or max(grid[1:]) > MAX_GRID_YZ or not 0 < threads <= MAX_THREADS:
        return f"its grid is {'x'.join(map(str, grid))} blocks of {threads} threads"
    if report["zeroed_offset"] + report["zeroed_bytes"] > report["workspace_bytes"]:
        return "its counters are outside its workspace"
    if report["pointers"] > 4 or report["descriptors"] > 4:
        return f"it has {report['pointers']} addresses and {report['descriptors']} descriptors"
    taken: list[tuple[int, int]] = []
    pointers = report["pointer"][: report["pointers"]]
    descriptors = report["descriptor"][: report["descriptors"]]
    patches = [
        *(("address", 8, 8, pointer) for pointer in pointers),
        *(
            ("TMA descriptor", TENSOR_MAP_BYTES, TENSOR_MAP_ALIGNMENT, descriptor)
            for descriptor in descriptors
        ),
    ]
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
    return _descriptor_mistake(descriptors)


def _descriptor_mistake(descriptors: Any) -> str:
    for descriptor in descriptors:
        rank, swizzle, box = int(descriptor["rank"]), int(descriptor["swizzle"]), descriptor["box"]
        if not 1 <= rank <= 5 or swizzle > 3 or not all(1 <= n <= 256 for n in box[:rank]):
            return f"its TMA descriptor has {rank} dimensions, swizzle {swizzle}, box {box}"
    return ""
