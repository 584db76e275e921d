"""A sweep of short points that is killed and continued, again and again."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from pathlib import Path

from commands import Rooflab, started

from rooflab.runs import store

# Short, so that a kill finds rows being written most of the time.
CONFIG = """
precisions = "all"
layouts = "all"
sizes = "2:5:+1"
kernels = ["fast", "slow"]
[timing]
warmup_s = 0
warmup_launches = 1
round_samples = 2
min_rounds = 2
max_rounds = 2
batch_us = 0
"""
POINTS = 2 * 2 * 4 * 4
"""Kernels, precisions, layouts, sizes."""


def keys(folder: Path) -> list[object]:
    """The identity of each row."""
    return [row.key for row in store.load(folder).measurements]


def finish(rooflab: Rooflab) -> Path:
    """The whole sweep, undisturbed."""
    Path("small.toml").write_text(CONFIG)
    assert rooflab("sweep", "--config", "small.toml", "--out", "whole")[0] == 0
    (folder,) = Path("whole").iterdir()
    assert len(keys(folder)) == POINTS
    return folder


def survive(finished: Path, kills: int) -> None:
    """SIGKILL for sweep and worker together, as a machine that loses power does.

    No row is lost or doubled, and a sweep that comes to its end has those of ``finished``.
    """
    draw = random.Random()
    fresh = ("sweep", "--config", "small.toml")
    command: tuple[object, ...] = fresh
    folder: Path | None = None
    rows = killed = completed = 0
    lasted_s = 1.0
    while killed < kills:
        with started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            begun = time.monotonic()
            try:
                process.wait(draw.uniform(0.0, 1.3 * lasted_s))
                lasted_s = time.monotonic() - begun
                assert process.returncode == 0
            except subprocess.TimeoutExpired:
                _kill_all(process.pid)
                killed += 1
        if folder is None:
            folders = [path.parent for path in Path("results").glob(f"*/{store.MANIFEST}")]
            folder = folders[0] if folders else None
        found = keys(folder) if folder else []
        if not found:
            lasted_s *= 1.2  # a busy machine has not measured anything by then
        if folder is None:
            continue
        assert len(found) >= rows, "a row was lost"
        assert len(set(found)) == len(found), "a row was doubled"
        rows, command = len(found), ("sweep", "--resume", folder)
        if rows == POINTS:
            assert sorted(map(str, found)) == sorted(map(str, keys(finished)))
            completed, rows, folder = completed + 1, 0, None
            for path in Path("results").iterdir():
                path.rename(Path("whole") / f"done-{completed}-{path.name}")
            command = fresh
    assert completed or rows, "nothing was ever measured"


def _kill_all(pid: int) -> None:
    """The sweep and whatever it has started, the worker first or last."""
    import psutil

    children = psutil.Process(pid).children(recursive=True)
    os.kill(pid, signal.SIGKILL)
    for child in children:
        child.kill()
