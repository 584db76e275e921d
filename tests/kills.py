"""A sweep of many short points, to be killed while rows are written."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from rooflab.runs import store

# Short, so that a kill finds rows being written most of the time.
CONFIG = """
precisions = "all"
layouts = "all"
sizes = "40:64:+8"
kernels = ["fast", "slow"]
[timing]
warmup_s = 0
warmup_launches = 1
round_samples = 2
min_rounds = 3
max_rounds = 3
batch_us = 0
"""
POINTS = 2 * 2 * 4 * 4
"""Kernels, precisions, layouts, sizes."""


def keys(folder: Path) -> list[object]:
    """The identity of each row."""
    return [row.key for row in store.load(folder).measurements]


def fleets() -> list[Path]:
    """The folder of the fleet, if it is there."""
    found = [path.parent for path in Path("results").glob("*/fleet.json")]
    assert len(found) <= 1
    return found


def kept(known: Mapping[str, int]) -> dict[str, int]:
    """How many rows each member has; none was lost, none is there twice."""
    counts = dict(known)
    for name in known if fleets() else ():
        run = fleets()[0] / "members" / name
        found = keys(run) if (run / store.MANIFEST).exists() else []
        assert len(set(found)) == len(found), "a row is there twice"
        assert len(found) >= known[name], "a row was lost"
        counts[name] = len(found)
    return counts


def kill_all(pid: int) -> None:
    """The sweep and whatever it has started, the worker first or last."""
    children = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.kill()
