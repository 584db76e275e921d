"""Which groups of two runs of a program belong together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import program_runs
import pytest
from profiled import group, other

from rooflab.figures import programs
from rooflab.figures.kinds import changes
from rooflab.model.measurement import Measurement
from rooflab.runs.compare_programs import compare_programs
from rooflab.runs.matching import matched, together
from rooflab.runs.program import IDLE


def sizes(base: list[Measurement], new: list[Measurement]) -> list[tuple[str, str]]:
    return [(one.base.problem.size, one.new.problem.size) for one in matched(base, new).pairs]


def kernels(base: list[Measurement], new: list[Measurement]) -> dict[str, str]:
    return {one.base.kernel: one.new.kernel for one in matched(base, new).pairs}


def of(kernel: str, flops: float | None = None, operation: str = "aten::mm", **more: Any) -> Any:
    """A group that an operation launched, with this work."""
    made = group(kernel, 10.0, backend=operation, percent=None, **more)
    return replace(made, flops=None if flops is None else int(flops))


def same_as(row: Measurement, text: str) -> Measurement:
    settings = {**row.problem.settings, "same_as": text}
    return replace(row, problem=replace(row.problem, settings=settings))


def test_groups_are_matched_by_kernel_grid_and_part() -> None:
    base = [group("a", 9.0, part=1), group("a", 5.0, part=2), group("b", 3.0)]
    found = matched(base, base[::-1])
    assert [(one.base, one.new) for one in found.pairs] == [(row, row) for row in base]
    assert (found.gone, found.come) == ([], [])


def test_the_precision_is_no_part_of_a_group() -> None:
    """Without counters it is another."""
    assert sizes([group("a", 9.0)], [group("a", 9.0, precision="bf16")])


def test_other_parts_of_a_grid_are_compared_together() -> None:
    base = [group("a", 12.0, 3)]
    new = [group("a", 8.0, 2, part=1), group("a", 1.0, 1, part=2)]
    found = matched(base, new)
    (pair,) = found.pairs
    assert pair.base is base[0] and pair.new_rows == tuple(new)
    assert (pair.new.launches, pair.new.total_us, pair.new.time_us) == (3, 9.0, 3.0)
    assert pair.new.problem.size == pair.base.problem.size == "132x1x1 128"
    assert pair.new.key == pair.base.key
    assert (found.gone, found.come) == ([], [])


def test_a_kernel_with_a_new_grid_is_the_same_kernel() -> None:
    base = [group("a", 9.0, grid="8x1x1"), group("a", 5.0, grid="4x1x1"), group("b", 1.0)]
    new = [group("a", 8.0, grid="9x1x1"), group("a", 5.0, grid="5x1x1"), group("b", 1.0)]
    assert sizes(base, new) == [
        ("132x1x1 128", "132x1x1 128"),
        ("8x1x1 128", "9x1x1 128"),
        ("4x1x1 128", "5x1x1 128"),
    ]


def test_what_could_be_either_is_not_matched() -> None:
    base = [group("a", 9.0, grid="8x1x1")]
    new = [group("a", 8.0, grid="9x1x1"), group("a", 5.0, grid="5x1x1")]
    found = matched(base, new)
    assert (found.pairs, found.gone, found.come) == ([], base, new)


def test_two_kernels_of_one_short_name_are_matched_in_order() -> None:
    base = [group("a", 9.0), group("a", 5.0)]
    pairs = matched(base, base).pairs
    assert [(one.base, one.new) for one in pairs] == [(row, row) for row in base]


# Operations --------------------------------------------------------------------------------------


def test_another_kernel_for_the_same_work_of_an_operation() -> None:
    base, new = [of("a", 1e9), of("b", 1e6)], [of("c", 1.05e6), of("d", 1.02e9)]
    assert kernels(base, new) == {"a": "d", "b": "c"}


@pytest.mark.parametrize("flops", [1.2e9, 0.8e9])
def test_other_work_is_another_group(flops: float) -> None:
    found = matched([of("a", 1e9)], [of("b", flops)])
    assert not found.pairs and len(found.gone) == len(found.come) == 1


def test_the_most_similar_work_comes_first() -> None:
    assert kernels([of("a", 1e9)], [of("b", 1.05e9), of("c", 1.01e9)]) == {"a": "c"}


def test_another_operation_does_other_work() -> None:
    assert not kernels([of("a", 1e9)], [of("b", 1e9, "aten::add")])
    assert not kernels([of("a", 1e9, "")], [of("b", 1e9, "")])


def test_without_known_work_only_what_is_alone() -> None:
    assert kernels([of("a")], [of("b")]) == {"a": "b"}
    assert not kernels([of("a"), of("b")], [of("c"), of("d")])


def test_the_same_problem_is_the_same_group_in_another_precision_too() -> None:
    nt, nn = "m=8 n=8 k=8 layout=nt", "m=8 n=8 k=8"
    base = [same_as(of("a", 1e9), f"gemm fp32 {nt}"), same_as(of("b", 1e9), f"gemm fp32 {nn}")]
    new = [same_as(of("c", 1e9), f"gemm bf16 {nn}"), same_as(of("d", 1e9), f"gemm bf16 {nt}")]
    assert kernels(base, new) == {"a": "d", "b": "c"}
    assert not kernels(base[:1], new[:1])


# Several as one ----------------------------------------------------------------------------------


def test_parts_together_have_the_mean_of_their_launches() -> None:
    parts = [
        group("a", 30.0, 3, part=1, percent=60.0, flops=300, bytes=30, tflops=3.0, gbps=30.0),
        group("a", 10.0, 2, part=2, percent=20.0, flops=100, bytes=10, tflops=2.0, gbps=20.0),
    ]
    row = together(parts)
    assert (row.flops, row.bytes) == (220, 22)  # (3 · 300 + 2 · 100) / 5
    again = [replace(one, expected_dram_bytes=2.0 * (one.bytes or 0)) for one in parts]
    assert together(again).expected_dram_bytes == 44 and row.expected_dram_bytes is None
    assert row.tflops == pytest.approx((3.0 * 30 + 2.0 * 10) / 40)
    assert row.intensity == pytest.approx(1e3 * (row.tflops or 0) / (row.gbps or 1))
    assert row.roof_percent == pytest.approx(100 * (row.roof_us or 0) / (row.time_us or 1))
    assert row.roof_percent == pytest.approx((60 * 30 + 20 * 10) / 40)
    assert row.bound == "dram"


def test_what_one_part_lacks_the_whole_lacks() -> None:
    row = together([group("a", 30.0, part=1), group("a", 10.0, part=2, percent=None)])
    assert row.roof_percent is None and row.dram_bytes is None and row.total_us == 40.0


# One rule ----------------------------------------------------------------------------------------


def test_words_and_pictures_have_the_same_pairs() -> None:
    base = [of("a", 1e9), group("b", 9.0, grid="8x1x1"), group("c", 6.0), other(IDLE, 4.0)]
    new = [of("x", 1e9), group("b", 8.0, grid="9x1x1"), group("c", 3.0, part=1)]
    new += [group("c", 2.0, part=2), group("d", 1.0), other(IDLE, 5.0)]
    runs = program_runs.run(base), program_runs.run(new)
    compared = compare_programs(*runs, 2.0)
    words = {(point.base.kernel, point.new.kernel) for point in compared.groups}
    drawn = changes.paired(programs.groups(runs[0]), programs.groups(runs[1]))
    pictures = {
        (one.before.row.kernel, one.after.row.kernel) for one in drawn if one.before and one.after
    }
    assert words - {(IDLE, IDLE)} == pictures == {("a", "x"), ("b", "b"), ("c", "c")}
    assert [row.kernel for row in compared.only_new] == ["d"]
    assert [one.after.row.kernel for one in drawn if one.after and not one.before] == ["d"]


def test_another_kernel_is_named_with_the_one_before() -> None:
    from rooflab.report.comparison import comparison_text
    from rooflab.report.program_comparison import lines_of

    base = [group("aa", 900.0, backend="aten::mm"), group("c", 500.0)]
    new = [group("bb", 500.0, backend="aten::mm"), group("c", 500.0)]
    compared = compare_programs(program_runs.run(base), program_runs.run(new), 2.0)
    assert lines_of(compared)[0][0] == "aa → bb"
    text = comparison_text(compared)
    assert "Faster: aa → bb by 400 µs" in text
    assert "bb *" in text and "* Another kernel in BASE." in text
