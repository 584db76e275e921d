import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from nsys_file import GPU, PROCESS, TID, WHERE, call, copy, exported, kernel, span, written

from rooflab.devices.records import StepTime
from rooflab.errors import RunError
from rooflab.programs.imports import load

OTHER = TID + (1 << 24)
"""A thread of another process."""


def test_kernels_copies_steps_and_the_device(tmp_path: Path) -> None:
    found = load(exported(tmp_path / "a.sqlite"))
    first, second = found.launches
    assert (first.kernel, second.kernel) == ("void gemm<float>(float*)", "relu")
    assert (first.start_ns, first.ns, first.device, first.stream) == (1000, 10, 0, 7)
    assert (first.grid, first.block) == ((4, 2, 1), (128, 1, 1))
    assert (first.shared_bytes, first.registers) == (1040, 32)
    assert (first.operation, second.operation) == ("aten::mm", "")
    assert (first.call, second.call) == (1, 0)
    assert (first.phase, second.phase) == (("forward",), ("forward",))
    assert [(one.kind, one.bytes, one.phase) for one in found.copies] == [("h2d", 64, ("forward",))]
    assert found.steps == [StepTime("step 1", 1000, 1050)]
    assert (found.source, found.device_name) == ("Nsight Systems", "NVIDIA H200")
    assert found.facts == {
        "sm_count": 132,
        "memory_total": 150109880320,
        "l2_cache": 62914560,
        "compute_capability": "9.0",
    }


def test_the_file_is_not_written_to(tmp_path: Path) -> None:
    path = exported(tmp_path / "a.sqlite")
    before, beside = path.read_bytes(), sorted(tmp_path.iterdir())
    load(path)
    assert path.read_bytes() == before
    assert sorted(tmp_path.iterdir()) == beside


def test_a_path_with_characters_of_an_address(tmp_path: Path) -> None:
    path = exported(tmp_path / "a?mode=rwc#100%25.sqlite")
    assert len(load(path).launches) == 2
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("number", "kind"),
    [(1, "h2d"), (2, "d2h"), (8, "d2d"), (9, "host"), (10, "peer"), (11, "h2d"), (12, "d2h")],
)
def test_kinds_of_copies(tmp_path: Path, number: int, kind: str) -> None:
    path = written(tmp_path / "a", [kernel(5, 1), copy(20, 2, number)])
    assert [one.kind for one in load(path).copies] == [kind]


def test_a_copy_of_an_unknown_kind_is_left_out_with_a_note(tmp_path: Path) -> None:
    found = load(written(tmp_path / "a", [kernel(5, 1), copy(20, 2, 77)]))
    assert not found.copies
    assert "1 copies of an unknown kind are left out." in found.notes


def test_memsets(tmp_path: Path) -> None:
    row = {"start": 50, "end": 60, "correlationId": 2, **WHERE, "bytes": 8}
    found = load(written(tmp_path / "a", [kernel(5, 1), ("CUPTI_ACTIVITY_KIND_MEMSET", row)]))
    assert [(one.kind, one.bytes, one.ns) for one in found.copies] == [("memset", 8, 10)]


def test_processes_number_their_calls_apart(tmp_path: Path) -> None:
    rows = [
        *(span(0, 100, "mine"), span(0, 100, "theirs", OTHER)),
        *(call(10, 1), call(10, 1, OTHER)),
        *(kernel(1000, 1), kernel(1020, 1, globalPid=OTHER & ~0xFFFFFF)),
    ]
    found = load(written(tmp_path / "a", rows))
    assert [one.phase for one in found.launches] == [("mine",), ("theirs",)]


def test_ranges_of_another_thread_are_not_around_the_call(tmp_path: Path) -> None:
    rows = [
        *(span(0, 100, "mine"), span(0, 100, "theirs", TID + 1), span(0, None, "a mark")),
        *(call(10, 1), kernel(1000, 1)),
    ]
    assert load(written(tmp_path / "a", rows)).launches[0].phase == ("mine",)


