"""``rooflab profile`` of several processes: one folder, one answer, and what is missing."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import ranked
from commands import Rooflab, joined

from rooflab.fleet import ranks as fleet_ranks
from rooflab.programs import launchers, script
from rooflab.programs.place import RankPlace
from rooflab.runs.store import MEMBERS, load

WAITED = "Rank 1 is waited for: rank 0 waits 300 µs of 1.80 ms (17 %) in AllReduce."
WHY = "Its own kernels take 1.30 ms, those of rank 0 1.00 ms; gemm alone takes 300 µs more."

ENDS = """
if rank == 1:
    {how}
"""


def only(out: str = "results") -> Path:
    [folder] = Path(out).glob("*-ranks*")
    return folder


def answers(ended: ranked.Ended) -> list[str]:
    """What the ranks that say something have said."""
    assert not any(out for _, out, _ in ended)
    return [err for _, _, err in ended if err]


def test_two_ranks_and_one_answer(rooflab: Rooflab) -> None:
    ended = ranked.ranks(ranked.STEPS)
    assert [code for code, *_ in ended] == [0, 0]
    [said] = answers(ended)
    assert WAITED in said and WHY in said and said.count("2 ranks of it.py") == 1
    assert said.endswith(f"{only()}/\n")
    members = sorted((only() / MEMBERS).iterdir())
    assert [path.name for path in members] == ["rank-0", "rank-1"]
    assert sorted(path.name for path in only().iterdir()) == ["fleet.json", MEMBERS]
    code, out, _ = rooflab("show", only())
    assert code == 0 and WAITED in out
    assert rooflab("fleet", "show", only())[1] == out
    code, out, _ = rooflab("fleet", "show", "--json", only())
    assert [one["waits_us"] for one in json.loads(out)["ranks"]] == pytest.approx([300, 0])
    code, out, _ = rooflab("compare", *members)
    assert code == 0 and "gemm" in out
    assert rooflab("show", members[1])[0] == 0
    code, _, err = rooflab("export", only())
    assert code == 2 and f"name one of {only()}/members/" in joined(err)
    code, _, err = rooflab("fleet", "sweep", "--resume", only())
    assert code == 2 and "profile it" in err


def test_a_page_and_a_picture_of_all(rooflab: Rooflab) -> None:
    ranked.ranks(ranked.STEPS)
    assert rooflab("report", only(), "-o", "it.html")[0] == 0
    page = Path("it.html").read_text(encoding="utf-8")
    assert f"<li>{WAITED}</li>" in page and "A step of each rank" in page
    assert rooflab("plot", only())[0] == 0
    assert (only() / "ranks.png").stat().st_size > 1000
    [first, second] = sorted((only() / MEMBERS).iterdir())
    assert rooflab("plot", first, second, "--ranks", "-o", "it.svg")[0] == 0
    code, _, err = rooflab("plot", first, first, "--ranks", "-o", "it.svg")
    assert code == 2 and "--ranks draws the ranks of one launch" in joined(err)


def test_a_folder_of_ones_own_and_a_second_launch() -> None:
    ranked.ranks(ranked.STEPS, out="own")
    assert sorted(path.name for path in Path("own").iterdir()) == ["fleet.json", MEMBERS]
    ranked.ranks(ranked.STEPS, out="own")
    assert [load(path) for path in (only("own") / MEMBERS).iterdir()]


def test_a_rank_that_fails_is_named_and_costs_no_time() -> None:
    began = time.monotonic()
    text = ranked.STEPS + ENDS.format(how="raise SystemExit(3)")
    ended = ranked.ranks(text, JOIN_S=60)
    assert [code for code, *_ in ended] == [0, 3]
    [said] = answers(ended)
    assert "Rank 1: it ended with exit code 3." in said and WAITED in said
    assert time.monotonic() - began < 25


def test_a_rank_that_is_killed_is_missing(rooflab: Rooflab) -> None:
    text = ranked.STEPS + ENDS.format(how="os.kill(os.getpid(), 9)")
    ended = ranked.ranks(text)
    assert [code for code, *_ in ended] == [0, -signal.SIGKILL]
    [said] = answers(ended)
    assert "1 of 2 ranks of it.py. One step takes 1.80 ms." in said
    assert "Rank 1 is missing: its process was ended." in said and "waited for" not in said
    code, out, _ = rooflab("show", only())
    assert code == 1 and "Rank 1 is missing: its process was ended." in out


def test_a_rank_that_hangs_is_not_waited_for_by_one_that_fails() -> None:
    text = ranked.STEPS + ENDS.format(how="raise SystemExit(3)") + "import time; time.sleep(300)"
    first, second = (ranked.start(text, RANK=rank, WORLD_SIZE=2) for rank in range(2))
    said = second.communicate()[1]
    first.kill()
    first.communicate()
    assert "Rank 0 is missing: it was still running." in said
    assert "Rank 1: it ended with exit code 3." in said


def test_a_rank_that_never_records_is_missing() -> None:
    one = ranked.start(ranked.STEPS, RANK=0, WORLD_SIZE=2, JOIN_S=0.5)
    said = one.communicate()[1]
    assert one.returncode == 0
    assert "Rank 1 is missing: it has not begun to record." in said


def test_a_rank_without_the_first_one() -> None:
    one = ranked.start(ranked.STEPS, RANK=1, WORLD_SIZE=2, JOIN_S=0.5)
    said = one.communicate()[1]
    assert one.returncode == 2
    assert said.startswith("error: rank 1: rank 0 has made no folder in results for ")
    assert not Path("results").exists()


def test_a_rank_that_launches_nothing() -> None:
    text = ranked.STEPS.replace("range(20)", "range(20 * (1 - rank))")
    ended = ranked.ranks(text)
    assert [code for code, *_ in ended] == [0, 0]
    [said] = [err for _, _, err in ended if "ranks of" in err]
    assert "Rank 1 is missing: it.py launched nothing on a GPU" in joined(said)


def test_ranks_that_launch_nothing_leave_no_folder() -> None:
    ended = ranked.ranks("pass")
    assert all("launched nothing" in err for _, _, err in ended)
    assert not list(Path("results").iterdir())


def test_other_numbers_of_collectives() -> None:
    text = (
        ranked.STEPS
        + f"""
    if rank == 1:
        chip.launch("{ranked.ALL_REDUCE}", 10)
