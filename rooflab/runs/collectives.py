"""``collectives.jsonl``: the collectives of a rank, a line for the steps, then one for each launch.

Times are in nanoseconds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from rooflab.model.collectives import CollectiveLaunch, Collectives

COLLECTIVES: Final = "collectives.jsonl"
MAX_BYTES: Final = 2**26
MAX_NS: Final = 2**62


def collective_lines(found: Collectives) -> str:
    """All about the steps in the first line, then the launches."""
    about = {"unit": "ns", "steps": found.steps, "clock": found.clock, "epoch": found.epoch_ns}
    lines = [json.dumps(about | {"columns": CollectiveLaunch._fields})]
    return "".join(f"{line}\n" for line in [*lines, *map(json.dumps, found.launches)])


def load_collectives(folder: Path, rows: int) -> Collectives | None:
    """Those of a run with so many rows; None if there are none. Wrong lines are left out."""
    try:
        path = folder / COLLECTIVES
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return None
        first, *lines = path.read_text(encoding="utf-8-sig", errors="replace").splitlines() or [""]
        about = json.loads(first)
        steps, clock, epoch = int(about["steps"]), str(about["clock"]), int(about["epoch"])
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    found = tuple(one for line in lines if (one := _launch(line, steps, rows)))
    if not found or not 0 < steps < MAX_NS or abs(epoch) > MAX_NS:
        return None
    return Collectives(steps, clock, epoch, found)


def _launch(line: str, steps: int, rows: int) -> CollectiveLaunch | None:
    try:
        one = CollectiveLaunch(*map(int, json.loads(line)))
    except (ValueError, TypeError, OverflowError, RecursionError):
        return None
    timed = abs(one.start_ns) < MAX_NS and 0 <= one.exposed_ns <= one.ns < MAX_NS
    return one if timed and 0 <= one.step < steps and 0 <= one.row < rows else None
