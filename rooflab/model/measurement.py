"""The record: one row per kernel and problem, its columns and its flags. Pure.

``column``, ``counter`` and ``flag`` declare more of them; files of users call them too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from rooflab.errors import UsageError
from rooflab.model.problem import ProblemRecord

STATUSES: Final = ("ok", "impossible", "incorrect", "failed", "skipped", "timeout")

BATCH_TIMED: Final = "batch_timed"
CONTENDED: Final = "contended"
OWN_FAILED: Final = "own_failed"

POSSIBLE_US: Final = (1e-6, 1e15)
"""Times outside this range come from a damaged file."""


def is_possible(us: float | None) -> TypeGuard[float]:
    """Whether it is a time, and not from a damaged file."""
    return us is not None and POSSIBLE_US[0] < us < POSSIBLE_US[1]


LOW_INTENSITY: Final = 4.0
"""FLOP per byte below which speeds are given in GB/s: far left of the ridge of any device."""

FLAGS: Final = {
    BATCH_TIMED: "too short to time each launch by itself: several were timed together",
    "ungated": "launches did not queue behind the gate: the time may include waiting for the host",
    "host_timed": "timed on the host, because a launch blocks it or overflows the stream's queue",
    "padded": "TMA needs rows of n × 16 bytes: the time includes a copy to padded buffers",
    "noisy": "the 95 % interval is wider than its target (±0.5 % or --precision-percent)",
    "outliers": "some samples are more than ten standard deviations from the median; they are kept",
    "power_capped": "the power limit lowered the clock, which is normal at full load",
    "voided": "up to 3 rounds were measured again because of heat or a power brake",
    "throttled": "heat or a power brake lowered the clock: cool the device and repeat",
    "cache_suspect": "rotating operands and flushing the cache give times that differ by more than "
    "5 %: operands may have been in the cache",
    "cache_unknown": "the size of the last-level cache is unknown: operands may not be cold",
    "l2_resident": "the operands fit in the last-level cache, as requested by --cache warm",
    "changed_settings": "the kernel changed settings of the process, unseen by other kernels",
    CONTENDED: "other programs used the processor while the kernel was timed",
    OWN_FAILED: "a column or flag of your own failed",
    "same_inputs": "the function had the same inputs in each call: old results are not found",
    "unverified": "there was nothing to compare the function's results with",
}
"""The values of ``flags``, with descriptions."""


def _column(heading: str, description: str, default: Any = None, digits: int = 5) -> Any:
    metadata = {"heading": heading, "description": description, "digits": digits}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One row of ``measurements.csv``. Units are in the names; None is an empty cell.

    Only rows with status ``ok`` and ``impossible`` have performance figures, and only the former
    are plotted and compared.
    """

    problem: ProblemRecord
    kernel: str = _column("kernel", "registered name", "")
    backend: str = _column("backend", "the source of the kernel", "")
    variant: str = _column("variant", "compile-time parameters, empty for the only one", "")
    status: str = _column("status", ", ".join(STATUSES), "ok")
    reason: str = _column("reason", "why the status is not ok", "")
    changed: str = _column("changed", "settings of the process that the kernel changed", "")
    rel_error: float | None = _column("rel. error", "‖out - ref‖ / ‖ref‖", digits=2)
    cache: str = _column("cache", "cold: operands rotated through memory; warm: reused", "")
    samples: int | None = _column(
        "samples", "timed samples: launches, or batches if they are timed together", digits=4
    )
    rounds: int | None = _column(
        "rounds", "groups of samples, spread over the problem's time", digits=4
    )
    time_us: float | None = _column("time µs", "median of the round medians; of a program: mean")
    time_lo_us: float | None = _column(
        "low µs", "lower end of its 95 % interval; of a program: time_p05_us"
    )
    time_hi_us: float | None = _column(
        "high µs", "upper end of its 95 % interval; of a program: time_p95_us"
    )
    time_min_us: float | None = _column("min µs", "fastest sample")
    time_p05_us: float | None = _column("p05 µs", "5th percentile of the samples")
    time_p95_us: float | None = _column("p95 µs", "95th percentile of the samples")
    pair_us: float | None = _column("pair µs", "median between two events around one launch")
    launch_us: float | None = _column(
        "launch µs", "an empty launch in the same process: part of time_us", digits=4
    )
    host_us: float | None = _column(
        "host µs", "of a function: how long a call keeps the host busy", digits=4
    )
    burst_us: float | None = _column(
        "burst µs", "a few launches after a rest, before the power limit acts"
    )
    burst_mhz: float | None = _column("burst MHz", "SM clock of the bursts")
    burst_w: float | None = _column(
        "burst W",
        "power of the bursts, derived from the energy counter over bursts and rests",
        digits=3,
    )
    flops: int | None = _column("FLOP", "operations that the formula needs", digits=4)
    bytes: int | None = _column(
        "bytes",
        "compulsory traffic of device memory; on several GPUs, of the busiest one",
        digits=4,
    )
    expected_dram_bytes: float | None = _column(
        "expected DRAM bytes",
        "of a program: modelled, with what products read again; neither counted nor a bound",
        digits=3,
    )
    host_bytes: int | None = _column(
        "host bytes",
        "of a streamed problem: compulsory traffic of the host link, both directions",
        digits=4,
    )
    peer_bytes: int | None = _column(
        "peer bytes", "on several GPUs: compulsory traffic that one of them receives", digits=4
    )
    intensity: float | None = _column(
        "FLOP/B", "flops / bytes of the slowest link: peer_bytes, host_bytes or bytes", digits=4
    )
    tflops: float | None = _column("TFLOP/s", "flops / time", digits=4)
    gbps: float | None = _column("GB/s", "bytes of the slowest link / time, decimal", digits=4)
    algorithm_gbps: float | None = _column(
        "algorithm GB/s", "of a collective: bytes of one GPU's result / time", digits=4
    )
    bus_gbps: float | None = _column(
        "bus GB/s", "of a collective: bytes over a link / time, as NCCL's tests count", digits=4
    )
    roof_us: float | None = _column("roof µs", "least time that the ceilings allow")
    serial_us: float | None = _column(
        "serial µs", "least time of a streamed problem if copies and kernels do not overlap"
    )
    roof_tflops: float | None = _column("roof TFLOP/s", "flops / roof_us", digits=4)
    roof_percent: float | None = _column("% of roof", "roof_us / time_us", digits=3)
    observed_tflops: float | None = _column(
        "observed roof TFLOP/s", "attainable at the SM clock while timed", digits=4
    )
    observed_percent: float | None = _column("% of observed", "tflops / observed_tflops", digits=3)
    bound: str = _column("bound", "what sets roof_us: compute, or a link such as dram", "")
    sm_mhz: float | None = _column("SM MHz", "SM clock while timed, counted on the device")
    nvml_mhz: float | None = _column("NVML MHz", "NVML's SM clock while timed", digits=4)
    counted_flops: float | None = _column("executed FLOP", "FLOPs that counters found")
    tensor_flops: float | None = _column("tensor FLOP", "of them by tensor cores")
    fp64_flops: float | None = _column("FP64 FLOP", "by FP64 instructions")
    fp32_flops: float | None = _column("FP32 FLOP", "by FP32 instructions")
    fp16_flops: float | None = _column("FP16 FLOP", "by FP16 instructions, conversions to FP32 too")
    dram_bytes: float | None = _column("DRAM bytes", "of device memory, counted")
    l2_bytes: float | None = _column("L2 bytes", "between SMs and L2, counted")
    l1_bytes: float | None = _column("L1 bytes", "of L1 and shared memory, counted")
    cycles: float | None = _column("cycles", "SM cycles of one launch, counted")
    counted_mhz: float | None = _column("counted MHz", "SM clock by counters")
    mem_mhz: float | None = _column("memory MHz", "median memory clock while timed", digits=4)
    temp_c: float | None = _column("°C", "median temperature while timed", digits=3)
    energy_j: float | None = _column(
        "J", "energy of one launch, over a window of this kernel alone", digits=4
    )
    power_w: float | None = _column("W", "mean power in the window of energy_j", digits=4)
    energy_mhz: float | None = _column("J: MHz", "SM clock in the window of energy_j")
    gflop_per_j: float | None = _column("GFLOP/J", "flops / energy_j", digits=4)
    launches: float | None = _column(
        "launches", "of a program: launches, or copies, in one step", digits=4
    )
    total_us: float | None = _column("total µs", "of a program: time of all launches in one step")
    share_percent: float | None = _column(
        "% of step", "of a program: total_us / time of a step", digits=3
    )
    recoverable_us: float | None = _column(
        "above roof µs",
        "of a program: total_us less the roofs of all launches, at the clock that was counted",
    )
    flags: str = _column("flags", "observations, separated by ;", "")
    own: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """The columns that are declared with ``column`` and ``counter``, also read as attributes."""

    if not TYPE_CHECKING:  # a checker knows the attributes

        def __getattr__(self, name: str) -> Any:
            if name not in COLUMNS:
                raise AttributeError(f"a measurement has no {name!r}")
            return self.own.get(name)

    @property
    def key(self) -> tuple[object, ...]:
        """The identity of the row within a run: the kernel and ``ProblemRecord.key``."""
        return (self.kernel, *self.problem.key)

    @property
    def link_bytes(self) -> int | None:
        """Compulsory bytes of the slowest link: between GPUs, to the host, or to device memory."""
        links = (self.peer_bytes, self.host_bytes)
        return next((count for count in links if count is not None), self.bytes)

    @property
    def flag_names(self) -> list[str]:
        """The flags as a list."""
        return [flag for flag in self.flags.split(";") if flag]


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """Name, heading, meaning, type and significant digits of one column.

    ``made`` makes the value of a finished row; ``metrics`` are hardware counters to add up.
    """

    name: str
    heading: str
    description: str
    digits: int
    type: type[str] | type[int] | type[float] = float
    optional: bool = True
    made: Callable[[Measurement], Any] | None = None
    metrics: tuple[str, ...] = ()


