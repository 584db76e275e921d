"""The record: one row per kernel and problem, and the one table that names its columns. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Final

STATUSES: Final = ("ok", "incorrect", "failed", "skipped", "timeout")

BATCH_TIMED: Final = "batch_timed"

FLAGS: Final = {
    BATCH_TIMED: "too short for one event pair each: timed several launches at once",
    "ungated": "did not queue behind the gate: times may include waiting for the host",
    "noisy": "the interval stayed wider than asked for",
    "outliers": "some samples lie more than ten standard deviations off; they are kept",
    "power_capped": "the power limit held the clock down, which is normal at full load",
    "voided": "heat or a power brake spoiled up to 3 rounds, which were measured again",
    "throttled": "heat or a power brake held the clock down: cool the device and repeat",
    "cache_suspect": "rotated operands and a flushed cache differ by more than 5 %",
    "l2_resident": "the operands fit in the last-level cache, and were meant to",
}
"""What ``flags`` may say, in words."""


def _column(heading: str, description: str, default: Any = None, digits: int | None = None) -> Any:
    metadata = {"heading": heading, "description": description, "digits": digits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Measurement:
    """One row of ``measurements.csv``. Units stand in the names; None is an empty cell.

    Only rows with status ``ok`` carry performance figures, and only they are plotted.
    """

    kernel: str = _column("kernel", "registered name", "")
    backend: str = _column("backend", "what provides the kernel", "")
    variant: str = _column("variant", "compile-time parameters, empty for the only one", "")
    m: int = _column("M", "rows of C", 0)
    n: int = _column("N", "columns of C", 0)
    k: int = _column("K", "length of the sums", 0)
    batch: int = _column("batch", "number of matrices", 1)
    precision: str = _column("precision", "input, accumulate and output types together", "")
    layout: str = _column("layout", "row-major transposition of A and B", "nn")
    alpha: float = _column("alpha", "factor of the product", 1.0)
    beta: float = _column("beta", "factor of the old C", 0.0)
    status: str = _column("status", ", ".join(STATUSES), "ok")
    reason: str = _column("reason", "why the status is not ok", "")
    rel_error: float | None = _column("rel. error", "‖C - ref‖ / ‖ref‖", digits=2)
    cache: str = _column("cache", "cold: operands rotated through memory; warm: reused", "")
    samples: int | None = _column(
        "samples", "times taken: launches, or batches where they are timed together"
    )
    rounds: int | None = _column("rounds", "groups of samples, spread over the problem's time")
    time_us: float | None = _column("time µs", "median of the round medians", digits=5)
    time_lo_us: float | None = _column("low µs", "lower end of its 95 % interval", digits=5)
    time_hi_us: float | None = _column("high µs", "upper end of its 95 % interval", digits=5)
    time_min_us: float | None = _column("min µs", "fastest sample", digits=5)
    time_p05_us: float | None = _column("p05 µs", "5th percentile of the samples", digits=5)
    time_p95_us: float | None = _column("p95 µs", "95th percentile of the samples", digits=5)
    pair_us: float | None = _column(
        "pair µs", "median between two events around one launch", digits=5
    )
    launch_us: float | None = _column(
        "launch µs", "an empty launch in the same process: part of time_us", digits=4
    )
    flops: int | None = _column("FLOP", "2·M·N·K·batch")
    bytes: int | None = _column("bytes", "compulsory traffic")
    intensity: float | None = _column("FLOP/B", "flops / bytes", digits=4)
    tflops: float | None = _column("TFLOP/s", "flops / time", digits=4)
    gbps: float | None = _column("GB/s", "compulsory bytes / time, decimal", digits=4)
    roof_tflops: float | None = _column("roof TFLOP/s", "attainable at this intensity", digits=4)
    roof_percent: float | None = _column("% of roof", "tflops / roof_tflops", digits=3)
    observed_tflops: float | None = _column(
        "observed roof TFLOP/s", "attainable at the SM clock while timed", digits=4
    )
    observed_percent: float | None = _column("% of observed", "tflops / observed_tflops", digits=3)
    bound: str = _column("bound", "memory left of the ridge, compute right of it", "")
    sm_mhz: float | None = _column("SM MHz", "median SM clock while timed", digits=4)
    mem_mhz: float | None = _column("memory MHz", "median memory clock while timed", digits=4)
    power_w: float | None = _column("W", "median power while timed", digits=4)
    temp_c: float | None = _column("°C", "median temperature while timed", digits=3)
    energy_j: float | None = _column("J", "energy of one launch", digits=4)
    gflop_per_j: float | None = _column("GFLOP/J", "flops / energy_j", digits=4)
    flags: str = _column("flags", "observations, separated by ;", "")

    @property
    def shape(self) -> str:
        """``MxNxK``, with ``xBATCH`` where there is more than one."""
        batch = f"x{self.batch}" if self.batch > 1 else ""
        return f"{self.m}x{self.n}x{self.k}{batch}"

    @property
    def key(self) -> tuple[str, int, int, int, int, str, str, float, float]:
        """What identifies the point within a run."""
        return (
            self.kernel,
            self.m,
            self.n,
            self.k,
            self.batch,
            self.precision,
            self.layout,
            self.alpha,
            self.beta,
        )


@dataclass(frozen=True, slots=True)
class Column:
    """Name, heading, meaning, type and significant digits of one column."""

    name: str
    heading: str
    description: str
    type: type[str] | type[int] | type[float]
    optional: bool
    digits: int | None


def _columns() -> dict[str, Column]:
    types: dict[str, type[str] | type[int] | type[float]] = {
        "str": str,
        "int": int,
        "float": float,
    }
    return {
        f.name: Column(
            f.name,
            f.metadata["heading"],
            f.metadata["description"],
            types[str(f.type).removesuffix(" | None")],
            str(f.type).endswith("| None"),
            f.metadata["digits"],
        )
        for f in fields(Measurement)
    }


COLUMNS: Final[dict[str, Column]] = _columns()
"""Every column by name, in the order of the file."""
