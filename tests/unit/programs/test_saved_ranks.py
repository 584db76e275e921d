"""``save_rank``: ranks that no launcher of rooflab started write into one folder."""

from __future__ import annotations

from pathlib import Path

import program_runs
import pytest

from rooflab.errors import UsageError
from rooflab.fleet.ranks import conclude, load_ranks
from rooflab.programs.profile import Profile
from rooflab.runs.store import UNSAVED


def profile() -> Profile:
    made = program_runs.run()
    return Profile(UNSAVED, made.manifest, made.measurements, recorded=program_runs.step())


def test_ranks_of_one_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "new" / "run"
    assert profile().save_rank(folder, 1, 3).path == folder / "members" / "rank-1"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    profile().save_rank(folder)
    found = load_ranks(folder)
    assert [one.number for one in found.ranks] == [0, 1]
    assert found.remarks == ("Rank 2 is missing: it has not written a run.",)
    assert found.ranks[0].run.step() is not None


def test_what_cannot_be_saved(tmp_path: Path) -> None:
    profile().save_rank(tmp_path / "run", 0, 2)
    for rank, ranks, text in (
        (0, 2, "is there already"),
        (1, 3, "has other ranks"),
        (2, 2, "ranks are numbered from 0"),
        (None, 2, "has no RANK and WORLD_SIZE"),
    ):
        with pytest.raises(UsageError, match=text):
            profile().save_rank(tmp_path / "run", rank, ranks)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match="has other files"):
        profile().save_rank(tmp_path, 0, 2)


def test_a_rank_that_writes_its_run_after_the_answer(tmp_path: Path) -> None:
    profile().save_rank(tmp_path / "run", 1, 2)
    conclude(tmp_path / "run", {0: "it was still running", 1: "it ended with exit code 1"})
    remarks = ("Rank 0 is missing: it was still running.", "Rank 1: it ended with exit code 1.")
    assert load_ranks(tmp_path / "run").remarks == remarks
    profile().save_rank(tmp_path / "run", 0, 2)
    assert load_ranks(tmp_path / "run").remarks == remarks[1:]
