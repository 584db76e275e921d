"""Is a CPU kernel as fast beside another library's kernel as alone?

    python benchmarks/company_cpu.py

The idle threads of one library spin for a while after its kernel: a kernel that they disturb takes
twice its time or more. Compares ``tiled`` (Numba) in FP32 at 512, as the median ratio of pairs with
its 95 % interval: sweeps with and without ``blas``, in turn; and, in one process, rounds right
after a round of ``blas`` and right after one of ``tiled``.

PASS: the interval is not wholly above 1.05, and no part of it is above 1.2: a wider one could hide
a disturbed kernel.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from _common import SEED, Row, conclude, sweep

import rooflab
from rooflab.devices.registry import open_device
from rooflab.kernels.sources import discover
from rooflab.measure.buffers import allocate
from rooflab.measure.statistics import summarize
from rooflab.workloads import build

KERNEL, COMPANION = "tiled", "blas"
OPTIONS = ["gemm", "-p", "fp32", "--sizes", "512", "--config", "quick", "--device", "cpu"]
PAIRS = 8
ROUND_PAIRS = 100
LAUNCHES = 8
LIMIT = 1.05
NOISE_LIMIT = 1.2


def measure(kernels: list[str], out: Path) -> float:
    """The time of KERNEL in a sweep of ``kernels``, in µs."""
    chosen = [option for kernel in kernels for option in ("-k", kernel)]
    run = rooflab.load(sweep([*OPTIONS, *chosen], out))
    times = [row.time_us for row in run.ok if row.kernel == KERNEL and row.time_us]
    if not times:
        sys.exit(f"{KERNEL} has no time in {run.path}")
    return times[0]


def measure_pair(number: int, out: Path) -> tuple[float, float]:
    """Alone and in company, µs. The order alternates: drift affects both equally."""
    alone, company = [KERNEL], [KERNEL, COMPANION]
    if number % 2:
        company_us = measure(company, out)
        return measure(alone, out), company_us
    return measure(alone, out), measure(company, out)


def measure_rounds() -> list[tuple[float, float]]:
    """Pairs of rounds of KERNEL after itself and after COMPANION, µs."""
    device = open_device("cpu")
    device.claim()
    problem = build("gemm", "fp32", {"m": 512, "n": 512, "k": 512})
    operands = allocate(device, problem, SEED, "uniform")
    launch = {
        kernel.name: kernel.prepare(device, operands)
        for kernel in discover().select([KERNEL, COMPANION], "cpu", "gemm")
    }

    def run_round(timed: Callable[[], None]) -> float:
        device.quiesce(timed)
        return median(device.time([timed] * LAUNCHES).times_us)

    order, pairs = random.Random(SEED), []
    for _ in range(ROUND_PAIRS):
        after = {}
        for before in order.sample([KERNEL, COMPANION], 2):
            run_round(launch[before])
            after[before] = run_round(launch[KERNEL])
        pairs.append((after[KERNEL], after[COMPANION]))
    return pairs


def judge(what: str, pairs: list[tuple[float, float]]) -> Row:
    found = summarize([[company / alone] for alone, company in pairs])
    if found.low > LIMIT:
        verdict = "DISTURBED"
    else:
        verdict = "agrees" if found.high <= NOISE_LIMIT else "too noisy to tell"
    return {
        "pairs of": what,
        "pairs": len(pairs),
        "alone µs": median(alone for alone, _ in pairs),
        f"beside {COMPANION} µs": median(company for _, company in pairs),
        "ratio": found.median,
        "from": found.low,
        "to": found.high,
        "limit": LIMIT,
        "verdict": verdict,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=PAIRS)
    parser.add_argument("--out", type=Path, default=Path("results/company_cpu"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pairs = [measure_pair(number, args.out) for number in range(args.pairs)]
    run = rooflab.load(sorted(args.out.glob("*/manifest.json"))[-1].parent)
    ratios = ", ".join(f"{company / alone:.2f}" for alone, company in pairs)
    heading = (
        f"# {KERNEL} beside {COMPANION}, FP32, 512: {run.manifest.device.name}\n\n"
        f"Ratios of sweeps: {ratios}"
    )
    rows = [judge("sweeps", pairs), judge("rounds in one process", measure_rounds())]
    return conclude(rows, heading, args.out, "company_cpu")


if __name__ == "__main__":
    sys.exit(main())
