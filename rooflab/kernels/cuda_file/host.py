"""Host code of a .cu file: how rooflab calls its launcher, from a library that nvcc has built."""

from __future__ import annotations

import ctypes
from math import prod
from pathlib import Path
from typing import Any, Final

from rooflab.devices.cuda import driver
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file.header import STREAM, Header
from rooflab.model.problem import Problem

ENTRY: Final = "rooflab_launch"
"""The function of a library that rooflab calls: it calls the launcher."""

_PRELUDE: Final = """
#include <cuda_runtime.h>
#include <type_traits>
namespace rooflab {
struct Pointer {
    void* at;
    template <typename T> operator T*() const { return static_cast<T*>(at); }
};
template <typename Call> int status_of(Call call) {
    if constexpr (std::is_void_v<decltype(call())>) call();
    else if (const int status = static_cast<int>(call())) return status;
    return cudaGetLastError();
}
}
"""
"""C++ converts a pointer to the launcher's type. A launch that fails leaves an error."""

_TYPES: Final = {"long long": ctypes.c_longlong, "double": ctypes.c_double}


NO_STREAM: Final = "takes no stream: without it operands can only be in the memory of one GPU"


def names(problem: Problem, header: Header) -> tuple[str, ...]:
    """The arguments of the launcher, in their order."""
    return tuple(header.arguments) or (*problem.argument_names, STREAM)


def _kinds(problem: Problem, header: Header) -> dict[str, str]:
    """The type of each argument in C++, from which the compiler converts it; "" for a pointer."""
    pointers = {STREAM, *(operand.name for operand in problem.operands)}

    def kind(name: str) -> str:
        if name in pointers:
            return ""
        return "long long" if isinstance(getattr(problem, name), int) else "double"

    return {name: kind(name) for name in names(problem, header)}


def text(problem: Problem, header: Header) -> str:
    """C++ that calls the launcher, to be compiled after it, so that its parameters are checked."""
    kinds = _kinds(problem, header).items()
    taken = ", ".join(f"{kind or 'rooflab::Pointer'} {name}" for name, kind in kinds)
    given = ", ".join(names(problem, header))
    return (
        f'{_PRELUDE}extern "C" int {ENTRY}({taken}) {{\n'
        f"    return rooflab::status_of([&] {{ return {header.launcher}({given}); }});\n}}"
    )


def types(problem: Problem, header: Header) -> list[Any]:
    """The types of what ``ENTRY`` takes."""
    kinds = _kinds(problem, header).values()
    return [_TYPES.get(kind, ctypes.c_void_p) for kind in kinds]


def values(operands: Operands, header: Header, stream: ctypes.c_void_p) -> list[Any]:
    """What ``ENTRY`` is given; the value of ``stream`` may change from call to call."""
    problem = operands.problem

    def value(name: str) -> Any:
        if name == STREAM:
            return stream
        return operands[name].data.ptr if name in operands else getattr(problem, name)

    return [value(name) for name in _kinds(problem, header)]


def refusal(problem: Problem, header: Header) -> str:
    """What of ``problem`` the launcher is not told and cannot guess, empty if nothing."""
    given = names(problem, header)
    for name in problem.argument_names:
        parameter = problem.parameters().get(name)
        if name in given or parameter is None or parameter.default is None:
            continue
        if (value := getattr(problem, name)) != parameter.default:
            usual = f"{parameter.default:g}"
            return f"is not told {parameter.title}, which is {value:g} and not {usual}"
    batch = prod(problem.grid_extents[:-2])
    if batch > 1 and not header.batched and "batch" not in given:
        return f"computes one of a batch at a time, batch is {batch}"
    return ""


def load(library: Path, problem: Problem, header: Header) -> Any:
    """``ENTRY`` of a library. Raises ``OSError``."""
    driver.share()
    function = getattr(ctypes.CDLL(str(library)), ENTRY)
    function.argtypes = types(problem, header)
    return function
