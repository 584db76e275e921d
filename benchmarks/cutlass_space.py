"""How close are cutlass_hopper's variants to CUTLASS's best kernel for a problem?

    python benchmarks/cutlass_space.py bf16 2048 4096 8192

CUTLASS's generator, which comes with the headers, lists the kernels that its profiler searches for
such a problem on Hopper. The script builds all of them that load by TMA with two groups of
consumers and races them against the shipped variants. The fastest also run in several orders of
their tiles (the profiler's --raster_order and --swizzle_size). Then it measures the best kernels,
the shipped variants and cuBLAS in interleaved rounds, like a sweep. Layout nt.

PASS: at every size the best shipped variant takes at most 1 / 0.97 of the time of the best of all.
The times of the races go to a separate CSV.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from _common import SEED, Row, conclude, describe, open_gpu

from rooflab.config import SweepConfig, Timing
from rooflab.devices.cuda import cutlass_headers
from rooflab.files import kernels_dir
from rooflab.kernels.base import Kernel, Variant
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import PLAN_GB, CudaFile, read_file
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import rotate
from rooflab.measure.protocol import Protocol
from rooflab.measure.search import race
from rooflab.model.precision import PRECISIONS
from rooflab.workloads.gemm import Gemm

if TYPE_CHECKING:
    from rooflab.devices.base import Device

NAMES = {
    "tf32": "tf32_tf32_f32_f32_f32",
    "fp16": "f16_f16_f32_void_f16",
    "bf16": "bf16_bf16_f32_void_bf16",
    "fp16_fp32": "f16_f16_f32_void_f32",
    "fp8": "e4m3_e4m3_f32_bf16_bf16",
}
"""The profiler's names of our types: A, B, sums, C for reading, C for writing."""

NAME = re.compile(
    r"_(\d+)x(\d+)x\d+_(\d)x(\d)x1_0_tnn_align\d+(_stream_k)?"
    r"_warpspecialized_(pingpong|cooperative)(_fp8_fastaccum)?_epi_(tma|nosmem)$"
)
"""Parts of a kernel's name: tile, cluster, layout (nt is its "tn"), schedule, epilogue."""

ORDERS = (("auto", 1), ("m", 2), ("n", 2), ("m", 4), ("n", 4), ("m", 8), ("n", 8))
"""Direction and width of the order of tiles, tried for the fastest choices."""

TIMING = Timing(energy_s=0)
FINALISTS = 6
SHARE = 0.97


def space(precision: str) -> list[Configuration]:
    """The profiler's kernels as choices of our file; those that do not build are left out later."""
    from cutlass_library import generator, manifest

    options = ["--operations=gemm", "--architectures=90a", "--cuda-version=12.9.0"]
    options.append(f"--kernels=cutlass3x_sm90_tensorop_gemm_{NAMES[precision]}_*_tnn_*")
    args = generator.define_parser().parse_args(options)
    listed = manifest.Manifest(args)
    generator.GenerateSM90(listed, args.cuda_version)
    names = {
        operation.procedural_name()
        for by_capability in listed.operations.values()
        for by_name in by_capability.values()
        for operations in by_name.values()
        for operation in operations
    }
    return [as_choice(found) for name in sorted(names) if (found := NAME.search(name))]


def as_choice(found: re.Match[str]) -> Configuration:
    """The macros that make our file the kernel of that name, with CUTLASS's code throughout."""
    m, n, cluster_m, cluster_n = map(int, found.groups()[:4])
    stream_k, schedule, fast, epilogue = found.groups()[4:]
    switches = {
        "pingpong": ("PINGPONG", schedule == "pingpong"),
        "stream-k": ("STREAM_K", stream_k),
        "fast": ("FAST_ACCUMULATE", fast),
        "direct": ("DIRECT", epilogue == "nosmem"),
    }
    words = [word for word, (_, wanted) in switches.items() if wanted]
    clusters = {"CLUSTER_M": cluster_m, "CLUSTER_N": cluster_n}
    return Configuration(
        name=" ".join([f"CUTLASS {m}x{n} {cluster_m}x{cluster_n}", *words]),
        TILE_M=m,
        TILE_N=n,
        EARLY=0,
        **{name: blocks for name, blocks in clusters.items() if blocks > 1},
        **{switches[word][0]: 1 for word in words},
    )


def ordered(choice: Configuration) -> list[Configuration]:
    """The same cubin, with its tiles in other orders."""
    orders = (
        {"name": f"{choice.name} {raster} {swizzle}", "raster": raster, "swizzle": swizzle}
        for raster, swizzle in ORDERS
    )
    return [choice.model_copy(update=order) for order in orders]


def as_variant(kernel: CudaFile, choice: Configuration) -> Variant:
    return Variant(
        choice.name,
        partial(kernel.prepare_variant, choice),
        partial(kernel.compile_for, choice),
    )


