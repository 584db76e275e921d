"""A sweep that is stopped at any moment, by anything, loses nothing and goes on from there."""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from commands import EXACT, Rooflab, joined, only_run, rows_on_disk, started, statuses, wait_until
from kills import CONFIG, POINTS, keys, kill_all

from rooflab import api
from rooflab.engine import Observer
from rooflab.errors import UsageError
from rooflab.planning import Plan
from rooflab.runs import store
from rooflab.runs.store import MANIFEST

SMALL = ("-k", "fast", "-p", "fp32", "--sizes", "40,48,64")


@pytest.fixture(scope="session")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three rows."""
    run = api.sweep(
        kernels="fast",
        precisions="fp32",
        sizes=[40, 48, 64],
        device="fake:FakeDevice",
        out=tmp_path_factory.mktemp("swept"),
    )
    return run.path


@pytest.fixture
def finished(swept: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(swept, Path("results") / swept.name))


def forget(folder: Path, rows: int) -> None:
    """Drop the last rows, as if they had not been measured yet."""
    table = folder / store.MEASUREMENTS
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-rows]))


# Stopped -----------------------------------------------------------------------------------------


def more_rows(than: int) -> bool:
    return rows_on_disk() > than


@pytest.mark.slow
def test_killed_while_rows_are_written(rooflab: Rooflab) -> None:
    """Sweep and worker together, as a machine that loses power; more of it in tests/slow."""
    Path("small.toml").write_text(CONFIG)
    command: tuple[object, ...] = ("sweep", "--config", "small.toml")
    seen: list[object] = []
    for _ in range(2):
        with started(*command) as process:
            before = len(seen)
            wait_until(partial(more_rows, before), process)
            kill_all(process.pid)
        found = keys(only_run().path)
        assert found[: len(seen)] == seen
        assert len(seen) < len(found) == len(set(found))
        command, seen = ("sweep", "--resume", only_run().path), found
    assert rooflab(*command)[0] == 0
    found = keys(only_run().path)
    assert found[: len(seen)] == seen
    assert len(found) == len(set(found)) == POINTS


def test_every_torn_end_is_continued(finished: Path, rooflab: Rooflab) -> None:
    """Whatever the last write left behind, the row is measured again and stands there once."""
    whole = keys(finished)
    table, samples = finished / store.MEASUREMENTS, finished / store.SAMPLES
    rows, lines = table.read_bytes(), samples.read_bytes()
    last_row = rows[: rows.rstrip(b"\n").rfind(b"\n") + 1]
    last_line = lines[: lines.rstrip(b"\n").rfind(b"\n") + 1]
    draw = random.Random(0)
    for _ in range(2):
        table.write_bytes(rows[: draw.randrange(len(last_row), len(rows))])
        samples.write_bytes(lines[: draw.randrange(len(last_line), len(lines) + 1)])
        assert rooflab("sweep", "--resume", finished)[0] == 0
        assert keys(finished) == whole
        assert samples.read_text().count("\n") == len(whole)


def test_a_finished_run_is_left_as_it_is(finished: Path, rooflab: Rooflab) -> None:
    before = (finished / store.MEASUREMENTS).read_bytes()
    assert rooflab("sweep", "--resume", finished)[0] == 0
    assert (finished / store.MEASUREMENTS).read_bytes() == before


def test_a_number_of_many_digits_is_the_same_point_again(rooflab: Rooflab) -> None:
    assert rooflab("sweep", *SMALL, "--alpha", "0.3333333333", "--beta", "1e-17")[0] == 0
    run = only_run()
    assert {row.problem.settings["alpha"] for row in run.measurements} == {0.3333333333}
    before = (run.path / store.MEASUREMENTS).read_bytes()
    assert rooflab("sweep", "--resume", run.path)[0] == 0
    assert (run.path / store.MEASUREMENTS).read_bytes() == before


# Refused -----------------------------------------------------------------------------------------


def test_what_differs_is_refused(finished: Path, rooflab: Rooflab) -> None:
    manifest = finished / MANIFEST
    text = manifest.read_text()
    manifest.write_text(
        text.replace('"Exact 1000"', '"Exact 900"').replace('"seed": 0', '"seed": 1')
    )
    code, out, err = rooflab("sweep", "--resume", finished)
    assert (code, out) == (2, "")
    assert err == (f"error: cannot continue {finished}: the device was Exact 900, is Exact 1000")


def test_settings_of_another_rooflab_are_named(finished: Path, rooflab: Rooflab) -> None:
    manifest = finished / MANIFEST
    manifest.write_text(manifest.read_text().replace('"batch_us"', '"batch_below_us"'))
    code, out, err = rooflab("sweep", "--resume", finished)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: cannot continue {finished}: its settings are from another")
    assert "batch_below_us" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("option", [("--sizes", "8"), ("--out", "elsewhere"), ("--alpha", "2")])
def test_other_settings_beside_resume_are_refused(
    finished: Path, rooflab: Rooflab, option: tuple[str, str]
) -> None:
    code, _, err = rooflab("sweep", "--resume", finished, *option)
    assert code == 2
    assert err.startswith("error: --resume uses the run's settings: the only other options are")


def test_kernels_beside_resume_are_files(finished: Path, rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "--resume", finished, "-k", "fast")
    assert code == 2
    assert err.startswith("error: --kernel 'fast' is no file: --resume measures all kernels")


def test_time_for_the_rest(finished: Path, rooflab: Rooflab) -> None:
    """Too little for one point, then without a limit that binds."""
    whole = (finished / store.MEASUREMENTS).read_text()
    forget(finished, 3)
    code, _, err = rooflab("sweep", "--resume", finished, "--max-time", "1e-6")
    assert code == 1  # nothing was measured
    assert "--max-time is reached: 3 points not measured" in " ".join(err.split())
    code, _, _ = rooflab("sweep", "--resume", finished, "--max-time", "1000")
    assert code == 0
    assert len((finished / store.MEASUREMENTS).read_text().splitlines()) == len(whole.splitlines())


@pytest.mark.parametrize("value", ["0", "-1", "nan"])
def test_a_time_that_is_none(finished: Path, rooflab: Rooflab, value: str) -> None:
    code, _, err = rooflab("sweep", "--resume", finished, "--max-time", value)
    assert code == 2
    assert err.startswith(f"error: --max-time {value}: give more than 0")
    assert len(err.splitlines()) == 1


# Twice at once -----------------------------------------------------------------------------------


def test_a_folder_in_use_is_refused_until_its_owner_is_gone(
    finished: Path, rooflab: Rooflab
) -> None:
    with store.RunWriter(finished):
        code, _, err = rooflab("sweep", "--resume", finished)
        assert code == 2
        assert f"{finished} is in use by another rooflab" in err
    assert rooflab("sweep", "--resume", finished)[0] == 0


class Overtaken(Observer):
    """Between the plan and the lock, another --resume does all the work."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.measured_rows = 0

    def planned(self, plan: Plan) -> None:
        api.resume(self._folder, "fake:FakeDevice")

    def measured(self, row: object, detail: str) -> None:
        self.measured_rows += 1


