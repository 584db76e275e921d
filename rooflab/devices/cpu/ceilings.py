"""Ceilings of a CPU: measured by microkernels and BLAS, derived from facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import ceil
from time import perf_counter, perf_counter_ns
from typing import Any, Final

from rooflab.devices.base import Device, Limit
from rooflab.errors import UnavailableError
from rooflab.model.facts import Fact
from rooflab.model.precision import PRECISIONS
from rooflab.model.roofline import DISTURBED, Ceiling, MissingCeiling

STREAM_CACHES: Final = 4
LARGE_CACHE: Final = 64 * 2**20
LARGE_CACHES: Final = 2
"""Arrays that are streamed together are so many times as large as the last-level cache. If that is
large, as where a virtual machine sees all caches of its host, their pages would take longer than
the streams; what stays in the cache makes a roof too high, never too low."""

UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
"""Assumed size of the last-level cache if it cannot be read."""

FMA_PIPES: Final = 2
WINDOWS: Final = 8
WINDOW_FMAS: Final = 80_000_000
"""Vector FMAs per thread and window: 10 ms with two pipes at 4 GHz. Not calibrated by timing: on a
busy machine the windows would become too short."""

STREAM_RUNS: Final = 20
STREAM_BUDGET_NS: Final = 200_000_000

BLAS_SIZES: Final = {1: 1024, 9: 2048}
"""From so many threads on, a product of this size too: it takes fewer of them half a second."""
BLAS_BUDGET_NS: Final = 120_000_000


PATIENCE_S: Final = 2.0
"""Most seconds for which ceilings are measured again because other programs use the cores."""

TICKS_S: Final = 0.02
"""Error of a difference of CPU times, which the system counts in ticks of 10 ms."""


def vector_bits(instruction_sets: str) -> int | None:
    """Width of the widest vectors for FMA, None if the names do not give it."""
    names = instruction_sets.split()
    if "AVX-512F" in names:
        return 512
    if "FMA" in names:
        return 256
    return 128 if "NEON" in names and "SVE" not in names else None


def derived_compute(facts: dict[str, Fact], precision: str) -> Limit:
    """Threads × FMA pipes × lanes × 2 × clock, in FLOP/s, for ``fp32`` or ``fp64``."""
    threads = facts["threads"].value
    bits = vector_bits(str(facts["instruction_sets"].value))
    maximum, current = facts["clock_maximum"], facts["clock_current"]
    clock, kind = (maximum, "maximum") if maximum.value else (current, "current")
    if not clock.value:
        return MissingCeiling("compute", precision, f"derived: no clock ({maximum.reason})")
    if bits is None:
        return MissingCeiling("compute", precision, "derived: the vector width is unknown")
    lanes = bits // (8 * PRECISIONS[precision].input.bytes)
    value = int(threads or 1) * FMA_PIPES * lanes * 2 * float(clock.value) * 1e6
    formula = (
        f"{threads} cores × {FMA_PIPES} FMA pipes × {lanes} lanes ({bits}-bit) × 2 FLOP × "
        f"{clock.value:.0f} MHz"
    )
    caveat = (
        f"assumes {FMA_PIPES} FMA pipes of {bits} bits per core and the {kind} clock of "
        f"{clock.source}"
    )
    if kind == "current":
        caveat += "; virtual machines report the nominal clock there"
    return Ceiling("compute", precision, value, "derived", formula, caveat)


@dataclass(slots=True)
class Patience:
    """What is left of PATIENCE_S for the ceilings that are measured one after the other."""

    left_s: float = PATIENCE_S


@dataclass(slots=True)
class _Stopwatch:
    """Times loops on ``device``, again while other programs use its cores, until patience ends."""

    device: Device
    patience: Patience
    disturbed: bool = False

    def best_ns(self, launch: Callable[[], object], windows: int, budget_ns: int) -> int:
        """Shortest of up to ``windows`` runs, fewer if they take more than ``budget_ns``."""
        best = 0
        while True:
            started, others_s = perf_counter(), self.device.others_s()
            found = _best_ns(launch, windows, budget_ns)
            best = min(best, found) if best else found
            wall_s = perf_counter() - started
            used_s = (self.device.others_s() or 0.0) - (others_s or 0.0) - TICKS_S
            if not self.device.contended(used_s, wall_s):
                return best
            self.patience.left_s -= wall_s
            if self.patience.left_s <= 0:
                self.disturbed = True
                return best

    @property
    def caveat(self) -> str:
        """What makes its figures uncertain."""
        shared = self.device.fact("virtual_machine") == "yes"
        return "; ".join(filter(None, (self.disturbed * DISTURBED, shared * SHARED)))


SHARED: Final = "in a virtual machine: other machines on the host may take a varying share"


def _best_ns(launch: Callable[[], object], windows: int, budget_ns: int) -> int:
    """Shortest of up to ``windows`` runs, fewer if they take more than ``budget_ns``."""
    best, spent = 0, 0
    for window in range(windows):
        start = perf_counter_ns()
        launch()
        elapsed = max(1, perf_counter_ns() - start)
        best = min(best, elapsed) if window else elapsed
        spent += elapsed
        if spent > budget_ns:
            break
    return best


def fix_numba_threads(threads: int) -> int:
    """Run Numba's parallel loops on ``threads``, or on all it has; returns their number.

    Raises ``ImportError`` if Numba is missing or broken.
    """
    import numba

    threads = min(threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined, unused-ignore]
    numba.set_num_threads(threads)
    return threads


def _on(threads: int) -> str:
    return f"{threads} thread{'s' * (threads != 1)}"


def microkernels(threads: int) -> tuple[Any, int]:
    """The module of microkernels, and their number of threads.

    Raises ``UnavailableError`` if Numba is missing or broken.
    """
    try:
        from rooflab.devices.cpu import _numba_peaks

        return _numba_peaks, fix_numba_threads(threads)
    except ImportError as error:
        raise UnavailableError(f"Numba cannot be imported: {error}") from error


def measure_bandwidth(device: Device, threads: int, patience: Patience) -> Limit:
    """The best of streaming triad, copy and dot product, in byte/s."""
    numpy = device.arrays
    known = device.last_level_cache_bytes()
    cache = known or UNKNOWN_CACHE_BYTES
    # The copy and the dot product stream two arrays, which together are the whole multiple.
    together = max(STREAM_CACHES * min(cache, LARGE_CACHE), LARGE_CACHES * cache)
    length = ceil(together / 2 / 8)
    if 3 * 8 * length > device.free_bytes() / 2:
        needed = 2 * 3 * 8 * length / 1e9
        reason = f"streaming past the caches needs {needed:.1f} GB of free memory"
        return MissingCeiling("bandwidth", "DRAM", reason)
    try:
        peaks, threads = microkernels(threads)
    except UnavailableError as error:
        return MissingCeiling("bandwidth", "DRAM", str(error))
    x, y, z = (numpy.empty(length) for _ in range(3))
    for array in (x, y, z):
        peaks.scatter(array)
    streams: dict[str, tuple[Callable[[], object], int]] = {
        "triad": (lambda: peaks.triad(x, y, z, 3.0), 3),
        "copy": (lambda: peaks.copy(x, y), 2),
        "dot": (lambda: peaks.dot(y, z), 2),
    }
    rates: dict[str, float] = {}
    watch = _Stopwatch(device, patience)
    for name, (stream, arrays) in streams.items():
        stream()  # compiles
        best_ns = watch.best_ns(stream, STREAM_RUNS, STREAM_BUDGET_NS)
        rates[name] = arrays * 8 * length / best_ns * 1e9
    figures = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in rates.items())
    formula = (
        f"best of {figures}; FP64 arrays of {8 * length / 1e6:.0f} MB, random data, "
        f"{_on(threads)}, best of {STREAM_RUNS} runs; counted per element: triad 3 × 8 bytes, "
        "copy and dot 2 × 8, write-allocate not counted"
    )
    caveat = "; ".join(filter(None, ("" if known else "cache size unknown", watch.caveat)))
    return Ceiling("bandwidth", "DRAM", max(rates.values()), "measured", formula, caveat)


CACHE_SHARE: Final = 0.5
"""Part of a cache that the arrays fill; the rest is for the stack, and for other programs in L3."""

CACHE_WINDOWS: Final = 8
CACHE_WINDOW_BYTES: Final = 200_000_000
"""Bytes per thread and window: 2 to 10 ms."""


def measure_caches(device: Device, threads: int, patience: Patience) -> list[Limit]:
    """Rates of reading and copying from L1, L2 and L3, in byte/s, all threads together."""
    try:
        peaks, threads = microkernels(threads)
    except UnavailableError as error:
        return [MissingCeiling("bandwidth", level, str(error)) for level in ("L1", "L2", "L3")]
    limits: list[Limit] = []
    watch = _Stopwatch(device, patience)
    below = 0
    for level, name in (("L1", "l1d"), ("L2", "l2"), ("L3", "l3")):
        size, instances = (
            int(device.fact(f"{name}_{what}") or 0) for what in ("bytes", "instances")
        )
        share = int(size * min(1.0, instances / threads) * CACHE_SHARE)
        if not size or not instances:
            limits.append(MissingCeiling("bandwidth", level, f"the size of {level} is unknown"))
        elif share < 2 * below:
            reason = f"a thread's share of {level} is no larger than its caches below"
            limits.append(MissingCeiling("bandwidth", level, reason))
        else:
            limits += _cache_rates(watch, peaks, level, share, threads)
            below = share
    return limits


def _cache_rates(
    watch: _Stopwatch, peaks: Any, level: str, share: int, threads: int
) -> Iterator[Ceiling]:
    """Reading and copying arrays of ``share`` bytes per thread."""
    numpy = watch.device.arrays
    pairs = numpy.ones((threads, 2, share // 16))
    passes = max(1, CACHE_WINDOW_BYTES // share)
    for key, what, loop, other in (
        (level, "dot products", peaks.read_again, numpy.zeros(threads)),
        (f"{level}_copy", "copies", peaks.copy_again, 1.0),
    ):
        loop(pairs, 1, other)  # compiles
        best_ns = watch.best_ns(partial(loop, pairs, passes, other), CACHE_WINDOWS, 250_000_000)
        formula = (
            f"{what} of FP64 arrays of "
            f"{share / 1024:.0f} KiB per thread, {_on(threads)}, best of {CACHE_WINDOWS} windows"
        )
        value = pairs.nbytes * passes / best_ns * 1e9
        yield Ceiling("bandwidth", key, value, "measured", formula, watch.caveat)


def measure_levels(device: Device, threads: int) -> list[Limit]:
    """Caches on all threads; caches, DRAM and FMA on one thread, as ``…_1_thread``."""
    patience = Patience()
    limits = measure_caches(device, threads, patience)
    if threads == 1:
        return limits
    alone = [*measure_caches(device, 1, patience), measure_bandwidth(device, 1, patience)]
    alone += [_measure_fma(device, precision, patience) for precision in ("fp32", "fp64")]
    return [*limits, *(replace(limit, key=f"{limit.key}_1_thread") for limit in alone)]


FLOATS: Final = {"fp32": "float32", "fp64": "float64"}


def _measure_fma(device: Device, precision: str, patience: Patience) -> Limit:
    """The FMA microkernel alone on one thread, in FLOP/s."""
    watch = _Stopwatch(device, patience)
    try:
        rate, formula = _fma_rate(watch, device.arrays.dtype(FLOATS[precision]), 1)
    except UnavailableError as error:
        return MissingCeiling("compute", precision, str(error))
    return Ceiling("compute", precision, rate, "measured", formula, watch.caveat)


def measure_compute(device: Device, precision: str, threads: int, patience: Patience) -> Ceiling:
    """The larger of an FMA microkernel and the best library GEMM, in FLOP/s."""
    watch = _Stopwatch(device, patience)
    data_type = device.arrays.dtype(FLOATS[precision])
    blas, size = _best_blas(watch, data_type, threads)
    blas_text = f"best BLAS GEMM n={size}"
    try:
        fma, fma_text = _fma_rate(watch, data_type, threads)
    except UnavailableError as error:
        formula, caveat = f"{blas_text}, {_on(threads)}", f"no FMA microkernel: {error}"
        return Ceiling("compute", precision, blas, "measured", formula, caveat)
    if fma >= blas:
        formula = f"{fma_text}; {blas_text} gave {blas / 1e9:.0f} GFLOP/s"
    else:
        formula = f"{blas_text}, {_on(threads)}; {fma_text}, gave {fma / 1e9:.0f} GFLOP/s"
    return Ceiling("compute", precision, max(fma, blas), "measured", formula, watch.caveat)


def _fma_rate(watch: _Stopwatch, data_type: Any, threads: int) -> tuple[float, str]:
    """FLOP/s of the FMA chains on all threads, and how they were measured."""
    peaks, threads = microkernels(threads)
    sums = watch.device.arrays.zeros(threads, dtype=data_type)
    # x * 0.999 + 0.001 converges to 1: no overflow, and no subnormal numbers, which are slow.
    factor, addend = data_type.type(0.999), data_type.type(0.001)
    steps = WINDOW_FMAS // peaks.CHAINS
    peaks.run_fma_chains(sums, 1, factor, addend)  # compiles
    run = partial(peaks.run_fma_chains, sums, steps, factor, addend)
    best_ns = watch.best_ns(run, WINDOWS, 1_000_000_000)
    lanes = peaks.VECTOR_BITS // (8 * data_type.itemsize)
    chains = f"{peaks.CHAINS} × {peaks.VECTOR_BITS}-bit chains × {_on(threads)}"
    formula = f"FMA microkernel, {chains}, best of {WINDOWS} windows"
    return float(2 * lanes * peaks.CHAINS * steps * threads / best_ns * 1e9), formula


def _best_blas(watch: _Stopwatch, data_type: Any, threads: int) -> tuple[float, int]:
    """(FLOP/s, size) of the fastest square ``numpy.matmul`` among BLAS_SIZES."""
    numpy = watch.device.arrays
    random = numpy.random.default_rng(0)
    rates: dict[int, float] = {}
    for size in (size for least, size in BLAS_SIZES.items() if threads >= least):
        a, b = (random.random((size, size), dtype=data_type) for _ in range(2))
        c = numpy.empty_like(a)

        def multiply(a: Any = a, b: Any = b, c: Any = c) -> None:
            numpy.matmul(a, b, out=c)

        rates[size] = 2 * size**3 / watch.best_ns(multiply, WINDOWS, BLAS_BUDGET_NS) * 1e9
    best = max(rates, key=lambda size: rates[size])
    return rates[best], best
