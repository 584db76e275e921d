"""Settings of the whole process: what one kernel changes must not reach another.

Each kernel has its own values of them while it works, and all others have those from before.
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import logging
import os
import pickle
import random
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from inspect import isfunction
from typing import Any, ClassVar, Final

from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Setting
from rooflab.measure.seal import FUNCTIONS, Seal

Values = dict[str, Any]

HOOKS: Final = "profilers, tracers or timers"
SWEEP: Final = "settings of the sweep"
DEVICE: Final = "methods of the device"
MEASURES: Final = (FUNCTIONS, HOOKS, SWEEP, DEVICE)
"""Settings that decide what is measured and compared: who changes them has no result."""

TIMERS: Final = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

_TORCH: Final = {
    "backends.cuda.matmul.allow_tf32": False,
    "backends.cudnn.allow_tf32": True,
    "backends.cuda.matmul.allow_fp16_reduced_precision_reduction": True,
    "backends.cuda.matmul.allow_bf16_reduced_precision_reduction": True,
    "backends.cudnn.benchmark": False,
}
"""Flags of PyTorch and their defaults: it may be imported by the kernel that changes them."""

_TF32: Final = ("backends.cuda.matmul.allow_tf32", "backends.cudnn.allow_tf32")
_PRECISIONS: Final = (
    "backends",
    "backends.cuda.matmul",
    "backends.cudnn",
    "backends.mkldnn.matmul",
)
"""Where PyTorch 2.9 and later have ``fp32_precision``, none of which is ``tf32`` by default."""


@dataclass(slots=True)
class Own:
    """The values that one kernel has set, by setting, and what they were."""

    values: Values = field(default_factory=dict)
    changes: dict[str, str] = field(default_factory=dict)
    stays: bool = False
    """Whether some of it could not be undone."""

    def copy(self) -> Own:
        """To go on with, for one kernel."""
        return Own(dict(self.values), dict(self.changes))

    @property
    def tampered(self) -> str:
        """What it changed of that which measures, in one line; empty if nothing."""
        return "; ".join(text for name, text in self.changes.items() if name in MEASURES)

    @property
    def text(self) -> str:
        """What it changed, in one line; empty if nothing."""
        return "; ".join(self.changes.values())


class Settings:
    """All settings that can be read and written here."""

    catches: ClassVar[type[BaseException]] = BaseException
    """What fails only a kernel's row."""

    def __init__(self, device: Device, config: SweepConfig | None = None) -> None:
        self._device = device
        self._config = config
        self._seal = Seal()
        self.loaded: dict[str, Own] = {}
        """By ``Kernel.id`` what the kernel's file changed when it was loaded."""
        self._settings: dict[str, Setting] = {}
        self._base: Values = {}
        self._accepted: list[str] = []
        self.accept()

    def accept(self) -> None:
        """Everything is as it should be: what follows is compared with this."""
        for one in (
            *(self._seal.setting(), *_of_python(), *_of_numpy(), *_of_c()),
            *(_of_sweep(self._config) if self._config else ()),
            *self._device.settings(),
            _of_device(self._device),
        ):
            self._settings[one.name] = one
        self._discover()
        self._base = self._read()
        self._accepted = self._seal.look()()

    @contextmanager
    def of(self, own: Own, *, trusted: bool = False) -> Iterator[None]:
        """A kernel works meanwhile, with its own values; a trusted one needs no look at them."""
        if trusted:
            yield
            return
        self._write({**self._base, **own.values}, own.values)
        look, accepted = self._seal.look(), self._accepted
        try:
            yield
        finally:
            early = [one for one in look() if one not in accepted]
            self._discover()
            self._note(own)
            if early and FUNCTIONS not in own.changes:
                own.changes[FUNCTIONS] = f"{FUNCTIONS} are replaced for a while: {early[0]}"
            self._write(self._base, own.changes)
            own.stays = any(
                _value(self._settings[name]) != self._base.get(name) for name in own.changes
            )

    def _note(self, own: Own) -> None:
        before = {**self._base, **own.values}
        for name, value in self._read().items():
            if name in before and value != before[name]:
                if name not in MEASURES:
                    own.values[name] = value
                own.changes[name] = self._told(name, value)

    def _told(self, name: str, value: Any) -> str:
        try:
            return f"{name} {self._settings[name].told(self._base.get(name), value)}".strip()
        except Exception:  # it cannot be read, or is nothing that it could be
            return f"{name} cannot be read any more"

    def _discover(self) -> None:
        """Add the settings of packages that were imported meanwhile, with their defaults."""
        for setting, default in _of_torch():
            if setting.name not in self._settings:
                self._settings[setting.name] = setting
                self._base[setting.name] = setting.read() if default is None else default

    def _read(self) -> Values:
        return {name: _value(setting) for name, setting in self._settings.items()}

    def _write(self, values: Mapping[str, Any], changed: Mapping[str, Any]) -> None:
        """Write what some kernel has changed: the rest is as it was."""
        for name in changed:
            if name in values:
                with suppress(Exception):  # then the next reading tells
                    self._settings[name].write(values[name])


