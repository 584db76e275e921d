"""What the coordinator does with what members say, whatever they say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import COUNTED_LADDER

from rooflab.config import SweepConfig, of_run
from rooflab.errors import RooflabError, RunError, UsageError
from rooflab.fleet import messages, session
from rooflab.fleet import record as fleet_record
from rooflab.fleet.coordinate import Watcher
from rooflab.fleet.launch import ALONE, PAIRS, TOGETHER, Launcher, Link, MemberLost, Prefix, Setup
from rooflab.fleet.record import Folder, MemberRecord, Record
from rooflab.fleet.session import batches
from rooflab.runs import table
from rooflab.runs.store import RunData, load
from rooflab.version import __version__

RUN = load(COUNTED_LADDER)
COLUMNS = table.header(RUN.manifest.workloads)

Script = list[messages.Message]

HELLO = messages.Hello(
    rooflab=__version__, host="h", device="cuda:0", kind="cuda", name="H200", uuid="GPU-1"
)
WRITTEN = messages.Written(manifest=RUN.manifest.model_dump(mode="json", by_alias=True))
ROWS = [
    messages.Row(line=table.line(COLUMNS, row), rounds=[[1.0, 2.0], [3.0]])
    for row in RUN.measurements
]
ALL: Script = [HELLO, WRITTEN, *ROWS, messages.Finished()]

OTHER = HELLO.model_copy(update={"uuid": "GPU-2"})


@dataclass(eq=False)
class Scripted(Link):
    """A member that says what is written here."""

    script: Iterator[messages.Message]
    heard: list[object]

    def send(self, message: object) -> None:
        self.heard.append(message)

    def receive(self, timeout_s: float) -> messages.Message:
        for message in self.script:
            return message
        raise MemberLost("it ended with code 1")

    def kill(self) -> None:
        pass

    def close(self) -> None:
        pass


@dataclass
class Scripts(Launcher):
    """A script for each host; none: it does not answer."""

    of: dict[str, Script]
    heard: list[object] = field(default_factory=list)
    title = "scripts"

    def start(self, host: str, device: str) -> Link:
        if host not in self.of:
            raise MemberLost("no route to it")
        return Scripted(iter(self.of[host]), self.heard)


def settings(kind: str) -> SweepConfig:
    return of_run(RUN.manifest.config)


def setup(scripts: Scripts, **other: Any) -> Setup:
    """``cuda:0`` of host a, unless others are given."""
    return Setup(launcher=scripts, **({"hosts": ("a",), "devices": ("cuda:0",)} | other))


def started(scripts: Scripts, **other: Any) -> Record:
    path = session.start(setup(scripts, **other), settings, Path("out"), Watcher())
    return fleet_record.load(path)


def resumed(path: Path, scripts: Scripts, *files: str, **other: Any) -> Record:
    return fleet_record.load(session.resume(path, setup(scripts, **other), files, Watcher()))


def swept(of: dict[str, Script], *, mixed: bool = False) -> tuple[Path, Record, Scripts]:
    scripts = Scripts(of)
    record = started(scripts, hosts=tuple(of), mixed=mixed)
    return max(Path("out").iterdir()), record, scripts


def only(path: Path) -> RunData:
    (manifest,) = path.glob("members/*/manifest.json")
    return load(manifest.parent)


def test_a_member_becomes_an_ordinary_run() -> None:
    path, record, _ = swept({"a": ALL})
    assert record.members["a-GPU-1"].status == "done"
    assert only(path).path.name == "a-GPU-1"
    assert only(path).measurements == RUN.measurements
    assert len((only(path).path / "samples.jsonl").read_text().splitlines()) == len(ROWS)


def test_the_rows_of_a_member_that_ends_are_kept_and_completed() -> None:
    path, record, _ = swept({"a": ALL[:4]})
    member = record.members["a-GPU-1"]
    assert (member.status, member.reason) == ("lost", "it ended with code 1")
    assert only(path).measurements == RUN.measurements[:2]
    again = Scripts({"a": ALL})  # it repeats rows, which are not doubled
    record = resumed(path, again)
    assert only(path).measurements == RUN.measurements
    assert record.members["a-GPU-1"].status == "done"
    (work,) = [sent for sent in again.heard if isinstance(sent, messages.Work)]
    assert work.rows == [row.line + "" for row in ROWS[:2]]
    assert work.manifest is not None


@pytest.mark.parametrize("device", ["cuda:0", "strange:Device"])
def test_a_fleet_killed_before_its_first_row_is_completed(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each fleet.json that was ever on the disk; only of a class the settings come late."""
    written: list[bytes] = []

    def write(path: Path, content: bytes) -> None:
        written.append(content)
        path.write_bytes(content)

    with monkeypatch.context() as patch:
        patch.setattr(fleet_record, "write_atomic", write)
        started(Scripts({"a": ALL}), devices=(device,))
    assert len(written) >= 3
    for number, content in enumerate(written):
        path = Path(f"killed{number}")
        path.mkdir()
        (path / "fleet.json").write_bytes(content)
        record = resumed(path, Scripts({"a": ALL}), devices=(device,))
        assert only(path).measurements == RUN.measurements
        assert record.members["a-GPU-1"].status == "done"