def test_an_older_version_without_some_columns(tmp_path: Path) -> None:
    rows = [span(0, 100, "forward"), call(10, 1), kernel(1000, 1), ("TARGET_INFO_GPU", GPU)]
    lacking = ("globalPid", "graphId", "graphNodeId", "textId", "smCount", "mangledName")
    found = load(written(tmp_path / "a", rows, without=lacking))
    assert found.launches[0].phase == ("forward",)
    assert "sm_count" not in found.facts


def test_graphs_by_node_and_as_a_whole(tmp_path: Path) -> None:
    whole = {"start": 2000, "end": 2500, "graphId": 9, "correlationId": 3, **WHERE}
    rows = [
        *(kernel(1000, 1, graphId=4), kernel(1020, 1, graphNodeId=(5 << 32) + 2)),
        ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", whole),
    ]
    found = load(written(tmp_path / "a", rows))
    assert [one.graph for one in found.launches] == [4, 5, 9]
    assert (found.launches[2].kernel, found.launches[2].ns) == ("CUDA graph", 500)
    assert any("--cuda-graph-trace node" in note for note in found.notes)


def test_the_device_by_its_number_in_cuda(tmp_path: Path) -> None:
    rows = [
        kernel(5, 1, deviceId=0),
        *(("TARGET_INFO_GPU", GPU | {"id": i, "name": f"GPU {i}"}) for i in range(2)),
        ("TARGET_INFO_CUDA_DEVICE", {"gpuId": 1, "cudaId": 0, "pid": PROCESS}),
    ]
    assert load(written(tmp_path / "a", rows)).device_name == "GPU 1"


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    notes = load(written(tmp_path / "a", [kernel(5, 1)])).notes
    assert any("no NVTX ranges" in note for note in notes)
    assert "The launch calls of 1 kernels of 1 are not in the file." in notes


@pytest.mark.parametrize("wrong", [{"end": 3}, {"start": "x"}, {"start": None}, {"start": -9}])
def test_a_damaged_row_is_told_by_table_and_number(
    tmp_path: Path, wrong: dict[str, object]
) -> None:
    table, row = kernel(20, 2)
    path = written(tmp_path / "a", [kernel(5, 1), (table, row | wrong)])
    with pytest.raises(RunError, match="table CUPTI_ACTIVITY_KIND_KERNEL row 2: damaged"):
        load(path)


def test_no_kernels_says_how_to_record_them(tmp_path: Path) -> None:
    path = written(tmp_path / "a", [copy(20, 2, 1)])
    with pytest.raises(RunError, match=r"no kernel of a GPU .* nsys profile --trace cuda"):
        load(path)


def test_names_that_are_no_text_or_not_there(tmp_path: Path) -> None:
    rows = [kernel(5, 1, demangledName=99, shortName=None), kernel(20, 2, demangledName="x")]
    found = load(written(tmp_path / "a", rows))
    assert [one.kernel for one in found.launches] == ["unknown kernel", "gemm"]


def test_a_view_that_never_ends_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    endless = "WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n)"
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless} SELECT * FROM n")
    with pytest.raises(RunError, match="no kernel"):
        load(path)


def test_too_many_rows_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rooflab.programs.imports.nsys.MOST", 3)
    path = written(tmp_path / "a", [kernel(10 * i, i) for i in range(4)])
    with pytest.raises(RunError, match="more than 3 rows"):
        load(path)


@pytest.mark.parametrize("damage", [b"CR\x1bATE", b"CR\xccATE"])
def test_a_damaged_schema_is_told_without_its_bytes(tmp_path: Path, damage: bytes) -> None:
    path = exported(tmp_path / "a")
    path.write_bytes(path.read_bytes().replace(b"CREATE", damage, 1))
    with pytest.raises(RunError) as told:
        load(path)
    assert str(told.value).isprintable()
