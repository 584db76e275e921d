"""Two GPUs of one host or more: links, scaling, and a sweep on all of them.

    python benchmarks/several_gpus.py

First the links: rooflab's rates against plain cudaMemcpyPeerAsync of 1 GiB. Then one sweep on the
first GPU, and the same on all. Then a matrix product on one and two GPUs, from a sweep with
configs/links.toml (``--run`` judges an existing one instead).

PASS: each link is at least 0.95 of the plain copy's rate; a sweep on all GPUs takes at most 1.1
times as long as on one; the product of 16384 in BF16 is at least 1.85 times as fast on two.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

from _common import Row, conclude, open_gpu, sweep

import rooflab
from rooflab.devices.base import Device
from rooflab.model.roofline import Ceiling
from rooflab.runs.scaling import scalings

SIZE = "16384"
COPY_BYTES = 2**30
REPEATS = 7
LEAST_LINK, LEAST_SCALING, MOST_TIME = 0.95, 1.85, 1.1


def row(what: str, found: float, limit: float, *, most: bool = False) -> Row:
    right = found <= limit if most else found >= limit
    words = f"at {'most' if most else 'least'} {limit:g}"
    verdict = "agrees" if right else "OUTSIDE"
    return {"what": what, "found": found, "limit": words, "verdict": verdict}


# Links -------------------------------------------------------------------------------------------


def links(device: Device) -> Iterator[Row]:
    """Our rates over those of plain copies, in the same process."""
    for (here, there), limits in device.routes().items():
        for one in limits:
            if isinstance(one, Ceiling):
                print(f"{here} to {there}: {one.key} {one.provenance} {one.amount}")
            if isinstance(one, Ceiling) and (one.key, one.provenance) == ("PEER", "measured"):
                plain = plain_rate(
                    device.arrays, *(int(n.partition(":")[2]) for n in (here, there))
                )
                print(f"{here} to {there}: plain {plain / 1e9:.1f} GB/s")
                yield row(f"{here} to {there} / plain copy", one.value / plain, LEAST_LINK)


def plain_rate(cupy: Any, here: int, there: int) -> float:
    """Bytes per second: CuPy's runtime calls and events, nothing of rooflab."""
    runtime = cupy.cuda.runtime
    with cupy.cuda.Device(there):
        target = cupy.cuda.alloc(COPY_BYTES)
    with cupy.cuda.Device(here):
        source, stream = cupy.cuda.alloc(COPY_BYTES), cupy.cuda.Stream(non_blocking=True)
        times: list[float] = []
        for _ in range(REPEATS):
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            start.record(stream)
            runtime.memcpyPeerAsync(target.ptr, there, source.ptr, here, COPY_BYTES, stream.ptr)
            end.record(stream)
            stream.synchronize()
            times.append(cupy.cuda.get_elapsed_time(start, end) / 1e3)
    return COPY_BYTES / min(times[1:])


# Sweeps ------------------------------------------------------------------------------------------


def all_and_one(out: Path) -> Iterator[Row]:
    """The time of a sweep on all GPUs over that on one. The first sweep measures roofs."""
    times = {}
    swept("all", out)
    for devices in ("all", "cuda:0"):
        times[devices] = swept(devices, out)
    yield row("time on all GPUs / on one", times["all"] / times["cuda:0"], MOST_TIME, most=True)


def swept(devices: str, out: Path) -> float:
    """Seconds of a command."""
    words = ("sweep", "--config", "quick", "--device", devices, "--out", str(out))
    started = perf_counter()
    subprocess.run([sys.executable, "-m", "rooflab", *words], stdout=sys.stderr, check=True)
    seconds = perf_counter() - started
    print(f"a sweep on {devices}: {seconds:.1f} s")
    return seconds


def products(path: Path) -> Iterator[Row]:
    """The largest square product on two GPUs, by either split."""
    for one in scalings(rooflab.load(path).ok):
        if not one.weak and one.gpus[-1] == 2 and one.base.problem.size == SIZE:
            what = f"{one.base.problem.precision} {SIZE} on two, {one.split}, times one"
            yield row(what, one.times_one[-1], LEAST_SCALING)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/several_gpus"))
    parser.add_argument("--run", type=Path, help="a run of configs/links.toml")
    arguments = parser.parse_args()
    device = open_gpu()
    if device.group_size < 2:
        sys.exit(f"{device.name} is the only GPU here")
    device.claim()
    rows = [*links(device), *all_and_one(arguments.out)]
    rows += products(arguments.run or sweep(("--config", "links"), arguments.out))
    heading = f"Two GPUs: {device.name}"
    return conclude(rows, heading, arguments.out, "several_gpus")


if __name__ == "__main__":
    sys.exit(main())
