"""``rooflab profile`` on a GPU: its times, its counts, and what it leaves of a program."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import rooflab
from rooflab.errors import UsageError

pytestmark = pytest.mark.gpu

N = 2048
FLOPS = 2 * N**3


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


@pytest.fixture
def work(torch: Any) -> Any:
    x = torch.rand(N, N, device="cuda", dtype=torch.bfloat16)

    def step() -> Any:
        y = x
        for _ in range(3):
            y = torch.nn.functional.gelu(y @ x) * 0.01
        return y

    return step


def rows(run: Any) -> dict[str, Any]:
    return {row.kernel: row for row in run.measurements}


def test_a_function_is_counted_and_modelled(work: Any) -> None:
    run = rooflab.profile(work)
    product = next(row for row in run.measurements if row.backend == "aten::mm")
    assert product.launches == 3
    assert product.tensor_flops == FLOPS
    assert product.flops == FLOPS
    assert product.bytes == 3 * 2 * N * N
    assert product.problem.precision == "bf16"
    assert 0 < product.roof_percent < 100
    gelu = next(row for row in run.measurements if row.backend == "aten::gelu")
    assert gelu.bound == "dram" and gelu.counted_flops and gelu.launches == 3
    program = run.manifest.program
    assert program["kernels_us"] <= program["step_us"]
    assert not program["notes"]


def test_without_counters_work_is_modelled(work: Any) -> None:
    run = rooflab.profile(work, counters=False)
    product = next(row for row in run.measurements if row.backend == "aten::mm")
    assert product.flops == FLOPS and product.counted_flops is None and product.dram_bytes is None
    assert product.roof_percent > 0


def test_modules_are_named(torch: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(N, N, device="cuda"), torch.nn.ReLU())
    x = torch.rand(N, N, device="cuda", requires_grad=True)
    run = rooflab.profile(lambda: model(x).sum().backward(), modules=True, counters=False)
    assert any(row.backend == "aten::relu" for row in run.measurements)


def test_a_part_of_a_loop(work: Any) -> None:
    for _ in range(80):
        with rooflab.profile("loop", counters=False) as part:
            work()
    assert part.result.manifest.program["name"] == "loop"
    assert sum(row.launches for row in part.result.measurements if row.backend == "aten::mm") == 3


def test_a_graph_is_counted_as_a_whole(torch: Any, work: Any) -> None:
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    run = rooflab.profile(graph.replay)
    row = rows(run)["(CUDA graph of 9 kernels)"]
    assert row.tensor_flops == 3 * FLOPS and row.launches == 1


def test_nothing_is_launched() -> None:
    with pytest.raises(UsageError, match="launched nothing on a GPU"):
        rooflab.profile(lambda: None)


def test_a_run_of_it_is_saved(work: Any, tmp_path: Path) -> None:
    saved = rooflab.profile(work).save(tmp_path / "run")
    again = rooflab.load(saved.path)
    assert [row.kernel for row in again.measurements] == [row.kernel for row in saved.measurements]
    assert again.manifest.program["steps"] >= 5


SCRIPT = """
import sys, time, torch
x = torch.rand({n}, {n}, device="cuda", dtype=torch.bfloat16)
end = time.time() + float(sys.argv[1])
while time.time() < end:
    y = torch.nn.functional.gelu(x @ x)
    torch.cuda.synchronize()
print("its own output", __name__)
sys.exit(7)
"""


def profiled(
    tmp_path: Path, text: str, *arguments: str, options: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "rooflab", "profile", "--out", str(tmp_path / "run")]
    given = [*command, *options, str(script), *arguments]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run(
        given, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def found(tmp_path: Path, ended: subprocess.CompletedProcess[str]) -> Any:
    """Its run."""
    assert (tmp_path / "run" / "manifest.json").exists(), ended.stderr
    return rooflab.load(tmp_path / "run")


def test_a_script_keeps_its_output_and_exit_code(torch: Any, tmp_path: Path) -> None:
    ended = profiled(tmp_path, SCRIPT.format(n=N), "8")
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout == "its own output __main__\n"
    run = rooflab.load(tmp_path / "run")
    product = max(run.measurements, key=lambda row: row.tensor_flops or 0)
    assert product.tensor_flops == pytest.approx(FLOPS) and product.launches == 1
    assert run.manifest.program["steps"] > 100


def test_a_script_that_fails_shows_its_own_traceback(torch: Any, tmp_path: Path) -> None:
    text = "import torch\ntorch.ones(9, device='cuda').add_(1)\nraise ValueError('mine')\n"
    ended = profiled(tmp_path, text)
    assert ended.returncode == 1
    assert "ValueError: mine" in ended.stderr and "rooflab/programs" not in ended.stderr
    assert rooflab.load(tmp_path / "run").measurements


GRAPH = """
import time, torch
x = torch.rand({n}, {n}, device="cuda", dtype=torch.bfloat16)
def step():
    y = x
    for _ in range(40):
        y = torch.nn.functional.gelu(y @ x) * 0.01