_TYPES: Final[dict[str, type[str] | type[int] | type[float]]] = {
    "str": str,
    "int | None": int,
    "float | None": float,
}

COLUMNS: Final[dict[str, Column]] = {
    f.name: Column(f.name, **f.metadata, type=_TYPES[str(f.type)], optional="None" in str(f.type))
    for f in fields(Measurement)
    if f.metadata
}
"""Every column but those of the problem, by name, in the order of the file."""

_FIELDS: Final = frozenset(("workload", "precision", "size", *COLUMNS))


# Declaring more ----------------------------------------------------------------------------------

F = TypeVar("F", bound=Callable[["Measurement"], Any])


def column(heading: str, description: str, digits: int = 4) -> Callable[[F], F]:
    """Declare a column of numbers. The function below makes its value of a row with status ok.

    The function's name is that of the column; None is an empty cell. Raises ``UsageError`` if
    there is such a column.
    """

    def declare(function: F) -> F:
        _declare(Column(function.__name__, heading, description, digits, made=function))
        return function

    return declare


def counter(name: str, heading: str, description: str, *metrics: str) -> None:
    """Declare a column for the sum of hardware counters in one launch.

    ``metrics`` are CUPTI's, such as ``sm__inst_executed.sum``. Raises ``UsageError`` if there is
    such a column.
    """
    _declare(Column(name, heading, description, 5, metrics=metrics))