@pytest.mark.parametrize("status", ["running", "lost"])
def test_a_company_that_has_all_rows_is_not_started_again(status: str) -> None:
    """Members that were killed after their last row, while they waited for their neighbours."""
    path, record, _ = swept({"a": ALL})
    member = record.members["a-GPU-1"].model_copy(update={"status": status, "reason": "killed"})
    record.members["a-GPU-1"] = member
    (path / "fleet.json").write_text(record.model_dump_json(by_alias=True))
    (member,) = resumed(path, Scripts({})).members.values()
    assert (member.status, member.reason) == ("done", "")
    assert only(path).measurements == RUN.measurements


def test_a_fleet_without_settings_leaves_nothing() -> None:
    with pytest.raises(UsageError, match="no device took part: no route to it"):
        started(Scripts({}), devices=("strange:Device",))
    assert not list(Path("out").iterdir())


def test_one_member_does_not_harm_the_other() -> None:
    path, record, _ = swept({"a": ALL[:3], "b": [OTHER, *ALL[1:]]})
    assert {name: one.status for name, one in record.members.items()} == {
        "a-GPU-1": "lost",
        "b-GPU-2": "done",
    }
    assert load(path / "members" / "b-GPU-2").measurements == RUN.measurements


@pytest.mark.parametrize(
    ("script", "status", "reason"),
    [
        ([], "lost", "ended with code 1"),
        ([messages.Finished()], "lost", "did not say hello"),
        ([messages.Refusal(reason="there is no cuda:0")], "refused", "there is no cuda:0"),
        ([HELLO, messages.Refusal(reason="no such kernel")], "refused", "no such kernel"),
        ([HELLO, ROWS[0]], "lost", "a row before its manifest"),
        ([HELLO, messages.Written(manifest={"schema": 3})], "lost", "a manifest that is none"),
        ([HELLO, WRITTEN, messages.Row(line="1,2,3\n")], "lost", "3 cells under"),
        ([HELLO, WRITTEN, messages.Row(line='"\n')], "lost", "cells under"),
    ],
)
def test_what_is_wrong_is_the_reason(script: Script, status: str, reason: str) -> None:
    _, record, _ = swept({"a": script, "b": [OTHER, *ALL[1:]]})
    (member,) = (one for one in record.members.values() if one.host == "a")
    assert member.status == status
    assert reason in member.reason


def test_if_all_are_refused_nothing_is_left() -> None:
    with pytest.raises(UsageError, match="no device took part: no"):
        started(Scripts({"a": [messages.Refusal(reason="no")]}))
    assert not list(Path("out").iterdir())


def test_another_version_is_refused_unless_mixed() -> None:
    old = HELLO.model_copy(update={"rooflab": "0.0.1"})
    _, record, _ = swept({"a": [old, *ALL[1:]], "b": [OTHER, *ALL[1:]]})
    member = record.members["a-GPU-1"]
    assert member.status == "refused"
    assert "0.0.1" in member.reason
    assert "--mixed" in member.reason
    _, record, _ = swept({"a": [old, *ALL[1:]]}, mixed=True)
    assert record.members["a-GPU-1"].status == "done"
    assert record.members["a-GPU-1"].rooflab == "0.0.1"


def test_a_host_that_does_not_answer_costs_its_own_rows() -> None:
    scripts = Scripts({"a": ALL})
    record = started(scripts, hosts=("a", "b"))
    assert record.members["a-GPU-1"].status == "done"
    assert record.members["b-cuda-0"].reason == "no route to it"
    with pytest.raises(RooflabError, match="b does not answer: no route to it"):
        started(scripts, hosts=("b",), devices=("all",))


def test_all_is_every_gpu_of_a_host() -> None:
    class Host(Scripts):
        def start(self, host: str, device: str) -> Link:
            listing = messages.Devices(rooflab=__version__, ids=["cuda:0", "cuda:1"])
            script = [listing] if not self.heard else self.of[host]
            number = len([one for one in self.heard if isinstance(one, messages.Open)])
            hello = HELLO.model_copy(update={"uuid": f"GPU-{number}"})
            return Scripted(iter([hello, *script[1:]] if self.heard else script), self.heard)

    record = started(Host({"a": ALL}), devices=("all",), phases=(ALONE,))
    assert [one.device for one in record.members.values()] == ["cuda:0", "cuda:1"]
    assert {one.status for one in record.members.values()} == {"done"}


