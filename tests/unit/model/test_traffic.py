"""What products are expected to read again, and what was counted."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import _traffic
import pytest
from _traffic import counted, score
from hypothesis import given
from hypothesis import strategies as st

from rooflab.model.facts import Fact
from rooflab.model.traffic import FILLED, Chip, LongRows, Product, read_again, rows_read_again

ROOT = Path(__file__).parents[3]
H200 = Chip(132, 62_914_560)
SIZES = st.integers(1, 40_000)


def test_products_of_one_wave_and_of_few_rows_read_once() -> None:
    assert read_again(Product(2048, 2048, 65536), H200) == 0
    assert read_again(Product(1, 10**6, 4096), H200) == 0
    assert read_again(Product(1024, 28672, 4096), H200) > 0
    assert read_again(Product(0, 4096, 4096), H200) == 0


def test_a_panel_is_kept_if_a_wave_fits_in_half_of_l2() -> None:
    """At K = 2048 a wave moves 20 MB, at 4096 34 MB; half of L2 are 31 MB."""
    short, long = (read_again(Product(16384, 16384, k), H200) / k for k in (2048, 4096))
    assert long == pytest.approx(2 * short, rel=0.01)
    small = Chip(H200.multiprocessors, 30_000_000)
    assert read_again(Product(16384, 16384, 2048), small) / 2048 == pytest.approx(long, rel=0.01)


@given(SIZES, SIZES, SIZES)
def test_layouts_do_not_matter_and_batches_add_up(m: int, n: int, k: int) -> None:
    one = read_again(Product(m, n, k), H200)
    assert one >= 0
    assert read_again(Product(n, m, k), H200) == pytest.approx(one, abs=1)
    assert read_again(Product(m, n, k, batch=3), H200) == pytest.approx(3 * one, abs=1)


@given(SIZES, SIZES, SIZES)
def test_less_is_read_again_than_by_tiles_of_128(m: int, n: int, k: int) -> None:
    tiles = 2 * k * (m * -(-n // 128) + n * -(-m // 128))
    assert read_again(Product(m, n, k), H200) <= tiles


def test_a_chip_is_known_by_two_facts() -> None:
    facts = {"sm_count": Fact(132), "l2_cache": Fact(62_914_560)}
    assert Chip.of(facts) == H200
    assert Chip.of({**facts, "l2_cache": Fact(None, reason="no driver")}) is None
    assert Chip.of({"sm_count": Fact(132)}) is None
    assert Chip.of({**facts, "sm_count": Fact("many")}) is None


# What was counted --------------------------------------------------------------------------------


def test_all_counted_products_are_near_the_model() -> None:
    """What the docstring of ``read_again`` and docs/profile.md say."""
    found, model = counted(), partial(_traffic.waves, filled=FILLED)
    assert len(found) == 49
    assert score(model, found).near == score(model, found, step=True).near == pytest.approx(100)
    assert score(_traffic.compulsory, found).near < 5


def test_half_of_the_shapes_are_enough_to_fit_it() -> None:
    halves = _traffic.halves(_traffic.waves, counted(), times=10)
    assert all(one.near >= 99.9 for _, one in halves)
    assert all(abs(share - FILLED) < 0.1 for share, _ in halves)


def test_other_runs_agree() -> None:
    """Counts of cuBLAS with 16-bit types in runs that sweeps made."""
    runs = _traffic.in_runs()
    assert len(runs) == 6
    assert score(partial(_traffic.waves, filled=FILLED), runs).near == pytest.approx(100)


def test_a_step_of_training_agrees() -> None:
    """Counts of kernels in a training step, where caches hold what was before them."""
    rows = _traffic.in_step()
    assert len(rows) == 6
    assert all(abs(expected / moved - 1) < 0.2 for _, expected, moved in rows)


def test_the_page_says_how_good_it_is() -> None:
    text = " ".join((ROOT / "docs" / "profile.md").read_text(encoding="utf-8").split())
    (said,) = re.findall(r"within 20 % of the counted ones for all of (\d+) products", text)
    assert int(said) == len(counted())


ROW = 4 * 32_000


@pytest.mark.parametrize(
    ("rows", "blocks", "counted_bytes"),
    [(LongRows(8192, 2 * ROW, 2 * ROW), 2, 2.931e9), (LongRows(8192, 3 * ROW, ROW), 4, 4.087e9)],
    ids=["log_softmax", "its gradient"],
)
def test_counted_rows_are_near_the_model(rows: LongRows, blocks: int, counted_bytes: float) -> None:
    expected = rows.count * rows.bytes + rows_read_again(rows, H200, blocks)
    assert expected == pytest.approx(counted_bytes, rel=0.11)
    assert rows.count * rows.bytes < 0.8 * counted_bytes


def test_few_or_short_rows_stay_in_l2() -> None:
    assert rows_read_again(LongRows(100, 2 * ROW, ROW), H200, 2) == 0
    assert rows_read_again(LongRows(10**6, 1000, 500), H200, 8) == 0
    assert rows_read_again(LongRows(0, ROW, ROW), H200, 1) == 0
