"""What a kernel changes of the whole process is told, and reaches no other kernel."""

from __future__ import annotations

import builtins
import ctypes
import dataclasses
import decimal
import gc
import io
import logging
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import fake
import numpy as np
import pytest

from rooflab.config import SweepConfig
from rooflab.devices.base import Setting
from rooflab.devices.cpu.device import CpuDevice
from rooflab.measure import buffers, protocol, verify
from rooflab.measure.settings import Own, Settings
from rooflab.model import encoding
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.workloads.gemm import Gemm

UPWARD = 0x800
"""C's FE_UPWARD on x86-64."""


def rounding() -> int:
    return ctypes.CDLL(None).fegetround()  # type: ignore[no-any-return]


def handler(*arguments: object) -> None:
    """Of a signal, a trace or a profile."""


def watch(*arguments: Any) -> None:
    """A trace that looks at nothing."""


class Device(fake.FakeDevice):
    """Has a setting of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = False

    def settings(self) -> list[Setting]:
        return [Setting("fast", lambda: self.fast, lambda value: setattr(self, "fast", value))]


DEVICE = Device()

CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object], str]] = {
    "environment": (
        lambda: os.environ.update(ROOFLAB_A="1", ROOFLAB_B="2"),
        lambda: dict(os.environ),
        r"the environment (ROOFLAB_A, ROOFLAB_B)",
    ),
    "environment, removed": (
        lambda: os.environ.pop("PATH"),
        lambda: dict(os.environ),
        "the environment (PATH)",
    ),
    "folder": (lambda: os.chdir("/"), Path.cwd, "the working folder to /"),
    "warnings": (
        lambda: warnings.simplefilter("ignore"),
        lambda: list(warnings.filters),
        "warnings have the filter 'ignore'",
    ),
    "umask": (
        lambda: os.umask(0o123),
        lambda: [os.umask(mask := os.umask(0)), mask][1],
        f"the umask from {(os.umask(mask := os.umask(0)), mask)[1]} to 83",
    ),
    "stdout": (
        lambda: setattr(sys, "stdout", io.StringIO()),
        lambda: sys.stdout,
        "sys.stdin, stdout and stderr are replaced",
    ),
    "logging": (
        lambda: logging.getLogger().setLevel(3),
        lambda: logging.getLogger().level,
        "logging is set up",
    ),
    "logging, off": (
        lambda: logging.disable(50),
        lambda: logging.getLogger().manager.disable,
        "logging is set up",
    ),
    "decimal": (
        lambda: setattr(decimal.getcontext(), "prec", 7),
        lambda: decimal.getcontext().prec,
        "the decimal context",
    ),
    "random": (lambda: random.seed(1), random.getstate, "random numbers are drawn"),
    "path": (
        lambda: sys.path.extend(["/mine", "/other", "/third"]),
        lambda: list(sys.path),
        "sys.path (/mine, /other)",
    ),
    "path, shorter": (
        lambda: sys.path.pop(),
        lambda: list(sys.path),
        "sys.path (fewer)",
    ),
    "garbage": (gc.disable, gc.isenabled, "garbage collection from True to False"),
    "recursion": (
        lambda: sys.setrecursionlimit(5000),
        sys.getrecursionlimit,
        f"the recursion limit from {sys.getrecursionlimit()} to 5000",
    ),
    "switches": (
        lambda: sys.setswitchinterval(0.5),
        sys.getswitchinterval,
        f"the thread switch interval from {sys.getswitchinterval()} to 0.5",
    ),
    "signal": (
        lambda: signal.signal(signal.SIGUSR1, handler),
        lambda: signal.getsignal(signal.SIGUSR1),
        "signal handlers (SIGUSR1)",
    ),
    "NumPy's errors": (
        lambda: np.seterr(all="ignore"),
        np.geterr,
        f"NumPy's error handling (seterr) from {np.geterr()} to "
        "{'divide': 'ignore', 'over': 'ignore', 'under': 'ignore', 'invalid': 'ignore'}",
    ),
    "NumPy's buffers": (
        lambda: np.setbufsize(16 * 1024),
        np.getbufsize,
        f"NumPy's buffer size (setbufsize) from {np.getbufsize()} to 16384",
    ),
    "NumPy's text": (
        lambda: np.set_printoptions(precision=2),
        lambda: np.get_printoptions()["precision"],
        "NumPy's printoptions",
    ),
    "NumPy's random": (
        lambda: np.random.seed(1),
        lambda: np.random.get_state()[1].tolist(),  # type: ignore[index]
        "NumPy's random numbers are drawn",
    ),
    "rounding": (
        lambda: ctypes.CDLL(None).fesetround(UPWARD),
        rounding,
        f"the rounding mode from 0 to {UPWARD}",
    ),
    "the device's": (
        lambda: setattr(DEVICE, "fast", True),
        lambda: DEVICE.fast,
        "fast from False to True",
    ),
}
FILES, MOST_FILES = resource.getrlimit(resource.RLIMIT_NOFILE)
CHANGES["limits"] = (
    lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (FILES - 1, MOST_FILES)),
    lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
    "resource limits (RLIMIT_NOFILE)",
)
if hasattr(os, "sched_getaffinity"):
    CPUS = os.sched_getaffinity(0)
    if len(CPUS) > 1:
        CHANGES["affinity"] = (
            lambda: os.sched_setaffinity(0, {min(CPUS)}),
            lambda: os.sched_getaffinity(0),
            f"CPU affinity from {frozenset(CPUS)} to {frozenset({min(CPUS)})}",
        )


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """Whatever a failing test leaves; and the timer of pytest's own limit of time."""
    left_s, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    with Settings(DEVICE).of(Own()):
        yield
    signal.setitimer(signal.ITIMER_REAL, left_s)


