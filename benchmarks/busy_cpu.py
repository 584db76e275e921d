"""CPU sweeps beside a busy neighbour: is every row above its roof flagged, is every roof true?

    python benchmarks/busy_cpu.py

A process keeps one core busy for 0.2 to 2 s, idles as long, and so on. Beside it run twenty sweeps
of ``benchmarks/busy_cpu.toml``. One sweep before and one after them are undisturbed; the lower
roofs of the two are the reference. For a machine with two cores; the sweeps use both.

PASS: in every sweep each row above 100 % of its roof has the flag ``above_roof``, and the roofs are
at least 0.75 of the reference, or their caveat says that other programs disturbed them. A roof that
a neighbour halves is false; a virtual machine's bandwidth varies by 20 % without one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter, sleep

import psutil
from _common import SEED, Row, conclude, sweep

import rooflab
from rooflab.model.roofline import DISTURBED, Ceiling

CONFIG = Path(os.path.relpath(Path(__file__).with_suffix(".toml")))
OPTIONS = ["--config", str(CONFIG), "--device", "cpu"]
SWEEPS = 20
PHASE_S = (0.2, 2.0)
TRUE_ROOF = 0.75


def disturb() -> None:
    """Busy and idle in turn, until the process is ended."""
    phases = random.Random(SEED)
    while True:
        end = perf_counter() + phases.uniform(*PHASE_S)
        while perf_counter() < end:
            pass
        sleep(phases.uniform(*PHASE_S))


@contextmanager
def neighbour() -> Iterator[psutil.Process]:
    """A process that disturbs until the context ends."""
    process = multiprocessing.get_context("spawn").Process(target=disturb, daemon=True)
    process.start()
    try:
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.join()


def roofs(run: rooflab.Run) -> dict[str, Ceiling]:
    """The roofs that limit the rows, by name."""
    compute, bandwidth = run.manifest.roofline.compute("fp32"), run.manifest.roofline.bandwidth()
    if compute is None or bandwidth is None:
        sys.exit(f"{run.path} has no roofs")
    return {"GFLOP/s": compute, "GB/s": bandwidth}


def disturbed_sweep(out: Path, beside: psutil.Process) -> tuple[rooflab.Run, float]:
    """A sweep, and the share of its time in which the neighbour was busy."""
    started, used = perf_counter(), beside.cpu_times().user
    run = rooflab.load(sweep(OPTIONS, out))
    return run, (beside.cpu_times().user - used) / (perf_counter() - started)


def judge(run: rooflab.Run, busy: float, reference: dict[str, float]) -> Row:
    rows = [row for row in run.ok if row.roof_percent is not None]
    above = [row for row in rows if (row.roof_percent or 0) > 100]
    faults = []
    if unflagged := sum("above_roof" not in row.flag_names for row in above):
        faults.append(f"{unflagged} rows lack above_roof")
    if len(run.ok) < run.manifest.points:
        faults.append(f"{len(run.ok)} of {run.manifest.points} rows are ok")
    found = roofs(run)
    disturbed = [name for name, roof in found.items() if DISTURBED in roof.caveat]
    for name, roof in found.items():
        if roof.value < TRUE_ROOF * reference[name] and name not in disturbed:
            faults.append(f"the roof in {name} is too low")
    return {
        "sweep": run.path.name,
        "neighbour busy %": round(100 * busy),
        "rows": len(rows),
        "highest % of roof": max((row.roof_percent or 0 for row in rows), default=0.0),
        "above_roof": sum("above_roof" in row.flag_names for row in rows),
        "contended": sum("contended" in row.flag_names for row in rows),
        **{f"roof {name}": round(roof.value / 1e9, 1) for name, roof in found.items()},
        **{f"of {name}": roof.value / reference[name] for name, roof in found.items()},
        "caveat on": ", ".join(disturbed),
        "verdict": "; ".join(faults) or "agrees",
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweeps", type=int, default=SWEEPS)
    parser.add_argument("--out", type=Path, default=Path("results/busy_cpu"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    quiet = [rooflab.load(sweep(OPTIONS, args.out))]
    with neighbour() as beside:
        runs = [disturbed_sweep(args.out, beside) for _ in range(args.sweeps)]
    quiet.append(rooflab.load(sweep(OPTIONS, args.out)))
    reference = {name: min(roofs(run)[name].value for run in quiet) for name in roofs(quiet[0])}
    table = [judge(run, busy, reference) for run, busy in runs]
    undisturbed = ", ".join(f"{value / 1e9:.1f} {name}" for name, value in reference.items())
    device = quiet[0].manifest.device
    heading = (
        f"# {args.sweeps} sweeps beside a busy neighbour: {device.name}, "
        f"{device.facts['threads'].value} threads\n\nUndisturbed roofs: {undisturbed}"
    )
    return conclude(table, heading, args.out, "busy_cpu")


if __name__ == "__main__":
    sys.exit(main())
