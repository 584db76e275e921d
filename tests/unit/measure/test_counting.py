"""The counting pass: which launches it makes, and what becomes of their counters."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import fake
import pytest

from rooflab.config import SweepConfig
from rooflab.devices.base import Counters, Device, Launch
from rooflab.devices.cuda import ncu
from rooflab.errors import KernelError, UnavailableError
from rooflab.kernels.base import Kernel, Operands, Variant
from rooflab.measure import counting
from rooflab.worker import profiled
from rooflab.worker.messages import Count, Job
from rooflab.workloads import build

PROBLEM = build("gemm", "fp32", {"m": 64, "n": 64, "k": 64})
COLD, WARM = SweepConfig(), SweepConfig(cache="warm")


def fast() -> Kernel:
    (kernel,) = fake.KERNELS.select(["fast"], "exact", "gemm")
    return kernel


def test_cold_launches_have_operands_in_turn_and_warm_ones_do_not() -> None:
    device = fake.FakeDevice()
    cold = counting.launches(device, PROBLEM, fast(), "", COLD)
    assert 1 < len(set(map(id, cold))) <= len(cold) <= counting.MOST_LAUNCHES
    warm = counting.launches(device, PROBLEM, fast(), "", WARM)
    assert len(set(map(id, warm))) == 1


def test_a_slow_kernel_is_launched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "PASS_S", 1e-9)
    assert len(counting.launches(fake.FakeDevice(), PROBLEM, fast(), "", COLD)) == 1


def test_the_variant_of_the_row_is_counted() -> None:
    kernel, seen = fast(), []

    def variant(name: str) -> Variant:
        def prepare(device: Device, operands: Operands) -> Launch:
            seen.append(name)
            return kernel.prepare(device, operands)

        return Variant(name, prepare, lambda device, problem: None)

    several = replace(kernel, variants=(variant("a"), variant("b")))
    counting.launches(fake.FakeDevice(), PROBLEM, several, "b", WARM)
    assert seen == ["b"]


def test_counters_are_those_of_one_launch() -> None:
    device = fake.Counting()
    counted = counting.count(device, PROBLEM, fast(), "", COLD)
    roof = device.roofline().roof("fp32", PROBLEM.flops, PROBLEM.traffic)
    assert counted is not None
    assert roof is not None
    assert counted.flops["fp32"] == pytest.approx(1e3 * roof.us / 0.8)
    assert counting.count(fake.FakeDevice(), PROBLEM, fast(), "", COLD) is None


# ncu ---------------------------------------------------------------------------------------------

FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on"

PROGRAM = """#!/usr/bin/env python3
import pathlib, sys
if "--query-metrics" in sys.argv:
    print("Device NVIDIA")
    for name in ("FFMA", "dram__bytes_read", "dram__bytes_write", "sm__cycles_elapsed"):
        print(f"{name}   # of something")
    raise SystemExit
if "forbidden" in sys.argv[0]:
    print("==ERROR== ERR_NVGPUCTRPERM - the user does not have permission")
    raise SystemExit(1)
if "failing" not in sys.argv[0]:
    pathlib.Path(sys.argv[-1]).with_name("launches").write_text("4")
print("==PROF== Connected")
print('"ID","Kernel Name","dram__bytes_read.sum","dram__bytes_write.sum","FFMA.sum",'
      '"sm__cycles_elapsed.max","sm__cycles_elapsed.avg.per_second"')
print('"","","byte","byte","inst","cycle","cycle/second"')
print('"0","first","1,000","200","4000","900","1400000000"')
print('"1","second","1,000","n/a","4000","1100","1600000000"')
""".replace("FFMA", FFMA)


def program(folder: Path, name: str) -> str:
    file = folder / name
    file.write_text(PROGRAM)
    file.chmod(0o755)
    return str(file)


JOB = Job("fake:FakeDevice", COLD)
REQUEST = Count(PROBLEM.record, "fast", "")


def test_ncu_counts_all_kernels_of_a_launch(tmp_path: Path) -> None:
    counted = profiled.count(program(tmp_path, "ncu"), JOB, REQUEST)
    assert counted == Counters({"fp32": 4000.0}, 550.0, None, None, 500.0, 1500.0)


def test_without_permission_ncu_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="NVreg_RestrictProfilingToAdminUsers=0"):
        profiled.count(program(tmp_path, "forbidden"), JOB, REQUEST)


def test_a_kernel_that_fails_under_ncu_is_named(tmp_path: Path) -> None:
    with pytest.raises(KernelError, match="fast failed under ncu"):
        profiled.count(program(tmp_path, "failing"), JOB, REQUEST)


def test_ncu_that_cannot_run_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="ncu does not start"):
        profiled.count(str(tmp_path / "absent"), JOB, REQUEST)
    with pytest.raises(UnavailableError, match="no metric that is known"):
        profiled.count("true", JOB, REQUEST)


def test_ncu_is_found_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = program(tmp_path, "ncu")
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert ncu.find() == expected