@cache
def made() -> Settings:
    return Settings(DEVICE)


def known() -> Settings:
    """Those of this process as it is now; they take long to make."""
    made().accept()
    return made()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_restored_and_stays_the_kernels_own(name: str) -> None:
    settings = known()
    change, read, text = CHANGES[name]
    own, before = Own(), read()
    with settings.of(own):
        change()
        changed = read()
    assert changed != before
    assert read() == before
    assert own.text == text
    assert own.tampered == ""
    assert not own.stays
    assert len(own.values) == 1
    # While it works again it has what it has set, and another one has not.
    with settings.of(own):
        assert read() == changed
    with settings.of(other := Own()):
        assert read() == before
    assert read() == before
    assert (own.text, other.text) == (text, "")


def test_several_changes_are_told_together_and_each_once() -> None:
    settings = Settings(DEVICE)
    own = Own()
    for _ in range(2):
        with settings.of(own):
            random.seed(random.random())
            gc.disable()
    assert own.text == "random numbers are drawn; garbage collection from True to False"
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("count", "told"), [(1, "ONE0"), (3, "ONE0, ONE1, ONE2"), (4, "ONE0, ONE1, ONE2, …")]
)
def test_of_many_variables_three_are_named(count: int, told: str) -> None:
    settings, own = Settings(DEVICE), Own()
    with settings.of(own):
        os.environ.update({f"ONE{i}": "1" for i in range(count)})
    assert own.text == f"the environment ({told})"


def test_what_is_changed_before_an_error_is_restored_too() -> None:
    settings = Settings(DEVICE)
    own = Own()
    with pytest.raises(SystemExit), settings.of(own):
        gc.disable()
        raise SystemExit
    assert gc.isenabled()
    assert own.text == "garbage collection from True to False"


def test_what_is_put_back_by_the_kernel_is_no_change() -> None:
    settings = Settings(DEVICE)
    own = Own()
    with settings.of(own), np.errstate(all="ignore"):
        gc.disable()
        gc.enable()
    assert own.text == ""


