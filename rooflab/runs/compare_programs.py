"""Compares two runs of a program: the time of a step, then each group of launches. Pure.

The step has a verdict as any point has one (``compare``). Its uncertainty is the sum of those of
all groups, as if they varied together. If both runs know how long a step takes without recording,
that has to have the same verdict.

A group is judged in the same way by its time in a step, and is SAME if that cannot have changed by
more than NEGLIGIBLE_PERCENT of the step. The interval of a mean follows from the 5th and 95th
percentile of its launches.

Which groups belong together is the rule of ``matching``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, sqrt
from typing import Final

from rooflab.errors import UsageError
from rooflab.measure.statistics import T_975
from rooflab.model.measurement import Measurement, is_possible
from rooflab.model.problem import PROGRAM, ProblemRecord
from rooflab.runs.compare import (
    Comparison,
    Interval,
    Point,
    Verdict,
    changes,
    check_threshold,
    compare,
    differences,
    judge,
    refuse_different_data,
    same_device,
    span,
)
from rooflab.runs.matching import Pair, matched
from rooflab.runs.program import Program, is_program, total
from rooflab.runs.store import RunData

THRESHOLD_PERCENT: Final = 0.5
PROGRAM_THRESHOLD_PERCENT: Final = 2.0
"""The smallest change that counts unless another is given. A step varies more than a kernel."""

NEGLIGIBLE_PERCENT: Final = 0.1
"""A change of a group by a smaller part of the step is none."""

STEP: Final = "(step)"
"""The kernel in the row of a whole step."""

_NORMAL: Final = 3.29
"""The 5th and the 95th percentile of a normal distribution are so many deviations apart."""

_STUDENT: Final = (inf, *T_975, 2.571, 2.447, 2.365, 2.306, 2.262)
"""The 97.5th percentile of Student's distribution by samples; of more it is 2.23 to 1.96."""


@dataclass(frozen=True, slots=True, repr=False)
class ProgramComparison(Comparison):
    """Two runs of a program. ``points`` has the step, ``groups`` what its time consists of.

    ``counts`` are those of ``points``: only the step decides whether a run became slower.
    """

    groups: list[Point]
    pairs: list[Pair]
    """The rows of each of ``groups``."""

    def __repr__(self) -> str:
        runs = f"{self.base.path} and {self.new.path}"
        return f"<rooflab.ProgramComparison of {runs}: step {self.step.verdict}>"

    @property
    def step(self) -> Point:
        """The verdict on the time of a step."""
        return self.points[0]

    @property
    def group_counts(self) -> dict[Verdict, int]:
        """Number of groups with each verdict."""
        verdicts = [point.verdict for point in self.groups]
        return {verdict: verdicts.count(verdict) for verdict in Verdict}


def comparable(base: RunData, new: RunData) -> bool:
    """Whether they are judged point by point: runs of one device, or two of programs."""
    return same_device(base, new) or _of_programs(base, new)


def compare_any(base: RunData, new: RunData, threshold_percent: float | None = None) -> Comparison:
    """Compare two runs, of programs step by step, others point by point.

    Without a threshold that of their kind counts. Raises ``UsageError`` as ``compare`` does.
    """
    if _of_programs(base, new):
        given = PROGRAM_THRESHOLD_PERCENT if threshold_percent is None else threshold_percent
        return compare_programs(base, new, given)
    return compare(base, new, THRESHOLD_PERCENT if threshold_percent is None else threshold_percent)


def _of_programs(base: RunData, new: RunData) -> bool:
    return is_program(base.measurements) and is_program(new.measurements)


def compare_programs(base: RunData, new: RunData, threshold_percent: float) -> ProgramComparison:
    """Judge the step and match its groups. The runs may be of different devices.

    Raises ``UsageError`` if the threshold is impossible, or the runs had different data.
    """
    check_threshold(threshold_percent)
    refuse_different_data(base, new)
    before, after = Program.of(base), Program.of(new)
    if before.whole != after.whole:
        whole = "BASE" if before.whole else "NEW"
        raise UsageError(
            f"{whole} is a whole program, the other run has steps: profile both in one way"
        )
    found = matched(*((*one.groups, *one.others) for one in (before, after)))
    least_us = NEGLIGIBLE_PERCENT / 100 * min(before.step_us, after.step_us)
    return ProgramComparison(
        base=base,
        new=new,
        threshold_percent=threshold_percent,
        differences=list(differences(base, new, [])),
        points=[_step(before, after, threshold_percent)],
        status_changes=[],
        unmeasured=0,
        only_base=found.gone,
        only_new=found.come,
        groups=[_group(one.base, one.new, threshold_percent, least_us) for one in found.pairs],
        pairs=found.pairs,
    )


# The verdicts ------------------------------------------------------------------------------------


def _step(before: Program, after: Program, threshold_percent: float) -> Point:
    base, new = (_as_row(program) for program in (before, after))
    was, now = span(base), span(new)
    change = 100 * (after.step_us / before.step_us - 1) if before.step_us else None
    if not was or not now:
        return Point(base, new, Verdict.AMBIGUOUS, "no time of a step", change, None, None)
    verdict, reason = judge(was, now, threshold_percent)
    plain = [program.figure("plain_us") for program in (before, after)]
    if plain[0] and plain[1] and verdict != Verdict.AMBIGUOUS:
        moved = was.moved(plain[0]), now.moved(plain[1])
        without, _ = judge(*moved, threshold_percent)
        if without != verdict:
            reason = f"{verdict} in recorded steps, {without} in others"
            verdict = Verdict.AMBIGUOUS
    return Point(base, new, verdict, reason, change, *changes(was, now))


def _as_row(program: Program) -> Measurement:
    us, half = program.step_us, sum(uncertainty(row) for row in program.groups)
    return Measurement(
        problem=ProblemRecord(PROGRAM, "", "-", {}, {}),
        kernel=STEP,
        rounds=program.steps,
        time_us=us,
        time_lo_us=max(0.0, us - half),
        time_hi_us=us + half,
        launches=1.0,
        total_us=us,
        share_percent=100.0,
    )


def uncertainty(row: Measurement) -> float:
    """Half of the 95 % interval of a group's time in a step; 0 if nothing is known of it.

    It is not more than the spread of single launches.
    """
    low, high = row.time_p05_us, row.time_p95_us
    if not is_possible(low) or not is_possible(high) or high < low:
        return 0.0
    samples = max(1, row.samples or 1)
    student = _STUDENT[min(samples, len(_STUDENT)) - 1]
    share = min(0.5, student / _NORMAL / sqrt(samples))
    return (row.launches or 0.0) * (high - low) * share


def _interval(row: Measurement) -> Interval:
    us, half = total(row), uncertainty(row)
    return Interval(us, max(0.0, us - half), us + half)


def _group(base: Measurement, new: Measurement, threshold_percent: float, least_us: float) -> Point:
    was, now = _interval(base), _interval(new)
    change = 100 * (now.time / was.time - 1) if was.time else None
    verdict, reason = judge(was, now, threshold_percent)
    if max(now.high - was.low, was.high - now.low) < least_us:
        verdict, reason = Verdict.SAME, ""
    elif was.low == was.high or now.low == now.high:
        verdict, reason = Verdict.AMBIGUOUS, "its spread is not known"
    return Point(base, new, verdict, reason, change, *changes(was, now))
