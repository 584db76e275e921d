"""Does rooflab's cold time of a short kernel agree with Nsight Compute's duration of it?

    python benchmarks/ncu_agreement.py

cuBLAS in FP16: a launch is short, and the overhead of an event pair is a large part of its time.
Nsight Compute (``ncu``, with permission to read counters) flushes the caches before each kernel and
does not change the clocks. Its median duration is compared with rooflab's headline on rotated
operands. Both caches are cold, and both clocks are warm. For a launch of several kernels the
durations are added; the table names the kernels.
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from _common import SEED, Point, Rooflab, RooflabTime, conclude, describe, judge, open_gpu, percent

from rooflab.devices.cuda.ncu import find

SIZES = (512, 1024, 2048)
LIMIT_PERCENT = 10.0
LAUNCHES = 20
WARM_UP_SIZE = 8192
WARM_UP_S = 1.0
NCU_LIMIT_S = 180

DURATION = "gpu__time_duration.sum"
CLOCK = "gpc__cycles_elapsed.avg.per_second"
MICROSECONDS = {
    **dict.fromkeys(("ns", "nsecond"), 1e-3),
    **dict.fromkeys(("us", "usecond"), 1.0),
    **dict.fromkeys(("ms", "msecond"), 1e3),
    **dict.fromkeys(("s", "second"), 1e6),
}
MEGAHERTZ = {
    **dict.fromkeys(("hz", "cycle/second", "cycle/s"), 1e-6),
    **dict.fromkeys(("mhz", "cycle/usecond", "cycle/us"), 1.0),
    **dict.fromkeys(("ghz", "cycle/nsecond", "cycle/ns"), 1e3),
}


@dataclass(frozen=True, slots=True)
class NcuTime:
    us: float | None = None
    sm_mhz: float | None = None
    kernels: str = ""
    reason: str = ""


# Under ncu, in a separate process ----------------------------------------------------------------


def launch_all(point: Point, count: int) -> None:
    """Warm up the clock, then launch ``count`` times between profiler start and stop."""
    from cupy.cuda import runtime

    from rooflab.measure.buffers import allocate, rotate

    device = open_gpu()
    kernel = point.find_kernel()
    large = Point(point.kernel, point.precision, WARM_UP_SIZE).problem
    warm_up = kernel.prepare(device, allocate(device, large, SEED))
    copies = rotate(device, point.problem, SEED, cold=True).copies
    launches = [kernel.prepare(device, operands) for operands in copies]
    launches[0]()  # loads the module
    end = time.monotonic() + WARM_UP_S
    while time.monotonic() < end:
        for _ in range(20):
            warm_up()
        device.synchronize()
    runtime.profilerStart()
    for turn in range(count):
        launches[turn % len(launches)]()
    device.synchronize()
    runtime.profilerStop()


# Driving ncu -------------------------------------------------------------------------------------


def run_ncu(ncu: str, program: Sequence[str], log: Path) -> NcuTime:
    """The time of LAUNCHES launches of a Python program, between profiler start and stop.

    Never raises: ``reason`` is the cause of a missing figure.
    """
    log.unlink(missing_ok=True)
    command = [ncu, "--csv", "--page", "raw", "--print-units", "base", "--log-file", str(log)]
    command += ["--metrics", f"{DURATION},{CLOCK}", "--profile-from-start", "off"]
    command += ["--clock-control", "none", "--cache-control", "all", "--target-processes", "all"]
    command += [sys.executable, *program]
    print(f"ncu, {' '.join(program)} (its output: {log})", file=sys.stderr)
    try:
        ended = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=NCU_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return NcuTime(reason=f"ncu took more than {NCU_LIMIT_S} s")
    except OSError as error:
        return NcuTime(reason=f"ncu does not start: {error}")
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    found = parse(text + "\n" + ended.stdout, LAUNCHES)
    if found.reason:
        tail = [*text.splitlines()[-8:], *ended.stdout.splitlines()[-8:]]
        print(f"{found.reason}; ncu ended with {ended.returncode}", file=sys.stderr)
        print(*tail, sep="\n  ", file=sys.stderr)
    return found


def parse(text: str, launches: int) -> NcuTime:
    """The median duration of a launch from ncu's raw page, whose second line has the units."""
    lines = text.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if start is None:
        errors = [line for line in lines if "==ERROR==" in line or "ERR_" in line]
        return NcuTime(reason=errors[0].strip() if errors else "ncu wrote no table")
    header, *rest = csv.reader(line for line in lines[start:] if line.startswith('"'))
    records = [dict(zip(header, cells, strict=True)) for cells in rest if len(cells) == len(header)]
    if DURATION not in header or not records:
        return NcuTime(reason=f"ncu's table has no {DURATION}")
    units, *kernels = records
    times_us = [_number(row[DURATION], units[DURATION], MICROSECONDS) for row in kernels]
    known = [value for value in times_us if value is not None]
    if not known or len(known) < len(times_us):
        seen = sorted({row[DURATION] for row in kernels})
        return NcuTime(reason=f"ncu reports no duration: {seen[:3]} {units[DURATION]!r}")
    each, over = divmod(len(known), launches)
    if over or not each:
        return NcuTime(reason=f"ncu saw {len(known)} kernels in {launches} launches")
    sums = [sum(known[i : i + each]) for i in range(0, len(known), each)]
    clocks = [_number(row.get(CLOCK, ""), units.get(CLOCK, ""), MEGAHERTZ) for row in kernels]
    clocks_mhz = [clock for clock in clocks if clock]
    names = dict.fromkeys(row.get("Kernel Name", "?").partition("(")[0] for row in kernels)
    return NcuTime(median(sums), median(clocks_mhz) if clocks_mhz else None, ", ".join(names))


