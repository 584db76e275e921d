"""No cheat and no mistake is ``ok`` on a CPU, each row says why, and what is right stays ``ok``.

The kernels and what they must come to are in tests/cheats.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cheats import judge, table

import rooflab
from rooflab.cpu import device

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def apart(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process loads the files too: one of them replaces its clock."""
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(elsewhere / "cache"))
    monkeypatch.setattr(device, "perf_counter_ns", device.perf_counter_ns)


@pytest.mark.parametrize("name", table.CPU)
def test_no_cheat_is_ok(name: str, elsewhere: Path) -> None:
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
