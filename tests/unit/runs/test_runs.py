"""Run folders: what is written is read, by this version and of every older one."""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import measured
import pytest
import synthetic
from hypothesis import given
from hypothesis import strategies as st

from rooflab.config import of_run
from rooflab.errors import RunError, UsageError
from rooflab.model.facts import Fact
from rooflab.model.measurement import COLUMNS, Measurement
from rooflab.model.problem import Problem
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.runs import store, table
from rooflab.runs.manifest import (
    SCHEMA,
    KernelRecord,
    Manifest,
    WorkloadRecord,
    load_manifest,
)
from rooflab.runs.store import MANIFEST, MEASUREMENTS, SAMPLES, RunWriter, load
from rooflab.runs.table import frame
from rooflab.runs.text import clean
from rooflab.workloads import build, find

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DATA = Path(__file__).parents[2] / "data"


def manifest(*workloads: str, **other: Any) -> Manifest:
    roofline = other.pop("roofline", Roofline((synthetic.compute("fp32", 1e12, "measured"),)))
    facts = {"clock": Fact(None, reason="none")}
    other.setdefault("versions", {"rooflab": "0"})
    kinds = {name: WorkloadRecord.of(find(name)) for name in workloads or ["gemm"]}
    run = synthetic.run("Exact", roofline, [], facts, kind="cpu", workloads=kinds, **other)
    return run.manifest


ROW = Measurement(
    problem=synthetic.gemm(1, 2, 3, alpha=1 / 3).record,
    kernel="tiled",
    backend="cpu",
    reason='a "quoted", odd\nreason',
    time_us=1 / 3,
    flops=12,
)


def of(problem: Problem, **other: Any) -> Measurement:
    """A row of a problem."""
    return replace(ROW, problem=problem.record, **other)


def written(folder: Path, *rows: Measurement, **other: Any) -> Path:
    folder.mkdir(exist_ok=True)
    workloads = dict.fromkeys(row.problem.workload for row in rows)
    with RunWriter(folder, manifest(*workloads, **other)) as writer:
        for row in rows or [ROW]:
            writer.append(row, [[1.25, 2.5], [3.0]])
    return folder


# Written and read --------------------------------------------------------------------------------


def test_what_is_written_is_read(tmp_path: Path) -> None:
    loaded = load(written(tmp_path / "r", ROW, ROW))
    assert loaded.manifest == manifest()
    assert loaded.warnings == []
    first, second = loaded.measurements
    assert first == second
    assert first.problem == ROW.problem  # exactly, also alpha = 1/3
    assert first.time_us == pytest.approx(1 / 3, rel=1e-7)
    assert first.reason == 'a "quoted", odd reason'
    assert first.tflops is None
    text = (tmp_path / "r" / SAMPLES).read_text()
    samples = [json.loads(line) for line in text.splitlines()]
    assert [s["rounds"] for s in samples] == [[[1.25, 2.5], [3.0]]] * 2
    assert samples[0]["parameters"] == ROW.problem.parameters


@pytest.mark.parametrize("folder", measured.ALL, ids=lambda folder: folder.name)
def test_no_ceiling_of_a_measured_run_is_impossible(folder: Path) -> None:
    missing = load(folder).manifest.roofline.missing
    assert not [one for one in missing if "not a possible value" in one.reason]


def test_rows_of_several_workloads_share_a_table(tmp_path: Path) -> None:
    rows = [
        of(build("add", "int32", {"rows": 2, "columns": 100})),
        of(synthetic.gemm(1, 2, 3, layout="nt", beta=-0.1)),
        of(build("rmsnorm", "bf16", {"rows": 4, "columns": 8, "epsilon": 1e-5})),
        of(build("sum", "fp64", {"elements": 5})),
    ]
    loaded = load(written(tmp_path / "r", *rows))
    assert [row.problem for row in loaded.measurements] == [row.problem for row in rows]
    assert [row.key for row in loaded.measurements] == [row.key for row in rows]
    head = (tmp_path / "r" / MEASUREMENTS).read_text().splitlines()[0].split(",")
    assert head[:6] == ["workload", "kernel", "backend", "variant", "precision", "size"]
    assert len(set(head)) == len(head)
    assert head[-1] == "flags"


times = st.floats(0, allow_infinity=False)


