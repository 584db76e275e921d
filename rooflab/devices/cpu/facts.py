"""Facts of this machine's CPU, from Linux's files.

Other systems lack most of these files: each fact is a value, or None with a reason.
"""

from __future__ import annotations

import os
import platform
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from rooflab.model.facts import Fact

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
"""Flags of /proc/cpuinfo that matter to GEMM, with the vendors' names."""


def read_facts(root: Path, cpus: frozenset[int], threads: int | None = None) -> dict[str, Fact]:
    """Facts of the CPU from the files below ``root`` (``/`` on a live system).

    ``cpus`` holds the numbers of the CPUs that this process may run on. Sizes are in bytes,
    clocks in MHz. ``threads`` replaces the default of one per physical core.
    """
    cpuinfo = _cpuinfo(root)
    flags = (cpuinfo.get("flags") or cpuinfo.get("Features", "")).split()
    instructions = [name for flag, name in INSTRUCTION_SETS.items() if flag in flags]
    virtual = ("no", "yes")["hypervisor" in flags] if "flags" in cpuinfo else None
    no_model = "it has no 'model name' on this architecture" if cpuinfo else UNREADABLE
    return {
        "model": _fact(cpuinfo.get("model name"), CPUINFO, without=no_model),
        "architecture": Fact(platform.machine() or None, source="platform.machine()"),
        "physical_cores": _fact(_cores(root, None), f"/{SIBLINGS}"),
        "logical_cores": Fact(os.cpu_count(), source="os.cpu_count()"),
        **_usable_cores(root, cpus, threads),
        **_caches(root, cpus),
        **_clocks(root, cpuinfo),
        "instruction_sets": _fact(
            (" ".join(instructions) or "none of note") if cpuinfo else None, CPUINFO
        ),
        "virtual_machine": _fact(
            virtual, CPUINFO, without="it has no x86 flags to identify a hypervisor"
        ),
        "memory_total": _fact(_meminfo(root, "MemTotal"), "/proc/meminfo", "B"),
        "operating_system": Fact(platform.system(), source="platform.system()"),
    }


CPUINFO: Final = "/proc/cpuinfo"
SIBLINGS: Final = "sys/devices/system/cpu/cpu*/topology/thread_siblings_list"
UNREADABLE: Final = "it cannot be read here"


def _fact(
    value: str | float | None, source: str, unit: str = "", without: str = UNREADABLE
) -> Fact:
    """A fact; for None the reason is ``without``."""
    if value is None:
        return Fact(None, source=source, reason=f"{source}: {without}")
    return Fact(value, unit, source)


