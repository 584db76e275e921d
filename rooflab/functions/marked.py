"""Functions that are marked in a file, for ``rooflab bench FILE.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import isfunction
from pathlib import Path
from typing import Any, Final, TypeVar, overload

from rooflab.errors import UsageError
from rooflab.functions.bench import Result, StatedWork, bench
from rooflab.functions.call import Function
from rooflab.kernels.python_file import import_file
from rooflab.model.grouping import grouped

F = TypeVar("F", bound=Function)

_MARK: Final = "__rooflab_benchmark__"


@dataclass(frozen=True)
class Marked:
    """A function, its arguments by name, and the options of ``bench``."""

    function: Function
    race: str
    arguments: dict[str, Any]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        """The function's name."""
        return str(getattr(self.function, "__name__", "function"))


@dataclass(frozen=True)
class Unmeasured:
    """What became of functions that were not measured; ``usage`` if the file is to be changed."""

    text: str
    usage: bool


@overload
def benchmark(function: F, /) -> F: ...


@overload
def benchmark(**options: Any) -> Callable[[F], F]: ...


def benchmark(
    function: Function | None = None,
    /,
    *,
    race: str = "",
    flops: StatedWork | None = None,
    bytes: StatedWork | None = None,  # noqa: A002  as the columns are called
    precision: str | None = None,
    tolerance: float | None = None,
    cache: str = "cold",
    modules: bool = False,
    counters: bool = False,
    **arguments: Any,
) -> Any:
    """Mark a function for ``rooflab bench``; it stays what it is. Its parentheses may be left out.

    ``arguments`` are those of the function by name: values, or functions written in Python without
    parameters, which make them when they are needed. Functions of one ``race`` are compared with
    its first one, whose arguments all of them get. The others are those of ``rooflab.bench``.
    """
    if function is not None and not callable(function):
        raise UsageError("name what is given, as in @rooflab.benchmark(x=…)")
    options = {
        "flops": flops,
        "bytes": bytes,
        "precision": precision,
        "tolerance": tolerance,
        "cache": cache,
        "modules": modules,
        "counters": counters,
    }

    def mark(function: F) -> F:
        setattr(function, _MARK, Marked(function, race, arguments, options))
        return function

    return mark(function) if function is not None else mark


def marked(path: Path, name: str = "") -> list[Marked]:
    """The marked functions of a file in their order, or those of a function's or a race's name.

    Raises ``UsageError`` if there is none, or with the error if the file cannot be imported.
    """
    module = import_file(path, "file")
    found: list[Marked] = []
    for one in vars(module).values():
        mark: Marked | None = getattr(one, _MARK, None)
        if mark is None:
            continue
        first = next((other for other in found if mark.race and other.race == mark.race), mark)
        found.append(replace(mark, arguments=first.arguments, options=first.options))
    chosen = [one for one in found if name in ("", one.name, one.race)]
    if found and not chosen:
        names = ", ".join(one.name for one in found)
        raise UsageError(f"{path} marks no function {name[:40]!r}: it marks {names}")
    if not found:
        raise UsageError(f"{path} marks no function: decorate one with @rooflab.benchmark(x=…)")
    return chosen


def run(chosen: list[Marked], device: str | None = None) -> Iterator[Result | Unmeasured]:
    """Measure marked functions, those of a race together; or why they, or arguments, fail."""
    for together in grouped(chosen, lambda one: one.race or id(one)).values():
        first = together[0]
        functions = {one.name: one.function for one in together}
        options = {**first.options, "device": device}
        try:
            made = {n: one() if isfunction(one) else one for n, one in first.arguments.items()}
            yield bench(functions, **options, kwargs=made)
        except UsageError as error:
            yield Unmeasured(f"{', '.join(functions)}: {error}", usage=True)
        except Exception as error:  # a user's code may raise anything
            notes = "".join(f"; {note}" for note in getattr(error, "__notes__", ()))
            what = f"{type(error).__name__}: {str(error)[:300]}{notes}"
            yield Unmeasured(f"{', '.join(functions)}: {what}", usage=False)
