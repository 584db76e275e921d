"""Do streamed problems reach the host link's roof, and is that roof right?

    python benchmarks/transfers.py

First the links: rooflab's ceilings against plain cudaMemcpyAsync of 1 GiB. Then the clock: a long
streamed launch by events and by the host's clock. Then two sweeps, configs/transfers.toml and
``filter`` in device memory (``--run`` judges existing runs instead).

PASS: each ceiling is at least 0.97 of the plain copy's rate; both clocks agree within 1 %; the best
row of add reaches 0.97 of the overlapped roof, with one stream 0.97 of the serial one; those of
blur, spectrum and gemm reach 0.95; the fastest fused filter is 1.5 times as fast as its stages.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import pandas as pd
from _common import Row, conclude, open_gpu, sweep

import rooflab
from rooflab.config import SweepConfig
from rooflab.devices.base import Device
from rooflab.devices.cuda.links import measure_links
from rooflab.kernels.sources import discover
from rooflab.measure.streaming import Streamed
from rooflab.model.roofline import Ceiling
from rooflab.workloads import build

SWEEPS = (("--config", "transfers"), ("filter", "--shape", "64x1024", "-p", "fp32"))
COPY_BYTES = 2**30
REPEATS = 7
LEAST_LINK, LEAST_ADD, LEAST_SERIAL, LEAST_OTHERS, LEAST_FUSED = 0.97, 0.97, 0.97, 0.95, 1.5

LONG = {"rows": 256, "columns": 256, "batch": 65536, "host": "pinned", "chunk": 1024, "streams": 2}
"""An addition whose launch takes more than half a second."""


def at_least(what: str, found: float, limit: float, **where: str) -> Row:
    return {
        **{name: where.get(name, "") for name in ("workload", "kernel", "size")},
        "what": what,
        "found": float(found),
        "limit": limit,
        "verdict": "agrees" if found >= limit else "BELOW",
    }


# The links ---------------------------------------------------------------------------------------


def links(device: Device) -> Iterator[Row]:
    """Ceilings over the rates of plain copies, in the same process."""
    ours = {one.key: one.value for one in measure_links(device) if isinstance(one, Ceiling)}
    for key, ways in {"H2D": ["h2d"], "D2H": ["d2h"], "H2D_BOTH": ["h2d", "d2h"]}.items():
        plain = plain_rate(device.arrays, ways)
        print(f"{key}: ceiling {ours[key] / 1e9:.2f} GB/s, plain {plain / 1e9:.2f} GB/s")
        yield at_least(f"ceiling {key} / cudaMemcpyAsync", ours[key] / plain, LEAST_LINK)


def plain_rate(cupy: Any, ways: list[str]) -> float:
    """Bytes per second and direction: CuPy's runtime calls and events, nothing of rooflab."""
    runtime, main = cupy.cuda.runtime, cupy.cuda.Stream(non_blocking=True)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in ways]
    pairs = [(cupy.cuda.alloc_pinned_memory(COPY_BYTES), cupy.cuda.alloc(COPY_BYTES)) for _ in ways]
    times: list[float] = []
    for _ in range(REPEATS):
        start, end = cupy.cuda.Event(), cupy.cuda.Event()
        start.record(main)
        for way, stream, (host, own) in zip(ways, streams, pairs, strict=True):
            stream.wait_event(start)
            target, source = (own, host) if way == "h2d" else (host, own)
            kind = runtime.memcpyHostToDevice if way == "h2d" else runtime.memcpyDeviceToHost
            runtime.memcpyAsync(target.ptr, source.ptr, COPY_BYTES, kind, stream.ptr)
            done = cupy.cuda.Event()
            done.record(stream)
            main.wait_event(done)
        end.record(main)
        main.synchronize()
        times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return COPY_BYTES / min(times[1:])


# The clock ---------------------------------------------------------------------------------------


def clocks(device: Device) -> Iterator[Row]:
    """One streamed launch of more than half a second, by events and by the host's clock at once."""
    problem = build("add", "fp32", LONG)
    (kernel,) = discover().select(["vectorized"], "cuda", "add")
    one = Streamed(device, problem, kernel.prepare, SweepConfig())
    one.launch()
    device.synchronize()
    found = []
    for _ in range(3):
        started = perf_counter()
        (us,) = device.time([one.launch]).times_us
        found.append((us / 1e6, perf_counter() - started))
    seconds = min(found)
    print("a streamed launch, seconds by events and by the host's clock:", *seconds)
    off = 100 * abs(seconds[1] / seconds[0] - 1)
    yield at_least("1 % / difference of the clocks", 1 / max(off, 1e-3), 1.0, workload="add")


# The runs ----------------------------------------------------------------------------------------


def judge(frame: pd.DataFrame) -> Iterator[Row]:
    """The best rows of each workload against its limits."""
    frame = frame[frame.status == "ok"]
    for workload, rows in frame.groupby("workload", sort=False):
        if workload == "filter":
            yield _fused(rows)
            continue
        several = rows[rows.streams > 1]
        least = LEAST_ADD if workload == "add" else LEAST_OTHERS
        best = several.loc[several.roof_percent.idxmax()]
        share = best.roof_percent / 100
        yield at_least("share of the overlapped roof", share, least, **_where(best))
        if workload == "add":
            single = rows[rows.streams == 1]
            best = single.loc[single.time_us.idxmin()]
            share = best.serial_us / best.time_us
            yield at_least("share of the serial roof", share, LEAST_SERIAL, **_where(best))


def _where(row: Any) -> dict[str, str]:
    return {name: str(row[name]) for name in ("workload", "kernel", "size")}


def _fused(rows: pd.DataFrame) -> Row:
    times = rows.set_index("kernel").time_us
    fastest = rows.loc[rows[rows.kernel != "stages"].time_us.idxmin()]
    gain = times["stages"] / fastest.time_us
    return at_least("times faster than stages", gain, LEAST_FUSED, **_where(fastest))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, action="append", help="judge this run folder")
    parser.add_argument("--out", type=Path, default=Path("results/transfers"))
    args = parser.parse_args()
    rows: list[Row] = []
    if not args.run:
        device = open_gpu()
        rows = [*links(device), *clocks(device)]
        device.release()
    runs = [rooflab.load(path) for path in args.run or (sweep(one, args.out) for one in SWEEPS)]
    for run in runs:
        rows += judge(run.frame())
    names = " and ".join(run.path.name for run in runs)
    heading = f"# Transfers\n\n{runs[0].manifest.device.name}; runs {names}"
    return conclude(rows, heading, args.out, "transfers")


if __name__ == "__main__":
    sys.exit(main())
