from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rooflab.devices.cpu import ceilings
from rooflab.devices.cpu.ceilings import Patience, derived_compute, measure_bandwidth
from rooflab.devices.cpu.device import CpuDevice
from rooflab.devices.cpu.facts import available_bytes, read_facts
from rooflab.errors import UsageError
from rooflab.model.facts import Fact
from rooflab.model.roofline import DISTURBED, Ceiling, MissingCeiling, Roofline

CPU = "sys/devices/system/cpu"


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n", encoding="utf-8")


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Four cores of two threads; two L3 caches of 32 MiB, each for two cores."""
    write(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Fast CPU 9000\ncpu MHz\t\t: 2500.000\n"
            "flags\t\t: fpu avx2 fma avx512f avx512_bf16\n\nprocessor\t: 1\nmodel name\t: Other",
            "proc/meminfo": "MemTotal:       8000000 kB\nMemAvailable:   6000000 kB",
            "proc/self/cgroup": "0::/box/inner",
            f"{CPU}/cpu0/cpufreq/cpuinfo_max_freq": "4000000",
            f"{CPU}/cpu0/cpufreq/scaling_cur_freq": "3100000",
        },
    )
    for number in range(8):
        core = number % 4
        write(tmp_path, {f"{CPU}/cpu{number}/topology/thread_siblings_list": f"{core},{core + 4}"})
        half = "0-1,4-5" if core < 2 else "2-3,6-7"
        for index, (level, kind, size, shared) in enumerate(
            [
                ("1", "Data", "48K", f"{core},{core + 4}"),
                ("1", "Instruction", "32K", f"{core},{core + 4}"),
                ("2", "Unified", "1024K", f"{core},{core + 4}"),
                ("3", "Unified", "32768K", half),
            ]
        ):
            folder = f"{CPU}/cpu{number}/cache/index{index}"
            write(
                tmp_path,
                {
                    f"{folder}/level": level,
                    f"{folder}/type": kind,
                    f"{folder}/size": size,
                    f"{folder}/shared_cpu_list": shared,
                },
            )
    return tmp_path


ALL = frozenset(range(8))


def values(root: Path, affinity: frozenset[int] = ALL) -> dict[str, object]:
    return {name: fact.value for name, fact in read_facts(root, affinity).items()}


def test_facts_of_a_machine(machine: Path) -> None:
    facts = values(machine)
    assert facts["model"] == "Fast CPU 9000"
    assert facts["physical_cores"] == 4
    assert facts["usable_cores"] == 8
    assert facts["threads"] == 4
    assert (facts["l1d_bytes"], facts["l1d_instances"]) == (48 * 2**10, 4)
    assert (facts["l2_bytes"], facts["l2_instances"]) == (2**20, 4)
    assert (facts["l3_bytes"], facts["l3_instances"]) == (32 * 2**20, 2)
    assert facts["last_level_cache_bytes"] == 64 * 2**20
    assert (facts["clock_current"], facts["clock_maximum"]) == (3100, 4000)
    assert facts["instruction_sets"] == "AVX2 FMA AVX-512F AVX512_BF16"
    assert facts["memory_total"] == 8000000 * 1024
    assert facts["virtual_machine"] == "no"


def test_affinity_narrows_cores_and_caches(machine: Path) -> None:
    facts = values(machine, frozenset({0, 1, 4}))
    assert facts["physical_cores"] == 4
    assert facts["usable_cores"] == 3
    assert facts["threads"] == 2
    assert facts["last_level_cache_bytes"] == 32 * 2**20


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"sys/fs/cgroup/box/inner/cpu.max": "max 100000"}, 8),
        ({"sys/fs/cgroup/box/inner/cpu.max": "250000 100000"}, 2),
        ({"sys/fs/cgroup/box/inner/cpu.max": "20000 100000"}, 1),
        (
            {
                "sys/fs/cgroup/box/inner/cpu.max": "max 100000",
                "sys/fs/cgroup/box/cpu.max": "300000 100000",
            },
            3,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/box\n3:memory:/",
                "sys/fs/cgroup/cpu/box/cpu.cfs_quota_us": "200000",
                "sys/fs/cgroup/cpu/box/cpu.cfs_period_us": "100000",
            },
            2,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            8,
        ),
    ],
)
def test_a_control_group_limits_the_cores(
    machine: Path, files: dict[str, str], usable: int
) -> None:
    write(machine, files)
    facts = values(machine)
    assert facts["usable_cores"] == usable
    assert facts["threads"] == min(usable, 4)


def test_available_memory_is_what_the_tightest_limit_leaves(machine: Path) -> None:
    assert available_bytes(machine) == 6000000 * 1024
    write(
        machine,
        {
            "sys/fs/cgroup/box/memory.max": "1000",
            "sys/fs/cgroup/box/memory.current": "900",
            "sys/fs/cgroup/box/memory.stat": "anon 300\ninactive_file 500",
            "sys/fs/cgroup/box/inner/memory.max": "max",
            "sys/fs/cgroup/box/inner/memory.current": "900",
        },
    )
    assert available_bytes(machine) == 600


def test_without_files_facts_are_none_with_a_reason(tmp_path: Path) -> None:
    facts = read_facts(tmp_path, frozenset({0, 1}))
    for name in ("model", "physical_cores", "l3_bytes", "last_level_cache_bytes"):
        assert facts[name].value is None
        assert facts[name].reason
    for name in ("clock_current", "clock_maximum", "instruction_sets", "memory_total"):
        assert facts[name].value is None
        assert facts[name].reason
    assert facts["threads"].value == 2
    assert available_bytes(tmp_path) is None


def test_an_arm_machine(tmp_path: Path) -> None:
    write(tmp_path, {"proc/cpuinfo": "processor\t: 0\nFeatures\t: fp asimd sve bf16"})
    facts = read_facts(tmp_path, frozenset({0}))
    assert facts["instruction_sets"].value == "NEON SVE BF16"
    assert "no 'model name'" in facts["model"].reason


def test_derived_ceiling_names_its_assumptions(machine: Path) -> None:
    ceiling = derived_compute(read_facts(machine, ALL), "fp32")
    assert isinstance(ceiling, Ceiling)
    assert ceiling.value == 4 * 2 * 16 * 2 * 4000e6
    assert ceiling.formula == "4 cores × 2 FMA pipes × 16 lanes (512-bit) × 2 FLOP × 4000 MHz"
    assert "assumes 2 FMA pipes" in ceiling.caveat
    assert "cpuinfo_max_freq" in ceiling.caveat


def test_derived_ceiling_takes_the_current_clock_where_no_maximum_is_known(machine: Path) -> None:
    for file in (machine / CPU / "cpu0/cpufreq").iterdir():
        file.unlink()
    ceiling = derived_compute(read_facts(machine, ALL), "fp64")
    assert isinstance(ceiling, Ceiling)
    assert ceiling.value == 4 * 2 * 8 * 2 * 2500e6
    assert "current clock of /proc/cpuinfo" in ceiling.caveat


def test_derived_ceiling_is_missing_without_a_clock_or_a_vector_width(machine: Path) -> None:
    facts = read_facts(machine, ALL)
    unknown = Fact(None, reason="not told")
    no_clock = {**facts, "clock_maximum": unknown, "clock_current": unknown}
    missing = derived_compute(no_clock, "fp32")
    assert isinstance(missing, MissingCeiling)
    assert "no clock" in missing.reason
    no_width = {**facts, "instruction_sets": unknown}
    assert isinstance(derived_compute(no_width, "fp32"), MissingCeiling)


@pytest.fixture(scope="module")
def device() -> CpuDevice:
    return CpuDevice()


@pytest.fixture(scope="module")
def roofline(device: CpuDevice) -> Roofline:
    # Small enough to be quick; what is measured is not asserted on.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ceilings, "BLAS_SIZES", {1: 32, 2: 64})
        patch.setattr(ceilings, "WINDOW_FMAS", 1000)
        patch.setattr(device, "last_level_cache_bytes", lambda: 2**16)
        return device.roofline()


def test_every_fact_has_a_source_and_a_missing_one_its_reason(device: CpuDevice) -> None:
    assert device.name
    for name, fact in device.facts.items():
        assert fact.source, name
        assert fact.value is not None or fact.reason, name
    assert isinstance(device.fact("threads"), int)
    assert device.free_bytes() > 0


def test_ceilings_of_this_machine(roofline: Roofline) -> None:
    for precision in ("fp32", "fp64"):
        ceiling = roofline.compute(precision)
        assert ceiling is not None
        assert ceiling.provenance == "measured"
        assert ceiling.value > 0
        assert "FMA microkernel" in ceiling.formula
        assert "-bit chains" in ceiling.formula
        assert "BLAS GEMM n=" in ceiling.formula
        assert "GFLOP/s" in ceiling.formula
        assert roofline.ridge(precision)
    bandwidth = roofline.bandwidth()
    assert bandwidth is not None
    assert (bandwidth.key, bandwidth.provenance) == ("DRAM", "measured")
    assert "triad" in bandwidth.formula
    assert "write-allocate not counted" in bandwidth.formula


def test_precisions_without_kernels_have_no_ceiling(roofline: Roofline) -> None:
    reasons = {missing.key: missing.reason for missing in roofline.missing}
    for precision in ("tf32", "fp16", "bf16", "fp16_fp32", "fp8", "int32", "int64"):
        assert "fp32 and fp64 only" in reasons[precision]
        assert roofline.compute(precision) is None


def test_ceilings_are_measured_once(device: CpuDevice, roofline: Roofline) -> None:
    assert device.roofline() is roofline


def test_each_level_is_measured_on_all_threads_and_on_one(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "CACHE_WINDOW_BYTES", 1)
    monkeypatch.setattr(ceilings, "WINDOW_FMAS", 1000)
    monkeypatch.setattr(device, "last_level_cache_bytes", lambda: 2**16)
    facts = {"l1d": 2**15, "l2": 2**19, "l3": 2**20}
    given = {
        **{f"{name}_bytes": size for name, size in facts.items()},
        **{f"{name}_instances": 1 for name in facts},
    }
    monkeypatch.setattr(device, "fact", given.get)
    limits = {limit.key: limit for limit in ceilings.measure_levels(device, 2)}
    for key in ("L1", "L1_copy", "L2", "L2_copy", "L3_1_thread", "DRAM_1_thread", "fp32_1_thread"):
        limit = limits[key]
        assert isinstance(limit, Ceiling), key
        assert limit.value > 0
    # Two threads share each cache; half of L3 holds only one L2.
    l1 = limits["L1"]
    assert isinstance(l1, Ceiling) and "8 KiB per thread, 2 threads" in l1.formula
    assert isinstance(limits["L3"], Ceiling)
    monkeypatch.setattr(device, "fact", (given | {"l3_bytes": 2**19}).get)
    (small, unknown) = (ceilings.measure_caches(device, 1, Patience())[-1] for _ in range(2))
    assert isinstance(small, MissingCeiling)
    assert small.reason == "a thread's share of L3 is no larger than its caches below"
    monkeypatch.setattr(device, "fact", lambda name: None)
    unknown = ceilings.measure_caches(device, 1, Patience())[0]
    assert isinstance(unknown, MissingCeiling)
    assert unknown.reason == "the size of L1 is unknown"


def test_other_programs_are_noticed(device: CpuDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    used = SimpleNamespace(user=5.0, nice=1.0, system=2.0, steal=0.5, idle=1000.0, iowait=9.0)
    own = SimpleNamespace(user=3.0, system=1.0, children_user=99.0)
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: [used])
    monkeypatch.setattr(psutil, "Process", lambda: SimpleNamespace(cpu_times=lambda: own))
    monkeypatch.setattr("rooflab.devices.cpu.device.allowed_cpus", lambda: frozenset({0}))
    assert device.others_s() == pytest.approx(8.5 - 4)
    usable = device.fact("usable_cores")
    assert isinstance(usable, int)
    spare = max(0, usable - device._threads)
    assert not device.contended(2 * (spare + 0.05), 2.0)
    assert device.contended(2 * (spare + 0.15), 2.0)


@pytest.mark.parametrize(
    ("busy", "best_ms", "disturbed"),
    [([False], 20, False), ([True, True, False], 5, False), ([True] * 99, 1, True)],
    ids=["quiet", "busy at first", "always busy"],
)
def test_a_ceiling_is_measured_again_while_others_use_the_cores(
    busy: list[bool],
    best_ms: int,
    disturbed: bool,
    device: CpuDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found_ns = iter([20_000_000, 40_000_000, 5_000_000, *[1_000_000] * 99])
    contended = iter(busy)
    now = [0.0]

    def best_ns(*loop: object) -> int:
        now[0] += 0.2
        return next(found_ns)

    monkeypatch.setattr(ceilings, "_best_ns", best_ns)
    monkeypatch.setattr(ceilings, "perf_counter", lambda: now[0])
    monkeypatch.setattr(device, "contended", lambda others_s, wall_s: next(contended))
    watch = ceilings._Stopwatch(device, Patience())
    assert watch.best_ns(lambda: None, 15, 10**9) == best_ms * 1_000_000
    assert (DISTURBED in watch.caveat) == disturbed
    assert now[0] <= ceilings.PATIENCE_S + 0.4


def test_roofs_are_measured_again_on_request(
    device: CpuDevice, roofline: Roofline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ceilings, "BLAS_SIZES", {1: 32})
    monkeypatch.setattr(ceilings, "WINDOW_FMAS", 1000)
    other = CpuDevice()  # whose roofs are those of a manifest, as those of a resumed run are
    for one in (device, other):
        monkeypatch.setattr(one, "last_level_cache_bytes", lambda: 2**16)
        again = one.remeasure()
        assert again is not roofline
        assert {c.key for c in again.ceilings} == {c.key for c in roofline.ceilings}


def test_too_little_memory_costs_the_bandwidth_ceiling(
    device: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "free_bytes", lambda: 1000)
    missing = measure_bandwidth(device, 1, Patience())
    assert isinstance(missing, MissingCeiling)
    assert "GB of free memory" in missing.reason


def test_time_gives_one_figure_per_launch_in_order(device: CpuDevice) -> None:
    ran: list[int] = []
    launches = [lambda number=number: ran.append(number) for number in range(3)]
    times_us = device.time(launches).times_us
    assert ran == [0, 1, 2]
    assert len(device.time_batch(launches).times_us) == 1
    assert ran == [0, 1, 2] * 2
    assert len(times_us) == 3
    assert all(time_us >= 0 for time_us in times_us)
    device.synchronize()
    device.release()


def test_threads_may_be_fewer_and_not_more_than_there_are() -> None:
    assert CpuDevice(1).fact("threads") == 1
    assert CpuDevice(1).facts["threads"].source == "--threads"
    usable = CpuDevice().fact("usable_cores")
    assert isinstance(usable, int)
    for wrong in (0, usable + 1):
        with pytest.raises(
            UsageError, match=f"--threads {wrong}: this process may use 1 to {usable}"
        ):
            CpuDevice(wrong)


def test_opening_the_cpu_changes_nothing_in_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are bound only where the measuring process claims it."""
    for name in ("OMP_PLACES", "OMP_PROC_BIND", "OPENBLAS_THREAD_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    before = dict(os.environ)
    device = CpuDevice()
    assert device.facts
    assert dict(os.environ) == before
    wanted = device.environment(before)
    assert wanted == {
        "OMP_PLACES": "cores",
        "OMP_PROC_BIND": "true",
        "OPENBLAS_THREAD_TIMEOUT": "26",
    }
    users = {"OMP_PLACES": "threads", "OPENBLAS_THREAD_TIMEOUT": "28"}
    assert device.environment(users) == {"OMP_PROC_BIND": "true"}


@pytest.mark.parametrize(
    ("used_s", "sleeps"),
    [([0.0, 0.0], 1), ([0.0, 0.02, 0.02, 0.03, 0.03, 0.03], 3), ([], None)],
    ids=["idle", "spins for 30 ms", "spins for ever"],
)
def test_a_round_waits_for_threads_that_spin(
    used_s: list[float], sleeps: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``used_s`` is the CPU time of the process before and after each sleep."""
    now, slept = [0.0], []

    def sleep(seconds: float) -> None:
        now[0] += seconds
        slept.append(seconds)

    def launch() -> None:
        now[0] += 0.001

    times = iter(used_s)
    monkeypatch.setattr("rooflab.devices.cpu.device.perf_counter", lambda: now[0])
    monkeypatch.setattr("rooflab.devices.cpu.device.sleep", sleep)
    monkeypatch.setattr("rooflab.devices.cpu.device.process_time", lambda: next(times, now[0]))
    CpuDevice().quiesce(launch)
    if sleeps is not None:
        assert len(slept) == sleeps
    assert now[0] < 1
