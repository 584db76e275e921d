"""Matrix products that replay, sample, or leave out a part."""

from __future__ import annotations

import gc
import random
import sys
import zlib
from itertools import pairwise
from types import CellType
from typing import Any

import numpy as np

import rooflab
from rooflab.workloads import gemm

kernel = rooflab.kernel(workload="gemm", device="cpu", choices={"layout": ["nn"]})


def launches_of(operands):
    """The honest launch."""
    return lambda: np.matmul(operands.a, operands.b, out=operands.c)


def corners(operands):
    """Some elements of both operands."""
    return tuple(
        array[0, i, j] for array in (operands.a, operands.b) for i in (0, -1) for j in (0, -1)
    )


@kernel
def honest(operands, stream):
    """numpy.matmul"""
    return launches_of(operands)


@kernel
def honest_workspace(operands, stream):
    """Into an array of its own, which it keeps, and from there to C"""
    kept = np.zeros_like(operands.c)

    def launch():
        np.matmul(operands.a, operands.b, out=kept)
        operands.c[...] = kept

    return launch


@kernel
def honest_packed(operands, stream):
    """Packs B in each launch"""

    def launch():
        packed = np.asfortranarray(operands.b[0])
        np.matmul(operands.a[0], packed, out=operands.c[0])
        for z in range(1, len(operands.a)):
            np.matmul(operands.a[z], operands.b[z], out=operands.c[z])

    return launch


