"""Operands of all buffer copies: apart from each other, guarded, the same in all of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import fake
import numpy as np
import pytest
from synthetic import gemm

from rooflab.kernels.base import Operands
from rooflab.measure.buffers import (
    ALIGNMENT,
    LEAST_GUARD,
    MAX_COPIES,
    MOST_GUARD,
    Rotation,
    Strip,
    guard_bytes,
    rotate,
)
from rooflab.model.encoding import count_nan, decode
from rooflab.model.precision import BF16, FP8_E4M3, FP16, FP32, FP64, INT32, INT64, DataType
from rooflab.model.problem import Operand, Role
from rooflab.workloads import build

DEVICE = fake.FakeDevice()
TYPES = (FP64, FP32, FP16, BF16, FP8_E4M3, INT32, INT64)


@contextmanager
def overwritten(array: Any, offset: int) -> Iterator[None]:
    """The byte so far from the array's first one has another value, as a stray pointer writes."""
    byte = ctypes.c_ubyte.from_address(array.ctypes.data + offset)
    before = byte.value
    byte.value = before ^ 0x41
    yield
    byte.value = before


# Numbers within limits ---------------------------------------------------------------------------


@pytest.mark.parametrize("fill", ["uniform", "normal", "ints", "zeros"])
@pytest.mark.parametrize(("kind", "within"), [(INT32, (0, 6)), (INT64, (-2, 2)), (BF16, (0, 2))])
def test_operands_with_limits_hold_numbers_within_them(
    fill: str, kind: DataType, within: tuple[float, float]
) -> None:
    operand = Operand("targets", (3000,), kind, within=within)
    strip = Strip(DEVICE, operand, 2)
    strip.differ(DEVICE, 5, fill)
    found = decode(np, strip.rows, kind)
    assert found.min() == pytest.approx(within[0], abs=0.01)
    assert found.max() == (within[0] if fill == "zeros" else pytest.approx(within[1], abs=0.01))
    if kind.integer and fill != "zeros":
        assert len(set(found.reshape(-1).tolist())) == within[1] - within[0] + 1


@pytest.mark.parametrize("fill", ["uniform", "normal", "ints", "zeros"])
@pytest.mark.parametrize("kind", [INT64, FP32, BF16])
def test_numbers_of_a_row_differ_where_an_operand_has_a_step(fill: str, kind: DataType) -> None:
    operand = Operand("ids", (40, 3), kind, within=(-2, 2), step=1.0)
    strip = Strip(DEVICE, operand, 1)
    strip.differ(DEVICE, 5, fill)
    rows = decode(np, strip.rows, kind).reshape(operand.shape)
    assert set(rows.reshape(-1).tolist()) == {-2, -1, 0, 1, 2}
    assert all(len(set(row)) == 3 for row in rows.tolist())
    assert len(set(map(tuple, rows.tolist()))) > 10


def test_targets_are_columns_of_their_rows() -> None:
    rotation = rotate(
        DEVICE, build("cross_entropy", "bf16", {"rows": 999, "columns": 7}), 1, cold=True
    )
    first, second = rotation.copies[:2]
    assert set(first.targets.tolist()) == set(range(7))
    assert (first.targets == second.targets).all()


def test_constant_operands_depend_neither_on_the_seed_nor_on_the_fill() -> None:
    problem = build("w4a16", "bf16", {"m": 3, "n": 40, "k": 300})
    rotation = rotate(DEVICE, problem, 1, cold=True)
    first, second = rotation.copies[:2]
    before = {name: first[name].copy() for name in ("x", "w", "scales")}
    assert len(set(first.w.reshape(-1).tolist())) > 250
    assert (first.w == second.w).all()
    for other in (rotation.filled(DEVICE, "zeros"), rotate(DEVICE, problem, 2, cold=True)):
        other.differ(DEVICE, 3)
        for one in other.copies:
            assert all((one[name] == before[name]).all() for name in ("w", "scales"))
            assert (one.x != before["x"]).any()


