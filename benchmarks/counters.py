"""Are the clock, the FLOPs and the bytes of a row those that hardware counters find?

    python benchmarks/counters.py

First the clock alone: rooflab's stamps and CUPTI's counters over the same launches. Then two
sweeps, benchmarks/counters.toml and cuBLAS at 8192, whose levels are drawn in one figure
(``--run`` judges existing runs instead).

PASS: over the same launches the stamps are within 0.1 % of CUPTI, 0.5 % at the power limit; reading
the first counters takes less than 1 s, later ones less than 0.1 s; the executed FLOPs of the pipe
that multiplies are the formula's within 1 %, 2 % at 8192; a copy moves its bytes within 0.5 %;
cuBLAS in FP16 and BF16 at 8192 reaches 90 to 96 % of the observed roof.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
from _common import Row, conclude, open_gpu, percent, sweep

import rooflab
from rooflab import figures
from rooflab.devices.base import Device
from rooflab.devices.cuda.cupti import Cupti, Host, RangeProfiler
from rooflab.devices.cuda.gate import SmClock

CONFIG = os.path.relpath(Path(__file__).with_suffix(".toml"))
SWEEPS = (
    ("--config", CONFIG),
    ("-k", "cublas", "--sizes", "8192", "-p", "fp32,fp16,bf16", "--counters"),
)
PIPES = ("tensor_flops", "fp64_flops", "fp32_flops", "fp16_flops")

CLOCK = "sm__cycles_elapsed.avg.per_second"
HEAT_S = 1.5
WINDOW_S = 0.05


# The clock, by both ways over the same launches --------------------------------------------------


def loads(device: Device) -> dict[str, Callable[[], None]]:
    """Launches that draw little and much power."""
    cupy = device.arrays
    source, target = cupy.zeros((2, 2**28), "float32")
    found: dict[str, Callable[[], None]] = {"copy": lambda: cupy.copyto(target, source)}
    for name, number, size in (("FP32", "float32", 4096), ("FP16", "float16", 8192)):
        a, b = (cupy.random.uniform(-1, 1, (size, size)).astype(number) for _ in range(2))
        c = cupy.empty_like(a)

        def multiply(a: Any = a, b: Any = b, c: Any = c) -> None:
            cupy.matmul(a, b, out=c)

        found[f"cuBLAS {name} {size}"] = multiply
    return found


def clocks(device: Device) -> Iterator[Row]:
    cupti = Cupti()
    profiler = RangeProfiler(cupti, Host(cupti, cupti.chip(0)), [CLOCK])
    stamps = SmClock(device.arrays, int(device.fact("sm_count") or 1))
    for name, launch in loads(device).items():
        us = heat(device, launch)

        def work(launch: Callable[[], None] = launch, us: float = us) -> None:
            stamps.start()
            for _ in range(max(1, int(WINDOW_S * 1e6 / us))):
                launch()
            stamps.stop()

        with profiler:
            counted = profiler.measure(work)[CLOCK] / 1e6
        row: Row = {"workload": name, "kernel": "", "precision": "", "size": ""}
        # At the power limit the clock changes, and CUPTI's window is a little longer.
        limit = 0.5 if "FP16" in name else 0.1
        window = stamps.window()
        mhz = window.mhz if window else 0.0
        yield verdict(row, "SM clock, MHz, same launches", mhz, counted, limit)


def heat(device: Device, launch: Callable[[], None]) -> float:
    """Launch until the power limit has settled the clock; microseconds per launch."""
    started, us = perf_counter(), 0.0
    while perf_counter() - started < HEAT_S:
        (us,) = device.time_batch([launch] * 20).times_us
    return us


def durations(device: Device) -> Iterator[Row]:
    """How long it takes to read all counters, of a launch of a few microseconds."""
    seconds = []
    for _ in range(6):
        started = perf_counter()
        device.count([device.nothing])
        seconds.append(perf_counter() - started)
    for what, found, limit in (("first", seconds[0], 1.0), ("later", max(seconds[1:]), 0.1)):
        yield {
            "workload": "empty launch",
            "kernel": "",
            "precision": "",
            "size": "",
            "what": f"s, {what} reading",
            "rooflab": found,
            "reference": limit,
            "difference %": percent(found, limit),
            "limit %": 0.0,
            "verdict": "agrees" if found <= limit else "DIFFERS",
        }


# A run -------------------------------------------------------------------------------------------


def judge(frame: pd.DataFrame) -> Iterator[Row]:
    """``frame`` has the rows of a run with status ok."""
    for record in frame.to_dict("records"):
        row = {name: record[name] for name in ("workload", "kernel", "precision", "size")}
        if record["flops"]:
            limit = 2.0 if record["size"] == "8192" else 1.0
            executed = max(record[pipe] for pipe in PIPES)
            yield verdict(row, "GFLOP", record["flops"] / 1e9, executed / 1e9, limit)
        else:
            moved = record["bytes"], record["dram_bytes"]
            yield verdict(row, "DRAM MB", moved[0] / 1e6, moved[1] / 1e6, 0.5)
        large = record["kernel"] == "cublas" and record["size"] == "8192"
        if large and record["precision"] in ("fp16", "bf16"):
            yield verdict(row, "% of observed", record["observed_percent"], 93.0, 3.3)


def verdict(row: Row, what: str, ours: float, reference: float, limit: float) -> Row:
    difference = percent(ours, reference)
    return {
        **row,
        "what": what,
        "rooflab": float(ours),
        "reference": float(reference),
        "difference %": difference,
        "limit %": limit,
        "verdict": "agrees" if abs(difference) <= limit else "DIFFERS",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, action="append", help="judge this run folder")
    parser.add_argument("--out", type=Path, default=Path("results/counters"))
    args = parser.parse_args()
    rows: list[Row] = []
    if not args.run:
        device = open_gpu()
        rows = [*durations(device), *clocks(device)]
        device.release()
    runs = [rooflab.load(path) for path in args.run or (sweep(one, args.out) for one in SWEEPS)]
    for run in runs:
        frame = run.frame()
        rows += judge(frame[frame.status == "ok"])
    figures.save(figures.draw("levels", runs), args.out / "levels.png")
    first = runs[0].manifest
    names = " and ".join(run.path.name for run in runs)
    heading = f"# Counters\n\n{first.device.name}; runs {names}"
    return conclude(rows, heading, args.out, "counters")


if __name__ == "__main__":
    sys.exit(main())