"""
    )
    [said] = answers(ranked.ranks(text))
    told = "in AllReduce cannot be told: rank 0 launches it 1 times in a step, rank 1 2 times."
    assert f"Who is waited for {told}" in joined(said)


def test_one_rank_is_an_ordinary_run() -> None:
    one = ranked.start(ranked.STEPS, RANK=0, WORLD_SIZE=1, out="own")
    said = one.communicate()[1]
    assert "One step takes" in said and "rank" not in said.lower().replace("rank-", "")
    assert len(load(Path("own")).measurements) == 3


def test_a_rank_that_goes_on_says_what_the_others_found() -> None:
    text = ranked.STEPS + "import time; time.sleep(1.5 * rank)"
    ended = ranked.ranks(text)
    assert len(answers(ended)) == 1


def test_torchrun_starts_rooflab(monkeypatch: pytest.MonkeyPatch, rooflab: Rooflab) -> None:
    started: list[list[str]] = []

    def execv(path: str, command: list[str]) -> None:
        started.append(command[1:])
        raise SystemExit(0)

    def parsed(words: list[str]) -> SimpleNamespace:
        at = words.index("it")
        module, alone = "-m" in words[:at], "--no-python" in words
        rest = words[at + 1 :]
        return SimpleNamespace(
            training_script="it", training_script_args=rest, module=module, no_python=alone
        )

    monkeypatch.setattr(os, "execv", execv)
    monkeypatch.setattr(launchers, "_parsed", parsed)
    rooflab("profile", "--steps", 4, "--no-counters", "torchrun", "--nproc", 2, "it", "-m", 1)
    rooflab("profile", "-m", "torch.distributed.run", "-m", "it")
    run = ["-m", "torch.distributed.run"]
    rank = ["-m", "rooflab", "profile"]
    assert started == [
        [*run, "--nproc", "2", *rank, "--steps", "4", "--no-counters", "it", "-m", "1"],
        [*run, *rank, "-m", "it"],
    ]
    code, _, err = rooflab("profile", "torchrun", "--no-python", "it")
    assert code == 2 and "leave out --no-python" in err


def test_other_launchers_are_told_what_to_type(rooflab: Rooflab) -> None:
    code, _, err = rooflab("profile", "/usr/bin/mpirun", "-n", 2, "it")
    assert code == 2 and "type mpirun -n 2 rooflab profile SCRIPT" in joined(err)


def test_a_folder_that_no_rank_has_written_to(tmp_path: Path, rooflab: Rooflab) -> None:
    folder = fleet_ranks.create(tmp_path / "it", 2, "", ["rooflab"])
    code, _, err = rooflab("show", folder)
    assert code == 2 and f"no rank of {folder} has written a run" in joined(err)


def test_ranks_are_counted_if_that_is_asked_for() -> None:
    one, two = None, RankPlace(0, 2)
    given = (None, True, False)
    assert [script._counted(asked, one) for asked in given] == [True, True, False]
    assert [script._counted(asked, two) for asked in given] == [False, True, False]
    [said] = answers(ranked.ranks(ranked.STEPS))
    assert "Nothing was counted: in programs of several processes --counters does." in said