def _of_device(device: Device) -> Setting:
    """What hides its methods: attributes of the object."""

    def read() -> dict[str, Any]:
        methods = ((name, getattr(type(device), name, None)) for name in vars(device))
        return {name: vars(device)[name] for name, one in methods if isfunction(one)}

    def write(values: Mapping[str, Any]) -> None:
        for name in read().keys() - values.keys():
            delattr(device, name)
        vars(device).update(values)

    return Setting(DEVICE, read, write, _names)


UNREADABLE: Final = object()


def _value(setting: Setting) -> Any:
    try:
        return setting.read()
    except Exception:
        return UNREADABLE


def _environment() -> Setting:
    """Its variables, and the object that has them."""
    real = os.environ

    def read() -> dict[str, str]:
        return dict(os.environ) | ({} if os.environ is real else {"os.environ": "replaced"})

    def write(values: Mapping[str, str]) -> None:
        os.environ = real  # noqa: B003  no variable changes
        for name in real.keys() - values.keys():
            del real[name]
        real.update(values)

    return Setting("the environment", read, write, _names)


def _of_python() -> Iterator[Setting]:
    yield _environment()
    yield Setting("the working folder", _folder, os.chdir, lambda old, new: f"to {new}")
    yield Setting(
        "warnings",
        _filters,
        _set_filters,
        lambda old, new: (
            f"have the filter {new.general[0][0]!r}" if new.general else "have no filter"
        ),
    )
    yield Setting("the umask", _mask, os.umask)
    yield Setting("sys.stdin, stdout and stderr", _streams, _set_streams, "are replaced")
    yield Setting("logging", _logging, _set_logging, "is set up")
    yield Setting("the decimal context", _decimal, _set_decimal, "")
    yield Setting("random numbers", random.getstate, random.setstate, "are drawn")
    yield _list_of_sys("path", _added)
    yield Setting(
        "garbage collection", gc.isenabled, lambda on: gc.enable() if on else gc.disable()
    )
    yield Setting(
        "thresholds of garbage collection", gc.get_threshold, lambda t: gc.set_threshold(*t)
    )
    yield _list_of_sys("meta_path", "")
    yield Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield Setting("the thread switch interval", sys.getswitchinterval, sys.setswitchinterval)
    yield Setting(
        "signal handlers",
        lambda: {one.name: signal.getsignal(one) for one in signal.Signals},
        _set_handlers,
        _names,
    )
    user = (os.PRIO_PROCESS, 0)
    yield Setting(
        "the priority (nice)", partial(os.getpriority, *user), partial(os.setpriority, *user)
    )
    if hasattr(os, "sched_getscheduler"):
        yield Setting(
            "the scheduling policy",
            lambda: (os.sched_getscheduler(0), os.sched_getparam(0).sched_priority),
            lambda old: os.sched_setscheduler(0, old[0], os.sched_param(old[1])),
        )
    mask = signal.pthread_sigmask
    yield Setting(
        "blocked signals",
        lambda: frozenset(mask(signal.SIG_BLOCK, ())),
        partial(mask, signal.SIG_SETMASK),
        "are others",
    )
    if hasattr(os, "sched_getaffinity"):
        yield Setting(
            "CPU affinity",
            lambda: frozenset(os.sched_getaffinity(0)),
            partial(os.sched_setaffinity, 0),
        )
    yield Setting("resource limits", _limits, _set_limits, _names)
    yield Setting(HOOKS, _hooks, _set_hooks, "are set")


