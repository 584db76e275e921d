import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rooflab.devices.records import NOWHERE, Needs, Recording
from rooflab.errors import RunError
from rooflab.programs.imports import load, trace

DATA = Path(__file__).parents[2] / "data" / "programs"

Event = dict[str, Any]


def kernel(at: float, correlation: int, name: str = "gemm", **arguments: Any) -> Event:
    where = {"device": 0, "stream": 7, "correlation": correlation}
    event = {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": at, "dur": 10.0}
    return event | {"args": where | arguments}


def call(at: float, correlation: int, thread: int = 1) -> Event:
    found = on_host("cuda_runtime", "cudaLaunchKernel", at, 1.0, thread)
    return {**found, "args": {"correlation": correlation}}


def op(name: str, at: float, dur: float, thread: int = 1, args: Any = None) -> Event:
    return {**on_host("cpu_op", name, at, dur, thread), "args": args}


def note(name: str, at: float, dur: float, thread: int = 1) -> Event:
    return on_host("user_annotation", name, at, dur, thread)


def on_host(cat: str, name: str, at: float, dur: float, thread: int) -> Event:
    return {"ph": "X", "cat": cat, "name": name, "pid": 9, "tid": thread, "ts": at, "dur": dur}


def loaded(folder: Path, *events: Any, **content: Any) -> Recording:
    path = folder / "trace.json"
    path.write_text(json.dumps({**content, "traceEvents": events}))
    return load(path)


def copied(folder: Path, name: str, **arguments: Any) -> list[Any]:
    event = {**kernel(30, 2, name, **arguments), "cat": "gpu_memcpy"}
    return list(loaded(folder, kernel(5, 1), event).copies)


def test_a_real_trace_of_a_step_of_training() -> None:
    found = load(DATA / "torch.json")
    assert found.source == "torch.profiler"
    assert found.device_name == "NVIDIA H200"
    assert found.facts["sm_count"] == 132
    assert found.facts["compute_capability"] == "9.0"
    first = found.launches[0]
    assert first.kernel.startswith("void at::native::vectorized_gather_kernel<16, long>")
    assert (first.start_ns, first.ns) == (4960188747245022, 20127)
    assert (first.grid, first.block, first.registers) == ((8192, 1, 1), (256, 1, 1), 32)
    assert (first.operation, first.call) == ("aten::gather", 1)
    assert [one.shared_bytes for one in found.launches[:2]] == [0, 213188]
    assert found.copies[0].kind == "memset"
    assert found.notes == []


def test_launches_of_one_call_share_its_number_and_others_do_not() -> None:
    backward = [
        one
        for one in load(DATA / "torch.json").launches
        if one.operation.endswith("dense_backward")
    ]
    assert len(backward) == 3
    assert len({one.call for one in backward}) == 1
    assert len({one.call for one in load(DATA / "torch.json").launches}) == 7


def test_the_backward_pass_on_another_thread_is_in_the_step() -> None:
    found = load(DATA / "torch.json")
    assert [one.name for one in found.steps] == ["step"]
    assert found.steps[0].start_ns == found.launches[0].start_ns
    assert found.steps[0].end_ns == found.launches[-1].end_ns


def test_the_innermost_operation_on_the_thread_of_the_call(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        op("aten::linear", 0, 100),
        op("aten::addmm", 10, 50),
        op("aten::other", 10, 50, thread=2),
        *(call(20, 1), call(70, 2), call(200, 3)),
        *(kernel(300, 1), kernel(320, 2), kernel(340, 3)),
    )
    assert [one.operation for one in found.launches] == ["aten::addmm", "aten::linear", ""]
    assert [one.call for one in found.launches] == [1, 2, 0]


def test_ranges_that_only_overlap(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        *(op("aten::a", 0, 20), op("aten::b", 10, 90)),
        *(call(15, 1), call(50, 2), kernel(300, 1), kernel(320, 2)),
        *(note("x", 0, 20), note("y", 10, 90)),
    )
    assert [one.operation for one in found.launches] == ["aten::b", "aten::b"]
    assert [one.phase for one in found.launches] == [("x", "y"), ("y",)]


def test_phases_are_the_annotations_and_not_the_steps(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        *(note("ProfilerStep#3", 0, 100), note("forward", 5, 50), note("attention", 10, 10)),
        *(call(15, 1), kernel(200, 1)),
    )
    assert found.launches[0].phase == ("forward", "attention")


def test_a_thread_without_annotations_has_those_of_the_one_that_waits(tmp_path: Path) -> None:
    events = [
        *(note("backward", 0, 100), call(50, 1, thread=2), kernel(300, 1)),
        op("aten::mm", 40, 20, thread=2),
    ]
    assert loaded(tmp_path, *events).launches[0].phase == ("backward",)
    other = note("loader", 0, 100, thread=3)
    assert loaded(tmp_path, *events, other).launches[0].phase == ()


def test_steps_are_what_was_launched_in_them_on_the_clock_of_the_device(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        *(note("ProfilerStep#3", 0, 100), note("ProfilerStep#4", 100, 100)),
        *(call(10, 1), call(90, 2, thread=5), call(150, 3), call(500, 4)),
        *(kernel(300, 1), kernel(400, 2), kernel(420, 3), kernel(900, 4)),
    )
    assert [(one.name, one.start_ns, one.end_ns) for one in found.steps] == [
        ("ProfilerStep#3", 300_000, 410_000),
        ("ProfilerStep#4", 420_000, 430_000),
    ]


def test_steps_without_launch_calls_come_from_the_device(tmp_path: Path) -> None:
    step = {**kernel(290, 0, "ProfilerStep#3"), "cat": "gpu_user_annotation", "dur": 50}
    found = loaded(tmp_path, step, kernel(300, 1))
    assert [(one.start_ns, one.end_ns) for one in found.steps] == [(290_000, 340_000)]


def test_annotations_that_repeat_are_each_a_step(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        *(note("train_step", 0, 50), note("train_step", 60, 50), note("step 1", 70, 10)),
        *(call(10, 1), call(75, 2), kernel(300, 1), kernel(400, 2)),
    )
    assert [one.name for one in found.steps] == ["train_step", "train_step"]


def test_without_correlation_the_external_id_tells_the_operation(tmp_path: Path) -> None:
    one = kernel(300, 0) | {"args": {"External id": 12}}
    found = loaded(
        tmp_path, op("aten::mm", 10, 50, args={"External id": 12}), note("f", 0, 99), one
    )
    assert (found.launches[0].operation, found.launches[0].phase) == ("aten::mm", ("f",))


def test_work_is_asked_once_per_call_with_all_that_the_trace_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def work_of(*arguments: Any) -> Needs:
        asked.append(arguments)
        return Needs(flops=8, bytes=4, precision="fp32")

    monkeypatch.setattr(trace, "work_of", work_of)
    shapes = {"Input Dims": [[2, 3], []], "Input type": ["float", "Sc\x1balar"]}
    values = {"Concrete Inputs": ["", "1"], "Input Strides": [[3, 1], []]}
    found = loaded(
        tmp_path,
        op("aten::mm", 10, 50, args={**shapes, **values}),
        *(call(20, 1), call(30, 2), kernel(300, 1), kernel(320, 2)),
        *(op("aten::none", 100, 20), call(110, 3), kernel(340, 3)),
    )
    given = ([[2, 3], []], ["float", "Sc\ufffdalar"], ["", "1"], [[3, 1], []])
    assert asked == [("aten::mm", *given)]
    assert [one.work and one.work.flops for one in found.launches] == [8, 8, None]
    assert found.notes == []


def test_without_shapes_a_note_says_how_to_get_them(tmp_path: Path) -> None:
    found = loaded(tmp_path, op("aten::mm", 0, 50), call(10, 1), kernel(300, 1))
    assert any("record_shapes=True" in note for note in found.notes)
    assert found.launches[0].work is None


def test_without_operations_a_note_says_how_to_get_them(tmp_path: Path) -> None:
    assert "ProfilerActivity.CPU" in loaded(tmp_path, kernel(300, 1)).notes[0]


def test_kernels_without_a_launch_call_are_counted(tmp_path: Path) -> None:
    found = loaded(
        tmp_path,
        op("aten::mm", 0, 9, args={"Input Dims": [[1]]}),
        *(call(1, 1), kernel(30, 1), kernel(50, 2)),
    )
    assert found.notes == ["The launch calls of 1 kernels of 2 are not in the trace."]


def test_kernels_of_a_graph_have_its_id_and_a_note(tmp_path: Path) -> None:
    graph = {"graph id": 5, "graph node id": 3}
    found = loaded(
        tmp_path,
        op("aten::mm", 0, 9, args={"Input Dims": [[1]]}),
        call(100, 1),
        *(kernel(300 + i, 1, "k", **graph) for i in range(3)),
    )
    assert [one.graph for one in found.launches] == [5, 5, 5]
    assert found.notes == [
        "3 kernels were launched by a CUDA graph: their operations are not known."
    ]


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("Memcpy HtoD (Pinned -> Device)", "h2d"),
        ("Memcpy DtoH (Device -> Pageable)", "d2h"),
        ("Memcpy DtoD (Device -> Device)", "d2d"),
        ("Memcpy PtoP (Device -> Device)", "peer"),
        ("Memcpy HtoH (Pinned -> Pinned)", "host"),
        ("Memcpy Default (Pinned -> Device)", "h2d"),
        ("Memcpy Default (Managed -> Pageable)", "d2h"),
    ],
)
def test_kinds_of_copies(tmp_path: Path, name: str, kind: str) -> None:
    (one,) = copied(tmp_path, name, bytes=4096)
    assert (one.kind, one.bytes, one.ns, one.stream) == (kind, 4096, 10_000, 7)


