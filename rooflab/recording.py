"""A row from what was measured and the roofs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from rooflab.devices.base import Counters, Device
from rooflab.kernels.base import Kernel
from rooflab.measure.protocol import FIGURES, Outcome
from rooflab.measure.telemetry import SENSORS
from rooflab.model.measurement import COLUMNS, Measurement, concluded
from rooflab.model.problem import FromHost, Problem
from rooflab.model.roofline import COMPUTE, Roofline


def record(
    problem: Problem, kernel: Kernel, outcome: Outcome, roofline: Roofline, device: Device
) -> Measurement:
    """One row, with performance figures only if the outcome is ``ok``."""
    row = Measurement(
        problem=problem.record,
        kernel=kernel.name,
        backend=kernel.backend,
        variant=outcome.variant,
        status=outcome.status,
        reason=outcome.reason,
        rel_error=outcome.rel_error,
        changed=outcome.changed,
        flops=problem.flops,
        bytes=problem.bytes,
        host_bytes=problem.host_bytes,
        peer_bytes=problem.peer_bytes,
        intensity=problem.intensity,
        flags=";".join(outcome.flags),
    )
    summary = outcome.summary
    if outcome.status == "ok" and summary is not None:
        time_us = summary.median
        row = replace(
            row,
            cache=outcome.cache,
            samples=summary.samples,
            rounds=summary.rounds,
            time_us=time_us,
            time_lo_us=summary.low,
            time_hi_us=summary.high,
            time_min_us=summary.minimum,
            time_p05_us=summary.p05,
            time_p95_us=summary.p95,
            tflops=problem.flops / time_us / 1e6,
            gbps=problem.link_bytes / time_us / 1e3,
            algorithm_gbps=problem.result_bytes / time_us / 1e3 if problem.collective else None,
            bus_gbps=problem.bus_bytes / time_us / 1e3 if problem.collective else None,
            **{name: getattr(outcome, name) for name in FIGURES},
            **{name: getattr(outcome.sensed, name) for name in SENSORS},
            gflop_per_j=problem.flops / outcome.energy_j / 1e9 if outcome.energy_j else None,
        )
    return rated(row, problem, roofline, device)


MARGIN: Final = 1.05
"""A measured ceiling may be so much too low: clocks and neighbours differ from minute to minute."""


def rated(row: Measurement, problem: Problem, roofline: Roofline, device: Device) -> Measurement:
    """The row with the roofs of ``roofline``; ``impossible`` if it is faster than all allow."""
    roof = roofline.of(problem)
    roof = roof if roof and roof.us else None
    row = replace(
        row,
        roof_us=roof.us if roof else None,
        serial_us=_serial_us(problem, roofline),
        roof_tflops=problem.flops / roof.us / 1e6 if roof else None,
        bound=roof.bound if roof else "",
    )
    if row.time_us is None or row.time_hi_us is None:
        return row
    observed = _observed(roofline, device, problem, row.sm_mhz)
    least = _least_us(roofline, problem, warm=row.cache == "warm")
    impossible = least is not None and row.time_hi_us < least
    row = replace(
        row,
        status="impossible" if impossible else "ok",
        reason=f"all roofs allow {least:.4g} µs at least" if impossible else "",
        roof_percent=100 * roof.us / row.time_us if roof else None,
        observed_tflops=problem.flops / observed / 1e6 if observed else None,
        observed_percent=100 * observed / row.time_us if observed else None,
    )
    return concluded(row)


def _least_us(roofline: Roofline, problem: Problem, *, warm: bool) -> float | None:
    """The least time by the highest known ceilings; in a warm cache memory is no limit.

    Nor are other units: a kernel may compute exponentials by multiply-adds.
    """
    unlimited = problem.assumed or (warm and problem.record.resident)
    traffic = {} if unlimited else problem.traffic
    highest = roofline.highest()
    roof = highest.roof(problem.precision.name, problem.flops_each, traffic)
    if roof is None or not roof.us:
        return None
    compute = roof.bound == COMPUTE
    name = problem.precision.name
    ceiling = highest.compute(name) if compute else highest.bandwidth(roof.bound)
    if ceiling is None or ceiling.disturbed:
        return None
    return roof.us if ceiling.provenance == "derived" else roof.us / MARGIN


def _serial_us(problem: Problem, roofline: Roofline) -> float | None:
    place = problem.placement
    if not isinstance(place, FromHost):
        return None
    name, traffic = problem.precision.name, problem.traffic
    return roofline.serial_us(name, problem.flops, traffic, place.kernel_bytes)


def with_counters(row: Measurement, counters: Counters) -> Measurement:
    """The row with what counters found."""
    others = {name: count for name, count in counters.others.items() if name in COLUMNS}
    row = replace(
        row,
        own={**row.own, **others},
        counted_flops=counters.all_flops,
        tensor_flops=counters.tensor_flops,
        fp64_flops=counters.flops.get("fp64", 0.0),
        fp32_flops=counters.flops.get("fp32", 0.0),
        fp16_flops=counters.flops.get("fp16", 0.0),
        dram_bytes=counters.dram_bytes,
        l2_bytes=counters.l2_bytes,
        l1_bytes=counters.l1_bytes,
        cycles=counters.cycles,
        counted_mhz=counters.mhz,
    )
    return concluded(row)


def _observed(
    roofline: Roofline, device: Device, problem: Problem, sm_mhz: float | None
) -> float | None:
    """The roof in µs at the observed clock, with the same bandwidths; None if unknown.

    Of several GPUs only the clock of the first one is observed.
    """
    known = sm_mhz and problem.gpus == 1
    compute = device.observed(problem.precision.name, sm_mhz) if known and sm_mhz else None
    if compute is None:
        return None
    others = (device.observed(unit, sm_mhz) for unit in problem.units) if sm_mhz else ()
    at_clock = Roofline(
        (*roofline.ceilings, compute, *filter(None, others)),
        (),
        roofline.memory,
        ("observed", *roofline.prefer),
    )
    roof = at_clock.of(problem)
    return roof.us if roof else None
