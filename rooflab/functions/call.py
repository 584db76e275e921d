"""A function and its arguments as a problem: what it moves and computes, if that is known."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from dis import get_instructions
from functools import partial
from math import prod
from numbers import Real
from typing import Any, Final

from rooflab.errors import UsageError
from rooflab.functions import arrays
from rooflab.model.precision import PRECISIONS, DataType, Precision, precision_name
from rooflab.model.problem import Operand, Problem, Role, extent, setting
from rooflab.workloads import near, private

Function = Callable[..., Any]

_OF_TYPE: Final = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "float8_e4m3fn": "fp8",
    "float8_e5m2": "fp8",
    "complex128": "fp64",
    "complex64": "fp32",
    "int64": "int64",
}
"""Types by name, and the precision whose roof they refer to; all others are ``int32``."""

BYTE: Final = DataType("byte", 1, 0.0, "uint8")

LONGEST: Final = 60
"""Characters of a size."""


@private
class Call(Problem):
    """One call of a function. Its operands are the arrays that it is given and returns."""

    workload = "function"
    title = "a function with the arguments that it was given"
    formula = "what the function computes"
    work = "stated by the caller, or counted"
    sizes = ("n",)

    n: int = extent("the size that make was given, or elements of all arguments", 1)
    counts: str = setting("", "where FLOPs come from, and bytes if not from arrays")
    arrays: tuple[Operand, ...] = ()
    work_flops: int = 0
    stated_bytes: int | None = None
    label: str = ""

    @property
    def operands(self) -> tuple[Operand, ...]:
        """The arguments, then the results; or the bytes that the caller states."""
        if self.stated_bytes is None:
            return self.arrays
        return (Operand("stated", (self.stated_bytes,), BYTE),)

    @property
    def flops(self) -> int:
        """0 if nobody knows."""
        return self.work_flops

    @property
    def assumed(self) -> bool:
        """A function may leave a part of its arguments alone."""
        return self.stated_bytes is None

    @property
    def tolerance(self) -> float:
        """Twice that of a sum as long as the longest axis, on both sides."""
        longest = max((max(one.shape, default=1) for one in self.arrays), default=1)
        return 4 * self.precision.dot_product(longest)

    @property
    def array_bytes(self) -> int:
        """The size of all arguments and results, at least 1, whatever the caller states."""
        return max(1, sum(one.bytes for one in self.arrays))

    @property
    def size(self) -> str:
        """The size that ``make`` was given, or the arguments' shapes."""
        return self.label or str(self.n)

    def reference(self, arrays: Any, inputs: Any) -> Mapping[str, Any]:
        """Another function has it, if any."""
        raise NotImplementedError


@dataclass(frozen=True)
class Arguments:
    """What a function is called with."""

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    modules: bool = False
    """Whether copies are made of modules too."""

    @property
    def leaves(self) -> list[Any]:
        """The arrays that ``changed`` replaces, each once: never a module's parameters."""
        found: list[Any] = []

        def noted(one: Any) -> Any:
            found.append(one)
            return one

        self.changed(noted)
        return found

    @property
    def every(self) -> list[Any]:
        """All arrays, each once, and modules' parameters, which stay the caller's."""
        return arrays.leaves([self.args, dict(self.kwargs)])

    def kept(self, function: Function) -> list[Any]:
        """The arrays that each call uses again: those that the function names, and parameters."""
        copied = {id(one) for one in (self.every if self.modules else self.leaves)}
        found = arrays.leaves([self.every, named_arrays(function)])
        return [one for one in found if id(one) not in copied]

    def changed(self, change: Callable[[Any], Any], *, modules: bool = False) -> Arguments:
        """The same with other arrays."""
        args, kwargs = arrays.changed((self.args, dict(self.kwargs)), change, modules=modules)
        return Arguments(args, kwargs, self.modules)

    def call(self, function: Function) -> Any:
        """The function's result."""
        return function(*self.args, **self.kwargs)


