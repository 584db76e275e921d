"""Right sums that change a setting of CuPy or of the device, and a witness that notices it."""

from __future__ import annotations

import ctypes

import cupy
import numpy as np

import rooflab

runtime = cupy.cuda.runtime
STACK, PERSISTING = 0, 6
"""cudaLimitStackSize and cudaLimitPersistingL2CacheSize."""


def launches_of(operands):
    """The honest launch."""
    return lambda: cupy.add(operands.a, operands.b, out=operands.c)


class Window(ctypes.Structure):
    """CUlaunchAttributeValue with a CUaccessPolicyWindow in it."""

    _fields_ = (
        ("start", ctypes.c_void_p),
        ("bytes", ctypes.c_size_t),
        ("ratio", ctypes.c_float),
        ("hit", ctypes.c_int),
        ("miss", ctypes.c_int),
        ("rest", ctypes.c_char * 36),
    )


WINDOW, PERSIST, STREAMING = 1, 2, 1
"""CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, and two of CUaccessProperty."""


def keep_lines(operands, stream):
    """Lines of A stay in L2, whatever is read meanwhile."""
    runtime.deviceSetLimit(PERSISTING, 2**23)
    window = Window(operands.a.data.ptr, min(operands.a.nbytes, 2**22), 1.0, PERSIST, STREAMING)
    driver = ctypes.CDLL("libcuda.so.1")
    driver.cuStreamSetAttribute(ctypes.c_void_p(stream.ptr), WINDOW, ctypes.byref(window))


SETTINGS = {
    "allocator": lambda: repr(cupy.cuda.get_allocator()),
    "pool": lambda: cupy.get_default_memory_pool().get_limit(),
    "stack": lambda: runtime.deviceGetLimit(STACK),
    "L2": lambda: runtime.deviceGetLimit(PERSISTING),
    "current stream": lambda: cupy.cuda.get_current_stream().ptr,
    "numpy.seterr": lambda: np.geterr(),
}
BEFORE = {}
"""The device is not there yet when this file is loaded."""


def witness(name):
    """A kernel that raises if a setting is not what it was."""

    def prepare(operands, stream):
        add = launches_of(operands)
        BEFORE.setdefault("settings", {one: read() for one, read in SETTINGS.items()})

        def launch():
            before = BEFORE["settings"]
            changed = [one for one, read in SETTINGS.items() if read() != before[one]]
            if changed:
                raise AssertionError(f"changed: {', '.join(changed)}")
            add()

        return launch

    prepare.__doc__ = "Raises if a setting is not what it was"
    rooflab.kernel(workload="add", name=name)(prepare)


witness("before")


def leak(name, title, change):
    """An honest kernel that calls ``change`` when it is prepared."""

    def prepare(operands, stream):
        change()
        return launches_of(operands)

    prepare.__doc__ = title
    rooflab.kernel(workload="add", name=name)(prepare)


def pool_limit():
    cupy.get_default_memory_pool().set_limit(size=2**36)


def most_of_the_memory():
    free, _ = runtime.memGetInfo()
    KEPT.append(cupy.cuda.Memory(free // 4 * 3))


KEPT = []


def other_stream():
    OTHERS.append(cupy.cuda.Stream(non_blocking=True))
    OTHERS[-1].use()


OTHERS = []

leak("own_allocator", "No memory pool", lambda: cupy.cuda.set_allocator(None))
leak("small_pool", "A limit of CuPy's memory pool", pool_limit)
leak("large_stack", "cudaLimitStackSize", lambda: runtime.deviceSetLimit(STACK, 16384))
leak("keeps_memory", "Three quarters of the memory", most_of_the_memory)
leak("errors", "numpy.seterr", lambda: np.seterr(all="raise"))
leak("uses_a_stream", "Makes another stream the current one, which does not last", other_stream)


@rooflab.kernel(workload="add")
def keeps_lines(operands, stream):
    """Persisting lines in L2, which neither rotating nor flushing evicts"""
    keep_lines(operands, stream)
    return launches_of(operands)


witness("after")
