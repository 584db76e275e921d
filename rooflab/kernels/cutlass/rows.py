"""Alignment of the rows of operands for wide accesses."""

from __future__ import annotations

from rooflab.model.problem import Problem


def misaligned(name: str, access_bytes: int, problem: Problem) -> str:
    """Why an operand's rows are not multiples of the access size; empty if all are."""
    for operand in problem.operands:
        multiple = max(1, access_bytes // operand.type.bytes)
        if (given := operand.shape[-1]) % multiple:
            same = (one for one in reversed(problem.sizes) if problem.extents[one] == given)
            extent = next(same, f"the last extent of {operand.name}")
            shown = extent.upper() if len(extent) == 1 else extent
            return f"{name} needs {shown} to be a multiple of {multiple}, it is {given}"
    return ""
