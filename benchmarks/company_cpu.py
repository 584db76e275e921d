"""Is a CPU kernel as fast beside another library's kernel as alone?

    python benchmarks/company_cpu.py

Sweeps ``tiled`` (Numba) alone and beside ``blas`` in turn: FP32, 512, twelve pairs of sweeps. The
idle threads of one library spin for a while after its kernel: a kernel that they disturb takes
twice its time or more. The ratio is the median of the pairs', with its 95 % interval.

PASS: the interval is not wholly above 1.05, and no part of it is above 1.2: a wider one could hide
a disturbed kernel.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from statistics import median

from _common import Row, conclude, sweep

import rooflab
from rooflab.measure.statistics import summarize

KERNEL, COMPANION = "tiled", "blas"
OPTIONS = ["gemm", "-p", "fp32", "--sizes", "512", "--config", "quick", "--device", "cpu"]
PAIRS = 12
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


def judge(pairs: list[tuple[float, float]]) -> Row:
    found = summarize([[company / alone] for alone, company in pairs])
    if found.low > LIMIT:
        verdict = "DISTURBED"
    else:
        verdict = "agrees" if found.high <= NOISE_LIMIT else "too noisy to tell"
    return {
        "kernel": f"{KERNEL}, FP32, 512",
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
    heading = f"# {KERNEL} beside {COMPANION}: {run.manifest.device.name}\n\nRatios: {ratios}"
    return conclude([judge(pairs)], heading, args.out, "company_cpu")


if __name__ == "__main__":
    sys.exit(main())
