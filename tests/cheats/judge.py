"""Measures the kernels of a table and lists what came out otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from cheats.table import Expected, Sweep

import rooflab
from rooflab.engine import Observer
from rooflab.model.measurement import Measurement

TIMING = {
    "contexts": 1,
    "device_warmup_s": 0,
    "energy_s": 0,
    "max_rounds": 3,
    "max_s": 2,
    "min_rounds": 3,
    "own_clock_s": 0,
    "round_s": 0.005,
    "round_samples": 8,
    "timeout_s": 60,
    "warmup_launches": 2,
    "warmup_s": 0,
}

AS_LONG = 0.7
"""A kernel that takes this share of the honest one's time has not saved the work."""


class Notes(Observer):
    """Keeps what is said beside the rows."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.details: dict[tuple[object, ...], str] = {}

    def note(self, text: str) -> None:
        self.notes.append(text)

    def measured(self, row: Measurement, detail: str) -> None:
        self.details[row.key] = detail

    def about(self, row: Measurement) -> str:
        """Everything that is said of a row, without the kernel's name."""
        notes = [note for note in self.notes if row.kernel in note]
        texts = [row.reason, row.flags, self.details.get(row.key, ""), *notes]
        return " | ".join([" | ".join(texts).replace(row.kernel, ""), row.changed])


def surprises(sweeps: Sequence[Sweep], out: Path, device: str = "") -> list[str]:
    """A line for each row that is not as the table has it.

    They are measured in one run, on the quick CPU that the table names if ``device`` is empty.
    """
    notes, path = Notes(), out / f"{next(iter(sweeps[0].cheats))}.toml"
    path.write_text(_configuration(sweeps))
    run = rooflab.sweep(
        device=device or f"cheats.quick:{sweeps[0].device}",
        config=path,
        timing=TIMING,
        out=out,
        observer=notes,
    )
    found = []
    by_workload = {sweep.workload: sweep for sweep in sweeps}
    times = {(row.kernel, row.problem.key): row.time_us for row in run.measurements}
    for row in run.measurements:
        sweep = by_workload[row.problem.workload]
        name = row.kernel if row.kernel in sweep.cheats else f"{row.kernel}.cu"
        honest_us = times.get((_first(sweep), row.problem.key))
        if line := _surprise(row, sweep.cheats.get(name), notes.about(row), honest_us):
            found.append(line)
    return found


def _first(sweep: Sweep) -> str:
    """The name of the first honest kernel."""
    return next(iter(sweep.honest), "").removesuffix(".cu")


def _configuration(sweeps: Sequence[Sweep]) -> str:
    """A configuration file; what JSON writes for these values is TOML."""
    lines = []
    for sweep in sweeps:
        names = [*sweep.honest[:1], *sweep.cheats, *sweep.honest[1:]]
        content = {
            "kernels": [*map(sweep.pattern, names), *sweep.shipped],
            "precisions": "fp32",
            "sizes": list(sweep.sizes),
            "shapes": list(sweep.shapes),
            **sweep.more,
        }
        lines.append(f"[workloads.{sweep.workload}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in content.items()]
    return "\n".join(lines)


def _surprise(
    row: Measurement, expected: Expected | None, said: str, honest_us: float | None
) -> str:
    """What is wrong with a row, empty if it is as expected."""
    found = f"{row.kernel} {row.problem.size}: {row.status}, {row.reason or row.flags!r}"
    if expected is None or (expected.sizes and row.problem.size not in expected.sizes):
        return "" if row.status == "ok" else f"{found}; should be ok"
    if row.status == "ok" and expected.pays:
        if honest_us and row.time_us and row.time_us >= AS_LONG * honest_us:
            return ""
        return f"{found}; ok in {row.time_us} µs, honest work takes {honest_us}"
    if not re.fullmatch(expected.status, row.status):
        return f"{found}; should be {expected.status}"
    if not re.search(expected.reason, said):
        return f"{found}; should say /{expected.reason}/"
    return ""
