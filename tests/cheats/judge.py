"""Measures the kernels of a table and lists what came out otherwise."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median

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

OTHER_CLOCK = 10.0
"""An honest kernel is not so many times faster beside one cheat than beside others."""


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

    ``sweeps`` are measured in one process, those that are ``alone`` in one for each cheat. The
    device is the quick CPU that the table names if ``device`` is empty.
    """
    groups = [list(sweeps)]
    if sweeps[0].alone:
        (sweep,) = sweeps
        groups = [[replace(sweep, cheats={name: one})] for name, one in sweep.cheats.items()]
    with ThreadPoolExecutor(2) as pool:  # most of the time a process starts
        runs = list(pool.map(lambda group: _measured(group, out, device), groups))
    found = [line for lines, _ in runs for line in lines]
    usual = median([us for _, us in runs if us] or [0.0])
    for group, (_, us) in zip(groups, runs, strict=True):
        if us and us * OTHER_CLOCK < usual:
            found.append(f"honest beside {', '.join(group[0].cheats)}: {us} µs, else {usual}")
    return found


def _measured(sweeps: Sequence[Sweep], out: Path, device: str) -> tuple[list[str], float | None]:
    """The surprises of one run, and the time of its first honest kernel."""
    notes, path = Notes(), out / f"{'-'.join([*sweeps[0].cheats][:1])}.toml"
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
    first = run.measurements[0]
    return found, times.get((_first(sweeps[0]), first.problem.key))


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
