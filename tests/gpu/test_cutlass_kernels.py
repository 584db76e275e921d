"""CUTLASS kernels against float64: every precision and layout, and every variant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from gpu.test_kernels import check

from rooflab.backends import cutlass
from rooflab.devices import open_device
from rooflab.devices.base import Device
from rooflab.errors import KernelError
from rooflab.measure.buffers import allocate
from rooflab.problem import LAYOUTS, PRECISIONS, Problem
from rooflab.registry import Kernel, Variant

pytestmark = pytest.mark.gpu

KERNELS = {kernel.name: kernel for kernel in cutlass.shipped_kernels()}


def takes(variant: Variant, precision: str) -> bool:
    return not variant.objection(Problem(16, 16, 16, PRECISIONS[precision], "nt"))


def first_variant(name: str, precision: str) -> Variant:
    return next(variant for variant in KERNELS[name].variants if takes(variant, precision))


CASES = [
    (name, precision, layout)
    for name, kernel in KERNELS.items()
    for precision in kernel.precisions
    for layout in LAYOUTS
    if not kernel.refuses(Problem(16, 16, 16, PRECISIONS[precision], layout))
]
VARIANTS = [
    (name, next(precision for precision in kernel.precisions if takes(variant, precision)), variant)
    for name, kernel in KERNELS.items()
    for variant in kernel.variants
]
SHAPES = ((16, 16, 16), (1000, 520, 264), (136, 2056, 48), (264, 136, 4096))
SCALARS = ((1.0, 0.0), (0.5, -2.0))


@pytest.fixture(scope="module")
def device() -> Device:
    return open_device("cuda:0")


@pytest.fixture(scope="module", autouse=True)
def compiled(device: Device, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All cubins, compiled in parallel: a Hopper kernel takes the better part of a minute.

    Into a cache of their own, if the environment names none.
    """
    wanted = [
        (first_variant(name, precision), precision, layout) for name, precision, layout in CASES
    ]
    wanted += [(variant, precision, "nt") for _, precision, variant in VARIANTS]

    def build(variant: Variant, precision: str, layout: str) -> None:
        for _, beta in SCALARS:
            problem = Problem(16, 16, 16, PRECISIONS[precision], layout, beta=beta)
            with suppress(KernelError):  # the test that needs it says why
                variant.compile(device, problem)

    with pytest.MonkeyPatch.context() as patch:
        if not os.environ.get("ROOFLAB_CACHE_DIR"):
            patch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with ThreadPoolExecutor() as pool:
            list(pool.map(build, *zip(*wanted, strict=True)))
        yield


def available(device: Device, name: str) -> Kernel:
    kernel = KERNELS[name]
    if reason := kernel.unavailable(device):
        pytest.skip(reason)
    return kernel


@pytest.mark.parametrize(("name", "precision", "layout"), CASES)
def test_kernel_is_correct(device: Device, name: str, precision: str, layout: str) -> None:
    kernel = available(device, name)
    for m, n, k in SHAPES:
        for alpha, beta in SCALARS:
            for batch in (1, 3):
                problem = Problem(m, n, k, PRECISIONS[precision], layout, batch, alpha, beta)
                check(device, kernel, problem)


@pytest.mark.parametrize(("name", "precision", "variant"), VARIANTS, ids=str)
def test_variant_is_correct(device: Device, name: str, precision: str, variant: Variant) -> None:
    kernel = available(device, name)
    for m, n, k in SHAPES:
        for alpha, beta in SCALARS:
            problem = Problem(m, n, k, PRECISIONS[precision], "nt", 1, alpha, beta)
            check(device, kernel, problem, variant.prepare)


def test_simt_takes_any_shape(device: Device) -> None:
    kernel = available(device, "cutlass_simt")
    for m, n, k in ((1, 1, 1), (7, 127, 129), (129, 1, 65), (1000, 37, 513)):
        for layout in ("nn", "nt", "tn", "tt"):
            check(device, kernel, Problem(m, n, k, PRECISIONS["fp32"], layout, 2, 0.5, -2.0))


def test_what_the_plan_refuses_is_an_error(device: Device) -> None:
    """A row that is no whole number of accesses, for a caller who has not asked for objections."""
    kernel = available(device, "cutlass_fp16")
    operands = allocate(device, Problem(64, 64, 63, PRECISIONS["fp16"], "nt"), seed=0)
    with pytest.raises(KernelError, match="does not take 64x64x63"):
        kernel.variants[0].prepare(device, operands)


def test_further_operands_need_no_plan(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = available(device, "cutlass_simt")
    problem = Problem(256, 256, 256, PRECISIONS["fp32"], "nt")
    check(device, kernel, problem)
    monkeypatch.setattr(cutlass, "_make_plan", None)
    check(device, kernel, problem)
