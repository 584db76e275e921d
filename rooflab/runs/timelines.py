"""``timelines.jsonl``: for each streamed row, when its first chunks were copied and computed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Final

from rooflab.model.measurement import Measurement
from rooflab.model.problem import ProblemRecord
from rooflab.model.timeline import TITLES, Span

TIMELINES: Final = "timelines.jsonl"
MAX_BYTES: Final = 2**26
MAX_SPANS: Final = 1000


def line(row: Measurement, spans: Sequence[Span]) -> str:
    """One row's spans as a line of JSON, times in microseconds."""
    return (
        json.dumps(
            {
                "kernel": row.kernel,
                "workload": row.problem.workload,
                "precision": row.problem.precision,
                "parameters": row.problem.parameters,
                "unit": "us",
                "spans": [
                    [s.stream, s.chunk, s.what, round(s.start_us, 3), round(s.end_us, 3)]
                    for s in spans
                ],
            }
        )
        + "\n"
    )


def load(folder: Path) -> dict[tuple[object, ...], list[Span]]:
    """The timelines of a run by the key of their row; lines that are not valid are left out."""
    try:
        path = folder / TIMELINES
        if path.stat().st_size > MAX_BYTES:
            return {}
        lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines()
    except OSError:
        return {}
    found: dict[tuple[object, ...], list[Span]] = {}
    for text in lines:
        try:
            content: dict[str, Any] = json.loads(text)
            problem = ProblemRecord(
                content["workload"], content["precision"], "", {}, content["parameters"]
            )
            spans = [_span(*values) for values in content["spans"][:MAX_SPANS]]
            found[content["kernel"], *problem.key] = spans
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    return found


def fastest(folder: Path, rows: Sequence[Measurement]) -> tuple[Measurement, list[Span]] | None:
    """The streamed row with a timeline that moved its bytes fastest; None without any."""
    timelines = load(folder)
    there = [row for row in rows if row.problem.streamed and timelines.get(row.key)]
    if not there:
        return None
    best = max(there, key=lambda row: row.gbps or 0)
    return best, timelines[best.key]


def _span(stream: Any, chunk: Any, what: Any, start: Any, end: Any) -> Span:
    """Raises ``ValueError`` or ``TypeError`` for impossible values."""
    if what not in TITLES or not 0 <= int(stream) < 1000:
        raise ValueError(what)
    if not (isfinite(start) and isfinite(end) and 0 <= start <= end):
        raise ValueError(start)
    return Span(int(stream), int(chunk), what, float(start), float(end))
