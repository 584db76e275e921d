"""Kernels from a Python file: ``--kernel mine.py`` means all kernels that it registers.

The functions are decorated with ``rooflab.kernel``. rooflab checks that their launches run on the
given stream, because nothing else would detect it if they do not.
"""

from __future__ import annotations

import hashlib
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import chdir
from contextvars import ContextVar
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from rooflab.devices.base import Device, Launch
from rooflab.errors import KernelError, UsageError
from rooflab.kernels.base import Kernel, Operands, no_reason
from rooflab.kernels.registry import BUILTIN, Registry
from rooflab.model.measurement import COLUMNS, FOLLOWING
from rooflab.model.problem import Problem
from rooflab.workloads import DEFAULT, catalogue

KernelFunction = Callable[[Operands, Any], Launch]
"""``function(operands, stream)`` does everything untimed and returns the launch: a function without
arguments that starts one computation on ``stream``."""

_target: ContextVar[Registry] = ContextVar("registry", default=BUILTIN)


def kernel(
    *misplaced: object,
    workload: str = DEFAULT,
    precisions: Sequence[str] | str = ("fp32",),
    device: str = "cuda",
    name: str = "",
    title: str = "",
    choices: Mapping[str, Sequence[str]] | None = None,
    requires: Sequence[str] = (),
    unsupported: Callable[[Problem], str] | None = None,
) -> Callable[[KernelFunction], KernelFunction]:
    """Register the decorated function as a kernel.

    ``device`` is ``cuda`` or ``cpu``. The default of ``name`` is the function's name, of ``title``
    the first line of its docstring. ``choices`` limits settings of the workload that are words,
    such as ``{"layout": ["nn"]}``. Without the modules in ``requires`` its rows are ``skipped``.
    ``unsupported(problem)`` returns why a problem is not supported, or an empty text. Raises
    ``UsageError`` if the function does not take operands and a stream.
    """
    if misplaced:
        raise UsageError('name what is given, as in @rooflab.kernel(workload="add")')

    def missing(problem: Problem) -> str:
        for module in requires:
            if find_spec(module) is None:
                return f"the module {module} is not installed: pip install {module}"
        return unsupported(problem) if unsupported else ""

    def register(function: KernelFunction) -> KernelFunction:
        called = name or function.__name__
        try:
            signature(function).bind("operands", "stream")
        except TypeError as error:
            raise UsageError(f"{called} must take (operands, stream): {error}") from error

        def prepare(on: Device, operands: Operands) -> Launch:
            launch = function(operands, on.stream)
            if not callable(launch):
                raise KernelError(
                    f"{called} returned {type(launch).__name__}, not a function that launches: "
                    "what is timed must wait for its call, as in return lambda: …"
                )
            return launch

        lines = (function.__doc__ or called).strip().splitlines()
        file = Path(function.__code__.co_filename)
        interactive = function.__module__ == "__main__"  # a cell may be run again
        _target.get().add(
            Kernel(
                name=called,
                backend="python",
                device_kind=device,
                title=title or lines[0],
                precisions=(precisions,) if isinstance(precisions, str) else tuple(precisions),
                prepare=prepare,
                workload=workload,
                choices={key: tuple(values) for key, values in (choices or {}).items()},
                source=file if file.is_file() else None,
                unavailable=_only_in_a_file if interactive else no_reason,
                unsupported=missing,
                composed=device != "cpu",
                untrusted=True,
            ),
            again=interactive,
        )
        return function

    return register


def _only_in_a_file(device: Device | None) -> str:
    """Why a kernel of a notebook or of a script itself cannot run."""
    return (
        "the process that measures cannot import a notebook or the script itself: write it to a "
        'file of its own (in a notebook: %%writefile mine.py) and name that, kernels="mine.py"'
    )


def load_python_file(path: Path, name: str = "") -> list[Kernel]:
    """The kernels that a file registers, or only the kernel called ``name``.

    The list is empty if the file only defines workloads, columns or flags. Raises ``UsageError``
    with the error and its line if the file cannot be imported.
    """
    known, registry = _defined(), Registry()
    token = _target.set(registry)
    try:
        import_file(path, "kernel file")
    finally:
        _target.reset(token)
    kernels = [found for found in registry.all() if not name or found.name == name]
    if not kernels and (name or _defined() == known):
        names = ", ".join(found.name for found in registry.all())
        raise UsageError(
            f"{path} has no kernel {name!r}: it has {names}"
            if names
            else f"{path} registers no kernel: decorate a function with @rooflab.kernel(…)"
        )
    return kernels


def import_file(path: Path, what: str) -> ModuleType:
    """The module that a user's file is; raises ``UsageError`` with the error and its line."""
    if not path.is_file():
        why = "it is a folder; name a file in it" if path.is_dir() else "no such file"
        raise UsageError(f"{what} {str(path)[:200]} cannot be read: {why}")
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    spec = spec_from_file_location(f"rooflab_{path.stem}_{digest}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python file: name it .py")
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses and pickle look their module up
    try:
        # Names of other files are relative to this folder, whatever the file does.
        with chdir("."):
            spec.loader.exec_module(module)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's file may raise anything
        raise UsageError(
            f"{path}{_line(path, error)}: {type(error).__name__}: {str(error)[:300]}"
        ) from error
    return module


def _defined() -> list[dict[str, Any]]:
    """What a file may define beside kernels."""
    return [dict(one) for one in (catalogue(), COLUMNS, FOLLOWING)]


def _line(path: Path, error: BaseException) -> str:
    """``:12``, the last line of the file in the error's traceback."""
    if isinstance(error, SyntaxError) and error.lineno:
        return f":{error.lineno}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(path.absolute())]
    return f":{lines[-1]}" if lines else ""
