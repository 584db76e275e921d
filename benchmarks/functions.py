"""Are the times of functions those of kernels, of CUPTI, and the same twice?

    python benchmarks/functions.py
    python benchmarks/functions.py --parts twice --device cpu

Needs PyTorch and Triton, for ``--parts ncu`` Nsight Compute with permission to read counters, and
NumPy on a CPU. First the same operations as functions and as kernels of a workload, in the same
process. Then some of them beside ``ncu``, and functions that other timers get wrong by all of them:
the sum of CUPTI's durations of a call's kernels (from torch.profiler) has neither the host's time
nor the gaps. Then 100 functions' points twice.

PASS: function and kernel are within 1 %, 2 % below 20 µs, and both intervals at the power limit;
ncu's durations are within its limit for kernels; ``do_bench`` is within 3.5 µs (a pair of events
around one call) and 5 % of CUPTI, and 2 µs more for each further kernel of a call; no point is SLOW
or FAST beside itself.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import ncu_agreement as ncu
from _common import Row, describe, judge, markdown, open_gpu, percent

import rooflab
from rooflab.config import SweepConfig
from rooflab.devices.base import Device, Launch
from rooflab.functions.bench import joined
from rooflab.functions.process import borrowed, device_of
from rooflab.kernels.base import Kernel, Operands
from rooflab.measure.protocol import Protocol
from rooflab.model.problem import Problem
from rooflab.report import verdicts
from rooflab.report.text import interval_percent
from rooflab.runs.compare import Comparison, Verdict
from rooflab.workloads import build

GEMM = (256, 1024, 4096, 8192)
ADD = (2**16, 2**20, 2**23, 2**26)
SOFTMAX = ((1024, 1024), (4096, 4096), (16384, 1024), (8192, 8192))

KERNELS_APART_US = 2.0
LEAST_US = 3.5
SHORT_US = 20.0

PROFILED = (512, 1024, 2048)
"""Products in FP16 beside Nsight Compute, as in ncu_agreement.py. Memory-bound kernels take less
there: they leave results in L2, and nothing has to be written before the next one."""

TITLES = {
    "agreement": "As a function and as a kernel",
    "ncu": "Beside Nsight Compute",
    "timers": "By other timers",
    "twice": "Twice",
}
HEADINGS = ("what", "function", "rooflab µs", "reference µs", "difference %", "limit %", "verdict")


# Functions and kernels ---------------------------------------------------------------------------


def points() -> Iterator[tuple[Problem, Callable[..., Any]]]:
    """A problem, and the function of its operands, the last of which is written."""
    import torch

    def into(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arrays: function(*arrays[:-1], out=arrays[-1])

    for size in GEMM:
        yield build("gemm", "bf16", {"m": size, "n": size, "k": size}), into(torch.matmul)
    for size in ADD:
        yield build("add", "fp32", {"columns": size}), into(torch.add)
    for rows, columns in SOFTMAX:
        problem = build("softmax", "fp32", {"rows": rows, "columns": columns})
        yield problem, into(partial(torch.softmax, dim=-1))


def tensors(operands: Operands) -> list[Any]:
    import torch

    shared = [torch.from_dlpack(array) for array in operands.values()]
    return [one.view(torch.bfloat16) if one.dtype == torch.uint16 else one for one in shared]


def agreement(device: Device) -> Iterator[Row]:
    """Each point by the protocol of sweeps, on operands of rooflab, and as a function."""
    protocol = Protocol(device, SweepConfig())
    for problem, function in points():

        def prepare(device: Device, operands: Operands, f: Any = function) -> Launch:
            return partial(f, *tensors(operands))

        names = (problem.precision.name,)
        kernel = Kernel("torch", "torch", "cuda", "", names, prepare, problem.workload)
        with borrowed(device):
            given = tensors(Operands(problem, allocated(device, problem), {}))
        result = rooflab.bench(function, *given)  # first: an empty launch may take longer after it
        with borrowed(device):
            (outcome,) = protocol.measure(problem, [kernel])
        found = outcome.summary.median if outcome.summary else None
        row = line(f"as a kernel ({problem.workload})", problem.size, result.time_us, found)
        limit = 2.0 if (found or 0) < SHORT_US else 1.0
        if outcome.summary and "power_capped" in outcome.flags:
            limit += outcome.summary.half_width_percent + (interval_percent(result.row) or 0)
        judge(row, limit, outcome.reason)
        yield row


def launch_all(size: int) -> None:
    """Under ncu: warm the clock up, then multiply between profiler start and stop."""
    import torch

    problem, function = profiled(size)
    device = device_of("cuda:0")
    with borrowed(device):
        given = tensors(Operands(problem, allocated(device, problem), {}))
    large, end = torch.rand(8192, 8192, device="cuda"), perf_counter() + ncu.WARM_UP_S
    function(*given)
    while perf_counter() < end:
        torch.matmul(large, large)
        torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for _ in range(ncu.LAUNCHES):
        function(*given)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def profiled(size: int) -> tuple[Problem, Callable[..., Any]]:
    import torch

    problem = build("gemm", "fp16", {"m": size, "n": size, "k": size})
    return problem, lambda a, b, c: torch.matmul(a, b, out=c)


def beside_ncu(device: Device, out: Path) -> Iterator[Row]:
    """The time of a call, and ncu's durations of its kernels."""
    program = ncu.find_ncu("ncu")
    for size in PROFILED:
        problem, function = profiled(size)
        log = out.resolve() / f"ncu-{size}.csv"
        found = ncu.run_ncu(program, [__file__, "--launch", str(size)], log)
        with borrowed(device):
            given = tensors(Operands(problem, allocated(device, problem), {}))
        ours = rooflab.bench(function, *given).time_us
        row = line(f"beside ncu ({problem.workload})", problem.size, ours, found.us)
        judge(row, ncu.LIMIT_PERCENT, found.reason)
        yield row


