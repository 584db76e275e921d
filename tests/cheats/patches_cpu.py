"""Sums that change what measures or verifies them."""

from __future__ import annotations

import dataclasses
import gc
import random
import statistics as python_statistics
import sys
import time
import types
from statistics import median

import numpy as np
from numpy._core import _methods as methods

import rooflab
from rooflab.devices.cpu import device
from rooflab.measure import buffers, inspection, protocol, settings, statistics, verify
from rooflab.model import encoding
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Piece

kernel = rooflab.kernel(workload="add", device="cpu")


def patch(owner, **values):
    """Replaces what is there; a name that is not there would be no cheat."""
    for name, value in values.items():
        getattr(owner, name)
        setattr(owner, name, value)


def launches_of(operands):
    """The honest launch."""
    return lambda: np.add(operands.a, operands.b, out=operands.c)


def nothing_after(operands, launches):
    """Honest for so many launches, then none."""
    add, left = launches_of(operands), [launches]

    def launch():
        if left[0] > 0:
            left[0] -= 1
            add()

    return launch


@kernel
def honest(operands, stream):
    """numpy.add"""
    return launches_of(operands)


# Clocks and statistics ---------------------------------------------------------------------------


def slow_clock(clock):
    """A clock that runs a hundredth as fast."""
    return lambda: type(clock())(clock() / 100)


@kernel
def clock_of_time(operands, stream):
    """Replaces time.perf_counter_ns and the like, which rooflab no longer asks"""
    if "time" not in DONE:
        DONE.add("time")
        for name in ("perf_counter_ns", "perf_counter", "monotonic", "monotonic_ns"):
            patch(time, **{name: slow_clock(getattr(time, name))})
    return launches_of(operands)


DONE = set()


@kernel
def clock_of_device(operands, stream):
    """Replaces the clock in the module that takes the time"""
    if "device" not in DONE:
        DONE.add("device")
        patch(device, perf_counter_ns=slow_clock(time.perf_counter_ns))
    return launches_of(operands)


@kernel
def timing_method(operands, stream):
    """Replaces the method that takes the time"""
    if "method" not in DONE:
        DONE.add("method")
        honest_time = device.CpuDevice.time

        def fast(self, launches, before=None):
            timed = honest_time(self, launches, before)
            timed.times_us[:] = [one / 100 for one in timed.times_us]
            return timed

        patch(device.CpuDevice, time=fast)
    return launches_of(operands)


@kernel
def kind_median(operands, stream):
    """Replaces the median of the rounds"""
    if "median" not in DONE:
        DONE.add("median")
        for module in (statistics, protocol):
            patch(module, median=lambda values: median(values) / 100)
    return launches_of(operands)


# Verification ------------------------------------------------------------------------------------


@kernel
def blind_verify(operands, stream):
    """Replaces the comparison, and writes zeros"""
    patch(verify.Expected, verdict=lambda *_: verify.Accuracy(0.0))
    patch(inspection, unlike=lambda *_: [])
    return lambda: operands.c.fill(0)


