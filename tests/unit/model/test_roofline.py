from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflab.model.problem import SFU
from rooflab.model.roofline import (
    DISTURBED,
    Ceiling,
    MissingCeiling,
    Provenance,
    Roof,
    Roofline,
    extremes,
)
from rooflab.workloads import build

about: Any = pytest.approx

positive = st.floats(1e6, 1e18)
counts = st.integers(1, 10**15)


def roofline(peak: float, bandwidth: float, **links: float) -> Roofline:
    return Roofline(
        (
            Ceiling("compute", "fp32", peak, "derived", ""),
            Ceiling("bandwidth", "HBM", bandwidth, "derived", ""),
            *(Ceiling("bandwidth", name, value, "measured", "") for name, value in links.items()),
        ),
        memory="HBM",
    )


def roof(one: Roofline, precision: str, flops: int, **traffic: int) -> Roof:
    found = one.roof(precision, flops, traffic)
    assert found is not None
    return found


@given(positive, positive, counts, counts)
def test_a_roof_is_the_time_of_what_takes_longest(
    peak: float, bandwidth: float, flops: int, dram: int
) -> None:
    one = roofline(peak, bandwidth)
    found = roof(one, "fp32", flops, dram=dram)
    assert found.us == pytest.approx(1e6 * max(flops / peak, dram / bandwidth))
    assert found.bound == ("compute" if flops / peak >= dram / bandwidth else "dram")
    attainable = min(peak, flops / dram * bandwidth)
    assert attainable == pytest.approx(flops / found.us * 1e6)


@given(positive, positive)
def test_both_roofs_meet_in_the_ridge(peak: float, bandwidth: float) -> None:
    one = roofline(peak, bandwidth)
    ridge = one.ridge("fp32")
    assert ridge is not None
    assert ridge * bandwidth == pytest.approx(peak)


def test_an_h200_in_fp32() -> None:
    h200 = roofline(66.9e12, 4.814e12)
    assert h200.ridge("fp32") == pytest.approx(13.9, abs=0.05)


def test_without_flops_memory_is_the_roof() -> None:
    assert roof(roofline(1e12, 1e9), "fp32", 0, dram=1000) == Roof(about(1.0), "dram")
    # A copy needs no compute ceiling, whatever its precision.
    assert roof(roofline(1e12, 1e9), "bf16", 0, dram=1000).bound == "dram"


def test_the_slowest_link_binds() -> None:
    one = roofline(1e12, 1e9, H2D=1e8, D2H=1e7)
    assert roof(one, "fp32", 1, dram=1000, h2d=1000, d2h=50) == Roof(about(10.0), "h2d")
    assert roof(one, "fp32", 1, dram=1000, h2d=50, d2h=1000) == Roof(about(100.0), "d2h")
    assert roof(one, "fp32", 1, dram=10**6, h2d=1000).bound == "dram"


def test_of_a_link_the_measured_rate_counts_and_of_memory_the_preferred_one() -> None:
    rates: tuple[tuple[float, Provenance], ...] = ((2e9, "derived"), (1e9, "measured"))
    both = [
        Ceiling("bandwidth", key, value, provenance, "")
        for key in ("HBM", "H2D")
        for value, provenance in rates
    ]
    one = Roofline((Ceiling("compute", "fp32", 1e12, "derived", ""), *both), memory="HBM")
    assert roof(one, "fp32", 1, dram=1000, h2d=0).us == pytest.approx(0.5)
    assert roof(one, "fp32", 1, dram=0, h2d=1000).us == pytest.approx(1.0)
    (only_derived,) = [link for link in both if (link.key, link.provenance) == ("H2D", "derived")]
    assert Roofline((only_derived,)).bandwidth("h2d") == only_derived


