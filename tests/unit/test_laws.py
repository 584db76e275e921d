"""A law for every column: what it must be, from the row's other columns, its problem and its run.

Laws are checked on the runs of tests/data/runs, on those of every schema, and on runs of the exact
devices through the command line. They are written again from the definitions, not with the
functions that fill the rows. A law gives a value, ``Within`` limits, or None for an empty cell.
Figures agree but for the digits of the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import median, stdev
from typing import Any

import fake
import numpy as np
import pytest
from commands import pictures, plain_terminal  # noqa: F401  fixtures

from rooflab.cli import main
from rooflab.model.measurement import COLUMNS, FLAGS, STATUSES, Measurement
from rooflab.model.problem import Operand, Problem
from rooflab.model.roofline import Ceiling
from rooflab.runs import store
from rooflab.workloads import rebuild

DATA = Path(__file__).parents[1] / "data"

DIGITS = 2e-7
"""Cells have eight digits; a figure follows from two or three of them."""

SAMPLE_DIGITS = 1e-5
"""Samples have six digits."""


@dataclass(frozen=True)
class Within:
    """Limits, both included but for rounding."""

    low: float
    high: float


@dataclass(frozen=True)
class Case:
    """A row and what its law may know."""

    run: store.RunData
    row: Measurement
    columns: list[str]
    rounds: list[list[float]]
    """From ``samples.jsonl``; empty if the run came without it."""

    @cached_property
    def problem(self) -> Problem:
        return rebuild(self.row.problem)

    @property
    def time_us(self) -> float:
        """Of a row that has one."""
        assert self.row.time_us is not None
        return self.row.time_us

    @property
    def timed(self) -> bool:
        return self.row.status in ("ok", "impossible")

    @property
    def flagged(self) -> set[str]:
        return set(self.row.flag_names)

    @property
    def old(self) -> bool:
        """Before schema 3, when intervals and windows of energy were others."""
        return self.run.manifest.schema_version < 3

    @property
    def exact(self) -> bool:
        """Whether an instrumented exact device measured it."""
        return self.run.manifest.device.id in (fake.Instrumented.id, fake.Limited.id)

    @property
    def plain(self) -> bool:
        """Whether another exact device did: all its launches take the same time."""
        return self.run.manifest.device.kind == "exact" and not self.exact

    @property
    def samples(self) -> list[float]:
        return [sample for times in self.rounds for sample in times]

    def timing(self, name: str) -> Any:
        return self.run.manifest.config["timing"][name]

    def fact(self, name: str) -> Any:
        fact = self.run.manifest.device.facts.get(name)
        return fact.value if fact else None

    def ceiling(self, kind: str, key: str, *prefer: str) -> Ceiling | None:
        ceilings = self.run.manifest.roofline.ceilings
        for provenance in prefer or self.run.manifest.roofline.prefer:
            for one in ceilings:
                if (one.kind, one.key, one.provenance) == (kind, key, provenance):
                    return one
        return None


# Problems ----------------------------------------------------------------------------------------


def size(operand: Operand) -> int:
    return math.prod(operand.shape) * np.dtype(operand.type.storage).itemsize


def passes(operand: Operand) -> int:
    """How often each element is read or written."""
    return {"in": 1, "out": 1, "inout": 2}[operand.role]


def largest_part(total: int, count: int) -> int:
    return -(-total // count)


def smallest_part(total: int, count: int) -> int:
    return total // count


def traffic(case: Case) -> dict[str, int]:
    """Compulsory bytes by link, of the GPU that has the most of them."""
    problem = case.problem
    if problem.workload in ("allreduce", "allgather"):
        return collective_traffic(problem)
    if problem.gpus > 1:
        return product_traffic(problem)
    whole = sum(size(one) * passes(one) for one in problem.operands)
    if not case.row.problem.streamed:
        return {"dram": whole}
    pageable = "_pageable" if problem.host == "pageable" else ""
    up = sum(size(one) for one in problem.operands if one.role != "out")
    down = sum(size(one) for one in problem.operands if one.role != "in")
    return {"dram": 2 * whole, f"h2d{pageable}": up, f"d2h{pageable}": down}


def collective_traffic(problem: Problem) -> dict[str, int]:
    given, result = (size(one) // problem.gpus for one in problem.operands)
    if problem.workload == "allreduce":
        return {"dram": given + result, "peer": result}
    return {"dram": given + result, "peer": (problem.gpus - 1) * given}


def product_traffic(problem: Any) -> dict[str, int]:
    """Of a GEMM: a GPU keeps its rows of A, and gets the columns of B of all others.

    Split by columns A and B change places. It sends its own part to each of the others.
    """
    sizes = {one.name: size(one) * passes(one) for one in problem.operands}
    kept, moving = ("a", "b") if problem.split == "rows" else ("b", "a")
    ours, theirs = ("m", "n") if problem.split == "rows" else ("n", "m")
    ours, theirs = getattr(problem, ours), getattr(problem, theirs)
    gpus = problem.gpus
    assert ours % gpus == theirs % gpus == 0, "choose sizes that divide"
    own = sizes[moving] // gpus
    others = sizes[moving] - own
    kept_or_written = (sizes[kept] + sizes["c"]) // gpus
    return {
        "dram": kept_or_written + sizes[moving] + others + (gpus - 1) * own,
        "peer": others,
    }


def flops_each(case: Case) -> int:
    """Of the GPU that has the most of them."""
    return largest_part(case.problem.flops, case.problem.gpus)


# Roofs -------------------------------------------------------------------------------------------


def link_seconds(case: Case) -> dict[str, float] | None:
    """Least seconds of each link alone, None if the rate of one is unknown."""
    found = {}
    for link, count in traffic(case).items():
        memory = case.run.manifest.roofline.memory
        rate = (
            case.ceiling("bandwidth", memory)
            if link == "dram"
            else case.ceiling("bandwidth", link.upper(), "measured", "derived")
        )
        if rate is None:
            return None
        found[link] = count / rate.value
    return found


def both_ways(case: Case, links: dict[str, float]) -> dict[str, float]:
    """The busier direction of the host's link has a lower rate while the other one is busy."""
    host = {link: seconds for link, seconds in links.items() if link[:3] in ("h2d", "d2h")}
    if len(host) < 2:
        return links
    busier, other = sorted(host, key=host.__getitem__, reverse=True)
    shared = case.ceiling("bandwidth", f"{busier}_both".upper(), "measured", "derived")
    alone = case.ceiling("bandwidth", busier.upper(), "measured", "derived")
    if shared is None or alone is None:
        return links
    amount = traffic(case)
    together = min(amount[busier], amount[other])
    return {
        **links,
        busier: together / shared.value + (amount[busier] - together) / alone.value,
    }


