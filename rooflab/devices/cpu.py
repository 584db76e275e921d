"""The CPU of this machine: facts from Linux's files, ceilings from microkernels.

Other systems keep most of those files to themselves: each fact is a value or None with a reason.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from math import ceil
from pathlib import Path
from time import perf_counter, perf_counter_ns, sleep
from typing import Any, Final

from rooflab.devices.base import Device, Fact, Timed
from rooflab.problem import PRECISIONS
from rooflab.roofline import Ceiling, MissingCeiling, Roofline

INSTRUCTION_SETS: Final = {
    "avx2": "AVX2",
    "fma": "FMA",
    "avx512f": "AVX-512F",
    "avx512_bf16": "AVX512_BF16",
    "avx512_fp16": "AVX512_FP16",
    "amx_tile": "AMX",
    "amx_bf16": "AMX-BF16",
    "amx_fp16": "AMX-FP16",
    "asimd": "NEON",
    "sve": "SVE",
    "sve2": "SVE2",
    "bf16": "BF16",
    "sme": "SME",
}
"""Flags of /proc/cpuinfo that matter to GEMM, and the names that vendors give them."""

STREAM_CACHES: Final = 4
"""Arrays that are streamed together hold at least so many times the last-level cache."""

UNKNOWN_CACHE_BYTES: Final = 64 * 2**20
"""Taken for the last-level cache where its size cannot be read."""

FMA_PIPES: Final = 2
WINDOWS: Final = 15
WINDOW_FMAS: Final = 80_000_000
"""Vector FMAs per thread and window: 10 ms with two pipes at 4 GHz. Not calibrated by timing, which
a busy machine would mislead into windows too short to mean anything."""

STREAM_RUNS: Final = 40

SPIN_S: Final = 0.04
"""OpenBLAS's threads spin for 2**26 clock cycles after a product (its THREAD_TIMEOUT), and take a
core from whatever runs next."""

WAKE_S: Final = 0.005

BLAS_SIZES: Final = (1024, 2048)
BLAS_BUDGET_NS: Final = 250_000_000


def read_facts(root: Path, affinity: frozenset[int]) -> dict[str, Fact]:
    """What the files below ``root`` (``/`` on a live system) say about its CPU.

    ``affinity`` holds the numbers of the CPUs that this process may run on. Sizes in bytes,
    clocks in MHz.
    """
    cpuinfo = _cpuinfo(root)
    return {
        "model": _model(cpuinfo),
        "architecture": Fact(platform.machine() or None, source="platform.machine()"),
        "physical_cores": _physical_cores(root, None),
        "logical_cores": Fact(os.cpu_count(), source="os.cpu_count()"),
        **_usable_cores(root, affinity),
        **_caches(root, affinity),
        **_clocks(root, cpuinfo),
        "instruction_sets": _instruction_sets(cpuinfo),
        "virtual_machine": _virtual_machine(cpuinfo),
        "memory_total": _memory_total(root),
        "operating_system": Fact(platform.system(), source="platform.system()"),
    }


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _missing(path: str, why: str = "it cannot be read here") -> Fact:
    return Fact(None, source=path, reason=f"{path}: {why}")


def _cpuinfo(root: Path) -> dict[str, str]:
    """Fields of the first CPU in /proc/cpuinfo, empty where there is no such file."""
    fields: dict[str, str] = {}
    for line in (_read(root / "proc/cpuinfo") or "").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _model(cpuinfo: dict[str, str]) -> Fact:
    if not cpuinfo:
        return _missing("/proc/cpuinfo")
    if model := cpuinfo.get("model name"):
        return Fact(model, source="/proc/cpuinfo")
    return _missing("/proc/cpuinfo", "it has no 'model name' on this architecture")


def _instruction_sets(cpuinfo: dict[str, str]) -> Fact:
    if not cpuinfo:
        return _missing("/proc/cpuinfo")
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features", "")).split()
    names = [name for flag, name in INSTRUCTION_SETS.items() if flag in flags]
    return Fact(" ".join(names) or "none of note", source="/proc/cpuinfo")


def _virtual_machine(cpuinfo: dict[str, str]) -> Fact:
    if "flags" not in cpuinfo:
        return _missing("/proc/cpuinfo", "it has no x86 flags, one of which tells")
    hypervisor = "hypervisor" in cpuinfo["flags"].split()
    return Fact("yes" if hypervisor else "no", source="/proc/cpuinfo")


def _physical_cores(root: Path, within: frozenset[int] | None) -> Fact:
    """Cores, however many threads each runs; only those that hold a CPU of ``within``."""
    source = "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list"
    cores: set[str] = set()
    for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list"):
        number = int(path.parts[-3].removeprefix("cpu"))
        siblings = _read(path)
        if siblings and (within is None or number in within):
            cores.add(siblings)
    return Fact(len(cores), source=source) if cores else _missing(source)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and of those above it, version 2 or 1."""
    folders: list[Path] = []
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def _cpu_quota(root: Path) -> float | None:
    """The smallest number of CPUs that control groups grant, None where they set no limit."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        text = _read(folder / "cpu.max") or " ".join(
            _read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")
        )
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match and int(match[2]):
            quotas.append(int(match[1]) / int(match[2]))
    return min(quotas, default=None)


def _usable_cores(root: Path, affinity: frozenset[int]) -> dict[str, Fact]:
    quota = _cpu_quota(root)
    granted = len(affinity) if quota is None else min(len(affinity), max(1, int(quota)))
    cores = _physical_cores(root, affinity).value
    threads = min(granted, cores) if isinstance(cores, int) else granted
    source = "CPU affinity" if quota is None else f"CPU affinity and a quota of {quota:g} CPUs"
    return {
        "usable_cores": Fact(granted, source=source),
        "threads": Fact(
            threads, source="one per usable physical core, bound to it, for Numba and for BLAS"
        ),
    }


def _byte_count(text: str) -> int:
    """Bytes in ``48K``, ``32M`` or ``512``."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _caches(root: Path, affinity: frozenset[int]) -> dict[str, Fact]:
    """Size of one L1d, L2 and L3, and how many of each the usable CPUs reach."""
    source = "/sys/devices/system/cpu/cpu*/cache"
    instances: dict[int, dict[str, int]] = {}
    for number in sorted(affinity):
        for folder in root.glob(f"sys/devices/system/cpu/cpu{number}/cache/index[0-9]*"):
            level, kind, size, shared = (
                _read(folder / name) for name in ("level", "type", "size", "shared_cpu_list")
            )
            if level and size and kind in ("Data", "Unified"):
                sharers = shared or str(number)
                instances.setdefault(int(level), {})[sharers] = _byte_count(size)
    facts: dict[str, Fact] = {}
    for depth, name in ((1, "l1d"), (2, "l2"), (3, "l3")):
        sizes = list(instances.get(depth, {}).values())
        if sizes:
            facts[f"{name}_bytes"] = Fact(sizes[0], "B", source)
            facts[f"{name}_instances"] = Fact(len(sizes), "", source)
        else:
            facts[f"{name}_bytes"] = _missing(source, f"it lists no {name.upper()} cache")
            facts[f"{name}_instances"] = facts[f"{name}_bytes"]
    last = sum(instances[max(instances)].values()) if instances else None
    facts["last_level_cache_bytes"] = (
        Fact(last, "B", source) if last else _missing(source, "it lists no caches")
    )
    return facts