def test_a_device_twice() -> None:
    for hosts, devices in ((("a", "a"), ("cuda:0",)), (("a",), ("cuda:0", "cuda:0"))):
        with pytest.raises(UsageError, match="is listed twice"):
            started(Scripts({"a": ALL}), hosts=hosts, devices=devices)
    # Two names of one host are found by the device's UUID only if the names are the same.
    record = started(Scripts({"a": ALL}), devices=("cuda:0", "cuda"))
    assert sorted(one.status for one in record.members.values()) == ["done", "refused"]


def test_counted_rows_replace_the_rows() -> None:
    counted = [replace(row, cycles=7.0) for row in RUN.measurements]
    lines = messages.Rows(lines=[table.line(COLUMNS, row) for row in counted])
    path, _, _ = swept({"a": [*ALL[:-1], lines, messages.Finished()]})
    assert [row.cycles for row in only(path).measurements] == [7.0] * len(ROWS)
    fewer = messages.Rows(lines=lines.lines[1:])
    path, _, _ = swept({"a": [*ALL[:-1], fewer, messages.Finished()]})
    assert only(path).measurements == RUN.measurements


def test_text_of_members_cannot_control_a_terminal() -> None:
    hello = HELLO.model_copy(update={"name": "H\x1b[2J", "uuid": "../../x\x07"})
    path, record, _ = swept({"a": [hello, *ALL[1:]]})
    (member,) = record.members.values()
    assert "\x1b" not in member.title
    assert only(path).path.parent == path / "members"
    assert (path / "members" / member.name).is_dir()


def test_a_folder_in_use() -> None:
    path, record, _ = swept({"a": ALL})
    held = Folder(path, fleet_record.load(path))
    with pytest.raises(UsageError, match="in use by another rooflab"):
        Folder(path, fleet_record.load(path))
    held.close()
    Folder(path, fleet_record.load(path)).close()
    assert fleet_record.load(path) == record


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 1}', "\xff", '{"schema": 99}'])
def test_a_file_that_is_no_fleet(text: str) -> None:
    Path("fleet.json").write_text(text, encoding="latin-1")
    with pytest.raises(RooflabError, match=r"fleet\.json"):
        fleet_record.load(Path())


@pytest.mark.parametrize("schema", [-1, 0, 2, 10**30])
def test_a_schema_that_this_version_does_not_have(schema: int) -> None:
    path, _, _ = swept({"a": ALL})
    record = json.loads((path / "fleet.json").read_text())
    (path / "fleet.json").write_text(json.dumps(record | {"schema": schema}))
    with pytest.raises(RunError, match="newer" if schema > 0 else "no schema number"):
        fleet_record.load(path)


def test_kernel_files_are_loaded_only_if_they_are_named_again() -> None:
    path, record, scripts = swept({"a": ALL[:3]})
    record.files = ["mine.cu"]
    (path / "fleet.json").write_text(record.model_dump_json(by_alias=True))
    with pytest.raises(UsageError, match=r"if you trust them, add: --kernel mine\.cu"):
        resumed(path, scripts)
    resumed(path, scripts, "mine.cu")


def test_only_hosts_and_classes_that_are_named_again() -> None:
    path, record, scripts = swept({"a": ALL[:3]})
    for hosts, devices, words in (
        (("b",), ("cuda:0",), "b is not a host of this fleet: --hosts a"),
        (("a",), (), "this fleet used a device class, evil:Device: if you trust it"),
    ):
        record.device = "evil:Device"
        (path / "fleet.json").write_text(record.model_dump_json(by_alias=True))
        with pytest.raises(UsageError, match=words):
            resumed(path, scripts, hosts=hosts, devices=devices)
    record.device = "cuda:0"
    (path / "fleet.json").write_text(record.model_dump_json(by_alias=True))
    resumed(path, scripts, devices=())


def test_a_node_that_joined_the_cluster_joins_the_fleet() -> None:
    """And one that has left it keeps its rows."""
    path, _, _ = swept({"a": ALL[:3]})
    record = resumed(path, Scripts({"b": ALL[:3]}), hosts=("b",), listed=True)
    assert record.hosts == ["a", "b"]
    assert {one.host for one in record.members.values()} == {"a", "b"}


def test_a_wrong_setting_is_told_before_anything_is_started() -> None:
    def wrong(kind: str) -> SweepConfig:
        raise UsageError(f"no such size on {kind}")

    for device, kind in (("all", "cuda"), ("cuda:1", "cuda"), ("cpu", "cpu")):
        members = setup(Scripts({}), devices=(device,))
        with pytest.raises(UsageError, match=f"no such size on {kind}"):
            session.start(members, wrong, Path("out"), Watcher())
    assert not Path("out").exists()


@given(st.binary(max_size=200))
def test_what_a_login_prints_is_no_message(line: bytes) -> None:
    assert messages.decode(line) is None