def _declare(new: Column) -> None:
    if new.name in _FIELDS:
        raise UsageError(f"there is a column {new.name!r}: choose another name")
    COLUMNS[new.name] = new


def flag(description: str) -> Callable[[F], F]:
    """Declare a flag. The function below says whether a row with status ok has it.

    The function's name is that of the flag.
    """

    def declare(function: F) -> F:
        FLAGS[function.__name__] = description
        FOLLOWING[function.__name__] = function
        return function

    return declare


FOLLOWING: Final[dict[str, Callable[[Measurement], bool]]] = {}
"""The flags that follow from a finished row."""


@flag(
    "faster than its roof: operands in a cache, a measured ceiling that is too low, or wrong work, "
    "bytes or clock"
)
def above_roof(row: Measurement) -> bool:
    """Faster than its roof."""
    return bool(row.time_us and row.roof_us and row.time_us < row.roof_us)


@flag("the host needs longer to start a call than the device to do it: in a loop it takes host_us")
def launch_bound(row: Measurement) -> bool:
    """Starting it takes longer than doing it."""
    return bool(row.host_us and row.time_us and row.host_us > row.time_us)


def concluded(row: Measurement) -> Measurement:
    """The row with the columns and flags that follow from it; a user's function may fail."""
    flags = [name for name in row.flag_names if name not in FOLLOWING and name != OWN_FAILED]
    if row.status != "ok":
        return replace(row, flags=";".join(flags))
    failures: list[str] = []
    made = {
        name: _asked(name, column.made, row, float, failures)
        for name, column in COLUMNS.items()
        if column.made
    }
    row = replace(row, own={**row.own, **made})
    follows = FOLLOWING.items()
    flags += [name for name, holds in follows if _asked(name, holds, row, bool, failures)]
    if failures:  # the row is as good without
        FLAGS[OWN_FAILED] = f"a column or flag of your own failed: {failures[0]}"
        flags.append(OWN_FAILED)
    return replace(row, flags=";".join(flags))


def _asked(
    name: str,
    function: Callable[[Measurement], Any],
    row: Measurement,
    kind: type[float] | type[bool],
    failures: list[str],
) -> Any:
    """What a user's function says of a row; None if it says nothing or fails."""
    try:
        value = function(row)
        return None if value is None else kind(value)
    except Exception as error:
        failures.append(f"{name}: {type(error).__name__}: {str(error)[:200]}")
        return None
