"""What every workload shares: parameters, operands and their traffic, names of sizes, records.

GEMM serves as the example; the workloads themselves are in ``test_workloads``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from math import prod, sqrt
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab import workloads
from rooflab.errors import UsageError
from rooflab.model.precision import FP32, FP64, PRECISIONS, Precision
from rooflab.model.problem import (
    MAX_EXTENT,
    Inputs,
    Operand,
    Problem,
    boxes,
    describe,
    extent,
    parts,
    setting,
)
from rooflab.options import parse_shape
from rooflab.workloads import build, catalogue, find, rebuild
from rooflab.workloads.gemm import LAYOUTS, Gemm

extents = st.integers(1, 10_000)
problems = st.builds(
    Gemm,
    m=extents,
    n=extents,
    k=extents,
    precision=st.sampled_from(list(PRECISIONS.values())),
    layout=st.sampled_from(LAYOUTS),
    batch=st.integers(1, 8),
    beta=st.sampled_from([0.0, 1.0, -0.5]),
)


# GEMM's model ------------------------------------------------------------------------------------


@given(problems)
def test_model_by_hand(p: Gemm) -> None:
    read = (p.m * p.k + p.k * p.n) * p.precision.input.bytes
    c = p.m * p.n * p.precision.output.bytes
    assert p.flops == 2 * p.m * p.n * p.k * p.batch
    assert p.bytes == p.batch * (read + c * (2 if p.beta else 1))
    assert p.traffic == {"dram": p.bytes}
    assert p.operand_bytes == p.batch * (read + c)
    assert p.intensity == p.flops / p.bytes


@given(problems)
def test_stored_shapes_hold_the_operands(p: Gemm) -> None:
    a, b, c = p.operands
    assert [operand.name for operand in (a, b, c)] == ["a", "b", "c"]
    assert a.elements == p.batch * p.m * p.k
    assert b.elements == p.batch * p.k * p.n
    assert a.shape[1:] == ((p.m, p.k) if p.layout[0] == "n" else (p.k, p.m))
    assert b.shape[1:] == ((p.k, p.n) if p.layout[1] == "n" else (p.n, p.k))
    assert c.shape == (p.batch, p.m, p.n)
    assert (a.role, b.role, c.role) == ("in", "in", "inout" if p.beta else "out")


@given(st.integers(1, MAX_EXTENT))
def test_square_fp32_intensity_is_s_over_6_or_8(size: int) -> None:
    assert Gemm(m=size, n=size, k=size).intensity == pytest.approx(size / 6)
    assert Gemm(m=size, n=size, k=size, beta=1.0).intensity == pytest.approx(size / 8)


def test_mixed_precision_counts_each_operand_at_its_own_size() -> None:
    mixed = Gemm(m=64, n=32, k=16, precision=PRECISIONS["fp16_fp32"])
    assert mixed.bytes == 2 * (64 * 16 + 16 * 32) + 4 * 64 * 32


def test_fp8_is_a_byte_in_and_bf16_out() -> None:
    problem = Gemm(m=64, n=32, k=16, precision=PRECISIONS["fp8"], beta=1.0)
    assert problem.bytes == (64 * 16 + 16 * 32) + 2 * 2 * 64 * 32


@pytest.mark.parametrize("precision", PRECISIONS.values(), ids=lambda p: p.name)
@pytest.mark.parametrize("k", [1, 256, 8192, 16384])
def test_tolerance_catches_a_lost_product(precision: Precision, k: int) -> None:
    if precision.name == "fp8":
        k = min(k, 11_700)  # beyond, narrow sums wander as far
    assert precision.dot_product(k) < 1 / sqrt(k)
    assert Gemm(m=1, n=1, k=k, precision=precision).tolerance == precision.dot_product(k)


@pytest.mark.parametrize("name", ["int32", "int64"])
def test_integers_are_exact(name: str) -> None:
    assert PRECISIONS[name].integer
    assert PRECISIONS[name].rounding(100) == PRECISIONS[name].dot_product(100) == 0


# Operands ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "place", "traffic"),
    [
        ("in", "device", {"dram": 240}),
        ("out", "device", {"dram": 240}),
        ("inout", "device", {"dram": 480}),
        ("in", "pinned", {"dram": 480, "h2d": 240}),
        ("out", "pinned", {"dram": 480, "d2h": 240}),
        ("inout", "pinned", {"dram": 960, "h2d": 240, "d2h": 240}),
        ("in", "pageable", {"dram": 480, "h2d_pageable": 240}),
    ],
)
def test_traffic_of_an_operand(role: Any, place: Any, traffic: dict[str, int]) -> None:
    """Memory of the host crosses a link, and the device's memory once more for the copy."""
    operand = Operand("x", (3, 10), FP64, role, place)
    assert (operand.elements, operand.bytes) == (30, 240)
    assert operand.traffic == traffic


