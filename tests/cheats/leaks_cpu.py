"""Right sums that change a setting of the process, and a witness that notices it.

Settings are changed when a kernel is prepared, but for ``errors_in_launch``.
"""

from __future__ import annotations

import ctypes
import decimal
import gc
import io
import logging
import os
import random
import resource
import signal
import sys
import warnings
from typing import Any

import numpy as np
import threadpoolctl

import rooflab

LIBM: Any = ctypes.CDLL("libm.so.6") if sys.platform == "linux" else None
UPWARD = 0x800
"""FE_UPWARD of x86-64."""


def launches_of(operands):
    """The honest launch."""
    return lambda: np.add(operands.a, operands.b, out=operands.c)


# The witness -------------------------------------------------------------------------------------


def threads():
    """The number of threads of each library of linear algebra."""
    return {one["filepath"]: one["num_threads"] for one in threadpoolctl.threadpool_info()}


def umask():
    """It can only be read by setting it."""
    mask = os.umask(0o77)
    os.umask(mask)
    return mask


SETTINGS = {
    "numpy.seterr": lambda: np.geterr(),
    "numpy.setbufsize": lambda: np.getbufsize(),
    "numpy.set_printoptions": lambda: np.get_printoptions()["precision"],
    "warnings": lambda: list(warnings.filters),
    "folder": os.getcwd,
    "environment": lambda: dict(os.environ),
    "umask": umask,
    "recursion limit": sys.getrecursionlimit,
    "garbage collection": gc.isenabled,
    "signal": lambda: signal.getsignal(signal.SIGTERM),
    "stdout": lambda: id(sys.stdout),
    "logging": lambda: logging.root.manager.disable,
    "affinity": lambda: sorted(os.sched_getaffinity(0)) if LIBM else None,
    "rounding": lambda: LIBM.fegetround() if LIBM else None,
    "random": lambda: random.getstate(),
    "profile": sys.getprofile,
    "trace": sys.gettrace,
    "decimal": lambda: decimal.getcontext().prec,
    "path": lambda: list(sys.path),
}
"""How to read each setting, by a word that a row must say of it.

Not the interval in which threads take turns: rooflab changes it itself while it looks for launches
that return early.
"""

BEFORE = {name: read() for name, read in SETTINGS.items()}
BEFORE_THREADS = threads()


def witness(name, libraries=False):
    """A kernel that raises if a setting is not what it was."""

    def prepare(operands, stream):
        add = launches_of(operands)

        def launch():
            changed = [one for one, read in SETTINGS.items() if read() != BEFORE[one]]
            now = threads() if libraries else BEFORE_THREADS
            if any(now[library] != count for library, count in BEFORE_THREADS.items()):
                changed.append("threads")
            if changed:
                raise AssertionError(f"changed: {', '.join(changed)}")
            add()

        return launch

    prepare.__doc__ = "Raises if a setting is not what it was"
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


witness("before")


# Leaks -------------------------------------------------------------------------------------------


def leak(name, title, change):
    """An honest kernel that calls ``change`` when it is prepared."""

    def prepare(operands, stream):
        change()
        return launches_of(operands)

    prepare.__doc__ = title
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


ALLOWED = BEFORE["affinity"] or [0]
NOWHERE = io.StringIO()

leak("errors", "numpy.seterr", lambda: np.seterr(all="raise"))
leak("buffers", "numpy.setbufsize", lambda: np.setbufsize(4096))
leak("digits", "numpy.set_printoptions", lambda: np.set_printoptions(precision=3))
leak("warnings_off", "warnings.simplefilter", lambda: warnings.simplefilter("ignore"))
leak("warnings_raise", "Warnings are errors", lambda: warnings.simplefilter("error"))
leak("folder", "os.chdir", lambda: os.chdir("/"))
leak("variable", "A variable of the environment", lambda: os.environ.update(OMP_NUM_THREADS="1"))
leak("mask", "os.umask", lambda: os.umask(0))
leak("depth", "sys.setrecursionlimit", lambda: sys.setrecursionlimit(5000))
leak("interval", "sys.setswitchinterval", lambda: sys.setswitchinterval(0.1))
leak("collector", "gc.disable", gc.disable)
leak("signals", "Ignores SIGTERM", lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN))
leak("printing", "Prints to nowhere", lambda: setattr(sys, "stdout", NOWHERE))
leak("logs", "logging.disable", lambda: logging.disable(logging.CRITICAL))
leak("one_cpu", "os.sched_setaffinity", lambda: os.sched_setaffinity(0, {min(ALLOWED)}))
leak("rounding", "fesetround", lambda: LIBM.fesetround(UPWARD))
leak("numbers", "random.seed", lambda: random.seed(1))
leak("profiler", "sys.setprofile", lambda: sys.setprofile(lambda *_: None))
leak("decimals", "decimal.getcontext", lambda: setattr(decimal.getcontext(), "prec", 5))
leak("places", "sys.path", lambda: sys.path.insert(0, "/nowhere"))


@rooflab.kernel(workload="add", device="cpu")
def blas_threads(operands, stream):
    """threadpool_limits(7)"""
    threadpoolctl.threadpool_limits(7)
    return launches_of(operands)


@rooflab.kernel(workload="add", device="cpu")
def numba_thread(operands, stream):
    """numba.set_num_threads with another number"""
    import numba

    config: Any = numba.config
    numba.set_num_threads(1 if numba.get_num_threads() > 1 else config.NUMBA_NUM_THREADS)
    return launches_of(operands)


@rooflab.kernel(workload="add", device="cpu")
def errors_in_launch(operands, stream):
    """numpy.seterr in each launch"""
    add = launches_of(operands)

    def launch():
        np.seterr(all="raise")
        add()

    return launch


witness("after", libraries=True)


@rooflab.kernel(workload="add", device="cpu")
def timer(operands, stream):
    """A signal would end the process in the time of another kernel"""
    signal.setitimer(signal.ITIMER_PROF, 0.4)
    return launches_of(operands)


@rooflab.kernel(workload="add", device="cpu")
def files(operands, stream):
    """Nobody could open a file"""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, most))
    return launches_of(operands)
