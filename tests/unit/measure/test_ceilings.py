from __future__ import annotations

from dataclasses import replace

import fake
import pytest

from rooflab.kernels.registry import Registry
from rooflab.measure import levels
from rooflab.model.roofline import Ceiling, MissingCeiling


def library(unavailable: str = "") -> Registry:
    """A registry whose library kernel is the exact one, beside a kernel that is no library."""
    kernel = fake.exact("best", 0.8, precisions=("fp32", "tf32"))
    kernel = replace(kernel, library=True, unavailable=lambda device: unavailable)
    return Registry([fake.exact("other", 0.9), kernel])


def test_the_best_library_gemm_is_named_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "SIZES", (32, 64))
    found = list(levels.library_ceilings(fake.FakeDevice(), library()))
    assert [limit.key for limit in found] == ["fp32", "tf32"]
    best = found[0]
    assert isinstance(best, Ceiling)
    assert best.value == pytest.approx(0.8 * fake.PEAK)
    assert best.provenance == "measured"
    assert best.formula == "best at n = 64, the better of 32 and 64"


def test_a_precision_that_cannot_be_measured_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(levels, "SIZES", (32,))
    device = fake.FakeDevice()
    device.memory = 1000
    for limit in levels.library_ceilings(device, library()):
        assert isinstance(limit, MissingCeiling)
        assert limit.reason.startswith("best not measured: needs ")


def test_without_a_library_there_is_no_such_ceiling() -> None:
    device = fake.FakeDevice()
    assert list(levels.library_ceilings(device, Registry([fake.exact("fast", 0.8)]))) == []
    assert list(levels.library_ceilings(device, library("not installed"))) == []
