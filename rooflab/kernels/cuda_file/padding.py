"""Copies of operands with padded rows, for kernels whose tensor maps ask for them.

TMA needs rows that are multiples of 16 bytes. Where an operand has others, the copies are part of
each launch, and of its time: whoever has such an operand would pay for them too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from math import prod
from typing import Any, Final

from rooflab.devices.base import Device, Launch, MarkedLaunch
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file import tensor_maps
from rooflab.kernels.cuda_file.header import Map
from rooflab.model.problem import Problem


class Copies(dict[str, Any]):
    """Arrays with padded rows by operand, shared by launches that run one after the other."""


def copies(device: Device, problem: Problem, maps: Iterable[Map]) -> Copies:
    """Arrays for the operands whose rows TMA cannot address: mostly there are none."""
    ranks, made = {one.operand: len(one.box) for one in maps}, Copies()
    for one in problem.operands:
        if one.name in ranks and tensor_maps.uneven(one, ranks[one.name]):
            shape = (*one.shape[:-1], tensor_maps.pitch_bytes(one) // one.type.bytes)
            made[one.name] = device.arrays.empty(shape, one.type.storage)
    return made


def padded_launch(
    launch: Launch, operands: Operands, arrays: Copies, copy: Callable[[Any, Any], None]
) -> MarkedLaunch:
    """``launch``, which uses padded ``arrays``, between the copies into and out of them.

    ``copy(to, source)`` copies the rows of an array, as far as both reach.
    """
    uneven = [one for one in operands.problem.operands if one.name in arrays]
    read = [one.name for one in uneven if one.read]
    written = [one.name for one in uneven if one.written]

    def work() -> None:
        for name in read:
            copy(arrays[name], operands[name])
        launch()
        for name in written:
            copy(operands[name], arrays[name])

    return MarkedLaunch(work, padded=True)


# On a GPU ----------------------------------------------------------------------------------------

THREADS: Final = 128
EACH: Final = 8
"""Elements of a row that a thread copies: with fewer in flight, memory waits."""

_TYPES: Final = {1: "char", 2: "short", 4: "int", 8: "long long"}

_SOURCE: Final = r"""
extern "C" __global__ void copy_rows(Element* to, const Element* from, int to_pitch, int from_pitch,
                                     int columns) {
    const int first = blockIdx.y * EACH * blockDim.x + threadIdx.x;
    to += size_t(blockIdx.x) * to_pitch + first;
    from += size_t(blockIdx.x) * from_pitch + first;
    Element some[EACH];
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (first + i * blockDim.x < columns) some[i] = from[i * blockDim.x];
    }
#pragma unroll
    for (int i = 0; i < EACH; ++i) {
        if (first + i * blockDim.x < columns) to[i * blockDim.x] = some[i];
    }
}
"""


@cache
def _kernel(element_bytes: int) -> Any:
    import cupy

    options = (f"-DElement={_TYPES[element_bytes]}", f"-DEACH={EACH}")
    return cupy.RawKernel(_SOURCE, "copy_rows", options)


def copy_rows(to: Any, source: Any) -> None:
    """Copy the rows of ``source``, as far as those of ``to`` reach, on the current stream."""
    import numpy as np

    pitches = to.shape[-1], source.shape[-1]
    grid = prod(source.shape[:-1]), -(-min(pitches) // (THREADS * EACH))
    numbers = map(np.int32, (*pitches, min(pitches)))
    _kernel(source.itemsize)(grid, (THREADS,), (to, source, *numbers))
