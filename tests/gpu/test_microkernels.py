"""Measured ceilings lie below the derived ones, in their order, and near them where they can be."""

from __future__ import annotations

import pytest

from rooflab.devices.base import Device
from rooflab.model.roofline import Ceiling

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def measured(device: Device) -> dict[str, Ceiling]:
    limits = device.levels()
    return {limit.key: limit for limit in limits if isinstance(limit, Ceiling)}


def test_levels_of_memory_are_in_order(device: Device, measured: dict[str, Ceiling]) -> None:
    memory = device.roofline().bandwidth()
    assert memory is not None
    for how in ("read", "write", "copy"):
        assert 0.8 * memory.value < measured[f"{memory.key}_{how}"].value < memory.value
    values = [measured[key].value for key in (f"{memory.key}_read", "L2", "L1")]
    assert values == sorted(values)
    clock, sms = (float(device.fact(name) or 0) for name in ("sm_clock_max", "sm_count"))
    assert 0.9 < measured["shared"].value / (128 * sms * clock * 1e6) < 1


def test_counters_agree_with_the_memory_levels(
    device: Device, measured: dict[str, Ceiling]
) -> None:
    counted = [one for one in measured.values() if one.kind == "bandwidth" and not one.caveat]
    if len(counted) < 5:
        assert "not permit" in measured["L2"].caveat
    assert all(one.formula.endswith("counters agree") for one in counted[1:])


def test_timing_is_gated_again_after_counting(device: Device) -> None:
    assert device.count([device.nothing])
    timed = device.time([device.nothing] * 10)
    assert timed.gated
    assert max(timed.times_us) < 100


def test_pipes_reach_their_rates(device: Device, measured: dict[str, Ceiling]) -> None:
    derived = {c.key: c.value for c in device.roofline().ceilings}
    assert 0.95 < measured["fp32_fma"].value / derived["fp32"] < 1.001
    vector = derived.get("fp64_vector", derived["fp64"])
    assert 0.95 < measured["fp64_fma"].value / vector < 1.001
    for name in ("tf32", "fp16", "bf16", "fp8"):
        if device.fact("compute_capability") == "9.0":
            assert 0.7 < measured[f"{name}_mma"].value / derived[name] < 1.001