@pytest.mark.parametrize("message", [*ALL[:3], messages.Finished(), messages.Note(text="é\n")])
def test_messages_are_lines(message: messages.Message) -> None:
    line = messages.encode(message)
    assert line.count(b"\n") == 1
    assert messages.decode(line) == message


@pytest.mark.parametrize("words", ["", "ssh {hots}", "ssh {0}", "'", "ssh {host"])
def test_a_prefix_that_is_no_command(words: str) -> None:
    with pytest.raises(UsageError, match="--launch"):
        Prefix(words)


def echo(host: str) -> str:
    link = Prefix("printf '%s|' {host}", "x").start(host, "cpu")
    with pytest.raises(MemberLost) as ended:
        link.receive(10)
    link.close()
    return str(ended.value)


@pytest.mark.parametrize("host", ["a b", "a; touch x", "$(touch x)", "'"])
def test_a_host_is_one_word_for_every_shell(host: str) -> None:
    assert echo(host) == "it ended with code 0"
    assert not Path("x").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("/no/such/program", "cannot start /no/such/program: No such file"),
        ("sh -c 'echo it broke >&2; exit 7' --", "it ended with code 7: it broke"),
        ("sh -c 'kill -9 $$' --", "it died of signal 9"),
    ],
)
def test_why_a_process_ended(words: str, reason: str) -> None:
    with pytest.raises(MemberLost) as ended:
        link = Prefix(words).start("h", "cpu")
        try:
            link.receive(20)
        finally:
            link.close()
    assert reason in str(ended.value)


def test_silence_is_an_end() -> None:
    link = Prefix("sh -c 'sleep 60' --").start("h", "cpu")
    with pytest.raises(MemberLost, match=r"no message for 0\.1 s; killed"):
        link.receive(0.1)
    link.close()
    link.close()


def test_a_line_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.fleet.launch.MAX_LINE", 1000)
    link = Prefix("sh -c 'yes x | tr -d \"\\n\"' --").start("h", "cpu")
    with pytest.raises(MemberLost, match="a line without an end"):
        link.receive(20)
    link.close()


# Phases ------------------------------------------------------------------------------------------


def test_batches_of_phases() -> None:
    targets = [MemberRecord(name="", host=h, device=d) for h, d in ("a0", "a1", "a2", "b0")]
    alone = list(batches([ALONE, TOGETHER, PAIRS], 2, targets))
    names = [[one.named(one.device).name for one in batch] for batch in alone]
    assert names[:3] == [["a-0", "b-0"], ["a-1"], ["a-2"]]
    assert names[3:6] == [["a-0.2", "b-0.2"], ["a-1.2"], ["a-2.2"]]
    assert names[6] == ["a-0.together", "a-1.together", "a-2.together", "b-0.together"]
    assert names[7:] == [
        ["a-0.with-1", "a-1.with-0"],
        ["a-0.with-2", "a-2.with-0"],
        ["a-1.with-2", "a-2.with-1"],
    ]
    assert [{one.company for one in batch} for batch in alone[6:8]] == [{"together"}, {"a 0 1"}]
    (together,) = batches([TOGETHER], 1, targets)
    assert [one.named(one.device).name for one in together] == ["a-0", "a-1", "a-2", "b-0"]


def test_early_finishers_stay_until_the_last_has_finished() -> None:
    """Member a is done at once; it is ended only after b, which takes a while."""
    ended: list[str] = []

    class Slow(Scripted):
        def __init__(self, host: str, script: Script, heard: list[object]) -> None:
            super().__init__(iter(script), heard)
            self.host = host

        def receive(self, timeout_s: float) -> messages.Message:
            if self.host == "b":
                sleep(0.05)
            return super().receive(timeout_s)

        def close(self) -> None:
            ended.append(self.host)

    class Hosts(Scripts):
        def start(self, host: str, device: str) -> Link:
            return Slow(host, self.of[host], self.heard)

    scripts = Hosts({"a": ALL, "b": [OTHER, *ALL[1:]]})
    record = started(scripts, hosts=("a", "b"))
    assert {one.status for one in record.members.values()} == {"done"}
    assert sorted(ended) == ["a", "b"]
    assert all(one.hold for one in scripts.heard if isinstance(one, messages.Work))


def test_a_member_that_ends_does_not_hold_the_others_up() -> None:
    path, record, _ = swept({"a": ALL[:1], "b": [OTHER, *ALL[1:]], "c": []})
    assert record.members["b-GPU-2"].status == "done"
    assert load(path / "members" / "b-GPU-2").measurements == RUN.measurements


@pytest.mark.parametrize("phases", [("alone", "alone"), (), ("apart",)])
def test_wrong_phases(phases: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="give each once of alone, together, pairs"):
        setup(Scripts({}), phases=phases)
