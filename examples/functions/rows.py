"""Two ways to a softmax of rows, against each other: rooflab bench examples/functions/rows.py

On a GPU if CuPy is there and finds one, else on the CPU.
"""

import numpy

import rooflab

try:
    import cupy as xp

    xp.cuda.runtime.getDeviceCount()
except Exception:
    xp = numpy


def numbers():
    return xp.random.uniform(-1, 1, (2048, 2048)).astype("float32")


@rooflab.benchmark(race="softmax", x=numbers)
def softmax(x):
    """Right for numbers of any size."""
    powers = xp.exp(x - x.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@rooflab.benchmark(race="softmax")
def small_only(x):
    """Without the maximum: only for numbers whose exponential is finite."""
    powers = xp.exp(x)
    return powers / powers.sum(axis=1, keepdims=True)
