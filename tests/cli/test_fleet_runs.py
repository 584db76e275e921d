"""``rooflab fleet`` and ``sweep --device A,B``, with members in processes of their own."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest
from commands import Rooflab, started, wait_until

from rooflab.fleet import folder
from rooflab.runs.store import MANIFEST, load

HERE = str(Path(__file__).resolve().parents[1])
KERNEL = ("-k", "fast", "--sizes", "64,128", "-p", "fp32")
MEMBER = ("--device", "fake:Member")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members on "other hosts" find the fake device."""
    monkeypatch.setenv("PYTHONPATH", HERE)


def hosts(*names: str) -> tuple[str, ...]:
    launch = "env FAKE_MEMBER={host}"
    return ("--hosts", ",".join(names), "--launch", launch, "--python", sys.executable, *MEMBER)


def only() -> Path:
    (path,) = Path("results").glob("*-fleet")
    return path


def test_members_on_two_hosts_are_ordinary_runs(rooflab: Rooflab) -> None:
    code, out, err = rooflab("fleet", "sweep", *hosts("a", "b"), *KERNEL)
    assert code == 0, err
    assert "a-a" in out
    assert "2 members, 1 resource: no outlier." in out
    assert all(len(line) <= 80 for line in out.splitlines() if line.startswith(" "))
    runs = sorted(path.parent for path in only().glob(f"members/*/{MANIFEST}"))
    assert [run.name for run in runs] == ["a-a", "b-b"]
    assert [len(load(run).measurements) for run in runs] == [2, 2]
    for command in (("show", runs[0]), ("compare", *runs), ("fleet", "show", only())):
        assert rooflab(*command)[0] == 0
    code, out, _ = rooflab("fleet", "show", only(), "--json")
    assert (code, json.loads(out)["outliers" if "outliers" in out else "members"] != []) == (
        0,
        True,
    )


def test_repeats_are_processes_of_one_member(rooflab: Rooflab) -> None:
    code, out, err = rooflab("fleet", "sweep", *hosts("a", "b"), *KERNEL, "--repeats", 2)
    assert code == 0, err
    names = sorted(path.name for path in (only() / "members").iterdir())
    assert names == ["a-a", "a-a.2", "b-b", "b-b.2"]
    assert "nothing was measured" not in out + err


def test_a_member_that_cannot_start_costs_its_own_rows(rooflab: Rooflab) -> None:
    launch = "sh -c 'test {host} != b && FAKE_MEMBER={host} exec \"$@\"' --"
    words = ("--hosts", "a,b", "--launch", launch, "--python", sys.executable, *MEMBER)
    code, _, err = rooflab("fleet", "sweep", *words, *KERNEL)
    assert code == 1
    assert "b fake:Member: lost: it ended with code 1" in err
    assert f"measure the rest with: rooflab fleet sweep --resume {only()}" in err
    assert len(load(only() / "members" / "a-a").measurements) == 2
    code, _, err = rooflab("fleet", "sweep", "--resume", only(), *hosts("a", "b"))
    assert code == 0, err
    assert set(folder.load(only()).members) == {"a-a", "b-b"}
    assert len(load(only() / "members" / "b-b").measurements) == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--hosts", "a,b"), 2, "--hosts needs --launch, such as: --launch 'ssh {host}'"),
        (("--on", "auto", "--launch", "ssh {host}"), 2, "two ways to reach hosts: give one"),
        (("--on", "ssh"), 2, "--on 'ssh': write ray://HOST:PORT, HOST:PORT, auto, or ray"),
        (("--launch", "ssh {hots}"), 2, "--launch 'ssh {hots}': write a command"),
        (("--device", "cpu,cpu"), 2, "device cpu is listed twice"),
        (("--launch", "false", "--hosts", "a,a"), 2, "host a is listed twice"),
        (("--launch", "false", "--hosts", "a"), 1, "a does not answer: it ended with code 1"),
        (("--resume", "nowhere"), 2, "nowhere is not the folder of a fleet"),
        (("--resume", "x", "--sizes", "64"), 2, "--resume uses the fleet's settings"),
        (("-k", "nonsense", "--device", "cpu"), 2, "nonsense"),
        (("--repeats", "0"), 2, "repeats"),
    ],
)
def test_wrong_words_are_one_line(
    rooflab: Rooflab, words: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = rooflab("fleet", "sweep", *words)
    assert (found, "Traceback" in err) == (code, False), err
    assert message in err + out


def test_devices_of_one_host_by_sweep(rooflab: Rooflab) -> None:
    code, _, err = rooflab(
        "sweep", "--device", "fake:FakeDevice,fake:ManyProcesses", "--one-by-one", *KERNEL
    )
    assert code == 0, err
    assert len(list((only() / "members").iterdir())) == 2
    assert folder.load(only()).one_by_one


def test_an_interrupt_keeps_all_rows_and_leaves_no_process() -> None:
    slow = ("-k", "fast", "--sizes", "40:200:+8", *hosts("a", "b"))
    with started("fleet", "sweep", *slow) as process:
        wait_until(lambda: len(rows()) >= 4)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    _, alive = psutil.wait_procs(children, 20)
    assert not alive
    assert {one.status for one in folder.load(only()).members.values()} == {"interrupted"}


def rows() -> list[str]:
    tables = Path("results").glob("*-fleet/members/*/measurements.csv")
    return [line for table in tables for line in table.read_text().splitlines()[1:]]