def checked(name: str, function: Function, arguments: Arguments) -> None:
    """Raise ``UsageError`` if it cannot be called again and again."""
    if not callable(function):
        raise UsageError(
            f"{name} is {type(function).__name__!r} and no function: give bench(f, x) or "
            "bench(lambda: f(x)), not bench(f(x))"
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise UsageError(
            f"calling {name} only makes a coroutine or generator: give a function that runs it"
        )
    for one in (*arguments.args, *arguments.kwargs.values()):
        if isinstance(one, Iterator):
            raise UsageError(
                f"an argument is a {type(one).__name__}, which is empty after one call: give a list"
            )


def is_amount(value: Any, most: float) -> bool:
    """Whether it is a number from 0 to ``most``, of Python or of NumPy."""
    return isinstance(value, Real) and not value < 0 and bool(value <= most)


def named_arrays(function: Function) -> list[Any]:
    """The arrays that a function names itself: ``x`` and ``w`` of ``lambda: f(x, w)``.

    Those of its object too, if it is a method, a module of PyTorch, or a partial function.
    """
    own = [function, getattr(function, "__self__", None)]
    if isinstance(function, partial):
        own += [function.args, function.keywords, function.func]
        function = function.func
    inner: Any = inspect.unwrap(function)
    inner = getattr(inner, "__func__", inner)
    with suppress(TypeError, ValueError):  # it is not written in Python
        names = inspect.getclosurevars(inner)
        # Attributes are among its names too, in most versions of Python.
        read = {one.argval for one in get_instructions(inner) if one.opname == "LOAD_GLOBAL"}
        own += [dict(names.nonlocals), {n: v for n, v in names.globals.items() if n in read}]
    return [one for one in arrays.leaves(own) if not _no_numbers(one)]


def place(found: Sequence[Any]) -> str:
    """The device of these arrays, empty without any.

    Raises ``UsageError`` if there are several, or if an array holds no numbers.
    """
    for one in found:
        if _no_numbers(one):
            raise UsageError(f"an array holds {one.dtype}: give arrays of numbers")
    places = {arrays.of(one).device(one): arrays.described(one) for one in found}
    gpus = {name: what for name, what in places.items() if name != "cpu"}
    if len(gpus) > 1:
        (first, one), (second, other), *_ = gpus.items()
        raise UsageError(
            f"arguments are on two devices, {one} on {first} and {other} on {second}: move one"
        )
    return next(iter(gpus or places), "")


def _no_numbers(array: Any) -> bool:
    kind, names = (getattr(array.dtype, name, None) for name in ("kind", "names"))
    return (kind or "f") not in "biufcV" or bool(names)


def precision_of(found: Sequence[Any], wanted: str | None) -> Precision:
    """``wanted``, or that of the largest array of floating-point numbers."""
    if wanted is not None:
        name = precision_name(wanted)
        if name not in PRECISIONS:
            raise UsageError(f"unknown precision {wanted[:40]!r}: {near(wanted, PRECISIONS)}")
        return PRECISIONS[name]
    if not found:
        return PRECISIONS["fp32"]
    largest = max(
        found, key=lambda one: (_of_type(one)[:2] in ("fp", "bf"), arrays.size_bytes(one))
    )
    name = _of_type(largest)
    if name == "fp32" and arrays.of(largest).device(largest) != "cpu" and _allows_tf32():
        name = "tf32"
    return PRECISIONS[name]


def _allows_tf32() -> bool:
    """Of PyTorch, whose older name of it may not be read where the newer one was set."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    matmul = torch.backends.cuda.matmul
    precision = getattr(matmul, "fp32_precision", None)
    return bool(matmul.allow_tf32) if precision is None else precision == "tf32"


def _of_type(array: Any) -> str:
    return _OF_TYPE.get(arrays.of(array).dtype(array), "int32")


def operands(given: Sequence[Any], results: Sequence[Any]) -> tuple[Operand, ...]:
    """One for each array: arguments are read, and results written."""
    sides: list[tuple[Role, Sequence[Any]]] = [("in", given), ("out", results)]
    roles = [
        (role, part)
        for role, found in sides
        for one in found
        for part in arrays.of(one).parts(one)
        if prod(part.shape)
    ]
    return tuple(
        Operand(
            f"{'x' if role == 'in' else 'y'}{i}",
            tuple(map(int, one.shape)),
            _data_type(one),
            role,
        )
        for i, (role, one) in enumerate(roles)
    )


def _data_type(array: Any) -> DataType:
    name, size = arrays.of(array).dtype(array), arrays.of(array).item_bytes(array)
    known = PRECISIONS.get(_OF_TYPE.get(name, ""))
    return known.input if known and known.input.bytes == size else DataType(name, size, 0.0, name)


def label(given: Sequence[Any]) -> str:
    """The shapes of the arguments, as a size: ``4096x4096,4096x4096``."""
    shapes = ["x".join(map(str, one.shape)) or "1" for one in given]
    text = ",".join(shapes)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def elements(given: Sequence[Any]) -> int:
    """Of all arguments together, at least one."""
    return max(1, sum(int(prod(one.shape)) for one in given))


def torch_flops(function: Function, arguments: Arguments) -> int:
    """FLOPs by the shapes of PyTorch's operations: products, convolutions, attention."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    stance = getattr(torch.compiler, "set_stance", None)
    if stance is None and "torch._dynamo" in sys.modules:
        return 0  # a compiled function would be compiled again, for the counter, and stay so
    try:
        eager = stance("force_eager") if stance else nullcontext()
        with eager, FlopCounterMode(display=False) as counter:
            arguments.call(function)
    except Exception:  # what it cannot follow is not counted
        return 0
    return int(counter.get_total_flops())
