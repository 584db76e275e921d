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


def read_facts(root: Path, affinity: frozenset[int], threads: int | None = None) -> dict[str, Fact]:
    """Facts of the CPU from the files below ``root`` (``/`` on a live system).

    ``affinity`` holds the numbers of the CPUs that this process may run on. Sizes are in bytes,
    clocks in MHz. ``threads`` replaces the default of one per physical core.
    """
    cpuinfo = _cpuinfo(root)
    return {
        "model": _model(cpuinfo),
        "architecture": Fact(platform.machine() or None, source="platform.machine()"),
        "physical_cores": _physical_cores(root, None),
        "logical_cores": Fact(os.cpu_count(), source="os.cpu_count()"),
        **_usable_cores(root, affinity, threads),
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
    """Fields of the first CPU in /proc/cpuinfo, empty if there is no such file."""
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
        return _missing("/proc/cpuinfo", "it has no x86 flags to identify a hypervisor")
    hypervisor = "hypervisor" in cpuinfo["flags"].split()
    return Fact("yes" if hypervisor else "no", source="/proc/cpuinfo")


def _physical_cores(root: Path, within: frozenset[int] | None) -> Fact:
    """Physical cores, not hardware threads; only those with a CPU of ``within``."""
    source = "/sys/devices/system/cpu/cpu*/topology/thread_siblings_list"
    cores: set[str] = set()
    for path in root.glob("sys/devices/system/cpu/cpu[0-9]*/topology/thread_siblings_list"):
        number = int(path.parts[-3].removeprefix("cpu"))
        siblings = _read(path)
        if siblings and (within is None or number in within):
            cores.add(siblings)
    return Fact(len(cores), source=source) if cores else _missing(source)


def _cgroup_folders(root: Path, controller: str) -> list[Path]:
    """Folders of this process's control group and its parents, version 2 or 1."""
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
    """The smallest number of CPUs that control groups allow, None without a limit."""
    quotas: list[float] = []
    for folder in _cgroup_folders(root, "cpu"):
        text = _read(folder / "cpu.max") or " ".join(
            _read(folder / f"cpu.cfs_{name}_us") or "" for name in ("quota", "period")
        )
        match = re.fullmatch(r"(\d+) (\d+)", text)
        if match and int(match[2]):
            quotas.append(int(match[1]) / int(match[2]))
    return min(quotas, default=None)


def _usable_cores(root: Path, affinity: frozenset[int], wanted: int | None) -> dict[str, Fact]:
    quota = _cpu_quota(root)
    granted = len(affinity) if quota is None else min(len(affinity), max(1, int(quota)))
    cores = _physical_cores(root, affinity).value
    threads = min(granted, cores) if isinstance(cores, int) else granted
    source = "CPU affinity" if quota is None else f"CPU affinity and a quota of {quota:g} CPUs"
    how = "one per usable physical core, bound to it, for Numba and for BLAS"
    return {
        "usable_cores": Fact(granted, source=source),
        "threads": Fact(wanted, source="--threads") if wanted else Fact(threads, source=how),
    }


def _byte_count(text: str) -> int:
    """Bytes in ``48K``, ``32M`` or ``512``."""
    scale = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * scale


def _caches(root: Path, affinity: frozenset[int]) -> dict[str, Fact]:
    """Size of one L1d, L2 and L3, and the number of each that usable CPUs can reach."""
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
    """Memory that this process may still use, in bytes, None if it cannot be read.

    The kernel's estimate (MemAvailable), or the rest of a control group's memory limit, without its
    reclaimable file cache.
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


@cache
def allowed_cpus() -> frozenset[int]:
    """CPUs that this process may run on; all of them if the system has no affinity.

    Read once, before OpenMP binds the main thread to one core.
    """
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def blas_facts(numpy: Any) -> dict[str, Fact]:
    """Library, version and kernels of the BLAS that ``numpy`` has loaded."""
    from threadpoolctl import threadpool_info

    source = "threadpoolctl"
    # Another package may have loaded a second BLAS: NumPy's is in the folder beside NumPy.
    folder = Path(numpy.__file__).parent.name
    libraries = [each for each in threadpool_info() if each["user_api"] == "blas"]
    libraries.sort(key=lambda each: f"{folder}.libs" not in str(each["filepath"]))
    if not libraries:
        missing = Fact(None, source=source, reason="threadpoolctl finds no BLAS library")
        return {"blas": missing, "blas_threading": missing}
    blas = libraries[0]
    kernels = f", {blas['architecture']} kernels" if blas.get("architecture") else ""
    return {
        "blas": Fact(f"{blas['internal_api']} {blas['version'] or ''}{kernels}", source=source),
        "blas_threading": Fact(str(blas.get("threading_layer", "unknown")), source=source),
    }