def _number(cell: str, unit: str, factors: dict[str, float]) -> float | None:
    """``cell`` in the unit of ``factors``; None for ``n/a``, an empty cell or an unknown unit."""
    try:
        return float(cell.replace(",", "")) * factors[unit.strip().lower()]
    except (KeyError, ValueError):
        return None


def compare(point: Point, ncu: NcuTime, rooflab: RooflabTime) -> dict[str, str | float | None]:
    cold_us = rooflab.headline_us if rooflab.cache == "cold" else None
    warm = f"rooflab's operands were {rooflab.cache}" if rooflab.headline_us else ""
    row: dict[str, str | float | None] = {
        "size": point.size,
        "kernels": ncu.kernels,
        "ncu µs": ncu.us,
        "rooflab µs": rooflab.headline_us,
        "rooflab pair µs": rooflab.pair_us,
        "ncu SM MHz": ncu.sm_mhz,
        "rooflab SM MHz": rooflab.sm_mhz,
        "rooflab flags": rooflab.flags,
        "difference %": percent(cold_us, ncu.us) if cold_us and ncu.us else None,
    }
    judge(row, LIMIT_PERCENT, ncu.reason or rooflab.reason or warm)
    return row


HEADING = """\
# Nsight Compute and rooflab, cuBLAS FP16, cold

{device}; {ncu}

ncu µs: median {metric} of {launches} launches, caches flushed before each kernel, clocks not
touched. difference %: rooflab's headline above that."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare rooflab's cold times with ncu's.")
    parser.add_argument("--out", type=Path, default=Path("results/ncu_agreement"))
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute's command line")
    parser.add_argument("--launch", type=Point.parse, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch:
        launch_all(args.launch, LAUNCHES)
        return 0

    ncu = find_ncu(args.ncu)
    out = args.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    points = [Point("cublas", "fp16", size) for size in SIZES]
    profiled = {
        point.size: run_ncu(ncu, [__file__, "--launch", str(point)], out / f"ncu-{point.size}.csv")
        for point in points
    }
    device = open_gpu()
    rooflab = Rooflab(device)
    rows = [compare(point, profiled[point.size], rooflab.time(point)) for point in points]
    heading = HEADING.format(
        device=describe(device), ncu=ncu_version(ncu), metric=DURATION, launches=LAUNCHES
    )
    return conclude(rows, heading, out, "ncu_agreement")


def find_ncu(name: str) -> str:
    """The program that the user names, else the one that rooflab finds."""
    found = shutil.which(name) or find()
    return found or sys.exit(f"{name} is not found: install Nsight Compute, or give --ncu its path")


def ncu_version(ncu: str) -> str:
    ended = subprocess.run([ncu, "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in ended.stdout.splitlines() if line.startswith("Version")]
    return f"ncu {lines[0].removeprefix('Version ')}" if lines else "ncu of an unknown version"


if __name__ == "__main__":
    sys.exit(main())