factors = st.just(0.0) | st.floats(1e-30, 1e30) | st.floats(-1e30, -1e-30)


@given(alpha=factors, beta=factors, time_us=times | st.none(), reason=st.text(max_size=40))
def test_any_row_is_a_line_that_is_read_again(
    alpha: float, beta: float, time_us: float | None, reason: str
) -> None:
    row = of(synthetic.gemm(1, 2, 3, alpha=alpha, beta=beta), time_us=time_us, reason=reason)
    columns = table.header(manifest().workloads)
    line = table.line(columns, row)
    assert line.endswith("\n")
    assert line.count("\n") == 1
    path = Path("table.csv")
    path.write_text(table.csv_lines([columns]) + line, encoding="utf-8")
    ((again,), warnings) = table.load_rows(path, manifest())
    assert warnings == []
    assert again.problem.parameters == row.problem.parameters
    assert (again.time_us is None) == (time_us is None)
    assert again.time_us is None or again.time_us == pytest.approx(time_us, rel=1e-7)


def test_every_row_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with RunWriter(tmp_path, manifest()) as writer:
        for count in range(3):
            assert len(load(tmp_path).measurements) == count
            writer.append(ROW, [])


def test_points_that_are_missing_are_told_of(tmp_path: Path) -> None:
    loaded = load(written(tmp_path / "r", ROW, points=3))
    (warning,) = loaded.warnings
    assert warning == (
        f"1 of 3 points are measured; to continue: rooflab sweep --resume {tmp_path / 'r'}"
    )


def test_only_ok_rows_have_figures(tmp_path: Path) -> None:
    rows = [replace(ROW, status=status) for status in ("ok", "failed", "skipped")]
    assert [row.status for row in load(written(tmp_path / "r", *rows)).ok] == ["ok"]


def test_a_table_in_pandas_has_every_column(tmp_path: Path) -> None:
    rows = [ROW, of(build("sum", "fp64", {"elements": 5}))]
    made = frame(rows, manifest("gemm", "sum"))
    assert list(made["workload"]) == ["gemm", "sum"]
    assert made["time_us"][0] == 1 / 3
    assert made["elements"][1] == 5
    assert made["m"].isna().tolist() == [False, True]
    assert set(COLUMNS) <= set(made.columns)
    assert len(frame([], manifest()).columns) > 30


# After a crash -----------------------------------------------------------------------------------


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path / "r", ROW, ROW) / MEASUREMENTS
    whole = path.read_bytes()
    second = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for end in range(second + 1, len(whole)):
        path.write_bytes(whole[:end])
        loaded = load(path.parent)
        assert len(loaded.measurements) == 1
        assert loaded.warnings == [f"{path} line 3: incomplete after a crash, dropped"]


def test_a_continued_run_cuts_off_what_is_torn(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", ROW)
    other = of(synthetic.gemm(8, 8, 8))
    for name in (MEASUREMENTS, SAMPLES):
        with (folder / name).open("a") as file:
            file.write('torn,"')
    with RunWriter(folder) as writer:
        assert [row.key for row in writer.rows] == [ROW.key]
        assert not writer.empty
        writer.append(other, [[1.0]])
    assert [row.key for row in load(folder).measurements] == [ROW.key, other.key]
    lines = (folder / SAMPLES).read_text().splitlines()
    assert [json.loads(line)["parameters"]["m"] for line in lines] == [1, 8]


def test_samples_without_a_row_are_dropped(tmp_path: Path) -> None:
    """They come first, so that a crash between the two leaves samples of no row."""
    folder = written(tmp_path / "r", ROW, of(synthetic.gemm(8, 8, 8)))
    path = folder / MEASUREMENTS
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))
    with RunWriter(folder) as writer:
        assert len(writer.rows) == 1
    assert len((folder / SAMPLES).read_text().splitlines()) == 1


def test_a_run_without_a_row_leaves_no_folder(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    with RunWriter(folder, manifest()) as writer:
        assert writer.empty
    assert not folder.exists()


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        RunWriter(tmp_path, manifest()),
        pytest.raises(UsageError, match="is in use by another rooflab"),
    ):
        RunWriter(tmp_path)


