"""What a kernel of a .cu file is launched with: its workload's arguments, and TMA descriptors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rooflab.devices.cuda import driver
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file.header import Header, Map
from rooflab.model.precision import Precision
from rooflab.model.problem import Problem

POINTER_BYTES: Final = 8


def bind(
    operands: Operands,
    maps: Sequence[tuple[Map, driver.TensorMap]] = (),
    padded: Mapping[str, Any] | None = None,
) -> tuple[Any, ...]:
    """A kernel's arguments in its workload's order, and ``maps`` in the place of their operands.

    Maps are those of the ``padded`` copy of an operand if there is one. Parameters are copied byte
    for byte, so each scalar must have its exact type.
    """
    import numpy as np

    problem = operands.problem
    index = np.dtype(problem.index_type).type
    scalar = _scalar_type(problem.precision)

    def values(name: str) -> Iterator[Any]:
        if name not in operands:
            number = getattr(problem, name)
            yield index(number) if isinstance(number, int) else scalar(number)
            return
        own = [(one, tensor_map) for one, tensor_map in maps if one.operand == name]
        if not own or any(one.pointer for one, _ in own):
            yield operands[name]
        for _, tensor_map in own:
            array = (padded or {}).get(name, operands[name])
            encoded = driver.encode(tensor_map, array.data.ptr)
            yield encoded.view(f"V{driver.TENSOR_MAP_BYTES}")

    return tuple(value for name in _names(problem) for value in values(name))


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


def signature(problem: Problem) -> str:
    """A kernel's parameters in C++, with the types of types.cuh and without TMA descriptors."""
    roles = {operand.name: operand.role for operand in problem.operands}
    whole = {"int32": "int", "int64": "long long"}[problem.index_type]

    def declared(name: str) -> str:
        if name in roles:
            return f"const Input* {name}" if roles[name] == "in" else f"Output* {name}"
        return f"{whole if isinstance(getattr(problem, name), int) else 'Accumulate'} {name}"

    return f"({', '.join(map(declared, _names(problem)))})"


def parameters(problem: Problem, maps: Sequence[Map] = ()) -> list[tuple[str, int]]:
    """Name and bytes of each of the arguments that ``bind`` returns."""
    import numpy as np

    operands = {operand.name for operand in problem.operands}
    index = np.dtype(problem.index_type).itemsize
    scalar = np.dtype(problem.precision.accumulate.storage).itemsize

    def sizes(name: str) -> Iterator[int]:
        if name not in operands:
            yield index if isinstance(getattr(problem, name), int) else scalar
            return
        own = [one for one in maps if one.operand == name]
        if not own or any(one.pointer for one in own):
            yield POINTER_BYTES
        for _ in own:
            yield driver.TENSOR_MAP_BYTES

    return [(name, size) for name in _names(problem) for size in sizes(name)]


def _names(problem: Problem) -> tuple[str, ...]:
    """The order of a kernel's arguments."""
    return problem.arguments or (
        *problem.extents,
        *(name for name, value in problem.settings.items() if not isinstance(value, str)),
        *(operand.name for operand in problem.operands),
    )


def _listed(words: Iterable[object]) -> str:
    return ", ".join(map(str, words)) or "no"


def _scalar_type(precision: Precision) -> Callable[[float], Any]:
    """NumPy's type of a precision's ``Accumulate``."""
    import numpy as np

    number: Callable[[float], Any] = np.dtype(precision.accumulate.storage).type
    return number
