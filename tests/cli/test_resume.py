"""A sweep that is killed at any moment loses nothing, and goes on where it stopped."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rooflab import run

Rooflab = Callable[..., tuple[int, str, str]]

# Short, so that a kill finds rows being written most of the time.
CONFIG = """
precisions = "all"
layouts = "all"
sizes = "2:9:+1"
kernels = ["fast", "slow"]
[timing]
warmup_s = 0
warmup_launches = 1
round_samples = 2
min_rounds = 2
max_rounds = 2
batch_us = 0
"""
POINTS = 2 * 2 * 4 * 8  # kernels, precisions, layouts, sizes
KILLS = 50


def keys(folder: Path) -> list[object]:
    return [row.key for row in run.load(folder).measurements]


@pytest.fixture
def finished(rooflab: Rooflab) -> Path:
    Path("small.toml").write_text(CONFIG)
    assert rooflab("sweep", "--config", "small.toml", "--out", "whole")[0] == 0
    (folder,) = Path("whole").iterdir()
    assert len(keys(folder)) == POINTS
    return folder


def test_killed_at_random_moments(finished: Path) -> None:
    """SIGKILL for sweep and worker together, as a machine that loses power does."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    draw = random.Random()
    base = [sys.executable, "-m", "rooflab", "sweep"]
    command = fresh = [*base, "--device", "fake:FakeDevice", "--config", "small.toml"]
    folder: Path | None = None
    rows = kills = completed = 0
    lasted_s = 1.0
    while kills < KILLS:
        process = subprocess.Popen(
            command,
            env=environment,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started = time.monotonic()
        try:
            process.wait(draw.uniform(0.0, 1.3 * lasted_s))
            lasted_s = time.monotonic() - started
            assert process.returncode == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            kills += 1
        if folder is None:
            folders = [path.parent for path in Path("results").glob("*/manifest.json")]
            folder = folders[0] if folders else None
        found = keys(folder) if folder else []
        if not found:
            lasted_s *= 1.2  # a busy machine has not measured anything by then
        if folder is None:
            continue
        assert len(found) >= rows, "a row was lost"
        assert len(set(found)) == len(found), "a row was doubled"
        rows = len(found)
        command = [*base, "--resume", str(folder)]
        if rows == POINTS:
            assert sorted(map(str, found)) == sorted(map(str, keys(finished)))
            completed, rows, folder = completed + 1, 0, None
            for path in Path("results").iterdir():
                path.rename(Path("whole") / f"done-{completed}-{path.name}")
            command = fresh
    assert completed or rows, "nothing was ever measured"


def test_every_torn_end_is_continued(finished: Path, rooflab: Rooflab) -> None:
    """Whatever the last write left behind, the row is measured again and stands there once."""
    whole = keys(finished)
    table, samples = finished / run.MEASUREMENTS, finished / run.SAMPLES
    rows, lines = table.read_bytes(), samples.read_bytes()
    last_row = rows[: rows.rstrip(b"\n").rfind(b"\n") + 1]
    last_line = lines[: lines.rstrip(b"\n").rfind(b"\n") + 1]
    draw = random.Random(0)
    for _ in range(4):
        table.write_bytes(rows[: draw.randrange(len(last_row), len(rows))])
        samples.write_bytes(lines[: draw.randrange(len(last_line), len(lines) + 1)])
        assert rooflab("sweep", "--resume", finished)[0] == 0
        assert keys(finished) == whole
        assert samples.read_text().count("\n") == len(whole)


def test_a_finished_run_is_left_as_it_is(finished: Path, rooflab: Rooflab) -> None:
    before = (finished / run.MEASUREMENTS).read_bytes()
    assert rooflab("sweep", "--resume", finished)[0] == 0
    assert (finished / run.MEASUREMENTS).read_bytes() == before


def test_what_differs_is_refused(finished: Path, rooflab: Rooflab) -> None:
    manifest = finished / run.MANIFEST
    text = manifest.read_text()
    manifest.write_text(
        text.replace('"Exact 1000"', '"Exact 900"').replace('"seed": 0', '"seed": 1')
    )
    code, out, err = rooflab("sweep", "--resume", finished)
    assert (code, out) == (2, "")
    assert err == (f"error: cannot continue {finished}: the device was Exact 900, is Exact 1000")


def test_settings_of_another_rooflab_are_named(finished: Path, rooflab: Rooflab) -> None:
    manifest = finished / run.MANIFEST
    manifest.write_text(manifest.read_text().replace('"batch_us"', '"batch_below_us"'))
    code, out, err = rooflab("sweep", "--resume", finished)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot continue {finished}: its settings are not this rooflab's")
    assert "batch_below_us" in err
    assert len(err.splitlines()) == 1


def test_other_settings_beside_resume_are_refused(finished: Path, rooflab: Rooflab) -> None:
    for option in (("--sizes", "8"), ("--out", "elsewhere")):
        code, _, err = rooflab("sweep", "--resume", finished, *option)
        assert code == 2
        assert err == "error: --resume takes its settings from the run: give no others with it"


def test_a_folder_in_use_is_refused_until_its_owner_is_gone(
    finished: Path, rooflab: Rooflab
) -> None:
    manifest = run.load(finished).manifest
    with run.RunWriter(finished, manifest):
        code, _, err = rooflab("sweep", "--resume", finished)
        assert code == 2
        assert f"{finished} is in use by another rooflab" in err
    assert rooflab("sweep", "--resume", finished)[0] == 0


def test_a_full_disk_is_reported_and_keeps_what_is_there(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rooflab.errors import RunError

    one = run.load(finished)
    with run.RunWriter(finished, one.manifest) as writer:

        def no_space(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
        with pytest.raises(RunError, match="No space left on device; what was measured before"):
            writer.append(one.measurements[0], [[1.0]])
