"""Runs of a program made of numbers: groups of launches, copies, idle time, and one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import synthetic

from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.model.timeline import RecordedStep, StepLaunch
from rooflab.runs.manifest import WorkloadRecord
from rooflab.runs.store import RunData

STEP_US = 10_000.0
H200 = synthetic.h200_roofline().with_limits(synthetic.bandwidth("H2D", 55e9))

PROGRAM = WorkloadRecord(
    title="the launches of a program",
    formula="what the program computes",
    work="counted",
    extents={"blocks": "blocks", "threads": "threads"},
    settings={"grid": "str", "part": "int"},
    descriptions={},
    defaults={"blocks": 1, "threads": 1, "grid": "", "part": 0},
)


def problem(precision: str, blocks: int = 132, part: int = 0) -> ProblemRecord:
    """A grid of so many blocks."""
    return ProblemRecord(
        "program",
        precision,
        f"{blocks}x1x1 128",
        {"blocks": blocks, "threads": 128},
        {"grid": f"{blocks}x1x1", "part": part},
    )


def group(
    kernel: str,
    us: float,
    *,
    intensity: float | None = None,
    percent: float = 80.0,
    precision: str = "bf16",
    **other: Any,
) -> Measurement:
    """A group that takes ``us`` of a step, at ``percent`` of its roof; counted."""
    flops = 1e9 if intensity else 0.0
    moved = flops / intensity if intensity else 1e8
    roof = H200.roof(precision, int(flops), {"dram": int(moved)})
    assert roof is not None
    time_us = roof.us / percent * 100
    values: dict[str, Any] = {
        "problem": problem(precision),
        "kernel": kernel,
        "time_us": time_us,
        "launches": us / time_us,
        "total_us": us,
        "share_percent": 100 * us / STEP_US,
        "counted_flops": flops,
        "tensor_flops": flops if precision == "bf16" else 0.0,
        "fp32_flops": flops if precision == "fp32" else 0.0,
        "dram_bytes": moved,
        "intensity": intensity,
        "tflops": flops / time_us / 1e6 or None,
        "gbps": moved / time_us / 1e3,
        "roof_us": roof.us,
        "roof_percent": percent,
        "observed_percent": percent,
        "bound": roof.bound,
    }
    return Measurement(**(values | other))


def unknown(kernel: str, us: float) -> Measurement:
    """A group, or other time, with a time only."""
    return Measurement(problem=problem("fp32"), kernel=kernel, time_us=us, total_us=us)


ROWS = (
    group("nvjet_sm90_tst_128x256_NTN", 3000, intensity=800, percent=70, observed_percent=90),
    group("nvjet_sm90_tst_256x128_TNT", 2000, intensity=820),
    group("elementwise_kernel<GeluCUDAKernelImpl>", 1500, intensity=4, precision="fp32"),
    group("flash_bprop<x, y>", 800, intensity=600, percent=40),
    group("copy_kernel", 700, precision="fp32", percent=90),
    group("cat", 400, intensity=0.02, precision="fp32", percent=20),
    unknown("mystery", 300),
    group("(copies from the host)", 300, bound="h2d", percent=30),
    unknown("(idle)", 1000),
)


def run(
    rows: Sequence[Measurement] = ROWS,
    *,
    step_us: float = STEP_US,
    recorded: RecordedStep | None = None,
    path: Path = Path("results/program"),
    day: int = 20,
    **program: Any,
) -> RunData:
    """A program's run on an H200."""
    made = synthetic.run("NVIDIA H200", H200, list(rows), synthetic.H200_FACTS, day=day, path=path)
    about = {"name": "train.py", "steps": 5, "step_us": step_us, **program}
    given = {"program": about, "workloads": {"program": PROGRAM}, "points": len(rows)}
    return replace(made, manifest=made.manifest.model_copy(update=given), recorded=recorded)


def step(count: int = 30, rows: int = len(ROWS) - 2) -> RecordedStep:
    """Launches one after the other in two streams, with a gap in the middle."""
    launches = [
        StepLaunch(
            i * 100.0 + (500 if i > count / 2 else 0), 90.0, 0, 7 + 7 * (i % 5 == 0), i % rows
        )
        for i in range(count)
    ]
    return RecordedStep(tuple(launches), count * 100.0 + 600)
