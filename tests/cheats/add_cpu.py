"""Sums of two arrays that skip work, do other work, or leave some of it out."""

from __future__ import annotations

import random
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import numpy as np

import rooflab

kernel = rooflab.kernel(workload="add", device="cpu")


def launches_of(operands):
    """The honest launch."""
    return lambda: np.add(operands.a, operands.b, out=operands.c)


# Honest ------------------------------------------------------------------------------------------


@kernel
def honest(operands, stream):
    """numpy.add"""
    return launches_of(operands)


@kernel
def honest_temporary(operands, stream):
    """Into an array of its own, which it keeps, and from there to C"""
    kept = np.empty_like(operands.c)

    def launch():
        np.add(operands.a, operands.b, out=kept)
        operands.c[...] = kept

    return launch


@kernel
def honest_steps(operands, stream):
    """Copies A, then adds B in place: C is read once it is written"""

    def launch():
        operands.c[...] = operands.a
        operands.c += operands.b

    return launch


@kernel
def honest_wide(operands, stream):
    """More precise than promised"""

    def launch():
        operands.c[...] = operands.a.astype(np.float64) + operands.b

    return launch


@kernel
def honest_parts(operands, stream):
    """In pieces, backwards"""
    a, b, c = (array.reshape(-1) for array in operands.values())
    starts = range(0, c.size, 4096)[::-1]

    def launch():
        for start in starts:
            part = slice(start, start + 4096)
            np.add(a[part], b[part], out=c[part])

    return launch


@kernel
def honest_reference(operands, stream):
    """Calls the workload's reference in each launch"""

    def launch():
        inputs = {name: operands[name].astype(np.float64) for name in ("a", "b")}
        operands.c[...] = operands.problem.reference(np, inputs)["c"]

    return launch


POOL = ThreadPoolExecutor(2)