def test_numbers_of_decimal_that_were_rounded_are_no_change() -> None:
    settings, own = Settings(DEVICE), Own()
    with settings.of(own):
        assert decimal.Decimal(1) / 3
    assert own.text == ""


def test_a_trusted_kernel_is_not_looked_at() -> None:
    settings = Settings(DEVICE)
    own = Own()
    with settings.of(own, trusted=True):
        gc.disable()
    assert (gc.isenabled(), own.text) == (False, "")
    gc.enable()


def test_what_is_accepted_is_no_change_afterwards() -> None:
    settings = Settings(DEVICE)
    gc.disable()
    settings.accept()
    own = Own()
    with settings.of(own):
        assert not gc.isenabled()
    assert own.text == ""
    with settings.of(own):
        gc.enable()
    assert not gc.isenabled()
    assert own.text == "garbage collection from False to True"


def test_what_a_file_changed_when_it_was_loaded_is_its_kernels_own() -> None:
    settings = Settings(DEVICE)
    loaded = Own()
    with settings.of(loaded):
        np.seterr(all="ignore")
    one, other = loaded.copy(), loaded.copy()
    with settings.of(one):
        assert np.geterr()["over"] == "ignore"
        gc.disable()
    with settings.of(other):
        assert gc.isenabled()
        assert np.geterr()["over"] == "ignore"
    assert "garbage" in one.text
    assert "garbage" not in other.text + loaded.text


def test_what_cannot_be_restored_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    state, device = [0], Device()
    stuck = Setting("stuck", lambda: state[0], lambda value: None)
    monkeypatch.setattr(device, "settings", lambda: [stuck])
    settings, own = Settings(device), Own()
    with settings.of(own):
        gc.disable()
    assert not own.stays
    with settings.of(own):
        state[0] = 1
    assert own.stays
    assert own.text == "garbage collection from True to False; stuck from 0 to 1"
    with settings.of(own):
        state[0] = 0
    assert not own.stays


def test_threads_and_processes_that_go_on_are_found_on_a_cpu() -> None:
    settings = Settings(CpuDevice())
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    with settings.of(own := Own()):
        thread.start()
    assert own.stays
    assert own.text == "threads or processes go on"
    end.set()
    thread.join()
    with settings.of(short := Own()):
        ended = threading.Thread(target=lambda: None)
        ended.start()
        ended.join()
    assert (short.text, short.stays) == ("", False)
    with settings.of(forked := Own()):
        child = subprocess.Popen(["sleep", "60"])
    assert (forked.text, forked.stays) == ("threads or processes go on", True)
    child.kill()
    child.wait()


def test_a_folder_that_is_gone_is_no_error() -> None:
    settings = Settings(DEVICE)
    own, here = Own(), Path.cwd()
    with settings.of(own):
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        Path(folder).rmdir()
    assert Path.cwd() == here
    with settings.of(own):
        pass
    assert Path.cwd() == here


def test_threads_of_a_cpus_libraries_are_settings() -> None:
    """Of Numba, of BLAS, and of whatever else is loaded."""
    import numba
    from threadpoolctl import ThreadpoolController

    before_numba = numba.get_num_threads()  # loads its own library of threads
    blas = ThreadpoolController().lib_controllers
    before = before_numba, [one.get_num_threads() for one in blas]
    settings, own = Settings(CpuDevice(threads=1)), Own()
    with settings.of(own):
        numba.set_num_threads(1)
        for one in blas:
            one.set_num_threads(2 if one.get_num_threads() == 1 else 1)
        changed = [one.get_num_threads() for one in blas]
    assert (numba.get_num_threads(), [one.get_num_threads() for one in blas]) == before
    assert ("Numba's threads from" in own.text) == (before[0] > 1)
    assert own.text.count("the threads of ") == sum(
        old != new for old, new in zip(before[1], changed, strict=True)
    )
    with settings.of(own):
        assert numba.get_num_threads() == 1
        assert [one.get_num_threads() for one in blas] == changed


# What measures and compares ----------------------------------------------------------------------


