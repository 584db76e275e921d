"""Kernels by device kind, workload and name: registration, selection by name or glob."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from rooflab.devices.registry import class_of, kinds
from rooflab.errors import UnavailableError, UsageError
from rooflab.kernels.base import Kernel, Prepare
from rooflab.workloads import near

SHOWN: Final = 3
"""Of other workloads, those that a message names."""


class Registry:
    """Kernels, unique by device kind, workload and name."""

    def __init__(self, kernels: Iterable[Kernel] = ()) -> None:
        self._kernels: dict[tuple[str, str, str], Kernel] = {}
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: Kernel, *, again: bool = False) -> None:
        """Register ``kernel``, or ``again`` a user's own in place of an older one.

        Raises ``UsageError`` if its name is taken for that workload.
        """
        key = (kernel.device_kind, kernel.workload, kernel.name)
        taken = self._kernels.get(key)
        replaces = again and taken is not None and taken.untrusted
        if taken and not replaces and not _same_file(taken, kernel):
            one, other = (str(both.source or both.backend) for both in (taken, kernel))
            where = f"{one} and {other}; rename one"
            raise UsageError(
                f"two {kernel.device_kind} kernels for {kernel.workload} are called "
                f"{kernel.name!r}: "
                + (f"{one} has both, or is named twice" if one == other else where)
            )
        self._kernels[key] = kernel

    def all(self) -> list[Kernel]:
        """Every kernel, in the order of registration."""
        return list(self._kernels.values())

    def get(self, device_kind: str, workload: str, name: str) -> Kernel | None:
        """The kernel of that name, None if there is none."""
        return self._kernels.get((device_kind, workload, name))

    def _of(self, device_kind: str, workload: str) -> dict[str, Kernel]:
        """The kernels of a workload on one kind of device, by name."""
        wanted = (device_kind, workload)
        return {k.name: k for k in self.all() if (k.device_kind, k.workload) == wanted}

    def library(self, device_kind: str, workload: str) -> Kernel | None:
        """The vendor's library for a workload, None if there is none."""
        here = self._of(device_kind, workload).values()
        return next((kernel for kernel in here if kernel.library), None)

    def select(self, patterns: Sequence[str], device_kind: str, workload: str) -> list[Kernel]:
        """Kernels of ``workload`` on ``device_kind`` that match one of the names or globs.

        Raises ``UsageError`` with near matches if a pattern matches nothing.
        """
        here = self._of(device_kind, workload)
        chosen: dict[str, Kernel] = {}
        for pattern in patterns:
            matches = {name: here[name] for name in here if fnmatchcase(name, pattern)}
            if not matches:
                raise self._no_match(pattern, device_kind, workload, list(here))
            chosen |= matches
        return list(chosen.values())

    def _no_match(
        self, pattern: str, device_kind: str, workload: str, names: list[str]
    ) -> UsageError:
        shown = pattern[:40]
        matching = [k for k in self.all() if fnmatchcase(k.name, pattern)]
        there = {k.device_kind for k in matching if k.workload == workload}
        if there:
            first = next((kind for kind in kinds() if kind in there), min(there))
            return UnavailableError(
                f"kernel {shown!r} needs {class_of(first).needs}; "
                f"on {device_kind} there are {', '.join(sorted(names)) or 'none'}"
            )
        others = sorted({k.workload for k in matching if k.device_kind == device_kind})
        if others and pattern.strip("*"):  # "*" does not name a kernel of another workload
            more = f" and {len(others) - SHOWN} more" if len(others) > SHOWN else ""
            return UsageError(
                f"kernel {shown!r} computes {', '.join(others[:SHOWN])}{more}, not {workload}: "
                f"rooflab sweep {others[0]} --kernel {shown}"
            )
        if not names:
            return UsageError(
                f"there is no kernel for {workload} on {device_kind} (list: rooflab kernels)"
            )
        return UsageError(
            f"no kernel for {workload} matches {shown!r}: {near(pattern, names)} "
            "(list: rooflab kernels)"
        )


def _same_file(one: Kernel, other: Kernel) -> bool:
    """Whether both are a .cu file, which is one kernel: one of rooflab's may be given by path."""
    if not one.source or not other.source or one.source.suffix != ".cu":
        return False
    return one.source.resolve() == other.source.resolve()


BUILTIN: Final = Registry()
"""The kernels of rooflab and of installed packages; ``@kernel`` adds to it."""


def register(
    name: str, *, registry: Registry = BUILTIN, **facts: Any
) -> Callable[[Prepare], Prepare]:
    """Register the decorated ``Prepare`` function as a kernel, with ``facts`` of ``Kernel``.

    Its title is the first line of the docstring, or is given.
    """

    def add(prepare: Prepare) -> Prepare:
        facts.setdefault("title", (prepare.__doc__ or name).splitlines()[0].removesuffix("."))
        registry.add(Kernel(name=name, prepare=prepare, **facts))
        return prepare

    return add