def test_a_copy_of_an_unknown_kind_is_left_out_with_a_note(tmp_path: Path) -> None:
    odd = {**kernel(30, 2, "Memcpy Unknown"), "cat": "gpu_memcpy"}
    found = loaded(tmp_path, kernel(5, 1), odd)
    assert not found.copies
    assert "1 copies of an unknown kind are left out." in found.notes


def test_old_categories_compression_and_a_bare_list(tmp_path: Path) -> None:
    events = [
        *({**op("aten::mm", 0, 50), "cat": "Operator"}, {**call(10, 1), "cat": "Runtime"}),
        {**kernel(300, 1), "cat": "Kernel"},
        {**kernel(320, 2, "Memset (Device)", bytes=8), "cat": "Memset"},
    ]
    path = tmp_path / "any name"
    path.write_bytes(gzip.compress(json.dumps(events).encode()))
    found = load(path)
    assert found.launches[0].operation == "aten::mm"
    assert found.copies[0].kind == "memset"


def test_the_facts_are_those_of_the_device_that_launched(tmp_path: Path) -> None:
    devices = [{"id": 0, "name": "A"}, {"id": 1, "name": "B\x1b[31m", "numSms": 4}]
    found = loaded(tmp_path, kernel(5, 1, device=1), deviceProperties=devices)
    assert (found.device_name, found.facts) == ("B\ufffd[31m", {"sm_count": 4})