SEALED: dict[str, tuple[Any, str]] = {
    "a clock": (time, "perf_counter"),
    "NumPy's function": (np, "abs"),
    "rooflab's function": (verify, "verify"),
    "a name that a module has imported": (protocol, "perf_counter"),
    "a method": (protocol.Protocol, "_finish"),
    "a property": (Measurement, "key"),
    "statistics": (statistics, "median"),
    "a constant": (verify, "OUTLIER"),
    "a method of Python's": (random.Random, "randrange"),
    "Python's own function": (builtins, "divmod"),
}


@pytest.mark.parametrize("name", SEALED)
def test_functions_that_measure_must_not_be_replaced(name: str) -> None:
    settings = Settings(DEVICE)
    owner, key = SEALED[name]
    before, own = vars(owner)[key], Own()
    with settings.of(own):
        setattr(owner, key, lambda *arguments: 0)
    assert vars(owner)[key] is before
    assert own.tampered.startswith("functions or constants are replaced: ")
    assert own.tampered.endswith(f".{key}")
    assert own.text == own.tampered
    assert own.values == {}  # it does not get them back
    with settings.of(own):
        assert vars(owner)[key] is before


INSIDES: dict[str, tuple[str, Any]] = {
    "code": ("__code__", (lambda *arguments: 0).__code__),
    "an argument's default": ("__defaults__", (0, 0, 0)),
    "a named argument's default": ("__kwdefaults__", {"cold": False}),
}


@pytest.mark.parametrize("inside", INSIDES)
@pytest.mark.parametrize(
    "function", [verify.verify, protocol.Protocol._finish, vars(Measurement)["key"].fget]
)
def test_nor_may_they_be_changed_inside(function: Any, inside: str) -> None:
    settings, own = Settings(DEVICE), Own()
    name, value = INSIDES[inside]
    before = getattr(function, name)
    with settings.of(own):
        setattr(function, name, value)
    assert getattr(function, name) == before
    assert own.tampered == f"functions or constants are replaced: {function.__qualname__}"


def test_nor_the_dictionary_of_a_functions_defaults() -> None:
    settings, own = Settings(DEVICE), Own()
    function: Any = Gemm.__init__
    before = dict(function.__kwdefaults__)
    with settings.of(own):
        function.__kwdefaults__[next(iter(before))] = DEVICE
    assert function.__kwdefaults__ == before
    assert own.tampered == f"functions or constants are replaced: {function.__qualname__}"


def test_the_sweeps_settings_must_not_be_changed() -> None:
    config = SweepConfig()
    settings, own, rounds = Settings(DEVICE, config), Own(), config.timing.min_rounds
    with settings.of(own):
        object.__setattr__(config.timing, "min_rounds", 0)
        object.__setattr__(config, "cache", "warm")
    assert own.tampered == "settings of the sweep are changed"
    assert (config.timing.min_rounds, config.cache) == (rounds, "cold")


def test_a_new_name_must_not_hide_a_function() -> None:
    settings, own = Settings(DEVICE), Own()
    with settings.of(own):
        vars(protocol).update(len=lambda some: 7, nobody_knows=7)
    assert own.tampered == "functions or constants are replaced: rooflab.measure.protocol.len"
    assert "len" not in vars(protocol)
    del vars(protocol)["nobody_knows"]


def _class_of_a_module() -> None:
    np.__class__ = type("Evil", (types.ModuleType,), {"asarray": property(lambda self: None)})


def _bases_of_a_class() -> None:
    evil = type("Evil", Gemm.__bases__, {"tolerance_of": lambda self, operand: 1e9})
    Gemm.__bases__ = (evil,)


def cell() -> Any:
    return (Settings.of.__closure__ or ())[0]


def _closure() -> None:
    cell().cell_contents = None


def _table() -> None:
    encoding.CODECS["bf16"] = encoding.CODECS["fp8_e4m3"]


def _entry() -> None:
    encoding.CODECS["fp32"] = encoding.CODECS["bf16"]


