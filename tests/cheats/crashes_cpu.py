"""Sums that end the process, or raise after a while."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from itertools import count

import numpy as np

import rooflab


def launches_of(operands):
    """The honest launch."""
    return lambda: np.add(operands.a, operands.b, out=operands.c)


@rooflab.kernel(workload="add", device="cpu")
def honest(operands, stream):
    """numpy.add"""
    return launches_of(operands)


def after(name, title, end, launches=0):
    """A kernel that calls ``end`` after so many launches."""

    def prepare(operands, stream):
        add, number = launches_of(operands), count()

        def launch():
            if next(number) >= launches:
                end()
            add()

        return launch

    prepare.__doc__ = title
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


def fail(error):
    raise error


after("exits", "Calls sys.exit", lambda: sys.exit(0))
after("exits_later", "Calls sys.exit in a later launch", lambda: sys.exit(0), 60)
after("leaves", "Ends the process with code 0", lambda: os._exit(0))
after("kills", "Kills the process", lambda: os.kill(os.getpid(), signal.SIGKILL), 60)
after("aborts", "Aborts", os.abort)
after("null", "Reads address 0", lambda: ctypes.string_at(0))
after("interrupts", "Raises what Ctrl-C raises", lambda: fail(KeyboardInterrupt()))
after("raises", "Raises", lambda: fail(ValueError("no such tile\nsecond line")))
after("raises_later", "Raises in a later launch", lambda: fail(IndexError("out of tiles")), 60)
after("stops", "Raises StopIteration, which ends loops", lambda: fail(StopIteration()), 60)
after("recurses", "Calls itself without end", lambda: recurse())


def recurse():
    recurse()
