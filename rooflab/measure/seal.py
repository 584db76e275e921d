"""What functions, classes and constants were before a user's code ran: who changes them is named.

Kernels in Python work in the process that measures and compares, so they could change what it means
to do so.
"""

from __future__ import annotations

import builtins
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import partial
from operator import attrgetter, is_
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, Final

from rooflab.devices.base import Setting

FUNCTIONS: Final = "functions or constants"

LIBRARIES: Final = (
    *("builtins", "time", "math", "random", "statistics"),
    *("numpy", "numpy.random", "numpy.fft", "numpy.linalg", "numpy._core._methods"),
    *("numpy.core._methods", "cupy", "cupy.cuda", "torch"),
)
"""Modules beside rooflab's own whose functions a kernel must not replace."""

Altered = tuple[str, Callable[[], object]]
"""What is other than it was, and how to undo that."""

CONSTANTS: Final = (int, float, str, tuple, frozenset)

LOOKED_AT: Final = ("__annotations__", "__annotations_cache__", "__annotate_func__", "__doc__")
"""Names that a class gets when somebody reads them."""

CLOSED: Final = ("CODECS",)
"""Tables to which nothing may be added. Files of users add precisions, counters and more."""

HEAP_TYPE: Final = 1 << 9
IMMUTABLE_TYPE: Final = 1 << 8

GONE: Final = object()


class Seal:
    """What functions and classes meant when this was made: those that measure and compare.

    It is made before any code of a user is loaded.
    """

    def __init__(self) -> None:
        self._modules = _sealed_modules()
        own = [one for name, one in self._modules.items() if name not in LIBRARIES]
        libraries = [one for name, one in self._modules.items() if name in LIBRARIES]
        classes = [
            value
            for module in own
            for value in vars(module).values()
            if isinstance(value, type) and value.__module__ == module.__name__
        ]
        classes += _of_cupy()
        owners: list[Any] = [*own, *libraries, *classes, random.Random]
        self._kinds = [(owner, type(owner)) for owner in owners]
        self._bases = [(one, one.__mro__, one.__bases__) for one in owners if isinstance(one, type)]
        self._known = [(owner, *_deciding(owner)) for owner in owners]
        values = {id(one): one for _, _, known in self._known for one in known}
        functions = {id(one): one for value in values.values() for one in _functions(value)}
        self._insides = Insides([*functions.values()])
        # A new name hides one of Python's own, or that of a base.
        plain = [module for module in (*own, *libraries) if module is not builtins]
        self._names: list[tuple[Any, frozenset[str], tuple[Any, ...]]] = [
            *((module, frozenset(vars(module)), (builtins,)) for module in plain),
            *((one, frozenset(vars(one)), one.__mro__[1:]) for one in classes),
        ]
        tables = {
            id(value): (f"{module.__name__}.{key}", value)
            for module in reversed(own)  # the first name is that of its own module
            for key, value in vars(module).items()
            if isinstance(value, dict) and key.isupper()
        }
        self._tables = [(name, value, dict(value)) for name, value in tables.values()]
        self._records = [*_records(one for _, _, table in self._tables for one in table.values())]

    def setting(self) -> Setting:
        """What is replaced; writing it restores everything."""
        return Setting(FUNCTIONS, self._broken, self._restore, _replaced)

    def look(self) -> Callable[[], list[str]]:
        """What tells replaced functions, made before a kernel works.

        It needs nothing that has a name: a kernel may undo its changes when it is called first.
        """
        known, functions, parts = self._known, self._insides.functions, self._insides.parts
        every, each, same, inside, name_of = all, map, is_, vars, _name

        def replaced() -> list[str]:
            return [
                name_of(owner)
                for owner, keys, values in known
                if not every(each(same, each(inside(owner).get, keys), values))
            ] + [
                name
                for name, part, old in parts
                if not every(each(same, each(part, functions), old))
            ]

        return replaced

    def _broken(self) -> frozenset[str]:
        return frozenset(name for name, _ in self._changes())

    def _restore(self, _: object) -> None:
        for find in (self._of_classes, self._changes):
            for _, undo in [*find()]:
                with suppress(Exception):
                    undo()

    def _changes(self) -> Sequence[Altered]:
        """Those of classes alone, if there are any: they may hide others."""
        return [*self._of_classes()] or [
            *self._replaced(),
            *self._added(),
            *self._in_tables(),
            *self._insides.changes(),
        ]

    def _of_classes(self) -> Iterator[Altered]:
        for name, module in self._modules.items():
            if sys.modules.get(name) is not module:
                yield f"sys.modules[{name!r}]", partial(sys.modules.__setitem__, name, module)
        for owner, kind in self._kinds:
            if type(owner) is not kind:
                yield f"{_name(owner)}.__class__", partial(setattr, owner, "__class__", kind)
        for one, order, bases in self._bases:
            if one.__mro__ != order:
                yield f"{_name(one)}.__bases__", partial(setattr, one, "__bases__", bases)

    def _replaced(self) -> Iterator[Altered]:
        for owner, keys, known in self._known:
            if all(map(is_, map(vars(owner).get, keys), known)):
                continue
            for key, value in zip(keys, known, strict=True):
                if vars(owner).get(key) is not value:
                    yield f"{_name(owner)}.{key}", partial(setattr, owner, key, value)

    def _added(self) -> Iterator[Altered]:
        for owner, names, hidden in self._names:
            if vars(owner).keys() <= names:
                continue
            for key in vars(owner).keys() - names - {*LOOKED_AT}:
                if _special(owner, key) or any(hasattr(one, key) for one in hidden):
                    yield f"{_name(owner)}.{key}", partial(delattr, owner, key)

    def _in_tables(self) -> Iterator[Altered]:
        for name, table, old in self._tables:
            if not all(map(is_, map(table.get, old), old.values())):
                yield name, partial(table.update, old)
            if name.rpartition(".")[2] in CLOSED:
                for key in [*table.keys() - old.keys()]:
                    yield f"{name}[{key!r}]", partial(table.pop, key)
        for one, names, values in self._records:
            if not all(map(is_, map(partial(getattr, one), names), values)):
                what = f"{type(one).__name__} {values[0]}"
                yield what, partial(_put, one, names, values)


