"""The model of a kernel: a name, a workload, and a function from operands to a launch."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rooflab.devices.base import Launch
from rooflab.errors import UsageError
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads import DEFAULT, find

if TYPE_CHECKING:
    from rooflab.devices.base import Device


def is_file(name: str) -> bool:
    """Whether ``name`` is a file: ``mine.cu``, ``mine.py`` or ``mine.py:name``."""
    return bool(re.search(r"\.(cu|py(:\w*)?)$", name)) or os.sep in name


class Operands(Mapping[str, Any]):
    """The arrays of one problem on one device, in the shapes of ``Problem.operands``.

    ``operands["a"]`` and ``operands.a`` are the same array. ``initial`` holds the content of each
    operand with the role ``inout`` before a launch.
    """

    def __init__(
        self, problem: Problem, arrays: Mapping[str, Any], initial: Mapping[str, Any]
    ) -> None:
        self.problem = problem
        self.initial = initial
        self._arrays = dict(arrays)

    def __getitem__(self, name: str) -> Any:
        return self._arrays[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._arrays:
            raise AttributeError(f"{self.problem.workload} has no operand {name!r}")
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)


@dataclass(frozen=True, slots=True)
class Rank:
    """One GPU of a group: its stream, and its part of the operands."""

    device: Device
    stream: Any
    operands: Operands


class Group(Operands):
    """The operands of a collective: those of each GPU are in ``members``."""

    def __init__(self, problem: Problem, members: Sequence[Rank]) -> None:
        super().__init__(problem, {}, {})
        self.members = tuple(members)


Prepare = Callable[["Device", Operands], Launch]
"""Does everything untimed (compiling, binding arguments) and returns the launch.

Raises ``KernelError`` if the kernel cannot be built or cannot run this problem.
"""


@dataclass(frozen=True, slots=True)
class LaunchShape:
    """The number of blocks of a launch, and of threads of a block."""

    blocks: int
    threads: int


def no_reason(_: object) -> str:
    """The default of what says why not: nothing speaks against it."""
    return ""


@dataclass(frozen=True)
class Variant:
    """One choice of a kernel's compile-time parameters; rows show ``name``.

    ``compile(device, problem)`` puts the code into the cache on disk for ``prepare``. It can be
    called from any thread and raises ``KernelError``. ``unsupported`` adds to the kernel's.
    """

    name: str
    prepare: Prepare
    compile: Callable[[Device, Problem], None]
    unsupported: Callable[[Problem], str] = no_reason


@dataclass(frozen=True)
class Kernel:
    """One registered implementation of a workload.

    ``choices`` limits settings of the workload that are words, such as ``{"layout": ("nn",)}``.
    ``unavailable(device)`` returns why the kernel cannot run there, empty if it can; ``device`` is
    None if the machine has no device of the kernel's kind. ``unfit(capability)`` returns why it
    cannot run with a compute capability such as ``"9.0"``. ``unsupported(problem)`` returns why the
    kernel does not support a problem that ``precisions`` and ``choices`` allow. rooflab searches
    the fastest of several ``variants`` for each problem; ``prepare`` uses the first.
    ``launch_shape(problem, variant, multiprocessors)`` is None if it is not known, or if blocks
    loop over their work. ``fingerprint()`` identifies the code: sources, libraries, compiler.
    ``compiler()`` is the name and version of the compiler, empty if there is none. ``builds()``
    lists the kernel's compilations in this process. ``memory_gb`` is the memory for compiling
    one variant. ``library`` marks the vendor's library, ``composed`` code of which a launch may be
    several of the device, or wait for it. ``untrusted`` marks code that must be checked for running
    on the given stream, and for changing settings of the process; ``foreign`` is a kernel from a
    user's file, which is watched more closely.
    """

    name: str
    backend: str
    device_kind: str
    title: str
    precisions: tuple[str, ...]
    prepare: Prepare
    workload: str = DEFAULT
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    teaches: str = ""
    source: Path | None = None
    variant: str = ""
    variants: tuple[Variant, ...] = ()
    unavailable: Callable[[Device | None], str] = no_reason
    unfit: Callable[[str], str] = no_reason
    unsupported: Callable[[Problem], str] = no_reason
    fingerprint: Callable[[], str] = str
    launch_shape: Callable[[Problem, str, int], LaunchShape | None] = lambda *_: None
    compiler: Callable[[], str] = str
    builds: Callable[[], list[dict[str, Any]]] = list
    memory_gb: float = 0.5
    library: bool = False
    composed: bool = False
    untrusted: bool = False
    foreign: bool = False

    @property
    def id(self) -> str:
        """``workload/name``, unique on one kind of device."""
        return f"{self.workload}/{self.name}"

    def __post_init__(self) -> None:
        where = f" ({self.source})" if self.source else ""
        parameters = find(self.workload).parameters()
        self._check("precision", self.precisions, tuple(PRECISIONS), where)
        for setting, given in self.choices.items():
            if setting not in parameters or not parameters[setting].choices:
                raise UsageError(
                    f"kernel {self.name!r}{where}: {self.workload} has no choice of {setting!r}"
                )
            self._check(setting, given, parameters[setting].choices, where)

    def _check(self, what: str, given: Sequence[str], known: tuple[str, ...], where: str) -> None:
        for name in given:
            if name not in known:
                raise UsageError(
                    f"kernel {self.name!r}{where}: unknown {what} {name!r}; "
                    f"choose from {', '.join(known)}"
                )

    def refuses(self, problem: Problem) -> str:
        """Why this kernel does not support ``problem``, empty if it does."""
        if problem.precision.name not in self.precisions:
            return f"{self.name} does not support {problem.precision.name}"
        for setting, values in self.choices.items():
            if problem.settings[setting] not in values:
                return f"{self.name} supports {setting} {', '.join(values)} only"
        if reason := self.unsupported(problem):
            return reason
        reasons = [variant.unsupported(problem) for variant in self.variants]
        return reasons[0] if reasons and all(reasons) else ""
