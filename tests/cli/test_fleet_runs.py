"""``rooflab fleet`` and ``sweep --device A,B``, with members in processes of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import Rooflab, joined, started, wait_until
from pages import parse

from rooflab import api
from rooflab.errors import UsageError
from rooflab.fleet import record as fleet_record
from rooflab.runs.store import FLEET, MANIFEST, load

HERE = Path(__file__).resolve().parents[1]
KERNEL = ("-k", "fast", "--sizes", "64,128", "-p", "fp32")
MEMBER = ("--device", "fake:Member")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members on "other hosts" find the fake device, and this rooflab."""
    monkeypatch.setenv("PYTHONPATH", f"{HERE}{os.pathsep}{HERE.parent}")


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
    assert rooflab("show", only()) == rooflab("fleet", "show", only())
    code, out, _ = rooflab("fleet", "show", only(), "--json")
    assert code == 0
    assert [one["name"] for one in json.loads(out)["members"]] == ["a-a", "b-b"]


@pytest.mark.slow
def test_a_fleet_has_a_page_of_its_own(rooflab: Rooflab) -> None:
    assert rooflab("fleet", "sweep", *hosts("a", "b"), *KERNEL)[0] == 0
    run = only() / "members" / "a-a"
    code, out, err = rooflab("report", only(), "-o", "fleet.html")
    assert (code, out, err) == (0, "", "fleet.html")
    page = parse(Path("fleet.html").read_text(encoding="utf-8"))
    assert not page.errors
    assert any("2 members, 1 resource: no outlier." in one.text for one in page.all("li"))
    cells = [cell.text for cell in page.all("td")]
    assert {"a-a", "b-b", "done", "2/2"} <= set(cells)
    assert page.all("pre")[-1].text == f"rooflab fleet show {only().name} --json"
    again = rooflab("report", only(), "-o", "fleet.html", "--threshold", "2.5")
    assert again == (0, "", "fleet.html")
    page = parse(Path("fleet.html").read_text(encoding="utf-8"))
    assert page.all("pre")[-1].text == f"rooflab fleet show {only().name} --threshold 2.5 --json"
    code, out, err = rooflab("report", run, "--threshold", "2.5")
    assert (code, out) == (2, "")
    assert "--threshold is for fleets" in joined(err)
    for words in ((only(), run), (run, only()), (only(), only())):
        code, out, err = rooflab("report", *words, "-o", "mixed.html")
        assert (code, out) == (2, "")
        assert "is a fleet and has a page of its own: report it alone" in joined(err)
        assert not Path("mixed.html").exists()


def test_a_fleet_is_not_shown_as_a_run(rooflab: Rooflab, tmp_path: Path) -> None:
    (tmp_path / "fleet.json").write_text("{}")
    for command in ("explain", "export"):
        code, _, err = rooflab(command, tmp_path)
        assert code == 2
        assert f"is a fleet: rooflab show {tmp_path}" in joined(err)


def test_a_damaged_member_is_told_beside_the_others(rooflab: Rooflab, tmp_path: Path) -> None:
    shutil.copytree(HERE / "data" / "fleet", tmp_path / "fleet")
    damaged = min((tmp_path / "fleet" / "members").iterdir()) / MANIFEST
    damaged.write_text("{")
    code, out, _ = rooflab("fleet", "show", tmp_path / "fleet")
    assert code == 0 and "not a rooflab manifest" in joined(out)


def test_a_fleet_without_rows_has_no_page(rooflab: Rooflab, tmp_path: Path) -> None:
    record = fleet_record.Record(created=datetime.now(UTC), launch="", hosts=["a"], device="all")
    text = record.model_dump_json(by_alias=True)
    for content, expected, says in ((text, 2, "it has no members/"), ("{", 1, "not a fleet")):
        (tmp_path / FLEET).write_text(content)
        code, out, err = rooflab("report", tmp_path)
        assert (code, out) == (expected, "")
        assert joined(err).startswith("error: ")
        assert says in joined(err)


@pytest.mark.slow
def test_repeats_are_processes_of_one_member(rooflab: Rooflab) -> None:
    code, out, err = rooflab("fleet", "sweep", *hosts("a", "b"), *KERNEL, "--repeats", 2)
    assert code == 0, err
    names = sorted(path.name for path in (only() / "members").iterdir())
    assert names == ["a-a", "a-a.2", "b-b", "b-b.2"]
    assert "nothing was measured" not in out + err


@pytest.mark.slow
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
    assert set(fleet_record.load(only()).members) == {"a-a", "b-b"}
    assert len(load(only() / "members" / "b-b").measurements) == 2


