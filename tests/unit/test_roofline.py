from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rooflab.model.roofline import Ceiling, Roofline

positive = st.floats(1e6, 1e18)


def roofline(peak: float, bandwidth: float) -> Roofline:
    return Roofline(
        (
            Ceiling("compute", "fp32", peak, "derived", ""),
            Ceiling("bandwidth", "HBM", bandwidth, "derived", ""),
        ),
        memory="HBM",
    )


@given(positive, positive, st.floats(1e-3, 1e6))
def test_attainable_is_the_lower_roof(peak: float, bandwidth: float, intensity: float) -> None:
    one = roofline(peak, bandwidth)
    attainable = one.attainable("fp32", intensity)
    assert attainable == min(peak, intensity * bandwidth)
    assert one.bound("fp32", intensity) == ("memory" if intensity < peak / bandwidth else "compute")


@given(positive, positive)
def test_both_roofs_meet_in_the_ridge(peak: float, bandwidth: float) -> None:
    one = roofline(peak, bandwidth)
    ridge = one.ridge("fp32")
    assert ridge is not None
    assert ridge * bandwidth == pytest.approx(peak)


def test_an_h200_in_fp32() -> None:
    h200 = roofline(66.9e12, 4.814e12)
    assert h200.ridge("fp32") == pytest.approx(13.9, abs=0.05)


def test_a_missing_ceiling_gives_no_figure() -> None:
    one = roofline(1e12, 1e11)
    assert one.compute("tf32") is None
    assert one.ridge("tf32") is None
    assert one.attainable("tf32", 10) is None
    assert one.bound("tf32", 10) == ""


def test_preference_decides_between_provenances() -> None:
    ceilings = (
        Ceiling("compute", "fp32", 2e12, "derived", ""),
        Ceiling("compute", "fp32", 1e12, "measured", ""),
    )
    gpu = Roofline(ceilings).compute("fp32")
    cpu = Roofline(ceilings, prefer=("measured", "derived")).compute("fp32")
    assert gpu is not None
    assert cpu is not None
    assert (gpu.value, cpu.value) == (2e12, 1e12)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("compute", 66.9e12, "66.9 TFLOP/s"),
        ("bandwidth", 4.8143e12, "4.81 TB/s"),
        ("bandwidth", 35.24e9, "35.2 GB/s"),
        ("compute", 1978.9e12, "1979 TFLOP/s"),
        ("compute", 999.7e9, "1000 GFLOP/s"),
    ],
)
def test_amounts_have_three_digits_and_decimal_units(kind: str, value: float, text: str) -> None:
    assert Ceiling(kind, "x", value, "derived", "").amount == text  # type: ignore[arg-type]
