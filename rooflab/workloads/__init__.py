"""The workloads by name: rooflab's own and those of users and packages."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from inspect import isclass
from pkgutil import iter_modules
from typing import Any, Final, TypeVar, dataclass_transform

from rooflab.errors import UsageError
from rooflab.model.precision import PRECISIONS, Precision
from rooflab.model.problem import Problem, ProblemRecord, Value, extent, setting

__all__ = ["DEFAULT", "build", "catalogue", "find", "rebuild", "workload"]

DEFAULT = "gemm"


FIRST: Final = (
    *("gemm", "gemv", "add", "copy", "triad", "sum"),
    *("softmax", "rmsnorm", "layernorm", "cross_entropy", "swiglu", "rope", "attention"),
    *("grouped_gemm", "w4a16", "block_gemm", "adamw"),
    *("rmsnorm_backward", "layernorm_backward", "cross_entropy_backward", "attention_backward"),
    *("embedding", "quantize", "route", "sort_experts", "combine", "linear"),
)
"""How lists of workloads begin; they end with collectives."""


def _place(kind: type[Problem]) -> tuple[bool, int]:
    """Where a workload is in lists."""
    return kind.collective, (*FIRST, kind.workload).index(kind.workload)


def builtin() -> Iterator[type[Problem]]:
    """The workloads in the files of this package."""
    for file in iter_modules(__path__):
        for found in vars(import_module(f"{__name__}.{file.name}")).values():
            if isclass(found) and issubclass(found, Problem) and hasattr(found, "workload"):
                yield found


_BUILTIN: Final = tuple(sorted(builtin(), key=_place))
_known: dict[str, type[Problem]] = {kind.workload: kind for kind in _BUILTIN}

Workload = TypeVar("Workload", bound=type[Problem])


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(extent, setting))
def workload(cls: Workload) -> Workload:
    """Register a subclass of ``Problem`` as a workload; makes it a frozen dataclass.

    Raises ``UsageError`` if another workload has its name.
    """
    made: Workload = dataclass(frozen=True, kw_only=True)(cls)  # type: ignore[assignment]
    taken = _known.get(made.workload)
    # A file that is loaded again defines its workload again.
    if taken and (taken in _BUILTIN or taken.__qualname__ != made.__qualname__):
        raise UsageError(f"two workloads are called {made.workload!r}: rename one")
    if missing := sorted(getattr(made, "__abstractmethods__", ())):
        raise UsageError(f"workload {made.workload!r}: define {', '.join(missing)}")
    for name in made.sizes:
        if name not in made.parameters():
            raise UsageError(f"workload {made.workload!r}: sizes names {name!r}, not a parameter")
    _known[made.workload] = made
    return made


_private: Final[dict[str, type[Problem]]] = {}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(extent, setting))
def private(cls: Workload) -> Workload:
    """Make a subclass of ``Problem`` a frozen dataclass that kernels can name, and no list has."""
    made: Workload = dataclass(frozen=True, kw_only=True)(cls)  # type: ignore[assignment]
    _private[made.workload] = made
    return made


def catalogue() -> dict[str, type[Problem]]:
    """Every workload by name."""
    return dict(_known)


def find(name: str) -> type[Problem]:
    """The workload of that name; raises ``UsageError`` with near matches."""
    if found := _known.get(name) or _private.get(name):
        return found
    raise UsageError(f"no workload {name[:40]!r}: {near(name, _known)} (list: rooflab workloads)")


def near(name: str, known: Iterable[str], likeness: float = 0.51) -> str:
    """``did you mean …?``, or all known names."""
    names = list(known)
    close = difflib.get_close_matches(name[:40], names, n=3, cutoff=likeness)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(names)}"


def build(name: str, precision: Precision | str, parameters: Mapping[str, Any]) -> Problem:
    """One problem; raises ``UsageError`` for unknown or missing parameters and wrong values."""
    kind = find(name)
    known = {**kind.parameters(), **kind.placements()}
    for unknown in parameters.keys() - known.keys():
        raise UsageError(f"{name} has no parameter {unknown[:40]!r}: {near(unknown, known, 0.65)}")
    for parameter in known.values():
        if parameter.default is None and parameter.name not in parameters:
            raise UsageError(f"{name} needs {parameter.title}, the {parameter.description}")
    values: dict[str, Any] = {k: known[k].parse(value) for k, value in parameters.items()}
    chosen = PRECISIONS[precision] if isinstance(precision, str) else precision
    return kind(precision=chosen, **values)


def rebuild(record: ProblemRecord) -> Problem:
    """The problem of ``record``."""
    parameters: dict[str, Value] = record.parameters
    return build(record.workload, record.precision, parameters)
