from __future__ import annotations

import fake
import pytest
from rooflab.model.roofline import Ceiling, MissingCeiling

from rooflab.measure import ceilings


def test_the_best_library_gemm_is_named_as_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ceilings, "SIZES", (32, 64))
    (kernel,) = fake.KERNELS.select(["fast"], "exact")
    limits = {one.key: one for one in ceilings.library_ceilings(fake.FakeDevice(), kernel)}
    best = limits["fp32"]
    assert isinstance(best, Ceiling)
    assert best.value == pytest.approx(0.8 * fake.PEAK)
    assert best.provenance == "measured"
    assert best.formula == "fast at n = 64, the better of 32 and 64"
    assert limits["tf32"] == MissingCeiling(
        "compute", "tf32", "fast not measured: fast has no tf32"
    )
