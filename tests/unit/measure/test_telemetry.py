"""Readings become medians."""

from __future__ import annotations

import pytest

from rooflab.devices.base import Reading
from rooflab.measure.telemetry import HARDWARE, capped, summarize


def active(*reasons: str) -> Reading:
    return Reading(sm_mhz=1410.0, reasons=frozenset(reasons))


def test_each_quantity_has_its_own_median() -> None:
    summary = summarize(
        [
            Reading(1980, 2000, 3201, 410.5, 41),
            Reading(1410, 1575, 3201, 699.0, 52),
            Reading(1425, 1575, 3201, 700.0, 55),
            Reading(1455, 1600, 3201, 698.0, 50),
        ]
    )
    assert (summary.sm_mhz, summary.nvml_mhz, summary.mem_mhz) == (1440, 1587.5, 3201)
    assert summary.temp_c == 51


def test_medians_pass_over_missing_values_and_keep_zeros() -> None:
    summary = summarize([Reading(sm_mhz=1410, temp_c=0), Reading(), Reading(sm_mhz=1430)])
    assert (summary.sm_mhz, summary.mem_mhz) == (1420, None)
    assert summary.temp_c == 0


def test_no_readings_have_no_values_and_no_flags() -> None:
    summary = summarize([])
    assert (summary.sm_mhz, summary.mem_mhz, summary.temp_c) == (None,) * 3
    assert summary.reasons == frozenset()
    assert not summary.throttled
    assert not summary.power_capped


@pytest.mark.parametrize("reason", sorted(HARDWARE))
def test_one_reading_is_enough_to_be_throttled(reason: str) -> None:
    summary = summarize([active(), active(reason), active(), active("idle")])
    assert summary.throttled
    assert not summary.power_capped
    assert summary.reasons == {reason, "idle"}


@pytest.mark.parametrize(
    "reason", ["sw_power_cap", "idle", "applications_clocks", "sync_boost", "display_clocks"]
)
def test_normal_operation_is_not_throttled(reason: str) -> None:
    assert not summarize([active(reason)] * 3).throttled


@pytest.mark.parametrize(("capped", "free", "flag"), [(1, 2, False), (2, 2, True), (3, 0, True)])
def test_a_power_cap_counts_from_half_of_the_readings_on(
    capped: int, free: int, flag: bool
) -> None:
    summary = summarize([active("sw_power_cap")] * capped + [active()] * free)
    assert summary.power_capped is flag
    assert not summary.throttled


def test_both_can_hold() -> None:
    summary = summarize([active("sw_power_cap", "hw_thermal")])
    assert summary.throttled
    assert summary.power_capped


def test_one_sample_at_the_limit_is_enough_to_tell() -> None:
    assert capped([active(), active("sw_power_cap")])
    assert not capped([active(), active("idle")])
    assert not capped([])
