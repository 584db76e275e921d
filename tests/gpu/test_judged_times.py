"""``rooflab judge`` on a GPU that nothing else uses: times, and work beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rooflab
from rooflab.files import kernels_dir

pytestmark = pytest.mark.gpu


def test_the_time_is_that_of_a_sweep() -> None:
    """Of a launch that is long enough for the host."""
    file = str(kernels_dir() / "gemm" / "03_tiled.cu")
    options: dict[str, Any] = {"sizes": 1024, "precisions": "fp32"}
    row = rooflab.judge(file, "gemm", "cuda:0", **options).problems[0].row
    run = rooflab.sweep(kernels="tiled", device="cuda:0", parameters={"layout": "nn"}, **options)
    assert row.time_us == pytest.approx(run.measurements[0].time_us, rel=0.05)


def test_work_ahead_on_the_device(elsewhere: Path) -> None:
    """A kernel that goes on polling is seen: it takes the GPU from what the judge does."""
    Path("mine.py").write_text(POLLS)
    row = rooflab.judge("mine.py", "add", "cuda:0", sizes=2**20 + 3).problems[0].row
    assert (row.status, row.time_us) == ("incorrect", None)
    assert "goes on working on the device" in row.reason


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
    cupy.add(a, b, out=c)  # its code must be there before that kernel is
    poll = cupy.RawKernel(CODE, "poll")
    poll.compile()
    def launch():
        if not started:
            started.append(cupy.cuda.Stream(non_blocking=True))
            with started[0]:
                poll((8,), (256,), (a, b, cupy.empty_like(c), c.size))
        cupy.add(a, b, out=c)
    return launch
"""
