"""What a sweep says while it runs, in a pipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import fake
import pytest
import synthetic
from synthetic import bandwidth, compute, gemm

from rooflab import estimate, observers
from rooflab.config import SweepConfig
from rooflab.model.measurement import Measurement
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.observers import PATIENCE_S, Lines
from rooflab.planning import Plan, Step
from rooflab.runs.store import RunData

KERNELS = tuple(fake.KERNELS.select(["fast", "slow"], "exact", "gemm"))
PROBLEMS = (gemm(64, 64, 64), gemm(512, 512, 512, "fp64"))
PLAN = Plan(SweepConfig(), tuple(Step(one, KERNELS) for one in PROBLEMS), notes=("left out: x",))
ROOFLINE = Roofline((compute("fp32", 1e9, "measured"), bandwidth("DRAM", 1e8, "measured")))
RECORD = PROBLEMS[0].record
ROW = Measurement(
    problem=RECORD,
    kernel="fast",
    time_us=655.36,
    time_lo_us=652.0,
    time_hi_us=658.0,
    roof_percent=80.04,
)


class Speaking(Lines):
    """Keeps what it says, at a time of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s, self.said = 0.0, list[str]()
        monkeypatch.setattr(observers, "perf_counter", lambda: self.now_s)
        super().__init__(self.said.append)

    def new(self) -> list[str]:
        """What was said since this was last asked."""
        said, self.said[:] = list(self.said), []
        return said


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Speaking:
    return Speaking(monkeypatch)


def run(
    rows: Sequence[Measurement] = (), ceilings: tuple[Ceiling, ...] = ROOFLINE.ceilings
) -> RunData:
    return synthetic.run("Exact 1000", Roofline(ceilings), list(rows), kind="exact")


def test_what_comes_before_the_first_point(lines: Speaking) -> None:
    lines.planned(PLAN)
    lines.phase("measuring roofs")
    lines.note("busy")
    lines.began(run(), 4)
    assert lines.new() == [
        "left out: x",
        "measuring roofs …",
        "warning: busy",
        "Exact 1000 (exact:0)",
        "DRAM 0.1 GB/s measured; FP32 1 GFLOP/s measured",
    ]
    lines.began(run(ceilings=()), 4)
    assert lines.new()[1] == "no ceiling is known (see: rooflab devices)"


def test_a_line_per_point_and_the_time_left(lines: Speaking) -> None:
    lines.planned(PLAN)
    lines.began(run(), 4)
    lines.new()
    left = estimate.Left(PLAN, ROOFLINE)
    left.done(ROW)
    left_s = left.seconds
    lines.measured(ROW, "")
    lines.measured(replace(ROW, kernel="slow", roof_percent=None), "")
    for kernel, status in (("fast", "skipped"), ("slow", "impossible")):
        other = replace(ROW, problem=PROBLEMS[1].record, kernel=kernel, status=status)
        lines.measured(other if status == "impossible" else replace(other, time_us=None), "")
    first, second, *others = lines.new()
    assert first == (
        "1/4 fast gemm fp32 64, layout nn: 655.4 µs ± 0.5 %, 80.0 % of its roof; "
        f"about {estimate.text(left_s)} left"
    )
    assert second.startswith("2/4 slow gemm fp32 64, layout nn: 655.4 µs ± 0.5 %; about ")
    assert others[0].startswith("3/4 fast gemm fp64 512, layout nn: skipped; about ")
    assert others[1] == "4/4 slow gemm fp64 512, layout nn: impossible"


def test_of_a_continued_run_only_the_rest_is_left(lines: Speaking) -> None:
    lines.planned(PLAN)
    lines.began(run([ROW]), 3)
    lines.new()
    lines.measured(replace(ROW, kernel="slow"), "")
    left = estimate.Left(PLAN, ROOFLINE)
    for name in ("fast", "slow"):
        left.done(replace(ROW, kernel=name))
    left_s = left.seconds
    assert lines.new()[0].endswith(f"; about {estimate.text(left_s)} left")


def test_a_step_is_named_only_if_nothing_was_said_for_long(lines: Speaking) -> None:
    lines.progress(RECORD, "fast", "timing")
    lines.now_s += PATIENCE_S
    lines.progress(RECORD, "fast", "timing")
    assert lines.new() == []
    lines.now_s += 0.1
    lines.progress(RECORD, "fast", "checking")
    lines.progress(RECORD, "slow", "timing")
    assert lines.new() == ["checking fast fp32 64 …"]
    lines.now_s += PATIENCE_S
    lines.measured(ROW, "")
    lines.new()
    lines.now_s += PATIENCE_S
    lines.progress(RECORD, "fast", "timing")
    assert lines.new() == []


def test_a_failure_is_told_at_once_and_once(lines: Speaking) -> None:
    lines.failed(RECORD, "fast", "incorrect", "C[0, 0] is off")
    lines.failed(PROBLEMS[1].record, "fast", "incorrect", "C[0, 0] is off")
    lines.failed(RECORD, "fast", "incorrect", "another reason")
    lines.failed(RECORD, "slow", "failed", "C[0, 0] is off")
    assert lines.new() == [
        "warning: incorrect: fast fp32 64: C[0, 0] is off",
        "warning: incorrect: fast fp32 64: another reason",
        "warning: failed: slow fp32 64: C[0, 0] is off",
    ]


def test_a_message_of_several_lines_is_shown_once_for_all_sizes(lines: Speaking) -> None:
    lines.began(run(), 2)
    lines.new()
    failed = replace(ROW, status="failed", time_us=None, reason="x.cu(3): error")
    detail = "x.cu(3): error\n    x = 1;\x1b[31m\n    ^"
    lines.measured(failed, "one line")
    lines.measured(failed, detail)
    lines.measured(replace(failed, problem=PROBLEMS[1].record), detail)
    lines.measured(replace(failed, kernel="slow"), detail)
    told = [line for line in lines.new() if "failed:" in line and "\n" in line]
    assert [line.splitlines()[0] for line in told] == [
        "warning: fast failed:",
        "warning: slow failed:",
    ]
    assert "x = 1;" in told[0]
    assert "\x1b" not in told[0]


def test_warnings_may_go_elsewhere() -> None:
    said, warned = list[str](), list[str]()
    lines = Lines(said.append, warned.append)
    lines.note("busy")
    lines.phase("opening")
    assert (said, warned) == (["opening …"], ["busy"])


def test_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    Lines().phase("opening")
    assert capsys.readouterr() == ("", "opening …\n")
