"""Small programs, as ``rooflab profile`` records them."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import synthetic

from rooflab.model.measurement import Measurement
from rooflab.model.problem import PROGRAM, ProblemRecord
from rooflab.model.roofline import Roofline
from rooflab.runs import store

REAL = Path(__file__).parent / "data" / "program"
"""Some groups of a training step on an H200."""


def group(
    kernel: str,
    total_us: float,
    launches: float = 1,
    *,
    grid: str = "132x1x1",
    threads: int = 128,
    part: int = 0,
    percent: float | None = 50.0,
    spread: float = 0.01,
    precision: str = "fp32",
    counted: bool = True,
    **other: Any,
) -> Measurement:
    """Launches that reach ``percent`` of their roof in memory, by default."""
    us = total_us / launches
    blocks = prod(map(int, grid.split("x")))
    size = f"{grid} {threads}" + (f" #{part}" if part else "")
    extents = {"blocks": blocks, "threads": threads}
    problem = ProblemRecord(PROGRAM, precision, size, extents, {"grid": grid, "part": part})
    values: dict[str, Any] = {
        "samples": 40,
        "rounds": 5,
        "time_us": us,
        **dict.fromkeys(("time_lo_us", "time_min_us", "time_p05_us"), us * (1 - spread)),
        **dict.fromkeys(("time_hi_us", "time_p95_us"), us * (1 + spread)),
        "launches": launches,
        "total_us": total_us,
    }
    if percent is not None:
        roof_us = us * percent / 100
        values |= {"roof_us": roof_us, "bound": "dram"}
        values |= {"roof_percent": percent, "observed_percent": percent}
        values["recoverable_us"] = total_us - launches * roof_us
        values |= {"counted_flops": 0.0, "dram_bytes": 1e6} if counted else {"bytes": 1_000_000}
    return Measurement(problem=problem, kernel=kernel, **(values | other))


def other(name: str, total_us: float, launches: float = 1, **more: Any) -> Measurement:
    """Idle time, copies or memsets."""
    problem = ProblemRecord(
        PROGRAM, "fp32", "-", {"blocks": 1, "threads": 1}, {"grid": "", "part": 0}
    )
    row = Measurement(
        problem=problem,
        kernel=name,
        rounds=5,
        time_us=total_us / launches,
        launches=launches,
        total_us=total_us,
    )
    return replace(row, **more)


def program(*rows: Measurement, **about: Any) -> store.RunData:
    """A run of a step that consists of these rows, one after the other."""
    step_us = about.pop("step_us", sum(row.total_us or 0.0 for row in rows))
    shared = [
        replace(row, share_percent=100 * (row.total_us or 0.0) / step_us) if step_us else row
        for row in rows
    ]
    described = {"name": "train.py", "steps": 5, "step_us": step_us, "notes": []} | about
    given: dict[str, Any] = {"workloads": {}, "program": described, "path": store.UNSAVED}
    command = ["rooflab", "profile", "train.py"]
    return synthetic.run("NVIDIA H200", Roofline(()), shared, command=command, **given)