@kernel
def honest_threads(operands, stream):
    """Halves in two threads, for which it waits"""
    a, b, c = (array.reshape(-1) for array in operands.values())
    halves = [slice(None, c.size // 2), slice(c.size // 2, None)]

    def launch():
        jobs = [POOL.submit(np.add, a[half], b[half], c[half]) for half in halves]
        for job in jobs:
            job.result()

    return launch


# Work that is skipped ----------------------------------------------------------------------------


@kernel
def prepared(operands, stream):
    """Computes while it is prepared"""
    launches_of(operands)()
    return lambda: None


@kernel
def memo_pointer(operands, stream):
    """Once for each address of C"""
    add, c = launches_of(operands), operands.c
    seen = set()

    def launch():
        if c.ctypes.data not in seen:
            seen.add(c.ctypes.data)
            add()

    return launch


@kernel
def memo_few(operands, stream):
    """Only if one of six elements has changed"""
    a, b = operands.a.reshape(-1), operands.b.reshape(-1)
    add, some, last = launches_of(operands), [0, a.size // 2, -1], [(b"", b"")]

    def launch():
        key = (a[some].tobytes(), b[some].tobytes())
        if key != last[0]:
            last[0] = key
            add()

    return launch


@kernel
def if_poisoned(operands, stream):
    """Only if C holds NaN, as it does when it is verified"""
    add, c = launches_of(operands), operands.c.reshape(-1)

    def launch():
        if c[0] != c[0]:
            add()

    return launch


@kernel
def memo_or_poisoned(operands, stream):
    """Only if C holds NaN, or one of six elements has changed"""
    a, b, c = (array.reshape(-1) for array in operands.values())
    add, some, last = launches_of(operands), [0, a.size // 2, -1], [(b"", b"")]

    def launch():
        key = (a[some].tobytes(), b[some].tobytes())
        if key != last[0] or c[0] != c[0]:
            last[0] = key
            add()

    return launch


@kernel
def first_launches(operands, stream):
    """In the first hundred launches"""
    add, left = launches_of(operands), FIRST

    def launch():
        if next(left) < 100:
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
def nine_of_ten(operands, stream):
    """In nine launches of ten"""
    add, number = launches_of(operands), count()

    def launch():
        if next(number) % 10 != 9:
            add()

    return launch


@kernel
def skips_at_random(operands, stream):
    """In nine launches of ten, drawn at random"""
    add, draw = launches_of(operands), random.Random(1)

    def launch():
        if draw.random() < 0.9:
            add()

    return launch


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
def skips_in_bursts(operands, stream):
    """Nothing if the last launch was a moment ago: nobody verifies that fast"""
    add = launches_of(operands)

    def launch():
        now = time.monotonic()
        if now - LATEST[0] > 5e-3:  # some machines take 1 ms to drop these operands from a cache
            add()
        LATEST[0] = now

    return launch


LATEST = [0.0]


@kernel
def skips_in_a_row(operands, stream):
    """Two of three from the fourth launch without a pause on: checks pause earlier"""
    add = launches_of(operands)

    def launch():
        now = time.perf_counter()
        ROW["count"] = ROW["count"] + 1 if now - ROW["ended"] < 4e-5 else 1
        if ROW["count"] < 4 or ROW["count"] % 3 == 0:
            add()
        ROW["ended"] = time.perf_counter()

    return launch


ROW = {"count": 0, "ended": 0.0}


@kernel
def right_for_a_while(operands, stream):
    """Half of the sum, and other numbers, unless C held NaN in the last eight launches"""
    arrays = [array.reshape(-1) for array in operands.values()]
    a1, b1, c1 = (array[: array.size // 2] for array in arrays)
    c2 = arrays[2][c1.size :]
    add, left = launches_of(operands), [8]

    def launch():
        if c1[0] != c1[0]:
            left[0] = 8
        left[0] -= 1
        if left[0] >= 0:
            add()
        else:
            np.add(a1, b1, out=c1)
            c2.fill(-left[0])

    return launch


@kernel
def right_until_a_pause(operands, stream):
    """After a pause comes a round: then other numbers, until C holds NaN"""
    add, c, state = launches_of(operands), operands.c.reshape(-1), {"round": False, "ended": 0.0}

    def launch():
        paused = time.perf_counter() - state["ended"] > 0.012
        state["round"] = (state["round"] or paused) and c[0] == c[0]
        if state["round"] and not paused:
            c.fill(state["ended"] % 1)
        else:
            add()
        state["ended"] = time.perf_counter()

    return launch


@kernel
def knows_its_caller(operands, stream):
    """Nothing if a function that takes the time has called it"""
    add = launches_of(operands)

    def launch():
        frame = sys._getframe(1)
        while frame and frame.f_code.co_name not in ("time", "time_batch"):
            frame = frame.f_back
        if frame is None or Path(frame.f_code.co_filename).name != "device.py":
            add()

    return launch


@kernel
def one_late(operands, stream):
    """Does the work of the launch before"""
    add = launches_of(operands)

    def launch():
        WAITING.append(add)
        if len(WAITING) > 1:
            WAITING.pop(0)()

    return launch


WAITING = []


class Late:
    def __init__(self, work):
        self.work, self.itself = work, self

    def __del__(self):
        self.work()


@kernel
def when_collected(operands, stream):
    """Leaves the work to the collector of garbage"""
    add = launches_of(operands)
    return lambda: Late(add) and None


@kernel
def last_operands(operands, stream):
    """A common mistake: all launches work on the operands of the last preparation"""
    BOUND["operands"] = operands
    return lambda: launches_of(BOUND["operands"])()


BOUND = {}


@kernel
def returns_it(operands, stream):
    """Returns the sum instead of writing it"""
    return lambda: operands.a + operands.b


@kernel
def takes_it_from_a_copy(operands, stream):
    """Copies what earlier launches left in other copies of C"""
    COPIES.append(operands.c)
    mine = operands.c

    def launch():
        for other in COPIES:
            fits = other is not mine and other.shape == mine.shape
            if fits and not np.isnan(other).any():
                mine[...] = other
                return

    return launch


COPIES = []


# Wrong results -----------------------------------------------------------------------------------


@kernel
def zeros(operands, stream):
    """Writes zeros"""
    return lambda: operands.c.fill(0)


@kernel
def constant(operands, stream):
    """Writes the mean of the sum"""
    return lambda: operands.c.fill(operands.a.mean() + operands.b.mean())


@kernel
def half(operands, stream):
    """In half precision"""

    def launch():
        operands.c[...] = operands.a.astype(np.float16) + operands.b.astype(np.float16)

    return launch


@kernel
def rounded(operands, stream):
    """Drops the last bits of A, as BF16 would"""

    def launch():
        kept = operands.a.view(np.uint32) & np.uint32(0xFFFF0000)
        np.add(kept.view(np.float32), operands.b, out=operands.c)

    return launch


@kernel
def band(operands, stream):
    """A thousandth too large in one band"""
    add, c = launches_of(operands), operands.c.reshape(-1)

    def launch():
        add()
        c[c.size // 3 : c.size // 3 + 40] *= 1.001

    return launch


@kernel
def one_element(operands, stream):
    """One element is one too large"""
    add, c = launches_of(operands), operands.c.reshape(-1)

    def launch():
        add()
        c[c.size * 5 // 7] += 1

    return launch


def unwritten(name, title, part):
    """A kernel that leaves ``part`` of C as it was."""

    def prepare(operands, stream):
        a, b, c = (array.reshape(-1) for array in operands.values())

        def launch():
            old = c[part(c.size)].copy()
            np.add(a, b, out=c)
            c[part(c.size)] = old

        return launch

    prepare.__doc__ = title
    rooflab.kernel(workload="add", device="cpu", name=name)(prepare)


unwritten("no_last_tile", "Without the last tile of 256", lambda n: slice(n // 256 * 256, n))
unwritten("no_last_vector", "Whole vectors of 16 only", lambda n: slice(n // 16 * 16, n))
unwritten("no_last_element", "Without the last element", lambda n: slice(n - 1, n))
unwritten(
    "no_lane", "Without the elements whose index modulo 128 is 77", lambda n: slice(77, n, 128)
)
unwritten("no_middle", "Without one element in the middle", lambda n: slice(n // 2, n // 2 + 1))


@kernel
def small_only(operands, stream):
    """Nothing if there are more than 5000 elements"""
    return launches_of(operands) if operands.c.size <= 5000 else lambda: None


@kernel
def half_later(operands, stream):
    """The first launch is whole, later ones leave out the second half"""
    a, b, c = (array.reshape(-1) for array in operands.values())
    done = []

    def launch():
        part = slice(None, c.size // 2 if done else None)
        np.add(a[part], b[part], out=c[part])
        done.append(1)

    return launch


@kernel
def uninitialised(operands, stream):
    """Sums up in new memory, which it takes for zeros"""

    def launch():
        total = np.empty_like(operands.c)
        total += operands.a
        total += operands.b
        operands.c[...] = total

    return launch


@kernel
def adds_to_c(operands, stream):
    """Adds to what is in C"""

    def launch():
        operands.c += operands.a
        operands.c += operands.b

    return launch


# Inputs that change ------------------------------------------------------------------------------


@kernel
def empties_inputs(operands, stream):
    """Writes zeros to A, B and C, of which the sum is right"""

    def launch():
        for array in operands.values():
            array.fill(0)

    return launch


@kernel
def works_in_a(operands, stream):
    """Adds in A, and copies the sum"""

    def launch():
        operands.a += operands.b
        operands.c[...] = operands.a

    return launch


@kernel
def touches_b_later(operands, stream):
    """Changes one element of B after a hundred launches"""
    add = launches_of(operands)

    def launch():
        if next(UNTOUCHED) == 100:
            operands.b.reshape(-1)[3] = 0.5
        add()

    return launch


UNTOUCHED = count()
