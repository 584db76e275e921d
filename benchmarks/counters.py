"""Are the clock, the FLOPs and the bytes of a row those that hardware counters find?

    python benchmarks/counters.py

Runs ``rooflab sweep --config benchmarks/counters.toml`` (``--run`` judges an existing run).

PASS: the counted SM clock is within 0.1 % of CUPTI's for copies and FP32, and 1 % for the rest,
whose clock changes within a window; executed FLOPs are the formula's within 1 %, 2 % at 8192;
a copy moves its bytes within 0.5 %; cuBLAS in FP16 and BF16 at 8192 reaches 90 to 96 % of the
observed roof.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from _common import Row, conclude, percent, sweep

import rooflab

CONFIG = Path(os.path.relpath(Path(__file__).with_suffix(".toml")))


def judge(frame: pd.DataFrame) -> Iterator[Row]:
    """``frame`` has the rows of a run with status ok."""
    for row in frame.itertuples():
        steady = row.workload == "copy" or row.precision == "fp32"
        yield verdict(row, "SM clock, MHz", row.sm_mhz, row.counted_mhz, 0.1 if steady else 1.0)
        if row.flops:
            limit = 2.0 if row.size == "8192" else 1.0
            yield verdict(row, "GFLOP", row.flops / 1e9, row.counted_flops / 1e9, limit)
        else:
            yield verdict(row, "DRAM MB", row.bytes / 1e6, row.dram_bytes / 1e6, 0.5)
        if row.kernel == "cublas" and row.size == "8192" and row.precision in ("fp16", "bf16"):
            yield verdict(row, "% of observed", row.observed_percent, 93.0, 3.3)


def verdict(row: object, what: str, ours: float, reference: float, limit: float) -> Row:
    difference = percent(ours, reference)
    return {
        **{name: getattr(row, name) for name in ("workload", "kernel", "precision", "size")},
        "what": what,
        "rooflab": float(ours),
        "reference": float(reference),
        "difference %": difference,
        "limit %": limit,
        "verdict": "agrees" if abs(difference) <= limit else "DIFFERS",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, help="judge this run folder instead of measuring")
    parser.add_argument("--out", type=Path, default=Path("results/counters"))
    args = parser.parse_args()
    run = rooflab.load(args.run or sweep(["--config", str(CONFIG)], args.out))
    frame = run.frame()
    heading = f"# {run.path.name}: {run.manifest.device.name}"
    return conclude(list(judge(frame[frame.status == "ok"])), heading, args.out, "counters")


if __name__ == "__main__":
    sys.exit(main())
