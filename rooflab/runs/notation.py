"""A problem as one line of text, ``gemm bf16 m=64 n=64 k=32 layout=nt``, and for the command line.

What has its default is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflab.errors import UsageError
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import Problem, Value
from rooflab.workloads import build


def written(problem: Problem) -> str:
    """One line that ``read`` understands."""
    parameters = (f"{name}={value}" for name, value in _told(problem))
    return " ".join([problem.workload, problem.precision.name, *parameters])


def read(text: str) -> Problem:
    """The problem that was written; raises ``UsageError`` if it is none."""
    workload, precision, *parameters = [*text.split(), "", ""][: max(2, len(text.split()))]
    pairs = [one.partition("=") for one in parameters]
    if precision not in PRECISIONS or any(not equals for _, equals, _ in pairs):
        raise UsageError(f"{text[:80]!r} is no problem of a workload")
    return build(workload, precision, {name: value for name, _, value in pairs})


def options(problem: Problem) -> str:
    """Arguments of ``rooflab sweep`` that mean this problem: ``gemm -p bf16 --sizes 4096``."""
    size = problem.size
    extents = f"--{'sizes' if size.isdigit() else 'shape'} {size}"
    told = dict(_told(problem))
    settings = [f"--{name} {told[name]}" for name in problem.settings if name in told]
    return " ".join([problem.workload, "-p", problem.precision.name, extents, *settings])


def _told(problem: Problem) -> Iterator[tuple[str, Value]]:
    """The parameters that are not at their default."""
    for name, parameter in problem.parameters().items():
        value = getattr(problem, name)
        if value != parameter.default:
            yield name, value
