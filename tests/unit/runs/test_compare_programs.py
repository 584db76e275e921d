"""Two runs of a program: the verdict on the step, and which groups belong together."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from xml.etree import ElementTree

import pytest
from profiled import group, other, program

from rooflab.errors import UsageError
from rooflab.report import comparison as report
from rooflab.report.program_comparison import sentences
from rooflab.runs.compare import Comparison, Verdict
from rooflab.runs.compare_programs import (
    ProgramComparison,
    comparable,
    compare_any,
    compare_programs,
    uncertainty,
)
from rooflab.runs.program import IDLE
from rooflab.runs.store import RunData


def compared(base: RunData, new: RunData, threshold: float | None = None) -> ProgramComparison:
    found = compare_any(base, new, threshold)
    assert isinstance(found, ProgramComparison)
    return found


# Verdicts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("us", "verdict"),
    [(900.0, Verdict.FAST), (1000.0, Verdict.SAME), (1005.0, Verdict.SAME), (1100.0, Verdict.SLOW)],
)
def test_the_step_has_a_verdict(us: float, verdict: Verdict) -> None:
    found = compared(program(group("a", 1000.0, 10)), program(group("a", us, 10)))
    assert found.threshold_percent == 2.0
    assert found.step.verdict == verdict
    assert found.counts[verdict] == 1
    assert sum(found.counts.values()) == 1
    low, change, high = (
        found.step.change_lo_percent,
        found.step.change_percent,
        found.step.change_hi_percent,
    )
    assert low is not None and change is not None and high is not None
    assert low < change < high
    assert change == pytest.approx((us - 1000) / 10)


def test_groups_alone_do_not_make_a_step_slow() -> None:
    found = compared(
        program(group("a", 1000.0, 10), group("b", 500.0, 10)),
        program(group("a", 1200.0, 10), group("b", 300.0, 10)),
    )
    assert [point.verdict for point in found.groups] == [Verdict.SLOW, Verdict.FAST]
    assert found.step.verdict == Verdict.SAME
    assert found.counts[Verdict.SLOW] == 0
    assert found.group_counts[Verdict.SLOW] == 1


def test_a_change_of_a_tiny_group_is_none() -> None:
    found = compared(
        program(group("a", 1e5, 10), group("b", 10.0, 10)),
        program(group("a", 1e5, 10), group("b", 20.0, 10)),
    )
    assert [point.verdict for point in found.groups] == [Verdict.SAME] * 2


def test_launches_that_vary_leave_it_open() -> None:
    wide = program(group("a", 1000.0, 10, spread=0.4))
    found = compared(wide, program(group("a", 1060.0, 10, spread=0.4)))
    assert found.step.verdict == found.groups[0].verdict == Verdict.AMBIGUOUS
    assert found.step.reason == "interval wider than ±2 %"
    assert found.unclear == 1


def test_a_step_that_is_only_slower_while_recorded_is_open() -> None:
    base = program(group("a", 1000.0, 10), plain_us=990.0)
    new = program(group("a", 1100.0, 10), plain_us=991.0)
    step = compared(base, new).step
    assert (step.verdict, step.reason) == (
        Verdict.AMBIGUOUS,
        "SLOW in recorded steps, SAME in others",
    )


def test_idle_time_has_no_spread() -> None:
    found = compared(
        program(group("a", 1000.0, 10), other(IDLE, 100.0)),
        program(group("a", 1000.0, 10), other(IDLE, 300.0)),
    )
    assert [point.verdict for point in found.groups] == [Verdict.SAME, Verdict.AMBIGUOUS]
    assert found.step.verdict == Verdict.SLOW


def test_a_mean_of_more_launches_is_better_known() -> None:
    row = group("a", 1000.0, 10, spread=0.02)
    halves = [uncertainty(replace(row, samples=count)) for count in (1, 2, 5, 40, 1000)]
    assert halves == sorted(halves, reverse=True)
    assert halves[0] == pytest.approx(10 * 100 * 0.02)  # the launches themselves
    assert halves[3] == pytest.approx(10 * 4 * 2.262 / 3.29 / math.sqrt(40))
    assert uncertainty(replace(row, time_p05_us=None)) == 0


def test_swapping_the_runs_swaps_the_verdicts() -> None:
    base, new = (program(group("a", us, 10), group("b", 300.0, 3)) for us in (1000.0, 1300.0))
    assert compared(base, new).step.verdict == Verdict.SLOW
    back = compared(new, base)
    assert back.step.verdict == Verdict.FAST
    assert [point.verdict for point in back.groups] == [Verdict.FAST, Verdict.SAME]


# Which runs --------------------------------------------------------------------------------------


def test_programs_of_two_devices_are_comparable() -> None:
    base, new = program(group("a", 1000.0, 10)), program(group("a", 2000.0, 10))
    new.manifest.device.name = "NVIDIA H100"
    assert comparable(base, new)
    assert compared(base, new).step.verdict == Verdict.SLOW


def test_a_whole_program_is_not_compared_with_steps() -> None:
    whole = program(group("a", 1000.0), whole=True)
    with pytest.raises(UsageError, match="BASE is a whole program, the other run has steps"):
        compare_any(whole, program(group("a", 1000.0)))


@pytest.mark.parametrize("threshold", [-1.0, math.inf, math.nan])
def test_impossible_thresholds_are_refused(threshold: float) -> None:
    run = program(group("a", 1000.0))
    with pytest.raises(UsageError, match="threshold"):
        compare_programs(run, run, threshold)


# Outputs -----------------------------------------------------------------------------------------


@pytest.fixture
def changed() -> ProgramComparison:
    base = [
        group("multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>", 2000.0, 10, part=1),
        group("multi_tensor_apply_kernel<FusedAdamMathFunctor, BFloat16>", 1000.0, 10, part=2),
        group("CatArrayBatchedCopy<int>", 1000.0, 10),
        group("old", 700.0, 10),
        group("same", 5000.0, 10),
        other(IDLE, 300.0),
    ]
    new = [
        replace(base[0], total_us=1000.0, time_us=100.0, time_p05_us=99.0, time_p95_us=101.0),
        replace(base[1], total_us=500.0, time_us=50.0, time_p05_us=49.0, time_p95_us=51.0),
        group("CatArrayBatchedCopy<int>", 1300.0, 10),
        group("new", 200.0, 10),
        *base[4:],
    ]
    return compared(program(*base), program(*new))


def test_sentences_have_the_step_first_then_what_changed(changed: ProgramComparison) -> None:
    first, *others = sentences(changed)
    assert first.startswith("One step takes 10.0 ms in BASE and 8.30 ms in NEW, -17.0 % (-17.")
    assert first.endswith("): FAST.")
    assert others == [
        "Kernels take 9.70 ms in BASE and 8.00 ms in NEW; the GPU idles 300 µs and 300 µs.",
        "Faster: FusedAdam by 1.50 ms (15 % of the step).",
        "Slower: CatArrayBatchedCopy by 300 µs (3.0 % of the step).",
        "New: new 200 µs (2.0 % of the step).",
        "Gone: old 700 µs (7.0 % of the step).",
        "5 groups in both: 1 SLOW, 2 FAST, 2 SAME; 1 only in BASE, 1 only in NEW.",
    ]


def test_the_table_has_the_largest_changes_first(changed: ProgramComparison) -> None:
    text = report.comparison_text(changed)
    lines = [line.split() for line in text.splitlines()]
    cells = [line for line in lines if line and line[-1] in ("FAST", "SLOW", "new", "gone")]
    assert [line[-1] for line in cells] == ["FAST", "gone", "FAST", "SLOW", "new"]
    assert cells[0][-5:] == ["2000", "1000", "-50.0", "-10.0", "FAST"]
    assert cells[1][-4:] == ["700.0", "–", "-7.00", "gone"]
    assert "2 others" in text
    assert max(map(len, text.splitlines()[4:])) <= 100


def test_nothing_changed() -> None:
    run = program(group("a", 1000.0, 10))
    text = report.comparison_text(compared(run, run))
    assert "+0.00 % (-0" in text
    assert "\n 1 group  " in text
    assert "1 group in both: 1 SAME." in text


def test_every_format_has_the_verdict_on_the_step(changed: ProgramComparison) -> None:
    made = {name: exporter(changed) for name, exporter in report.COMPARISON_EXPORTERS.items()}
    for name in ("markdown", "github"):
        assert made[name].startswith("### One step takes 10.0 ms in BASE"), name
        assert "| verdict |" in made[name]
    assert "<summary>Commands</summary>" in made["github"]
    content = json.loads(made["json"])
    assert [point["verdict"] for point in content["points"]] == ["FAST"]
    assert content["counts"]["FAST"] == 1
    assert content["groups"][1]["change_us"] == -1000.0
    assert content["groups"][1]["base"]["total_us"] == 2000.0
    assert content["only_new"][0]["kernel"] == "new"


def test_junit_fails_for_the_step_alone(changed: ProgramComparison) -> None:
    suite = ElementTree.fromstring(report.COMPARISON_EXPORTERS["junit"](changed))[0]
    assert suite.attrib["failures"] == "0"
    assert suite.attrib["tests"] == "8"  # the step, five groups, two of one run
    back = compared(changed.new, changed.base)
    suite = ElementTree.fromstring(report.COMPARISON_EXPORTERS["junit"](back))[0]
    (failed,) = [case for case in suite.iter("testcase") if case.find("failure") is not None]
    assert failed.attrib["name"] == "(step) -"
    assert "One step takes" in (suite.findtext("system-out") or "")


@pytest.mark.parametrize("text", ["[bold]x[/]", "| a | b |", "<script>x</script>", "x\u202e\x1b"])
def test_hostile_names_are_survived(text: str) -> None:
    found = compared(program(group(text, 1000.0, 10)), program(group(text, 500.0, 10)))
    for exporter in (*report.COMPARISON_EXPORTERS.values(), report.comparison_text):
        assert exporter(found)
    assert "<script>" not in report.COMPARISON_EXPORTERS["markdown"](found)
    assert repr(found) == "<rooflab.ProgramComparison of not-saved and not-saved: step FAST>"


def test_other_runs_are_compared_as_before() -> None:
    base, new = program(group("a", 1000.0)), program(group("a", 1000.0))
    with pytest.raises(UsageError, match="BASE has no rows"):
        compare_any(replace(base, measurements=[]), new)
    assert issubclass(ProgramComparison, Comparison)
