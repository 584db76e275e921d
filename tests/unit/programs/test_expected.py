"""DRAM bytes that are to be expected of launches."""

from __future__ import annotations

from dataclasses import replace

import pytest
from launched import launch

from rooflab.devices.records import NOWHERE, Needs
from rooflab.model.traffic import Chip, LongRows, Product, read_again, rows_read_again
from rooflab.programs.expected import blocks_at_once, expected_bytes, mean_expected
from rooflab.programs.labels import with_parts

H200 = Chip(132, 62_914_560)
LARGE = Product(8192, 8192, 8192)
WORK = Needs(2 * 8192**3, 6 * 8192**2, "bf16", "gemm", once=False, again=LARGE)
ONCE = Needs(100, 600, "bf16")


def test_a_product_reads_panels_again() -> None:
    expected = 6 * 8192**2 + read_again(LARGE, H200)
    assert expected_bytes(WORK, H200) == expected > 3 * 6 * 8192**2


def test_all_else_has_its_compulsory_bytes_on_any_chip() -> None:
    assert expected_bytes(ONCE, H200) == expected_bytes(ONCE, None) == 600


@pytest.mark.parametrize(
    ("work", "chip"),
    [
        (None, H200),
        (replace(ONCE, bytes=None), H200),
        (replace(WORK, again=None), H200),
        (WORK, None),
    ],
)
def test_what_is_not_known_is_not_guessed(work: Needs | None, chip: Chip | None) -> None:
    assert expected_bytes(work, chip) is None


def test_launches_have_their_mean() -> None:
    one, other = (replace(launch("k", 10), work=replace(ONCE, bytes=n)) for n in (600, 900))
    assert mean_expected([one, one, other], H200) == 700
    assert mean_expected([one, launch("k", 10)], H200) is None
    assert mean_expected([], H200) is None


def test_one_of_several_launches_of_a_product_is_another_product() -> None:
    call = [replace(launch("mm", 10, i), call=1, work=WORK) for i in (0, 20)]
    assert mean_expected(with_parts(call), H200) is None
    assert mean_expected(with_parts(call[:1]), H200) == expected_bytes(WORK, H200)


ROWS = LongRows(8192, 256_000, 256_000)
LONG = Needs(100, 8192 * 256_000, "fp32", once=False, again=ROWS)


def test_long_rows_are_read_again_by_blocks_that_run_at_once() -> None:
    kernel = replace(launch("k", 10, block=(1024, 1, 1)), registers=32, work=LONG)
    assert blocks_at_once(kernel) == 2
    assert blocks_at_once(replace(kernel, registers=40)) == 1
    expected = 8192 * 256_000 + rows_read_again(ROWS, H200, 2)
    assert mean_expected([kernel], H200) == expected > 1.4 * 8192 * 256_000
    assert mean_expected([replace(kernel, registers=0)], H200) is None
    assert blocks_at_once(launch("k", 10, block=NOWHERE)) == 0