@dataclass(frozen=True, kw_only=True)
class Upload(Problem):
    """A workload whose input comes from the host; not registered."""

    workload: ClassVar = "upload"
    title: ClassVar = ""
    formula: ClassVar = ""
    work: ClassVar = ""
    sizes: ClassVar = ("rows", "columns")

    rows: int = extent("rows", 4)
    columns: int = extent("columns", 8)
    mode: str = setting("fast", "how", ("fast", "safe"))
    factor: float = setting(2.0, "factor")

    @property
    def operands(self) -> tuple[Operand, ...]:
        shape = (self.rows, self.columns)
        return (Operand("x", shape, FP32, "in", "pinned"), Operand("y", shape, FP32, "out"))

    @property
    def flops(self) -> int:
        return self.rows * self.columns

    @property
    def tolerance(self) -> float:
        return 0.0

    def reference(self, arrays: Any, inputs: Inputs) -> Mapping[str, Any]:
        return {"y": inputs["x"]}


def test_the_traffic_of_a_problem_adds_up_by_link() -> None:
    problem = Upload(rows=10, columns=10)
    assert problem.traffic == {"dram": 2 * 400 + 400, "h2d": 400}
    assert problem.bytes == 1200
    assert problem.intensity == 100 / 1200


# Parameters --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["m", "n", "k", "batch"])
@pytest.mark.parametrize("value", [0, -3, MAX_EXTENT + 1, 1.5, "8", None])
def test_extents_out_of_range_are_refused(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"(?i)^{name} = {value} is out of range: give a whole"):
        Gemm(**{"m": 8, "n": 8, "k": 8, name: value})


def test_the_largest_extent_is_allowed() -> None:
    assert Gemm(m=MAX_EXTENT, n=1, k=1).flops == 2 * MAX_EXTENT


@pytest.mark.parametrize(("total", "count"), [(7, 3), (6, 3), (1, 1), (3, 5), (100, 7)])
def test_parts_differ_by_one_at_most_and_leave_nothing_out(total: int, count: int) -> None:
    found = parts(total, count)
    assert len(found) == count
    assert (found[0][0], found[-1][1]) == (0, total)
    assert all(end == start for (_, end), (start, _) in pairwise(found))
    sizes = {end - start for start, end in found}
    assert max(sizes) - min(sizes) <= 1


def test_an_operand_with_a_place_or_a_role_that_does_not_exist_is_refused() -> None:
    roles = "'both' is not one of in, out, inout"
    places = "'disk' is not one of device, pinned, pageable"
    for role, place, told in (("both", "device", roles), ("in", "disk", places)):
        with pytest.raises(UsageError, match=f"operand 'x': {told}"):
            Operand("x", (1,), FP32, role, place)  # type: ignore[arg-type]


def test_a_workload_without_any_traffic_has_no_intensity() -> None:
    assert replace(Upload(), rows=1).intensity > 0
    silent = type("Silent", (Upload,), {"traffic": {}, "__annotations__": {}})
    assert silent().intensity == silent().bytes == 0


def test_the_smallest_problem_has_the_defaults() -> None:
    assert Upload.smallest(PRECISIONS["fp32"]).size == "4x8"
    smallest = Gemm.smallest(PRECISIONS["bf16"], layout="nt")
    assert smallest == Gemm(m=1, n=1, k=1, layout="nt", precision=PRECISIONS["bf16"])


def test_macros_and_grid_follow_from_settings_and_outputs() -> None:
    problem = Upload(mode="safe")
    assert problem.macros == {"ROOFLAB_MODE_SAFE": 1}
    assert problem.grid_extents == (4, 8)
    assert problem.magnitude({}) == 0
    assert problem.result_bytes == problem.bus_bytes == 0
    assert problem.placement.link_bytes == 2 * 128 + 128
    assert (problem.gpus, problem.collective) == (1, False)


def test_unknown_layout_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown layout 'xy': choose from nn, nt, tn, tt"):
        Gemm(m=8, n=8, k=8, layout="xy")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_settings_are_finite(value: float) -> None:
    with pytest.raises(UsageError, match=r"alpha = .* is not a finite number"):
        Gemm(m=8, n=8, k=8, alpha=value)


