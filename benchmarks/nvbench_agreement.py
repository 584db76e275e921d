"""Do NVBench and rooflab measure the same time for the same launch?

    python benchmarks/nvbench_agreement.py

Both time the launches that rooflab prepares, on one GPU: NVBench, then rooflab, then NVBench again,
so that clock drift shows as a difference between NVBench's two passes. NVBench's figure is the
median of its cold ("isolated") samples: one launch between two events behind a blocking kernel,
after a flush of L2; its batch measurement is off. rooflab's figure is the median of its event
pairs: one launch between two events behind a gate, on operands that rotate through three times L2.

A GPU at its power limit is slower the less it idles between launches and the more work it does in
that time. By default NVBench discards samples while the clock is low, and pauses; a real run does
not, so this is switched off. rooflab takes its pairs at NVBench's pace: one kernel at a time, half
a second of launches, a flush of L2 before each in addition to the rotation, and the same share of
the wall time as NVBench reports for its launches. rooflab's sensors are off, because they take
longer than a short launch. The table also has the row of a sweep, which times several kernels in
turn.

Needs ``pip install cuda-bench[cu13]`` (or ``[cu12]``). Its Python package can run its benchmarks
only once per process: each pass is a separate process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from _common import (
    SEED,
    Point,
    conclude,
    describe,
    first_line,
    judge,
    open_gpu,
    percent,
    sweep,
)

from rooflab.devices.cuda.nvml import Nvml
from rooflab.model.measurement import Measurement
from rooflab.runs import store

if TYPE_CHECKING:
    from rooflab.devices.base import Device

KERNELS = ("tiled", "cublas")
PRECISIONS = ("fp32", "fp16")
SIZES = (512, 1024, 2048, 4096)

SHORT_US = 50.0
LIMIT_PERCENT = 2.0
SHORT_LIMIT_PERCENT = 5.0
"""For launches below ``SHORT_US``: the events' overhead is a large part of the figure."""

PASS_LIMIT_S = 200

PACE_S = 0.5
"""NVBench's value: it continues until the sum of its samples reaches this."""
LEAST_SAMPLES = 10
LONGEST_S = 3.0


@dataclass(frozen=True, slots=True)
class NvbenchTime:
    """``statistic`` is the kind of ``us``: the median of the samples if NVBench wrote them.

    ``busy`` is the share of the wall time that the launches took.
    """

    us: float | None = None
    busy: float | None = None
    statistic: str = ""
    samples: int | None = None
    sm_mhz: float | None = None
    reason: str = ""


# One pass, in a separate process -----------------------------------------------------------------


def nvbench_pass(points: list[Point], json_path: Path, timeout_s: float) -> None:
    """Run every point under NVBench, which writes ``json_path`` and a file of samples beside it."""
    import cuda.bench as nvbench

    device = open_gpu()
    device.synchronize()  # makes its own stream the current one, before NVBench's is

    def gemm(state: Any) -> None:
        point = state.get_string("point")
        try:
            _measure(state, device, Point.parse(point))
        except Exception as error:  # one point must not end the others
            state.skip(first_line(error))
            print(f"{point}: {first_line(error)}", file=sys.stderr)
        finally:
            device.release()

    nvbench.register(gemm).add_string_axis("point", [str(point) for point in points])
    options = ["--devices", "0", "--timeout", str(timeout_s), "--throttle-threshold", "0"]
    nvbench.run_all_benchmarks([sys.argv[0], *options, "--jsonbin", str(json_path)])


def _measure(state: Any, device: Device, point: Point) -> None:
    import cupy

    from rooflab.measure.buffers import allocate, poison
    from rooflab.measure.verify import verify

    # CuPy launches kernels, and sets cuBLAS's stream, on the current stream at every call.
    stream = cupy.cuda.ExternalStream(state.get_stream().addressof())
    with stream:
        operands = allocate(device, point.problem, SEED)
        launch = point.find_kernel().prepare(device, operands)
        poison(operands)
        stream.synchronize()

        def launcher(nvbench_launch: Any) -> None:
            launch()

        state.exec(launcher, batched=False)
        # C was poisoned: a right result shows that NVBench did time this kernel.
        stream.synchronize()
        if reason := verify(device, operands, SEED).reason:
            raise RuntimeError(f"wrong result under NVBench: {reason}")


# Both passes and rooflab, compared ---------------------------------------------------------------