def test_what_another_resume_has_finished_meanwhile_is_not_measured_again(finished: Path) -> None:
    whole = keys(finished)
    forget(finished, 2)
    observer = Overtaken(finished)
    api.resume(finished, "fake:FakeDevice", observer=observer)
    assert observer.measured_rows == 0
    assert keys(finished) == whole


# What the system refuses -------------------------------------------------------------------------


def limited(what: int, most: int) -> dict[str, Any]:
    """For a process of its own: what it may use. Python would write the begin of its bytecode."""
    return {
        "preexec_fn": lambda: resource.setrlimit(what, (most, most)),
        "env": {"PYTHONDONTWRITEBYTECODE": "1"},
    }


@pytest.mark.slow
def test_a_full_disk_keeps_what_is_there_and_says_how_to_go_on(rooflab: Rooflab) -> None:
    """No file may grow beyond 5 kB: room for the manifest and some rows."""
    sweep = ("-k", "fast", "-p", "fp32", "--layout", "all", "--sizes", "40,48,64")
    with started("sweep", *sweep, **limited(resource.RLIMIT_FSIZE, 5000)) as process:
        _, err = process.communicate()
    assert process.returncode == 1
    run = only_run()
    assert 0 < len(run.measurements) < 12
    assert err.splitlines()[-1] == (
        f"error: cannot write {run.path / store.SAMPLES}: File too large; "
        f"{len(run.measurements)} rows are safe: make room, "
        f"then type: rooflab sweep --resume {run.path}"
    )
    assert rooflab("sweep", "--resume", run.path)[0] == 0
    assert len(set(keys(run.path))) == len(keys(run.path)) == 12