with torch.cuda.stream(torch.cuda.Stream()):
    step()
torch.cuda.synchronize()
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    step()
end = time.time() + 12
while time.time() < end:
    graph.replay()
torch.cuda.synchronize()
"""


def test_a_step_of_a_script_has_whole_graphs(torch: Any, tmp_path: Path) -> None:
    """Its launches are far ahead of the device."""
    ended = profiled(tmp_path, GRAPH.format(n=2 * N))
    assert ended.returncode == 0, ended.stderr
    run = found(tmp_path, ended)
    assert "(CUDA graph of 120 kernels)" in rows(run), ended.stderr
    row = rows(run)["(CUDA graph of 120 kernels)"]
    assert row.tensor_flops == pytest.approx(40 * 8 * FLOPS) and row.launches == 1
    assert row.roof_percent < 100
    assert run.manifest.program["steps"] > 50 and not run.manifest.program["notes"]


DISTURBED = re.compile(r"\d of \d+ steps took more than 1.5 times as long")

RANGES = """
import time
import cupy as cp
from cupy.cuda import nvtx
a = cp.random.rand(4096, 4096, dtype=cp.float32)
b = cp.empty_like(a)
end = time.time() + 12
while time.time() < end:
    nvtx.RangePush("products")
    cp.matmul(a, a, out=b)
    nvtx.RangePop()
    nvtx.RangePush("rest")
    b *= 0.5
    b.sum(axis=0)
    nvtx.RangePop()
cp.cuda.Device().synchronize()
"""


def test_an_nvtx_range_of_a_script_that_is_ahead_of_the_device(tmp_path: Path) -> None:
    ended = profiled(tmp_path, RANGES, options=["--range", "rest"])
    assert ended.returncode == 0, ended.stderr
    run = found(tmp_path, ended)
    kernels = [row for row in run.measurements if row.kernel[0] != "("]
    assert not [row.kernel for row in kernels if row.tensor_flops]
    assert all(row.counted_flops is not None for row in kernels)
    assert not any(row.tensor_flops for row in kernels)
    assert run.manifest.program["steps"] > 50
    assert not [note for note in run.manifest.program["notes"] if not DISTURBED.match(note)]


CACHE = """
import time, torch
w = torch.rand(256, 256, device="cuda", dtype=torch.bfloat16)
cache = [torch.rand(2048, 256, device="cuda", dtype=torch.bfloat16) for _ in range(9)]
token, end = 0, time.time() + 10
while time.time() < end:
    token += 1
    time.sleep(0.003)
    x = torch.rand(1, 256, device="cuda", dtype=torch.bfloat16)
    if token % 2:
        x = x.relu()
    for layer in range(9):
        cache[layer] = torch.cat([cache[layer][-6000:], x])
        x = (x @ w).tanh()
    x.argmax().item()
"""


def test_tokens_are_steps_though_a_cache_grows(torch: Any, tmp_path: Path) -> None:
    ended = profiled(tmp_path, CACHE)
    assert ended.returncode == 0, ended.stderr
    run = found(tmp_path, ended)
    kernels = [row for row in run.measurements if row.kernel[0] != "("]
    of_layers = [row for row in kernels if row.launches == pytest.approx(9, rel=0.02)]
    assert len(of_layers) >= 3 and len(kernels) < 20, ended.stderr
    assert all(row.counted_flops is not None for row in of_layers), ended.stderr
    assert run.manifest.program["steps"] > 50
