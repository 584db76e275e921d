"""Streamed problems on a device that copies and computes at the same time."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import fake
import pytest

from rooflab.config import SweepConfig
from rooflab.devices.base import MarkedLaunch
from rooflab.errors import UsageError
from rooflab.kernels.base import Kernel
from rooflab.measure import streaming
from rooflab.measure.protocol import Protocol
from rooflab.measure.streaming import Pipeline, Slot, Streamed
from rooflab.model.problem import FromHost, Problem
from rooflab.model.timeline import unit
from rooflab.workloads import build

ADD = {"rows": 16, "columns": 16, "batch": 40, "host": "pinned"}
GEMM = {"m": 8, "n": 8, "k": 8, "batch": 12, "host": "pinned", "chunk": 3}
ROWS = {"rows": 64, "columns": 32, "host": "pinned", "chunk": 10, "streams": 2}


def from_host(problem: Problem) -> FromHost:
    assert isinstance(problem.placement, FromHost)
    return problem.placement


def kernel(problem: Problem, name: str = "fast") -> Kernel:
    (found,) = fake.KERNELS.select([name], "exact", problem.workload)
    return found


def streamed(problem: Problem, name: str = "fast") -> tuple[fake.Streaming, Streamed]:
    device = fake.Streaming()
    return device, Streamed(device, problem, kernel(problem, name).prepare, SweepConfig())


PROBLEMS = {
    "one stream": build("add", "fp32", {**ADD, "chunk": 8}),
    "three streams": build("add", "fp32", {**ADD, "chunk": 4, "streams": 3}),
    "a shorter last chunk": build("add", "fp32", {**ADD, "chunk": 7, "streams": 2}),
    "more streams than chunks": build("add", "fp32", {**ADD, "chunk": 40, "streams": 4}),
    "integers": build("add", "int32", {**ADD, "chunk": 8, "streams": 2}),
    "weights of all rows": build("rmsnorm", "fp32", ROWS),
    "C is read and written": build("gemm", "fp32", {**GEMM, "beta": 0.5, "streams": 2}),
    "pageable": build("add", "fp32", {**ADD, "host": "pageable", "chunk": 8}),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_chunk_is_right_whatever_the_order(name: str) -> None:
    _, one = streamed(PROBLEMS[name])
    for _ in range(2):
        verdict = one.verify()
        assert verdict.reason == ""
        assert verdict.rel_error < 1e-6
        one.refill()


def test_a_ring_smaller_than_the_problem_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS["three streams"]
    monkeypatch.setattr(streaming, "RING_BYTES", 4 * from_host(problem).part(4).operand_bytes)
    _, one = streamed(problem)
    assert one.ring.places == 4 < len(one.ring.chunks)
    assert one.verify().reason == ""


def test_a_wrong_kernel_is_found() -> None:
    _, one = streamed(build("gemm", "fp32", GEMM), "wrong")
    assert one.verify().reason


def test_a_slot_that_is_filled_again_without_waiting_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All chunks share one slot: nothing orders a copy into it and the kernel that reads it."""

    def shared(self: Pipeline, chunk: int) -> Slot:
        first = self.slots[0]
        return Slot(first.operands, first.launches)

    _, one = streamed(PROBLEMS["three streams"])
    assert one.verify().reason == ""
    monkeypatch.setattr(Pipeline, "slot_of", shared)
    assert "chunks are wrong" in one.check()


def test_results_that_do_not_arrive_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    device, one = streamed(PROBLEMS["three streams"])
    assert one.verify().reason == ""
    copy, copies = device.copy, itertools.count()

    def lose(target: Any, source: Any, queue: Any) -> None:
        if not device._on_host(target) or next(copies) % 3:
            copy(target, source, queue)

    monkeypatch.setattr(device, "copy", lose)
    assert "not in host memory at the end" in one.check()


def test_one_stream_takes_the_serial_time_and_several_approach_the_overlapped_one() -> None:
    times = {}
    for count in (1, 2, 4):
        problem = build("add", "fp32", {**ADD, "chunk": 2, "streams": count})
        device, one = streamed(problem)
        (times[count],) = device.time([one.launch]).times_us
    roofline = device.roofline()
    roof = roofline.roof("fp32", problem.flops, problem.traffic)
    kernel_bytes = from_host(problem).kernel_bytes
    serial = roofline.serial_us("fp32", problem.flops, problem.traffic, kernel_bytes)
    assert roof is not None
    assert serial is not None
    assert times[1] / serial == pytest.approx(1, abs=0.1)
    assert times[2] < 0.8 * times[1]
    assert 1.0 <= times[4] / roof.us < 1.3