@pytest.mark.parametrize(
    ("what", "most", "says"),
    [
        (resource.RLIMIT_FSIZE, 0, "File too large; make room, then try again"),
        (resource.RLIMIT_FSIZE, 2000, "File too large; make room, then try again"),
        (resource.RLIMIT_NOFILE, 9, "Too many open files"),
    ],
)
def test_what_cannot_begin_leaves_no_folder(what: int, most: int, says: str) -> None:
    with started("sweep", *SMALL, **limited(what, most)) as process:
        out, err = process.communicate()
    assert (process.returncode, out) == (1, "")
    assert says in err.splitlines()[-1]
    assert "Traceback" not in err
    assert not list(Path("results").iterdir())


@contextmanager
def failing(
    monkeypatch: pytest.MonkeyPatch, name: str, number: int, file: str, after: int = 0
) -> Iterator[None]:
    """``os.NAME`` fails on ``file``, from its call number ``after`` on."""
    real, calls = getattr(os, name), 0

    def fake(target: object, *arguments: object, **more: object) -> object:
        nonlocal calls
        # Of a descriptor as of a name.
        path = Path(f"/proc/self/fd/{target}").resolve() if isinstance(target, int) else target
        if file in Path(str(path)).name:
            calls += 1
            if calls > after:
                raise OSError(number, os.strerror(number), str(path))
        return real(target, *arguments, **more)

    with monkeypatch.context() as patched:
        patched.setattr(os, name, fake)
        yield


BROKEN = [
    ("write", errno.ENOSPC, store.SAMPLES, "make room"),
    ("write", errno.EDQUOT, store.MEASUREMENTS, "make room"),
    ("fsync", errno.EIO, store.MEASUREMENTS, "check the disk"),
    ("fsync", errno.EIO, store.SAMPLES, "check the disk"),
    ("open", errno.EACCES, store.SAMPLES, "make it writable"),
    ("open", errno.EROFS, store.MEASUREMENTS, "make it writable"),
    ("open", errno.EMFILE, store.SAMPLES, "allow more open files (ulimit -n)"),
    ("fsync", errno.ENOSPC, MANIFEST, "make room"),
    ("replace", errno.EACCES, MANIFEST, "make it writable"),
]


@pytest.mark.parametrize(("name", "number", "file", "remedy"), BROKEN)
def test_what_a_resume_cannot_write_is_named_and_nothing_is_lost(
    finished: Path,
    rooflab: Rooflab,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    number: int,
    file: str,
    remedy: str,
) -> None:
    whole = keys(finished)
    forget(finished, 2)
    with failing(monkeypatch, name, number, file):
        code, _, err = rooflab("sweep", "--resume", finished)
    assert code == 1
    last = err.splitlines()[-1]
    assert last.startswith(f"error: cannot write {finished / file}: {os.strerror(number)}; ")
    assert last.endswith(f" safe: {remedy}, then type: rooflab sweep --resume {finished}")
    assert keys(finished) == whole[:1]
    assert sorted(path.name for path in finished.iterdir()) == sorted(
        [MANIFEST, store.MEASUREMENTS, store.SAMPLES]
    )


@pytest.mark.parametrize(
    ("file", "after", "rows"),
    [(store.SAMPLES, 1, 1), (store.MEASUREMENTS, 2, 1), (MANIFEST, 2, 3)],
)
def test_a_disk_that_breaks_while_it_sweeps(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch, file: str, after: int, rows: int
) -> None:
    with failing(monkeypatch, "fsync", errno.EIO, file, after):
        code, _, err = rooflab("sweep", *SMALL)
    assert code == 1
    run = only_run()
    assert statuses(run) == [("fast", "ok")] * rows
    assert f"cannot write {run.path / file}: {os.strerror(errno.EIO)}" in joined(err)
    assert f"{rows} row{'s are' if rows > 1 else ' is'} safe: check the disk, then type" in err


def test_a_picture_that_cannot_be_written_is_no_loss(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rooflab import figures

    def refuse(run: store.RunData) -> list[Path]:
        cause = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        raise UsageError(f"cannot write {run.path}/roofline.png") from cause

    monkeypatch.setattr(figures, "draw_all", refuse)
    code, out, err = rooflab("sweep", *SMALL)
    assert code == 1
    assert "fast reached" in out
    path = only_run().path
    assert (
        f"no picture: No space left on device; all rows are safe in {path} "
        f"(draw them with: rooflab plot {path})" in joined(err)
    )


def test_a_lock_that_the_disk_does_not_have_is_named(
    finished: Path, rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    def no_locks(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    code, _, err = rooflab("sweep", "--resume", finished, *EXACT)
    assert code == 1
    assert os.strerror(errno.ENOLCK) in err
