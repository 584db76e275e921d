"""How true ``rooflab profile`` is on a training step: against torch.profiler, FlopCounterMode, ncu.

python benchmarks/programs.py [--parts overhead,sums,flops,ncu]

Needs a GPU, PyTorch and ncu. Writes Markdown on stdout.
"""

from __future__ import annotations

import argparse
import json
import runpy
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, sleep
from typing import Any

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples" / "programs" / "train.py"

ROUNDS = 8
PRODUCTS = ("aten::mm", "aten::bmm", "aten::addmm")
LARGEST = 10


def training() -> Any:
    """The step of the example, warmed up."""
    made = runpy.run_path(str(SCRIPT))["Training"]()
    for _ in range(5):
        made.step()
    return made


def ten_steps(made: Any) -> float:
    """Milliseconds of a step, from ten."""
    from rooflab.devices.cuda.activity import synchronize

    synchronize()
    started = perf_counter()
    for _ in range(10):
        made.step()
    synchronize()
    return (perf_counter() - started) * 100


def overhead() -> None:
    """Ten steps with and without records, in turns."""
    from rooflab.devices.cuda.activity import Activity
    from rooflab.devices.cuda.cupti import Cupti

    made, activity = training(), Activity(Cupti())
    plain, recorded = [], []

    for _ in range(ROUNDS):
        plain.append(ten_steps(made))
        activity.start()
        made.step()
        recorded.append(ten_steps(made))
        activity.stop()
        activity.taken()
    percent = 100 * (median(recorded) / median(plain) - 1)
    print(
        f"\nA step takes {median(plain):.2f} ms without and {median(recorded):.2f} ms with records "
        f"(medians of {ROUNDS} times ten steps, in turns): {percent:+.1f} %."
    )


def ours(made: Any, activity: Any) -> tuple[int, float]:
    """All kernels of a step, and their milliseconds, by our records."""
    from rooflab.devices.cuda.activity import synchronize

    activity.start()
    made.step()
    synchronize()
    activity.flush()
    activity.taken()
    made.step()
    synchronize()
    activity.stop()
    launches = activity.taken().launches
    return len(launches), sum(one.ns for one in launches) / 1e6


def theirs(made: Any) -> tuple[int, float]:
    """The same by torch.profiler."""
    import torch
    from torch.autograd import DeviceType

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        made.step()
        torch.cuda.synchronize()
    copies = ("Memset", "Memcpy")
    events = [e for e in profiler.events() if e.device_type == DeviceType.CUDA]
    kernels = [e for e in events if not e.name.startswith(copies)]
    return len(kernels), sum(e.time_range.elapsed_us() for e in kernels) / 1e3


def sums() -> None:
    """Both in processes of their own, in turns: kernels' time over that of steps just before."""
    found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for who in ("ours", "theirs", "theirs", "ours") * 2:
        command = [sys.executable, __file__, "--parts", who]
        ended = subprocess.run(command, capture_output=True, text=True, check=True)
        found[who] += json.loads(ended.stdout.splitlines()[-1])
    print(
        "\n| kernels of a step by | launches | ms | of a step just before |\n|---|---:|---:|---:|"
    )
    share = {}
    for who, name in (("ours", "rooflab"), ("theirs", "torch.profiler")):
        share[who] = median(ms / step for _, ms, step in found[who])
        counts = sorted({count for count, _, _ in found[who]})
        ms = median(ms for _, ms, _ in found[who])
        print(f"| {name} | {', '.join(map(str, counts))} | {ms:.2f} | {share[who]:.4f} |")
    print(
        f"\nrooflab's sum is {100 * (share['ours'] / share['theirs'] - 1):+.2f} % of "
        f"torch.profiler's ({len(found['ours'])} steps each, in turns of four processes each)."
    )


def one_side(who: str) -> None:
    """Launches, their time and that of a step just before, as JSON on the last line."""
    made = training()
    if who == "ours":
        from rooflab.devices.cuda.activity import Activity
        from rooflab.devices.cuda.cupti import Cupti

        activity = Activity(Cupti())
        measure: Any = lambda: ours(made, activity)  # noqa: E731
    else:
        measure = lambda: theirs(made)  # noqa: E731
    found = []
    for _ in range(6):
        sleep(0.5)
        made.step()
        step = ten_steps(made)
        found.append((*measure(), step))
    print(json.dumps(found[1:]))


