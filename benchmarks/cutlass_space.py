"""How close are cutlass_hopper's variants to the best that CUTLASS has for a problem?

    python benchmarks/cutlass_space.py bf16 2048 4096 8192

Builds the space that the CUTLASS profiler searches for such a kernel on Hopper, tiles by clusters
by schedules, lets all of it race cuBLAS and the shipped variants, and then measures the best ones,
the shipped variants and cuBLAS once more, in interleaved rounds as a sweep does. Layout nt.

PASS: at every size the best shipped variant takes at most 1 / 0.97 of the time of the best of all.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from _common import SEED, Row, conclude, describe, open_gpu

from rooflab.backends import cutlass, discover
from rooflab.config import SweepConfig, Timing
from rooflab.measure.buffers import allocate, rotate
from rooflab.measure.protocol import Protocol
from rooflab.measure.search import race
from rooflab.problem import PRECISIONS, Problem
from rooflab.registry import Kernel, Variant
from rooflab.resources import kernels_dir

if TYPE_CHECKING:
    from rooflab.devices.base import Device

TILES = (
    *((64, 64), (64, 128), (64, 192), (64, 256), (128, 64), (128, 128), (128, 192), (128, 256)),
    *((256, 64), (256, 128), (256, 192)),
)
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (4, 1), (1, 4))
ORDERS = (("auto", 1), ("m", 2), ("n", 2), ("m", 4), ("n", 4), ("m", 8), ("n", 8))
"""Direction and width of the walk over tiles, tried for the fastest choices."""

SUMS_PER_THREAD = 256
"""Registers that sums may take: a warp group of 128 threads has at most TILE_M x TILE_N / 128."""

FINALISTS = 6
SHARE = 0.97


def space(precision: str) -> list[cutlass.Choice]:
    """Tiles, clusters and schedules that fit; those that do not build drop out by themselves."""
    choices = []
    for (m, n), (cluster_m, cluster_n) in product(TILES, CLUSTERS):
        for schedule in ("pingpong", "cooperative", "stream-k"):
            # Ping-pong gives a tile to one warp group, the others divide it between two.
            groups = 1 if schedule == "pingpong" else 2
            if m < 64 * groups or m * n / (128 * groups) > SUMS_PER_THREAD * 3 / 4:
                continue
            for fast in (0, 1) if precision == "fp8" else (0,):
                macros = {
                    **{"TILE_M": m, "TILE_N": n, "CLUSTER_M": cluster_m, "CLUSTER_N": cluster_n},
                    **({"PINGPONG": 1} if schedule == "pingpong" else {}),
                    **({"STREAM_K": 1} if schedule == "stream-k" else {}),
                    **({"FAST_ACCUMULATE": 1} if fast else {}),
                }
                name = f"{m}x{n} {cluster_m}x{cluster_n} {schedule}{' fast' if fast else ''}"
                choices.append(cutlass.Choice(name=name, **macros))
    return choices


def ordered(choice: cutlass.Choice) -> list[cutlass.Choice]:
    """The same cubin, with its tiles in other orders."""
    orders = (
        {"name": f"{choice.name} {raster} {swizzle}", "raster": raster, "swizzle": swizzle}
        for raster, swizzle in ORDERS
    )
    return [choice.model_copy(update=order) for order in orders]


def as_variant(kernel: cutlass.CutlassKernel, choice: cutlass.Choice) -> Variant:
    return Variant(
        choice.name,
        partial(kernel.prepare_variant, choice),
        partial(kernel.compile_for, choice),
    )


def search(
    device: Device, kernel: cutlass.CutlassKernel, problem: Problem
) -> tuple[Row, dict[str, str]]:
    """The table's row for one problem, and what did not work."""
    precision = problem.precision.name
    sets = rotate(device, allocate(device, problem, SEED), cold=True).sets

    def tell(what: str) -> None:
        print(f"\r{what} {problem.shape}    ", end="", file=sys.stderr, flush=True)

    shipped = [
        choice for choice in kernel.header.variants if not kernel.variant_objection(choice, problem)
    ]
    everything = space(precision)
    times_us, failures = race(device, [as_variant(kernel, one) for one in everything], sets, tell)
    fastest = sorted(times_us, key=times_us.__getitem__)[:FINALISTS]
    finalists = [again for one in everything if one.name in fastest[:3] for again in ordered(one)]
    again_us, more = race(device, [as_variant(kernel, one) for one in finalists], sets, tell)
    shipped_us, others = race(device, [as_variant(kernel, one) for one in shipped], sets, tell)
    print(file=sys.stderr)
    names = [*fastest, *sorted(again_us, key=again_us.__getitem__)[:FINALISTS]]
    ours = sorted(shipped_us, key=shipped_us.__getitem__)[:FINALISTS]
    choices = [*everything, *finalists, *shipped]
    measured_us = measure(device, kernel, problem, choices, names + ours)
    best = min(measured_us.keys() - {"cublas"}, key=measured_us.__getitem__)
    mine = min(measured_us.keys() & set(ours), key=measured_us.__getitem__)
    row: Row = {
        "precision": precision,
        "size": problem.m,
        "tried": len(times_us) + len(again_us) + len(shipped_us),
        "cublas µs": measured_us.get("cublas"),
        "best of all": best,
        "best µs": measured_us[best],
        "shipped": mine,
        "shipped µs": measured_us[mine],
        "of cublas": measured_us["cublas"] / measured_us[mine] if "cublas" in measured_us else None,
        "of best": measured_us[best] / measured_us[mine],
        "verdict": "agrees" if measured_us[best] / measured_us[mine] >= SHARE else "SLOWER",
    }
    return row, failures | more | others


def measure(
    device: Device,
    kernel: cutlass.CutlassKernel,
    problem: Problem,
    choices: list[cutlass.Choice],
    names: list[str],
) -> dict[str, float]:
    """Headlines of the named choices and of cuBLAS, in interleaved rounds."""
    plain = replace(kernel.as_kernel(), variants=())
    known = {choice.name: choice for choice in choices}
    entrants: list[Kernel] = [
        replace(plain, name=name, prepare=partial(kernel.prepare_variant, known[name]))
        for name in dict.fromkeys(names)
    ]
    (cublas,) = discover().select(["cublas"], "cuda")
    if not cublas.refuses(problem):
        entrants.append(cublas)
    protocol = Protocol(device, SweepConfig(seed=SEED, timing=Timing(energy_s=0)))
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
    kernel = cutlass.read_file(kernels_dir() / "cutlass" / "cutlass_hopper.cu")
    if reason := kernel.unavailable(device):
        sys.exit(reason)
    rows, failures = [], {}
    for size in args.sizes:
        problem = Problem(size, size, size, PRECISIONS[args.precision], "nt")
        row, wrong = search(device, kernel, problem)
        rows.append(row)
        failures |= wrong
        device.release()
    heading = (
        f"# CUTLASS's space and the shipped variants, {PRECISIONS[args.precision].title}, layout nt"
        f"\n\n{describe(device)}\n\n{len(failures)} choices did not build or launch."
    )
    return conclude(rows, heading, args.out, f"cutlass_space_{args.precision}")


if __name__ == "__main__":
    sys.exit(main())