def test_parameters_are_extents_then_settings() -> None:
    parameters = Gemm.parameters()
    assert list(parameters) == ["m", "n", "k", "batch", "layout", "alpha", "beta"]
    assert {p.kind for p in list(parameters.values())[:4]} == {"extent"}
    assert (parameters["m"].default, parameters["batch"].default) == (None, 1)
    assert parameters["layout"].choices == LAYOUTS
    assert (parameters["m"].title, parameters["batch"].title) == ("M", "batch")


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("m", "8", 8),
        ("m", " 8 ", 8),
        ("m", 8, 8),
        ("alpha", "-1.5e-3", -1.5e-3),
        ("alpha", 2, 2.0),
        ("layout", "tn", "tn"),
    ],
)
def test_values_are_read_as_users_write_them(name: str, text: Any, value: object) -> None:
    found = Gemm.parameters()[name].parse(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("m", "eight", "m = 'eight' is not a whole number"),
        ("m", "8.5", "m = '8.5' is not a whole number"),
        ("m", "", "m = '' is not a whole number"),
        ("m", "0", "M = 0 is out of range"),
        ("m", "9" * 5000, "M = 9+ is out of range"),
        ("alpha", "much", "alpha = 'much' is not a number"),
        ("alpha", "nan", "alpha = nan is not a finite number"),
        ("alpha", "1e999", "alpha = inf is not a finite number"),
        ("layout", "tm", "unknown layout 'tm': choose from nn, nt, tn, tt"),
        ("layout", "x" * 5000, "unknown layout 'x{40}'"),
    ],
)
def test_what_is_no_value_is_named(name: str, text: str, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        Gemm.parameters()[name].parse(text)
    assert len(str(caught.value)) < 200


# Building ----------------------------------------------------------------------------------------

EIGHT = {"m": 8, "n": 8, "k": 8}


def test_build_takes_texts_and_numbers() -> None:
    made = build("gemm", "bf16", {**EIGHT, "k": "16", "layout": "nt", "alpha": "0.5"})
    assert made == Gemm(m=8, n=8, k=16, layout="nt", alpha=0.5, precision=PRECISIONS["bf16"])


@pytest.mark.parametrize(
    ("workload", "parameters", "told"),
    [
        ("gemm", {**EIGHT, "layuot": "nt"}, "gemm has no parameter 'layuot': did you mean layout?"),
        ("gemm", {**EIGHT, "grade": 1}, "gemm has no parameter 'grade': there are m, n, k, batch"),
        ("gemm", {**EIGHT, "zzz": 1}, "gemm has no parameter 'zzz': there are m, n, k, batch"),
        ("gemm", {"m": 8, "n": 8}, "gemm needs K, the length of the sums"),
        ("softmax", {"rows": 8}, "softmax needs columns, the elements of a row"),
        (
            *("attention", {"queries": 8, "keys": 8, "heads": 12}),
            "heads = 12 is not a multiple of kv_heads = 8: kv_heads can be 1, 2, 3, 4, 6, 12",
        ),
        (
            *("attention", {"queries": 9, "keys": 8, "causal": "on"}),
            "causal queries are among the keys: queries = 9 are more than keys = 8",
        ),
        ("gemm", {**EIGHT, "m": 0}, "M = 0 is out of range"),
        ("gemm", {**EIGHT, "batch": 2**40}, "batch = 1099511627776 is out of range"),
        ("gem", EIGHT, r"no workload 'gem': did you mean gem. or gem.\?"),
        ("zzz", {}, "no workload 'zzz': there are gemm, gemv"),
        ("z" * 5000, {}, "no workload 'z{40}'"),
    ],
)
def test_a_problem_that_cannot_be_built_says_why(
    workload: str, parameters: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        build(workload, "fp32", parameters)


@given(problems)
def test_a_problem_comes_back_from_its_record(problem: Gemm) -> None:
    assert rebuild(problem.record) == problem
    assert rebuild(problem.record).key == problem.key == problem.record.key


def test_the_key_tells_every_parameter_apart() -> None:
    base = {**EIGHT, "layout": "nn", "alpha": 1.0}
    others: list[dict[str, Any]] = [
        base,
        {**base, "m": 9},
        {**base, "batch": 2},
        {**base, "layout": "tn"},
        {**base, "alpha": 0.5},
        {**base, "beta": 0.5},
    ]
    keys = {build("gemm", "fp32", parameters).key for parameters in others}
    keys.add(build("gemm", "fp64", base).key)
    assert len(keys) == len(others) + 1


# Names of sizes and settings ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "parameters", "size"),
    [
        ("gemm", {"m": 64, "n": 64, "k": 64}, "64"),
        ("gemm", {"m": 64, "n": 64, "k": 32}, "64x64x32"),
        ("gemm", {"m": 64, "n": 64, "k": 64, "batch": 2}, "64x64x64x2"),
        ("gemv", {"m": 8, "n": 8}, "8"),
        ("gemv", {"m": 8, "n": 9}, "8x9"),
        ("add", {"columns": 100}, "100"),
        ("add", {"rows": 2, "columns": 100}, "2x100"),
        ("add", {"columns": 100, "batch": 3}, "1x100x3"),
        ("sum", {"elements": 5}, "5"),
        ("softmax", {"rows": 4, "columns": 4}, "4"),
        ("softmax", {"rows": 4, "columns": 1024}, "4x1024"),
        ("attention", {"queries": 64, "keys": 64}, "64"),
        ("attention", {"queries": 1, "keys": 64}, "1x64"),
        ("attention", {"queries": 1, "keys": 64, "heads": 8, "batch": 2}, "1x64x8x8x128x2"),
    ],
)
def test_a_size_is_named_as_it_is_given(
    workload: str, parameters: dict[str, int], size: str
) -> None:
    problem = build(workload, "fp32", parameters)
    assert problem.size == problem.record.size == size
    if "x" in size:
        assert build(workload, "fp32", parse_shape(size, workload)) == problem
    else:
        sizes = dict.fromkeys(find(workload).sizes, int(size))
        assert build(workload, "fp32", sizes) == problem


@pytest.mark.parametrize(
    ("values", "size"),
    [({}, "4x8"), ({"rows": 5}, "5x8"), ({"columns": 4}, "4"), ({"rows": 7, "columns": 9}, "7x9")],
)
def test_a_single_number_is_a_size_alone(values: dict[str, Any], size: str) -> None:
    """Also where every extent has a default, so that a shape could be cut down to one number."""
    assert Upload(**values).size == size


@pytest.mark.parametrize(
    ("settings", "about"),
    [
        ({}, "layout nn"),
        ({"layout": "nt"}, "layout nt"),
        ({"alpha": 1.0, "beta": 0.0}, "layout nn"),
        ({"alpha": 0.25, "beta": -2.0}, "layout nn, alpha 0.25, beta -2"),
    ],
)
def test_about_names_words_and_what_is_not_the_default(
    settings: dict[str, Any], about: str
) -> None:
    assert Gemm(m=8, n=8, k=8, **settings).record.about == about


def test_about_is_empty_where_there_is_nothing_to_say() -> None:
    assert build("add", "fp32", {"columns": 8}).record.about == ""
    assert build("triad", "fp32", {"columns": 8}).record.about == ""
    assert build("triad", "fp32", {"columns": 8, "alpha": 0.5}).record.about == "alpha 0.5"
    assert describe({}, {}) == ""


# Boxes -------------------------------------------------------------------------------------------

shapes = st.lists(st.integers(1, 7), min_size=0, max_size=4)


@given(shapes, st.integers(1, 60))
def test_boxes_cover_every_element_once_and_in_order(shape: list[int], most: int) -> None:
    numbers = np.arange(prod(shape)).reshape(shape)
    parts = [numbers[box] for box in boxes(shape, most)]
    assert all(part.size <= most for part in parts)
    firsts = [int(part.min()) for part in parts]
    assert all(before < after for before, after in pairwise(firsts))
    assert sorted(int(one) for part in parts for one in part.reshape(-1)) == list(
        range(prod(shape))
    )


def test_boxes_are_as_large_as_they_may_be() -> None:
    everything = slice(None)
    assert list(boxes((4, 5), 20)) == [(slice(0, 4), everything)]
    assert list(boxes((4, 5), 10)) == [(slice(0, 2), everything), (slice(2, 4), everything)]
    assert list(boxes((2, 5), 3)) == [
        (slice(row, row + 1), columns) for row in range(2) for columns in (slice(0, 3), slice(3, 5))
    ]


# Workloads of users ------------------------------------------------------------------------------


def subclass(name: str, **members: Any) -> type[Problem]:
    """A workload like ``Upload``."""
    values = {"workload": name, "__annotations__": {"workload": ClassVar}, **members}
    return type("Mine", (Upload,), values)


def test_a_workload_is_registered_by_its_name() -> None:
    kind = workloads.workload(subclass("mine"))
    assert find("mine") is kind
    assert catalogue()["mine"] is kind
    assert build("mine", "fp32", {"rows": "3"}).size == "3x8"
    # A file that is loaded again defines it again.
    assert workloads.workload(subclass("mine")) is find("mine")


def test_a_workload_cannot_take_anothers_name() -> None:
    with pytest.raises(UsageError, match="two workloads are called 'gemm': rename one"):
        workloads.workload(subclass("gemm"))
    with pytest.raises(UsageError, match="sizes names 'length', not a parameter"):
        workloads.workload(subclass("mine", sizes=("length",)))
    assert "mine" not in catalogue()


def test_an_unfinished_workload_says_what_it_lacks() -> None:
    members = {"workload": "mine", "__annotations__": {"workload": ClassVar}}
    with pytest.raises(UsageError, match="workload 'mine': define flops, operands, reference"):
        workloads.workload(type("Mine", (Problem,), members))