def _clocks(root: Path, cpuinfo: dict[str, str]) -> dict[str, Fact]:
    folder = "sys/devices/system/cpu/cpu0/cpufreq"
    facts: dict[str, Fact] = {}
    for name, file in (
        ("clock_current", "scaling_cur_freq"),
        ("clock_maximum", "cpuinfo_max_freq"),
    ):
        kilohertz = _read(root / folder / file)
        if kilohertz and kilohertz.isdigit() and int(kilohertz):
            facts[name] = Fact(int(kilohertz) / 1000, "MHz", f"/{folder}/{file}")
        else:
            facts[name] = _missing(f"/{folder}/{file}", "absent, as in most virtual machines")
    if facts["clock_current"].value is None and "cpu MHz" in cpuinfo:
        facts["clock_current"] = Fact(float(cpuinfo["cpu MHz"]), "MHz", "/proc/cpuinfo")
    return facts


def _meminfo(root: Path, field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", _read(root / "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _memory_total(root: Path) -> Fact:
    total = _meminfo(root, "MemTotal")
    return Fact(total, "B", "/proc/meminfo") if total else _missing("/proc/meminfo")


def available_bytes(root: Path) -> int | None:
    """Memory that this process may still take, in bytes, None where that cannot be read.

    The kernel's estimate (MemAvailable), or what the memory limit of a control group leaves, its
    reclaimable file cache not counted as taken.
    """
    available = [_meminfo(root, "MemAvailable")]
    for folder in _cgroup_folders(root, "memory"):
        limit = _read(folder / "memory.max") or _read(folder / "memory.limit_in_bytes")
        used = _read(folder / "memory.current") or _read(folder / "memory.usage_in_bytes")
        if limit and used and limit.isdigit() and used.isdigit():
            stat = _read(folder / "memory.stat") or ""
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            reclaimable = int(cached[1]) if cached else 0
            available.append(max(0, int(limit) - int(used) + reclaimable))
    return min((value for value in available if value is not None), default=None)


def vector_bits(instruction_sets: str) -> int | None:
    """Width of the widest vectors that FMA works on, None where the names do not say."""
    names = instruction_sets.split()
    if "AVX-512F" in names:
        return 512
    if "FMA" in names:
        return 256
    return 128 if "NEON" in names and "SVE" not in names else None


def derived_compute(facts: dict[str, Fact], precision: str) -> Ceiling | MissingCeiling:
    """Threads × FMA pipes × lanes × 2 × clock, in FLOP/s, for ``fp32`` or ``fp64``."""
    threads = facts["threads"].value
    bits = vector_bits(str(facts["instruction_sets"].value))
    maximum, current = facts["clock_maximum"], facts["clock_current"]
    clock, kind = (maximum, "maximum") if maximum.value else (current, "current")
    if not clock.value:
        return MissingCeiling("compute", precision, f"derived: no clock ({maximum.reason})")
    if bits is None:
        return MissingCeiling("compute", precision, "derived: the vector width is not known")
    lanes = bits // (8 * PRECISIONS[precision].input.bytes)
    value = int(threads or 1) * FMA_PIPES * lanes * 2 * float(clock.value) * 1e6
    return Ceiling(
        "compute",
        precision,
        value,
        "derived",
        f"{threads} cores × {FMA_PIPES} FMA pipes × {lanes} lanes ({bits}-bit) × 2 FLOP × "
        f"{clock.value:.0f} MHz",
        f"assumes {FMA_PIPES} FMA pipes of {bits} bits per core and the {kind} clock of "
        f"{clock.source}"
        + ("; a virtual machine shows the nominal clock there" if kind == "current" else ""),
    )


class CpuDevice(Device):
    """The CPU that this process runs on. ``facts`` and ceilings are read and measured once."""

    id = "cpu"
    kind = "cpu"

    def __init__(self) -> None:
        # Read by the OpenMP runtime when Numba loads it: two of its threads on one core would wait
        # for each other a scheduler's tick at a time.
        os.environ.setdefault("OMP_PLACES", "cores")
        os.environ.setdefault("OMP_PROC_BIND", "true")
        self._root = Path("/")
        self._affinity = allowed_cpus()
        self._host = read_facts(self._root, self._affinity)
        model = self._host["model"].value
        self.name = str(model or platform.processor() or f"{platform.machine()} CPU")
        self._threads = int(self._host["threads"].value or 1)

    @cached_property
    def facts(self) -> dict[str, Fact]:
        """Facts of the host, and NumPy's BLAS library with its threads."""
        return {**self._host, **_blas_facts(self.arrays)}

    @cached_property
    def arrays(self) -> Any:
        """NumPy, its BLAS library held to ``threads``."""
        import numpy
        from threadpoolctl import threadpool_limits

        threadpool_limits(self._threads, user_api="blas")
        return numpy

    @cached_property
    def _ceilings(self) -> Roofline:
        results: list[Ceiling | MissingCeiling] = [measure_bandwidth(self, self._threads)]
        for precision in PRECISIONS:
            if precision in ("fp32", "fp64"):
                results.append(measure_compute(self, precision, self._threads))
                results.append(derived_compute(self._host, precision))
            else:
                results.append(
                    MissingCeiling("compute", precision, "CPU kernels have fp32 and fp64 only")
                )
        return Roofline(
            ceilings=tuple(result for result in results if isinstance(result, Ceiling)),
            missing=tuple(result for result in results if isinstance(result, MissingCeiling)),
            memory="DRAM",
            prefer=("measured", "derived"),
        )

    def roofline(self, *, measure: bool) -> Roofline:
        """Measured ceilings and derived ones beside them; ``measure`` makes no difference."""
        return self._ceilings

    def free_bytes(self) -> int:
        """Available memory in bytes; 1 GiB where the system does not say."""
        available = available_bytes(self._root)
        return 2**30 if available is None else available

    def last_level_cache_bytes(self) -> int:
        """All instances of the largest cache level that usable CPUs reach, together."""
        return int(self._host["last_level_cache_bytes"].value or 0)

    def time(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        """Wall time of each launch in microseconds, from a monotonic clock."""
        times_us = []
        for launch in launches:
            if before:
                before()
            start = perf_counter_ns()
            launch()
            times_us.append((perf_counter_ns() - start) / 1000)
        return Timed(times_us)

    def time_batch(
        self, launches: Sequence[Callable[[], None]], before: Callable[[], None] | None = None
    ) -> Timed:
        """Wall time of all launches, divided by their number."""

        def all_of_them() -> None:
            for launch in launches:
                launch()

        timed = self.time([all_of_them], before)
        return Timed([timed.times_us[0] / len(launches)])

    def nothing(self) -> None:
        """A call that returns at once."""

    def settle(self, launch: Callable[[], None]) -> None:
        """Wait for other libraries' idle threads to stop spinning, then wake ``launch``'s own.

        Threads that have slept are slow for the first milliseconds.
        """
        sleep(SPIN_S)
        woken = perf_counter() + WAKE_S
        launch()
        while perf_counter() < woken:
            launch()

    def synchronize(self) -> None:
        """Nothing to wait for: a launch on the CPU returns when it has ended."""

    def release(self) -> None:
        """Nothing to give back: NumPy keeps no pool."""


@cache
def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may run on; all of them where the system cannot restrict it.

    Asked once, before OpenMP binds the main thread to a core of its own.
    """
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def _blas_facts(numpy: Any) -> dict[str, Fact]:
    """Library, version and kernels of the BLAS that ``numpy`` has loaded, and its threads."""
    from threadpoolctl import threadpool_info

    source = "threadpoolctl"
    # Another package may have brought a second BLAS along: NumPy's own lies beside it.
    folder = Path(numpy.__file__).parent.name
    libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
    libraries.sort(key=lambda each: f"{folder}.libs" not in str(each["filepath"]))
    if not libraries:
        missing = Fact(None, source=source, reason="threadpoolctl knows no BLAS library here")
        return {"blas": missing, "blas_threading": missing}
    blas = libraries[0]
    kernels = f", {blas['architecture']} kernels" if blas.get("architecture") else ""
    return {
        "blas": Fact(f"{blas['internal_api']} {blas['version'] or ''}{kernels}", source=source),
        "blas_threading": Fact(
            f"{blas.get('threading_layer', 'unknown')}, {blas['num_threads']} threads",
            source=source,
        ),
    }


def _sharing_caveat(device: Device) -> str:
    if device.fact("virtual_machine") != "yes":
        return ""
    return "in a virtual machine, whose neighbours may take a share that varies"


def _best_ns(launch: Callable[[], object], windows: int, budget_ns: int) -> int:
    """Shortest of up to ``windows`` runs, fewer where they take more than ``budget_ns``."""
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
    """Run Numba's parallel loops on ``threads``, or on all it has; returns how many those are.

    Raises ``ImportError`` where Numba is missing or broken.
    """
    import numba

    threads = min(threads, numba.config.NUMBA_NUM_THREADS)  # type: ignore[attr-defined, unused-ignore]
    numba.set_num_threads(threads)
    return threads


def _peaks(threads: int) -> tuple[Any, int]:
    """The module of microkernels and the number of threads that they run on."""
    from rooflab.devices import _numba_peaks

    return _numba_peaks, fix_numba_threads(threads)


def measure_bandwidth(device: Device, threads: int) -> Ceiling | MissingCeiling:
    """The best of streaming triad, copy and dot product, in byte/s."""
    numpy = device.arrays
    cache_known = device.last_level_cache_bytes() > 0
    cache = device.last_level_cache_bytes() if cache_known else UNKNOWN_CACHE_BYTES
    # The copy and the dot product stream two arrays, so two make up the whole multiple.
    length = ceil(STREAM_CACHES * cache / 2 / 8)
    if 3 * 8 * length > device.free_bytes() / 2:
        needed = 2 * 3 * 8 * length / 1e9
        return MissingCeiling(
            "bandwidth", "DRAM", f"streaming past the caches needs {needed:.1f} GB of free memory"
        )
    try:
        peaks, threads = _peaks(threads)
    except ImportError as error:
        return MissingCeiling("bandwidth", "DRAM", f"Numba cannot be imported: {error}")
    x, y, z = (numpy.empty(length) for _ in range(3))
    for array in (x, y, z):
        peaks.scatter(array)
    streams: dict[str, tuple[Callable[[], object], int]] = {
        "triad": (lambda: peaks.triad(x, y, z, 3.0), 3),
        "copy": (lambda: peaks.copy(x, y), 2),
        "dot": (lambda: peaks.dot(y, z), 2),
    }
    rates: dict[str, float] = {}
    for name, (stream, arrays) in streams.items():
        stream()  # compiles
        best_ns = _best_ns(stream, STREAM_RUNS, 500_000_000)
        rates[name] = arrays * 8 * length / best_ns * 1e9
    best = max(rates, key=lambda name: rates[name])
    figures = ", ".join(f"{name} {rate / 1e9:.1f} GB/s" for name, rate in rates.items())
    return Ceiling(
        "bandwidth",
        "DRAM",
        rates[best],
        "measured",
        f"best of {figures}; FP64 arrays of {8 * length / 1e6:.0f} MB, random data, {threads} "
        f"threads, best of {STREAM_RUNS} runs; counted per element: triad 3 × 8 bytes, copy and "
        "dot 2 × 8, write-allocate not counted",
        "; ".join(
            filter(None, ("" if cache_known else "cache size not known", _sharing_caveat(device)))
        ),
    )


def measure_compute(device: Device, precision: str, threads: int) -> Ceiling:
    """The larger of an FMA microkernel and the best library GEMM, in FLOP/s."""
    numpy = device.arrays
    data_type = numpy.dtype({"fp32": "float32", "fp64": "float64"}[precision])
    blas, size = _best_blas(numpy, data_type)
    blas_text = f"BLAS GEMM n={size}"
    try:
        peaks, threads = _peaks(threads)
    except ImportError as error:
        return Ceiling(
            "compute",
            precision,
            blas,
            "measured",
            f"best {blas_text}, {threads} threads",
            f"no FMA microkernel: Numba cannot be imported: {error}",
        )
    fma = _fma_rate(numpy, peaks, data_type, threads)
    fma_text = (
        f"FMA microkernel, {peaks.CHAINS} × {peaks.VECTOR_BITS}-bit chains × {threads} threads, "
        f"best of {WINDOWS} windows"
    )
    if fma >= blas:
        formula = f"{fma_text}; best {blas_text} gave {blas / 1e9:.0f} GFLOP/s"
    else:
        formula = f"best {blas_text}, {threads} threads; {fma_text}, gave {fma / 1e9:.0f} GFLOP/s"
    return Ceiling(
        "compute", precision, max(fma, blas), "measured", formula, _sharing_caveat(device)
    )


def _fma_rate(numpy: Any, peaks: Any, data_type: Any, threads: int) -> float:
    """FLOP/s of the FMA chains on all threads."""
    sums = numpy.zeros(threads, dtype=data_type)
    # x * 0.999 + 0.001 settles at 1: no overflow, and no subnormal numbers, which are slow.
    factor, addend = data_type.type(0.999), data_type.type(0.001)
    steps = WINDOW_FMAS // peaks.CHAINS
    peaks.run_fma_chains(sums, 1, factor, addend)  # compiles
    best_ns = _best_ns(
        lambda: peaks.run_fma_chains(sums, steps, factor, addend), WINDOWS, 1_000_000_000
    )
    lanes = peaks.VECTOR_BITS // (8 * data_type.itemsize)
    return float(2 * lanes * peaks.CHAINS * steps * threads / best_ns * 1e9)


def _best_blas(numpy: Any, data_type: Any) -> tuple[float, int]:
    """(FLOP/s, size) of the fastest square ``numpy.matmul`` among BLAS_SIZES."""
    random = numpy.random.default_rng(0)
    rates: dict[int, float] = {}
    for size in BLAS_SIZES:
        a, b = (random.random((size, size), dtype=data_type) for _ in range(2))
        c = numpy.empty_like(a)

        def multiply(a: Any = a, b: Any = b, c: Any = c) -> None:
            numpy.matmul(a, b, out=c)

        rates[size] = 2 * size**3 / _best_ns(multiply, WINDOWS, BLAS_BUDGET_NS) * 1e9
    best = max(rates, key=lambda size: rates[size])
    return rates[best], best