def allocated(device: Device, problem: Problem) -> dict[str, Any]:
    from rooflab.measure.buffers import allocate

    return dict(allocate(device, problem, seed=0))


def line(what: str, name: str, ours: float | None, other: float | None) -> dict[str, Any]:
    off = None if ours is None or other is None else percent(ours, other)
    values = (what, name, ours, other, off, None, "")
    return dict(zip(HEADINGS, values, strict=True))


# Other timers ------------------------------------------------------------------------------------


def functions() -> dict[str, Callable[[], Any]]:
    """Those that other timers get wrong."""
    import torch

    def normal(*shape: int, **more: Any) -> Any:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, **more)

    small, large = normal(256, 256), normal(8192, 8192)
    a, b = normal(2**20), normal(2**20)
    x = normal(1024, 1024, requires_grad=True)
    layer = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    compiled = torch.compile(lambda p, q: torch.softmax(p * q, -1))
    static = normal(1024, 1024)
    torch.matmul(static, static)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.matmul(static, static)

    def chain() -> Any:
        y = small
        for _ in range(50):
            y = y * 1.01
        return y

    return {
        "short kernel": lambda: torch.matmul(small, small),
        "chain of 50": chain,
        "add of 2 MB": lambda: a + b,
        "product at the power limit": lambda: torch.matmul(large, large),
        "allocates": lambda: torch.cat([a, b, a, b]),
        "forward and backward": lambda: layer(x).sum().backward(),
        "CUDA graph": graph.replay,
        "torch.compile": lambda: compiled(large, large),
    }