@pytest.mark.parametrize("name", [MEASUREMENTS, SAMPLES])
def test_links_out_of_the_folder_are_not_written_to(tmp_path: Path, name: str) -> None:
    folder = written(tmp_path / "r", ROW)
    target = tmp_path / "precious"
    target.write_text((folder / name).read_text())
    (folder / name).unlink()
    (folder / name).symlink_to(target)
    before = target.read_text()
    with pytest.raises(RunError, match=f"cannot write .*{name}"):
        RunWriter(folder)
    assert target.read_text() == before


def test_a_manifest_that_is_a_link_is_replaced(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", ROW)
    target = tmp_path / "precious"
    target.write_text((folder / MANIFEST).read_text())
    (folder / MANIFEST).unlink()
    (folder / MANIFEST).symlink_to(target)
    before = target.stat().st_mtime_ns
    with RunWriter(folder):
        pass
    assert target.stat().st_mtime_ns == before
    assert not (folder / MANIFEST).is_symlink()


def test_a_full_disk_says_what_is_safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with RunWriter(tmp_path, manifest()) as writer:
        writer.append(ROW, [])
        size = (tmp_path / MEASUREMENTS).stat().st_size

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RunError, match=r"No space left on device.*1 row is safe") as caught:
                writer.append(ROW, [])
        assert f"rooflab sweep --resume {tmp_path}" in str(caught.value)
        assert (tmp_path / MEASUREMENTS).stat().st_size == size
    assert len(load(tmp_path).measurements) == 1


def test_a_full_disk_does_not_resume_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = manifest().model_copy(update={"program": {"name": "train.py"}})
    with RunWriter(tmp_path, own) as writer:
        writer.append(ROW, [])

        def full(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(RunError, match=r"safe: make room, and profile it again$"):
                writer.put("launches.jsonl", "")


def test_a_command_may_have_bytes_that_are_no_utf_8(tmp_path: Path) -> None:
    """Such as the name of a folder: ``--out``."""
    own = Manifest.model_validate(
        manifest().model_dump(by_alias=True) | {"command": ["rooflab", "r\udcff"]}
    )
    with RunWriter(tmp_path, own) as writer:
        writer.append(ROW, [])
    assert load(tmp_path).manifest.command == ["rooflab", "r\ufffd"]


# What is no run ----------------------------------------------------------------------------------

HEADINGS = ",".join(table.header(manifest().workloads))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name,value\nx,1\n", "line 1: not a rooflab table, it lacks kernel, precision, status"),
        (HEADINGS + "\na,b\n", f"line 2: 2 cells under {HEADINGS.count(',') + 1} headings"),
        (
            HEADINGS + "\n" + ",".join("x" for _ in HEADINGS.split(",")) + "\n",
            "line 2: ",
        ),
        (HEADINGS.replace(",alpha,", ",") + "\n", ""),
        ("\x00\x01\xff\n", "line 1: not a rooflab table"),
    ],
)
def test_a_foreign_table_is_reported_with_its_line(tmp_path: Path, content: str, says: str) -> None:
    path = written(tmp_path / "r") / MEASUREMENTS
    path.write_text(content, encoding="latin-1")
    if not says:  # headings alone are an empty table
        assert load(path.parent).measurements == []
        return
    with pytest.raises(RunError) as caught:
        load(path.parent)
    assert str(caught.value).startswith(f"{path} ")
    assert says in str(caught.value)


def test_a_wrong_cell_is_reported_with_its_column(tmp_path: Path) -> None:
    path = written(tmp_path / "r", ROW) / MEASUREMENTS
    whole = path.read_text()
    columns = whole.splitlines()[0].split(",")

    def with_cell(name: str, cell: str) -> str:
        head, row = whole.splitlines()
        cells = next(csv.reader([row]))
        cells[columns.index(name)] = cell
        return f"{head}\n{table.csv_lines([cells])}"

    for name, cell, says in (
        ("m", "x", "m is 'x', not a whole number"),
        ("m", "1.5", "m is '1.5', not a whole number"),
        ("alpha", "nan", "alpha is 'nan', not a finite number"),
        ("time_us", "fast", "time_us is 'fast', not a number"),
        ("time_us", "nan", "time_us is 'nan', not a time"),
        ("time_us", "inf", "time_us is 'inf', not a time"),
        ("burst_us", "-5", "burst_us is '-5', not a time"),
        ("workload", "nothing", "its manifest has no workload 'nothing'"),
        ("m", "9" * 5000, "not a whole number"),
    ):
        path.write_text(with_cell(name, cell))
        with pytest.raises(RunError) as caught:
            load(path.parent)
        assert f"{path} line 2: " in str(caught.value)
        assert says in str(caught.value)
        assert len(str(caught.value)) < 400


