"""``rooflab judge`` on a GPU: shipped kernels are accepted, in their true time; cheats are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cheats import table

import rooflab
from rooflab.files import kernels_dir
from rooflab.model.measurement import Measurement

pytestmark = pytest.mark.gpu

SIZE = 2**20 + 3


def judged(file: str, workload: str = "add", **more: Any) -> Measurement:
    found = rooflab.judge(file, workload, "cuda:0", **{"sizes": SIZE, **more})
    assert not found.refused.lacking
    row: Measurement = found.problems[0].row
    return row


@pytest.mark.parametrize(
    "name",
    [
        *("prepared", "memo_pointer", "first_launches", "every_other", "in_pool"),
        *("zeros", "half", "works_in_a", "past_the_end.cu", "memo_blocks.cu", "lane_missing.cu"),
    ],
)
def test_cheats_are_refused(name: str) -> None:
    row = judged(table.ADD_GPU.pattern(name))
    assert row.status in ("incorrect", "failed"), row
    assert row.time_us is None


@pytest.mark.parametrize("name", ["honest", "honest_graph", "honest_loop.cu"])
def test_honest_ones_are_accepted(name: str) -> None:
    row = judged(table.ADD_GPU.pattern(name))
    assert (row.status, row.reason) == ("ok", "")


def test_the_time_is_that_of_a_sweep() -> None:
    """Of a launch that is long enough for the host."""
    file = str(kernels_dir() / "gemm" / "03_tiled.cu")
    options: dict[str, Any] = {"sizes": 1024, "precisions": "fp32"}
    row = judged(file, "gemm", **options)
    run = rooflab.sweep(kernels="tiled", device="cuda:0", parameters={"layout": "nn"}, **options)
    assert row.time_us == pytest.approx(run.measurements[0].time_us, rel=0.05)


def test_libraries_of_python_are_accepted(elsewhere: Path) -> None:
    Path("mine.py").write_text(LIBRARIES)
    for name in ("torch_add", "triton_add"):
        pytest.importorskip(name.partition("_")[0])
        row = judged(f"mine.py:{name}")
        assert (row.status, row.reason) == ("ok", "")


def test_work_ahead_on_the_device(elsewhere: Path) -> None:
    """A kernel that goes on polling is seen: it takes the GPU from what the judge does."""
    Path("mine.py").write_text(POLLS)
    row = judged("mine.py")
    assert (row.status, row.time_us) == ("incorrect", None)
    assert "goes on working on the device" in row.reason


LIBRARIES = """
import rooflab

try:
    import triton
    from triton import language as tl

    @triton.jit
    def added(a, b, c, n, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(c + i, tl.load(a + i, i < n) + tl.load(b + i, i < n), i < n)
except ImportError:
    pass

def arrays(operands):
    import torch
    return [torch.from_dlpack(operands[name]).reshape(-1) for name in "abc"]

@rooflab.kernel(workload="add")
def torch_add(operands, stream):
    import torch
    a, b, c = arrays(operands)
    mine = torch.cuda.ExternalStream(stream.ptr)
    def launch():
        with torch.cuda.stream(mine):
            torch.add(a, b, out=c)
    return launch

@rooflab.kernel(workload="add")
def triton_add(operands, stream):
    import torch
    a, b, c = arrays(operands)
    mine = torch.cuda.ExternalStream(stream.ptr)
    def launch():
        with torch.cuda.stream(mine):
            added[(triton.cdiv(c.numel(), 1024),)](a, b, c, c.numel(), BLOCK=1024)
    return launch
"""

POLLS = """
import cupy
import rooflab
from rooflab.devices.cuda.device import CudaDevice

CODE = r'''
extern "C" __global__ void poll(const float* a, const float* b, float* known, int n) {
    for (long long round = 0; round < 1ll << 40; ++round)
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
            known[i] = ((volatile const float*)a)[i] + ((volatile const float*)b)[i];
}
'''
started = []
CudaDevice.synchronize = lambda self: self.stream.synchronize()  # not for that kernel

@rooflab.kernel(workload="add")
def polls(operands, stream):
    a, b, c = (operands[name].reshape(-1) for name in "abc")
    def launch():
        if not started:
            started.append(cupy.cuda.Stream(non_blocking=True))
            with started[0]:
                cupy.RawKernel(CODE, "poll")((8,), (256,), (a, b, cupy.empty_like(c), c.size))
        cupy.add(a, b, out=c)
    return launch
"""
