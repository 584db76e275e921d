"""The rows of a program's run: one for each group of launches, and for what is no launch. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from statistics import median
from typing import Any, Final

from rooflab.devices.base import Counters
from rooflab.devices.records import Dim, RecordedLaunch, Recording, Transfer, busy_ns
from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import DRAM, PROGRAM, Operand, Problem, extent, setting
from rooflab.model.roofline import Roof, Roofline
from rooflab.model.traffic import Chip
from rooflab.programs.expected import mean_expected
from rooflab.programs.groups import LaunchSet
from rooflab.programs.names import short
from rooflab.recording import with_counters
from rooflab.runs.program import COPIES, IDLE
from rooflab.workloads import private

REST: Final = "fp32"
"""The precision of what computes nothing that is known."""


DOUBTFUL: Final = 1.5
"""Modelled work that would take so much longer at its roof is that of another kernel."""


@private
class ProgramGroup(Problem):
    """All launches of one kernel with one grid and block, in one step of a program."""

    workload = PROGRAM
    title = "the launches of a program"
    formula = "what the program computes"
    work = "counted, or modelled from the shapes of known operations"
    sizes = ("blocks",)

    blocks: int = extent("blocks of a launch", 1)
    threads: int = extent("threads of a block", 1)
    grid: str = setting("", "the grid, as x×y×z")
    part: int = setting(
        0, "number among groups of one kernel and grid with other work; 0: only one"
    )
    same_as: str = setting("", "the problem of a workload that each launch is exactly")

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Not known."""
        return ()

    @property
    def flops(self) -> int:
        """Not known before they are counted."""
        return 0

    @property
    def tolerance(self) -> float:
        """Nothing is compared."""
        return 0.0

    @property
    def size(self) -> str:
        """``132x1x1 384``: grid and threads of a block, ``-`` for what is not known or differs."""
        part = f" #{self.part}" if self.part else ""
        return f"{self.grid or '-'} {self.threads}{part}" if self.grid or self.threads > 1 else "-"

    def reference(self, arrays: Any, inputs: Any) -> Mapping[str, Any]:
        """Nobody knows it."""
        raise NotImplementedError


NOTHING: Final = ProgramGroup(
    precision=PRECISIONS[REST], blocks=1, threads=1, grid="", part=0, same_as=""
)
"""What is no launch."""


@dataclass(frozen=True)
class MeanStep:
    """One step of a program, in microseconds: the mean of ``steps`` of them.

    ``busy_us`` is the time in which a kernel or a copy ran, ``kernels_us`` the sum of all kernels'
    times, which is more where they overlap.
    """

    us: float
    busy_us: float
    kernels_us: float
    steps: int

    @property
    def idle_us(self) -> float:
        """Time in which nothing ran."""
        return max(0.0, self.us - self.busy_us)


def step_of(recording: Recording) -> MeanStep:
    """The mean step of a recording."""
    windows = recording.windows
    n = max(1, len(windows))
    inside: list[RecordedLaunch | Transfer] = [*recording.launches, *recording.copies]
    return MeanStep(
        us=sum(window.ns for window in windows) / 1e3 / n,
        busy_us=busy_ns(inside) / 1e3 / n,
        kernels_us=sum(one.ns for one in recording.launches) / 1e3 / n,
        steps=n,
    )


def rows(
    recording: Recording,
    groups: Sequence[LaunchSet],
    roofline: Roofline,
    nominal_mhz: float | None,
    graph: tuple[Counters, int] | None = None,
    chip: Chip | None = None,
) -> list[Measurement]:
    """All rows, those with the most time first; copies, and idle time if there is some, are last.

    ``graph`` is what was counted of a CUDA graph as a whole, and its launches in a step. ``chip``
    is what the traffic of products depends on.
    """
    step = step_of(recording)
    found = [_row(group, step, roofline, nominal_mhz, chip) for group in groups]
    if graph:
        found += _graph(recording.launches, *graph, step, roofline, nominal_mhz)
    return [*found, *_others(recording, step, roofline)]