def search(
    device: Device, kernel: CudaFile, problem: Gemm
) -> tuple[Row, dict[str, float], dict[str, str]]:
    """The table's row for one problem, all times of the races, and the failures."""
    precision = problem.precision.name
    rotation = rotate(device, problem, SEED, cold=True)

    def progress(step: str) -> None:
        print(f"\r{step} {problem.size}    ", end="", file=sys.stderr, flush=True)

    def run(choices: Iterable[Configuration]) -> dict[str, float]:
        variants = [as_variant(kernel, choice) for choice in choices]
        times_us, wrong = race(
            device, variants, rotation, progress, PLAN_GB, own_clock_s=TIMING.own_clock_s
        )
        failures.update(wrong)
        return times_us

    failures: dict[str, str] = {}
    shipped = {
        choice.name: choice
        for choice in kernel.header.variants
        if not kernel.variant_unsupported(choice, problem)
    }
    known = {choice.name: choice for choice in space(precision)} | shipped
    times_us = run(known.values())
    fastest = sorted(times_us.keys() - shipped.keys(), key=times_us.__getitem__)[:FINALISTS]
    orders = {again.name: again for name in fastest for again in ordered(known[name])}
    times_us |= run(orders.values())
    print(file=sys.stderr)

    ranking = sorted(times_us, key=times_us.__getitem__)
    ours = [name for name in ranking if name in shipped][:FINALISTS]
    names = dict.fromkeys([*ranking[:FINALISTS], *fastest, *ours])
    measured_us = measure(device, kernel, problem, [(known | orders)[name] for name in names])
    best = min(measured_us.keys() - {"cublas"}, key=measured_us.__getitem__)
    mine = min(measured_us.keys() & set(ours), key=measured_us.__getitem__)
    row: Row = {
        "precision": precision,
        "size": problem.m,
        "tried": len(times_us),
        "cublas µs": measured_us.get("cublas"),
        "best of all": best,
        "best µs": measured_us[best],
        "shipped": mine,
        "shipped µs": measured_us[mine],
        "of cublas": measured_us["cublas"] / measured_us[mine] if "cublas" in measured_us else None,
        "of best": measured_us[best] / measured_us[mine],
        "verdict": "agrees" if measured_us[best] / measured_us[mine] >= SHARE else "SLOWER",
    }
    return row, times_us, failures


def measure(
    device: Device,
    kernel: CudaFile,
    problem: Gemm,
    choices: list[Configuration],
) -> dict[str, float]:
    """Headlines of the choices and of cuBLAS, in interleaved rounds."""
    plain = replace(kernel.as_kernel(), variants=())
    entrants: list[Kernel] = [
        replace(plain, name=choice.name, prepare=partial(kernel.prepare_variant, choice))
        for choice in choices
    ]
    (cublas,) = discover().select(["cublas"], "cuda", "gemm")
    if not cublas.refuses(problem):
        entrants.append(cublas)
    protocol = Protocol(device, SweepConfig(seed=SEED, timing=TIMING))
    return {
        outcome.kernel: outcome.summary.median
        for outcome in protocol.measure(problem, entrants)
        if outcome.summary
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Search CUTLASS's space on Hopper.")
    parser.add_argument("precision", choices=[name for name in PRECISIONS if name != "fp64"])
    parser.add_argument("sizes", nargs="+", type=int)
    parser.add_argument("--out", type=Path, default=Path("results/cutlass_space"))
    args = parser.parse_args()
    device = open_gpu()
    kernel = read_file(kernels_dir() / "gemm" / "cutlass" / "45_cutlass_hopper.cu")
    if reason := kernel.unavailable(device):
        sys.exit(reason)
    rows: list[Row] = []
    races = [("size", "choice", "µs")]
    failures: dict[str, str] = {}
    for size in args.sizes:
        precision = PRECISIONS[args.precision]
        problem = Gemm(m=size, n=size, k=size, precision=precision, layout="nt")
        row, times_us, wrong = search(device, kernel, problem)
        rows.append(row)
        races += [
            (str(size), name, f"{times_us[name]:.2f}")
            for name in sorted(times_us, key=times_us.__getitem__)
        ]
        failures |= wrong
        device.release()
    args.out.mkdir(parents=True, exist_ok=True)
    name = f"cutlass_space_{args.precision}"
    with (args.out / f"{name}_races.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(races)
    heading = (
        f"# CUTLASS's space and the shipped variants, {PRECISIONS[args.precision].title}, layout nt"
        f"\n\n{describe(device)}; CUTLASS {cutlass_headers.usable().version}\n\n"
        f"{len(space(args.precision))} kernels of the profiler's; {len(failures)} choices did not "
        f"build or launch{': ' if failures else ''}{', '.join(failures)}."
    )
    return conclude(rows, heading, args.out, name)


if __name__ == "__main__":
    sys.exit(main())
