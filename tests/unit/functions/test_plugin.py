"""The pytest plugin, in a pytest of its own."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rooflab.functions import bench, plugin
from rooflab.model.measurement import Measurement

pytest_plugins = "pytester"

Run = Callable[..., pytest.RunResult]

TESTS = """
import numpy as np

BRIEF = {"warmup_s": 0, "min_rounds": 3, "max_rounds": 3, "round_s": 0.001, "energy_s": 0}

def test_product(roofline):
    x = np.random.rand(60, 60)
    work = {"flops": 2 * 60**3, "timing": BRIEF, "device": "cpu"}
    assert roofline(np.matmul, x, x, **work).percent > 0
    name = "test_rows.py::test_product"
    assert roofline(np.matmul, x, x, **work).row.kernel == f"{name} 2"
    assert roofline({"a": np.matmul}, x, x, **work)["a"].kernel == "a"
"""

GIVEN = """
from rooflab.devices.cpu.device import CpuDevice
from rooflab.model.roofline import Ceiling, Roofline

limits = ("bandwidth", "DRAM", 1e11), ("compute", "fp64", 1e12)
ceilings = tuple(Ceiling(*one, "measured", "given") for one in limits)
CpuDevice.roofline = lambda self: Roofline(ceilings, memory="DRAM", prefer=("measured",))
CpuDevice.levels = lambda self: []
"""
"""Roofs: measuring those of this machine takes seconds in each process."""

NAME = "test_rows.py::test_product"


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Its processor has given roofs."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(pytester.path / "cache"))
    pytester.makeconftest(GIVEN)
    pytester.makepyfile(test_rows=TESTS)

    def run(*options: str) -> pytest.RunResult:
        own = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:randomly")
        return pytester.run(sys.executable, "-m", "pytest", *own, *options)

    return run


def test_rows_are_shown_saved_and_compared(run: Run, pytester: pytest.Pytester) -> None:
    first = run("--roofline-save", "base", "--roofline-json", "rows.json")
    first.assert_outcomes(passed=1)
    first.stdout.fnmatch_lines(["*= roofline =*", f"{NAME} 60x60 fp64: *", "saved: base"])
    assert (pytester.path / "base" / "measurements.csv").is_file()
    rows = json.loads((pytester.path / "rows.json").read_text())
    assert [row["kernel"] for row in rows] == [NAME, f"{NAME} 2", f"{NAME} 3 a"]
    second = run("--roofline-compare", "base")
    second.assert_outcomes(passed=1)
    second.stdout.fnmatch_lines(["3 points in common: *"])


def test_a_slow_function_fails_if_that_is_asked_for(tmp_path: Path) -> None:
    x = np.ones(100)
    brief = {"min_rounds": 3, "max_rounds": 3, "round_s": 0.001, "energy_s": 0}
    base = bench.bench({"test": np.sin}, x, device="cpu", timing=brief)
    device = base.manifest.device.model_copy(update={"facts": {}})  # SAME needs no virtual machine
    base = replace(base, manifest=base.manifest.model_copy(update={"device": device}))
    (row,) = base.measurements
    row = replace(row, flags="", time_us=10.0, time_lo_us=9.99, time_hi_us=10.01)
    slow = replace(row, time_us=20.0, time_lo_us=19.99, time_hi_us=20.01)
    replace(base, measurements=[row]).save(tmp_path / "base")

    def ended(new: Measurement, **options: object) -> tuple[int, str]:
        given = {plugin.COMPARE: str(tmp_path / "base"), plugin.FAIL: True, **options}
        stash = {plugin._RESULTS: [replace(base, measurements=[new])]}
        config: Any = SimpleNamespace(stash=stash, getoption=given.get)
        session: Any = SimpleNamespace(config=config, exitstatus=0)
        lines: list[str] = []
        reporter = SimpleNamespace(section=lines.append, line=lines.append)
        plugin.pytest_terminal_summary(reporter, config)
        plugin.pytest_sessionfinish(session)
        return session.exitstatus, "\n".join(lines)

    code, text = ended(slow)
    assert code == 1
    assert re.search(r"^SLOW  test  function FP64.*\+100", text, re.M)
    assert "verdict  kernel  problem  size  base µs  new µs  change %" in text
    assert "1 point in common: 1 SLOW." in text
    assert ended(slow, **{plugin.FAIL: False})[0] == 0
    assert ended(slow, **{plugin.THRESHOLD: 150.0})[0] == 0
    assert ended(row)[0] == 0
    assert "1 point in common: 1 SAME." in ended(row)[1]
    assert "not compared with nowhere" in ended(row, **{plugin.COMPARE: "nowhere"})[1]


@pytest.mark.parametrize("given", [-1.0, float("nan"), 2.0])
def test_a_threshold_is_a_percentage_and_for_a_base(tmp_path: Path, given: float) -> None:
    base = None if given == 2 else str(tmp_path)
    options = {plugin.COMPARE: base, plugin.THRESHOLD: given}
    config: Any = SimpleNamespace(stash={}, getoption=options.get)
    with pytest.raises(pytest.UsageError, match="threshold is 0 or more, in percent, and for "):
        plugin.pytest_configure(config)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({plugin.FAIL: True}, "--roofline-fail is for --roofline-compare BASE"),
        ({plugin.JSON: "no/such/rows.json"}, "rows.json: no such folder"),
        ({plugin.SAVE: "."}, "this is a run already; name another folder"),
    ],
)
def test_wrong_options_are_told_before_anything_is_timed(
    options: dict[str, Any], message: str
) -> None:
    Path("manifest.json").write_text("")
    config: Any = SimpleNamespace(stash={}, getoption=options.get)
    with pytest.raises(pytest.UsageError, match=message):
        plugin.pytest_configure(config)


def test_without_the_device_tests_are_skipped(run: Run) -> None:
    result = run("--roofline-device", "cuda:77", "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*cuda:77 cannot be used*"])


def test_tests_of_one_name_in_two_files_are_two(run: Run, pytester: pytest.Pytester) -> None:
    (pytester.path / "test_same.py").write_text(TESTS.replace("test_rows", "test_same"))
    run("--roofline-json", "rows.json").assert_outcomes(passed=2)
    rows = json.loads((pytester.path / "rows.json").read_text())
    assert len({row["kernel"] for row in rows}) == len(rows) == 6


def test_in_workers_they_fail_with_one_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_rows=TESTS)
    own = ("-p", "no:cacheprovider", "-p", "no:randomly", "-n", "2")
    result = pytester.run(sys.executable, "-m", "pytest", *own)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*would disturb each other's times: *with -n 0"])


def test_who_does_not_use_it_sees_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_nothing(): pass")
    assert "roofline" not in pytester.run(sys.executable, "-m", "pytest").stdout.str()
