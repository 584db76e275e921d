"""``--host``: operands in host memory, from the command line to the figure."""

from __future__ import annotations

import numpy as np
import pytest
from commands import Rooflab, joined, only_run

from rooflab import figures
from rooflab.errors import UsageError

DEVICE = ("--device", "fake:Streaming")
ADD = ("sweep", "add", "--shape", "16x16x40", "-k", "fast", "-p", "fp32", *DEVICE)
STREAMED = (*ADD, "--host", "pinned,none", "--chunk", "4,10", "--streams", "1,2")


def test_every_combination_is_a_row_and_none_is_one(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(*STREAMED)
    assert code == 0
    run = only_run()
    streamed = [row for row in run.ok if row.problem.streamed]
    assert [row.problem.size for row in streamed] == [
        f"16x16x40/{chunk}x{streams}" for chunk in (4, 10) for streams in (1, 2)
    ]
    assert [row.problem.size for row in run.ok if not row.problem.streamed] == ["16x16x40"]
    assert "add FP32, host pinned" in out
    for row in streamed:
        assert row.roof_us
        assert row.serial_us
        assert row.time_us
        assert row.roof_us < row.time_us
        operands = 3 * 16 * 16 * 40 * 4
        assert (row.host_bytes, row.bytes, row.peer_bytes) == (operands, 2 * operands, None)
    frame = run.path / "measurements.csv"
    assert "host,chunk,streams,graph" in frame.read_text().splitlines()[0]


def test_a_streamed_run_is_continued_compared_and_drawn(rooflab: Rooflab) -> None:
    rooflab(*STREAMED)
    run = only_run()
    table = (run.path / "measurements.csv").read_text()
    lines = table.splitlines(keepends=True)
    (run.path / "measurements.csv").write_text("".join(lines[:3]))
    assert rooflab("sweep", "--resume", run.path, *DEVICE)[0] == 0
    assert len(only_run().ok) == len(run.ok)
    code, out, _ = rooflab("compare", run.path, run.path)
    assert code == 0
    assert "5 points in common: 5 SAME." in out
    figure = figures.draw("transfers", [only_run()])
    axes, link = figure.axes
    texts = " ".join(text.get_text() for text in axes.texts)
    assert "pinned, overlapped" in texts
    assert "pinned, serial" in texts
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "pinned, 1 stream",
        "pinned, 2 streams",
    ]
    (point,) = [line for line in link.lines if line.get_marker() != "None"]
    fastest = min((row for row in run.ok if row.problem.streamed), key=lambda row: row.time_us or 0)
    assert fastest.flops and fastest.host_bytes
    assert np.asarray(point.get_xdata())[0] == pytest.approx(fastest.flops / fastest.host_bytes)
    texts = " ".join(text.get_text() for text in link.texts)
    assert "pinned, one way" in texts
    assert "of roof" in texts
    # Bytes of another link have no place under the slope of device memory.
    (size, *_) = figures.draw("size", [only_run()]).axes
    assert sum(np.size(line.get_xdata()) for line in size.lines if line.get_marker() != "None") == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--chunk 41", "chunk = 41 is out of range: batch = 40, give 1 to 40"),
        ("--streams 33", "streams = 33 is out of range: give 1 to 32"),
        ("--host disk", "unknown host 'disk': choose from none, pinned, pageable"),
        ("--graph maybe", "unknown graph 'maybe': choose from off, on"),
        ("--chunk many", "chunk = 'many' is not a whole number"),
    ],
)
def test_wrong_options_get_one_line(rooflab: Rooflab, words: str, message: str) -> None:
    host = () if "--host" in words else ("--host", "pinned")
    code, out, err = rooflab(*ADD, *host, *words.split())
    assert (code, out) == (2, "")
    assert message in joined(err)


def test_a_workload_without_a_batch_is_refused(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "sum", "--sizes", "100", "--host", "pinned", *DEVICE)
    assert code == 2
    assert "sum has no batch, so it cannot be streamed: leave out --host" in joined(err)


def test_a_device_that_computes_in_host_memory_is_refused(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweep", "add", "--shape", "16x16x40", "--host", "pinned", "-k", "fast")
    assert code == 2
    assert "Exact 1000 computes in host memory: leave out --host" in joined(err)


def test_memory_that_the_host_refuses_is_a_skipped_row(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UNPINNED", "1")
    code, _, err = rooflab(*ADD, "--host", "pinned")
    assert code == 1
    assert "the host refuses pinned memory" in joined(err)


def test_the_timeline_is_kept_printed_and_drawn(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(*ADD, "--host", "pinned", "--chunk", "4", "--streams", "3")
    assert code == 0
    lines = [line for line in out.splitlines() if line.startswith("slot ")]
    assert len(lines) == 3
    assert all({">", "#", "<"} <= set(line) for line in lines)
    assert all(len(line) <= 80 for line in lines)
    figure = figures.draw("timeline", [only_run()])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.get_yticklabels()] == [
        "slot 1",
        "slot 2",
        "slot 3",
    ]
    assert len(axes.patches) == 30


OF_A_ROW = (
    '{"kernel": "fast", "workload": "add", "precision": "fp32", "parameters": {}, "spans": [[%s]]}'
)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "[]",
        '{"spans": 3}',
        OF_A_ROW % "9e9",
        OF_A_ROW % 'Infinity, 0, "in", 0, 1',
        OF_A_ROW % f'0, 0, "in", 0, {10**400}',
        "\x00\xff",
    ],
)
def test_a_damaged_timeline_is_left_out(rooflab: Rooflab, line: str) -> None:
    rooflab(*ADD, "--host", "pinned")
    run = only_run()
    (run.path / "timelines.jsonl").write_text(line, errors="replace")
    assert rooflab("show", run.path)[0] == 0
    with pytest.raises(UsageError, match="has no timeline"):
        figures.draw("timeline", [run])
