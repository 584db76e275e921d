"""Kernels by name: registration, availability, selection by name or glob."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rooflab.errors import UsageError
from rooflab.problem import LAYOUTS, PRECISIONS, Problem

if TYPE_CHECKING:
    from rooflab.devices.base import Device
    from rooflab.measure.buffers import Operands

Launch = Callable[[], None]
"""Starts one multiplication on prepared operands; on a GPU it returns before the end."""

Prepare = Callable[["Device", "Operands"], Launch]
"""Does everything that is not to be timed (compiling, binding arguments), returns the launch.

Raises ``KernelError`` where the kernel cannot be built or cannot run this problem.
"""


def no_objection(problem: Problem) -> str:
    """The default of ``Kernel.objection``: every problem is welcome."""
    return ""


def always_available(device: Device | None) -> str:
    """The default of ``Kernel.unavailable``: nothing is missing."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One choice of a kernel's compile-time parameters; ``name`` is what a row calls it.

    ``compile(device, problem)`` puts the code into the cache on disk, from any thread, so that
    ``prepare`` finds it there; it raises ``KernelError``. ``objection`` adds to the kernel's own.
    """

    name: str
    prepare: Prepare
    compile: Callable[[Device, Problem], None]
    objection: Callable[[Problem], str] = no_objection


@dataclass(frozen=True)
class Kernel:
    """One registered implementation.

    ``unavailable(device)`` says in one line why the kernel cannot run there, empty if it can;
    ``device`` is None where the machine has no device of the kernel's kind.
    ``objection(problem)`` does the same for a problem beyond ``precisions`` and ``layouts``.
    Of several ``variants`` the fastest is searched for each problem; ``prepare`` takes the first.
    """

    name: str
    backend: str
    device_kind: str
    title: str
    precisions: tuple[str, ...]
    prepare: Prepare
    layouts: tuple[str, ...] = LAYOUTS
    teaches: str = ""
    source: Path | None = None
    variant: str = ""
    variants: tuple[Variant, ...] = ()
    unavailable: Callable[[Device | None], str] = always_available
    objection: Callable[[Problem], str] = no_objection

    def __post_init__(self) -> None:
        for what, given, known in (
            ("precision", self.precisions, tuple(PRECISIONS)),
            ("layout", self.layouts, LAYOUTS),
        ):
            for name in given:
                if name not in known:
                    where = f" ({self.source})" if self.source else ""
                    raise UsageError(
                        f"kernel {self.name!r}{where}: unknown {what} {name!r}; "
                        f"choose from {', '.join(known)}"
                    )

    def refuses(self, problem: Problem) -> str:
        """Why this kernel does not take ``problem``, empty if it does."""
        if problem.precision.name not in self.precisions:
            return f"{self.name} has no {problem.precision.name}"
        if problem.layout not in self.layouts:
            return f"{self.name} takes layout {', '.join(self.layouts)} only"
        if reason := self.objection(problem):
            return reason
        objections = [variant.objection(problem) for variant in self.variants]
        return objections[0] if objections and all(objections) else ""


class Registry:
    """Kernels, unique by (device kind, name)."""

    def __init__(self, kernels: Iterable[Kernel] = ()) -> None:
        self._kernels: dict[tuple[str, str], Kernel] = {}
        for kernel in kernels:
            self.add(kernel)

    def add(self, kernel: Kernel) -> None:
        """Register ``kernel``; raises ``UsageError`` if its name is taken on that device kind."""
        key = (kernel.device_kind, kernel.name)
        if key in self._kernels:
            taken = self._kernels[key]
            raise UsageError(
                f"two {kernel.device_kind} kernels are called {kernel.name!r}: "
                f"{taken.source or taken.backend} and {kernel.source or kernel.backend}; "
                "rename one"
            )
        self._kernels[key] = kernel

    def all(self) -> list[Kernel]:
        """Every kernel, in the order of registration."""
        return list(self._kernels.values())

    def select(self, patterns: Sequence[str], device_kind: str) -> list[Kernel]:
        """Kernels of ``device_kind`` whose name matches one of the names or globs.

        Raises ``UsageError`` with near matches for a pattern that matches nothing.
        """
        here = {k.name: k for k in self._kernels.values() if k.device_kind == device_kind}
        chosen: dict[str, Kernel] = {}
        for pattern in patterns:
            matches = {name: here[name] for name in here if fnmatchcase(name, pattern)}
            if not matches:
                raise UsageError(self._no_match(pattern, device_kind, list(here)))
            chosen |= matches
        return list(chosen.values())

    def _no_match(self, pattern: str, device_kind: str, names: list[str]) -> str:
        elsewhere = {
            k.device_kind
            for k in self._kernels.values()
            if k.device_kind != device_kind and fnmatchcase(k.name, pattern)
        }
        if elsewhere:
            needs = "an NVIDIA GPU (see: rooflab doctor)" if "cuda" in elsewhere else "--device cpu"
            return (
                f"kernel {pattern!r} needs {needs}; "
                f"on {device_kind} there are {', '.join(sorted(names))}"
            )
        near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(names)}"
        return f"no kernel matches {pattern!r}: {hint} (list: rooflab kernels)"


BUILTIN: Final = Registry()
"""What ``@kernel`` adds to: the kernels of rooflab itself and of installed packages."""


def kernel(
    name: str,
    *,
    backend: str,
    device_kind: str,
    title: str,
    precisions: Sequence[str],
    layouts: Sequence[str] = LAYOUTS,
    teaches: str = "",
    unavailable: Callable[[Device | None], str] = always_available,
    objection: Callable[[Problem], str] = no_objection,
    registry: Registry = BUILTIN,
) -> Callable[[Prepare], Prepare]:
    """Register the decorated ``Prepare`` function as a kernel.

    >>> @kernel("mine", backend="mine", device_kind="cpu", title="My GEMM", precisions=["fp32"])
    ... def mine(device, operands):
    ...     a, b, c = operands.a[0], operands.b[0], operands.c[0]
    ...     return lambda: np.matmul(a, b, out=c)
    """

    def register(prepare: Prepare) -> Prepare:
        registry.add(
            Kernel(
                name=name,
                backend=backend,
                device_kind=device_kind,
                title=title,
                precisions=tuple(precisions),
                prepare=prepare,
                layouts=tuple(layouts),
                teaches=teaches,
                unavailable=unavailable,
                objection=objection,
            )
        )
        return prepare

    return register
