"""A part of a program: what it launches inside of one range. Pure."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from dataclasses import replace

from rooflab.devices.records import RecordedLaunch, Recording, StepTime
from rooflab.errors import UsageError

SHOWN = 8
"""Names of ranges in a message."""


def part_of(recording: Recording, name: str) -> Recording:
    """Only what was launched inside of a range, such as one of ``record_function`` or NVTX.

    In each step it lasts from the start of its first launch to the end of its last. Raises
    ``UsageError`` if it has none.
    """
    starts = [window.start_ns for window in recording.windows]
    by_step: dict[int, list[RecordedLaunch]] = defaultdict(list)
    for one in recording.launches:
        if name in one.phase:
            by_step[bisect_right(starts, one.start_ns)].append(one)
    if not by_step:
        known = _known(recording)
        raise UsageError(f"nothing was launched inside of a range {name[:80]!r}: {known}")
    steps = [
        StepTime(name, min(one.start_ns for one in found), max(one.end_ns for one in found))
        for found in by_step.values()
    ]
    return replace(
        recording,
        launches=[one for found in by_step.values() for one in found],
        copies=[
            one
            for one in recording.copies
            if any(step.start_ns <= one.start_ns < step.end_ns for step in steps)
        ],
        steps=steps,
    )


def _known(recording: Recording) -> str:
    names = dict.fromkeys(name for one in recording.launches for name in one.phase)
    if not names:
        return "no ranges are known"
    more = f", and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"there are {', '.join(list(names)[:SHOWN])}{more}"
