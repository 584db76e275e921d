"""Runs of thousands of rows, made of those of measured runs at more sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from random import Random
from typing import Any

from measured import COUNTED, LADDER, MEMORY_BOUND

from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem
from rooflab.model.roofline import Roofline
from rooflab.runs.manifest import WorkloadRecord
from rooflab.runs.store import RunData, RunWriter, load
from rooflab.workloads import build, find

MIXED = (COUNTED, LADDER, MEMORY_BOUND)
"""Of an H200: rows with counters, a ladder, and memory-bound workloads."""

BY_TIME = (
    *("time_us", "time_lo_us", "time_hi_us", "time_min_us", "time_p05_us", "time_p95_us"),
    *("pair_us", "serial_us", "cycles", "energy_j"),
)
BY_FLOPS = ("counted_flops", "tensor_flops", "fp64_flops", "fp32_flops", "fp16_flops")
BY_BYTES = ("dram_bytes", "l2_bytes", "l1_bytes")
UNSCALED = ("rel_error", "launch_us", "sm_mhz", "power_w", "observed_tflops", "observed_percent")


def joined(folders: Sequence[Path] = MIXED) -> RunData:
    """Runs of one device as one."""
    runs = [load(folder) for folder in folders]
    rows = [row for run in runs for row in run.ok]
    workloads = dict.fromkeys(row.problem.workload for row in rows)
    update = {
        "workloads": {name: WorkloadRecord.of(find(name)) for name in workloads},
        "kernels": {name: one for run in runs for name, one in run.manifest.kernels.items()},
        "schema_version": 3,
    }
    return RunData(runs[0].path, runs[0].manifest.model_copy(update=update), rows)


def grown(measured: RunData, count: int, kernels: Sequence[str] = ()) -> RunData:
    """``count`` rows made of those of ``measured``: its workloads and kernels, at more sizes.

    ``kernels`` take the place of its kernels on every problem. One row of a hundred has failed.
    """
    families: dict[object, dict[str, list[Measurement]]] = {}
    for one in measured.ok:
        key = (one.problem.workload, one.problem.precision, *one.problem.settings.values())
        families.setdefault(key, {}).setdefault(one.kernel, []).append(one)
    sizes = -(-count // sum(len(kernels or family) for family in families.values()))
    made: list[Measurement] = []
    for family in families.values():
        every = list(family.values())
        for problem in _between([one for some in every for one in some], sizes):
            for i, name in enumerate(kernels or family):
                some = family.get(name, every[i % len(every)])
                made.append(_at(problem, name, some, measured.manifest.roofline))
    rows = [_failed(row) if i % 100 == 50 else row for i, row in enumerate(made[:count])]
    manifest = measured.manifest.model_copy(update={"points": len(rows)})
    return RunData(measured.path, manifest, rows)


def _failed(row: Measurement) -> Measurement:
    return Measurement(
        problem=row.problem, kernel=row.kernel, status="failed", reason="out of luck"
    )


def _between(rows: Sequence[Measurement], count: int) -> Iterator[Problem]:
    """Different problems from the smallest to the largest."""
    ordered = sorted(rows, key=lambda row: row.link_bytes or 0)
    first, last = ordered[0].problem, ordered[-1].problem
    seen = set()
    for i in range(count):
        share = i / max(count - 1, 1)
        extents = {
            name: round(low ** (1 - share) * last.extents[name] ** share)
            for name, low in first.extents.items()
        }
        while tuple(extents.values()) in seen:
            extents = {name: value + (value > 1) for name, value in extents.items()}
        seen.add(tuple(extents.values()))
        yield build(first.workload, first.precision, {**extents, **first.settings})


def _at(
    problem: Problem, kernel: str, rows: Sequence[Measurement], roofline: Roofline
) -> Measurement:
    """A kernel's row at another size: the row of the nearest size, with its figures scaled."""
    near = min(rows, key=lambda row: abs(log(problem.link_bytes / (row.link_bytes or 1))))
    roof = roofline.roof(problem.precision.name, problem.flops, problem.traffic)
    assert roof and near.roof_us and near.link_bytes, "a row with a roof"
    luck = Random(f"{kernel} {problem.record}")
    scales = {
        **dict.fromkeys(BY_TIME, luck.uniform(1, 1.05) * roof.us / near.roof_us),
        **dict.fromkeys(BY_FLOPS, problem.flops / near.flops if near.flops else 0.0),
        **dict.fromkeys(BY_BYTES, problem.link_bytes / near.link_bytes),
        **dict.fromkeys(UNSCALED, 1.0),
    }
    # All digits differ, as those of measured rows do.
    figures: dict[str, Any] = {
        name: value * scale * luck.uniform(0.9999, 1.0001)
        for name, scale in scales.items()
        if (value := getattr(near, name)) is not None
    }
    seconds = figures["time_us"] / 1e6
    figures |= {
        "flops": problem.flops,
        "bytes": problem.bytes,
        "host_bytes": problem.host_bytes,
        "peer_bytes": problem.peer_bytes,
        "intensity": problem.intensity,
        "tflops": problem.flops / seconds / 1e12,
        "gbps": problem.link_bytes / seconds / 1e9,
        "roof_us": roof.us,
        "roof_tflops": problem.flops / roof.us / 1e6,
        "roof_percent": roof.us / seconds / 1e4,
        "bound": roof.bound,
    }
    return replace(near, problem=problem.record, kernel=kernel, **figures)


def saved(run: RunData, folder: Path) -> Path:
    """``run`` in a new folder."""
    folder.mkdir(parents=True)
    with RunWriter(folder, run.manifest) as writer:
        writer.replace(run.measurements)
    return folder
