"""``rooflab.bench`` and ``do_bench`` on a GPU: every library, every way of working."""

from __future__ import annotations

from typing import Any

import pytest

import rooflab
from rooflab.errors import UsageError

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


@pytest.fixture(scope="module")
def torch() -> Any:
    return pytest.importorskip("torch")


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