def _graph(
    launches: Sequence[RecordedLaunch],
    counted: Counters,
    each: int,
    step: MeanStep,
    roofline: Roofline,
    nominal_mhz: float | None,
) -> Iterator[Measurement]:
    """The graph with the most time, beside the groups of its kernels, which have times only."""
    found: dict[int, list[RecordedLaunch]] = defaultdict(list)
    for one in launches:
        if one.graph:
            found[one.graph].append(one)
    if not each or not found:
        return
    nodes = max(found.values(), key=lambda many: sum(one.ns for one in many))
    total = sum(one.ns for one in nodes) / 1e3 / step.steps
    name = f"(CUDA graph of {round(len(nodes) / step.steps / each)} kernels)"
    row = _other(name, step, total, each, total / each)
    if tensor := _tensor(counted.flops):
        row = replace(row, problem=replace(NOTHING, precision=PRECISIONS[_known(tensor)]).record)
    yield rated(with_counters(replace(row, sm_mhz=counted.mhz), counted), roofline, nominal_mhz)


def _row(
    group: LaunchSet,
    step: MeanStep,
    roofline: Roofline,
    nominal_mhz: float | None,
    chip: Chip | None,
) -> Measurement:
    times = sorted(one.ns / 1e3 for one in group.launches)
    counters, work = group.counters, group.work
    if work and (work.bytes is None or work.flops is None):
        work = None  # half of it says nothing of a roof
    mean = sum(times) / len(times)
    spread = (times[round(0.05 * (len(times) - 1))], times[round(0.95 * (len(times) - 1))])
    row = Measurement(
        problem=_problem(group, counters).record,
        kernel=short(group.key.kernel),
        backend=", ".join(group.operations[:3]),
        samples=len(times),
        rounds=step.steps,
        time_us=mean,
        time_lo_us=spread[0],
        time_hi_us=spread[1],
        time_min_us=times[0],
        time_p05_us=spread[0],
        time_p95_us=spread[1],
        launches=round(group.per_step, 3),
        total_us=group.total_us,
        share_percent=100 * group.total_us / step.us if step.us else None,
        flops=work.flops if work else None,
        bytes=work.bytes if work else None,
        expected_dram_bytes=mean_expected(group.launches, chip) if work else None,
    )
    if counters:
        row = replace(row, sm_mhz=counters.mhz)
        row = with_counters(row, counters)
    return rated(row, roofline, nominal_mhz)


def rated(row: Measurement, roofline: Roofline, nominal_mhz: float | None) -> Measurement:
    """The row with its roof: of counted work if there is some, else of modelled work."""
    roof, time_us = roof_of(row, roofline), row.time_us
    if not time_us:
        return row
    if roof and row.counted_flops is None and roof.us > DOUBTFUL * time_us:
        return replace(row, flops=None, bytes=None, expected_dram_bytes=None)
    work = row.counted_flops if row.counted_flops is not None else row.flops
    moved = row.dram_bytes if row.dram_bytes is not None else row.bytes
    if roof is None and not work and not moved:
        return row
    row = replace(
        row,
        tflops=work / time_us / 1e6 if work else None,
        gbps=moved / time_us / 1e3 if moved else None,
        intensity=work / moved if work and moved else None,
    )
    if roof is None:
        return row
    slow = 1.0
    if roof.bound != DRAM and nominal_mhz and row.sm_mhz:
        slow = min(1.0, row.sm_mhz / nominal_mhz)
    observed_us = roof.us / slow
    return replace(
        row,
        roof_us=roof.us,
        bound=roof.bound,
        roof_percent=100 * roof.us / time_us,
        observed_percent=100 * observed_us / time_us,
        roof_tflops=work / roof.us / 1e6 if work else None,
        recoverable_us=max(0.0, (row.launches or 0) * (time_us - observed_us)),
    )


def roof_of(row: Measurement, roofline: Roofline) -> Roof | None:
    """The least time for a row's work; counted and modelled amounts are not mixed."""
    if row.counted_flops is not None:
        traffic = {DRAM: int(row.dram_bytes)} if row.dram_bytes else {}
        limits = [
            roofline.roof(name, int(flops), traffic if i == 0 else {})
            for i, (name, flops) in enumerate(_pipes(row))
        ]
    else:
        traffic = {DRAM: row.bytes} if row.bytes else {}
        known = row.flops or row.bytes
        limits = [roofline.roof(row.problem.precision, row.flops or 0, traffic)] if known else []
    return max((one for one in limits if one), key=lambda roof: roof.us, default=None)


