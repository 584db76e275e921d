"""What the compiler makes of a .cu file, without a GPU."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from rooflab.devices.cuda import compiler
from rooflab.devices.cuda.launches import Occupancy, occupancy
from rooflab.devices.cuda.nvcc import Nvcc
from rooflab.errors import KernelError, LaunchError, UsageError
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file, version
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem
from rooflab.workloads import find

EXTENT: Final = 4096
"""The problem's extents, as far as the file allows: blocks and shared memory may depend on them."""

COMMON: Final = ("8.0", "9.0", "10.0", "12.0")
"""Compute capabilities to compile for if neither the user nor the file names one."""


@dataclass(frozen=True, slots=True)
class Build:
    """One compilation. ``shared_bytes`` per block; ``error`` is the compiler's, else empty, or with
    ``compiled`` why it cannot be launched.

    ``threads`` is 0 if the launch is planned on the device; then shared memory is not known either.
    """

    precision: str
    variant: str
    threads: int
    registers: int = 0
    spill_bytes: int = 0
    shared_bytes: int = 0
    occupancy: Occupancy | None = None
    warnings: tuple[str, ...] = ()
    error: str = ""
    compiled: bool = True


def open_file(path: Path, nvcc: Nvcc | None) -> CudaFile:
    """The file; raises ``UsageError`` if its header is wrong or nothing can be compiled here."""
    file = read_file(path, nvcc)
    if reason := file.uncompilable():
        raise UsageError(f"{path} cannot be compiled: {reason}")
    return file


def capabilities(file: CudaFile, asked: Sequence[str]) -> list[str]:
    """The compute capabilities to compile for: those ``asked`` for, else usual ones."""
    header = file.header
    if asked:
        return [_capability(text) for text in asked]
    if header.compute_capability:
        return [header.compute_capability]
    needed = version(header.min_compute_capability)
    return [text for text in COMMON if version(text) >= needed]


def _capability(text: str) -> str:
    """``9.0`` of ``9.0``, ``90``, ``sm_90`` or ``sm_90a``."""
    found = re.fullmatch(r"(?:sm_)?(\d{1,2})\.?(\d)a?", text, re.ASCII)
    if not found:
        raise UsageError(f"{text[:40]!r} is not an architecture: type 9.0 or sm_90a")
    return f"{found[1]}.{found[2]}"


def builds(file: CudaFile, compute_capability: str) -> Iterator[Build]:
    """Every precision and variant, in the first of each of the workload's choices."""
    for precision in file.header.precisions:
        problem = _problem(file, precision)
        for config in file.header.all_variants:
            if not config.precisions or precision in config.precisions:
                yield _build(file, compute_capability, problem, config)


def _problem(file: CudaFile, precision: str) -> Problem:
    kind = find(file.header.workload)
    limits = {name.lower(): most for name, most in file.header.limits.items()}
    values: dict[str, Any] = {name: words[0] for name, words in file.header.choices.items()}
    values |= {
        name: min(EXTENT, limits.get(name, EXTENT))
        for name, parameter in kind.parameters().items()
        if parameter.kind == "extent" and parameter.default is None
    }
    return kind(precision=PRECISIONS[precision], **values)


def _build(file: CudaFile, capability: str, problem: Problem, config: Configuration) -> Build:
    geometry = file.geometry(problem, config)
    threads = geometry.threads
    what = (problem.precision.name, config.title, threads)
    try:
        compiled = file.compile(problem, config, compiler.arch_for(capability))
    except KernelError as error:
        return Build(*what, error=str(error), compiled=isinstance(error, LaunchError))
    dynamic_bytes = file.geometry(problem, config, compiled=compiled).shared_bytes
    shared = compiled.static_shared_bytes + dynamic_bytes
    return Build(
        *what,
        registers=compiled.registers,
        spill_bytes=compiled.spill_bytes,
        shared_bytes=shared,
        occupancy=occupancy(capability, threads, compiled.registers, shared) if threads else None,
        warnings=tuple(line for line in compiled.log.splitlines() if "warning" in line),
    )
