"""A row from an outcome, by hand: every figure of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import fake
import pytest
from synthetic import bandwidth, compute, gemm

from rooflab.devices.base import Counters, Reading
from rooflab.kernels.base import Kernel
from rooflab.measure.protocol import Outcome
from rooflab.measure.statistics import Summary
from rooflab.measure.telemetry import Sensed, summarize
from rooflab.model.measurement import Measurement
from rooflab.model.problem import Problem
from rooflab.model.roofline import DISTURBED as DISTURBED_TEXT
from rooflab.model.roofline import Ceiling, Roofline
from rooflab.recording import rated, record, with_counters
from rooflab.workloads import build

about: Any = pytest.approx

PROBLEM = gemm(8, 16, 32, beta=1.0)
"""8192 FLOPs; A, B, and C twice are 4096 bytes."""

ROOFLINE = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 0.75e9)))
"""8.192 µs for the FLOPs, 5.461 µs for the bytes."""

SUMMARY = Summary(
    samples=30, rounds=5, median=16.384, low=16.0, high=17.0, minimum=15.0, p05=15.5, p95=18.0
)
READINGS = [
    Reading(999.0, 1100.0, 3000.0, 500.0, 50.0),
    Reading(1001.0, 1300.0, 3200.0, 500.0, 54.0),
]
OUTCOME = Outcome(
    "mine",
    variant="64x64",
    rel_error=1e-7,
    cache="cold",
    summary=SUMMARY,
    pair_us=19.0,
    launch_us=2.0,
    sensed=summarize(READINGS),
    energy_j=2e-6,
    power_w=250.0,
    energy_mhz=1200.0,
    flags=["noisy"],
)
KERNEL = Kernel("mine", "numpy", "exact", "title", ("fp32",), lambda device, operands: print)


class Clocked(fake.FakeDevice):
    """Its peak in FP32 is 1 MFLOP/s for each MHz."""

    def observed(self, precision: str, sm_mhz: float) -> Ceiling | None:
        return compute(precision, 1e6 * sm_mhz, "observed") if precision == "fp32" else None


def row(
    problem: Problem = PROBLEM, roofline: Roofline = ROOFLINE, device: Any = None, **changes: Any
) -> Measurement:
    outcome = replace(OUTCOME, **changes)
    return record(problem, KERNEL, outcome, roofline, device or Clocked())


def test_every_figure_of_a_row() -> None:
    assert asdict(row()) == asdict(
        Measurement(
            problem=PROBLEM.record,
            kernel="mine",
            backend="numpy",
            variant="64x64",
            status="ok",
            reason="",
            rel_error=1e-7,
            cache="cold",
            samples=30,
            rounds=5,
            time_us=16.384,
            time_lo_us=16.0,
            time_hi_us=17.0,
            time_min_us=15.0,
            time_p05_us=15.5,
            time_p95_us=18.0,
            pair_us=19.0,
            launch_us=2.0,
            flops=8192,
            bytes=4096,
            intensity=2.0,
            tflops=about(0.0005),
            gbps=about(0.25),
            roof_us=about(8.192),
            roof_tflops=about(0.001),
            roof_percent=about(50),
            observed_tflops=about(0.001),
            observed_percent=about(50),
            bound="compute",
            sm_mhz=1000.0,
            nvml_mhz=1200.0,
            mem_mhz=3100.0,
            temp_c=52.0,
            energy_j=2e-6,
            power_w=250.0,
            energy_mhz=1200.0,
            gflop_per_j=about(4.096),
            flags="noisy",
        )
    )


@pytest.mark.parametrize("status", ["incorrect", "failed", "skipped", "timeout"])
def test_a_row_without_figures_keeps_what_the_problem_needs(status: str) -> None:
    found = row(status=status, reason="why")
    assert found == Measurement(
        problem=PROBLEM.record,
        kernel="mine",
        backend="numpy",
        variant="64x64",
        status=status,
        reason="why",
        rel_error=1e-7,
        flops=8192,
        bytes=4096,
        intensity=2.0,
        roof_us=found.roof_us,
        roof_tflops=found.roof_tflops,
        bound="compute",
        flags="noisy",
    )
    assert found.roof_us == pytest.approx(8.192)
    assert found.roof_tflops == pytest.approx(0.001)


def test_without_samples_there_are_no_figures() -> None:
    assert row(summary=None).time_us is None


@pytest.mark.parametrize(("time_us", "flags"), [(8.193, ""), (8.192, ""), (8.191, "above_roof")])
def test_only_what_is_faster_than_its_roof_is_above_it(time_us: float, flags: str) -> None:
    exact = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e9)))
    found = row(PROBLEM, exact, summary=replace(SUMMARY, median=time_us), flags=[])
    assert found.flags == flags


def test_a_flag_of_the_roof_follows_those_of_the_measurement() -> None:
    outcome = replace(OUTCOME, summary=replace(SUMMARY, median=1.0), flags=["noisy"])
    assert record(PROBLEM, KERNEL, outcome, ROOFLINE, Clocked()).flags == "noisy;above_roof"
    assert outcome.flags == ["noisy"]


def test_without_a_ceiling_there_is_no_roof() -> None:
    found = row(PROBLEM, Roofline((compute("fp32", 1e9),)), summary=replace(SUMMARY, median=1e-9))
    roofs = ("roof_us", "roof_tflops", "roof_percent", "observed_tflops", "observed_percent")
    assert [getattr(found, name) for name in roofs] == [None] * 5
    assert (found.bound, found.serial_us, found.flags) == ("", None, "noisy")
    assert found.tflops


def test_a_low_clock_lowers_the_observed_roof_only_as_far_as_it_limits() -> None:
    slow = summarize([Reading(sm_mhz=500.0)])
    found = row(sensed=slow)
    assert found.roof_tflops == pytest.approx(0.001)
    assert found.observed_tflops == pytest.approx(0.0005)
    assert found.observed_percent == pytest.approx(100)
    add = build("add", "fp32", {"columns": 1024})
    moved = row(add, sensed=slow)
    assert moved.bound == "dram"
    assert moved.observed_tflops == moved.roof_tflops == pytest.approx(1024 / 16.384 / 1e6)
    assert moved.observed_percent == pytest.approx(100)


def test_without_a_clock_or_a_formula_nothing_is_observed() -> None:
    unknown = [
        row(sensed=Sensed()),
        row(gemm(8, 16, 32, "fp64"), Roofline((compute("fp64", 1e9), bandwidth("DRAM", 1e9)))),
        row(device=fake.FakeDevice()),
    ]
    assert [one.observed_tflops for one in unknown] == [None] * 3
    assert [one.observed_percent for one in unknown] == [None] * 3


@pytest.mark.parametrize(
    ("workload", "algorithm", "bus"), [("allreduce", 4000, 6000), ("allgather", 16000, 12000)]
)
def test_a_collective_has_the_bandwidths_of_nccls_tests(
    workload: str, algorithm: int, bus: int
) -> None:
    links = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e12), bandwidth("PEER", 1e9)))
    found = row(build(workload, "fp32", {"elements": 1000, "gpus": 4}), links)
    assert found.algorithm_gbps == pytest.approx(algorithm / 16.384 / 1e3)
    assert found.bus_gbps == pytest.approx(bus / 16.384 / 1e3)
    assert found.bound == "peer"
    assert found.observed_tflops is None
    assert row().algorithm_gbps is row().bus_gbps is None


def test_of_several_gpus_the_roof_is_that_of_the_busiest() -> None:
    links = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e12), bandwidth("PEER", 1e12)))
    found = row(gemm(9, 16, 32, gpus=2), links)
    assert found.flops == 2 * 9 * 16 * 32
    assert found.roof_us == pytest.approx(2 * 5 * 16 * 32 / 1e3)
    assert found.roof_tflops == pytest.approx(9 / 5 / 1e3)
    assert (found.observed_tflops, found.observed_percent) == (None, None)


def test_a_streamed_problem_has_the_time_of_its_parts_one_after_the_other() -> None:
    both = (bandwidth("H2D", 1e8), bandwidth("D2H", 2e8))
    links = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e9), *both))
    add = build("add", "fp32", {"columns": 1000, "batch": 4, "host": "pinned", "chunk": 1})
    found = row(add, links)
    up, down, kernels = 32000 / 1e8, 16000 / 2e8, 48000 / 1e9
    assert found.serial_us == pytest.approx(1e6 * (up + down + kernels))
    assert found.roof_us == pytest.approx(1e6 * up)
    assert (found.bound, found.host_bytes) == ("h2d", 48000)
    assert row(build("add", "fp32", {"columns": 1000, "batch": 4}), links).serial_us is None


# Faster than possible ----------------------------------------------------------------------------


def fast(high_us: float, low_us: float = 0.5) -> Summary:
    """Times of which the highest is ``high_us``."""
    return replace(SUMMARY, median=(low_us + high_us) / 2, low=low_us, high=high_us)


# 8.192 µs for the FLOPs.
MEASURED = Roofline((compute("fp32", 1e9, "measured"), bandwidth("DRAM", 1e9, "measured")))
DERIVED = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e9)))
BEST_OF_BOTH = Roofline((*MEASURED.ceilings, compute("fp32", 2e9), bandwidth("DRAM", 2e9)))
DISTURBED = Roofline(tuple(replace(one, caveat=DISTURBED_TEXT) for one in MEASURED.ceilings))


@pytest.mark.parametrize(
    ("roofline", "least_us"),
    [
        (DERIVED, 8.192),
        (MEASURED, 8.192 / 1.05),  # it may be a little too low
        (BEST_OF_BOTH, 4.096),  # wherever it is from
        (replace(BEST_OF_BOTH, prefer=("measured", "derived")), 4.096),
    ],
)
def test_what_is_faster_than_the_highest_roofs_is_impossible(
    roofline: Roofline, least_us: float
) -> None:
    found = row(roofline=roofline, summary=fast(0.9999 * least_us))
    assert found.status == "impossible"
    assert found.reason == f"all roofs allow {least_us:.4g} µs at least"
    assert found.flags == "noisy"  # and not above_roof
    assert (found.time_hi_us, found.samples) == (0.9999 * least_us, 30)
    assert found.roof_percent is not None
    # All of the interval must be below.
    possible = row(roofline=roofline, summary=fast(1.0001 * least_us))
    assert (possible.status, possible.reason, possible.flags) == ("ok", "", "noisy;above_roof")


@pytest.mark.parametrize("roofline", [DISTURBED, Roofline((compute("fp32", 1e9),)), Roofline(())])
def test_a_roof_that_is_not_known_well_makes_nothing_impossible(roofline: Roofline) -> None:
    assert row(roofline=roofline, summary=fast(1.0)).status == "ok"


def test_only_the_ceiling_that_limits_must_be_known_well() -> None:
    dram = replace(bandwidth("DRAM", 1e9, "measured"), caveat=DISTURBED_TEXT)
    limited_by_flops = Roofline((compute("fp32", 1e9), dram))
    assert row(roofline=limited_by_flops, summary=fast(8.1)).status == "impossible"
    limited_by_memory = Roofline((compute("fp32", 1e12), dram))
    assert row(roofline=limited_by_memory, summary=fast(1.0)).status == "ok"


def test_in_a_warm_cache_memory_is_no_limit() -> None:
    slow_memory = Roofline((compute("fp32", 1e9), bandwidth("DRAM", 1e8)))  # 40.96 µs
    assert row(roofline=slow_memory, summary=fast(40.0)).status == "impossible"
    assert row(roofline=slow_memory, summary=fast(40.0), cache="warm").status == "ok"
    assert row(roofline=slow_memory, summary=fast(8.1), cache="warm").status == "impossible"
    links = Roofline((*slow_memory.ceilings, bandwidth("H2D", 1e7), bandwidth("D2H", 1e7)))
    streamed = gemm(8, 16, 32, batch=2, host="pinned")
    found = row(streamed, links, summary=fast(40.0), cache="warm")
    assert (found.status, found.bound) == ("impossible", "h2d")


def test_a_streamed_problem_is_limited_by_its_link() -> None:
    links = Roofline((*DERIVED.ceilings, bandwidth("H2D", 1e7), bandwidth("D2H", 1e7)))
    add = build("add", "fp32", {"columns": 1000, "batch": 4, "host": "pinned", "chunk": 1})
    assert row(add, links, summary=fast(3199.0)).status == "impossible"
    assert row(add, links, summary=fast(3201.0)).status == "ok"


def test_a_row_is_rated_again_when_roofs_are_raised() -> None:
    low = row(roofline=MEASURED, summary=fast(7.0))
    assert low.status == "impossible"
    higher = Roofline(tuple(replace(one, value=2 * one.value) for one in MEASURED.ceilings))
    again = rated(low, PROBLEM, higher, Clocked())
    assert again == row(roofline=higher, summary=fast(7.0))
    assert (again.status, again.reason) == ("ok", "")
    assert rated(again, PROBLEM, MEASURED, Clocked()) == low
    failed = row(status="failed", reason="why")
    assert rated(failed, PROBLEM, higher, Clocked()).status == "failed"


def test_bursts_and_changes_are_in_the_row() -> None:
    found = row(burst_us=12.0, burst_mhz=1900.0, burst_w=800.0, changed="random numbers are drawn")
    assert (found.burst_us, found.burst_mhz, found.burst_w) == (12.0, 1900.0, 800.0)
    assert found.changed == "random numbers are drawn"
    failed = row(burst_us=12.0, status="failed", changed="random numbers are drawn")
    assert (failed.burst_us, failed.changed) == (None, "random numbers are drawn")


def test_counters_go_to_their_columns() -> None:
    flops = {"tensor_fp16": 1.0, "tensor_bf16": 2.0, "fp64": 4.0, "fp32": 8.0, "fp16": 16.0}
    found = with_counters(row(), Counters(flops, 32.0, 64.0, 128.0, 256.0, 512.0))
    assert found == replace(
        row(),
        counted_flops=31.0,
        tensor_flops=3.0,
        fp64_flops=4.0,
        fp32_flops=8.0,
        fp16_flops=16.0,
        dram_bytes=32.0,
        l2_bytes=64.0,
        l1_bytes=128.0,
        cycles=256.0,
        counted_mhz=512.0,
    )


def test_a_pipe_that_did_nothing_has_zero() -> None:
    found = with_counters(row(), Counters({}, None, None, None, None, None))
    pipes = ("counted_flops", "tensor_flops", "fp64_flops", "fp32_flops", "fp16_flops")
    assert [getattr(found, name) for name in pipes] == [0] * 5
    assert (found.dram_bytes, found.cycles) == (None, None)
