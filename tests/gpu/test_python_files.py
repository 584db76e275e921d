"""Kernels from Python files on a GPU: those that are right, and those that escape the stream."""

from __future__ import annotations

from pathlib import Path

import pytest

import rooflab
from rooflab.runs.store import Run

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


def sweep(*kernels: str, workload: str, **more: object) -> Run:
    return rooflab.sweep(workload, kernels=list(kernels), timing=TIMING, **more)  # type: ignore[arg-type]


def test_only_what_runs_on_the_stream_is_believed() -> None:
    Path("mine.py").write_text(FILE)
    run = sweep("mine.py", "cupy", workload="add", sizes=[2**20])
    rows = {row.kernel: row for row in run.measurements}
    assert rows["good"].status == "ok"
    assert rows["good"].time_us == pytest.approx(rows["cupy"].time_us, rel=0.1)
    assert rows["escapes"].status == "incorrect"
    assert "outside the stream" in rows["escapes"].reason
    assert rows["on_the_host"].status != "ok" or "ungated" in rows["on_the_host"].flags
    assert rows["raises"].status == "failed"
    assert rows["raises"].reason == "RuntimeError: an error of its own"
    assert rows["missing"].status == "skipped"
    assert "no_such_module" in rows["missing"].reason


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    from rooflab.backends import load_file

    for workload in dict.fromkeys(kernel.workload for kernel in load_file(path)):
        shape = {"shapes": "1000x1023"} if workload in ("softmax", "rmsnorm") else {"sizes": [5000]}
        run = sweep(str(path), workload=workload, **shape)
        assert {row.status for row in run.measurements} == {"ok"}, [
            (row.kernel, row.reason) for row in run.measurements
        ]
