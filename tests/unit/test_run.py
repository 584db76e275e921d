from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rooflab.model.facts import Fact
from rooflab.model.measurement import COLUMNS, Measurement
from rooflab.model.roofline import Ceiling, Roofline

from rooflab import run
from rooflab.errors import RunError, UsageError

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def manifest() -> run.Manifest:
    return run.Manifest(
        created=NOW,
        command=["rooflab", "sweep"],
        versions={"rooflab": "0"},
        host={},
        device=run.DeviceRecord(
            id="cpu", kind="cpu", name="Exact", facts={"clock": Fact(None, reason="none")}
        ),
        roofline=Roofline((Ceiling("compute", "fp32", 1e12, "measured", "given"),)),
        config={},
        kernels={},
    )


ROW = Measurement(
    kernel="tiled",
    backend="cpu",
    m=1,
    n=2,
    k=3,
    precision="fp32",
    reason='a "quoted", odd\nreason',
    time_us=1 / 3,
    flops=12,
)


def written(folder: Path, *rows: Measurement) -> Path:
    folder.mkdir(exist_ok=True)
    with run.RunWriter(folder, manifest()) as writer:
        for row in rows:
            writer.append(row, [[1.25, 2.5], [3.0]])
    return folder


def test_what_is_written_is_read(tmp_path: Path) -> None:
    loaded = run.load(written(tmp_path / "r", ROW, ROW))
    assert loaded.manifest == manifest()
    assert loaded.warnings == []
    first, second = loaded.measurements
    assert first == second
    assert first.time_us == pytest.approx(1 / 3, rel=1e-7)
    assert first.reason == 'a "quoted", odd reason'
    assert first.tflops is None
    text = (tmp_path / "r" / run.SAMPLES).read_text()
    samples = [json.loads(line) for line in text.splitlines()]
    assert [s["rounds"] for s in samples] == [[[1.25, 2.5], [3.0]]] * 2


def test_every_row_is_on_disk_before_the_next(tmp_path: Path) -> None:
    with run.RunWriter(tmp_path, manifest()) as writer:
        for count in range(3):
            assert len(run.load(tmp_path).measurements) == count
            writer.append(ROW, [])


def test_a_torn_last_line_is_dropped_with_a_warning(tmp_path: Path) -> None:
    path = written(tmp_path, ROW, ROW) / run.MEASUREMENTS
    whole = path.read_bytes()
    second = whole.index(b"\n", whole.index(b"\n") + 1) + 1
    for end in range(second + 1, len(whole)):
        path.write_bytes(whole[:end])
        loaded = run.load(tmp_path)
        assert len(loaded.measurements) == 1
        assert loaded.warnings == [f"{path} line 3: torn by a crash, dropped"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("name,value\nx,1\n", "line 1: not a rooflab table, it lacks kernel, backend, variant …"),
        (",".join(COLUMNS) + "\na,b\n", f"line 2: 2 cells under {len(COLUMNS)} headings"),
        (
            ",".join(COLUMNS) + "\n" + ",".join("x" for _ in COLUMNS) + "\n",
            "line 2: m is 'x', not a whole number",
        ),
        ("\x00\x01\xff\n", "line 1: not a rooflab table"),
    ],
)
def test_a_foreign_table_is_reported_with_its_line(tmp_path: Path, content: str, says: str) -> None:
    path = written(tmp_path) / run.MEASUREMENTS
    path.write_text(content, encoding="latin-1")
    with pytest.raises(RunError) as caught:
        run.load(tmp_path)
    assert str(caught.value).startswith(f"{path} ")
    assert says in str(caught.value)


def test_columns_of_a_later_minor_version_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path, ROW) / run.MEASUREMENTS
    head, row = path.read_text().splitlines()
    path.write_text(f"{head},novelty\n{row},1\n")
    assert run.load(tmp_path).measurements[0].kernel == "tiled"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[]", "not a rooflab manifest"),
        ("{", "not a rooflab manifest"),
        ('{"schema": "1"}', "it has no schema number"),
        ('{"schema": 1}', "created: Field required"),
        (f'{{"schema": {run.SCHEMA + 1}}}', "newer rooflab .* update here: pip install -U"),
    ],
)
def test_bad_manifests(tmp_path: Path, content: str, says: str) -> None:
    (written(tmp_path) / run.MANIFEST).write_text(content)
    with pytest.raises(RunError, match=says):
        run.load(tmp_path)


def test_a_folder_that_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a run folder"):
        run.load(tmp_path)
    with pytest.raises(UsageError, match=r"no run in .*: name a run folder, or make one"):
        run.newest(tmp_path)


def test_a_file_of_the_run_names_it_too(tmp_path: Path) -> None:
    written(tmp_path, ROW)
    assert run.load(tmp_path / run.MEASUREMENTS).measurements


def test_folders_are_named_by_time_and_device_and_never_reused(tmp_path: Path) -> None:
    names = [run.create_folder(tmp_path / "results", "NVIDIA H200", NOW).name for _ in range(2)]
    assert names == ["20260102T030405Z-nvidia-h200", "20260102T030405Z-nvidia-h200-2"]


def test_an_unwritable_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="give --out a folder"):
        run.create_folder(tmp_path / "file", "x", NOW)
    with pytest.raises(UsageError, match="cannot write to /proc/nowhere"):
        run.create_folder(Path("/proc/nowhere"), "x", NOW)


def test_newest_run(tmp_path: Path) -> None:
    for hour in (5, 3):
        written(run.create_folder(tmp_path, "x", NOW.replace(hour=hour)), ROW)
    assert run.newest(tmp_path).name == "20260102T050405Z-x"


@pytest.mark.parametrize("schema", range(1, run.SCHEMA + 1))
def test_runs_of_every_schema_are_read(schema: int) -> None:
    """``tests/data`` keeps the head of one real run for each."""
    old = run.load(Path(__file__).parents[1] / "data" / f"schema{schema}")
    assert old.manifest.schema_version == schema
    assert old.manifest.device.name == "NVIDIA H200"
    assert len(old.ok) == len(old.measurements) == 5
    assert old.measurements[0].roof_percent == pytest.approx(0.34, abs=0.01)
    assert (old.measurements[0].pair_us is None) == (schema < 2)
