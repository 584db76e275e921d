"""Which compiler makes a .cu file faster: NVRTC or nvcc?

    python benchmarks/compilers.py

The same sources built by both, on one GPU. A user's file, benchmarks/warp_tiled.cu, is also built
with ``--compiler auto``. Each pair is measured in turn, several times; a ratio is a median.

PASS: ``auto`` is as fast as nvcc within 1 % for the user's file; rooflab's own kernels, which NVRTC
compiles, are as fast as nvcc's within 1 %, or faster.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from _common import SEED, Row, conclude, describe, first_line, open_gpu

from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.devices.cuda.nvcc import Choice, choose, driver_version
from rooflab.errors import RooflabError
from rooflab.kernels.base import Kernel, Variant
from rooflab.kernels.sources import discover, load_file
from rooflab.measure import search
from rooflab.measure.buffers import Rotation, rotate
from rooflab.model.problem import Problem
from rooflab.workloads import build

FILE = "benchmarks/warp_tiled.cu"
SIZES = (1024, 4096)
LIMIT_PERCENT = 1.0
TURNS = 15
TURN_US = 20_000.0

Timer = Callable[[], float]


@dataclass(frozen=True)
class Pair:
    """A kernel built twice: ``fast`` should not be slower than ``reference``."""

    name: str
    problem: Problem
    fast: Kernel
    reference: Kernel
    compilers: tuple[str, str]


def user_pairs(auto: Choice, nvcc: Choice) -> Iterator[Pair]:
    """The user's file by NVRTC and by auto, against nvcc."""
    (by_auto,), (by_nvcc,), (by_nvrtc,) = (
        load_file(FILE, choice.users) for choice in (auto, nvcc, Choice())
    )
    for size in SIZES:
        problem = build("gemm", "fp32", {"m": size, "n": size, "k": size})
        yield Pair(f"{by_nvcc.name} {size}", problem, by_auto, by_nvcc, ("auto", "nvcc"))
        yield Pair(f"{by_nvcc.name} {size}", problem, by_nvrtc, by_nvcc, ("NVRTC", "nvcc"))


def own_pairs(nvcc: Choice) -> Iterator[Pair]:
    """rooflab's own kernels and CUTLASS's SIMT kernel; the other CUTLASS kernels take minutes to
    compile."""
    by_nvcc = {k.id: k for k in discover(nvcc.own).all() if k.device_kind == "cuda"}
    for kernel in discover().all():
        if (
            kernel.device_kind != "cuda"
            or not kernel.compiler()
            or (kernel.backend == "cutlass" and kernel.name != "cutlass_simt")
        ):
            continue
        problem = large(kernel)
        if not kernel.refuses(problem):
            name = f"{kernel.id} {problem.precision.name} {problem.size}"
            yield Pair(name, problem, kernel, by_nvcc[kernel.id], ("NVRTC", "nvcc"))


def large(kernel: Kernel) -> Problem:
    """A problem that takes long enough, and that the kernel supports."""
    sizes = {
        "gemm": {"m": 2048, "n": 2048, "k": 2048},
        "gemv": {"m": 16384, "n": 16384},
        "softmax": {"rows": 16384, "columns": 8192},
        "rmsnorm": {"rows": 16384, "columns": 8192},
        "sum": {"elements": 2**28},
        "blur": {"batch": 16, "rows": 4096, "columns": 4096},
        "fft": {"batch": 65536, "n": 64},
    }
    precision = "fp32" if "fp32" in kernel.precisions else kernel.precisions[0]
    return build(kernel.workload, precision, sizes.get(kernel.workload, {"columns": 2**28}))


def compile_all(device: Device, pairs: list[Pair]) -> None:
    """Fill the cache of cubins in parallel; an error shows when the kernel is prepared."""

    def compile_one(variant: Variant, problem: Problem) -> None:
        with suppress(RooflabError):
            variant.compile(device, problem)

    with ThreadPoolExecutor() as pool:
        for pair in pairs:
            for kernel in (pair.fast, pair.reference):
                for variant in kernel.variants:
                    pool.submit(compile_one, variant, pair.problem)


def timer(device: Device, kernel: Kernel, rotation: Rotation) -> Timer:
    """Microseconds of a launch of the kernel's best variant: one batch on rotated operands."""
    prepare = kernel.prepare
    if len(kernel.variants) > 1:
        config = SweepConfig(seed=SEED)
        prepare = search.choose(device, kernel, rotation, config, lambda step: None).prepare
    launches = [prepare(device, operands) for operands in rotation.copies]
    for launch in launches:
        launch()
    device.synchronize()
    (us,) = device.time(launches[:1]).times_us
    count = max(2, min(100, int(TURN_US / us)))
    batch = [launches[turn % len(launches)] for turn in range(count)]
    return lambda: device.time_batch(batch).times_us[0]


def ratio(device: Device, pair: Pair) -> float:
    """Time of ``fast`` over ``reference``: the median over turns, on the same operands."""
    rotation = rotate(device, pair.problem, SEED, cold=True)
    timers = [timer(device, kernel, rotation) for kernel in (pair.fast, pair.reference)]
    ratios = []
    for turn in range(TURNS):
        order = (0, 1) if turn % 2 else (1, 0)
        times = {index: timers[index]() for index in order}
        ratios.append(times[0] / times[1])
    return median(ratios)


def judged(device: Device, pair: Pair) -> Row:
    row: Row = {"kernel": pair.name, "new": pair.compilers[0], "reference": pair.compilers[1]}
    try:
        difference = 100 * (ratio(device, pair) - 1)
    except Exception as error:  # one pair must not end the others
        return {**row, "time %": None, "limit %": LIMIT_PERCENT, "verdict": first_line(error)}
    finally:
        device.release()
    # NVRTC for a user's file is shown, not judged: it is why auto takes nvcc.
    shown = pair.name.startswith("warp_tiled") and pair.compilers[0] == "NVRTC"
    agrees = shown or difference <= LIMIT_PERCENT
    verdict = "agrees" if agrees else "SLOWER"
    return {**row, "time %": difference, "limit %": LIMIT_PERCENT, "verdict": verdict}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/compilers"))
    args = parser.parse_args()
    device = open_gpu()
    driver = driver_version(device)
    auto, nvcc = choose("auto", driver), choose("nvcc", driver)
    pairs = [*user_pairs(auto, nvcc), *own_pairs(nvcc)]
    compile_all(device, pairs)
    rows = [judged(device, pair) for pair in pairs]
    kernels = (pairs[0].reference.compiler(), pairs[-1].fast.compiler())
    heading = f"# {kernels[0]} and {kernels[1]}\n\n{describe(device)}\n\n"
    heading += "time %: the time of `new` above that of `reference`, one launch, cold operands."
    return conclude(rows, heading, args.out, "compilers")


if __name__ == "__main__":
    sys.exit(main())
