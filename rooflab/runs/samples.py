"""The files of a run with a line of JSON for each row or launch.

``samples.jsonl``, ``timelines.jsonl``   of each row: times by round; when the first chunks of a
                                        streamed row were copied and computed; in microseconds
``launches.jsonl``                      one step of a program, then its launches, in microseconds
``collectives.jsonl``                   the steps of a rank, then its collectives, in nanoseconds

What is read may be anybody's: lines that are not valid are left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rooflab.model.collectives import CollectiveLaunch, Collectives
from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.model.timeline import MOST_LAUNCHES, TITLES, RecordedStep, Span, StepLaunch

TIMELINES: Final = "timelines.jsonl"
LAUNCHES: Final = "launches.jsonl"
COLLECTIVES: Final = "collectives.jsonl"
MAX_BYTES: Final = 2**26
MAX_SPANS: Final = 1000
MAX_US: Final = 1e12
MAX_NS: Final = 2**62
MAX_ID: Final = 2**63


def line(row: Measurement, name: str, values: Sequence[object]) -> str:
    """What belongs to a row, called ``name``, as a line of JSON."""
    problem = row.problem
    owner = {"kernel": row.kernel, "workload": problem.workload, "precision": problem.precision}
    content = {**owner, "parameters": problem.parameters, "unit": "us", name: values}
    return json.dumps(content) + "\n"


def owned(text: str) -> tuple[tuple[object, ...], dict[str, Any]] | None:
    """The key of the row that a line belongs to, and the line's content; None if it has none."""
    try:
        content: dict[str, Any] = json.loads(text)
        problem = ProblemRecord(
            content["workload"], content["precision"], "", {}, content["parameters"]
        )
        key = (content["kernel"], *problem.key)
        hash(key)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return key, content


def rounds_line(row: Measurement, rounds: Sequence[Sequence[float]]) -> str:
    """The samples of a row, by round."""
    return line(row, "rounds", [[float(f"{time:.6g}") for time in times] for times in rounds])


def timeline_line(row: Measurement, spans: Sequence[Span]) -> str:
    """The timeline of a row."""
    times = [[s.stream, s.chunk, s.what, round(s.start_us, 3), round(s.end_us, 3)] for s in spans]
    return line(row, "spans", times)


def load_timelines(folder: Path) -> dict[tuple[object, ...], list[Span]]:
    """The timelines of a run by the key of their row."""
    found: dict[tuple[object, ...], list[Span]] = {}
    for key, content in filter(None, map(owned, _lines(folder / TIMELINES))):
        try:
            found[key] = [_span(*values) for values in content["spans"][:MAX_SPANS]]
        except (ArithmeticError, ValueError, KeyError, TypeError):
            continue
    return found


def _lines(path: Path) -> list[str]:
    """At least one, which is empty if the file cannot be read or is too large."""
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return [""]
        return path.read_text(encoding="utf-8-sig", errors="replace").splitlines() or [""]
    except OSError:
        return [""]


def fastest(folder: Path, rows: Sequence[Measurement]) -> tuple[Measurement, list[Span]] | None:
    """The streamed row with a timeline that moved its bytes fastest; None without any."""
    timelines = load_timelines(folder)
    there = [row for row in rows if row.problem.streamed and timelines.get(row.key)]
    if not there:
        return None
    best = max(there, key=lambda row: row.gbps or 0)
    return best, timelines[best.key]


def _span(stream: Any, chunk: Any, what: Any, start: Any, end: Any) -> Span:
    """Raises ``ArithmeticError``, ``ValueError`` or ``TypeError`` for impossible values."""
    if what not in TITLES or not 0 <= int(stream) < 1000:
        raise ValueError(what)
    if not (isfinite(start) and isfinite(end) and 0 <= start <= end):
        raise ValueError(start)
    return Span(int(stream), int(chunk), what, float(start), float(end))


def step_lines(step: RecordedStep) -> str:
    """One step of a program: all about it in the first line, then its launches."""
    about = {"unit": "us", "step": round(step.us, 3), "left_out": step.left_out}
    columns = {"columns": StepLaunch._fields}
    lines = [json.dumps(about | columns)]
    lines += [
        json.dumps([round(one.start_us, 3), round(one.duration_us, 3), *one[2:]])
        for one in step.launches
    ]
    return "".join(f"{line}\n" for line in lines)


def load_step(folder: Path, rows: int) -> RecordedStep | None:
    """The recorded step of a program's run with so many rows; None if there is none."""
    first, *lines = _lines(folder / LAUNCHES)
    try:
        about = json.loads(first)
        us, left_out = float(about["step"]), int(about["left_out"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    found = [one for line in lines[:MOST_LAUNCHES] if (one := _launched(line, rows))]
    if not found or not 0 <= us <= MAX_US:
        return None
    left_out += max(0, len(lines) - MOST_LAUNCHES)
    return RecordedStep(tuple(sorted(found)), us, min(max(0, left_out), MAX_ID))


def _launched(line: str, rows: int) -> StepLaunch | None:
    try:
        start, duration, *others = json.loads(line)
        device, stream, row = map(int, others)
        one = StepLaunch(float(start), float(duration), device, stream, row)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    timed = 0 <= one.start_us <= MAX_US and 0 <= one.duration_us <= MAX_US
    return one if timed and 0 <= row < rows and max(abs(device), abs(stream)) < MAX_ID else None


def collective_lines(found: Collectives) -> str:
    """All about the steps in the first line, then the launches."""
    about = {"unit": "ns", "steps": found.steps, "clock": found.clock, "epoch": found.epoch_ns}
    lines = [json.dumps(about | {"columns": CollectiveLaunch._fields})]
    return "".join(f"{line}\n" for line in [*lines, *map(json.dumps, found.launches)])


def load_collectives(folder: Path, rows: int) -> Collectives | None:
    """Those of a run with so many rows; None if there are none."""
    first, *lines = _lines(folder / COLLECTIVES)
    try:
        about = json.loads(first)
        steps, clock, epoch = int(about["steps"]), str(about["clock"]), int(about["epoch"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    found = tuple(one for line in lines if (one := _collective(line, steps, rows)))
    if not found or not 0 < steps < MAX_NS or abs(epoch) > MAX_NS:
        return None
    return Collectives(steps, clock, epoch, found)


def _collective(line: str, steps: int, rows: int) -> CollectiveLaunch | None:
    try:
        one = CollectiveLaunch(*map(int, json.loads(line)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    timed = abs(one.start_ns) < MAX_NS and 0 <= one.exposed_ns <= one.ns < MAX_NS
    return one if timed and 0 <= one.step < steps and 0 <= one.row < rows else None
