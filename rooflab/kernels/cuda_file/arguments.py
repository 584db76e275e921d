"""What a kernel of a .cu file is launched with: its workload's arguments, and TMA descriptors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from rooflab.devices.cuda import driver
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file.header import Header, Map
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem

POINTER_BYTES: Final = 8


def _arguments(problem: Problem, maps: Sequence[Map]) -> Iterator[tuple[str, Any]]:
    """Name and kind: NumPy's type of a number, None for a pointer, the map of a TMA descriptor.

    Maps are in the place of their operands.
    """
    import numpy as np

    operands = {operand.name for operand in problem.operands}
    for name in problem.argument_names:
        if name not in operands:
            whole = isinstance(getattr(problem, name), int)
            accumulate = problem.precision.accumulate.storage
            yield name, np.dtype(problem.index_type if whole else accumulate)
            continue
        own = [one for one in maps if one.operand == name]
        if not own or any(one.pointer for one in own):
            yield name, None
        yield from ((name, one) for one in own)


def bind(
    operands: Operands,
    maps: Sequence[tuple[Map, driver.TensorMap]] = (),
    padded: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """A kernel's arguments in its workload's order, and ``maps`` in the place of their operands.

    Maps are those of the ``padded`` copy of an operand if there is one. Parameters are copied byte
    for byte, so each scalar must have its exact type.
    """
    tensor_maps = {id(one): tensor_map for one, tensor_map in maps}

    def value(name: str, kind: Any) -> Any:
        if kind is None:
            return operands[name]
        if not isinstance(kind, Map):
            return kind.type(getattr(operands.problem, name))
        array = (padded or {}).get(name, operands[name])
        encoded = driver.encode(tensor_maps[id(kind)], array.data.ptr)
        return encoded.view(f"V{driver.TENSOR_MAP_BYTES}")

    asked = _arguments(operands.problem, [one for one, _ in maps])
    return tuple(value(name, kind) for name, kind in asked)


def parameters(problem: Problem, maps: Sequence[Map] = ()) -> list[tuple[str, int]]:
    """Name and bytes of each of the arguments that ``bind`` returns."""

    def size(kind: Any) -> int:
        if kind is None:
            return POINTER_BYTES
        return driver.TENSOR_MAP_BYTES if isinstance(kind, Map) else kind.itemsize

    return [(name, size(kind)) for name, kind in _arguments(problem, maps)]


def mismatch(taken: Sequence[int], problem: Problem, header: Header) -> str:
    """How parameters of ``taken`` bytes each differ from what ``bind`` gives, empty if they fit."""
    given = parameters(problem, header.tensor_maps)
    if tuple(taken) == tuple(size for _, size in given):
        return ""
    here = _listed(f"{name} {size}" for name, size in given)
    return (
        f"takes parameters of {_listed(taken)} bytes, and {problem.workload} in "
        f"{problem.precision.title} gives {here}: {signature(problem)}"
    )


def _listed(words: Iterable[object]) -> str:
    return ", ".join(map(str, words)) or "no"


PLAIN: Final = {
    "uint8": "unsigned char",
    "int32": "int",
    "int64": "long long",
    "fp32": "float",
    "fp64": "double",
    "fp8_e4m3": "__nv_fp8_e4m3",
}
"""Types by their own names."""

APART: Final = ("fp64", "fp8")
"""Precisions in which no two of input, sums and output have always the same type."""


def _pointer(name: str, probes: Sequence[Problem]) -> str:
    """The type of an operand's argument: as types.cuh calls it in every precision, else its own."""
    operands = [next(one for one in probe.operands if one.name == name) for probe in probes]
    role = operands[0].role
    titles = ("Input", "Output") if role == "in" else ("Output", "Input")
    for title in (*titles, "Accumulate"):
        usual = (getattr(probe.precision, title.lower()) for probe in probes)
        if all(one.type == kind for one, kind in zip(operands, usual, strict=True)):
            break
    else:
        title = PLAIN.get(operands[0].type.name, titles[0])
    return f"{'const ' if role == 'in' else ''}{title}*"


def signature(problem: Problem) -> str:
    """A kernel's parameters in C++, with the types of types.cuh and without TMA descriptors."""
    operands = {operand.name for operand in problem.operands}
    probes = [replace(problem, precision=PRECISIONS[name]) for name in APART]
    whole = PLAIN[problem.index_type]

    def declared(name: str) -> str:
        if name in operands:
            return f"{_pointer(name, probes)} {name}"
        return f"{whole if isinstance(getattr(problem, name), int) else 'Accumulate'} {name}"

    return f"({', '.join(map(declared, problem.argument_names))})"