def read(path: Path) -> str:
    """The content of a file, empty if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _cpuinfo(root: Path) -> dict[str, str]:
    """Fields of the first CPU in /proc/cpuinfo, empty if there is no such file."""
    fields: dict[str, str] = {}
    for line in read(root / "proc/cpuinfo").splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields


def _cores(root: Path, within: frozenset[int] | None) -> int | None:
    """Physical cores, not hardware threads; only those with a CPU of ``within``."""
    cores = {
        read(path)
        for path in root.glob(SIBLINGS)
        if within is None or int(path.parts[-3].removeprefix("cpu")) in within
    }
    return len(cores - {""}) or None


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, version 2 or 1."""
    folders: list[Path] = []
    for line in read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [top.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders


def _cpu_quota(root: Path) -> float | None:
    """The smallest number of CPUs that control groups allow, None without a limit."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        text = read(folder / "cpu.max") or " ".join(
            read(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period")
        )
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match and int(match[2]):
            quotas.append(int(match[1]) / int(match[2]))
    return min(quotas, default=None)


def _usable_cores(root: Path, cpus: frozenset[int], wanted: int | None) -> dict[str, Fact]:
    quota = _cpu_quota(root)
    granted = len(cpus) if quota is None else min(len(cpus), max(1, int(quota)))
    source = "CPU affinity" if quota is None else f"CPU affinity and a quota of {quota:g} CPUs"
    threads = min(granted, _cores(root, cpus) or granted)
    how = "one per usable physical core, bound to it, for Numba and for BLAS"
    return {
        "usable_cores": Fact(granted, source=source),
        "threads": Fact(wanted, source="--threads") if wanted else Fact(threads, source=how),
    }


def _byte_count(text: str) -> int:
    """Bytes in ``48K``, ``32M`` or ``512``."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _caches(root: Path, cpus: frozenset[int]) -> dict[str, Fact]:
    """Size of one L1d, L2 and L3, and the number of each that usable CPUs can reach."""
    source = "/sys/devices/system/cpu/cpu*/cache"
    instances: dict[int, dict[str, int]] = {}
    for number in sorted(cpus):
        for folder in root.glob(f"sys/devices/system/cpu/cpu{number}/cache/index[0-9]*"):
            level, kind, size, shared = (
                read(folder / name) for name in ("level", "type", "size", "shared_cpu_list")
            )
            if level and size and kind in ("Data", "Unified"):
                sharers = shared or str(number)
                instances.setdefault(int(level), {})[sharers] = _byte_count(size)
    facts: dict[str, Fact] = {}
    for depth, name in ((1, "l1d"), (2, "l2"), (3, "l3")):
        sizes = list(instances.get(depth, {}).values())
        without = f"it lists no {name.upper()} cache"
        facts[f"{name}_bytes"] = _fact(sizes[0] if sizes else None, source, "B", without)
        facts[f"{name}_instances"] = _fact(len(sizes) or None, source, without=without)
    last = sum(instances[max(instances)].values()) if instances else None
    return facts | {"last_level_cache_bytes": _fact(last, source, "B", "it lists no caches")}


def _clocks(root: Path, cpuinfo: dict[str, str]) -> dict[str, Fact]:
    folder, without = "sys/devices/system/cpu/cpu0/cpufreq", "absent, as in most virtual machines"

    def clock(file: str) -> Fact:
        text = read(root / folder / file)
        mhz = int(text) / 1000 if text.isdigit() else None
        return _fact(mhz or None, f"/{folder}/{file}", "MHz", without)

    current = clock("scaling_cur_freq")
    if current.value is None and "cpu MHz" in cpuinfo:
        current = Fact(float(cpuinfo["cpu MHz"]), "MHz", CPUINFO)
    return {"clock_current": current, "clock_maximum": clock("cpuinfo_max_freq")}


def _meminfo(root: Path, field: str) -> int | None:
    match = re.search(rf"^{field}:\s+(\d+) kB", read(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def available_bytes(root: Path) -> int | None:
    """Memory that this process may still use, in bytes, None if it cannot be read.

    The kernel's estimate (MemAvailable), or the rest of a control group's memory limit, without its
    reclaimable file cache.
    """
    available = [_meminfo(root, "MemAvailable")]
    for folder in _cgroup_folders(root, "memory"):
        limit = read(folder / "memory.max") or read(folder / "memory.limit_in_bytes")
        used = read(folder / "memory.current") or read(folder / "memory.usage_in_bytes")
        if limit.isdigit() and used.isdigit():
            stat = read(folder / "memory.stat")
            cached = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, re.MULTILINE)
            reclaimable = int(cached[1]) if cached else 0
            available.append(max(0, int(limit) - int(used) + reclaimable))
    return min((value for value in available if value is not None), default=None)


def affinity() -> frozenset[int]:
    """The CPUs of this thread; none where the system does not bind threads."""
    return frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()


@cache
def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may run on; all of them if the system has no affinity.

    Read once, before OpenMP binds the main thread to one core.
    """
    return affinity() or frozenset(range(os.cpu_count() or 1))


def blas_facts(numpy: Any) -> dict[str, Fact]:
    """Library, version and kernels of the BLAS that ``numpy`` has loaded."""
    from threadpoolctl import threadpool_info

    source = "threadpoolctl"
    # Another package may have loaded a second BLAS: NumPy's is in the folder beside NumPy.
    folder = f"{Path(numpy.__file__).parent.name}.libs"
    libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
    blas = min(libraries, key=lambda each: folder not in str(each["filepath"]), default=None)
    if blas is None:
        missing = Fact(None, source=source, reason="threadpoolctl finds no BLAS library")
        return {"blas": missing, "blas_threading": missing}
    kernels = f", {blas['architecture']} kernels" if blas.get("architecture") else ""
    return {
        "blas": Fact(f"{blas['internal_api']} {blas['version'] or ''}{kernels}", source=source),
        "blas_threading": Fact(str(blas.get("threading_layer", "unknown")), source=source),
    }