def limits(case: Case, clock: float = 1.0) -> dict[str, float]:
    """Least seconds by cause, at that part of the highest clock; empty if one is unknown."""
    links = link_seconds(case)
    if links is None:
        return {}
    found = both_ways(case, links)
    compute = case.ceiling("compute", case.problem.precision.name)
    if compute and case.problem.flops:
        found["compute"] = flops_each(case) / (compute.value * clock)
        exponentials = case.ceiling("compute", "sfu")
        if exponentials and case.problem.workload.startswith("attention"):
            found["sfu"] = seen_keys(case) / (exponentials.value * clock)
    elif case.problem.flops and not case.problem.precision.output.name.startswith("int"):
        return {}
    return found


def seen_keys(case: Case) -> int:
    """Of all queries."""
    extents, causal = case.problem.extents, case.problem.settings["causal"] == "on"
    queries, keys = extents["queries"], extents["keys"]
    seen = sum(keys - i for i in range(queries)) if causal else queries * keys
    return extents["batch"] * extents["heads"] * seen


def roof(case: Case) -> float | None:
    """Microseconds."""
    found = limits(case)
    return 1e6 * max(found.values()) if found else None


def with_highest(case: Case) -> Case:
    """The same row below the highest ceilings, wherever they are from."""
    best: dict[tuple[str, str], Ceiling] = {}
    for one in sorted(case.run.manifest.roofline.ceilings, key=lambda one: one.value):
        best[one.kind, one.key] = one
    roofline = replace(case.run.manifest.roofline, ceilings=tuple(best.values()))
    manifest = case.run.manifest.model_copy(update={"roofline": roofline})
    return replace(case, run=replace(case.run, manifest=manifest))