@pytest.mark.parametrize(
    "grid", [None, "[1, 1, 1]", [1, 2], [1, -2, 1], [True, 1, 1], [2**31, 1, 1]]
)
def test_a_grid_that_is_none_is_not_known(tmp_path: Path, grid: Any) -> None:
    found = loaded(tmp_path, kernel(5, 1, "k", **{"grid": grid, "shared memory": "much"}))
    assert (found.launches[0].grid, found.launches[0].shared_bytes) == (NOWHERE, 0)


def test_names_are_cleaned_and_bounded(tmp_path: Path) -> None:
    one = kernel(5, 1, "\x1b[31m\n" + "k" * 10_000)
    assert loaded(tmp_path, one).launches[0].kernel == "\ufffd[31m\ufffd" + "k" * 4090


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"ts": "5"}, r"traceEvents\[1\]: damaged, ts or dur"),
        ({"ts": None}, r"traceEvents\[1\]: damaged, ts or dur"),
        ({"dur": -1}, r"traceEvents\[1\]: damaged, ts or dur"),
        ({"ts": 1e300}, r"traceEvents\[1\]: damaged, ts or dur"),
        ({"name": 5}, r"traceEvents\[1\]: damaged, its name"),
    ],
)
def test_a_damaged_event_is_told_by_its_place(
    tmp_path: Path, wrong: dict[str, Any], says: str
) -> None:
    with pytest.raises(RunError, match=says):
        loaded(tmp_path, kernel(1, 1), {**kernel(5, 2), **wrong})


def test_a_trace_without_kernels_says_how_to_record_them(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"no kernel of a GPU .* ProfilerActivity.CUDA"):
        loaded(tmp_path, op("aten::mm", 0, 50))


@pytest.mark.parametrize("text", ['{"traceEvents": 5}', "{}", '{"a": [1, 2]}'])
def test_other_json_is_no_trace(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(RunError, match=r"not a trace of torch\.profiler"):
        load(path)


def test_a_trace_that_was_cut_off_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"traceEvents": [\n{"ph": "X",\n')
    with pytest.raises(RunError, match=r"a\.json line 3 column 1: damaged or incomplete JSON"):
        load(path)


def test_a_deep_nest_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("[" * 1_000_000)
    with pytest.raises(RunError, match="not a trace"):
        load(path)


def test_many_ranges_inside_each_other_are_not_quadratic(tmp_path: Path) -> None:
    count = 20_000
    found = loaded(
        tmp_path,
        *(op("aten::mm", i, 10 * count) for i in range(count)),
        *(note("x", i, 10 * count) for i in range(count)),
        *(call(i + 0.5, i + 1) for i in range(count)),
        *(kernel(i, i + 1) for i in range(count)),
    )
    assert len(found.launches) == count
    assert len(found.launches[-1].phase) <= 128