def test_while_both_directions_are_busy_each_is_slower() -> None:
    """Of 1000 B up and 400 B down 400 B go both ways at 0.5 GB/s, and 600 B alone at 1 GB/s."""
    one = roofline(1e15, 1e12, H2D=1e9, D2H=2e9)
    assert roof(one, "fp32", 1, dram=1, h2d=1000, d2h=400).us == pytest.approx(1.0)
    shared = one.with_limits(Ceiling("bandwidth", "H2D_BOTH", 5e8, "measured", ""))
    found = roof(shared, "fp32", 1, dram=1, h2d=1000, d2h=400)
    assert found == Roof(about(0.8 + 0.6), "h2d")
    assert roof(shared, "fp32", 1, dram=1, h2d=1000).us == pytest.approx(1.0)
    # The other direction is the busier one: its own rate, as nothing else is known.
    assert roof(shared, "fp32", 1, dram=1, h2d=100, d2h=4000).us == pytest.approx(2.0)


def test_without_overlap_kernels_and_copies_add_up() -> None:
    one = roofline(1e12, 1e9, H2D=1e8, D2H=2e8)
    traffic = {"dram": 4000, "h2d": 1000, "d2h": 1000}
    assert one.serial_us("fp32", 10, traffic, 2000) == pytest.approx(2 + 10 + 5)
    assert one.serial_us("fp32", 10**7, traffic, 2000) == pytest.approx(10 + 10 + 5)
    assert one.serial_us("fp64", 10, traffic, 2000) is None
    assert one.serial_us("fp32", 10, {"dram": 1, "peer": 1}, 1) is None


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ([50, 99], [50]),
        ([98, 99], [98]),
        ([99], []),
        ([50, 60, 98], [98, 50]),
        ([97, 98], [98]),
        ([96, 98], [98, 96]),
    ],
)
def test_of_observed_roofs_the_extremes_are_shown(values: list[int], shown: list[int]) -> None:
    found = [Ceiling("compute", "fp32", value, "observed", "") for value in values]
    assert [one.value for one in extremes(found, 100)] == shown


def test_a_disturbed_ceiling_says_so() -> None:
    calm = Ceiling("compute", "fp32", 1e12, "measured", "")
    assert not calm.disturbed
    assert replace(calm, caveat=f"half a core; {DISTURBED}").disturbed


def test_a_link_without_a_ceiling_leaves_no_roof() -> None:
    assert roofline(1e12, 1e9).roof("fp32", 1, {"dram": 1000, "h2d": 1000}) is None


def test_integers_need_no_compute_ceiling() -> None:
    one = roofline(1e12, 1e9)
    assert roof(one, "int32", 10**15, dram=1000).bound == "dram"
    assert one.roof("fp64", 10**15, {"dram": 1000}) is None
    counted = one.with_limits(Ceiling("compute", "int32", 1e12, "derived", ""))
    assert roof(counted, "int32", 10**15, dram=1000).bound == "compute"


def test_a_missing_ceiling_gives_no_figure() -> None:
    one = roofline(1e12, 1e11)
    assert one.compute("tf32") is None
    assert one.ridge("tf32") is None
    assert one.roof("tf32", 10, {"dram": 1}) is None
    assert Roofline(one.ceilings[:1]).roof("fp32", 10, {"dram": 1}) is None


def test_limits_are_added_to_what_there_is() -> None:
    gone = MissingCeiling("compute", "tf32", "why")
    more = roofline(1e12, 1e11).with_limits(gone, Ceiling("compute", "fp64", 1e9, "measured", ""))
    assert more.missing == (gone,)
    assert more.compute("fp64") is not None
    assert more.compute("fp32") is not None


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


