"""Which groups of two runs of a program belong together: one rule for words and pictures. Pure.

1. Groups of one kernel, grid and block. If a launch has other parts in one run than in the other,
   all its parts are one group.
2. Of what is left, groups of one kernel with other grids, in the order of their time, if both runs
   have as many of them.
3. Of what is left, groups that one operation of a library has launched, if they are the same
   problem or have as much work, the most similar first; without known work if there is one on each
   side.

What is left then, only one run has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any, Final

from rooflab.model.grouping import grouped
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.runs.program import total

ALIKE: Final = 0.1
"""The largest difference, as a logarithm, of the work of groups that do the same."""

CANDIDATES: Final = 100
"""Groups of one operation that are compared with each other, those with the most time."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Groups that belong together. ``base`` and ``new`` are one row for all of each side's."""

    base_rows: tuple[Measurement, ...]
    new_rows: tuple[Measurement, ...]
    base: Measurement
    new: Measurement

    @classmethod
    def of(cls, base: Sequence[Measurement], new: Sequence[Measurement]) -> Pair:
        """Of one or several rows on each side."""
        return cls(tuple(base), tuple(new), together(base), together(new))


@dataclass(frozen=True, slots=True)
class Matching:
    """Groups that belong together, and those that only one run has."""

    pairs: list[Pair]
    gone: list[Measurement]
    come: list[Measurement]


def matched(base: Sequence[Measurement], new: Sequence[Measurement]) -> Matching:
    """The groups of two runs, each with the most time first."""
    pairs: list[Pair] = []
    left, right = [*base], [*new]
    for rule in (_of_launches, _of_kernels, _of_operations):
        found = list(rule(left, right))
        taken = {id(row) for pair in found for row in (*pair.base_rows, *pair.new_rows)}
        left, right = ([row for row in side if id(row) not in taken] for side in (left, right))
        pairs += found
    return Matching(pairs, left, right)


# Rules -------------------------------------------------------------------------------------------


def _launch(row: Measurement) -> object:
    problem = row.problem
    return row.kernel, problem.settings.get("grid"), problem.extents.get("threads")


def _of_launches(base: Sequence[Measurement], new: Sequence[Measurement]) -> Iterator[Pair]:
    before, after = grouped(base, _launch), grouped(new, _launch)
    for key in [key for key in before if key in after]:
        yield from _parts(before[key], after[key])


def _parts(base: list[Measurement], new: list[Measurement]) -> Iterator[Pair]:
    """Parts one by one if both sides have the same, else all together."""
    was, now = (sorted(rows, key=_part) for rows in (base, new))
    if [*map(_part, was)] == [*map(_part, now)]:
        yield from (Pair.of([one], [other]) for one, other in zip(was, now, strict=True))
    else:
        yield Pair.of(was, now)


def _part(row: Measurement) -> int:
    part = row.problem.settings.get("part", 0)
    return part if isinstance(part, int) else 0


def _of_kernels(base: Sequence[Measurement], new: Sequence[Measurement]) -> Iterator[Pair]:
    before, after = (grouped(rows, lambda row: row.kernel) for rows in (base, new))
    for kernel, rows in before.items():
        mine, theirs = (
            list(grouped(some, _launch).values()) for some in (rows, after.get(kernel, []))
        )
        if len(mine) == len(theirs):
            for was, now in zip(mine, theirs, strict=True):
                yield from _parts(was, now)


def _of_operations(base: Sequence[Measurement], new: Sequence[Measurement]) -> Iterator[Pair]:
    before, after = (grouped(rows, lambda row: row.backend) for rows in (base, new))
    for operation in [name for name in before if name and name in after]:
        yield from _alike(before[operation][:CANDIDATES], after[operation][:CANDIDATES])


def _alike(base: Sequence[Measurement], new: Sequence[Measurement]) -> Iterator[Pair]:
    """Of one operation: those with the most similar work first."""
    if len(base) == len(new) == 1 and _apart(base[0], new[0]) is None:
        yield Pair.of(base, new)
        return
    near = [
        (apart, i, j)
        for i, one in enumerate(base)
        for j, other in enumerate(new)
        if (apart := _apart(one, other)) is not None and apart <= ALIKE
    ]
    taken: set[tuple[str, int]] = set()
    for _, i, j in sorted(near):
        if not taken & {("base", i), ("new", j)}:
            taken |= {("base", i), ("new", j)}
            yield Pair.of([base[i]], [new[j]])


def _apart(one: Measurement, other: Measurement) -> float | None:
    """How different the work of two groups is; None if that is not known."""
    problems = [row.problem.settings.get("same_as") for row in (one, other)]
    if all(problems):
        return 0.0 if _sizes(problems[0]) == _sizes(problems[1]) else 1.0
    for name in ("flops", "counted_flops", "bytes", "dram_bytes"):
        a, b = (getattr(row, name) for row in (one, other))
        if a and b and a > 0 and b > 0:
            return abs(log(a / b))
    return None


def _sizes(problem: object) -> list[str]:
    """A problem without its precision: in another one it is still the same group."""
    workload, _, *parameters = [*str(problem).split(" "), "", ""]
    return [workload, *parameters]


# Several groups as one ---------------------------------------------------------------------------

_OF_LAUNCHES: Final = (
    "time_us",
    "time_p05_us",
    "time_p95_us",
    "flops",
    "bytes",
    "expected_dram_bytes",
    "counted_flops",
    "tensor_flops",
    "fp32_flops",
    "dram_bytes",
    "roof_us",
)
"""Of the mean launch: the mean over all launches."""

_OF_TIME: Final = ("tflops", "gbps", "roof_tflops", "roof_percent", "observed_percent")
"""Rates: the mean over all of the time."""

_SUMS: Final = ("samples", "launches", "total_us", "share_percent", "recoverable_us")


def together(rows: Sequence[Measurement]) -> Measurement:
    """One row for all parts of a launch. A figure that one of them lacks, it lacks too."""
    if len(rows) == 1:
        return rows[0]
    first = max(rows, key=total)
    counts, times = [row.launches or 0.0 for row in rows], [*map(total, rows)]
    values: dict[str, Any] = {n: sum(getattr(row, n) or 0 for row in rows) for n in _SUMS}
    values |= {name: _mean(rows, name, counts) for name in _OF_LAUNCHES}
    values |= {name: _mean(rows, name, times) for name in _OF_TIME}
    for name in ("flops", "bytes"):
        values[name] = None if values[name] is None else round(values[name])
    tflops, gbps = values["tflops"], values["gbps"]
    return Measurement(
        problem=_whole(first.problem),
        kernel=first.kernel,
        backend=first.backend,
        bound=first.bound,
        rounds=first.rounds,
        intensity=1e3 * tflops / gbps if tflops and gbps else None,
        **values,
    )


def _whole(problem: ProblemRecord) -> ProblemRecord:
    settings = {**problem.settings, "part": 0}
    if "same_as" in settings:
        settings["same_as"] = ""
    return replace(problem, size=problem.size.partition(" #")[0], settings=settings)


def _mean(rows: Sequence[Measurement], name: str, weights: Sequence[float]) -> float | None:
    values: list[float] = [v for row in rows if (v := getattr(row, name)) is not None]
    if len(values) < len(rows):
        return None
    pairs = zip(values, weights, strict=True)
    return sum(value * weight for value, weight in pairs) / (sum(weights) or 1.0)
