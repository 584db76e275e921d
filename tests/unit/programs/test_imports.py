import gzip
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_file import exported

from rooflab.devices.records import Recording
from rooflab.errors import RooflabError, RunError
from rooflab.programs.imports import load

DATA = Path(__file__).parents[2] / "data" / "programs"

FILES = ("torch.json", "ncu_raw.csv", "ncu_long.csv")

QUICK = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def content(name: str, folder: Path) -> bytes:
    if name == "nsys.sqlite":
        path = folder / "whole.sqlite"
        if not path.exists():
            exported(path)
        return path.read_bytes()
    if name == "torch.json.gz":
        return gzip.compress((DATA / "torch.json").read_bytes(), mtime=0)
    return (DATA / name).read_bytes()


def read_or_told(folder: Path, damaged: bytes) -> None:
    path = folder / "damaged"
    path.write_bytes(damaged)
    try:
        found = load(path)
    except RooflabError as error:
        assert len(str(error).splitlines()) == 1
        assert str(path) in str(error)
    else:
        assert isinstance(found, Recording)
        assert found.launches


@pytest.mark.parametrize("name", [*FILES, "torch.json.gz", "nsys.sqlite"])
@given(where=st.floats(0, 1))
@QUICK
def test_a_file_that_was_cut_off_is_read_or_told_in_one_line(
    tmp_path: Path, name: str, where: float
) -> None:
    whole = content(name, tmp_path)
    read_or_told(tmp_path, whole[: int(where * len(whole))])


@pytest.mark.parametrize("name", [*FILES, "torch.json.gz", "nsys.sqlite"])
@given(changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=8))
@QUICK
def test_changed_bytes_are_read_or_told_in_one_line(
    tmp_path: Path, name: str, changes: list[tuple[float, int]]
) -> None:
    whole = bytearray(content(name, tmp_path))
    for where, value in changes:
        whole[min(int(where * len(whole)), len(whole) - 1)] = value
    read_or_told(tmp_path, bytes(whole))


@given(noise=st.binary(max_size=200))
@QUICK
def test_noise_is_told_in_one_line(tmp_path: Path, noise: bytes) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(noise)
    with pytest.raises(RooflabError) as told:
        load(path)
    assert len(str(told.value).splitlines()) == 1


def test_what_can_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("a shopping list")
    with pytest.raises(RunError, match=r"torch\.profiler.*nsys export.*ncu --import"):
        load(path)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(" \n")
    with pytest.raises(RunError, match="empty"):
        load(path)


def test_a_report_of_nsight_systems_has_the_command_that_exports_it(tmp_path: Path) -> None:
    path = tmp_path / "report.nsys-rep"
    path.write_bytes(b"\x00\x01binary")
    with pytest.raises(RunError, match=r"nsys export --type sqlite .*report\.nsys-rep"):
        load(path)


def test_no_file_and_no_ordinary_file(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"):
        load(tmp_path / "none.json")
    with pytest.raises(RunError, match="not a file"):
        load(tmp_path)


def test_a_file_that_unpacks_to_too_much(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.programs.imports.content.MAX_BYTES", 1000)
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 2000 + b"]"))
    with pytest.raises(RunError, match="larger than"):
        load(path)


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes((DATA / "torch.json").read_bytes())
    assert load(path).source == "torch.profiler"
    exported(tmp_path / "b.json")
    assert load(tmp_path / "b.json").source == "Nsight Systems"


def test_utf_16_as_a_shell_of_windows_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text((DATA / "ncu_raw.csv").read_text(), encoding="utf-16")
    assert len(load(path).launches) == 3


def test_an_empty_database_is_told(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE other (a INTEGER)")
    database.close()
    with pytest.raises(RunError, match="no kernel of a GPU"):
        load(path)


def test_reading_needs_no_heavy_package() -> None:
    program = (
        "import sys; from pathlib import Path; from rooflab.programs.imports import load; "
        "load(Path(sys.argv[1])); "
        "print(*{'cupy', 'torch', 'pandas', 'matplotlib', 'numba'} & set(sys.modules))"
    )
    for name in FILES:
        command = [sys.executable, "-c", program, str(DATA / name)]
        assert subprocess.run(command, capture_output=True, check=True).stdout.split() == []