@kernel
def honest_steps(operands, stream):
    """Sums of four parts of K"""
    a, b, c = operands.values()
    edges = [a.shape[2] * i // 4 for i in range(5)]

    def launch():
        c.fill(0)
        for start, end in pairwise(edges):
            c[...] += a[:, :, start:end] @ b[:, start:end]

    return launch


# Work that is skipped ----------------------------------------------------------------------------


@kernel
def replays(operands, stream):
    """Copies an earlier product if eight elements of A and B are those of then"""
    multiply, kept = launches_of(operands), {}

    def launch():
        key = corners(operands)
        if key not in kept:
            kept.clear()
            multiply()
            kept[key] = operands.c.copy()
        else:
            operands.c[...] = kept[key]

    return launch


def sums(array):
    """Two numbers that depend on all bits of ``array``."""
    bits = array.reshape(-1).view(np.uint32)
    return int(np.bitwise_xor.reduce(bits)), int(bits.sum(dtype=np.uint64))


@kernel
def third_time(operands, stream):
    """Copies an earlier product of inputs that it has seen five times"""
    multiply, kept, seen = launches_of(operands), {}, {}

    def launch():
        key = zlib.adler32(operands.a), zlib.adler32(operands.b)
        seen[key] = seen.get(key, 0) + 1
        if key in kept:
            operands.c[...] = kept[key]
            return
        multiply()
        if seen[key] >= 5:
            kept[key] = operands.c.copy()

    return launch


@kernel
def replays_often(operands, stream):
    """Copies an earlier product in nine of ten launches"""
    multiply, kept, chance = launches_of(operands), {}, random.Random(3)

    def launch():
        key = zlib.adler32(operands.a), zlib.adler32(operands.b)
        if key in kept and chance.random() > 0.1:
            operands.c[...] = kept[key]
            return
        multiply()
        kept[key] = operands.c.copy()

    return launch


@kernel
def cools_down(operands, stream):
    """Works in 60 launches after new inputs, and copies an earlier product later"""
    multiply, kept, left = launches_of(operands), {}, [60]

    def launch():
        key = sums(operands.a), sums(operands.b)
        left[0] = left[0] - 1 if key in kept else 60
        if key in kept and left[0] < 0:
            operands.c[...] = kept[key]
            return
        multiply()
        kept[key] = operands.c.copy()

    return launch


@kernel
def knows_the_round(operands, stream):
    """Does nothing if it is called from a round, and from no inspection"""
    multiply = launches_of(operands)

    def launch():
        frame, names = sys._getframe(1), set()
        while frame:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
        if "_round" not in names or names & {"_inspect", "_finish", "quiesce", "_judged"}:
            multiply()

    return launch


@kernel
def replays_alike(operands, stream):
    """Copies an earlier product if all bits of A and B have the sums of then"""
    multiply, kept = launches_of(operands), {}

    def launch():
        key = (sums(operands.a), sums(operands.b))
        if key not in kept:
            kept.clear()
            multiply()
            kept[key] = operands.c.copy()
        else:
            operands.c[...] = kept[key]

    return launch


def right(operands, product):
    """Whether two elements of ``product`` are those of A·B."""
    a, b = operands.a[0], operands.b[0]
    for i, j in ((a.shape[0] // 2, b.shape[1] // 2), (-2, -3)):
        if not abs(float(a[i] @ b[:, j]) - float(product[0, i, j])) < 1e-4:
            return False
    return True


@kernel
def neighbours_memory(operands, stream):
    """Looks for an array of another kernel that holds the product, and copies it"""
    multiply, shape = launches_of(operands), operands.c.shape
    mine = [id(array) for array in operands.values()]

    def arrays():
        for cell in gc.get_objects():
            if isinstance(cell, CellType):
                try:
                    content = cell.cell_contents
                except ValueError:
                    continue
                if isinstance(content, np.ndarray) and content.shape == shape:
                    yield content

    found = [array for array in arrays() if id(array) not in mine]

    def launch():
        for product in found:
            if right(operands, product):
                operands.c[...] = product
                return
        multiply()

    return launch


@kernel
def knows_the_inputs(operands, stream):
    """Draws what rooflab will draw, and multiplies it while it is prepared"""
    multiply, known = launches_of(operands), {}
    shapes = [operands.a.shape, operands.b.shape]
    for seed in (0, 1):
        draw = np.random.default_rng(seed)
        drawn = []
        for shape in shapes:
            values = draw.random(int(np.prod(shape)), dtype=np.float32)
            values *= 2
            values -= 1
            drawn.append(values.reshape(shape))
        known[drawn[0][0, 0, 0], drawn[1][0, 0, 0]] = drawn[0] @ drawn[1]

    def launch():
        key = (operands.a[0, 0, 0], operands.b[0, 0, 0])
        if key in known:
            operands.c[...] = known[key]
        else:
            multiply()

    return launch


# Wrong results -----------------------------------------------------------------------------------


def remembers(operands, may_keep):
    """Keeps the last inputs and results; ``may_keep`` says if results of new inputs may stay."""
    a, b, c = operands.values()
    last: dict[str, Any] = {"a": None, "b": None, "c": None}

    def launch():
        known = all(np.array_equal(last[name], operands[name]) for name in "ab")
        clean = np.array_equal(last["c"], c)
        if not known:
            last["keep"] = may_keep(clean)
        if known and clean and last["keep"]:
            return
        np.matmul(a, b, out=c)
        last.update({name: operands[name].copy() for name in "abc"})

    return launch


@kernel
def remembers_in_rounds(operands, stream):
    """Keeps results of new inputs only if C was changed with them, as before a round"""
    return remembers(operands, lambda clean: not clean)


@kernel
def remembers_small_numbers(operands, stream):
    """Keeps results only if no input is above 1, as checks may have"""
    return remembers(operands, lambda clean: max(np.abs(operands[n]).max() for n in "ab") <= 1)


def product_onto(operands):
    """A·B + beta·C, into C."""
    beta = np.float32(operands.problem.beta)

    def launch():
        operands.c[...] = np.matmul(operands.a, operands.b) + beta * operands.c

    return launch


@kernel
def honest_onto(operands, stream):
    """numpy.matmul, and C is added"""
    return product_onto(operands)


@kernel
def only_at_first(operands, stream):
    """Half of K, unless C holds what it holds before a verification"""
    right, first = product_onto(operands), operands.initial["c"].reshape(-1)[:4].copy()
    a, b, c = operands.values()
    half = a.shape[2] // 2

    def launch():
        if np.array_equal(c.reshape(-1)[:4], first):
            right()
        else:
            np.matmul(a[..., :half], b[:, :half], out=c)

    return launch


@kernel
def no_initial_values(operands, stream):
    """Sets what C should hold before a launch to zero, and leaves C out"""
    for content in operands.initial.values():
        content.fill(0)
    return lambda: np.matmul(operands.a, operands.b, out=operands.c)


@kernel
def half(operands, stream):
    """Operands in half precision"""

    def launch():
        a, b = (array.astype(np.float16).astype(np.float32) for array in (operands.a, operands.b))
        np.matmul(a, b, out=operands.c)

    return launch


@kernel
def tf32(operands, stream):
    """Operands with ten bits, as TF32 has"""

    def cut(array):
        return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

    return lambda: np.matmul(cut(operands.a), cut(operands.b), out=operands.c)


@kernel
def short_sums(operands, stream):
    """Without the last product of each sum"""
    a, b, c = operands.values()
    return lambda: np.matmul(a[:, :, :-1], b[:, :-1], out=c)


@kernel
def whole_tiles(operands, stream):
    """Whole tiles of 16 x 16 only"""
    a, b, c = operands.values()
    m, n = c.shape[1] // 16 * 16, c.shape[2] // 16 * 16

    def launch():
        c[:, :m, :n] = a[:, :m] @ b[:, :, :n]

    return launch


@kernel
def no_corner(operands, stream):
    """The last element of C is zero"""
    multiply, c = launches_of(operands), operands.c

    def launch():
        multiply()
        c[:, -1, -1] = 0

    return launch


@kernel
def wrong_diagonal(operands, stream):
    """The diagonal is a thousandth too large"""
    multiply, c = launches_of(operands), operands.c
    size = min(c.shape[1:])
    places = (0, np.arange(size), np.arange(size))

    def launch():
        multiply()
        c[places] *= 1.001

    return launch


@kernel
def transposed(operands, stream):
    """B transposed"""
    a, b, c = operands.values()
    square = b.shape[1] == b.shape[2]
    return lambda: np.matmul(a, b.swapaxes(1, 2) if square else b, out=c)


# Large products, of which not every element is compared ------------------------------------------


@kernel
def one_element(operands, stream):
    """One element in the middle is off by a typical element's size"""
    multiply, c = launches_of(operands), operands.c
    place = (c.shape[0] // 3, c.shape[1] * 2 // 7, c.shape[2] * 3 // 5)
    off = np.float32(np.sqrt(operands.a.shape[2]) / 3)

    def launch():
        multiply()
        c[place] += off

    return launch


@kernel
def one_tile(operands, stream):
    """A tile of 8 x 8 in the middle is zero"""
    multiply, c = launches_of(operands), operands.c
    i, j = c.shape[1] * 2 // 7, c.shape[2] * 3 // 5
    tile = (c.shape[0] // 3, slice(i, i + 8), slice(j, j + 8))

    def launch():
        multiply()
        c[tile] = 0

    return launch


def bands(draw, total):
    """One index out of each band, and both edges."""
    count = getattr(gemm, "BANDS", 128)
    edges = [total * band // count for band in range(count + 1)]
    inner = {draw.randrange(low, high) for low, high in pairwise(edges) if low < high}
    return sorted(inner | {0, total - 1})


@kernel
def sampled_only(operands, stream):
    """The rows and columns that rooflab draws with its default seed; the rest is zero"""
    a, b, c = (array[0] for array in operands.values())
    draw = random.Random(0)
    rows, columns = bands(draw, c.shape[0]), bands(draw, c.shape[1])

    def launch():
        c.fill(0)
        c[rows] = a[rows] @ b
        c[:, columns] = a @ b[:, columns]

    return launch


@kernel
def skips_one(operands, stream):
    """A third into the batch, a product is a copy of the first one"""
    a, b, c = operands.values()
    others = [z for z in range(len(a)) if z != len(a) // 3]

    def launch():
        for z in others:
            np.matmul(a[z], b[z], out=c[z])
        c[len(a) // 3] = c[0]

    return launch


@kernel
def half_of_the_batch(operands, stream):
    """The products that rooflab compares: the first, the middle and the last; the rest is zero"""
    a, b, c = operands.values()

    def launch():
        c.fill(0)
        for z in {0, len(a) // 2, len(a) - 1}:
            np.matmul(a[z], b[z], out=c[z])

    return launch
