"""A sweep that is killed at any moment loses nothing, and goes on where it stopped."""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from commands import started
from kills import CONFIG, POINTS, keys, kill_all

from rooflab.runs.store import MANIFEST

pytestmark = pytest.mark.slow

KILLS = 7


def test_killed_at_random_moments() -> None:
    """SIGKILL for sweep and worker together, as a machine that loses power does.

    No row is lost or doubled, and a sweep that comes to its end has them all.
    """
    Path("small.toml").write_text(CONFIG)
    draw = random.Random()
    fresh = ("sweep", "--config", "small.toml")
    command: tuple[object, ...] = fresh
    folder: Path | None = None
    rows = killed = completed = 0
    lasted_s = 1.0
    while killed < KILLS or not (completed or rows):
        with started(*command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            begun = time.monotonic()
            try:
                process.wait(draw.uniform(0.0, 1.3 * lasted_s))
                lasted_s = time.monotonic() - begun
                assert process.returncode == 0
            except subprocess.TimeoutExpired:
                kill_all(process.pid)
                killed += 1
        if folder is None:
            folders = [path.parent for path in Path("results").glob(f"*/{MANIFEST}")]
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
            completed, rows, folder = completed + 1, 0, None
            shutil.rmtree("results")
            command = fresh