def _record() -> None:
    output = dataclasses.replace(PRECISIONS["fp32"].output, epsilon=1e9)
    object.__setattr__(PRECISIONS["fp32"], "output", output)


def _module() -> None:
    sys.modules["numpy"] = types.ModuleType("numpy")


def _hidden() -> None:
    statistics.sorted = lambda values: []  # type: ignore[attr-defined]


def _truth() -> None:
    verify.Accuracy.__bool__ = lambda self: False  # type: ignore[attr-defined]


def named() -> dict[str, Any]:
    return buffers.rotate.__kwdefaults__ or {}


def _default() -> None:
    del named()["memory"]
    named()["other"] = None


@pytest.mark.parametrize(
    ("change", "state", "told"),
    [
        (_class_of_a_module, lambda: (type(np), np.asarray), "numpy.__class__"),
        (_bases_of_a_class, lambda: Gemm.__mro__, "Gemm.__bases__"),
        (_closure, lambda: cell().cell_contents, "Settings.of"),
        (_table, lambda: dict(encoding.CODECS), "rooflab.model.encoding.CODECS"),
        (_entry, lambda: "fp32" in encoding.CODECS, "rooflab.model.encoding.CODECS['fp32']"),
        (_record, lambda: PRECISIONS["fp32"].output, "Precision fp32"),
        (_module, lambda: sys.modules["numpy"], "sys.modules['numpy']"),
        (_hidden, lambda: hasattr(statistics, "sorted"), "statistics.sorted"),
        (_truth, lambda: hasattr(verify.Accuracy, "__bool__"), "Accuracy.__bool__"),
        (_default, lambda: dict(named()), "rotate"),
    ],
)
def test_ways_around_a_functions_name(
    change: Callable[[], None], state: Callable[[], Any], told: str
) -> None:
    settings, own, before = Settings(DEVICE), Own(), state()
    with settings.of(own):
        change()
    assert own.tampered == f"functions or constants are replaced: {told}"
    assert state() == before
    assert not own.stays


def test_what_undoes_itself_at_the_first_look_was_there() -> None:
    settings, own = Settings(DEVICE), Own()
    real = Settings._discover

    def discover(self: Settings) -> None:
        Settings._discover = real  # type: ignore[method-assign]

    with settings.of(own):
        Settings._discover = discover  # type: ignore[method-assign]
    assert own.tampered == "functions or constants are replaced for a while: Settings"


def test_an_attribute_may_not_hide_a_method_of_the_device() -> None:
    device = Device()
    settings, own = Settings(device), Own()
    with settings.of(own):
        device.time = None  # type: ignore[method-assign,assignment]
    assert own.tampered == "methods of the device (time)"
    assert "time" not in vars(device)


def test_who_looks_at_annotations_changes_nothing() -> None:
    settings, own = Settings(DEVICE), Own()
    with settings.of(own):
        for one in vars(verify).values():
            getattr(one, "__annotations__", None)
    assert own.text == ""


@pytest.mark.parametrize(
    "change", [lambda: setattr(sys, "path", None), lambda: delattr(np, "__name__")]
)
def test_what_cannot_be_read_is_restored_too(change: Callable[[], None]) -> None:
    path, name = sys.path, np.__name__
    settings, own = Settings(DEVICE), Own()
    with settings.of(own):
        change()
        os.environ["ROOFLAB_A"] = "1"
    assert own.text
    assert sys.path is path
    np.__name__ = name
    assert "ROOFLAB_A" not in os.environ


def test_the_environment_is_the_same_object() -> None:
    real, own = os.environ, Own()
    with Settings(DEVICE).of(own):
        os.environ = dict(os.environ)  # type: ignore[assignment]  # noqa: B003
    assert own.text == "the environment (os.environ)"
    assert os.environ is real