def test_columns_of_a_later_minor_version_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path / "r", ROW) / MEASUREMENTS
    head, row = path.read_text().splitlines()
    path.write_text(f"{head},novelty\n{row},1\n")
    assert load(path.parent).measurements[0].kernel == "tiled"


def test_a_table_that_is_missing_is_told_of(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", ROW)
    (folder / MEASUREMENTS).unlink()
    loaded = load(folder)
    assert loaded.measurements == []
    assert "is missing: no row was finished" in loaded.warnings[0]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "not a rooflab manifest"),
        ("{", "not a rooflab manifest"),
        ("[" * 100_000, "not a rooflab manifest"),
        ('{"schema": 3, "created": NaN}', "NaN is not a number in JSON"),
        ('{"schema": "1"}', "it has no schema number"),
        ('{"schema": 0}', "it has no schema number"),
        ('{"schema": -1}', "it has no schema number"),
        (f'{{"schema": 1{"0" * 30}}}', "newer rooflab .*; read it with that one"),
        ('{"schema": 1}', "created: Field required"),
        ('{"schema": 3}', "created: Field required"),
        ('{"schema": 1, "config": 3, "kernels": 4}', "created: Field required"),
        (f'{{"schema": {SCHEMA + 1}}}', "newer rooflab .*; read it with that one"),
    ],
)
def test_bad_manifests(tmp_path: Path, content: str, says: str) -> None:
    (written(tmp_path / "r") / MANIFEST).write_text(content)
    with pytest.raises(RunError, match=says) as caught:
        load(tmp_path / "r")
    assert len(str(caught.value)) < 500


def test_a_folder_with_one_run_means_that_run(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    one = written(tmp_path / "base" / "first", ROW)
    assert load(tmp_path / "base").path == one
    two = written(tmp_path / "base" / "second", ROW)
    with pytest.raises(UsageError, match=f"base has 2 runs: name one, such as {two}"):
        load(tmp_path / "base")


def test_files_that_a_spreadsheet_has_saved(tmp_path: Path) -> None:
    """As "CSV UTF-8": with a byte-order mark and the other ends of lines."""
    folder = written(tmp_path / "r", ROW)
    for name in (MEASUREMENTS, MANIFEST, SAMPLES):
        text = (folder / name).read_text().replace("\n", "\r\n")
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [row.key for row in load(folder).measurements] == [ROW.key]
    other = of(synthetic.gemm(4, 2, 3, alpha=1 / 3))
    with RunWriter(folder) as writer:
        writer.append(other, [[1.0]])
    assert [row.key for row in load(folder).measurements] == [ROW.key, other.key]
    assert load(folder).measurements[1].problem == other.problem
    assert len((folder / SAMPLES).read_text().splitlines()) == 2


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        load(tmp_path)
    with pytest.raises(UsageError, match="is not a run folder"):
        load(tmp_path / ("x" * 5000))
    with pytest.raises(UsageError, match="is not a run folder"):
        load(Path("a\0b"))
    with pytest.raises(UsageError, match=r"no run in .*: name a run folder, or make one"):
        store.newest(tmp_path)


def test_a_file_of_the_run_names_it_too(tmp_path: Path) -> None:
    written(tmp_path / "r", ROW)
    assert load(tmp_path / "r" / MEASUREMENTS).measurements


# Untrusted text ----------------------------------------------------------------------------------

HOSTILE = "\x1b[31mred\x07 \u202egnp.exe \ud800 \x9b0m"


def test_text_of_a_run_cannot_steer_a_terminal(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", replace(ROW, kernel="evil", reason="evil"))
    for name in (MANIFEST, MEASUREMENTS):
        text = (folder / name).read_text()
        hostile = HOSTILE.encode(errors="surrogatepass").decode(errors="replace")
        escaped = json.dumps(hostile)[1:-1] if name == MANIFEST else hostile
        (folder / name).write_text(text.replace("evil", escaped).replace("Exact", escaped))
    loaded = load(folder)
    shown = f"{loaded.manifest.device.name} {loaded.measurements[0].kernel}"
    shown += loaded.measurements[0].reason
    assert "red" in shown
    assert not {"\x1b", "\x07", "\u202e", "\x9b"} & set(shown)


@given(st.text())
def test_clean_text_has_no_control_characters(text: str) -> None:
    cleaned = clean(text)
    cleaned.encode()  # which a lone surrogate would not let happen
    assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in cleaned)
    assert len(cleaned) == len(text)


def test_ceilings_that_no_device_has_are_missing(tmp_path: Path) -> None:
    odd = Roofline(
        (
            Ceiling("compute", "fp32", 1e300, "measured", ""),
            Ceiling("compute", "fp64", -1.0, "measured", ""),
            Ceiling("bandwidth", "DRAM", 1e9, "measured", ""),
        )
    )
    loaded = load(written(tmp_path / "r", ROW, roofline=odd)).manifest.roofline
    assert [ceiling.key for ceiling in loaded.ceilings] == ["DRAM"]
    assert [limit.key for limit in loaded.missing] == ["fp32", "fp64"]
    assert "is not a possible value" in loaded.missing[0].reason


# Folders -----------------------------------------------------------------------------------------


def test_folders_are_named_by_time_and_device_and_never_reused(tmp_path: Path) -> None:
    names = [store.create_folder(tmp_path / "results", "NVIDIA H200", NOW).name for _ in range(2)]
    assert names == ["20260102T030405Z-nvidia-h200", "20260102T030405Z-nvidia-h200-2"]
    odd = store.create_folder(tmp_path, "../../etc/\0 Größe (R) " + "x" * 300, NOW)
    assert odd.parent == tmp_path
    assert len(odd.name) < 100
    assert store.create_folder(tmp_path, "…", NOW).name.endswith("Z-device")


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="name a folder of yours"):
        store.create_folder(tmp_path / "file", "x", NOW)
    with pytest.raises(UsageError, match="cannot write to /proc/nowhere"):
        store.create_folder(Path("/proc/nowhere"), "x", NOW)