def least_us(case: Case) -> float | None:
    """What no launch can take less than, None if that is not known.

    A measured ceiling may be a twentieth too low, a disturbed one by any amount. What fits into a
    warm cache need not come from memory.
    """
    highest = with_highest(case)
    found = limits(highest)
    found.pop("sfu", None)  # what it does multiply-adds could do
    here = case.problem.gpus == 1 and not case.row.problem.streamed
    if case.row.cache == "warm" and here:
        found = {cause: seconds for cause, seconds in found.items() if cause == "compute"}
    if not found:
        return None
    cause = max(found, key=found.__getitem__)
    memory = case.run.manifest.roofline.memory
    name = case.problem.precision.name if cause == "compute" else cause.upper()
    ceiling = highest.ceiling(
        "compute" if cause == "compute" else "bandwidth",
        memory if cause == "dram" else name,
        *("measured", "derived"),
    )
    if ceiling is None or "other programs used" in ceiling.caveat:
        return None
    return 1e6 * found[cause] / (1.05 if ceiling.provenance == "measured" else 1)


def observed_roof(case: Case) -> float | None:
    """Microseconds at the clock of the row, which scales the derived peak of the highest clock."""
    highest, clock = case.fact("sm_clock_max"), case.row.sm_mhz
    if not highest or not clock or case.problem.gpus > 1:
        return None
    found = limits(case, clock / highest)
    return 1e6 * max(found.values()) if "compute" in found or not case.problem.flops else None


# Laws --------------------------------------------------------------------------------------------

Law = Callable[[Case], Any]


def when_timed(law: Law) -> Law:
    """A law of the rows with figures; the cells of the others are empty."""

    def applied(case: Case) -> Any:
        return law(case) if case.timed else None

    return applied


def sensed(name: str, low: float, high: float) -> Law:
    """A sensor: exactly what the exact device shows, a possible value elsewhere."""

    def law(case: Case) -> Any:
        if case.exact:
            return getattr(fake.SENSED, name)
        return getattr(case.row, name) and Within(low, high)

    return when_timed(law)


def counted(name: str, key: str, elsewhere: Law) -> Law:
    """A counter: what the exact device counts in the time of a launch."""

    def law(case: Case) -> Any:
        if getattr(case.row, name) is None:
            return None
        if not case.exact:
            return elsewhere(case)
        return fake.COUNTED[key] * launch_time(case)

    return when_timed(law)


def approximately(value: float, share: float) -> Within:
    return Within(value * (1 - share), value * (1 + share))


def launch_time(case: Case) -> float:
    """Microseconds that the exact device takes for a launch of ``fast`` or ``slow``."""
    peak, bandwidth = fake.PEAK, fake.BANDWIDTH
    seconds = max(case.problem.flops / peak, traffic(case)["dram"] / bandwidth)
    shares = {"fast": 0.8, "slow": 0.2, "rough": 0.5, "seeds": 0.5, "beats_the_roof": 4.0}
    return 1e6 * seconds / shares[case.row.kernel]


def by_definition(case: Case) -> dict[str, float]:
    """The figures of the samples: median of medians, its interval, extremes, quantiles."""
    middles = sorted(median(times) for times in case.rounds)
    low, high = by_ranks(middles) if len(middles) > 5 else by_students_t(middles)
    p05, p95 = np.quantile(case.samples, [0.05, 0.95])
    return {
        "time_us": median(middles),
        "time_lo_us": low,
        "time_hi_us": high,
        "time_min_us": min(case.samples),
        "time_p05_us": float(p05),
        "time_p95_us": float(p95),
    }


