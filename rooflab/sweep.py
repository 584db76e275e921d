"""Plan, measure, record: the one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rooflab.config import ALL, SweepConfig
from rooflab.devices.base import Device
from rooflab.devices.telemetry import summarize
from rooflab.errors import UsageError
from rooflab.measure.protocol import Outcome
from rooflab.measure.worker import Worker
from rooflab.measurement import Measurement
from rooflab.problem import PRECISIONS, Problem
from rooflab.registry import Kernel
from rooflab.roofline import Roofline
from rooflab.run import RunWriter

WARM_UP_FLOPS: Final = 2 * 4096**3
"""Heats a GPU as well as anything larger, and is over soon on a slow kernel."""


@dataclass(frozen=True, slots=True)
class Step:
    """One problem and the kernels that are measured on it, together."""

    problem: Problem
    kernels: tuple[Kernel, ...]


def plan(config: SweepConfig, kernels: Sequence[Kernel]) -> list[Step]:
    """The steps of a sweep, by precision and layout, small problems first.

    A kernel takes part in the precisions that it has. Raises ``UsageError`` where nothing is left.
    """
    wanted = list(PRECISIONS) if ALL in config.precisions else config.precisions
    steps = []
    for precision in wanted:
        able = tuple(kernel for kernel in kernels if precision in kernel.precisions)
        if not able:
            continue
        for layout in config.layouts:
            problems = [
                Problem(
                    *extents,
                    precision=PRECISIONS[precision],
                    layout=layout,
                    batch=config.batch,
                    alpha=config.alpha,
                    beta=config.beta,
                )
                for extents in config.extents()
            ]
            problems.sort(key=lambda problem: problem.flops)
            steps += [Step(problem, able) for problem in problems]
    if not steps:
        has = "; ".join(f"{kernel.name} has {', '.join(kernel.precisions)}" for kernel in kernels)
        raise UsageError(f"no kernel has {', '.join(wanted)}: {has}")
    return steps


def left_out(config: SweepConfig, kernels: Sequence[Kernel]) -> list[str]:
    """For each kernel that lacks a precision asked for by name: a line that says so."""
    if ALL in config.precisions:
        return []
    return [
        f"{kernel.name} has no {', '.join(lacking)}: left out there"
        for kernel in kernels
        if (lacking := [p for p in config.precisions if p not in kernel.precisions])
    ]


def points(steps: Sequence[Step]) -> int:
    """How many rows the steps will give."""
    return sum(len(step.kernels) for step in steps)


Progress = Callable[[Problem, str, str], None]
"""Told what happens now: the problem, the kernel's name and the step."""


def pending(steps: Sequence[Step], done: Sequence[Measurement]) -> list[Step]:
    """The steps without what is measured already, whole or in part."""
    keys = {row.key for row in done}
    left = []
    for step in steps:
        kernels = tuple(k for k in step.kernels if key(step.problem, k.name) not in keys)
        if kernels:
            left.append(Step(step.problem, kernels))
    return left


def key(problem: Problem, kernel: str) -> tuple[object, ...]:
    """``Measurement.key`` of the row that this point will give."""
    return (
        *(kernel, problem.m, problem.n, problem.k, problem.batch),
        *(problem.precision.name, problem.layout, problem.alpha, problem.beta),
    )


def warm_up_step(steps: Sequence[Step]) -> Step:
    """The step to warm the device up with: the largest up to WARM_UP_FLOPS."""
    return max(steps, key=lambda step: (step.problem.flops <= WARM_UP_FLOPS, step.problem.flops))


def sweep(
    device: Device,
    roofline: Roofline,
    steps: Sequence[Step],
    worker: Worker,
    writer: RunWriter,
) -> Iterator[tuple[Measurement, Outcome]]:
    """Measure every step; each row is on disk before it is yielded."""
    for step in steps:
        outcomes = worker.measure(step.problem, [kernel.name for kernel in step.kernels])
        for kernel, outcome in zip(step.kernels, outcomes, strict=True):
            row = record(step.problem, kernel, outcome, roofline, device)
            writer.append(row, outcome.rounds)
            yield row, outcome


def record(
    problem: Problem, kernel: Kernel, outcome: Outcome, roofline: Roofline, device: Device
) -> Measurement:
    """One row. Performance figures only where the outcome is ``ok``."""
    precision = problem.precision.name
    attainable = roofline.attainable(precision, problem.intensity)
    row = Measurement(
        kernel=kernel.name,
        backend=kernel.backend,
        variant=outcome.variant,
        m=problem.m,
        n=problem.n,
        k=problem.k,
        batch=problem.batch,
        precision=precision,
        layout=problem.layout,
        alpha=problem.alpha,
        beta=problem.beta,
        status=outcome.status,
        reason=outcome.reason,
        rel_error=outcome.rel_error,
        flops=problem.flops,
        bytes=problem.bytes,
        intensity=problem.intensity,
        roof_tflops=attainable / 1e12 if attainable else None,
        bound=roofline.bound(precision, problem.intensity),
        flags=";".join(outcome.flags),
    )
    summary = outcome.summary
    if outcome.status != "ok" or summary is None:
        return row
    flop_per_s = problem.flops / (summary.median * 1e-6)
    sensed = summarize(outcome.readings)
    observed = _observed(roofline, device, problem, sensed.sm_mhz)
    return replace(
        row,
        cache=outcome.cache,
        samples=summary.samples,
        rounds=summary.rounds,
        time_us=summary.median,
        time_lo_us=summary.low,
        time_hi_us=summary.high,
        time_min_us=summary.minimum,
        time_p05_us=summary.p05,
        time_p95_us=summary.p95,
        pair_us=outcome.pair_us,
        launch_us=outcome.launch_us,
        tflops=flop_per_s / 1e12,
        gbps=problem.bytes / (summary.median * 1e-6) / 1e9,
        roof_percent=100 * flop_per_s / attainable if attainable else None,
        observed_tflops=observed / 1e12 if observed else None,
        observed_percent=100 * flop_per_s / observed if observed else None,
        sm_mhz=sensed.sm_mhz,
        mem_mhz=sensed.mem_mhz,
        power_w=sensed.power_w,
        temp_c=sensed.temp_c,
        energy_j=outcome.energy_j,
        gflop_per_j=problem.flops / outcome.energy_j / 1e9 if outcome.energy_j else None,
    )


def _observed(
    roofline: Roofline, device: Device, problem: Problem, sm_mhz: float | None
) -> float | None:
    """FLOP/s attainable at the clock that was seen, memory as before."""
    compute = device.observed(problem.precision.name, sm_mhz) if sm_mhz else None
    bandwidth = roofline.bandwidth()
    if compute is None or bandwidth is None:
        return None
    return min(compute.value, problem.intensity * bandwidth.value)