def test_copies_of_a_table_are_as_many_as_its_rows_that_are_read_ask_for() -> None:
    table = build("embedding", "fp32", {"tokens": 30, "words": 10**4, "columns": 100})
    assert 3 * DEVICE.last_level_cache_bytes() < table.operand_bytes
    copies = rotate(DEVICE, table, 1, cold=True).copies
    assert (len(copies) - 1) * table.bytes >= 3 * DEVICE.last_level_cache_bytes()


# Guards ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("elements", [1, 7, 255, 256, 257])
def test_every_byte_around_an_operand_is_guarded(elements: int) -> None:
    operand = Operand("a", (elements,), FP32)
    strip = Strip(DEVICE, operand, 2)
    first, second = strip.copies()
    for offset in range(1, LEAST_GUARD + 1):
        with overwritten(first, -offset):
            assert strip.broken() == "writes before the start of A"
        for copy in (first, second):
            with overwritten(copy, operand.bytes + offset - 1):
                assert strip.broken() == "writes past the end of A"
    # What is before a copy is past the end of another one.
    with overwritten(second, -1):
        assert strip.broken() == "writes past the end of A"
    assert strip.broken() == ""


@pytest.mark.parametrize("data_type", TYPES, ids=lambda one: one.name)
@pytest.mark.parametrize("shape", [(1,), (3, 1, 5), (129, 127), (1, 4099)])
@pytest.mark.parametrize("count", [1, 3])
def test_operands_of_any_size_and_type_are_aligned_and_apart(
    data_type: DataType, shape: tuple[int, ...], count: int
) -> None:
    operand = Operand("x", shape, data_type, "out")
    strip = Strip(DEVICE, operand, count)
    copies = strip.copies()
    assert [copy.shape for copy in copies] == [shape] * count
    addresses = [copy.ctypes.data for copy in copies]
    assert all(address % ALIGNMENT == 0 for address in addresses)
    apart = np.diff(addresses) - operand.bytes
    assert (apart >= guard_bytes(operand)).all()
    for number, copy in enumerate(copies):
        copy[...] = number + 1
    assert strip.broken() == ""  # all of an operand is its own
    assert all((copy == number + 1).all() for number, copy in enumerate(copies))
    edges = (0, 1, ALIGNMENT - 1, guard_bytes(operand) - 1)
    for copy in copies:
        for offset in edges:
            with overwritten(copy, operand.bytes + offset):
                assert strip.broken() == "writes past the end of X"
            with overwritten(copy, -1 - offset):
                assert strip.broken()