def by_ranks(ordered: list[float]) -> tuple[float, float]:
    """Of n values the k-th from both ends; between two k so that 95 % is reached exactly."""
    n = len(ordered)

    def enclosed(k: int) -> float:
        return float(sum(math.comb(n, i) for i in range(k, n - k + 1)) / 2**n)

    k = max(k for k in range(1, n // 2 + 1) if enclosed(k) >= 0.95)
    part = (enclosed(k) - 0.95) / (enclosed(k) - enclosed(k + 1))
    weight = (n - k) * part / (k + (n - 2 * k) * part)
    ends = ordered[k - 1], ordered[k], ordered[-k - 1], ordered[-k]
    return ends[0] + weight * (ends[1] - ends[0]), ends[3] - weight * (ends[3] - ends[2])


def by_students_t(ordered: list[float]) -> tuple[float, float]:
    """Of the logarithms; √(π/2) wider than that of a mean."""
    t = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}[len(ordered)]
    half = t * math.sqrt(math.pi / 2) * stdev(map(math.log, ordered)) / math.sqrt(len(ordered))
    return median(ordered) / math.exp(half), median(ordered) * math.exp(half)


def of_samples(name: str, low: str | None, high: str | None) -> Law:
    """A figure of the samples; between two other columns if there are no samples."""

    def law(case: Case) -> Any:
        if case.rounds:
            return approximately(by_definition(case)[name], SAMPLE_DIGITS)
        least = getattr(case.row, low) if low else 0.0
        return Within(least, getattr(case.row, high) if high else math.inf)

    return when_timed(law)


def time_us(case: Case) -> Any:
    if not case.exact:
        return of_samples("time_us", "time_lo_us", "time_hi_us")(case)
    us = launch_time(case) + (0.0 if "batch_timed" in case.flagged else fake.EVENTS_US)
    declared = Within(us, us * 1.002)
    of_its_samples = of_samples("time_us", None, None)(case)
    return of_its_samples if within(case.row.time_us, declared) else declared


def pair_us(case: Case) -> Any:
    """Of a launch that was timed alone it is the time itself."""
    if "batch_timed" not in case.flagged or case.plain:
        return case.row.time_us
    if case.exact:
        us = launch_time(case) + fake.EVENTS_US
        return Within(us, us * 1.002)
    us = case.row.time_us or 0.0
    return Within(0.5 * us, us + 50)  # a device or a core that rested is slower, or cooler


def launch_us(case: Case) -> Any:
    if case.exact:
        return approximately(fake.EMPTY_US, 0.002)
    return Within(0, 10)


def status(case: Case) -> Any:
    row, least = case.row, least_us(case)
    if row.status not in STATUSES:
        return f"one of {STATUSES}"
    if row.time_us is None or row.time_hi_us is None:
        return f"not {row.status}" if case.timed else row.status
    return "impossible" if least and row.time_hi_us < least else "ok"


def rel_error(case: Case) -> Any:
    if case.exact and case.row.kernel == "rough":
        return approximately(fake.ROUGH, 0.05)
    if not case.timed:
        return case.row.rel_error
    return Within(0, case.problem.tolerance)


def samples(case: Case) -> Any:
    if case.rounds:
        return len(case.samples)
    most = max(case.timing("round_samples"), case.timing("round_s") * 1e6 / case.time_us)
    assert case.row.rounds
    return Within(case.row.rounds, case.row.rounds * most)


def rounds(case: Case) -> Any:
    return len(case.rounds) or Within(2, case.timing("max_rounds"))


def memory_bytes(case: Case) -> Any:
    """Before schema 4 the column had the bytes of a link, if there was one."""
    known = case.row.problem.resident or "host_bytes" in case.columns
    return traffic(case)["dram"] if known else None


def host_bytes(case: Case) -> Any:
    """In both directions together."""
    moved = (count for link, count in traffic(case).items() if link != "dram")
    return sum(moved) if case.row.problem.streamed else None


def peer_bytes(case: Case) -> Any:
    return traffic(case)["peer"] if case.problem.gpus > 1 else None


def link_bytes(case: Case) -> Any:
    """Of the slowest link."""
    found = (peer_bytes(case), host_bytes(case), traffic(case)["dram"])
    return next(count for count in found if count is not None)


def bus_gbps(case: Case) -> Any:
    """NCCL's tests, doc/PERFORMANCE.md: 2·(n - 1)/n and (n - 1)/n of the algorithm's bandwidth."""
    factor = {"allreduce": 2, "allgather": 1}.get(case.problem.workload)
    if factor is None:
        return None
    gpus = case.problem.gpus
    assert case.row.algorithm_gbps
    return case.row.algorithm_gbps * factor * (gpus - 1) / gpus


def algorithm_gbps(case: Case) -> Any:
    """The result that each GPU has in the end, over the time."""
    if case.problem.workload not in ("allreduce", "allgather"):
        return None
    result = next(size(one) for one in case.problem.operands if one.name == "y")
    return result / case.problem.gpus / case.time_us / 1e3


def serial_us(case: Case) -> Any:
    """The kernels, and then each direction of the link."""
    links, found = link_seconds(case), limits(case)
    if not case.row.problem.streamed or not links or not found:
        return None
    memory = case.ceiling("bandwidth", case.run.manifest.roofline.memory)
    assert memory
    kernels = max(traffic(case)["dram"] / 2 / memory.value, found.get("compute", 0.0))
    return 1e6 * (kernels + sum(links[link] for link in links if link != "dram"))


def roof_tflops(case: Case) -> Any:
    us = roof(case)
    return us and case.problem.flops / us / 1e6


def roof_percent(case: Case) -> Any:
    us = roof(case)
    return us and 100 * us / case.time_us


def observed_tflops(case: Case) -> Any:
    us = observed_roof(case)
    return us and case.problem.flops / us / 1e6


def observed_percent(case: Case) -> Any:
    us = observed_roof(case)
    return us and 100 * us / case.time_us


def bound(case: Case) -> Any:
    found = limits(case)
    highest = max(found.values(), default=0.0)
    longest = [cause for cause, seconds in found.items() if seconds >= highest * (1 - 1e-9)]
    return case.row.bound if case.row.bound in longest else "".join(longest[:1])


def burst_us(case: Case) -> Any:
    """Of the kernels that the power limit slows down. The exact device is as fast as ever."""
    if "power_capped" not in case.flagged or case.row.burst_us is None:
        return None
    if case.exact:
        us = launch_time(case)
        return Within(us, us * 1.002)
    return Within(0.3 * case.time_us, 1.1 * case.time_us)


def burst_mhz(case: Case) -> Any:
    """Not below the clock of the rounds, but for that of a single reading."""
    if case.exact:
        return row_if(case, "burst_us", fake.SENSED.sm_mhz)
    least = 0.95 * (case.row.sm_mhz or 0)
    return row_if(case, "burst_mhz", Within(least, 1.001 * (case.fact("sm_clock_max") or 0)))


def burst_w(case: Case) -> Any:
    """More than the settled power, which is the limit."""
    if case.exact:
        return row_if(case, "burst_w", Within(0, 100 * fake.WATTS))
    return row_if(case, "burst_w", Within(0.8 * (case.row.power_w or 0), 3000))


def changed(case: Case) -> Any:
    if case.exact or case.plain:
        return "random numbers are drawn" if case.row.kernel == "seeds" else ""
    return case.row.changed


def counted_flops(case: Case) -> Any:
    """Of the pipes that have a column; no other pipe does floating-point operations."""
    row = case.row
    pipes = (row.tensor_flops, row.fp64_flops, row.fp32_flops, row.fp16_flops)
    return None if row.counted_flops is None else sum(pipe or 0 for pipe in pipes)


def flops_of_a_pipe(case: Case) -> Within:
    return Within(0, case.row.counted_flops or 0)


def through(level: str) -> Law:
    """Bytes that a level can move in the time of the row, with a tenth to spare."""

    def law(case: Case) -> Within:
        rate = case.ceiling("bandwidth", level, "derived", "measured")
        assert rate and case.row.time_us and case.row.bytes
        # What the last-level cache holds from before need not be read, nor is all written back.
        least = case.row.bytes - 2 * case.fact("l2_cache") if level == "HBM" else case.row.bytes
        return Within(0.99 * least, 1.1 * rate.value * case.row.time_us / 1e6)

    return law


def cycles(case: Case) -> Within:
    """Counted in other launches, each with its start and end."""
    assert case.row.counted_mhz
    return approximately(case.row.counted_mhz * case.time_us, 0.3)


def counted_mhz(case: Case) -> Any:
    if case.exact:
        return case.row.cycles and fake.SENSED.sm_mhz
    return case.row.cycles and Within(200, 1.001 * case.fact("sm_clock_max"))


def energy_j(case: Case) -> Any:
    """Power over the time of a launch; the exact device counts by the host's clock."""
    row = case.row
    if row.energy_j is None or case.old:
        return row.energy_j
    if case.exact:  # by the host's clock, in one window or the other
        return Within(1e-9, fake.WATTS)
    assert row.power_w is not None
    return approximately(row.power_w * case.time_us / 1e6, 0.1)


def power_w(case: Case) -> Any:
    if case.exact:
        return row_if(case, "energy_j", approximately(fake.WATTS, 0.15))
    return row_if(case, "power_w", Within(50, 1.1 * (case.fact("power_limit") or 0)))


def row_if(case: Case, name: str, law: Any) -> Any:
    return None if getattr(case.row, name) is None else law


def energy_mhz(case: Case) -> Any:
    if case.exact:
        return row_if(case, "energy_j", fake.SENSED.sm_mhz)
    return row_if(case, "energy_mhz", Within(200, 1.001 * (case.fact("sm_clock_max") or 0)))


def gflop_per_j(case: Case) -> Any:
    energy = case.row.energy_j
    return None if energy is None else case.problem.flops / energy / 1e9


def cache(case: Case) -> str:
    """Operands that are elsewhere are not rotated through the device's cache."""
    here = case.problem.gpus == 1 and not case.row.problem.streamed
    return case.run.manifest.config.get("cache", "cold") if here and case.timed else case.row.cache


def flags(case: Case) -> str:
    """Those that follow from the row are there if and only if they must be."""
    row, us = case.row, roof(case)
    above = bool(us and row.time_us and row.time_us < us) and row.status == "ok"
    follows: dict[str, bool] = {"above_roof": above, "changed_settings": bool(row.changed)}
    if row.time_us and row.time_hi_us and row.time_lo_us:
        half = 50 * (row.time_hi_us - row.time_lo_us) / row.time_us
        follows["noisy"] = half > case.timing("precision_percent")
    if case.rounds:
        follows["outliers"] = has_outliers(case.samples)
    if not case.timed:
        follows = dict.fromkeys(follows, False)
    right = [name for name in row.flag_names if name in FLAGS and follows.get(name, True)]
    return ";".join(dict.fromkeys([*right, *(name for name, holds in follows.items() if holds)]))


def has_outliers(times: list[float]) -> bool:
    """Ten standard deviations, each 1.48 times the median deviation."""
    deviations = [abs(time - median(times)) for time in times]
    return any(one > 14.8 * median(deviations) > 0 for one in deviations)


def backend(case: Case) -> str:
    record = case.run.manifest.kernel(case.row.problem.workload, case.row.kernel)
    return record.backend if record else "of a kernel of the manifest"


LAWS: dict[str, Law] = {
    "backend": backend,
    "status": status,
    "rel_error": rel_error,
    "cache": cache,
    "samples": when_timed(samples),
    "rounds": when_timed(rounds),
    "time_us": when_timed(time_us),
    "time_lo_us": of_samples("time_lo_us", None, "time_us"),
    "time_hi_us": of_samples("time_hi_us", "time_us", None),
    "time_min_us": of_samples("time_min_us", None, "time_p05_us"),
    "time_p05_us": of_samples("time_p05_us", "time_min_us", "time_p95_us"),
    "time_p95_us": of_samples("time_p95_us", "time_p05_us", None),
    "pair_us": when_timed(pair_us),
    "launch_us": when_timed(launch_us),
    "host_us": lambda case: None,  # of functions: tests/gpu/test_functions.py
    "burst_us": when_timed(burst_us),
    "burst_mhz": when_timed(burst_mhz),
    "burst_w": when_timed(burst_w),
    "changed": changed,
    "flops": lambda case: case.problem.flops,
    "bytes": memory_bytes,
    "host_bytes": host_bytes,
    "peer_bytes": peer_bytes,
    "intensity": lambda case: case.problem.flops / link_bytes(case),
    "tflops": when_timed(lambda case: case.problem.flops / case.time_us / 1e6),
    "gbps": when_timed(lambda case: link_bytes(case) / case.time_us / 1e3),
    "algorithm_gbps": when_timed(algorithm_gbps),
    "bus_gbps": when_timed(bus_gbps),
    "roof_us": roof,
    "serial_us": serial_us,
    "roof_tflops": roof_tflops,
    "roof_percent": when_timed(roof_percent),
    "observed_tflops": when_timed(observed_tflops),
    "observed_percent": when_timed(observed_percent),
    "bound": bound,
    "sm_mhz": sensed("sm_mhz", 200, 2100),
    "nvml_mhz": sensed("nvml_mhz", 200, 2100),
    "mem_mhz": sensed("mem_mhz", 400, 4000),
    "temp_c": sensed("temp_c", 20, 95),
    "counted_flops": counted_flops,
    "tensor_flops": counted("tensor_flops", "tensor_fp16", flops_of_a_pipe),
    "fp64_flops": counted("fp64_flops", "fp64", flops_of_a_pipe),
    "fp32_flops": counted("fp32_flops", "fp32", flops_of_a_pipe),
    "fp16_flops": counted("fp16_flops", "fp16", flops_of_a_pipe),
    "dram_bytes": counted("dram_bytes", "dram", through("HBM")),
    "l2_bytes": counted("l2_bytes", "l2", through("L2")),
    "l1_bytes": counted("l1_bytes", "l1", through("L1")),
    "cycles": counted("cycles", "cycles", cycles),
    "counted_mhz": when_timed(counted_mhz),
    "energy_j": when_timed(energy_j),
    "power_w": when_timed(power_w),
    "energy_mhz": when_timed(energy_mhz),
    "gflop_per_j": when_timed(gflop_per_j),
    "flags": flags,
}

WITHOUT_LAW = {
    "kernel": "identity: the user's word, which finds the law of its backend",
    "variant": "text: a kernel's own names",
    "reason": "text: see the next test",
    **dict.fromkeys(
        ("launches", "total_us", "share_percent", "recoverable_us", "expected_dram_bytes"),
        "of programs: tests/unit/report/test_program.py, tests/unit/programs/test_rows.py",
    ),
}


# Checks ------------------------------------------------------------------------------------------


def within(value: float | None, limits: Within) -> bool:
    return value is not None and (limits.low * (1 - DIGITS) <= value <= limits.high * (1 + DIGITS))


def obeyed(value: Any, law: Any) -> bool:
    if isinstance(law, Within):
        return within(value, law)
    if isinstance(law, float | int) and isinstance(value, float | int):
        both_nan = math.isnan(value) and math.isnan(law)
        return both_nan or math.isclose(value, law, rel_tol=DIGITS)
    return bool(value == law)


def broken(case: Case) -> Iterator[str]:
    """The laws that the row breaks."""
    for name, law in LAWS.items():
        value = getattr(case.row, name)
        if name in case.columns and not obeyed(value, expected := law(case)):
            row = f"{case.row.kernel} {case.row.problem.precision} {case.row.problem.size}"
            yield f"{name} of {row} is {value}, not {expected}"


def cases(folder: Path) -> list[Case]:
    run = store.load(folder)
    columns = (folder / store.MEASUREMENTS).read_text().splitlines()[0].split(",")
    return [Case(run, row, columns, raw_samples(folder, row)) for row in run.measurements]


def raw_samples(folder: Path, row: Measurement) -> list[list[float]]:
    path = folder / store.SAMPLES
    for line in path.read_text().splitlines() if path.exists() else ():
        found = json.loads(line)
        keys = (found["kernel"], found["workload"], found["precision"])
        same = keys == (row.kernel, row.problem.workload, row.problem.precision)
        if same and found["parameters"] == row.problem.parameters:
            return [list(map(float, times)) for times in found["rounds"]]
    return []


KEPT = sorted([*DATA.glob("runs/*"), *DATA.glob("schema*")])

TIMING = """
[timing]
energy_s = 0.1
own_clock_s = 0.01
burst_rest_s = 0.01
warmup_s = 0
warmup_launches = 2
min_rounds = 4
max_rounds = 7
round_samples = 8
"""
MEMORY_BOUND = "".join(
    f"[workloads.{name}]\nsizes = [1000]\nprecisions = [{precisions}]\n"
    for name, precisions in {
        "copy": "'fp64'",
        "add": "'fp32', 'int32'",
        "triad": "'fp32'",
        "sum": "'int32'",
        "gemv": "'fp32'",
        "softmax": "'fp32'",
        "rmsnorm": "'fp32'",
    }.items()
)
COLLECTIVES = "".join(
    f"[workloads.{name}]\nsizes = [1001]\nprecisions = ['fp32']\ngpus = [2, 4]\n"
    for name in ("allreduce", "allgather")
)
MADE = {
    "every sensor": (
        "",
        "-k fast,rough,nan --sizes 48,96 -p fp32,fp64 --layout nt --beta 0.5 "
        "--counters --device fake:Instrumented",
    ),
    "at the power limit": (
        "",
        "-k fast,rough --sizes 48 -p fp32 --device fake:Limited",
    ),
    "too fast": ("", "-k fast,beats_the_roof,seeds --sizes 48 -p fp32 --device fake:FakeDevice"),
    "too fast for a cache": (
        "",
        "-k fast,beats_the_roof --shape 48x48x48,64x64x1 -p fp32 --cache warm "
        "--device fake:FakeDevice",
    ),
    "special functions": (
        "[workloads.attention]\nshapes = ['64x64x4x2', '1x300x4x2']\ncausal = 'on'\n"
        "precisions = ['fp32']\nkernels = ['fast']\n"
        "[workloads.attention_backward]\nshapes = ['64x64x4x2']\nprecisions = ['fp32']\n"
        "kernels = ['fast']\n",
        "--device fake:Special",
    ),
    "memory-bound": (MEMORY_BOUND, "--device fake:FakeDevice"),
    "warm": ("", "fft --sizes 16 -p fp32 --cache warm --device fake:FakeDevice"),
    "streamed": (
        "",
        "add --shape 16x16x40 -k fast -p fp32 --host pinned,none --chunk 10 --streams 1,2 "
        "--device fake:Streaming",
    ),
    "several GPUs": (
        "",
        "gemm -k fast --shape 64x32x16 -p fp32 --gpus 1,2,4 --split rows,columns "
        "--device fake:Grouped",
    ),
    "collectives": (COLLECTIVES, "--device fake:Grouped"),
}
"""Settings and options of sweeps whose rows together have every column."""


@pytest.mark.parametrize("folder", KEPT, ids=lambda folder: folder.name)
def test_a_kept_run_obeys(folder: Path) -> None:
    assert [one for case in cases(folder) for one in broken(case)] == []


@pytest.mark.parametrize(("settings", "options"), MADE.values(), ids=MADE)
def test_a_run_of_the_exact_device_obeys(settings: str, options: str) -> None:
    Path("short.toml").write_text(settings + TIMING)
    with pytest.raises(SystemExit):
        main(["sweep", *options.split(), "--config", "short.toml", "--out", "results"])
    (folder,) = Path("results").iterdir()
    found = cases(folder)
    assert any(case.timed for case in found)
    assert [one for case in found for one in broken(case)] == []
    assert lawless(found) == []


def lawless(found: list[Case]) -> list[str]:
    """Columns with a figure that may be a fifth larger or smaller, and no law notices."""
    free = []
    for name, column in COLUMNS.items():
        with_figure = [case for case in found if case.timed and getattr(case.row, name)]
        if column.type is str or not with_figure:
            continue
        case = max(with_figure, key=lambda case: case.row.kernel == "rough")
        if name == "rel_error" and case.row.kernel != "rough":
            continue  # of rounding
        if name == "burst_w":
            continue  # a small part of an energy that the host's clock measures
        for factor in (1.2, 1 / 1.2):
            changed = replace(case.row, **{name: getattr(case.row, name) * factor})
            if not any(broken(replace(case, row=changed))):
                free.append(f"{name} × {factor:.2f}")
    return free


def test_every_column_has_a_law_or_a_reason() -> None:
    assert {*LAWS, *WITHOUT_LAW} == {*COLUMNS}
    assert not {*LAWS} & {*WITHOUT_LAW}
