"""Plan, measure, record: the one loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from rooflab.config import ALL, SweepConfig
from rooflab.devices.base import Device
from rooflab.errors import UsageError
from rooflab.measure.protocol import Outcome, measure
from rooflab.measurement import Measurement
from rooflab.problem import PRECISIONS, Problem
from rooflab.registry import Kernel
from rooflab.roofline import Roofline
from rooflab.run import RunWriter


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


Progress = Callable[[Problem, Kernel, str], None]
"""Told what happens now: the problem, the kernel and the step."""


def sweep(
    device: Device,
    roofline: Roofline,
    steps: Sequence[Step],
    config: SweepConfig,
    writer: RunWriter,
    progress: Progress,
) -> Iterator[tuple[Measurement, Outcome]]:
    """Measure every step; each row is on disk before it is yielded."""
    for step in steps:

        def report(kernel: Kernel, what: str, problem: Problem = step.problem) -> None:
            progress(problem, kernel, what)

        outcomes = measure(device, step.problem, step.kernels, config.timing, config.seed, report)
        for outcome in outcomes:
            row = record(step.problem, outcome, roofline)
            writer.append(row, outcome.rounds)
            yield row, outcome


def record(problem: Problem, outcome: Outcome, roofline: Roofline) -> Measurement:
    """One row. Performance figures only where the outcome is ``ok``."""
    kernel, precision = outcome.kernel, problem.precision.name
    attainable = roofline.attainable(precision, problem.intensity)
    row = Measurement(
        kernel=kernel.name,
        backend=kernel.backend,
        variant=kernel.variant,
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
        tflops=flop_per_s / 1e12,
        gbps=problem.bytes / (summary.median * 1e-6) / 1e9,
        roof_percent=100 * flop_per_s / attainable if attainable else None,
    )
