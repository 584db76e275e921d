"""Kernels of ours that do the same as a program's, in sentences: measured, or how to measure them.

A time is that of a sweep under sustained load, which is called settled where bursts are shorter.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rooflab.model.measurement import Measurement, is_possible
from rooflab.report.kernel_names import spoken
from rooflab.report.text import digits, precision_title, time_text
from rooflab.runs.own_kernels import OwnTime, OwnTimes, problem_of, saved_us
from rooflab.runs.program import Program, total
from rooflab.workloads import find

WORTH: Final = 0.02
"""Part of a step from which on a group that can be measured is named."""

NEGLIGIBLE: Final = 0.001
"""A part of the step that is not worth a sentence."""


def of_program(program: Program, times: OwnTimes) -> Iterator[str]:
    """The group for which one of ours saves the most; the largest of which nothing is known."""
    saved = {i: _in_step(row, times.of(row)) for i, row in enumerate(program.groups)}
    faster = [i for i in saved if saved[i] > NEGLIGIBLE * program.step_us]
    if faster:
        best = program.groups[max(faster, key=saved.__getitem__)]
        own = times.of(best)
        assert own
        yield _faster(best, own, times)
    if len(faster) > 1:
        us, count = time_text(sum(saved[i] for i in faster)), len(faster)
        yield f"Kernels of ours are measured faster for {count} groups: {us} of a step in all."
    for row in program.groups:
        if total(row) < WORTH * program.step_us:
            break
        if problem_of(row) and not times.of(row) and (command := times.command(row)):
            yield f"What kernels of ours take for {spoken(row.kernel)} is not known here: {command}"
            break


def of_group(row: Measurement, times: OwnTimes) -> str:
    """What is said of one group; empty if it is no problem of a workload."""
    own = times.of(row)
    if own is None:
        command = times.command(row)
        return f"Kernels of ours do the same; to measure them: {command}" if command else ""
    if saved_us(row, own):
        return _faster(row, own, times)
    return f"Not faster: {_measured(own)}."


def _in_step(row: Measurement, own: OwnTime | None) -> float:
    return (row.launches or 0.0) * saved_us(row, own) if own else 0.0


def _faster(row: Measurement, own: OwnTime, times: OwnTimes) -> str:
    """``champion does the same … in 331 µs, …: 12 % less than nvjet, 1.06 ms of a step.``"""
    us = saved_us(row, own)
    percent = digits(100 * us / (row.time_us or us), 2)
    step = time_text(_in_step(row, own))
    alone = ", though kernels that run at once slow that" if times.overlap else ""
    return f"{_measured(own)}: {percent} % less than {spoken(row.kernel)}{alone}, {step} of a step."


def _measured(own: OwnTime) -> str:
    problem = own.row.problem
    title = find(problem.workload).title
    said = (problem.size, precision_title(problem.precision), problem.about)
    what = ", ".join(filter(None, said))
    times, burst = time_text(own.us), own.row.burst_us
    if is_possible(burst):
        times += f" when settled ({time_text(burst)} in a burst)"
    manifest = own.run.manifest
    where = f"measured on {manifest.created:%Y-%m-%d} ({manifest.device.name})"
    return f"{own.row.kernel} does the same {title} ({what}) in {times}, {where}"