class SeveralEngines(fake.Streaming):
    """Copies of different streams at the same time, also in one direction."""

    def _add(self, queue: Any, engine: str, us: float | None, work: Callable[[], None]) -> None:
        super()._add(queue, engine if engine == "compute" else f"{engine} {queue}", us, work)


def test_copies_of_one_direction_follow_each_other() -> None:
    problem = build("add", "fp32", {**ADD, "chunk": 4, "streams": 4})
    one = Streamed(SeveralEngines(), problem, kernel(problem).prepare, SweepConfig())
    spans = one.pipeline.timeline()
    for what in ("in", "out"):
        copies = sorted((span for span in spans if span.what == what), key=lambda s: s.start_us)
        assert [span.chunk for span in copies] == list(range(10))
        assert all(a.end_us <= b.start_us for a, b in pairwise(copies))


def test_a_streamed_problem_is_measured_like_any_other() -> None:
    problem = PROBLEMS["three streams"]
    config = SweepConfig.model_validate({"timing": {"min_rounds": 3, "max_rounds": 4}})
    (outcome,) = Protocol(fake.Streaming(), config).measure(problem, [kernel(problem)])
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.summary is not None
    roof = fake.Streaming().roofline().roof("fp32", problem.flops, problem.traffic)
    assert roof is not None
    assert outcome.summary.median > roof.us


def test_a_kernel_is_asked_about_its_chunks() -> None:
    """A grid has at most 65535 blocks along z, but a batch may be larger."""
    problem = PROBLEMS["three streams"]
    small = replace(kernel(problem), unsupported=lambda p: "too many" * (p.extents["batch"] > 4))
    (outcome,) = Protocol(fake.Streaming(), SweepConfig()).measure(problem, [small])
    assert outcome.status == "ok", outcome.reason


def test_pageable_memory_is_timed_by_the_host() -> None:
    for name, flagged in (("pageable", True), ("one stream", False)):
        problem = PROBLEMS[name]
        (outcome,) = Protocol(fake.Streaming(), SweepConfig()).measure(problem, [kernel(problem)])
        assert outcome.status == "ok"
        assert ("host_timed" in outcome.flags) == flagged


@pytest.mark.parametrize(("batch", "gated"), [(225, True), (226, False)])
def test_a_graph_of_many_operations_is_not_gated(batch: int, gated: bool) -> None:
    class Graphs(fake.Streaming):
        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            return work

    values = {**ADD, "batch": batch, "chunk": 1, "graph": "on"}
    problem = build("add", "fp32", values)
    one = Streamed(Graphs(), problem, kernel(problem).prepare, SweepConfig())
    assert MarkedLaunch.of(one.launch).gated == gated
    assert one.verify().reason == ""


def test_memory_that_the_host_refuses_skips_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_UNPINNED", "1")
    problem = PROBLEMS["one stream"]
    (outcome,) = Protocol(fake.Streaming(), SweepConfig()).measure(problem, [kernel(problem)])
    assert (outcome.status, outcome.reason) == ("skipped", "the host refuses pinned memory")


def test_a_device_without_queues_says_so() -> None:
    problem = PROBLEMS["one stream"]
    (outcome,) = Protocol(fake.FakeDevice(), SweepConfig()).measure(problem, [kernel(problem)])
    assert outcome.status == "skipped"
    assert "leave out --host" in outcome.reason


# The problem -------------------------------------------------------------------------------------


def test_chunk_and_streams_belong_to_the_identity_and_the_size() -> None:
    problem = PROBLEMS["three streams"]
    assert problem.size == "16x16x40/4x3"
    assert from_host(problem).chunks == [4] * 10
    assert from_host(PROBLEMS["a shorter last chunk"]).chunks == [7] * 5 + [5]
    on_device = build("add", "fp32", {"rows": 16, "columns": 16, "batch": 40})
    assert not on_device.record.streamed
    assert on_device.record.settings == {}
    assert problem.key != on_device.key
    assert build("add", "fp32", {**ADD, "host": "none", "chunk": 8}).key == on_device.key


def test_bytes_are_those_of_the_link() -> None:
    problem = PROBLEMS["three streams"]
    array = 16 * 16 * 40 * 4
    assert problem.traffic == {"dram": 6 * array, "h2d": 2 * array, "d2h": array}
    assert (problem.host_bytes, problem.link_bytes) == (3 * array, 3 * array)
    assert problem.intensity == problem.flops / (3 * array)
    assert set(PROBLEMS["pageable"].traffic) == {"dram", "h2d_pageable", "d2h_pageable"}