def _of_sweep(config: SweepConfig) -> Iterator[Setting]:
    """Models are frozen, which keeps out only accidents."""
    models = (config, config.timing)

    def write(values: tuple[Values, ...]) -> None:
        for model, known in zip(models, values, strict=True):
            vars(model).update(known)

    yield Setting(SWEEP, lambda: tuple(dict(vars(one)) for one in models), write, "are changed")


def _of_numpy() -> Iterator[Setting]:
    import numpy as np

    yield Setting("NumPy's error handling (seterr)", np.geterr, lambda old: np.seterr(**old))
    yield Setting("NumPy's buffer size (setbufsize)", np.getbufsize, np.setbufsize)
    printing = np.get_printoptions, lambda old: np.set_printoptions(**old)
    yield Setting("NumPy's printoptions", *printing, "")
    yield Setting(
        "NumPy's random numbers",
        lambda: pickle.dumps(np.random.get_state()),  # it holds an array
        lambda old: np.random.set_state(pickle.loads(old)),
        "are drawn",
    )


def _of_c() -> Iterator[Setting]:
    """How floating-point numbers are rounded, in this thread."""
    try:
        library = ctypes.CDLL(None)
        read, write = library.fegetround, library.fesetround
    except (OSError, AttributeError):
        return
    yield Setting("the rounding mode", read, write)
    yield Setting("subnormal numbers", _subnormal, lambda on: None, "are zero")


def _subnormal() -> bool:
    """Whether they are numbers like others."""
    return 1e-310 / float(len("ab")) != 0


def _folder() -> str:
    try:
        return os.getcwd()  # noqa: PTH109  a text
    except OSError:
        return ""


WarningFilter = tuple[str, Any, Any, Any, int]


@dataclass(frozen=True, slots=True)
class _Filters:
    """Of warnings: those for every one, and all, in their order. Others come with packages."""

    general: tuple[WarningFilter, ...]
    every: tuple[WarningFilter, ...] = field(compare=False)


def _filters() -> _Filters:
    every: tuple[WarningFilter, ...] = tuple(warnings.filters)
    return _Filters(tuple(one for one in every if _is_general(one)), every)


def _set_filters(wanted: _Filters) -> None:
    came = [one for one in _filters().every if one not in wanted.every and not _is_general(one)]
    warnings.filters[:] = [*came, *wanted.every]  # type: ignore[index]


def _is_general(one: WarningFilter) -> bool:
    return one[2] is Warning and not (one[1] or one[3])


def _mask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _streams() -> tuple[Any, ...]:
    return sys.stdin, sys.stdout, sys.stderr


