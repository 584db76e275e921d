"""Arguments of PyTorch's operations as a trace or a call has them: shapes, types, values. Pure."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from typing import Any, Final

TYPES: Final[dict[str, tuple[int, int, str]]] = {
    "bool": (11, 1, ""),
    "uint8": (0, 1, ""),
    "int8": (1, 1, ""),
    "int16": (2, 2, ""),
    "int32": (3, 4, "int32"),
    "int64": (4, 8, "int64"),
    "float8_e4m3fn": (24, 1, "fp8"),
    "float8_e5m2": (23, 1, "fp8"),
    "float8_e4m3fnuz": (26, 1, "fp8"),
    "float8_e5m2fnuz": (25, 1, "fp8"),
    "float8_e8m0fnu": (44, 1, ""),
    "float4_e2m1fn_x2": (45, 1, ""),
    "float16": (5, 2, "fp16"),
    "bfloat16": (15, 2, "bf16"),
    "float32": (6, 4, "fp32"),
    "float64": (7, 8, "fp64"),
    "complex64": (9, 8, "fp32"),
    "complex128": (10, 16, "fp64"),
}
"""The number of a type where it is an argument (c10/core/ScalarType.h), bytes of an element and the
precision of its arithmetic, lowest type first: those of a higher category come later.
``float4_e2m1fn_x2`` has two numbers in an element."""

CODES: Final = {code: name for name, (code, *_) in TYPES.items()}

PACKED: Final = "float4_e2m1fn_x2"

IN_TRACES: Final = {
    "unsigned char": "uint8",
    "signed char": "int8",
    "short": "int16",
    "short int": "int16",
    "int": "int32",
    "long": "int64",
    "long int": "int64",
    "__int64": "int64",
    "c10::Half": "float16",
    "float": "float32",
    "double": "float64",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
}
"""C++'s names of types, which traces have."""


class Missing:
    """A value that was not recorded; None is an argument that was not given."""


MISSING: Final = Missing()


@dataclass(frozen=True, slots=True)
class Tensor:
    """``shape`` and type, such as ``bfloat16``: empty if it is not known.

    ``strides`` are in elements, and empty if they are not known.
    """

    shape: tuple[int, ...]
    type: str = ""
    strides: tuple[int, ...] = ()

    @property
    def elements(self) -> int:
        """All that arithmetic sees."""
        return prod(self.shape)

    @property
    def stored(self) -> int:
        """Elements in memory: those of an expanded dimension, whose stride is 0, are one."""
        sides = zip_longest(self.shape, self.strides[: len(self.shape)], fillvalue=1)
        return prod(size for size, stride in sides if stride or not size)

    @property
    def bytes(self) -> int | None:
        """In memory; None if the type is not known."""
        return self.stored * TYPES[self.type][1] if self.type in TYPES else None

    @property
    def precision(self) -> str:
        """That of its arithmetic; empty if it is not known, or none."""
        return TYPES[self.type][2] if self.type in TYPES else ""

    @property
    def floating(self) -> bool:
        """Whether its numbers are real or complex, and not whole."""
        return self.type.startswith(("float", "bfloat", "complex"))


def from_trace(
    shapes: Sequence[Any], types: Sequence[str], concrete: Sequence[str], strides: Sequence[Any]
) -> list[Any]:
    """Tensors, lists of them, values, None and ``MISSING``, one for each argument."""
    rows = zip_longest(shapes, types, concrete[: len(types)], strides[: len(types)])
    return [
        _traced(shape or [], kind or "", value, step or []) for shape, kind, value, step in rows
    ]


def _traced(shape: Sequence[Any], kind: str, value: str | None, strides: Sequence[Any]) -> Any:
    if kind == "TensorList":
        steps = strides if len(strides) == len(shape) else [()] * len(shape)
        return [Tensor(tuple(one), "", tuple(step)) for one, step in zip(shape, steps, strict=True)]
    if kind in ("Scalar", "ScalarList"):
        return _value(value or "")
    return Tensor(tuple(shape), type_name(kind), tuple(strides)) if kind else None


def _value(text: str) -> Any:
    try:
        return literal_eval(text) if text else MISSING
    except (ValueError, SyntaxError):  # such as inf
        return text


def type_name(text: str) -> str:
    """PyTorch's name of a type for C++'s: ``bfloat16`` for ``c10::BFloat16``."""
    return IN_TRACES.get(text) or text.removeprefix("c10::").lower()


def type_of(argument: Any) -> str:
    """The type that an argument names, by number or name; empty without one."""
    if isinstance(argument, str):
        return argument
    return CODES.get(argument, "") if type(argument) is int else ""


def tensors(arguments: Iterable[Any]) -> list[Tensor]:
    """All tensors among arguments, also those in lists."""
    found: list[Tensor] = []
    for one in arguments:
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, (list, tuple)):
            found += tensors(one)
    return found


def broadcast(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape of an elementwise result.

    Raises ``ValueError`` if sizes differ and neither is 1.
    """
    sides = list(zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1))
    wide = [next((size for size in side if size != 1), 1) for side in sides]
    if any(size not in (1, most) for side, most in zip(sides, wide, strict=True) for size in side):
        raise ValueError("shapes do not match")
    return tuple(wide[::-1])


def promoted(inputs: Sequence[Tensor], numbers: Sequence[Any] = ()) -> str:
    """The type of an elementwise result; empty if one of the inputs is not known.

    A tensor without dimensions, and a number, only matters if its category is higher: whole, real,
    complex (https://docs.pytorch.org/docs/stable/tensor_attributes.html).
    """
    if not all(one.type in TYPES for one in inputs):
        return ""
    wide, zero = ([one.type for one in inputs if bool(one.shape) is has] for has in (True, False))
    first, second = _highest(wide), _highest(zero)
    highest = second if not first or _category(second) > _category(first) else first
    if any(type(one) is float for one in numbers) and _category(highest) < 2:
        return "float32"
    return highest


def _highest(types: Sequence[str]) -> str:
    if {"float16", "bfloat16"} <= set(types):
        types = [*types, "float32"]
    if "uint8" in types and "int8" in types:
        types = [*types, "int16"]
    order = list(TYPES)
    return max(types, key=order.index, default="")


def _category(name: str) -> int:
    if name in ("", "bool"):
        return 0
    return 1 if "int" in name else 3 if name.startswith("complex") else 2
