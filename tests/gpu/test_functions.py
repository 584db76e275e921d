"""``rooflab.bench`` and ``do_bench`` on a GPU: every library, every way of working."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rooflab
from rooflab.errors import UsageError
from rooflab.kernels.python_file import import_file

pytestmark = pytest.mark.gpu

BRIEF: dict[str, Any] = {
    "warmup_s": 0.02,
    "min_rounds": 3,
    "max_rounds": 3,
    "energy_s": 0,
    "burst_rest_s": 0,
}


def bench(*args: Any, **options: Any) -> rooflab.Result:
    """Afterwards streams, seeds and modes of the process are as they were."""
    before = state()
    result = rooflab.bench(*args, timing=BRIEF, **options)
    assert state() == before
    return result


def state() -> tuple[Any, ...]:
    import cupy
    import torch

    return (
        torch.cuda.current_stream().cuda_stream,
        cupy.cuda.get_current_stream().ptr,
        torch.cuda.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.backends.cuda.matmul.allow_tf32,
        cupy.cuda.get_allocator(),
    )


@pytest.fixture
def x(torch: Any) -> Any:
    return torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16)


def test_a_product_of_torch(torch: Any, x: Any) -> None:
    result = bench(torch.matmul, x, x)
    row = result.row
    assert (row.status, row.cache, row.bound) == ("ok", "cold", "compute")
    assert (row.flops, row.bytes) == (2 * 1024**3, 3 * 2 * 1024**2 - 2 * 1024**2)
    assert row.problem.settings["counts"] == "PyTorch's FLOPs"
    assert row.problem.precision == "bf16"
    assert row.roof_percent
    assert 0 < row.roof_percent < 100
    assert not {"ungated", "host_timed"} & set(row.flag_names)
    assert row.host_us
    assert 0 < row.host_us < 10_000


def test_cold_takes_longer_than_warm(torch: Any) -> None:
    a, b = torch.randn(2, 2**21, device="cuda")
    cold, warm = bench(torch.add, a, b), bench(torch.add, a, b, cache="warm")
    into = bench(lambda p, q, r: torch.add(p, q, out=r), a, b, torch.empty_like(a))
    flushed = bench(lambda: a + b)
    times = {name: one.time_us for name, one in locals().items() if hasattr(one, "time_us")}
    assert warm.time_us < 0.85 * cold.time_us, times
    assert into.time_us == pytest.approx(cold.time_us, rel=0.03), times
    assert 0 < flushed.time_us - cold.time_us < 4, times
    assert flushed.row.bytes == cold.row.bytes == 3 * 4 * 2**21


def test_work_that_waits_or_is_elsewhere_is_timed_by_the_host(torch: Any, x: Any) -> None:
    big = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    side = torch.cuda.Stream()

    def elsewhere(a: Any) -> Any:
        with torch.cuda.stream(side):
            return a @ a

    here = bench(torch.matmul, big, big)
    other = bench(elsewhere, big)
    assert "host_timed" in other.row.flag_names
    assert 0.9 * here.time_us < other.time_us < 3 * here.time_us
    assert "host_timed" in bench(lambda a: a.sum().item(), x).row.flag_names


def test_a_chain_is_launch_bound(torch: Any) -> None:
    def chain(a: Any) -> Any:
        for _ in range(50):
            a = a * 1.01
        return a

    row = bench(chain, torch.ones(64, device="cuda")).row
    assert {"launch_bound"} <= set(row.flag_names)
    assert "ungated" not in row.flag_names


def test_backward_graphs_and_allocation(torch: Any, x: Any) -> None:
    layer = torch.nn.Linear(1024, 1024, device="cuda", dtype=torch.bfloat16)
    given = x.clone().requires_grad_()

    def backward(a: Any) -> None:
        layer(a).sum().backward()

    assert bench(backward, given).row.status == "ok"
    assert given.grad is None
    torch.matmul(x, x)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        torch.matmul(x, x)
    replayed = bench(graph.replay, device="cuda:0")
    assert replayed.time_us == pytest.approx(bench(torch.matmul, x, x).time_us, rel=0.5)
    assert bench(lambda a: torch.cat([a, a]), x).row.bytes == 3 * x.numel() * 2


@pytest.mark.filterwarnings("ignore")  # those of PyTorch's compiler
def test_a_compiled_function_stays_compiled(torch: Any) -> None:
    compiled = torch.compile(lambda a: torch.softmax(a * 2, -1).relu() + 1)
    a = torch.randn(4096, 4096, device="cuda")
    compiled(a)
    before = rooflab.do_bench(lambda: compiled(a), warmup=5, rep=20)
    between = bench(lambda: compiled(a)).time_us
    after = rooflab.do_bench(lambda: compiled(a), warmup=5, rep=20)
    assert between == pytest.approx(1e3 * before, rel=0.2), (before, between, after)
    assert after == pytest.approx(before, rel=0.2), (before, between, after)


def test_no_cheat_wins_a_race(torch: Any) -> None:
    kept: dict[Any, Any] = {}

    def by_pointer(a: Any, b: Any) -> Any:
        key = a.data_ptr(), b.data_ptr()
        if key not in kept:
            kept[key] = a @ b
        return kept[key]

    def by_content(a: Any, b: Any) -> Any:
        key = float(a[0, 0]), float(b[-1, -1])
        if key not in kept:
            kept[key] = a @ b
        return kept[key]

    race = {
        "torch": torch.matmul,
        "linear": lambda a, b: torch.nn.functional.linear(a, b.t()),
        "by_pointer": by_pointer,
        "by_content": by_content,
        "sum": torch.add,
        "half": lambda a, b: torch.cat([a[:2048] @ b, torch.zeros_like(a[2048:])]),
        "fp8": lambda a, b: a.to(torch.float8_e4m3fn).to(a.dtype) @ b,
    }
    given = torch.randn(2, 4096, 4096, device="cuda", dtype=torch.bfloat16)
    result = bench(race, *given)
    assert [row.status for row in result.measurements[:2]] == ["ok", "ok"]
    for row in result.measurements[2:]:
        assert row.status in ("incorrect", "impossible"), (row.kernel, row.reason)


def test_cupy_numba_and_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    import cupy

    a = cupy.random.rand(512, 512)
    race = bench({"matmul": cupy.matmul, "dot": cupy.dot}, a, a, flops=2 * 512**3)
    assert [row.status for row in race.measurements] == ["ok", "ok"]
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("JAX has no GPU here")
    one = jax.numpy.ones((1024, 1024))
    row = bench(jax.jit(lambda b: b @ b), one).row
    assert row.status == "ok"
    assert "host_timed" in row.flag_names


def test_numba() -> None:
    import numba_here
    import numpy as np

    if reason := numba_here.lacks():
        pytest.skip(reason)
    from numba import cuda

    @cuda.jit  # type: ignore[untyped-decorator]
    def double(source: Any, target: Any) -> None:
        i = cuda.grid(1)  # type: ignore[attr-defined]
        if i < source.size:
            target[i] = 2 * source[i]

    given, result = (cuda.to_device(np.ones(2**20, np.float32)) for _ in range(2))
    row = bench(lambda a, b: double[4096, 256](a, b), given, result).row
    assert (row.status, row.bytes) == ("ok", 2 * 4 * 2**20)


def test_two_devices_are_refused(torch: Any, x: Any) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("there is no second GPU")
    with pytest.raises(UsageError, match="two devices"):
        bench(torch.add, x, x.to("cuda:1"))


def test_do_bench_has_no_host_time(torch: Any, x: Any) -> None:
    def chain() -> None:
        a = x[:64, :64]
        for _ in range(50):
            a = a * 1.01

    short: dict[str, Any] = {"warmup": 5, "rep": 20}
    assert rooflab.do_bench(chain, **short) < 0.3
    assert 0.003 < rooflab.do_bench(lambda: x @ x, **short) < 0.1
    low, high = rooflab.do_bench(lambda: x @ x, **short, quantiles=[0.1, 0.9])
    assert low <= high


class Hidden:
    """Nothing sees the arrays in it."""

    def __init__(self, array: Any) -> None:
        self.array = array


def test_work_decides_where_a_closure_without_arrays_is_timed(torch: Any, x: Any) -> None:
    tiny, big, side = Hidden(torch.ones(1, device="cuda")), Hidden(x), torch.cuda.Stream()
    long = Hidden(torch.randn(4096, 4096, device="cuda"))

    def adds() -> None:
        tiny.array.add_(1)

    def multiplies() -> None:
        torch.matmul(big.array, big.array)

    def waits() -> float:
        return float(big.array[0, 0].item())

    def elsewhere() -> None:
        with torch.cuda.stream(side):
            torch.matmul(long.array, long.array)

    for work in (adds, multiplies, waits, elsewhere):
        assert bench(work).manifest.device.kind == "cuda", work
    assert bench(tiny.array.add_, 1).manifest.device.kind == "cuda"
    for computes in (lambda: sum(range(10_000)), lambda: None, lambda: 1):
        result = bench(computes)
        assert result.manifest.device.kind == "cpu"
        assert "launch_bound" not in result.row.flag_names
    assert bench({"cpu": lambda: None, "gpu": multiplies}).manifest.device.kind == "cuda"


def test_arrays_of_a_closure_count_beside_arguments(torch: Any, x: Any) -> None:
    import numpy as np

    w = torch.randn_like(x)
    row = bench(lambda a: a @ w, x).row
    assert row.bytes == bench(torch.matmul, x, w).row.bytes
    out = torch.empty_like(x)

    def scale(factor: Any) -> None:
        torch.mul(x, float(factor[0]), out=out)

    assert bench(scale, np.ones(3)).manifest.device.kind == "cuda"
    # The weights of a module, and those of a closure, are not warm in a call that is called cold.
    layer = torch.nn.Linear(4096, 4096, bias=False, device="cuda", dtype=torch.bfloat16)
    given = torch.randn(8, 4096, device="cuda", dtype=torch.bfloat16)
    rotated = bench(torch.nn.functional.linear, given, layer.weight).time_us
    times = {
        "closure": bench(lambda a: layer(a), given).time_us,
        "argument": bench(lambda m, a: m(a), layer, given).time_us,
        "module": bench(layer, given).time_us,
        "copied": bench(lambda m, a: m(a), layer, given, modules=True).time_us,
    }
    assert all(0.9 * rotated < us < rotated + 6 for us in times.values()), (rotated, times)


def test_views_and_columns_stay_what_they_are(torch: Any) -> None:
    import cupy

    seen = set()

    def look(a: Any) -> Any:
        seen.add(a.stride() if isinstance(a, torch.Tensor) else a.strides)
        return a + 1

    tensor = torch.randn(512, 512, device="cuda")
    array = cupy.random.rand(512, 512)
    views = [tensor[:, ::2], tensor.T, array[:, ::2], array[::-1], cupy.asfortranarray(array)]
    for view in views:
        seen.clear()
        result = bench({"a": look, "b": lambda a: look(a) + 0}, view)
        assert [row.status for row in result.measurements] == ["ok", "ok"], result
        assert "same_inputs" not in result["b"].flag_names
        assert seen == {view.stride() if isinstance(view, torch.Tensor) else view.strides}


def test_memory_of_pytorch_does_not_grow(torch: Any) -> None:
    a = torch.randn(4096, 4096, device="cuda")
    torch.add(a, a)
    before = torch.cuda.memory_reserved() + 2**22  # its smallest blocks
    bench({"add": torch.add, "sum": lambda p, q: p + q}, a, a)
    assert torch.cuda.memory_reserved() <= before
    rooflab.do_bench(lambda: a + a, warmup=5, rep=20)
    assert torch.cuda.memory_reserved() <= before


def test_each_gpu_keeps_its_stream_of_cupy() -> None:
    import cupy

    if cupy.cuda.runtime.getDeviceCount() < 2:
        pytest.skip("there is no second GPU")
    with cupy.cuda.Device(1):
        a, mine = cupy.ones((512, 512)), cupy.cuda.Stream(non_blocking=True)
        mine.use()
    try:
        assert bench(cupy.add, a, a).row.status == "ok"
        assert cupy.cuda.Device().id == 0
        with cupy.cuda.Device(1):
            assert cupy.cuda.get_current_stream().ptr == mine.ptr
    finally:
        with cupy.cuda.Device(1):
            cupy.cuda.Stream.null.use()


def test_the_newer_name_of_tf32(torch: Any) -> None:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, "fp32_precision", None)
    if before is None:
        pytest.skip("this PyTorch has only the older name")
    a = torch.randn(512, 512, device="cuda")
    try:
        for name, precision in (("tf32", "tf32"), ("ieee", "fp32")):
            matmul.fp32_precision = name
            row = rooflab.bench(torch.matmul, a, a, timing=BRIEF).row
            assert row.problem.precision == precision
    finally:
        matmul.fp32_precision = before


def test_results_on_the_host_are_compared_with_those_of_the_gpu(torch: Any, x: Any) -> None:
    race = {"gpu": torch.matmul, "host": lambda a, b: (a @ b).cpu(), "wrong": lambda a, b: a.cpu()}
    result = bench(race, x, x)
    assert [row.status for row in result.measurements] == ["ok", "ok", "incorrect"]


def test_comparing_needs_little_memory(torch: Any) -> None:
    from rooflab.functions import results

    a = torch.randn(2**27, device="cuda", dtype=torch.float16)
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    assert results.errors(a, a * 2)[0] == pytest.approx(0.5, rel=1e-3)
    most = 2.5 * a.nbytes  # one of them is that of the result
    assert torch.cuda.max_memory_allocated() - before < most


def test_slow_functions_are_called_a_few_times(torch: Any) -> None:
    calls = 0

    def slow(a: Any) -> Any:
        nonlocal calls
        calls += 1
        torch.cuda._sleep(1_000_000_000)
        return a + 1

    a = torch.ones(100, device="cuda")
    bench(slow, a)
    assert calls <= 20
    calls = 0
    assert rooflab.do_bench(lambda: slow(a), warmup=1, rep=1) > 200
    assert calls <= 12


def test_counters_say_the_work_if_they_may_be_read(torch: Any, x: Any) -> None:
    a = torch.randn(2**24, device="cuda")
    row = bench(lambda v: v * 1.5 + 2.0, a, counters=True).row
    if row.counted_flops is None:
        pytest.skip("counters may not be read here")
    assert row.problem.settings["counts"] == "counted FLOPs"
    # PyTorch adds alpha times a number: a multiply-add, with alpha = 1.
    assert row.flops == row.counted_flops == pytest.approx(3 * 2**24, rel=0.01)
    assert 2 * 4 * 2**24 < (row.dram_bytes or 0) < 5 * 4 * 2**24
    product = bench(torch.matmul, x, x, counters=True).row
    assert product.problem.settings["counts"] == "PyTorch's FLOPs"
    assert product.counted_flops == pytest.approx(product.flops, rel=0.1)


def test_do_bench_in_place_of_tritons(torch: Any, elsewhere: Path) -> None:
    """As ``do_bench`` of ``triton.autotune``, and in what ``perf_report`` marks."""
    pytest.importorskip("triton")
    Path("tuned.py").write_text(TUNED)
    tuned = import_file(Path("tuned.py"), "test")
    x = torch.rand(2**20, device="cuda")
    torch.testing.assert_close(tuned.doubled(x), 2 * x)
    assert len(tuned.times) == 2
    assert all(0.003 < time < 1 for times in tuned.times for time in times)
    frame = tuned.doubling.run(return_df=True, print_data=False)
    assert frame.columns[0] == "n"
    assert (frame.iloc[:, 1] > 0).all()


TUNED = """
import torch
import triton
from triton import language as tl

from rooflab import do_bench

times = []

def timed(call, quantiles):
    times.append(do_bench(call, warmup=5, rep=20, quantiles=quantiles))
    return times[-1]

configs = [triton.Config({"BLOCK": block}) for block in (256, 1024)]

@triton.autotune(configs=configs, key=["n"], do_bench=timed)
@triton.jit
def twice(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, i < n), i < n)

def doubled(x):
    y = torch.empty_like(x)
    twice[lambda chosen: (triton.cdiv(x.numel(), chosen["BLOCK"]),)](x, y, x.numel())
    return y

@triton.testing.perf_report(
    triton.testing.Benchmark(
        x_names=["n"], x_vals=[2**16, 2**20], line_arg="by", line_vals=["torch"],
        line_names=["torch"], plot_name="doubling", args={},
    )
)
def doubling(n, by):
    x = torch.rand(n, device="cuda")
    return do_bench(lambda: 2 * x)
"""