def _pipes(row: Measurement) -> Iterator[tuple[str, float]]:
    """Counted FLOPs by the precision whose ceiling limits them."""
    yield row.problem.precision, row.tensor_flops or 0.0
    yield "fp32", row.fp32_flops or 0.0
    yield "fp64_vector", row.fp64_flops or 0.0


def _problem(group: LaunchSet, counters: Counters | None) -> ProgramGroup:
    grid, block, work = group.key.grid, group.key.block, group.work
    return ProgramGroup(
        precision=PRECISIONS[_precision(group, counters)],
        blocks=max(1, prod(grid)),
        threads=max(1, prod(block)),
        grid=_dim(grid) if any(grid) else "",
        part=group.part,
        same_as=work.same_as if work else "",
    )


def _precision(group: LaunchSet, counters: Counters | None) -> str:
    """The busiest tensor pipe's, else that of the operation, else the busiest other pipe's."""
    pipes = counters.flops if counters else {}
    work = group.work
    modelled = work.precision if work else ""
    if name := _tensor(pipes):
        # Some chips count BF16 with FP16.
        return modelled if name == "fp16" and modelled == "bf16" else _known(name)
    if modelled:
        return _known(modelled)
    return _known(max(pipes, key=pipes.__getitem__)) if pipes else REST


def _tensor(pipes: Mapping[str, float]) -> str:
    """The precision of the busiest tensor pipe; empty without one."""
    tensor = {pipe: n for pipe, n in pipes.items() if pipe.startswith("tensor_")}
    return max(tensor, key=tensor.__getitem__, default="").removeprefix("tensor_")


def _known(name: str) -> str:
    return name if name in PRECISIONS else REST


def _dim(dim: Dim) -> str:
    return "x".join(map(str, dim))


def _others(recording: Recording, step: MeanStep, roofline: Roofline) -> Iterator[Measurement]:
    by_kind = grouped(recording.copies, lambda one: one.kind)
    for kind, found in sorted(by_kind.items(), key=lambda pair: -sum(c.ns for c in pair[1])):
        total = sum(one.ns for one in found) / 1e3 / step.steps
        typical = median(one.ns for one in found) / 1e3
        moved = sum(one.bytes for one in found) / len(found)
        row = _other(COPIES[kind], step, total, len(found) / step.steps, typical)
        yield _copied(row, kind, moved, roofline) if typical else row
    if step.idle_us:  # one after the other, as ncu runs launches, nothing is known of gaps
        yield _other(IDLE, step, step.idle_us, 1, step.idle_us)


def _copied(row: Measurement, kind: str, moved: float, roofline: Roofline) -> Measurement:
    """What is copied on the device is read and written."""
    mean = (row.total_us or 0.0) / (row.launches or 1)
    times = {"d2d": 2, "memset": 1}.get(kind, 1)
    link = {"d2d": DRAM, "memset": DRAM}.get(kind, kind)
    ceiling = roofline.bandwidth(link)
    row = replace(row, time_us=mean, gbps=times * moved / mean / 1e3)
    if kind in ("d2d", "memset"):
        row = replace(row, bytes=int(times * moved))
    elif kind == "peer":
        row = replace(row, peer_bytes=int(moved))
    else:
        row = replace(row, host_bytes=int(moved))
    if ceiling is None:
        return row
    roof_us = times * moved / ceiling.value * 1e6
    return replace(
        row,
        roof_us=roof_us,
        bound=link,
        roof_percent=100 * roof_us / mean,
        recoverable_us=max(0.0, (row.launches or 0) * (mean - roof_us)),
    )


def _other(name: str, step: MeanStep, total: float, launches: float, us: float) -> Measurement:
    """Time that no kernel has."""
    return Measurement(
        problem=NOTHING.record,
        kernel=name,
        rounds=step.steps,
        time_us=us or None,
        launches=round(launches, 3),
        total_us=total,
        share_percent=100 * total / step.us if step.us else None,
    )