def test_methods_of_cupys_classes_are_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaced, or hidden by a new one of a class whose base has it."""

    class Base:
        def any(self) -> bool:
            return True

    class Event:
        def record(self) -> str:
            return "now"

    class Array(Base):
        pass

    made: Any = types.ModuleType("cupy")
    made.cuda = types.ModuleType("cupy.cuda")
    made.ndarray, made.cuda.Event, made.list = Array, Event, list
    Event.__module__ = Array.__module__ = "cupy.core"
    monkeypatch.setitem(sys.modules, "cupy", made)
    monkeypatch.setitem(sys.modules, "cupy.cuda", made.cuda)
    settings = Settings(DEVICE)
    for owner, name in ((Event, "record"), (Array, "any")):
        own = Own()
        with settings.of(own):
            setattr(owner, name, lambda self: "later")
            Event.own = Array.own = 1  # type: ignore[attr-defined]
        assert own.tampered.endswith(f"{owner.__qualname__}.{name}")
    assert Event().record() == "now"
    assert Array().any() is True


def test_many_replaced_functions_are_four_names() -> None:
    settings = Settings(DEVICE)
    own = Own()
    with settings.of(own):
        for key in ("sin", "cos", "tan", "exp", "log"):
            setattr(np, key, None)
    expected = "functions or constants are replaced: numpy.cos, numpy.exp, numpy.log, numpy.sin, …"
    assert own.tampered == expected


@pytest.mark.parametrize(
    "hook",
    [
        lambda: sys.setprofile(watch),
        lambda: sys.settrace(watch),
        lambda: threading.setprofile(watch),
        lambda: threading.settrace(watch),
        lambda: gc.callbacks.append(watch),
        lambda: signal.setitimer(signal.ITIMER_REAL, 1000),
        lambda: signal.setitimer(signal.ITIMER_PROF, 1000),
        lambda: signal.setitimer(signal.ITIMER_VIRTUAL, 1000),
    ],
)
def test_hooks_are_found_and_removed(hook: Callable[[], object]) -> None:
    settings = known()
    kept = sys.getprofile(), sys.gettrace(), threading.getprofile(), threading.gettrace()
    own, callbacks = Own(), list(gc.callbacks)
    with settings.of(own):
        hook()
    assert own.tampered == "profilers, tracers or timers are set"
    assert (
        *(sys.getprofile(), sys.gettrace()),
        *(threading.getprofile(), threading.gettrace()),
    ) == kept
    assert gc.callbacks == callbacks
    timers = (signal.ITIMER_REAL, signal.ITIMER_PROF, signal.ITIMER_VIRTUAL)
    assert [signal.getitimer(timer)[0] for timer in timers] == [0, 0, 0]


def test_subnormal_numbers_that_are_flushed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As libraries that are built with -ffast-math do when they are loaded."""
    settings = Settings(DEVICE)
    setting = settings._settings["subnormal numbers"]
    assert setting.read() is True
    assert setting.told(True, False) == "are zero"


# PyTorch, which may be imported by the kernel that changes it ------------------------------------


def torch() -> Any:
    """As much of it as has settings."""
    module: Any = types.ModuleType("torch")
    switches = {"allow_tf32": False, "benchmark": False}
    matmul = types.SimpleNamespace(
        allow_tf32=False,
        allow_fp16_reduced_precision_reduction=True,
        allow_bf16_reduced_precision_reduction=True,
    )
    module.backends = types.SimpleNamespace(
        cuda=types.SimpleNamespace(matmul=matmul),
        cudnn=types.SimpleNamespace(**switches | {"allow_tf32": True}),
    )
    module.float32, module.float16 = "float32", "float16"
    state = {"precision": "highest", "grad": True, "dtype": "float32", "threads": 2}
    for read, write, key in (
        ("get_float32_matmul_precision", "set_float32_matmul_precision", "precision"),
        ("is_grad_enabled", "set_grad_enabled", "grad"),
        ("get_default_dtype", "set_default_dtype", "dtype"),
        ("get_num_threads", "set_num_threads", "threads"),
    ):
        setattr(module, read, lambda key=key: state[key])
        setattr(module, write, lambda value, key=key: state.update({key: value}))
    return module


