"""Checks of this machine, with the command that fixes each failure."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rooflab.errors import RooflabError
from rooflab.files import cache_dir, configs_dir, kernels_dir
from rooflab.version import __version__


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``remedy`` is the command to type if it failed; ``optional``: few need it."""

    name: str
    ok: bool
    found: str
    remedy: str = ""
    optional: bool = False


def checks() -> Iterator[Check]:
    """Check everything that a sweep needs, the cheapest first."""
    yield Check("rooflab", True, f"{__version__} on Python {platform.python_version()}")
    yield _files()
    yield _writable("compiled kernels", cache_dir(), "ROOFLAB_CACHE_DIR=/a/folder/of/yours")
    yield _writable("results", Path("results"), "rooflab sweep --out /a/folder/of/yours")
    yield _cpu()
    yield from _cuda()


def _files() -> Check:
    count = len(list(kernels_dir().rglob("*.cu")))
    found = f"{count} in {kernels_dir()}, configurations in {configs_dir()}"
    return Check("CUDA kernel files", count > 0, found, "" if count else "pip install rooflab")


def _writable(name: str, folder: Path, remedy: str) -> Check:
    existing = folder
    while not _exists(existing):
        existing = existing.parent
    try:
        with tempfile.TemporaryFile(dir=existing):
            return Check(name, True, str(folder))
    except OSError as error:
        return Check(name, False, f"{folder}: {error.strerror}", remedy)


def _exists(folder: Path) -> bool:
    """Whether it is known to exist: what is in a folder of somebody else is not."""
    with suppress(OSError):
        return folder.exists()
    return False


def _cpu() -> Check:
    from rooflab.devices.registry import open_device
    from rooflab.kernels.sources import discover

    try:
        device = open_device("cpu")
        kernels = [kernel for kernel in discover().all() if kernel.device_kind == "cpu"]
        broken = [reason for kernel in kernels if (reason := kernel.unavailable(device))]
    except RooflabError as error:
        return Check("CPU kernels", False, str(error))
    why = "; ".join(dict.fromkeys(broken))
    if len(broken) == len(kernels):
        return Check("CPU kernels", False, why)
    skipped = f"; {len(broken)} of {len(kernels)} are skipped: {why}" if broken else ""
    threads = device.fact("threads")
    return Check("CPU kernels", True, f"{device.name}, {threads} threads{skipped}")


def _cuda() -> Iterator[Check]:
    from rooflab.devices.cuda import compiler
    from rooflab.devices.cuda import device as cuda
    from rooflab.devices.cuda.nvml import Nvml

    driver = Nvml()
    if driver.reason:
        yield Check("NVIDIA driver", False, driver.reason)
    else:
        names = ", ".join(str(facts["name"].value) for facts in driver.devices())
        yield Check(
            "NVIDIA driver", True, f"{driver.system_facts()['driver_version'].value}: {names}"
        )
    no_compiler = compiler.unavailable()
    yield Check("NVRTC", not no_compiler, no_compiler or "compiles kernels, with or without a GPU")
    reason = cuda.availability()
    yield Check("CUDA device", not reason, reason or f"{cuda.count()} usable")
    if not reason:
        yield _end_to_end()
        yield from _libraries()
    if not no_compiler:
        from rooflab.devices.cuda import cutlass_headers, nvcc

        yield _found("CUTLASS", lambda: cutlass_headers.usable().version)
        yield _found("nvcc", lambda: str(nvcc.find_nvcc(None).path))


def _libraries() -> Iterator[Check]:
    from rooflab.devices.cuda import cupti
    from rooflab.devices.registry import open_device
    from rooflab.kernels.cutlass import proposals
    from rooflab.kernels.libraries import cublaslt, nccl

    device = open_device("cuda:0")
    for name, what, reason in (
        ("cuBLASLt", "the kernel cublaslt", cublaslt.unavailable(device)),
        ("nvMatmulHeuristics", "the kernel cutlass_heuristics", proposals.unavailable(device)),
        ("NCCL", "allreduce and allgather", nccl.missing()),
    ):
        yield Check(name, not reason, reason or what, optional=True)
    yield _found("CUPTI", lambda: f"hardware counters, {cupti.find()}")


def _found(name: str, find: Callable[[], str]) -> Check:
    try:
        return Check(name, True, find(), optional=True)
    except RooflabError as error:
        return Check(name, False, str(error), optional=True)


def _end_to_end() -> Check:
    """Compile, launch and verify the simplest kernel and cuBLAS on a small problem."""
    from rooflab.config import SweepConfig, Timing
    from rooflab.devices.registry import open_device
    from rooflab.kernels.sources import discover
    from rooflab.measure.protocol import Protocol
    from rooflab.workloads.gemm import Gemm

    timing = Timing(warmup_s=0, min_rounds=3, max_rounds=3, energy_s=0, burst_rest_s=0)
    protocol = Protocol(open_device("cuda:0"), SweepConfig(timing=timing, cache="warm"))
    kernels = discover().select(["tiled", "cublas"], "cuda", Gemm.workload)
    outcomes = protocol.measure(Gemm(m=129, n=65, k=33), kernels)
    bad = [f"{outcome.kernel}: {outcome.reason}" for outcome in outcomes if outcome.reason]
    return Check("compile, run, verify", not bad, "; ".join(bad) or "tiled and cublas are correct")
