"""Compiles what the tests of kernels need, into the cache on disk that ROOFLAB_CACHE_DIR names.

python tests/gpu/compile_all.py PROCESSES

It leaves the GPU to others. The tests say what cannot be compiled and is wanted.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

from gpu import test_cutlass_kernels, test_kernels

from rooflab.devices.cuda.compiler import arch_for
from rooflab.devices.cuda.install import first_line
from rooflab.errors import KernelError
from rooflab.kernels.base import Kernel
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import read_file
from rooflab.kernels.cutlass import proposals
from rooflab.model.problem import Problem


class Job(NamedTuple):
    source: Path
    problem: Problem
    choice: Configuration

    @property
    def key(self) -> tuple[object, ...]:
        """Jobs with the same key have the same machine code."""
        read = [one.read for one in self.problem.operands]
        macros = [*self.problem.macros.items(), *self.choice.macros.items()]
        return self.source, self.problem.precision.name, *macros, *read

    def compile(self, arch: str) -> str:
        """Why it cannot be compiled; empty if it can."""
        try:
            read(self.source).compile(self.problem, self.choice, arch)
        except KernelError as error:
            return first_line(error)
        return ""


read = cache(read_file)


def needed() -> Iterator[Job]:
    """CUTLASS's and CuTe's are first, which take longest."""
    for name, precision, layout, variants, turn in test_cutlass_kernels.CASES:
        kernel, names = test_cutlass_kernels.KERNELS[name], [one.name for one in variants]
        for product in test_cutlass_kernels.problems(kernel, precision, layout, turn):
            yield from of_kernel(kernel, product, names)
    hopper = test_cutlass_kernels.KERNELS["cutlass_hopper"].source
    assert hopper
    for proposed in test_cutlass_kernels.PROPOSED:
        yield from (Job(hopper, proposed, one) for one in proposals.choices(proposed))
    cases: list[Any] = [one.values for one in test_kernels.CASES]
    for name, precision, words in sorted(cases, key=lambda values: "cute" not in values[0]):
        kernel = test_kernels.KERNELS[name]
        for problem, variants in test_kernels.attempts(kernel, precision, words):
            yield from of_kernel(kernel, problem, [one.name for one in variants])


def of_kernel(kernel: Kernel, problem: Problem, names: Collection[str]) -> Iterator[Job]:
    """A job for each variant of a file that has one of the names; for all if there are none."""
    if kernel.source:
        for choice in read(kernel.source).header.all_variants:
            if not names or choice.title in names:
                yield Job(kernel.source, problem, choice)


def arch_here() -> str:
    """The first GPU's, such as ``sm_90a``; of its context this process would have no use."""
    import pynvml

    pynvml.nvmlInit()
    first = pynvml.nvmlDeviceGetHandleByIndex(0)
    major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(first)
    return arch_for(f"{major}.{minor}")


def main(processes: int, arch: str) -> None:
    started, running = perf_counter(), {}
    os.nice(19)
    with ProcessPoolExecutor(processes) as pool:
        for job in needed():
            if job.key not in running:
                running[job.key] = pool.submit(job.compile, arch)
        failures = Counter(filter(None, (one.result() for one in running.values())))
    good, seconds = len(running) - failures.total(), perf_counter() - started
    print(f"{good} kernels were compiled in {seconds:.0f} s", flush=True)
    for reason, times in failures.most_common():
        print(f"{times} were not: {reason}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else arch_here())
