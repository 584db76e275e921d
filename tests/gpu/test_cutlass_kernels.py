"""CUTLASS kernels against float64: every precision, layout, and value of a variant's macros."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from gpu.test_kernels import Trial, check, cover

from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel, Variant
from rooflab.kernels.cuda_file import kernel as cuda_file
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cutlass import plan, proposals
from rooflab.measure.buffers import allocate
from rooflab.model.precision import PRECISIONS
from rooflab.workloads.gemm import LAYOUTS, Gemm

pytestmark = pytest.mark.gpu

KERNELS = {
    kernel.name: kernel for kernel in cuda_file.shipped_kernels() if kernel.backend == "cutlass"
}


def gemm(m: int, n: int, k: int, precision: str, layout: str, **more: Any) -> Gemm:
    return Gemm(m=m, n=n, k=k, precision=PRECISIONS[precision], layout=layout, **more)


def takes(variant: Variant, precision: str) -> bool:
    return not variant.unsupported(gemm(16, 16, 16, precision, "nt"))


def layouts(kernel: Kernel, precision: str) -> list[str]:
    return [one for one in LAYOUTS if not kernel.refuses(gemm(16, 16, 16, precision, one))]


def combinations(kernel: Kernel) -> list[tuple[str, str]]:
    """Every precision, and every layout with one of them."""
    every = max(kernel.precisions, key=lambda precision: len(layouts(kernel, precision)))
    return [
        (precision, layout)
        for precision in kernel.precisions
        for layout in layouts(kernel, precision)
        if precision == every or layout == "nt"
    ]


def representatives(kernel: Kernel) -> Iterator[list[Variant]]:
    """Variants that share a compilation, few of them, until every value of every macro was there.

    All others are verified wherever they are used, as every kernel is.
    """
    named, together = {one.name: one for one in kernel.variants}, defaultdict(list)
    assert kernel.source
    for choice in cuda_file.read_file(kernel.source).header.all_variants:
        together[frozenset(choice.macros.items())].append(named[choice.title])
    yield from (together[macros] for macros in cover({macros: macros for macros in together}))


def cases(name: str, kernel: Kernel) -> Iterator[tuple[str, str, str, list[Variant], int]]:
    """Each takes half a minute to compile: so they differ in variants, and every second reads C."""
    every = list(representatives(kernel))
    unseen, turn = [*every], 0
    for precision, layout in combinations(kernel):
        variants = next(one for one in (*unseen, *every) if takes(one[0], precision))
        unseen = [one for one in unseen if one is not variants]
        yield name, precision, layout, variants, turn
        turn += 1
    for variants in unseen:
        precision = next(one for one in kernel.precisions if takes(variants[0], one))
        yield name, precision, "nt", variants, turn
        turn += 1


CASES = [case for name, kernel in KERNELS.items() for case in cases(name, kernel)]
SHAPES = ((16, 16, 16), (1000, 520, 264), (136, 2056, 48), (272, 144, 4096), (1008, 528, 272))
"""Multiples of 8, which is 16 bytes of the types with 2; and of 16, for those with 1."""
ENDS = (SHAPES[0], SHAPES[-1])
"""Few where each takes half a minute to compile."""

SCALARS = ((1.0, 0.0), (0.5, -2.0))


def problems(kernel: Kernel, precision: str, layout: str, turn: int) -> list[Gemm]:
    """All shapes that the kernel takes; C is read in every second turn."""
    alpha, beta = SCALARS[turn % len(SCALARS)]
    made = [gemm(m, n, k, precision, layout, alpha=alpha, beta=beta) for m, n, k in SHAPES]
    taken = [problem for problem in made if not kernel.refuses(problem)]
    assert len(taken) >= 3
    return taken


def available(device: Device, name: str) -> Kernel:
    kernel = KERNELS[name]
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    return kernel


@pytest.mark.parametrize(
    ("name", "precision", "layout", "variants", "turn"),
    CASES,
    ids=lambda value: value[-1].name if isinstance(value, list) else str(value),
)
def test_variants_are_correct(
    device: Device, name: str, precision: str, layout: str, variants: list[Variant], turn: int
) -> None:
    for problem in problems(available(device, name), precision, layout, turn):
        for batch in (1, 3):
            trial = Trial(device, replace(problem, batch=batch))
            for variant in variants:
                trial.passes(variant.prepare)


PROPOSED = [
    gemm(*shape, precision, "nt", alpha=alpha, beta=beta)
    for precision, shape, (alpha, beta) in zip(("bf16", "fp8"), ENDS, SCALARS, strict=True)
]


@pytest.mark.parametrize("problem", PROPOSED, ids=lambda one: one.precision.name)
def test_what_the_heuristics_propose_is_correct(device: Device, problem: Gemm) -> None:
    kernel = proposals.KERNEL
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    assert not kernel.refuses(problem)
    check(device, kernel, problem)


def test_sums_can_be_stored_without_tma(device: Device) -> None:
    """A choice that no variant makes, and CUTLASS's profiler does."""
    kernel = available(device, "cutlass_hopper")
    assert kernel.source
    tile = {"TILE_M": 128, "TILE_N": 128, "CLUSTER_N": 2, "PINGPONG": 1, "DIRECT": 1}
    choice = Configuration(name="direct", **tile)
    prepare = partial(cuda_file.read_file(kernel.source).prepare_variant, choice)
    for problem in problems(kernel, "bf16", "nt", turn=1):
        Trial(device, problem).passes(prepare)


def test_simt_takes_any_shape(device: Device) -> None:
    kernel = available(device, "cutlass_simt")
    for m, n, k in ((1, 1, 1), (7, 127, 129), (129, 1, 65), (1000, 37, 513)):
        for layout in ("nn", "tt"):
            problem = gemm(m, n, k, "fp32", layout, batch=2, alpha=0.5, beta=-2.0)
            check(device, kernel, problem)


def test_what_the_plan_refuses_is_an_error(device: Device) -> None:
    """A row that is not a multiple of the access size, for a caller that did not ask before."""
    kernel = available(device, "cutlass_fp16")
    operands = allocate(device, gemm(64, 64, 63, "fp16", "nt"), seed=0)
    with pytest.raises(KernelError, match="does not support 64x64x63"):
        kernel.variants[0].prepare(device, operands)


def test_further_operands_need_no_plan(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = available(device, "cutlass_simt")
    problem = gemm(256, 256, 256, "fp32", "nt")
    check(device, kernel, problem)
    monkeypatch.setattr(plan, "make_plan", None)
    check(device, kernel, problem)
