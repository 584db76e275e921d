"""Settings of the whole process: what one kernel changes must not reach another.

Each kernel has its own values of them while it works, and all others have those from before.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Final

from rooflab.device import Device, Setting

Values = dict[str, Any]

PATCHED: Final = (
    *("time", "math", "statistics", "numpy", "cupy", "cupy.cuda", "torch.cuda"),
    *("rooflab.measure.verify", "rooflab.measure.inspection", "rooflab.measure.buffers"),
    *("rooflab.measure.statistics", "rooflab.measure.protocol", "rooflab.model.encoding"),
)
"""Modules whose functions a kernel must not replace: they measure and compare."""

_TORCH: Final = {
    "backends.cuda.matmul.allow_tf32": False,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cudnn.allow_tf32": True,
    "backends.cudnn.benchmark": False,
}
"""Flags of PyTorch and their defaults: it may be imported by the kernel that changes them."""


@dataclass(slots=True)
class Own:
    """The values that one kernel has set, by setting, and what they were."""

    values: Values = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """What it changed, in one line; empty if nothing."""
        return "; ".join(self.changes.values())


class Settings:
    """All settings that can be read and written here."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._settings: dict[str, Setting] = {}
        self._base: Values = {}
        self.accept()

    def accept(self) -> None:
        """Everything is as it should be: what follows is compared with this."""
        for one in (*_of_python(), *_of_numpy(), *self._device.settings()):
            self._settings[one.name] = one
        self._discover()
        self._base = self._read()

    @contextmanager
    def of(self, own: Own, *, trusted: bool = False) -> Iterator[None]:
        """A kernel works meanwhile, with its own values; a trusted one may change those of all."""
        self._write({**self._base, **own.values}, own.values)
        try:
            yield
        finally:
            self._discover()
            if trusted:
                self._base = self._read()
            else:
                self._note(own)
                self._write(self._base, own.values)

    def _note(self, own: Own) -> None:
        before = {**self._base, **own.values}
        for name, value in self._read().items():
            if name in before and value != before[name]:
                own.values[name] = value
                setting = self._settings[name]
                own.changes[name] = f"{name} {setting.change(self._base.get(name), value)}".strip()

    def _discover(self) -> None:
        """Add the settings of packages that were imported meanwhile, with their defaults."""
        for setting, default in _of_torch():
            if setting.name not in self._settings:
                self._settings[setting.name] = setting
                self._base[setting.name] = setting.read() if default is None else default

    def _read(self) -> Values:
        return {name: setting.read() for name, setting in self._settings.items()}

    def _write(self, values: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Write what some kernel has changed: the rest is as it was."""
        for name in changed:
            if name in values:
                with suppress(Exception):  # then the next reading tells
                    self._settings[name].write(values[name])


def _of_python() -> Iterator[Setting]:
    yield Setting("the environment", lambda: dict(os.environ), _set_environment, _names)
    yield Setting("the working folder", _folder, os.chdir, lambda old, new: f"to {new}")
    yield Setting("warnings", _ignored, _set_ignored, lambda old, new: "are ignored")
    yield Setting(
        "garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()
    )
    yield Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield Setting("the thread switch interval", sys.getswitchinterval, sys.setswitchinterval)
    yield Setting("signal handlers", _handlers, _set_handlers, _names)
    if hasattr(os, "sched_getaffinity"):
        yield Setting("CPU affinity", _affinity, lambda cpus: os.sched_setaffinity(0, cpus))
    for name in PATCHED:
        functions = _Functions(name)
        yield Setting(f"{name}", functions.replaced, functions.restore, _replaced)


def _of_numpy() -> Iterator[Setting]:
    import numpy as np

    yield Setting("NumPy's error handling", np.geterr, lambda old: np.seterr(**old))


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  a text
    except OSError:
        return ""


def _set_environment(values: Mapping[str, str]) -> None:
    for name in os.environ.keys() - values.keys():
        del os.environ[name]
    os.environ.update(values)


def _ignored() -> int:
    """How many filters ignore every warning."""
    return sum(
        action == "ignore" and category is Warning and not message and not module
        for action, message, category, module, _ in warnings.filters
    )


def _set_ignored(count: int) -> None:
    for one in [one for one in warnings.filters if one[0] == "ignore" and one[2] is Warning]:
        if _ignored() > count:
            warnings.filters.remove(one)  # type: ignore[attr-defined]


def _affinity() -> frozenset[int]:
    return frozenset(os.sched_getaffinity(0))


def _handlers() -> dict[str, Any]:
    return {one.name: signal.getsignal(one) for one in signal.Signals}


def _set_handlers(handlers: Mapping[str, Any]) -> None:
    for name, handler in handlers.items():
        one = signal.Signals[name]
        if handler is not None and signal.getsignal(one) != handler:
            with suppress(OSError, ValueError):
                signal.signal(one, handler)


class _Functions:
    """The functions and classes of a module, as they were when this was made."""

    def __init__(self, name: str) -> None:
        self._module = sys.modules.get(name)
        content = vars(self._module) if isinstance(self._module, ModuleType) else {}
        self._known = {key: value for key, value in content.items() if callable(value)}

    def replaced(self) -> frozenset[str]:
        """Names that mean something else now."""
        content = vars(self._module) if self._known else {}
        return frozenset(k for k, value in self._known.items() if content.get(k) is not value)

    def restore(self, _: object) -> None:
        """They are as they were, for whichever kernel."""
        for key in self.replaced():
            setattr(self._module, key, self._known[key])


def _replaced(old: frozenset[str], new: frozenset[str]) -> str:
    return f"({', '.join(sorted(new))} replaced)"


def _names(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The keys with other values."""
    other = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    return f"({', '.join(other[:3])}{', …' if len(other) > 3 else ''})"


def _of_torch() -> Iterator[tuple[Setting, Any]]:
    """PyTorch's, if it is imported: each with its default, None if that is what it has now."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return
    for path, default in _TORCH.items():
        *where, name = path.split(".")
        owner: Any = torch
        for part in where:
            owner = getattr(owner, part, None)
        if hasattr(owner, name):
            yield _flag(f"torch.{path}", owner, name), default
    functions: tuple[tuple[str, str, Any], ...] = (
        ("get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
        ("is_grad_enabled", "set_grad_enabled", True),
        ("get_default_dtype", "set_default_dtype", getattr(torch, "float32", None)),
        ("get_num_threads", "set_num_threads", None),
    )
    for read, write, default in functions:
        if hasattr(torch, read) and hasattr(torch, write):
            yield Setting(f"torch.{write}", getattr(torch, read), getattr(torch, write)), default


def _flag(title: str, owner: Any, name: str) -> Setting:
    return Setting(title, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))
