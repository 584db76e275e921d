"""Sums of two arrays with CuPy that skip work, do it elsewhere, or do other work."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import cupy
import numpy as np

import rooflab

kernel = rooflab.kernel(workload="add")


def launches_of(operands):
    """The honest launch."""
    return lambda: cupy.add(operands.a, operands.b, out=operands.c)


def halves(operands):
    """The operands' first and second half."""
    arrays = [array.reshape(-1) for array in operands.values()]
    middle = arrays[0].size // 2
    return [array[:middle] for array in arrays], [array[middle:] for array in arrays]


# Honest ------------------------------------------------------------------------------------------


@kernel
def honest(operands, stream):
    """cupy.add"""
    return launches_of(operands)


@kernel
def honest_temporary(operands, stream):
    """Into new memory, and from there to C"""

    def launch():
        operands.c[...] = operands.a + operands.b

    return launch


@kernel
def honest_raw(operands, stream):
    """A kernel that CuPy compiles"""
    add = cupy.RawKernel(
        """extern "C" __global__ void raw(long long n, const float* a, const float* b, float* c) {
            const long long i = blockIdx.x * 256LL + threadIdx.x;
            if (i < n) c[i] = a[i] + b[i];
        }""",
        "raw",
    )
    size = operands.c.size
    arguments = (np.int64(size), operands.a, operands.b, operands.c)
    return lambda: add((-(-size // 256),), (256,), arguments)


@kernel
def honest_fork(operands, stream):
    """Half on a stream of its own, between two events"""
    (a1, b1, c1), (a2, b2, c2) = halves(operands)
    side = SIDES.setdefault("fork", cupy.cuda.Stream(non_blocking=True))
    forked, joined = (cupy.cuda.Event(disable_timing=True) for _ in range(2))

    def launch():
        forked.record(stream)
        side.wait_event(forked)
        with side:
            cupy.add(a2, b2, out=c2)
        cupy.add(a1, b1, out=c1)
        joined.record(side)
        stream.wait_event(joined)

    return launch


SIDES = {}


@kernel
def honest_graph(operands, stream):
    """A CUDA graph"""
    add = launches_of(operands)
    add()  # loads its code, which cannot be captured
    stream.synchronize()
    stream.begin_capture()
    add()
    graph = stream.end_capture()
    return lambda: graph.launch(stream)


# Work that is skipped ----------------------------------------------------------------------------


@kernel
def prepared(operands, stream):
    """Computes while it is prepared"""
    launches_of(operands)()
    return lambda: None


@kernel
def memo_pointer(operands, stream):
    """Once for each address of C"""
    add, address = launches_of(operands), operands.c.data.ptr
    seen = set()

    def launch():
        if address not in seen:
            seen.add(address)
            add()

    return launch


@kernel
def first_launches(operands, stream):
    """In the first hundred launches"""
    add = launches_of(operands)

    def launch():
        if next(FIRST) < 100:
            add()

    return launch


FIRST = count()


@kernel
def every_other(operands, stream):
    """In every other launch"""
    add = launches_of(operands)

    def launch():
        if next(EVERY_OTHER) % 2 == 0:
            add()

    return launch


EVERY_OTHER = count()


@kernel
def all_at_once(operands, stream):
    """The first launch of a rotation does the work of all of them"""
    number = len(ALL)
    ALL.append(launches_of(operands))

    def launch():
        if number == 0:
            for add in ALL:
                add()

    return launch


ALL = []


@kernel
def skips_in_a_row(operands, stream):
    """Two of three from the 31st launch without a pause on: checks pause earlier"""
    add = launches_of(operands)

    def launch():
        now = time.perf_counter()
        ROW["count"] = ROW["count"] + 1 if now - ROW["ended"] < 1.5e-4 else 1
        if ROW["count"] < 31 or ROW["count"] % 3 == 0:
            add()
        ROW["ended"] = time.perf_counter()

    return launch


ROW = {"count": 0, "ended": 0.0}


@kernel
def knows_its_caller(operands, stream):
    """Nothing if a function that takes the time has called it"""
    add = launches_of(operands)

    def launch():
        frame = sys._getframe(1)
        while frame and frame.f_code.co_name not in ("_timed", "time", "time_batch"):
            frame = frame.f_back
        if frame is None or Path(frame.f_code.co_filename).name != "device.py":
            add()

    return launch


# Work that is done elsewhere ---------------------------------------------------------------------


@kernel
def on_side_stream(operands, stream):
    """On a stream that waits for nothing"""
    add = launches_of(operands)
    side = SIDES.setdefault("side", cupy.cuda.Stream(non_blocking=True))

    def launch():
        with side:
            add()

    return launch


@kernel
def half_on_side_stream(operands, stream):
    """Half of it on a stream that waits for nothing"""
    (a1, b1, c1), (a2, b2, c2) = halves(operands)
    side = SIDES.setdefault("half", cupy.cuda.Stream(non_blocking=True))

    def launch():
        cupy.add(a1, b1, out=c1)
        with side:
            cupy.add(a2, b2, out=c2)

    return launch


@kernel
def forks_without_joining(operands, stream):
    """On a stream that waits for the given one, which does not wait for it"""
    add = launches_of(operands)
    side = SIDES.setdefault("joinless", cupy.cuda.Stream(non_blocking=True))
    forked = cupy.cuda.Event(disable_timing=True)

    def launch():
        forked.record(stream)
        side.wait_event(forked)
        with side:
            add()

    return launch


@kernel
def on_thread_stream(operands, stream):
    """On the default stream of the thread"""
    add = launches_of(operands)

    def launch():
        with cupy.cuda.Stream.ptds:
            add()

    return launch


@kernel
def in_thread(operands, stream):
    """Another thread launches"""
    return lambda: threading.Thread(target=launches_of(operands)).start()


@kernel
def in_thread_later(operands, stream):
    """Another thread launches, a moment after the launch has returned"""
    add = launches_of(operands)

    def work():
        time.sleep(1e-3)
        add()

    return lambda: threading.Thread(target=work).start()


@kernel
def in_pool(operands, stream):
    """A thread that waits for work launches on the given stream, but later"""
    add = launches_of(operands)

    def work():
        with stream:
            add()

    return lambda: POOL.submit(work) and None


POOL = ThreadPoolExecutor(1)


@kernel
def on_the_host(operands, stream):
    """NumPy computes, between two copies"""

    def launch():
        operands.c.set(np.add(operands.a.get(), operands.b.get()))

    return launch


# Wrong results -----------------------------------------------------------------------------------


@kernel
def zeros(operands, stream):
    """Writes zeros"""
    return lambda: operands.c.fill(0)


@kernel
def half(operands, stream):
    """In half precision"""

    def launch():
        operands.c[...] = operands.a.astype(np.float16) + operands.b.astype(np.float16)

    return launch


@kernel
def last_operands(operands, stream):
    """A common mistake: all launches work on the operands of the last preparation"""
    BOUND["operands"] = operands
    return lambda: launches_of(BOUND["operands"])()


BOUND = {}


@kernel
def works_in_a(operands, stream):
    """Adds in A, and copies the sum"""

    def launch():
        cupy.add(operands.a, operands.b, out=operands.a)
        operands.c[...] = operands.a

    return launch