def test_newest_run(tmp_path: Path) -> None:
    for hour in (5, 3):
        written(store.create_folder(tmp_path, "x", NOW.replace(hour=hour)), ROW)
    assert store.newest(tmp_path).name == "20260102T050405Z-x"


# Continuing --------------------------------------------------------------------------------------


def test_a_run_continues_only_where_its_figures_would_not_change() -> None:
    record = KernelRecord(backend="cpu", title="", sha256="a" * 64)
    old = manifest(kernels={"gemm/a": record}, config={"seed": 0})
    assert store.resumable(old, old) == []

    def changed(**update: Any) -> list[str]:
        return store.resumable(old, old.model_copy(update=update))

    other = old.device.model_copy(update={"name": "Other"})
    assert changed(device=other) == ["the device was Exact, is Other"]
    driver = old.device.model_copy(update={"facts": {"driver_version": Fact("590")}})
    assert changed(device=driver) == ["driver version was absent, is 590"]
    assert changed(versions={"rooflab": "1"}) == ["rooflab was 0, is 1"]
    assert changed(schema_version=3) == ["its schema was 4, is 3"]
    assert changed(config={"seed": 1}) == ["the settings have changed"]
    assert changed(kernels={}) == ["kernel gemm/a is gone"]
    assert changed(kernels={"gemm/a": record, "add/a": record}) == ["kernel add/a is new"]
    new = record.model_copy(update={"sha256": "b" * 64})
    assert changed(kernels={"gemm/a": new}) == ["the file of gemm/a has changed"]


# Older schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", range(1, SCHEMA + 1))
def test_runs_of_every_schema_are_read(schema: int) -> None:
    """``tests/data`` keeps the head of a real run for each."""
    old = load(DATA / f"schema{schema}")
    assert old.warnings == []
    assert old.manifest.schema_version == schema
    assert len(old.ok) == len(old.measurements) >= 5
    for row in old.measurements:
        problem = row.problem
        assert old.manifest.kernel(problem.workload, row.kernel) is not None
        # What a row says of its problem is what this version makes of it.
        made = build(problem.workload, problem.precision, problem.parameters)
        moved = (row.bytes, row.host_bytes, row.peer_bytes)
        assert (made.record, made.flops) == (problem, row.flops)
        assert (made.bytes, made.host_bytes, made.peer_bytes) == moved
        assert row.bound in ("compute", "dram", "h2d")
        assert row.roof_us is not None
        assert row.time_us is not None
        assert row.roof_percent == pytest.approx(100 * row.roof_us / row.time_us, rel=1e-5)


