"""Dropping arrays from all caches of an x86 processor, line by line. Importing it imports Numba.

A cache need not be larger than what a program streams through it in a reasonable time, and a
virtual machine may show one of hundreds of megabytes. An instruction that evicts a line makes
operands cold however large it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.registry import cpu_target
from numba.extending import intrinsic
from numpy.lib.array_utils import byte_bounds

from rooflab.devices.base import Launch

LINE: Final = 64
"""Bytes of a cache line on x86-64."""


def _call(name: str, takes_pointer: bool) -> Any:
    """A function that calls LLVM's intrinsic of an instruction."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointer] if takes_pointer else [])
        function = cgutils.get_or_insert_function(builder.module, kind, name)  # type: ignore[no-untyped-call]
        given = [builder.inttoptr(arguments[0], pointer)] if takes_pointer else []
        builder.call(function, given)
        return context.get_dummy_value()

    return code


def _compiles_for(feature: str) -> bool:
    """Whether Numba compiles for a processor that has a feature, by LLVM's name."""
    _, _, features = cpu_target.target_context.codegen().magic_tuple()
    return f"+{feature}" in features.split(",")


# It drops lines that need not wait for each other: that is many times as fast.
EVICTS: Final = "clflushopt" if _compiles_for("clflushopt") else "sse2.clflush"


@intrinsic  # type: ignore[misc, unused-ignore]
def _flush(typing_context: Any, address: Any) -> Any:
    return types.void(types.uintp), _call(f"llvm.x86.{EVICTS}", True)


@intrinsic  # type: ignore[misc, unused-ignore]
def _fence(typing_context: Any) -> Any:
    return types.void(), _call("llvm.x86.sse2.mfence", False)


flush: Any = _flush
fence: Any = _fence
# Numba passes the first argument of an intrinsic itself.


@njit(nogil=True, cache=True)
def evict(start: int, end: int) -> None:
    """Write back and drop every line between two addresses."""
    for place in range(start, end, LINE):
        flush(place)
    if start < end:
        flush(end - 1)
    fence()


def evictor(arrays: Sequence[Any]) -> Launch:
    """A function that writes every line of the arrays back and drops it."""
    kept = list(arrays)
    bounds = [byte_bounds(one) for one in kept if one.size]

    def drop() -> None:
        for start, end in bounds:
            evict(start, end)

    drop()  # compiles
    return drop