def test_the_default_chunk_has_about_16_mb() -> None:
    problem = build("add", "fp32", {"rows": 256, "columns": 256, "batch": 1000, "host": "pinned"})
    assert problem.chunk == 16_000_000 // (3 * 256 * 256 * 4) == 20

    def chunk(columns: int, batch: int) -> int:
        values = {"rows": 1, "columns": columns, "batch": batch, "host": "pinned"}
        return int(build("add", "fp32", values).chunk)

    assert chunk(10_000_000, 3) == 1  # a part is larger than that
    assert chunk(1, 3) == 3  # all of them are smaller
    assert chunk(1, 2**30) == 16_000_000 // 12


def test_a_problem_in_chunks_by_hand() -> None:
    problem = build("add", "fp32", {**ADD, "chunk": 15, "streams": 2, "graph": "on"})
    assert from_host(problem).chunks == [15, 15, 10]
    assert [one.extents["batch"] for one in problem.placement.launched] == [10, 15]
    assert not any(one.record.streamed for one in problem.placement.launched)
    assert problem.size == "16x16x40/15x2g"
    assert problem.record.chunk_share == 15 / 40
    assert from_host(build("add", "fp32", {**ADD, "chunk": 8})).chunks == [8] * 5
    assert build("add", "fp32", {**ADD, "chunk": 8}).size == "16x16x40/8x1"
    rows = build("softmax", "fp32", {"rows": 12, "columns": 5, "host": "pinned", "chunk": 3})
    assert (rows.record.chunk_share, from_host(rows).chunks) == (0.25, [3] * 4)
    resident = build("add", "fp32", {"rows": 16, "columns": 16, "batch": 40})
    assert (resident.record.chunk_share, resident.placement.launched) == (1.0, [resident])
    assert build("sum", "fp32", {"elements": 7}).record.chunk_share == 1.0
    assert problem.record.streamed and not problem.record.resident
    assert resident.record.resident and not resident.record.streamed


def test_without_streaming_its_parameters_do_not_count() -> None:
    plain = build("add", "fp32", {"rows": 16, "columns": 16, "batch": 40})
    given = {"rows": 16, "columns": 16, "batch": 40, "chunk": 4, "streams": 9, "graph": "on"}
    assert build("add", "fp32", given) == plain
    assert (plain.placement.parameters, plain.record.settings) == ({}, {})
    one = build("add", "fp32", {**ADD, "chunk": 4})
    assert one.placement.parameters == {"host": "pinned", "chunk": 4, "streams": 1, "graph": "off"}


@pytest.mark.parametrize(
    ("workload", "values", "words"),
    [
        ("add", {**ADD, "chunk": 41}, "chunk = 41 is out of range: batch = 40, give 1 to 40"),
        ("add", {**ADD, "chunk": -1}, "chunk = -1 is out of range: batch = 40, give 1 to 40"),
        ("add", {**ADD, "streams": 33}, "streams = 33 is out of range: give 1 to 32"),
        ("add", {**ADD, "streams": 0}, "streams = 0 is out of range: give 1 to 32"),
        ("add", {**ADD, "host": "paged"}, "choose from none, pinned, pageable"),
        ("sum", {"elements": 100, "host": "pinned"}, "sum has no"),
    ],
)
def test_wrong_streaming_is_refused(workload: str, values: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        build(workload, "fp32", values)


def test_the_ends_of_a_range_are_allowed() -> None:
    for values in ({"chunk": 40, "streams": 32}, {"chunk": 1, "streams": 1}):
        assert build("add", "fp32", {**ADD, **values}).record.streamed


# The timeline ------------------------------------------------------------------------------------


def test_the_timeline_shows_copies_beside_kernels() -> None:
    _, one = streamed(PROBLEMS["three streams"])
    spans = one.pipeline.timeline()
    assert len(spans) == 3 * 10
    assert {span.stream for span in spans} == {0, 1, 2}
    for stream in range(3):
        own = [span for span in spans if span.stream == stream]
        assert all(a.end_us <= b.start_us + 1e-6 for a, b in pairwise(own))
    copies = [span for span in spans if span.what == "in"]
    kernels = [span for span in spans if span.what == "kernel"]
    assert any(a.start_us < b.end_us and b.start_us < a.end_us for a in copies for b in kernels)
    assert one.pipeline.stamps is None


def test_a_long_timeline_has_its_first_chunks() -> None:
    _, one = streamed(build("add", "fp32", {**ADD, "chunk": 1, "streams": 2}))
    assert {span.chunk for span in one.pipeline.timeline()} == set(range(24))


@pytest.mark.parametrize(("us", "found"), [(999.9, ("µs", 1.0)), (1000.0, ("ms", 1000.0))])
def test_a_timeline_has_the_unit_of_its_end(us: float, found: tuple[str, float]) -> None:
    assert unit(us) == found