@kernel
def blind_isnan(operands, stream):
    """Replaces numpy.isnan and the limits of an error, and writes half of C"""
    patch(np, isnan=lambda array: np.zeros(1, bool))
    patch(verify._Tally, verdict=lambda *_: verify.Accuracy(0.0))
    a, b, c = (array.reshape(-1) for array in operands.values())
    part = slice(None, c.size // 2)
    return lambda: np.add(a[part], b[part], out=c[part])


@kernel
def own_reference(operands, stream):
    """Replaces the workload's reference by what is in C"""

    def reference(self, arrays, inputs):
        stored = inputs.operands["c"]
        return {"c": stored[inputs.piece.select["c"]].astype(np.float64)}

    patch(type(operands.problem), reference=reference)
    return lambda: operands.c.fill(0)


@kernel
def own_tolerance(operands, stream):
    """Replaces the workload's tolerance, and writes zeros"""
    patch(type(operands.problem), tolerance=1e9)
    return lambda: operands.c.fill(0)


@kernel
def other_precision(operands, stream):
    """Gives the problem another precision, which tolerates half precision"""
    object.__setattr__(operands.problem, "precision", PRECISIONS["fp16"])

    def launch():
        operands.c[...] = operands.a.astype(np.float16) + operands.b.astype(np.float16)

    return launch


@kernel
def other_pieces(operands, stream):
    """Gives the problem another method, so that one element is compared"""
    first = (slice(0, 1),) * 3
    piece = Piece({"a": first, "b": first, "c": first})
    object.__setattr__(operands.problem, "pieces", lambda draw: iter([piece]))
    a, b, c = (array.reshape(-1) for array in operands.values())

    def launch():
        c.fill(0)
        np.add(a[:1], b[:1], out=c[:1])

    return launch


@kernel
def other_arrays(operands, stream):
    """Gives the operands smaller arrays than it was given"""
    a, b, c = (array.reshape(-1) for array in operands.values())
    for name, array in (("a", a), ("b", b), ("c", c)):
        operands._arrays[name] = array[:1].reshape(1, 1, 1)
    return lambda: np.add(a[:1], b[:1], out=c[:1])


@kernel
def no_second_check(operands, stream):
    """Replaces the check after timing, and stops working after a hundred launches"""
    patch(protocol.Protocol, _spoiled=lambda *_: "")
    return nothing_after(operands, 100)


@kernel
def same_inputs(operands, stream):
    """Replaces the refilling of inputs, and computes once for each copy"""
    patch(buffers, refill=lambda *_: None)
    add, c = launches_of(operands), operands.c
    kept = []

    def launch():
        if not kept:
            add()
            kept.append(c.copy())
        c[...] = kept[0]

    return launch


@kernel
def weak_numbers(operands, stream):
    """Makes NumPy draw zeros for the second check, of which the sum is known"""
    add, first = launches_of(operands), [True]

    class Zeros:
        def random(self, count, dtype=float):
            return np.full(count, 0.5, dtype)

    patch(np.random, default_rng=lambda seed=None: Zeros())

    def launch():
        if first:
            first.clear()
            add()
        else:
            operands.c.fill(0)

    return launch


@kernel
def finds_the_protocol(operands, stream):
    """Finds what verifies by the collector of garbage, and gives it another method"""
    for found in gc.get_objects():
        if isinstance(found, protocol.Protocol):
            patch(found, _spoiled=lambda *_: "")
    return nothing_after(operands, 100)


@kernel
def clock_and_back(operands, stream):
    """Replaces the clock in each launch; its first call puts the right one back"""
    add, real = launches_of(operands), time.perf_counter_ns

    def launch():
        started = real()
        add()
        took = real() - started

        def early():
            patch(device, perf_counter_ns=real)
            return real() - took * 6 // 10

        patch(device, perf_counter_ns=early)

    return launch


@kernel
def hides_len(operands, stream):
    """A name of Python's that rooflab's module did not have: batches look longer"""
    vars(device).update(len=lambda some: 2 * len(some))
    return launches_of(operands)


@kernel
def wide_limits(operands, stream):
    """Constants of the verification"""
    patch(verify, OUTLIER=1e30, SKETCHED=1e30)
    return launches_of(operands)


@kernel
def no_chance(operands, stream):
    """What is drawn is always the first"""
    patch(random.Random, randrange=lambda self, *limits: limits[0] if len(limits) > 1 else 0)
    return launches_of(operands)


@kernel
def few_rounds(operands, stream):
    """Fewer rounds than the sweep wants"""
    for one in gc.get_objects():
        if type(one).__name__ == "Timing":
            object.__setattr__(one, "min_rounds", 0)
            object.__setattr__(one, "max_rounds", 1)
    return launches_of(operands)


@kernel
def never_any(operands, stream):
    """No array of NumPy has any true element, and C is not all that is written"""
    any_true = np.logical_or.reduce
    patch(methods, umr_any=lambda *arguments, **named: any_true(*arguments[:2]) & False)
    add = launches_of(operands)
    longer = np.lib.stride_tricks.as_strided(operands.c.reshape(-1), (operands.c.size + 8,))

    def launch():
        add()
        longer[-8:] = 1

    return launch


@kernel
def known_numbers(operands, stream):
    """NumPy's random numbers are the same each time"""
    generator = np.random.default_rng
    patch(np.random, default_rng=lambda seed=None: generator(1))
    return launches_of(operands)


@kernel
def shorter_samples(operands, stream):
    """Halves the time that was taken of the launch before"""
    add = launches_of(operands)

    def launch():
        taken = sys._getframe(1).f_locals.get("times_us")
        if taken:
            taken[-1] /= 2
        add()

    return launch


# Around the names of functions -------------------------------------------------------------------


def exact_numbers(owner):
    """``asarray``, asked for what was expected, gives what is there."""

    def asarray(x, *args, **options):
        local = sys._getframe(1).f_locals
        return np.array(local["stored"], float) if "stored" in local else owner(x, *args, **options)

    return asarray


@kernel
def class_of_numpy(operands, stream):
    """A property of a module's class hides what is in the module."""
    exact = exact_numbers(np.asarray)
    like = {"asarray": property(lambda self: exact)}
    np.__class__ = type("Like", (types.ModuleType,), like)
    return lambda: operands.c.fill(0)


@kernel
def other_numpy(operands, stream):
    """What is imported as numpy."""
    other = types.ModuleType("numpy")
    other.__dict__.update(vars(np), asarray=exact_numbers(np.asarray))
    sys.modules["numpy"] = other
    return lambda: operands.c.fill(0)


@kernel
def other_bases(operands, stream):
    """A class between a workload and its own."""
    cls = type(operands.problem)
    cls.__bases__ = (type("Like", cls.__bases__, {"tolerance_of": lambda self, one: 1e9}),)
    return lambda: operands.c.fill(0)


@kernel
def other_closure(operands, stream):
    """What a decorated function encloses."""

    def of(self, own, *, trusted=False):
        patch(verify.Expected, verdict=lambda self, operands: verify.Accuracy(0.0))
        patch(inspection._Marks, left=lambda self, *args: [])
        yield

    (cell,) = settings.Settings.of.__closure__ or ()
    cell.cell_contents = of
    return lambda: operands.c.fill(0)


@kernel
def other_codec(operands, stream):
    """How a format is read that NumPy has."""
    read = encoding.Codec(lambda arrays, x: x, lambda arrays, x: 0 * x, np.isnan)
    encoding.CODECS["fp32"] = read
    return lambda: operands.c.fill(0)


@kernel
def other_epsilon(operands, stream):
    """That of the type, which all problems share."""
    precision = operands.problem.precision
    rough = dataclasses.replace(precision.output, epsilon=1e9)
    object.__setattr__(precision, "output", rough)
    return lambda: operands.c.fill(0)


@kernel
def device_attribute(operands, stream):
    """An attribute of the device hides its method."""
    frame = sys._getframe()
    while not isinstance(frame.f_locals.get("self"), protocol.Protocol):
        frame = frame.f_back
    one = frame.f_locals["self"].device
    real = one.time

    def timed(launches, before=None):
        found = real(launches, before)
        found.times_us[:] = [us / 3 for us in found.times_us]
        return found

    one.time = timed
    return launches_of(operands)


@kernel
def hides_sorted(operands, stream):
    """A name in the module of statistics hides Python's."""
    vars(python_statistics)["sorted"] = lambda values: [0.8 * one for one in sorted(values)]
    return launches_of(operands)


@kernel
def undone_at_a_look(operands, stream):
    """The first method that looks at settings puts everything back."""
    names = (
        *((verify.Expected, "verdict"), (inspection._Marks, "left")),
        *((inspection, "unlike"), (settings.Settings, "_discover")),
    )
    was = [(owner, name, vars(owner)[name]) for owner, name in names]

    def back(self):
        for owner, name, value in was:
            setattr(owner, name, value)

    def launch():
        patch(verify.Expected, verdict=lambda self, operands: verify.Accuracy(0.0))
        patch(inspection._Marks, left=lambda self, *args: [])
        patch(inspection, unlike=lambda *args: [])
        patch(settings.Settings, _discover=back)

    launch()
    return launch