def test_a_roof_that_is_measured_again_can_only_rise() -> None:
    before = roofline(1e12, 1e11).with_limits(
        Ceiling("compute", "fp64", 5e11, "measured", "once"),
        Ceiling("bandwidth", "L2", 9e11, "measured", "once"),
    )
    again = Roofline(
        (
            Ceiling("compute", "fp32", 9e12, "measured", "again"),  # was derived
            Ceiling("compute", "fp64", 6e11, "measured", "again"),
            Ceiling("bandwidth", "L2", 8e11, "measured", "again"),
        )
    )
    after = before.raised(again)
    assert after.compute("fp32") == before.compute("fp32")
    fp64 = after.compute("fp64")
    assert fp64 is not None
    assert (fp64.value, fp64.formula) == (6e11, "again")
    assert {c.value for c in after.ceilings if c.key == "L2"} == {9e11}


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("compute", 66.9e12, "66.9 TFLOP/s"),
        ("bandwidth", 4.8143e12, "4.81 TB/s"),
        ("bandwidth", 35.24e9, "35.2 GB/s"),
        ("compute", 1978.9e12, "1979 TFLOP/s"),
        ("compute", 999.7e9, "1000 GFLOP/s"),
        ("compute", 1e12, "1 TFLOP/s"),
        ("bandwidth", 99.4e9, "99.4 GB/s"),
        ("bandwidth", 100.4e9, "100 GB/s"),
        ("launch", 1.2345e-6, "1.23 µs"),
        ("launch", 9.995001e-6, "10 µs"),
    ],
)
def test_amounts_have_three_digits_and_decimal_units(kind: Any, value: float, text: str) -> None:
    assert Ceiling(kind, "x", value, "derived", "").amount == text


@pytest.mark.parametrize(
    ("derived", "measured", "reason"),
    [
        (
            166e9,
            231e9,
            "The derived roof assumes the reported clock, 2.5 GHz; the processor ran faster.",
        ),
        (332e9, 231e9, ""),
        (231e9, 231e9, ""),
        (332e9, None, ""),
        (None, 231e9, ""),
    ],
)
def test_a_derived_roof_below_the_measured_one_is_explained(
    derived: float | None, measured: float | None, reason: str
) -> None:
    cores = "2 cores × 2 FMA pipes × 8 lanes (256-bit) × 2 FLOP × 2504 MHz"
    both: Any = ((measured, "measured", "FMA microkernel"), (derived, "derived", cores))
    ceilings = [
        Ceiling("compute", "fp32", value, provenance, formula)
        for value, provenance, formula in both
        if value
    ]
    found = Roofline(tuple(ceilings)).passed("fp32")
    assert found == reason
    assert Roofline(tuple(ceilings)).passed("fp64") == ""
    without_clock = [replace(one, formula="2 cores") for one in ceilings]
    told = reason.replace("the reported clock, 2.5 GHz", "a low clock")
    assert Roofline(tuple(without_clock)).passed("fp32") == told


def test_a_roofline_is_completed_with_what_it_lacks() -> None:
    one = roofline(1e12, 1e11)
    level = Ceiling("bandwidth", "L2", 1e12, "measured", "")
    again = replace(level, value=2e12)
    assert one.completed([level]).completed([again]).ceilings == (*one.ceilings, level)


# Other units -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "size", "bound"), [(1.5, 64, SFU), (8.0, 64, "compute"), (1.5, 256, "compute")]
)
def test_exponentials_bind_where_there_are_many_for_the_products(
    rate: float, size: int, bound: str
) -> None:
    """One for each 4·size FLOPs; ``rate`` of them take as long as 512 FLOPs."""
    unit = Ceiling("compute", SFU, rate * 1e12, "derived", "")
    one = roofline(512e12, 1e15).with_limits(unit)
    problem = build("attention", "fp32", {"queries": 99, "keys": 99, "head_size": size})
    found, exponentials = one.of(problem), 32 * 99 * 99
    assert found and found.bound == bound
    seconds = max(exponentials / rate / 1e12, 4 * size * exponentials / 512e12)
    assert found.us == about(1e6 * seconds)
    assert unit.amount == f"{rate:.3g} Top/s"


def test_a_device_without_such_a_ceiling_has_the_other_roofs() -> None:
    one, problem = roofline(1e12, 1e12), build("attention", "fp32", {"queries": 9, "keys": 9})
    assert one.of(problem) == one.roof("fp32", problem.flops, problem.traffic)
    assert Roofline(()).of(problem) is None