def cupti_us(function: Callable[[], Any]) -> tuple[float, float]:
    """Durations of all kernels of a call, with the cache flushed before each, and their number."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    calls, scratch = 20, torch.empty(2**28, dtype=torch.int8, device="cuda")
    function()
    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        for _ in range(calls):
            scratch.fill_(1)
            function()
            torch.cuda.synchronize()
    kernels = [one for one in recorded.events() if one.device_type.name == "CUDA"]
    flush = [one for one in kernels if "FillFunctor<signed char>" in one.name]
    assert len(flush) == calls, sorted({one.name for one in kernels})
    total = sum(one.device_time for one in kernels) - sum(one.device_time for one in flush)
    return total / calls, (len(kernels) - calls) / calls


def timers() -> Iterator[Row]:
    """``do_bench`` beside CUPTI; then Triton's and PyTorch's, which are not judged."""
    import torch.utils.benchmark
    import triton.testing

    for name, function in functions().items():
        function()
        ours = 1e3 * rooflab.do_bench(function)
        found, kernels = cupti_us(function)
        row = line("do_bench beside CUPTI", name, ours, found)
        allowed = LEAST_US + KERNELS_APART_US * max(0.0, kernels - 1)
        judge(row, 5.0 + 100 * allowed / found)
        timer = torch.utils.benchmark.Timer("f()", globals={"f": function})
        others = {
            "rooflab.bench µs": rooflab.bench(function).time_us,
            "triton do_bench µs": 1e3 * triton.testing.do_bench(function),
            "torch.utils.benchmark µs": 1e6 * timer.blocked_autorange().median,
        }
        yield {
            "function": name,
            "kernels": kernels,
            "CUPTI µs": found,
            "rooflab.do_bench µs": ours,
            **others,
            **{key: row[key] for key in ("limit %", "verdict")},
        }


# Twice -------------------------------------------------------------------------------------------


def twice(count: int, device: str) -> Iterator[Row]:
    """The same points twice: none differs from itself."""
    names = ("negative", "exp", "tanh", "abs", "sqrt", "sin", "cos", "log", "square", "floor")
    largest = 26 if device != "cpu" else 20
    powers = range(largest - 10, largest)
    sizes = [2**power for power in powers][: max(1, count // len(names))]
    module, made = _arrays(device)
    runs = []
    for _ in range(2):
        every = [
            rooflab.bench({name: getattr(module, name)}, make=made, sizes=sizes) for name in names
        ]
        runs.append(joined(every))
    compared = rooflab.compare(runs[0], runs[1])
    assert isinstance(compared, Comparison)
    for point in compared.points:
        if point.verdict in (Verdict.SLOW, Verdict.FAST):
            print(*verdicts.point_cells(replace(compared, points=[point])), file=sys.stderr)
    counts = {verdict.value: count for verdict, count in compared.counts.items()}
    false = counts["SLOW"] + counts["FAST"]
    yield {"device": device, **counts, "verdict": "DIFFERS" if false else "agrees"}


def _arrays(device: str) -> tuple[Any, Callable[[int], Any]]:
    """A module of functions, and what makes their argument."""
    import numpy

    if device == "cpu":
        random = numpy.random.default_rng(0)
        return numpy, lambda size: random.random(size, dtype=numpy.float32) + 0.5
    import torch

    return torch, lambda size: torch.rand(size, device=device) + 0.5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/functions"))
    parser.add_argument("--parts", default="agreement,ncu,timers,twice", help="of these, some")
    parser.add_argument("--points", type=int, default=100, help="points that are measured twice")
    parser.add_argument("--device", default="cuda:0", help="cuda:0, or cpu for --parts twice")
    parser.add_argument("--launch", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.launch is not None:
        launch_all(args.launch)
        return 0
    if args.device != "cpu":
        open_gpu()
    device, started = device_of(args.device), perf_counter()
    args.out.mkdir(parents=True, exist_ok=True)
    tables: dict[str, list[Row]] = {}
    parts: dict[str, Callable[[], Iterator[Row]]] = {
        "agreement": lambda: agreement(device),
        "ncu": lambda: beside_ncu(device, args.out),
        "timers": timers,
        "twice": lambda: twice(args.points, args.device),
    }
    for name in args.parts.split(","):
        for row in parts[name]():
            tables.setdefault(name, []).append(row)
            print(*row.values(), sep="  ", file=sys.stderr, flush=True)
        print(f"{perf_counter() - started:.0f} s", file=sys.stderr)
    return conclude_all(tables, f"# Functions\n\n{describe(device)}", args.out)


def conclude_all(tables: Mapping[str, list[Row]], heading: str, out: Path) -> int:
    """Print and write all tables, and how many rows are within their limits; 0 if all are."""
    rows = [row for table in tables.values() for row in table]
    agreeing = sum(row["verdict"] == "agrees" for row in rows)
    parts = [heading]
    for name, table in tables.items():
        parts += [f"## {TITLES[name]}", markdown(table)]
    text = "\n\n".join([*parts, f"{agreeing} of {len(rows)} within limits"])
    out.mkdir(parents=True, exist_ok=True)
    (out / "functions.md").write_text(text + "\n", encoding="utf-8")
    print(text)
    return 0 if agreeing == len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
