"""Tests of sweeps are fast: what measures for them has imported everything before."""

from __future__ import annotations

from types import SimpleNamespace

import nursery
import pytest
from commands import Rooflab, only_run


def test_a_sweep_of_the_exact_device_starts_no_interpreter(
    rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery.nursery()
    monkeypatch.setattr(nursery, "subprocess", SimpleNamespace())
    code, _, err = rooflab("sweep", "-k", "fast", "-p", "fp32", "--sizes", "64")
    assert code == 0, err
    assert only_run().measurements[0].status == "ok"
