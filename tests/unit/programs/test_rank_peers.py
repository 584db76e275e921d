"""What ranks know of each other: who lives, who was counted when, who answers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from imitation import Chip

from rooflab.errors import UsageError
from rooflab.fleet import ranks
from rooflab.fleet.record import LOST, load
from rooflab.programs import peers, whole
from rooflab.programs.peers import FOREVER, JOURNALS, Peers
from rooflab.programs.place import RankPlace
from rooflab.programs.whole import Whole

OTHER = """
import sys
from pathlib import Path
from rooflab.programs.peers import Peers
from rooflab.programs.place import RankPlace
it = Peers(Path(sys.argv[1]), RankPlace(1, 2))
{does}
print("there", flush=True)
sys.stdin.read()
"""
"""Rank 1 in a process of its own, which lives until its input ends."""


@pytest.fixture
def first(tmp_path: Path) -> Peers:
    return Peers.join(tmp_path, RankPlace(0, 2, "launch"), ["rooflab"])


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JOIN_S", "PATIENCE_S", "FAILED_S"):
        monkeypatch.setattr(peers, name, 0.3)


def other(first: Peers, does: str = "") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", OTHER.format(does=does), str(first.folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    made: subprocess.Popen[str] = subprocess.Popen(command, text=True, **pipes)  # type: ignore[call-overload]
    assert made.stdout and made.stdout.readline() == "there\n"
    return made


def reason(first: Peers, number: int = 1) -> str:
    return load(first.folder).members[f"rank-{number}"].reason


def test_one_that_lives_answers_later(first: Peers) -> None:
    second = other(first)
    first.left("")
    assert not first.answers(failed=False)
    assert (first.folder / JOURNALS).is_dir()
    second.communicate()


def test_one_that_is_dead_is_not_waited_for(first: Peers) -> None:
    other(first).communicate()
    first.left("")
    assert first.answers(failed=False)
    assert reason(first) == "its process was ended"
    assert load(first.folder).members["rank-1"].status == LOST
    assert not first.answers(failed=False)


def test_one_that_ends_while_another_looks_is_believed(
    first: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says why it has no run just before its process ends."""
    journal = first.folder / JOURNALS / "1.jsonl"
    journal.write_text('{"clock": "it"}\n')

    def ended(path: Path) -> bool:
        journal.write_text('{"clock": "it"}\n{"left": "it launched nothing"}\n')
        return False

    monkeypatch.setattr(peers, "_lives", ended)
    first.left("")
    assert first.answers(failed=False)
    assert reason(first) == "it launched nothing"


def test_one_that_just_begins_is_not_taken_for_dead(first: Peers) -> None:
    """Its journal is there before it is locked."""
    journal = first.folder / JOURNALS / "1.jsonl"
    journal.touch()
    assert first._state(1) is None
    journal.write_text("{}\n")
    assert first._state(1) == "its process was ended"


def test_one_that_has_failed_answers_for_those_that_live(first: Peers) -> None:
    second = other(first)
    first.left("it ended with exit code 1")
    assert first.answers(failed=True)
    assert (reason(first, 0), reason(first)) == (
        "it ended with exit code 1",
        "it was still running",
    )
    second.communicate()


def test_times_in_which_others_were_counted(first: Peers) -> None:
    second = other(first, "it.begin(5); it.end(9); it.begin(20)")
    first.begin(1)
    first.end(2)
    assert first.cuts() == [(5, 9), (20, FOREVER)]
    second.communicate()


def test_times_of_another_host(first: Peers) -> None:
    second = other(first, "it.begin(5); it.end(9)")
    path = first.folder / JOURNALS / "1.jsonl"
    _, *lines = path.read_text().splitlines()
    about = {"clock": "there", "epoch": first._epoch_ns + 1000}
    path.write_text("\n".join([json.dumps(about), *lines]) + "\n")
    assert first.cuts() == [(1005, 1009)]
    second.communicate()


def test_a_journal_that_is_torn(first: Peers) -> None:
    path = first.folder / JOURNALS / "1.jsonl"
    path.write_text('{"clock": "x"}\n{"begin": 1')
    assert first.cuts() == []


def test_ranks_of_a_launch_find_its_folder(tmp_path: Path, first: Peers) -> None:
    folder = first.folder
    assert folder.parent == tmp_path
    with pytest.raises(UsageError, match="rank 0 has made no folder"):
        Peers.join(tmp_path, RankPlace(1, 2, "another"), [])
    with pytest.raises(UsageError, match="rank 0 has made no folder"):
        Peers.join(tmp_path, RankPlace(1, 3, "launch"), [])


def test_a_folder_whose_first_rank_is_dead_is_not_joined(tmp_path: Path) -> None:
    folder = ranks.create(tmp_path / "it", 2, "launch", [])
    (folder / JOURNALS).mkdir()
    (folder / JOURNALS / "0.jsonl").touch()
    with pytest.raises(UsageError, match="rank 0 has made no folder"):
        Peers.join(tmp_path, RankPlace(1, 2, "launch"), [])


def test_what_runs_while_others_are_counted_is_cut_out(
    monkeypatch: pytest.MonkeyPatch, first: Peers
) -> None:
    chip = Chip()
    chip.install(monkeypatch, whole)
    monkeypatch.setattr(whole, "LOOK_S", 1e6)
    recorder = Whole("it.py", counters=False)
    recorder.peers = first
    recorder.start()
    windows = []
    for i in range(20):
        chip.launch("a", 100)
        begun = chip.ns
        chip.launch("ncclDevKernel_AllReduce_x", 5000 if 5 <= i < 8 else 50)
        if 5 <= i < 8:
            windows.append((begun + 10, chip.ns - 10))
    monkeypatch.setattr(first, "cuts", lambda: windows)
    found = recorder.finish()
    assert found.cuts == windows
    assert {one.ns for one in found.recording.launches} == {100_000, 50_000}
    assert {step.ns for step in found.recording.steps} == {150_000}


def test_own_counting_is_said(monkeypatch: pytest.MonkeyPatch, first: Peers) -> None:
    Chip().install(monkeypatch, whole)
    recorder = Whole("it.py")
    recorder.peers = first
    said: list[tuple[str, int]] = []
    monkeypatch.setattr(first, "begin", lambda ns: said.append(("begin", ns)))
    monkeypatch.setattr(first, "end", lambda ns: said.append(("end", ns)))
    recorder._begin_cut()
    recorder._end_cut()
    assert [word for word, _ in said] == ["begin", "end"]
