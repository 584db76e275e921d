"""Put into the cache what the tests of kernels will load; nothing of it touches the GPU.

PYTHONPATH=.:tests python tests/gpu/compile_ahead.py PROCESSES
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, cast

import pynvml
from gpu import test_cutlass_kernels as cutlass
from gpu import test_kernels as others

from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import CudaFile, arch_of, read_file
from rooflab.model.problem import Problem

Job = tuple[CudaFile, Problem, Configuration]


def of_cutlass() -> Iterator[Job]:
    """One configuration for each precision and layout; each of a precision's first layout."""
    hopper_first = sorted(cutlass.CASES, key=lambda case: "hopper" not in case[0])
    for name, precision, layout in hopper_first:
        kernel = cutlass.KERNELS[name]
        for problem in cutlass.problems(kernel, precision, layout):
            yield from list(_jobs(kernel, problem))[:1]
    for name, precision, variant in cutlass.VARIANTS.values():
        kernel = cutlass.KERNELS[name]
        for problem in cutlass.problems(kernel, precision, "nt"):
            yield from (job for job in _jobs(kernel, problem) if job[-1].title == variant.name)


def of_others() -> Iterator[Job]:
    """Every kernel of a .cu file, in every precision, choice and configuration."""
    for case in others.CASES:
        name, precision, words = cast("tuple[str, str, dict[str, str]]", case.values)
        kernel = others.KERNELS[name]
        if kernel.source and kernel.source.suffix == ".cu":
            for problem in others.problems(kernel, precision, words):
                yield from _jobs(kernel, problem)


def _jobs(kernel: Kernel, problem: Problem) -> Iterator[Job]:
    assert kernel.source
    file = read_file(kernel.source)
    for configuration in file.header.all_variants:
        if not file.variant_unsupported(configuration, problem):
            yield file, problem, configuration


class Untouched:
    """The first GPU, of which NVML says what compiling needs."""

    name = "GPU 0"

    def __init__(self) -> None:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        self.capability = f"{major}.{minor}"

    def fact(self, name: str) -> str:
        return {"compute_capability": self.capability}[name]


def main() -> None:
    """Jobs that differ in sizes only are one."""
    device: Any = Untouched()
    jobs: dict[tuple[object, ...], Job] = {}
    for file, problem, configuration in (*of_cutlass(), *of_others()):
        if not file.unavailable(device):
            reads = tuple(one.name for one in problem.operands if one.written and one.read)
            key = (file.source, problem.precision.name, tuple(problem.macros.items()), reads)
            jobs.setdefault((*key, configuration.title), (file, problem, configuration))

    def compile_one(job: Job) -> None:
        file, problem, configuration = job
        with suppress(KernelError):  # its test says it
            file.compile(problem, configuration, arch_of(device))

    slow_first = sorted(jobs.values(), key=lambda job: not job[0].header.needs)
    with ThreadPoolExecutor(int(sys.argv[1])) as pool:
        for done, _ in enumerate(pool.map(compile_one, slow_first), 1):
            print(f"compiled {done} of {len(jobs)}", end="\r", flush=True)


if __name__ == "__main__":
    main()