def _set_streams(streams: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = streams


def _logging() -> tuple[Any, ...]:
    root = logging.getLogger()
    return root.level, tuple(root.handlers), root.manager.disable


def _set_logging(values: tuple[Any, ...]) -> None:
    root = logging.getLogger()
    root.setLevel(values[0])
    root.handlers[:] = values[1]
    logging.disable(values[2])


def _decimal() -> tuple[Any, ...]:
    one = decimal.getcontext()
    traps = tuple(signal for signal, trapped in one.traps.items() if trapped)
    return one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, traps


def _set_decimal(values: tuple[Any, ...]) -> None:
    one = decimal.Context()
    one.prec, one.rounding, one.Emin, one.Emax, one.capitals, one.clamp, traps = values
    one.traps = dict.fromkeys(one.traps, False) | dict.fromkeys(traps, True)
    decimal.setcontext(one)


def _list_of_sys(name: str, change: str | Callable[[Any, Any], str]) -> Setting:
    """A list, or that in its place."""
    real = getattr(sys, name)

    def write(values: tuple[Any, ...]) -> None:
        real[:] = values
        setattr(sys, name, real)

    return Setting(f"sys.{name}", lambda: tuple(getattr(sys, name)), write, change)


def _added(old: tuple[str, ...], new: tuple[str, ...]) -> str:
    return f"({', '.join(map(str, [one for one in new if one not in old][:2])) or 'fewer'})"


ALIAS: Final = "RLIMIT_OFILE"
"""An old name of ``RLIMIT_NOFILE``."""


def _limits() -> dict[str, tuple[int, int]]:
    names = (name for name in dir(resource) if name.startswith("RLIMIT_"))
    return {name: resource.getrlimit(getattr(resource, name)) for name in names if name != ALIAS}


def _set_limits(limits: Mapping[str, tuple[int, int]]) -> None:
    now = _limits()
    for name, limit in limits.items():
        if now[name] != limit:
            with suppress(ValueError, OSError):
                resource.setrlimit(getattr(resource, name), limit)


def _set_handlers(handlers: Mapping[str, Any]) -> None:
    for name, handler in handlers.items():
        one = signal.Signals[name]
        if handler is not None and signal.getsignal(one) != handler:
            with suppress(OSError, ValueError):
                signal.signal(one, handler)


def _hooks() -> tuple[Any, ...]:
    return (
        *(sys.getprofile(), sys.gettrace(), tuple(gc.callbacks)),
        *(
            threading.getprofile(),
            threading.gettrace(),
            any(signal.getitimer(timer)[0] > 0 for timer in TIMERS),
        ),
    )


def _set_hooks(values: tuple[Any, ...]) -> None:
    profile, trace, callbacks, thread_profile, thread_trace, _ = values
    sys.setprofile(profile)
    sys.settrace(trace)
    gc.callbacks[:] = callbacks
    threading.setprofile(thread_profile)
    threading.settrace(thread_trace)
    for timer in TIMERS:
        signal.setitimer(timer, 0)


def _names(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """The keys with other values."""
    other = sorted(
        key
        for key in old.keys() | new.keys()
        if (key in old, old.get(key)) != (key in new, new.get(key))
    )
    return f"({', '.join(other[:3])}{', …' if len(other) > 3 else ''})"


def _of_torch() -> Iterator[tuple[Setting, Any]]:
    """PyTorch's, if it is imported: each with its default, None if that is what it has now."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "backends"):
        return
    flags = dict(_TORCH)
    if hasattr(torch.backends, "fp32_precision"):  # with it the older ones may not be read
        for path in _TF32:
            del flags[path]
    for path, default in flags.items():
        where, _, name = path.rpartition(".")
        if hasattr(owner := _at(torch, where), name):
            yield _flag(f"torch.{path}", owner, name), default
    if hasattr(torch, "is_deterministic_algorithms_warn_only_enabled"):
        yield (
            Setting(
                "torch.use_deterministic_algorithms",
                lambda: (
                    torch.are_deterministic_algorithms_enabled(),
                    torch.is_deterministic_algorithms_warn_only_enabled(),
                ),
                lambda old: torch.use_deterministic_algorithms(old[0], warn_only=old[1]),
            ),
            (False, False),
        )
    functions: tuple[tuple[str, str, Any], ...] = (
        ("get_float32_matmul_precision", "set_float32_matmul_precision", "highest"),
        ("is_grad_enabled", "set_grad_enabled", True),
        ("get_default_dtype", "set_default_dtype", getattr(torch, "float32", None)),
        ("get_num_threads", "set_num_threads", None),
    )
    for read, write, default in functions:
        if hasattr(torch, read) and hasattr(torch, write):
            reads = _or_mixed(getattr(torch, read))
            yield Setting(f"torch.{write}", reads, getattr(torch, write)), default
    for path in _PRECISIONS:  # after the older settings, which overwrite them
        if hasattr(owner := _at(torch, path), "fp32_precision"):
            yield _precision(f"torch.{path}.fp32_precision", owner), "ieee"
    if hasattr(owner := _at(torch, "backends.cudnn.conv"), "fp32_precision"):
        yield _precision("torch.backends.cudnn.conv.fp32_precision", owner), None


def _flag(title: str, owner: Any, name: str) -> Setting:
    return Setting(title, lambda: getattr(owner, name), lambda value: setattr(owner, name, value))


def _at(owner: Any, path: str) -> Any:
    """The attribute at the end of a path, None if there is none."""
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner


def _precision(title: str, owner: Any) -> Setting:
    """``none`` means that of the parent, which is ``ieee`` unless it is set."""

    def read() -> Any:
        value = owner.fp32_precision
        return "ieee" if value == "none" else value

    return Setting(title, read, lambda value: setattr(owner, "fp32_precision", value))


def _or_mixed(read: Callable[[], Any]) -> Callable[[], Any]:
    """PyTorch refuses to say what older settings are if newer ones contradict them."""

    def value() -> Any:
        try:
            return read()
        except RuntimeError:
            return "mixed"

    return value