def flops() -> None:
    """Counted, modelled and PyTorch's FLOPs of products, and how long the whole answer takes."""
    from torch.utils.flop_counter import FlopCounterMode

    import rooflab

    made = training()
    started = perf_counter()
    run = rooflab.profile(made.step)
    took = perf_counter() - started
    with FlopCounterMode(display=False) as counter:
        made.step()
    by_operation = counter.get_flop_counts()["Global"]
    products = sum(n for one, n in by_operation.items() if one.__name__ in ("mm", "bmm", "addmm"))
    rows = [row for row in run.measurements if row.backend in PRODUCTS]
    counted = sum((row.tensor_flops or 0) * row.launches for row in rows)
    modelled = sum((row.flops or 0) * row.launches for row in rows)
    print(f"\n{run}")
    print(f"\nThe whole answer took {took:.1f} s.")
    print("\n| FLOPs of products in a step | TFLOP | of PyTorch's |\n|---|---:|---:|")
    for name, value in (
        ("torch.utils.flop_counter", products),
        ("modelled", modelled),
        ("counted", counted),
    ):
        print(f"| {name} | {value / 1e12:.4f} | {value / products:.4f} |")
    known = [row for row in run.measurements if row.flops is not None and row.counted_flops]
    total = sum(row.total_us for row in run.measurements if not row.kernel.startswith("("))
    for name in ("bytes", "expected_dram_bytes"):
        near = sum(row.total_us for row in known if _near(getattr(row, name), row.dram_bytes))
        print(
            f"\n`{name}` is within 20 % of the counted bytes for {100 * near / total:.0f} % of "
            "the kernels' time."
        )


def _near(modelled: float | None, counted: float | None) -> bool:
    return bool(modelled and counted and abs(modelled / counted - 1) < 0.2)


def ncu() -> None:
    """Our counts and Nsight Compute's of one step, the largest kernels and grids."""
    import rooflab
    from rooflab.devices.cuda import ncu as program
    from rooflab.devices.cuda.replay import TIME
    from rooflab.programs.imported import imported

    made = training()
    run = rooflab.profile(made.step)
    each = round(sum(r.launches for r in run.measurements if not r.kernel.startswith("(")))
    found = program.find()
    if found is None:
        print("\nThere is no ncu.")
        return
    with TemporaryDirectory() as folder:
        table = Path(folder) / "step.csv"
        metrics = ",".join([*program.metrics(found), TIME])
        options = ["--csv", "--page", "raw", "--log-file", str(table), "--metrics", metrics]
        options += ["--clock-control", "none", "--cache-control", "none"]
        options += ["--launch-skip", str(3 * each + SETUP), "--launch-count", str(each)]
        started = perf_counter()
        command = [found, *options, sys.executable, str(SCRIPT), "5"]
        subprocess.run(command, capture_output=True, check=False)
        took = perf_counter() - started
        other = imported(table, run)
    print(f"\nncu needs {took:.0f} s for the counters of the same step.")
    print("\n| kernel, grid | × | µs | by ncu | DRAM MB | by ncu |\n|---|---:|---:|---:|---:|---:|")
    mine, theirs = _by_shape(run), _by_shape(other)
    for key in sorted(mine, key=lambda key: -mine[key][1])[:LARGEST]:
        n, us, moved = mine[key]
        m, other_us, other_moved = theirs.get(key, (0, 0.0, 0.0))
        name = f"{key[0][:48]}, {key[1]}"
        print(
            f"| {name} | {n:.0f}, {m:.0f} | {us:.0f} | {other_us / us:.3f} × | "
            f"{moved / 1e6:.0f} | {other_moved / moved if moved else 0:.3f} × |"
        )


SETUP = 60
"""Launches before the first step, which make the model: a step may be counted from anywhere on."""


def _by_shape(run: Any) -> dict[tuple[str, str], tuple[float, float, float]]:
    found: dict[tuple[str, str], tuple[float, float, float]] = {}
    for row in run.measurements:
        if row.kernel.startswith("("):
            continue
        key = (row.kernel, str(row.problem.settings.get("grid")))
        n, us, moved = found.get(key, (0.0, 0.0, 0.0))
        more = (row.dram_bytes or 0.0) * row.launches
        found[key] = (n + row.launches, us + row.total_us, moved + more)
    return found


PARTS = {"overhead": overhead, "sums": sums, "flops": flops, "ncu": ncu}


def main() -> None:
    """Run the parts."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--parts", default=",".join(PARTS))
    wanted = options.parse_args().parts.split(",")
    if wanted[0] in ("ours", "theirs"):
        one_side(wanted[0])
        return
    from rooflab.devices.registry import open_device

    print(f"`python benchmarks/programs.py`, {open_device('cuda:0').name}", flush=True)
    for name in wanted:
        PARTS[name]()
        sys.stdout.flush()


if __name__ == "__main__":
    main()