def run_pass(number: int, points: list[Point], out: Path, timeout_s: float) -> dict[str, Any]:
    """NVBench's times by point; failures are printed, and are in each point's reason."""
    json_path, log = (out / f"nvbench-{number}{suffix}" for suffix in (".json", ".log"))
    json_path.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--nvbench-pass", str(json_path)]
    command += ["--timeout", str(timeout_s), "--points", *map(str, points)]
    print(f"NVBench, pass {number} (its output: {log})", file=sys.stderr)
    try:
        with log.open("w", encoding="utf-8") as file:
            code = subprocess.run(
                command, stdout=file, stderr=subprocess.STDOUT, timeout=PASS_LIMIT_S, check=False
            ).returncode
        reason = f"NVBench's process ended with {code}" if code else ""
        times = read_times(json_path)
    except subprocess.TimeoutExpired:
        reason, times = f"NVBench's pass took more than {PASS_LIMIT_S} s", {}
    except Exception as error:  # the other pass may work
        reason, times = reason or f"NVBench's results: {first_line(error)}", {}
    if reason:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
        print(f"pass {number}: {reason}", *tail, sep="\n  ", file=sys.stderr)
    missing = NvbenchTime(reason=reason or f"pass {number} has no such point")
    return {str(point): times.get(str(point), missing) for point in points}


def read_times(json_path: Path) -> dict[str, NvbenchTime]:
    from cuda.bench.results import BenchmarkResult

    result = BenchmarkResult.from_json(json_path)
    states = [state for benchmark in result.values() for state in benchmark]
    return {next(iter(state.point.values())): _time_of(state) for state in states}


def _time_of(state: Any) -> NvbenchTime:
    if state.is_skipped:
        return NvbenchTime(reason=state.skip_reason or "skipped by NVBench")

    def summary(tag: str) -> float | None:
        found = state.summaries.get(f"nv/cold/{tag}")
        return None if found is None or found.value is None else float(found.value)

    clock_hz, count = summary("sm_clock_rate/mean"), summary("sample_size")
    sm_mhz = clock_hz / 1e6 if clock_hz else None
    mean_s, wall_s = summary("time/gpu/mean"), summary("walltime")
    busy = mean_s * count / wall_s if mean_s and count and wall_s else None
    if state.samples:
        return NvbenchTime(median(state.samples) * 1e6, busy, "median", len(state.samples), sm_mhz)
    for statistic in ("median", "mean"):  # NVBench's figures, if it did not write the samples
        if seconds := summary(f"time/gpu/{statistic}"):
            return NvbenchTime(seconds * 1e6, busy, statistic, int(count or 0) or None, sm_mhz)
    return NvbenchTime(reason="NVBench reports no cold time")


class NoSensors(Nvml):
    """Finds no GPU, so timing samples no sensors: that takes longer than a short launch."""

    def find(self, pci_bus_id: str, uuid: str = "") -> None:
        return None


@dataclass(frozen=True, slots=True)
class PacedTime:
    """rooflab's median, and the share of the wall time that the launches took."""

    us: float
    busy: float


def paced(point: Point, busy: float | None) -> PacedTime:
    """rooflab's event pairs, each after NVBench's flush, in at most the share ``busy`` of time."""
    from rooflab.devices.cuda.device import CudaDevice
    from rooflab.measure.buffers import rotate

    device = CudaDevice(0, NoSensors())
    rotation = rotate(device, point.problem, SEED, cold=True)
    launches = [point.find_kernel().prepare(device, operands) for operands in rotation.copies]
    launches[0]()  # loads its code, which could wait for a closed gate
    cache = device.arrays.empty(device.last_level_cache_bytes(), dtype="uint8")
    times_us: list[float] = []
    spent_s, elapsed_s, started = 0.0, 0.0, perf_counter()
    while len(times_us) < LEAST_SAMPLES or (spent_s < PACE_S and elapsed_s < LONGEST_S):
        cache.fill(0)
        device.synchronize()
        launch = launches[len(times_us) % len(launches)]
        times_us += device.time_alone(launch, rotation.flush).times_us
        spent_s += times_us[-1] / 1e6
        elapsed_s = perf_counter() - started
        while busy and elapsed_s < spent_s / busy:
            elapsed_s = perf_counter() - started
    device.release()
    return PacedTime(median(times_us), spent_s / elapsed_s)


