"""Alignment of the rows of GEMM's operands for CUTLASS's wide accesses."""

from __future__ import annotations

from rooflab.model.problem import Problem


def misaligned(name: str, access_bytes: int, problem: Problem) -> str:
    """Why a row of A, B or C is not a multiple of the access size; empty if all are."""
    precision, layout = problem.precision, str(problem.settings["layout"])
    rows = (
        ("K" if layout[0] == "n" else "M", precision.input.bytes),
        ("N" if layout[1] == "n" else "K", precision.input.bytes),
        ("N", precision.output.bytes),
    )
    for extent, element_bytes in rows:
        multiple = max(1, access_bytes // element_bytes)
        if (given := problem.extents[extent.lower()]) % multiple:
            return f"{name} needs {extent} to be a multiple of {multiple}, it is {given}"
    return ""
