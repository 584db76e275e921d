"""Kernels from Python files on a GPU: those that are right, and those that escape the stream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rooflab
from rooflab.report.export import to_csv
from rooflab.runs.compare import Comparison, Verdict
from rooflab.runs.store import MEASUREMENTS

pytestmark = pytest.mark.gpu

TIMING = {"energy_s": 0, "device_warmup_s": 0, "contexts": 1, "min_rounds": 3, "max_rounds": 3}

FILE = '''
import cupy
import numpy as np
import rooflab


@rooflab.kernel(workload="add", precisions=["fp32"])
def good(operands, stream):
    """On the stream that it is given."""
    a, b, c = operands.a, operands.b, operands.c
    return lambda: cupy.add(a, b, out=c)


side = cupy.cuda.Stream(non_blocking=True)


@rooflab.kernel(workload="add", precisions=["fp32"])
def escapes(operands, stream):
    """On a stream of its own."""
    a, b, c = operands.a, operands.b, operands.c

    def launch():
        with side:
            cupy.add(a, b, out=c)

    return launch


@rooflab.kernel(workload="add", precisions=["fp32"])
def on_the_host(operands, stream):
    """Computes with NumPy, between two copies."""
    def launch():
        operands.c.set(np.add(operands.a.get(), operands.b.get()))

    return launch


@rooflab.kernel(workload="add", precisions=["fp32"])
def raises(operands, stream):
    """Raises."""
    raise RuntimeError("an error of its own")


@rooflab.kernel(workload="add", precisions=["fp32"], requires=["no_such_module"])
def missing(operands, stream):
    """Needs a module that is not there."""
'''


def sweep(*kernels: str, workload: str, **more: Any) -> rooflab.Run:
    return rooflab.sweep(workload, kernels=list(kernels), timing=TIMING, **more)


def test_only_what_runs_on_the_stream_is_believed() -> None:
    Path("mine.py").write_text(FILE)
    run = sweep("mine.py", "cupy", workload="add", sizes=[2**24])
    rows = {row.kernel: row for row in run.measurements}
    assert rows["good"].status == "ok"
    good_us, cupy_us = rows["good"].time_us, rows["cupy"].time_us
    assert good_us and cupy_us and 0.5 < good_us / cupy_us < 2
    assert rows["escapes"].status == "incorrect"
    assert "outside the given stream" in rows["escapes"].reason
    assert rows["on_the_host"].status == "failed"
    assert "the launch waits for the device" in rows["on_the_host"].reason
    assert rows["raises"].status == "failed"
    assert rows["raises"].reason == "RuntimeError: an error of its own"
    assert rows["missing"].status == "skipped"
    assert "no_such_module" in rows["missing"].reason


OWN = Path(__file__).resolve().parents[1] / "data" / "own"


def test_a_workload_and_a_cuda_kernel_of_a_users_own() -> None:
    """axpby from two files: swept, verified, drawn, continued, exported and compared."""
    files = [str(OWN / "axpby.py"), str(OWN / "axpby_cuda.cu")]
    run = sweep(*files, workload="axpby", sizes=[2**20 + 3, 2**24], precisions="fp32,fp64")
    rows = [row for row in run.measurements if row.kernel == "axpby_cuda"]
    assert [row.status for row in rows] == ["ok"] * 4
    assert all(row.bound == "dram" and row.gbps for row in rows)
    assert run.plot(Path("axpby.png"))

    table = run.path / MEASUREMENTS
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-1]))
    whole = rooflab.resume(run.path, kernels=files)
    assert len(whole.ok) == 4
    assert "axpby,axpby_cuda,cuda,,fp32,1048579" in to_csv(whole)
    compared = whole.compare(run)
    assert isinstance(compared, Comparison)
    found = compared.counts
    assert sum(found.values()) == 4 and not found[Verdict.SLOW] + found[Verdict.FAST]