def _replaced(_old: frozenset[str], new: frozenset[str]) -> str:
    names = sorted(new)
    return f"are replaced: {', '.join(names[:4])}{', …' if len(names) > 4 else ''}"


def _sealed_modules() -> dict[str, ModuleType]:
    """Rooflab's by name, and those beside them that it measures with."""
    names = [name for name in sys.modules if name.split(".")[0] == "rooflab"]
    found = {name: sys.modules[name] for name in (*names, *LIBRARIES) if name in sys.modules}
    return {name: one for name, one in found.items() if isinstance(one, ModuleType)}


def _of_cupy() -> list[type]:
    """Classes of CuPy whose methods could be replaced."""
    modules = [sys.modules[name] for name in ("cupy", "cupy.cuda") if name in sys.modules]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if issubclass(type(value), type)  # its class would import a lazy module
        and value.__module__.split(".")[0] == "cupy"
        and value.__flags__ & HEAP_TYPE
        and not value.__flags__ & IMMUTABLE_TYPE
    ]


def _deciding(owner: Any) -> tuple[list[str], list[Any]]:
    """The functions of a module or class, and constants of rooflab's: names and values.

    A look inside would import a lazy module.
    """
    ours = isinstance(owner, ModuleType) and owner.__name__.split(".")[0] == "rooflab"
    found = {
        key: value
        for key, value in vars(owner).items()
        if (callable(value) and not isinstance(value, ModuleType))
        or isinstance(value, (property, classmethod, staticmethod))
        or (ours and isinstance(value, CONSTANTS) and key.isupper())
    }
    return [*found], [*found.values()]


def _special(owner: Any, key: str) -> bool:
    """Whether it is a method that Python calls, such as ``__bool__``, which no base may have."""
    return isinstance(owner, type) and key.startswith("__") and callable(vars(owner)[key])


def _records(values: Iterator[Any]) -> Iterator[tuple[Any, list[str], list[Any]]]:
    """Frozen dataclasses, and those that they hold: which fields they have, and what is in them."""
    seen: set[int] = set()
    waiting = [*values]
    while waiting:
        one = waiting.pop()
        if isinstance(one, type) or not is_dataclass(one) or id(one) in seen:
            continue
        seen.add(id(one))
        names = [field.name for field in fields(one) if hasattr(one, field.name)]
        held = [getattr(one, name) for name in names]
        if names:
            yield one, names, held
        waiting += held


def _put(one: Any, names: list[str], values: list[Any]) -> None:
    for name, value in zip(names, values, strict=True):
        object.__setattr__(one, name, value)


def _functions(value: Any) -> list[FunctionType]:
    """Python's functions in what a module or class has under a name."""
    if isinstance(value, (type, BuiltinFunctionType, *CONSTANTS)):
        return []
    names = ("__wrapped__",) if type(value) is FunctionType else ("fget", "__func__", "__wrapped__")
    parts = [value, *[getattr(value, name, None) for name in names]]
    return [one for one in parts if isinstance(one, FunctionType)]


INSIDE: Final = ("__code__", "__defaults__", "__kwdefaults__")


class Insides:
    """What functions do, which may be changed in place. Thousands are asked before each kernel."""

    def __init__(self, functions: list[FunctionType]) -> None:
        self.functions = functions
        getters = [(name, attrgetter(name)) for name in INSIDE]
        self.parts = [(name, part, [*map(part, functions)]) for name, part in getters]
        self._named = [
            (one, named, dict(named))
            for one, named in zip(functions, self.parts[-1][-1], strict=True)
            if named
        ]
        ours = [one for one in functions if str(one.__module__).split(".")[0] == "rooflab"]
        self._cells = [(one, cell, _held(cell)) for one in ours for cell in one.__closure__ or ()]

    def changes(self) -> Iterator[Altered]:
        """Code, default values, the dictionaries of named ones, and what rooflab's enclose."""
        for one, cell, held in self._cells:
            if _held(cell) is not held and held is not GONE:
                yield one.__qualname__, partial(setattr, cell, "cell_contents", held)
        for one, named, old in self._named:
            if named.keys() != old.keys() or not all(map(is_, named.values(), old.values())):
                yield one.__qualname__, partial(_refill, named, old)
        for name, part, were in self.parts:
            if all(map(is_, map(part, self.functions), were)):
                continue
            for one, value in zip(self.functions, were, strict=True):
                if part(one) is not value:
                    yield one.__qualname__, partial(setattr, one, name, value)


def _held(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty
        return GONE


def _refill(named: dict[str, Any], old: dict[str, Any]) -> None:
    named.clear()
    named.update(old)


def _name(owner: Any) -> str:
    return str(getattr(owner, "__qualname__", None) or getattr(owner, "__name__", "?"))