@pytest.mark.parametrize("data_type", TYPES, ids=lambda one: one.name)
@pytest.mark.parametrize("role", ["in", "out", "inout"])
def test_what_is_read_outside_is_no_number(data_type: DataType, role: Role) -> None:
    strip = Strip(DEVICE, Operand("a", (5, 3), data_type, role), 2)
    size = np.dtype(data_type.storage).itemsize
    for zone in strip.zones.values():
        content = np.ascontiguousarray(zone).view("uint8").reshape(-1)
        stored = content[: len(content) // size * size].view(data_type.storage)
        assert data_type.integer or count_nan(np, stored, data_type) == stored.size


@pytest.mark.parametrize("data_type", TYPES, ids=lambda one: one.name)
@pytest.mark.parametrize("count", [1, 3])
def test_a_copy_from_around_an_input_to_around_an_output_shows(
    data_type: DataType, count: int
) -> None:
    """A loop to the last element inclusive reads a guard zone and writes one."""
    roles: dict[str, Role] = {"a": "in", "c": "out"}
    source, target = (
        Strip(DEVICE, Operand(name, (5, 3), data_type, role), count) for name, role in roles.items()
    )
    for where, reason in (("past the end of", "past the end"), ("before the start of", "before")):
        target.zones[where][..., :1] = source.zones[where][..., :1]
        assert target.broken().startswith(f"writes {reason}")
        target.arm()


def test_one_zone_may_hold_zeros() -> None:
    strip = Strip(DEVICE, Operand("a", (5,), FP32), 2)
    for only, other in (
        ("past the end of", "before the start of"),
        ("before the start of", "past the end of"),
    ):
        before = strip.zones[other].copy()
        strip.disarm(only)
        assert (strip.zones[only] == 0).all()
        assert (strip.zones[other] == before).all()
        assert strip.broken() == f"writes {only} A"
        strip.arm()
        assert strip.broken() == ""


@pytest.mark.parametrize(
    ("size", "guard"),
    [
        (1, LEAST_GUARD),
        (16 * LEAST_GUARD, LEAST_GUARD),
        (16 * (LEAST_GUARD + ALIGNMENT) - 1, LEAST_GUARD),
        (16 * (LEAST_GUARD + ALIGNMENT), LEAST_GUARD + ALIGNMENT),
        (16 * MOST_GUARD, MOST_GUARD),
        (2**33, MOST_GUARD),
    ],
)
def test_a_guard_is_a_sixteenth_of_an_operand_within_limits(size: int, guard: int) -> None:
    assert guard_bytes(Operand("a", (size,), FP8_E4M3)) == guard


# Rotation ----------------------------------------------------------------------------------------

PROBLEMS = {
    "gemm": gemm(17, 9, 33),
    "gemm, beta": gemm(17, 9, 33, "bf16", beta=0.5),
    "fp8": gemm(17, 9, 33, "fp8"),
    "int32": build("add", "int32", {"columns": 77}),
    "int64": build("sum", "int64", {"elements": 1001}),
    "rmsnorm": build("rmsnorm", "fp16", {"rows": 3, "columns": 50}),
}


@pytest.fixture(params=PROBLEMS)
def rotation(request: pytest.FixtureRequest) -> Rotation:
    return rotate(DEVICE, PROBLEMS[request.param], 3, cold=True)


def read(rotation: Rotation) -> list[str]:
    return [one.name for one in rotation.problem.operands if one.role == "in"]


def test_all_copies_have_the_same_inputs(rotation: Rotation) -> None:
    assert 2 < len(rotation.copies) <= MAX_COPIES
    first, *others = rotation.copies
    for name in read(rotation):
        assert all(copy[name].tobytes() == first[name].tobytes() for copy in others)


def test_a_change_of_any_input_is_noticed_and_undone(rotation: Rotation) -> None:
    before = rotation.inputs()
    bits = {name: rotation.copies[0][name].tobytes() for name in read(rotation)}
    changes: tuple[Callable[[Any], None], ...] = (
        lambda array: array.reshape(-1)[-1:].view("uint8").__ixor__(1),
        lambda array: array.reshape(-1)[:1].view("uint8").__ixor__(0x80),
        lambda array: array.fill(0),
    )
    for place in (0, len(rotation.copies) // 2, -1):
        for name in bits:
            for change in changes:
                change(rotation.copies[place][name])
                assert rotation.inputs() != before
                rotation.refill(DEVICE)
                assert rotation.inputs() == before
                assert rotation.copies[place][name].tobytes() == bits[name]


@pytest.mark.parametrize("precision", ["fp64", "fp32", "bf16", "fp8"])
@pytest.mark.parametrize("step", [1, 2, 4, 8])
def test_a_change_of_signs_is_noticed(precision: str, step: int) -> None:
    """As the complex conjugate of an operand has: as many as there are words in it."""
    rotation = rotate(DEVICE, gemm(100, 100, 100, precision), 0, cold=True)
    before = rotation.inputs()
    stored = rotation.copies[0].a.reshape(-1)[::step]
    stored.view(f"uint{8 * stored.itemsize}")[...] ^= 1 << (8 * stored.itemsize - 1)
    assert rotation.inputs() != before


def test_outputs_are_no_inputs(rotation: Rotation) -> None:
    before = rotation.inputs()
    rotation.poison(0)
    assert rotation.inputs() == before


def test_what_is_read_and_written_begins_alike_in_all_copies() -> None:
    rotation = rotate(DEVICE, PROBLEMS["gemm, beta"], 3, cold=True)
    initial = rotation.copies[0].initial["c"].copy()
    rotation.copies[1].c.fill(0)
    rotation.copies[0].initial["c"].fill(0)
    rotation.refill(DEVICE)
    assert (rotation.copies[0].initial["c"] == initial).all()
    assert all((copy.c == initial).all() for copy in rotation.copies)


def test_other_numbers_are_in_the_same_memory(rotation: Rotation) -> None:
    other = rotation.filled(DEVICE, "ints")
    assert other.fill == "ints"
    for mine, theirs in zip(rotation.copies, other.copies, strict=True):
        assert all(mine[name] is theirs[name] for name in mine)
    before = other.inputs()
    rotation.refill(DEVICE)
    assert other.inputs() != before
    other.refill(DEVICE)
    assert other.inputs() == before


def test_a_kernel_may_do_what_it_likes_to_its_operands_but_for_their_content() -> None:
    rotation = rotate(DEVICE, PROBLEMS["gemm, beta"], 3, cold=True)
    given = rotation.operands()
    assert [one.problem for one in given] == [rotation.problem] * len(rotation.copies)
    for one, copy in zip(given, rotation.copies, strict=True):
        assert all(np.shares_memory(one[name], copy[name]) for name in one)
        one._arrays["a"] = one._arrays["b"]
        assert isinstance(one.initial, dict)
        one.initial.clear()
        one.problem.__dict__["k"] = 1
    assert rotation.problem == PROBLEMS["gemm, beta"]
    assert all(copy.a is not copy.b and "c" in copy.initial for copy in rotation.copies)
    assert all(one.problem.extents["k"] == 33 for one in rotation.operands())


def test_trespass_names_the_operand_and_repairs_its_zones() -> None:
    rotation = rotate(DEVICE, PROBLEMS["gemm"], 3, cold=True)
    assert rotation.trespass() == ""
    byte = ctypes.c_ubyte.from_address(rotation.copies[1].b.ctypes.data + 4 * 33 * 9 + 100)
    before = byte.value
    byte.value = 1
    assert rotation.trespass() == "writes past the end of B"
    assert rotation.trespass() == ""
    assert byte.value == before


# Caches ------------------------------------------------------------------------------------------


class Evicting(fake.FakeDevice):
    """Can drop arrays from its caches."""

    evicts = True

    def __init__(self) -> None:
        super().__init__()
        self.dropped: list[int] = []

    def evictor(self, arrays: Sequence[Any]) -> Callable[[], None]:
        return lambda: self.dropped.extend(id(array) for array in arrays)


def test_operands_that_can_be_evicted_need_one_copy() -> None:
    device = Evicting()
    rotation = rotate(device, PROBLEMS["gemm"], 3, cold=True)
    (copy,) = rotation.copies
    assert rotation.flush is not None
    assert device.dropped == []
    rotation.flush()
    assert device.dropped == [id(array) for array in copy.values()]
    warm = rotate(device, PROBLEMS["gemm"], 3, cold=False)
    assert (len(warm.copies), warm.flush) == (1, None)


def test_copies_that_evict_each_other_are_not_flushed() -> None:
    rotation = rotate(DEVICE, PROBLEMS["gemm"], 3, cold=True)
    size = PROBLEMS["gemm"].operand_bytes
    assert (len(rotation.copies) - 1) * size >= 3 * DEVICE.last_level_cache_bytes()
    assert rotation.flush is None
    device = fake.FakeDevice()
    device.memory = 4 * 3 * size
    few = rotate(device, PROBLEMS["gemm"], 3, cold=True)
    assert len(few.copies) == 3 and few.flush
    assert few.flush is not None
    few.flush()
    assert few.trespass() == ""


def test_a_single_copy_is_a_rotation_too(rotation: Rotation) -> None:
    one = rotate(DEVICE, rotation.problem, 3, cold=False)
    (copy,) = one.copies
    first: Operands = rotation.copies[0]
    assert all(copy[name].tobytes() == first[name].tobytes() for name in read(one))