def test_a_python_without_rooflab_is_the_commonest_mistake(rooflab: Rooflab) -> None:
    """Each member says what to type; the folder is shown as a fleet, and its members stay."""
    launch = ("--hosts", "a,b", "--launch", "env FAKE_MEMBER={host}")
    plan = ("-k", "numpy", "--sizes", "64", "-p", "fp32", "--device", "cpu")
    Path("bare").write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    Path("bare").chmod(0o755)
    code, _, err = rooflab("fleet", "sweep", "add", *plan, *launch, "--python", "./bare")
    assert code == 1
    assert f"--resume {only()}, and --hosts, --launch and --python as before" in joined(err)
    code, out, err = rooflab("fleet", "show", only())
    assert code == 1
    assert "name a Python that has rooflab on a" in joined(out)
    assert "error" not in err
    code, _, err = rooflab("fleet", "show", only(), "--json")
    assert (code, "no member of " in err) == (2, True)
    for words in ((), launch[2:]):
        code, _, err = rooflab("fleet", "sweep", "--resume", only(), *words)
        assert (code, joined(err)) == (
            2,
            "error: name the hosts of this fleet, and how to reach them: --hosts a,b --launch 'ssh "
            "{host}', or --on for a Ray cluster",
        )
    code, _, err = rooflab("fleet", "sweep", "--resume", only(), "--hosts", "q", *launch[2:])
    assert (code, joined(err)) == (2, "error: q is not a host of this fleet: --hosts a,b")
    again = ("--resume", only(), *launch, "--python", "./bare")
    code, _, err = rooflab("fleet", "sweep", *again)
    members = fleet_record.load(only()).members.values()
    assert {(one.host, one.device) for one in members} == {("a", "cpu"), ("b", "cpu")}
    assert "unknown device" not in err


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
        (("--phases", "alone,apart"), 2, "give each once of alone, together, pairs"),
        (("--threads", "1,2", "--device", "cpu"), 2, "take one number of --threads"),
    ],
)
def test_wrong_words_are_one_line(
    rooflab: Rooflab, words: tuple[str, ...], code: int, message: str
) -> None:
    found, out, err = rooflab("fleet", "sweep", *words)
    assert (found, "Traceback" in err) == (code, False), err
    assert message in err + out
    assert not Path("results").exists() or not list(Path("results").iterdir())


def test_the_plan_for_several_devices_is_shown_and_nothing_measured(rooflab: Rooflab) -> None:
    devices = ("--device", "fake:FakeDevice,fake:ManyProcesses")
    code, out, _ = rooflab("sweep", *devices, *KERNEL, "--dry-run")
    assert code == 0
    assert "points; about" in out
    assert not Path("results").exists()


@pytest.mark.slow
def test_phases_alone_together_and_in_pairs(rooflab: Rooflab) -> None:
    devices = ("--device", "fake:FakeDevice,fake:ManyProcesses", *KERNEL)
    phases = ("--phases", "alone,together,pairs", "--repeats", 1)
    code, out, err = rooflab("fleet", "sweep", *devices, *phases)
    assert code == 0, err
    names = {path.name.partition("-fake-")[2] for path in (only() / "members").iterdir()}
    assert names == {
        *("FakeDevice", "FakeDevice.together", "FakeDevice.with-fake-ManyProcesses"),
        *("ManyProcesses", "ManyProcesses.together", "ManyProcesses.with-fake-FakeDevice"),
    }
    assert "all together, against alone" in out
    assert all(len(line) <= 80 for line in out.splitlines() if line.startswith(" "))
    code, out, _ = rooflab("fleet", "sweep", "--resume", only(), *devices[:2])
    assert code == 0
    assert rooflab("report", only(), "-o", "fleet.html")[0] == 0
    assert "Neighbours" in Path("fleet.html").read_text()


@pytest.mark.slow
def test_devices_of_one_host_by_sweep(rooflab: Rooflab) -> None:
    code, _, err = rooflab(
        "sweep", "--device", "fake:FakeDevice,fake:ManyProcesses", "--one-by-one", *KERNEL
    )
    assert code == 0, err
    assert len(list((only() / "members").iterdir())) == 2
    assert fleet_record.load(only()).phases == ["alone"]


@pytest.mark.slow
def test_from_python() -> None:
    way: dict[str, Any] = {"launch": "env FAKE_MEMBER={host}", "python": sys.executable}
    way |= {"devices": "fake:Member"}
    fleet = api.fleet_sweep(hosts="a,b", kernels="fast", sizes=[64], precisions="fp32", **way)
    assert [member.name for member in fleet.members] == ["a-a", "b-b"]
    again = api.fleet_sweep(hosts="a", resume=fleet.path, **way)
    assert [len(member.runs) for member in again.members] == [1, 1]
    with pytest.raises(UsageError, match="--hosts needs --launch"):
        api.fleet_sweep(hosts="a", kernels="fast")
    wrong: dict[str, Any] = {"size": [64]}
    with pytest.raises(UsageError, match="no argument 'size'"):
        api.fleet_sweep(devices="cpu", **wrong)


def test_an_interrupt_keeps_all_rows_and_leaves_no_process() -> None:
    slow = ("-k", "fast", "--sizes", "40:200:+8", *hosts("a", "b"))
    with started("fleet", "sweep", *slow) as process:
        wait_until(lambda: len(rows()) >= 4)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    _, alive = psutil.wait_procs(children, 20)
    assert not alive
    assert {one.status for one in fleet_record.load(only()).members.values()} == {"interrupted"}


def rows() -> list[str]:
    tables = Path("results").glob("*-fleet/members/*/measurements.csv")
    return [line for table in tables for line in table.read_text().splitlines()[1:]]
