"""One step of a program: what is recorded of it, written and read back."""

from __future__ import annotations

import json
from pathlib import Path

import launched
import program_runs
import pytest

from rooflab.devices.records import RecordedLaunch, Recording, StepTime, Transfer
from rooflab.model.measurement import Measurement
from rooflab.model.timeline import MOST_LAUNCHES, RecordedStep, StepLaunch
from rooflab.programs.groups import grouped
from rooflab.programs.timeline import first_step
from rooflab.runs import samples, store


def test_a_saved_run_has_its_step(tmp_path: Path) -> None:
    run, step = program_runs.run(), program_runs.step()
    folder = store.save(tmp_path / "run", run.manifest, run.measurements, step=step)
    loaded = store.load(folder)
    assert loaded.step() == step
    assert not loaded.warnings


def test_all_rows_of_a_program_are_written_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sync for each of many groups takes milliseconds."""
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    run = program_runs.run()
    folder = store.save(tmp_path / "run", run.manifest, run.measurements)
    assert len(synced) < len(run.measurements)
    written = store.load(folder).measurements
    assert [row.kernel for row in written] == [row.kernel for row in run.measurements]


def test_a_run_without_a_step_has_none(tmp_path: Path) -> None:
    run = program_runs.run()
    loaded = store.load(store.save(tmp_path / "run", run.manifest, run.measurements))
    assert loaded.step() is None and not (loaded.path / samples.LAUNCHES).exists()


FIRST = '{"unit": "us", "step": 100, "left_out": 0}\n'


def read(folder: Path, text: str, rows: int = 3) -> RecordedStep | None:
    (folder / samples.LAUNCHES).write_text(text, errors="replace")
    return samples.load_step(folder, rows)


@pytest.mark.parametrize(
    "line",
    [
        *("", "x", "[]", "{}", "null", "[1, 2, 0, 7]", "[1, 2, 0, 7, 0, 0]", '["a", 2, 0, 7, 0]'),
        *("[NaN, 2, 0, 7, 0]", "[1, Infinity, 0, 7, 0]", "[-1, 2, 0, 7, 0]", "[1, -2, 0, 7, 0]"),
        *("[1, 2, 0, 7, 3]", "[1, 2, 0, 7, -1]", "[1, 2, 0, 1e400, 0]", f"[1, 2, 0, {10**30}, 0]"),
        *("[1e300, 2, 0, 7, 0]", "[" * 5000, "9" * 5000, "[[1], 2, 0, 7, 0]"),
    ],
)
def test_lines_that_are_not_valid_are_left_out(line: str, tmp_path: Path) -> None:
    step = read(tmp_path, f"{FIRST}{line}\n[5, 2, 0, 7, 1]\n")
    assert step == RecordedStep((StepLaunch(5, 2, 0, 7, 1),), 100)


@pytest.mark.parametrize(
    "first", ["", "x", "[]", "{}", '{"step": NaN, "left_out": 0}', '{"step": "a", "left_out": 0}']
)
def test_without_a_valid_first_line_nothing_is_known(first: str, tmp_path: Path) -> None:
    assert read(tmp_path, f"{first}\n[5, 2, 0, 7, 1]\n") is None


def test_only_so_many_launches_are_read(tmp_path: Path) -> None:
    step = read(tmp_path, FIRST + "[5, 2, 0, 7, 1]\n" * (MOST_LAUNCHES + 5))
    assert step and len(step.launches) == MOST_LAUNCHES and step.left_out == 5


# What is recorded --------------------------------------------------------------------------------


def launch(kernel: str, start_us: float, us: float = 10) -> RecordedLaunch:
    return launched.launch(kernel, us, 1000 + start_us, stream=7)


def recorded(recording: Recording) -> RecordedStep | None:
    groups = grouped(recording.launches, max(1, len(recording.steps)))
    names = [*(one.key.kernel for one in groups), "(memsets)", "(idle)"]
    rows = [Measurement(problem=program_runs.problem("fp32"), kernel=name) for name in names]
    return first_step(recording, groups, rows)


def test_the_first_step_is_kept_with_the_rows_of_its_launches() -> None:
    copy = Transfer(kind="memset", bytes=8, start_ns=1_050_000, end_ns=1_051_000, stream=9)
    step = recorded(
        Recording(
            launches=[launch("long", 20, 30), launch("short", 0), launch("long", 120, 30)],
            copies=[copy],
            steps=[StepTime("a", 1_000_000, 1_100_000), StepTime("b", 1_100_000, 1_200_000)],
        )
    )
    assert step == RecordedStep(
        (StepLaunch(0, 10, 0, 7, 1), StepLaunch(20, 30, 0, 7, 0), StepLaunch(50, 1, 0, 9, 2)), 100
    )


def test_without_steps_everything_is_one_and_the_first_launches_are_kept() -> None:
    count = MOST_LAUNCHES + 3
    step = recorded(Recording(launches=[launch("a", 20 * i) for i in range(count)]))
    assert step and len(step.launches) == MOST_LAUNCHES and step.left_out == 3
    assert step.us == 20 * (count - 1) + 10


def test_nothing_recorded_is_no_step() -> None:
    assert recorded(Recording(launches=[])) is None


def test_the_file_is_small(tmp_path: Path) -> None:
    many = tuple(StepLaunch(i * 1.2345678, 1.2345678, 0, 7, 3) for i in range(MOST_LAUNCHES))
    text = samples.step_lines(RecordedStep(many, 1e6))
    assert len(text) < 40 * MOST_LAUNCHES
    assert json.loads(text.splitlines()[1]) == [0.0, 1.235, 0, 7, 3]
