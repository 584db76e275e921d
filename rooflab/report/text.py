"""Figures as text: digits, intervals, amounts. Used by all printed output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import exp, hypot, inf, isfinite, log

from rooflab.model.facts import Fact
from rooflab.model.measurement import LOW_INTENSITY, Measurement
from rooflab.model.precision import PRECISIONS
from rooflab.model.problem import PROGRAM, ProblemRecord


def digits(value: float | None, count: int) -> str:
    """``value`` with ``count`` significant digits and no exponent, empty for None."""
    if value is None:
        return ""
    if value == 0 or not isfinite(value) or not 1e-30 < abs(value) < 1e30:
        return f"{value:g}"
    places = count - 1
    while places > 0 and abs(value) >= 10 ** (count - places):
        places -= 1
    while abs(value) < 10 ** (count - places - 1) and places < count + 12:
        places += 1
    return f"{value:.{places}f}"


def interval_percent(row: Measurement) -> float | None:
    """Half of the 95 % interval in percent of the time."""
    if not row.time_us or row.time_lo_us is None or row.time_hi_us is None:
        return None
    return 50 * (row.time_hi_us - row.time_lo_us) / row.time_us


def half_width(percent: float | None) -> str:
    """Half of an interval, in percent; it says nothing more above 100. Empty for None."""
    return "" if percent is None else f"{percent:.1f}" if percent < 100 else "> 100"


def log_interval(row: Measurement) -> float | None:
    """Half of the 95 % interval of the time's logarithm, None if there is none."""
    low, high = row.time_lo_us, row.time_hi_us
    return log(high / low) / 2 if low and high and 0 < low <= high < inf else None


def times_as_fast(slow: Measurement, fast: Measurement) -> tuple[float, float | None]:
    """How many times as fast one row is, and the factor by which that may be off either way.

    The factor follows from both 95 % intervals; it is None if one is missing.
    """
    ratio = (slow.time_us or 0) / (fast.time_us or 1)
    errors = [half for row in (slow, fast) if (half := log_interval(row)) is not None]
    return ratio, exp(hypot(*errors)) if len(errors) == 2 else None


def time_text(us: float) -> str:
    """A time with its unit, three digits."""
    for unit, scale in (("s", 1e6), ("ms", 1e3)):
        if us >= scale:
            return f"{digits(us / scale, 3)} {unit}"
    return f"{digits(us, 3)} µs"


def count_text(count: float | None) -> str:
    """How often something happens in a step: ``12``, or ``0.2`` if not each step has one."""
    if count is None or not isfinite(count):
        return ""
    return f"{count:.0f}" if count == round(count) else digits(count, 3)


def share_text(part: float, whole: float) -> str:
    """``4.2 %``: a part of a whole, in two digits, or in three of nearly all; ``100 %`` of none."""
    percent = 100 * part / whole if whole else 100.0
    return f"{digits(percent, 3 if 99.5 <= percent < 99.95 else 2)} %"


def precision_title(name: str) -> str:
    """``FP32`` for ``fp32``; names of unknown precisions unchanged."""
    return PRECISIONS[name].title if name in PRECISIONS else name


def heading(problem: ProblemRecord) -> str:
    """The heading of a table: ``gemm FP32, layout nn``."""
    start = f"{problem.workload} {precision_title(problem.precision)}"
    if problem.workload == PROGRAM:  # not each row of it has a precision
        return problem.workload
    return f"{start}, {problem.about}" if problem.about else start


def label(row: Measurement) -> str:
    """One row in a line of text: ``tiled gemm fp32 4096, layout nn``."""
    problem = row.problem
    if problem.workload == PROGRAM:
        return f"{row.kernel} {problem.size}".removesuffix(" -")
    start = f"{row.kernel} {problem.workload} {problem.precision} {problem.size}"
    return f"{start}, {problem.about}" if problem.about else start


def speed(row: Measurement) -> str:
    """The speed of a row: FLOP/s, or bytes per second at low intensity."""
    if (row.intensity or 0) < LOW_INTENSITY:
        gbps = row.gbps or 0
        return f"{digits(gbps / 1e3, 3)} TB/s" if gbps >= 1e3 else f"{digits(gbps, 3)} GB/s"
    tflops = row.tflops or 0
    return f"{digits(tflops, 3)} TFLOP/s" if tflops >= 1 else f"{digits(tflops * 1e3, 3)} GFLOP/s"


def as_json(content: object) -> str:
    """JSON for other programs; raises ``ValueError`` for NaN and infinity."""
    return json.dumps(content, indent=1, allow_nan=False) + "\n"


def reached(row: Measurement) -> str:
    """A row, its speed and the part of its roof in a line of text."""
    share = "" if row.roof_percent is None else f", {digits(row.roof_percent, 3)} % of roof"
    return f"{label(row)}: {speed(row)}{share}"


def fact_cells(facts: Mapping[str, Fact]) -> list[tuple[str, str, str]]:
    """The name of each fact, its value, and its source or why it is missing."""
    return [
        (
            name.replace("_", " "),
            fact_text(fact),
            fact.reason if fact.value is None else fact.source,
        )
        for name, fact in facts.items()
    ]


def fact_text(fact: Fact) -> str:
    """Value and unit for people; memory in binary units, as vendors use them."""
    if fact.value is None:
        return "–"
    if fact.unit == "B" and isinstance(fact.value, int):
        exponent = min((fact.value.bit_length() - 1) // 10, 3) if fact.value else 0
        unit = ("B", "KiB", "MiB", "GiB")[exponent]
        return f"{fact.value / 1024**exponent:.4g} {unit}"
    value = f"{fact.value:.5g}" if isinstance(fact.value, float) else fact.value
    return f"{value} {fact.unit}".strip()