@pytest.mark.parametrize("schema", [1, 2])
def test_before_schema_3_every_run_was_of_gemm(schema: int) -> None:
    old = load(DATA / f"schema{schema}")
    assert old.manifest.device.name == "NVIDIA H200"
    assert list(old.manifest.workloads) == ["gemm"]
    assert all(name.startswith("gemm/") for name in old.manifest.kernels)
    first = old.measurements[0]
    assert (first.problem.workload, first.problem.size) == ("gemm", "256")
    assert first.problem.about == "layout nn"
    assert first.roof_percent == pytest.approx(0.34, abs=0.01)
    assert (first.pair_us is None) == (schema < 2)


def test_what_schema_2_called_otherwise_is_carried_over() -> None:
    content = json.loads((DATA / "schema2" / MANIFEST).read_text())
    old = load_manifest(DATA / "schema2" / MANIFEST)
    assert "settle_s" in content["config"]["timing"]
    timing = old.config["timing"]
    assert timing["device_warmup_s"] == content["config"]["timing"]["settle_s"]
    assert "settle_s" not in timing
    assert old.warm_up == content["settled"]


@pytest.mark.parametrize("schema", [1, 2, 3])
def test_older_runs_say_that_kernels_shared_a_clock(schema: int) -> None:
    """Such a run goes on as it began."""
    old = load_manifest(DATA / f"schema{schema}" / MANIFEST)
    assert old.config["timing"]["own_clock_s"] == 0
    assert of_run({"timing": {"min_rounds": 5}}).timing.own_clock_s == 0
    assert of_run({"timing": {"own_clock_s": 0.2}}).timing.own_clock_s == 0.2
    assert of_run({}).timing.own_clock_s > 0


def test_schema_3_knows_several_workloads() -> None:
    run = load(DATA / "schema3")
    assert list(run.manifest.workloads) == ["add", "gemm"]
    assert {row.problem.workload for row in run.measurements} == {"add", "gemm"}
    assert {"3x50", "100", "64", "32x16x8"} <= {row.problem.size for row in run.measurements}
    assert {"layout nt, beta 0.5", "layout nn", ""} == {
        row.problem.about for row in run.measurements
    } - {"layout nt", "layout nn, beta 0.5"}
    assert {row.problem.precision for row in run.measurements} == {"fp32", "int32"}
    assert run.manifest.workloads["add"].formula == "C = A + B"


@pytest.mark.parametrize(("name", "link"), [("streamed", "host_bytes"), ("two_gpus", "peer_bytes")])
def test_before_schema_4_one_column_had_the_bytes_of_any_link(name: str, link: str) -> None:
    old = load(DATA / "runs" / name)
    table = csv.DictReader((DATA / "runs" / name / MEASUREMENTS).read_text().splitlines())
    assert old.manifest.schema_version == 3
    for row, cells in zip(old.measurements, table, strict=True):
        elsewhere = not row.problem.resident
        assert getattr(row, link if elsewhere else "bytes") == int(cells["bytes"])
        assert getattr(row, "bytes" if elsewhere else link) is None
        assert row.link_bytes == int(cells["bytes"])
    assert any(not row.problem.resident for row in old.measurements)


def test_a_run_of_a_workload_that_is_not_here_is_read(tmp_path: Path) -> None:
    """Its manifest says all that a reader needs."""
    folder = tmp_path / "r"
    folder.mkdir()
    for name in (MANIFEST, MEASUREMENTS):
        text = (DATA / "schema3" / name).read_text()
        (folder / name).write_text(text.replace('"add', '"novelty').replace("\nadd,", "\nnovelty,"))
    run = load(folder)
    first = run.measurements[0].problem
    assert (first.workload, first.size, first.extents["columns"]) == ("novelty", "100", 100)


def test_a_file_that_is_not_there_is_no_run(tmp_path: Path) -> None:
    folder = written(tmp_path / "r", ROW)
    with pytest.raises(UsageError, match=r"there is no .*results\.csv; the run is "):
        load(folder / "results.csv")
    assert load(folder / "measurements.csv").path == folder