def test_a_package_that_the_kernel_imports_has_its_defaults_restored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = Settings(DEVICE)
    made, own = torch(), Own()
    with settings.of(own):
        monkeypatch.setitem(sys.modules, "torch", made)
        made.backends.cuda.matmul.allow_tf32 = True
        made.set_default_dtype("float16")
        made.set_num_threads(1)  # its default is not known: what it is now is as it was
    assert own.text == (
        "torch.backends.cuda.matmul.allow_tf32 from False to True; "
        "torch.set_default_dtype from float32 to float16"
    )
    assert made.backends.cuda.matmul.allow_tf32 is False
    assert made.get_default_dtype() == "float32"
    with settings.of(own):
        assert made.backends.cuda.matmul.allow_tf32 is True
        assert made.get_default_dtype() == "float16"
        made.set_num_threads(4)
    assert made.get_num_threads() == 1
    with settings.of(Own()):
        assert made.backends.cuda.matmul.allow_tf32 is False
    assert "torch.set_num_threads from 1 to 4" in own.text


def newer_torch() -> Any:
    """PyTorch 2.9: precision is set at several places, which older ones must not contradict.

    Seen on 2.9.1: the older functions set the newer values, and raise if those differ.
    """
    module = torch()
    backends = module.backends
    state = {"older": "highest"}

    class Matmul:
        fp32_precision = "none"

        @property
        def allow_tf32(self) -> bool:
            return read() != "highest"

    def read() -> str:
        if (backends.cuda.matmul.fp32_precision == "tf32") != (state["older"] != "highest"):
            raise RuntimeError("PyTorch is checking: a mix of the legacy and new APIs")
        return state["older"]

    def write(value: str) -> None:
        if value not in ("highest", "high"):
            raise ValueError(value)
        state["older"] = value
        backends.cuda.matmul.fp32_precision = "ieee" if value == "highest" else "tf32"

    backends.fp32_precision = "none"
    backends.cuda.matmul = Matmul()
    backends.cudnn.conv = types.SimpleNamespace(fp32_precision="tf32")
    module.get_float32_matmul_precision, module.set_float32_matmul_precision = read, write
    return module


@pytest.mark.parametrize("newer", [True, False])
def test_tf32_is_found_and_undone_by_both_settings_of_torch(
    monkeypatch: pytest.MonkeyPatch, newer: bool
) -> None:
    settings = Settings(DEVICE)
    made, own = newer_torch(), Own()
    matmul = made.backends.cuda.matmul
    with settings.of(own):
        monkeypatch.setitem(sys.modules, "torch", made)
        if newer:
            matmul.fp32_precision = "tf32"
        else:
            made.set_float32_matmul_precision("high")
    assert "torch.backends.cuda.matmul.fp32_precision from ieee to tf32" in own.text
    assert not own.stays
    assert made.get_float32_matmul_precision() == "highest"
    assert matmul.fp32_precision in ("none", "ieee")
    with settings.of(own):
        assert matmul.fp32_precision == "tf32"
    with settings.of(other := Own()):
        assert made.get_float32_matmul_precision() == "highest"
        made.backends.cudnn.conv.fp32_precision = "ieee"
    assert other.text == "torch.backends.cudnn.conv.fp32_precision from tf32 to ieee"
    assert made.backends.cudnn.conv.fp32_precision == "tf32"


def test_what_torch_can_only_read_is_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    made = torch()
    del made.set_num_threads, made.get_default_dtype
    monkeypatch.setitem(sys.modules, "torch", made)
    names = Settings(DEVICE)._settings.keys()
    assert "torch.set_grad_enabled" in names
    assert not {"torch.set_num_threads", "torch.set_default_dtype"} & names


def test_a_torch_that_is_something_else_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(DEVICE)
    monkeypatch.setitem(sys.modules, "torch", types.ModuleType("torch"))
    own = Own()
    with settings.of(own):
        pass
    assert own.text == ""
