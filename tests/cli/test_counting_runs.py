"""``sweep --counters`` and ``rooflab counters``."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run

from rooflab.devices.cuda import ncu

SWEEP = ("sweep", "-k", "fast", "-k", "slow", "--sizes", "64,128", "-p", "fp32")
COUNTING = ("--device", "fake:Counting")


def test_rows_have_counters_on_request(rooflab: Rooflab) -> None:
    code, out, _ = rooflab(*SWEEP, "--counters", *COUNTING)
    assert code == 0
    assert "gemm FP32, layout nn: one launch" in out
    for row in only_run().ok:
        assert row.time_us
        assert row.counted_flops == pytest.approx(1e3 * row.time_us, rel=0.01)
        assert row.fp32_flops == row.counted_flops
        assert row.counted_flops and row.dram_bytes == 2 * row.counted_flops
        assert row.tensor_flops == 0


def test_a_run_is_counted_afterwards_and_keeps_its_figures(rooflab: Rooflab) -> None:
    rooflab(*SWEEP, *COUNTING)
    before = only_run()
    assert not any(row.counted_flops for row in before.measurements)
    code, out, err = rooflab("counters", before.path, *COUNTING)
    assert (code, err) == (
        0,
        "Exact 1000 (fake:Counting)\nDRAM 0.1 GB/s measured; FP32 1 GFLOP/s measured",
    )
    assert out.count("fast") == 2
    after = only_run()
    for old, new in zip(before.measurements, after.measurements, strict=True):
        assert new.time_us == old.time_us
        assert new.counted_flops
    assert (before.path / "samples.jsonl").read_text() == (after.path / "samples.jsonl").read_text()


def test_counted_rows_are_not_counted_again(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooflab(*SWEEP, "--counters", *COUNTING)
    table = (only_run().path / "measurements.csv").read_text()
    monkeypatch.setenv("FAKE_UNCOUNTABLE", "1")
    assert rooflab("counters", only_run().path, *COUNTING)[0] == 0
    assert (only_run().path / "measurements.csv").read_text() == table


def test_without_permission_rows_are_complete_and_one_note_says_why(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_UNCOUNTABLE", "1")
    monkeypatch.setattr(ncu, "find", lambda: None)
    code, _, err = rooflab(*SWEEP, "--counters", *COUNTING)
    assert code == 0
    assert joined(err).count("the driver does not permit reading counters") == 1
    assert len(only_run().ok) == 4
    code, _, err = rooflab("counters", only_run().path, *COUNTING)
    assert code == 1
    assert "nothing was counted" in err


def test_a_device_without_counters_is_named(rooflab: Rooflab) -> None:
    code, _, err = rooflab(*SWEEP, "--counters")
    assert code == 0
    assert joined(err).count("Exact 1000 has no counters") == 1


def test_a_run_of_a_device_class_is_not_opened_unasked(rooflab: Rooflab, tmp_path: Path) -> None:
    rooflab(*SWEEP, *COUNTING)
    code, _, err = rooflab("counters", only_run().path)
    assert code == 2
    assert "if you trust it" in err
