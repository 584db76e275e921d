"""Errors of our kernels and of the library against FP64, in the same problems."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from _common import SEED, Row
from _ladder import AGAINST, BESIDE, MOST_ERROR, champion, libraries_of, rungs

from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Operands, Prepare
from rooflab.measure import search
from rooflab.measure.buffers import allocate, poison, rotate
from rooflab.model.encoding import decode
from rooflab.model.precision import PRECISIONS
from rooflab.workloads.gemm import Gemm

SHAPES = ((1024, 1024, 1024), (4096, 4096, 4096), (1000, 1048, 1040))
FILLS = ("uniform", "normal")

SLICE_BITS = 20
SLICES = 3
"""Products of slices of 20 bits add up exactly in FP64's 53, for K up to 8192."""


@dataclass(frozen=True)
class Error:
    """``relative`` is ‖C - ref‖ / ‖ref‖, ``largest`` that of an element over ref's mean square."""

    relative: float
    largest: float
    kernel: str
    variant: str


def error_rows(
    device: Device, kernels: Sequence[Kernel], precision: str, shapes: Sequence[Any] = SHAPES
) -> Iterator[Row]:
    """Errors by shape and fill: of our highest rungs, each in the variant that rooflab chooses,
    and of the library's own choice: cuBLAS, or cuBLASLt's first heuristic for FP8."""
    for m, n, k in shapes:
        problem, highest = _best(kernels, precision, m, n, k)
        beside = [one for one in kernels if one.name in BESIDE and not one.refuses(problem)]
        for fill in FILLS:
            operands = allocate(device, problem, SEED, fill)
            expected = reference(device, operands)
            for kernel in (highest, *beside):
                ours = _of_chosen(device, kernel, operands, expected) if kernel else None
                library = _of_library(device, kernels, operands, expected, ours)
                yield _row(problem, fill, ours, library)
            device.release()


def _of_library(
    device: Device,
    kernels: Sequence[Kernel],
    operands: Operands,
    expected: Any,
    ours: Error | None,
) -> Error | None:
    problem = operands.problem
    names = libraries_of(problem.precision.name, f"{ours.kernel} {ours.variant}" if ours else "")
    theirs = [one for one in kernels if one.name in names and one.workload == "gemm"]
    theirs.sort(key=lambda one: names.index(one.name))
    same = PRECISIONS[AGAINST.get(problem.precision.name, problem.precision.name)]
    others = Operands(replace(problem, precision=same), operands, {})
    return next(errors(device, theirs, others, expected), None)


def _best(
    kernels: Sequence[Kernel], precision: str, m: int, n: int, k: int
) -> tuple[Gemm, Kernel | None]:
    """The layout that has our highest rung, and that rung."""
    problems = (
        Gemm(m=m, n=n, k=k, precision=PRECISIONS[precision], layout=layout)
        for layout in ("nn", "nt")
    )
    pairs = [(problem, champion(kernels, problem)) for problem in problems]
    return max(pairs, key=lambda pair: rungs()[pair[1].id].rung if pair[1] else 0.0)


def _of_chosen(device: Device, kernel: Kernel, operands: Operands, expected: Any) -> Error | None:
    variant = ""
    if kernel.variants:
        rotation = rotate(device, operands.problem, SEED, cold=True)
        variant = search.choose(device, kernel, rotation, SweepConfig(), lambda step: None).name
    return next(errors(device, [kernel], operands, expected, variant), None)


def errors(
    device: Device,
    kernels: Iterable[Kernel],
    operands: Operands,
    expected: Any,
    variant: str = "",
) -> Iterator[Error]:
    """Of each variant that can compute the problem, or of one."""
    problem, (result,) = operands.problem, [o for o in operands.problem.operands if o.written]
    for kernel in kernels:
        if kernel.refuses(problem):
            continue
        some = (one for one in kernel.variants if variant in ("", one.name))
        able = {one.name: one.prepare for one in some if not one.unsupported(problem)}
        prepares: Mapping[str, Prepare] = able or {kernel.variant: kernel.prepare}
        for name, prepare in prepares.items():
            poison(operands)
            try:
                prepare(device, operands)()
                device.synchronize()
            except KernelError as error:
                print(f"{kernel.name} {name}: {error}")
                continue
            difference = decode(device.arrays, operands[result.name], result.type) - expected
            square = float((expected * expected).mean())
            relative = (float((difference * difference).mean()) / square) ** 0.5
            largest = float(abs(difference).max()) / square**0.5
            yield Error(relative, largest, kernel.name, name)


def reference(device: Device, operands: Operands) -> Any:
    """The product of the decoded operands in FP64; of FP64 operands nearly exact."""
    arrays, problem = device.arrays, operands.problem
    a, b = (decode(arrays, operands[one.name], one.type) for one in problem.operands[:2])
    b = b.swapaxes(1, 2) if problem.settings["layout"] == "nt" else b
    return exact_product(arrays, a, b) if problem.precision.name == "fp64" else a @ b


def exact_product(arrays: Any, a: Any, b: Any) -> Any:
    """A·B in FP64 with an error of a few roundings, whatever K is.

    Each operand is a sum of slices of few bits, so that products of two slices are summed without
    any rounding (Ozaki et al., "Error-free transformations of matrix multiplication", Numerical
    Algorithms 59, 2012). The smallest products are added first.
    """
    products = [
        (i + j, left @ right)
        for i, left in enumerate(slices(arrays, a))
        for j, right in enumerate(slices(arrays, b))
    ]
    total: Any = 0.0
    for _, product in sorted(products, key=lambda pair: -pair[0]):
        total = total + product
    return total


def slices(arrays: Any, values: Any) -> list[Any]:
    """Numbers of SLICE_BITS each whose sum is ``values``, the largest first."""
    step = 2.0 ** (int(arrays.ceil(arrays.log2(abs(values).max()))) - SLICE_BITS)
    found = []
    for _ in range(SLICES):
        part = arrays.rint(values / step) * step
        found.append(part)
        values, step = values - part, step * 2.0**-SLICE_BITS
    return found


def _row(problem: Gemm, fill: str, ours: Error | None, theirs: Error | None) -> Row:
    row: dict[str, str | float | None] = {
        "precision": problem.precision.name,
        "size": problem.size,
        "layout": problem.layout,
        "fill": fill,
    }
    for name, error in (("ours", ours), ("library", theirs)):
        row[name] = " ".join(filter(None, (error.kernel, error.variant))) if error else ""
        row[f"{name}: relative"] = f"{error.relative:.3g}" if error else ""
        row[f"{name}: largest"] = f"{error.largest:.3g}" if error else ""
    row["verdict"] = verdict(ours, theirs)
    return row


def verdict(ours: Error | None, theirs: Error | None) -> str:
    if ours is None:
        return "no kernel of ours"
    if theirs is None:
        return "no kernel of the library"
    relative = ours.relative <= MOST_ERROR * theirs.relative
    return "agrees" if relative and ours.largest <= MOST_ERROR * theirs.largest else "LARGER"
