"""No cheat and no mistake is ``ok`` on a CPU, each row says why, and what is right stays ``ok``.

The kernels and what they must come to are in tests/cheats.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import psutil
import pytest
from cheats import judge, table

import rooflab
from rooflab.devices.cpu import device

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process loads the files too: one of them replaces its clock."""
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(elsewhere / "cache"))
    monkeypatch.setattr(device, "perf_counter_ns", perf_counter_ns)


@pytest.mark.parametrize("name", table.CPU)
def test_no_cheat_is_ok(name: str, elsewhere: Path) -> None:
    found = judge.surprises(table.CPU[name], elsewhere)
    if found:  # other programs may have hidden a cheat, or slowed an honest kernel down
        found = judge.surprises(table.CPU[name], elsewhere)
    assert not found, "\n".join(found)


def test_all_shipped_kernels_are_ok(elsewhere: Path) -> None:
    lines = ["precisions = 'fp32'"]
    for workload, content in table.SHIPPED.items():
        lines.append(f"[workloads.{workload}]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in content.items()]
    Path("shipped.toml").write_text("\n".join(lines))
    run = rooflab.sweep(device="cheats.quick:Quick", config="shipped.toml", timing=judge.TIMING)
    wrong = [(row.key, row.reason) for row in run.measurements if row.status != "ok"]
    assert wrong == []
    assert {row.problem.workload for row in run.measurements} == set(table.SHIPPED)


def test_no_process_of_a_kernel_survives(elsewhere: Path) -> None:
    """Even if it ignores what ends it politely."""
    Path("spawns.py").write_text(SPAWNS)
    config: dict[str, Any] = {"timing": judge.TIMING, "precisions": ["fp32"], "sizes": [1000]}
    device = "cheats.quick:Quick"
    run = rooflab.sweep("add", kernels=["spawns.py", "numpy"], device=device, **config)
    assert [row.status for row in run.measurements] == ["ok", "ok"]
    assert [row.changed.startswith("threads or processes") for row in run.measurements] == [1, 0]
    pids = [int(line) for line in Path("pids").read_text().split()]
    assert pids
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            assert process.status() == psutil.STATUS_ZOMBIE or process.wait(5) is None


SPAWNS = """
import subprocess
from pathlib import Path
import numpy as np
import rooflab

@rooflab.kernel(workload="add", device="cpu")
def spawns(operands, stream):
    "Honest, beside a child"
    command = ["sh", "-c", "trap '' TERM HUP INT; sleep 100; sleep 100"]
    with Path("pids").open("a") as file:
        print(subprocess.Popen(command).pid, file=file)
    return lambda: np.add(operands.a, operands.b, out=operands.c)
"""
