"""Kernels that misbehave fail only their own rows, on a real GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from rooflab.cli import main
from rooflab.config import SweepConfig, Timing
from rooflab.devices.base import Device, Launch
from rooflab.devices.registry import open_device
from rooflab.kernels.base import Kernel, Operands
from rooflab.kernels.sources import discover
from rooflab.measure.protocol import Protocol
from rooflab.runs import store
from rooflab.workloads.gemm import Gemm

pytestmark = pytest.mark.gpu

KERNEL = """/*
entry = "bad"
precisions = ["fp32"]
layouts = ["nn"]
block = [32]
tile = [1, 32]
*/
extern "C" __global__ void bad(int M, int N, int K, float alpha, const float* A, const float* B,
                               float beta, float* C) {
    %s
}
"""

CONFIG = """
precisions = "fp32"
sizes = "256,300"
[timing]
timeout_s = 10
device_warmup_s = 0
energy_s = 0
min_rounds = 3
max_rounds = 3
"""

EXPECTED = {
    "tiled": ("ok", ""),
    "cublas": ("ok", ""),
    "illegal": ("failed", "illegal"),
    "endless": ("timeout", "no answer for 10 s"),
    "unwritten": ("incorrect", "not written"),
}
"""Status and reason at both sizes."""


def test_each_fails_only_its_own_rows() -> None:
    for name, body in {
        "illegal": "*reinterpret_cast<volatile float*>(16ull) = alpha;",
        "endless": "while (clock64() != 0) {}",
        "unwritten": "if (threadIdx.x == 0) C[0] = 1;",
    }.items():
        Path(f"{name}.cu").write_text(KERNEL % body)
    Path("short.toml").write_text(CONFIG)
    with pytest.raises(SystemExit) as ended:
        main(
            [
                *("sweep", "--config", "short.toml", "-k", "./illegal.cu", "-k", "tiled"),
                *("-k", "./endless.cu", "-k", "./unwritten.cu", "-k", "cublas"),
            ]
        )
    assert ended.value.code == 3
    rows = store.load(store.newest(Path("results"))).measurements
    found = {name: [(r.status, r.reason) for r in rows if r.kernel == name] for name in EXPECTED}
    for name, (status, reason) in EXPECTED.items():
        assert [one for one, _ in found[name]] == [status, status], found
        assert all(reason in text.lower() for _, text in found[name]), found


def test_a_kernel_that_asks_for_too_much_memory_fails_only_its_own_row() -> None:
    def prepare(device: Device, operands: Operands) -> Launch:
        workspace = device.arrays.empty(2 * device.free_bytes(), "u1")
        return lambda: workspace.fill(0)

    greedy = Kernel("greedy", "test", "cuda", "", ("fp32",), prepare)
    (cublas,) = discover().select(["cublas"], "cuda", "gemm")
    config = SweepConfig(timing=Timing(energy_s=0, warmup_s=0, max_rounds=10))
    protocol = Protocol(open_device("cuda:0"), config)
    failed, good = protocol.measure(Gemm(m=256, n=256, k=256), [greedy, cublas])
    assert failed.status == "failed"
    assert "ut of memory" in failed.reason
    assert good.status == "ok"