def rooflab_rows(points: list[Point], out: Path) -> dict[str, Measurement]:
    """rooflab's rows by point, from one sweep over all of them."""
    options = ["--sizes", ",".join(dict.fromkeys(str(point.size) for point in points))]
    for option, column in (("-k", "kernel"), ("-p", "precision")):
        for name in dict.fromkeys(getattr(point, column) for point in points):
            options += [option, name]
    rows = store.load(sweep(options, out)).measurements
    return {
        str(Point(row.kernel, row.problem.precision, int(row.problem.size))): row for row in rows
    }


def compare(
    point: Point, passes: list[NvbenchTime], rooflab: PacedTime, swept: Measurement
) -> dict[str, str | float | None]:
    first, second = passes
    found = [time for time in passes if time.us is not None]
    nvbench_us = fmean(time.us for time in found if time.us is not None) if found else None
    difference = percent(rooflab.us, nvbench_us) if nvbench_us else None
    clocks_mhz = [time.sm_mhz for time in found if time.sm_mhz]
    row: dict[str, str | float | None] = {
        "kernel": point.kernel,
        "precision": point.precision,
        "size": point.size,
        "nvbench 1 µs": first.us,
        "nvbench 2 µs": second.us,
        "nvbench µs": nvbench_us,
        "nvbench statistic": ", ".join(dict.fromkeys(time.statistic for time in found)),
        "nvbench samples": sum(time.samples or 0 for time in found),
        "nvbench SM MHz": fmean(clocks_mhz) if clocks_mhz else None,
        "sweep pair µs": swept.pair_us,
        "sweep headline µs": swept.time_us,
        "sweep flags": swept.flags,
        "nvbench busy": first.busy,
        "rooflab busy": rooflab.busy,
        "rooflab µs": rooflab.us,
        "difference %": difference,
    }
    short = nvbench_us is not None and nvbench_us < SHORT_US
    judge(
        row,
        SHORT_LIMIT_PERCENT if short else LIMIT_PERCENT,
        first.reason or second.reason,
    )
    return row


HEADING = """\
# NVBench and rooflab, the same launches

{device}

nvbench µs: mean of the two passes' {statistic} of cold samples (one launch per event pair, L2
flushed, --throttle-threshold 0). rooflab µs: median of its event pairs at NVBench's pace, with its
flush; busy is the share of the wall time that launches took. difference %: rooflab above NVBench.
Limit: {limit:g} %, and {short_limit:g} % below {short_us:g} µs.

For information, the row of a sweep over all these points: its `pair_us`, and its headline
`time_us`, the mean of launches back to back without the events' overhead. At the power limit both
depend on the other kernels of the sweep."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare rooflab's times with NVBench's.")
    parser.add_argument("--out", type=Path, default=Path("results/nvbench_agreement"))
    parser.add_argument("--timeout", type=float, default=2.0, help="NVBench's seconds per point")
    parser.add_argument(
        "--points", nargs="+", type=Point.parse, help="such as cublas/fp16/4096; else all"
    )
    parser.add_argument("--nvbench-pass", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    points: list[Point] = args.points or [
        Point(*parts) for parts in product(KERNELS, PRECISIONS, SIZES)
    ]
    if args.nvbench_pass:
        nvbench_pass(points, args.nvbench_pass, args.timeout)
        return 0

    if find_spec("cuda") is None or find_spec("cuda.bench") is None:
        sys.exit("NVBench is missing: pip install 'cuda-bench[cu13]' (or [cu12])")
    out = args.out.resolve()  # NVBench writes the samples' paths into its JSON
    out.mkdir(parents=True, exist_ok=True)
    device = open_gpu()
    first = run_pass(1, points, out, args.timeout)
    print("rooflab at NVBench's pace", file=sys.stderr)
    pairs = {str(point): paced(point, first[str(point)].busy) for point in points}
    second = run_pass(2, points, out, args.timeout)
    swept = rooflab_rows(points, out)

    rows = [
        compare(p, [first[str(p)], second[str(p)]], pairs[str(p)], swept[str(p)]) for p in points
    ]
    used = {str(row["nvbench statistic"]) for row in rows if row["nvbench statistic"]}
    heading = HEADING.format(
        device=describe(device),
        statistic=" or ".join(sorted(used)) or "median",
        limit=LIMIT_PERCENT,
        short_limit=SHORT_LIMIT_PERCENT,
        short_us=SHORT_US,
    )
    return conclude(rows, heading, out, "nvbench_agreement")


if __name__ == "__main__":
    sys.exit(main())
