"""``rooflab.bench`` on a CPU: any callable, a race, what is refused, and what is left as it was."""

from __future__ import annotations

import gc
import os
import random
import re
import threading
import weakref
from collections import namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import numpy as np
import pytest

import rooflab
from rooflab.errors import UsageError
from rooflab.functions import arrays, results, subject
from rooflab.functions.process import device_of
from rooflab.runs.compare import Comparison

BRIEF = {"warmup_s": 0, "min_rounds": 3, "max_rounds": 3, "round_s": 0.001, "energy_s": 0}
Array = Any


def bench(*args: Any, **options: Any) -> rooflab.Result:
    """With few bytes: the roofs of a busy machine are too low for what stays in a cache."""
    given = {"bytes": 8, "timing": BRIEF, "device": "cpu", **options}
    return rooflab.bench(*args, **given)


@pytest.fixture(autouse=True)
def small_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long calls take is of no interest: that of a machine may have hundreds of megabytes."""

    def flusher(device: Any) -> Callable[[], None]:
        scratch = np.empty(2**20)
        return lambda: scratch.fill(0)

    monkeypatch.setattr(subject, "flusher", flusher)


@pytest.fixture(scope="module")
def x() -> Array:
    return np.random.default_rng(1).random((60, 60))


@pytest.fixture(scope="module")
def w() -> Array:
    return np.random.default_rng(2).random((60, 60))


# What comes out ----------------------------------------------------------------------------------


def test_a_closure_is_one_line(x: Array, w: Array) -> None:
    result = bench(lambda: x @ w, bytes=None)
    assert str(result).startswith("function 60x60,60x60 fp64: ")
    assert "GB/s" in str(result)
    assert "TFLOP/s" not in str(result)
    row = result.row
    assert (row.cache, row.flops, row.tflops) == ("cold", None, None)
    assert row.bytes == 3 * 60 * 60 * 8
    assert "unverified" in row.flag_names
    assert row.time_lo_us <= result.time_us <= row.time_hi_us


def test_stated_work_has_a_roof(x: Array, w: Array) -> None:
    by_number = bench(np.matmul, x, w, flops=2 * 60**3, bytes=1000)
    assert (by_number.row.flops, by_number.row.bytes) == (432000, 1000)
    assert by_number.row.problem.settings["counts"] == "stated FLOPs, stated bytes"
    assert by_number.percent == pytest.approx(100 * by_number.roof_us / by_number.time_us)
    by_function = bench(np.matmul, x, w, flops=lambda a, b: 2 * a.shape[0] * b.size)
    assert by_function.row.flops == 432000


def test_a_race_is_verified_and_has_a_verdict(x: Array, w: Array) -> None:
    result = bench({"numpy": np.matmul, "again": lambda a, b: a @ b, "sum": np.add}, x, w)
    assert [row.status for row in result.measurements] == ["ok", "ok", "incorrect"]
    assert "differs from numpy: relative error" in result["sum"].reason
    assert result["again"].rel_error == 0
    assert "numpy reached" in str(result) or "again reached" in str(result)
    with pytest.raises(KeyError, match="other"):
        result["other"]


def test_results_go_into_a_folder_like_any_other(
    x: Array, w: Array, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rooflab.cli import main

    result = bench({"a": np.matmul, "b": np.dot}, x, w, flops=2 * 60**3)
    saved = result.save(tmp_path / "run")
    again = rooflab.load(tmp_path / "run")
    for old, new in zip(result.measurements, again.measurements, strict=True):
        assert (new.problem, new.kernel, new.flags) == (old.problem, old.kernel, old.flags)
        assert new.time_us == pytest.approx(old.time_us)
    assert isinstance(again.compare(saved), Comparison)
    assert again.explain().__len__() == 2
    assert list(result.frame()["kernel"]) == ["a", "b"]
    result.plot(tmp_path / "roofline.png")
    assert (tmp_path / "roofline.png").stat().st_size > 10_000
    assert "<table" in result._repr_html_()
    assert 'src="data:image/png;base64,' in result._repr_html_()
    assert "<img" not in bench(np.sin, x)._repr_html_()
    for command in ("show", "explain"):
        with pytest.raises(SystemExit) as ended:
            main([command, str(tmp_path / "run")])
        assert ended.value.code == 0
    assert "stated FLOPs" in capsys.readouterr().out
    with pytest.raises(UsageError, match="run is a run already: name another folder"):
        result.save(tmp_path / "run")
    (tmp_path / "runs").mkdir()
    assert result.save(tmp_path / "runs").path.parent == tmp_path / "runs"


def test_sizes_are_made() -> None:
    result = bench(np.sort, make=lambda n: np.arange(n, 0.0, -1), sizes=[100, 200], bytes=None)
    assert [row.problem.size for row in result.measurements] == ["100", "200"]
    assert [row.bytes for row in result.measurements] == [1600, 3200]


def test_integers_and_complex_numbers_are_timed_too() -> None:
    assert bench(np.add, np.arange(99), np.arange(99)).row.problem.precision == "int64"
    assert bench(np.abs, np.ones(99, "complex64")).row.problem.precision == "fp32"
    assert bench(np.logical_not, np.ones(99, bool), bytes=None).row.bytes == 198
    assert bench(lambda: None).row.status == "ok"


def test_odd_arrays_are_timed_and_compared() -> None:
    x = np.random.default_rng(1).random((50, 50))
    read_only = x.copy()
    read_only.flags.writeable = False
    not_finite = x.copy()
    not_finite[0], not_finite[1] = np.nan, np.inf
    kinds = [x[:, ::2], np.asfortranarray(x), np.ma.array(x, mask=x > 0.5), read_only, not_finite]
    for kind in [*kinds, x + 1j * x, x.astype("float16"), np.array(3.0), np.empty((0, 5))]:
        result = bench({"a": lambda a: a * 2, "b": lambda a: a + a}, kind)
        assert [row.status for row in result.measurements] == ["ok", "ok"], kind
        assert "unverified" not in result["b"].flag_names
    wrong = bench({"a": np.conj, "b": lambda a: a + 0}, x + 1j * x)
    assert wrong["b"].status == "incorrect"


def test_inputs_are_of_their_kind() -> None:
    """Sorted ones stay sorted, matrices with an inverse keep one, integers stay."""
    draw = np.random.default_rng(1)
    ordered, some, small = np.sort(draw.random(500)), draw.random(50), draw.random((8, 8))
    ramp = np.arange(50)
    races: list[tuple[Any, ...]] = [
        (np.searchsorted, lambda s, q: (s[None] < q[:, None]).sum(1), ordered, some),
        (np.interp, lambda q, s, v: np.interp(q, s, v), some, ordered, draw.random(500)),
        (np.linalg.inv, lambda a: np.linalg.inv(a), small),
        (np.linalg.cholesky, lambda a: np.linalg.cholesky(a), small @ small.T + 9 * np.eye(8)),
        (np.fft.fft, lambda v: np.exp(-2j * np.pi * np.outer(ramp, ramp) / 50) @ v, some),
    ]
    for first, second, *given in races:
        result = bench({"a": first, "b": second}, *given)
        found = [(row.status, row.reason) for row in result.measurements]
        assert found == [("ok", ""), ("ok", "")], first
        assert "same_inputs" not in result["b"].flag_names
    for race in ({"a": np.add, "b": lambda p, q: p + q},):
        assert "same_inputs" in bench(race, np.arange(9), np.arange(9))["b"].flag_names
    assert "same_inputs" in bench({"a": lambda: some + 1, "b": lambda: 1 + some})["b"].flag_names


@dataclass
class Layer:
    """Its weights are no field that can be replaced, like the parameters of a module."""

    bias: float = 1.0
    weights: Any = field(init=False)

    def __post_init__(self) -> None:
        self.weights = np.random.default_rng(1).random((50, 50))


def test_what_is_not_copied_is_not_changed() -> None:
    layer, x = Layer(), np.random.default_rng(2).random((50, 50))
    before = layer.weights.copy()
    race = {"a": lambda m, v: v @ m.weights, "b": lambda m, v: v @ m.weights + 0}
    bench(race, layer, x)
    assert (layer.weights == before).all()


def test_a_buffer_that_both_write_hides_nothing() -> None:
    x, buffer = np.random.default_rng(2).random((50, 50)), np.empty((50, 50))

    def right(a: Array) -> Array:
        return np.multiply(a, 2, out=buffer)

    def wrong(a: Array) -> Array:
        return np.multiply(a, 3, out=buffer)

    assert bench({"right": right, "wrong": wrong}, x)["wrong"].status == "incorrect"


def test_the_order_of_axes_stays() -> None:
    seen = set()

    def look(a: Array) -> Array:
        seen.add(a.strides)
        return a + 1

    bench(look, np.asfortranarray(np.ones((40, 50))))
    assert seen == {(8, 320)}


def test_dictionaries_are_compared_by_their_keys() -> None:
    race = {"a": lambda v: {"s": v + 1, "k": 1}, "b": lambda v: {"k": 1, "s": 1 + v}}
    assert bench(race, np.ones(50))["b"].status == "ok"


def test_what_a_function_writes_is_compared_too() -> None:
    x = np.random.default_rng(1).random((50, 50))

    def into(a: Array, out: Array) -> None:
        np.multiply(a, 2, out=out)

    def half(a: Array, out: Array) -> None:
        np.multiply(a[:25], 2, out=out[:25])

    result = bench({"into": into, "again": into, "half": half}, x, np.zeros_like(x))
    assert [row.status for row in result.measurements] == ["ok", "ok", "incorrect"]
    assert "differs from into (argument 1)" in result["half"].reason


def test_numbers_are_compared_and_nothing_is_unverified() -> None:
    x = np.random.default_rng(1).random(50)
    race = {"sum": lambda a: float(a.sum()), "half": lambda a: float(a[:25].sum())}
    assert bench(race, x)["half"].status == "incorrect"
    nothing = bench({"a": lambda a: None, "b": lambda a: None}, x, bytes=None)
    assert [row.status for row in nothing.measurements] == ["ok", "ok"]  # it may read nothing
    assert all("unverified" in row.flag_names for row in nothing.measurements)


# Arguments ---------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "first second")


@dataclass
class Box:
    inside: Any
    name: str = "box"


def test_containers_are_copied_and_the_same_array_stays_the_same(x: Array) -> None:
    given: dict[str, Any] = {"a": [x, (x, 3)], "b": Pair(x, Box(x)), "c": None}
    assert len(arrays.leaves(given)) == 1
    copy = arrays.changed(given, lambda one: one.copy())
    (other,) = arrays.leaves(copy)
    assert other is not x
    assert copy["b"].second.inside is copy["a"][0] is copy["b"].first is other
    assert copy["b"].second.name == "box"
    assert given["a"][0] is x


def test_the_callers_arrays_are_not_touched(x: Array, w: Array) -> None:
    before = x.copy(), w.copy()

    def in_place(a: Array, b: Array) -> Array:
        a += b
        return a

    result = bench({"a": in_place, "b": in_place}, x, w)
    assert [row.status for row in result.measurements] == ["ok", "ok"]
    assert (x == before[0]).all()
    assert (w == before[1]).all()


# The caller's process ----------------------------------------------------------------------------


def test_nothing_of_the_process_changes(x: Array) -> None:
    def state() -> tuple[Any, ...]:
        return (
            random.getstate(),
            np.random.get_state(legacy=False)["state"]["key"].tolist(),
            np.geterr(),
            os.environ.copy(),
            os.sched_getaffinity(0),
            threading.active_count(),
        )

    def noisy(a: Array) -> Array:
        random.random()
        return a + np.random.rand(60)

    bench(np.sin, x)  # threads of libraries start once
    before = state()
    bench(noisy, x)
    assert state() == before


def test_an_exception_of_the_function_is_its_own(x: Array) -> None:
    def fails(a: Array) -> None:
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as raised:
        bench(fails, x)
    assert raised.value.__notes__ == ["rooflab.bench called fails for the first time"]


def test_one_that_fails_later_fails_only_its_row(x: Array) -> None:
    calls: Iterator[int] = iter(range(3))

    def fails(a: Array) -> Array:
        next(calls)
        return a + 1

    result = bench({"good": lambda a: a + 1, "fails": fails}, x)
    assert [row.status for row in result.measurements] == ["ok", "failed"]
    assert "StopIteration" in result["fails"].reason


def test_ctrl_c_is_the_callers(x: Array) -> None:
    calls: Iterator[int] = iter(range(3))

    def interrupted(a: Array) -> Array:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return a + 1

    with pytest.raises(KeyboardInterrupt):
        bench(interrupted, x)


def test_nothing_is_kept_after_it(x: Array) -> None:
    class Big(np.ndarray):
        pass

    made: list[weakref.ref[Any]] = []

    def big(a: Array) -> Array:
        result = (a + 1).view(Big)
        made.append(weakref.ref(result))
        return result

    gc.disable()
    try:
        bench({"a": big, "b": big}, x)
        assert sum(one() is not None for one in made) == 0
    finally:
        gc.enable()


# What a function names ---------------------------------------------------------------------------


def test_what_a_function_names_is_counted_beside_its_arguments(x: Array, w: Array) -> None:
    row = bench(lambda a: a @ w, x, bytes=None).row
    assert row.problem.size == "60x60"
    assert row.bytes == 3 * 60 * 60 * 8


def test_a_buffer_that_a_function_names_is_written(x: Array) -> None:
    buffer: Array = np.empty_like(x)
    for result in (
        bench(lambda a: np.multiply(a, 2, out=buffer), x, bytes=None),
        bench(lambda: np.multiply(x, 2, out=buffer), bytes=None),
    ):
        assert result.row.bytes == 2 * x.nbytes


def test_arrays_of_two_devices_are_found_in_closures(
    x: Array, w: Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    def device(self: Any, array: Array) -> str:
        return "cuda:1" if array is w else "cpu"

    monkeypatch.setattr(arrays.ArrayLibrary, "device", device)
    with pytest.raises(UsageError, match="device='cpu', and the arrays are on cuda:1: move them"):
        bench(lambda a: a @ w, x)


def test_counters_are_read_on_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    device: Any = device_of("fake:Counting")

    def work() -> None:
        device.clock_us += 3000

    given: dict[str, Any] = {"device": "fake:Counting", "counters": True, "bytes": 8e6}
    row = bench({"a": work, "b": work}, **given)["b"]
    assert row.problem.settings["counts"] == "counted FLOPs, stated bytes"
    assert row.counted_flops == row.flops == 1e3 * 3000
    assert row.dram_bytes == 2 * row.flops
    assert row.tflops
    stated = bench(work, flops=5e6, **given).row
    assert (stated.flops, stated.counted_flops) == (5e6, 3e6)
    monkeypatch.setenv("FAKE_UNCOUNTABLE", "1")
    assert bench(work, **given).row.counted_flops is None
    assert "does not permit reading counters" in caplog.text
    assert bench(lambda: None, counters=True).row.status == "ok"
    assert "has no counters" in caplog.text


# Ways to give and to return ----------------------------------------------------------------------


def test_numbers_of_numpy_are_numbers() -> None:
    result = bench(
        np.sort,
        make=np.ones,
        sizes=np.array([100, 200]),
        flops=lambda a: np.float32(a.size),
        bytes=np.int64(800),
        tolerance=np.float64(0.1),
    )
    assert [(row.problem.size, row.flops) for row in result.measurements] == [
        ("100", 100),
        ("200", 200),
    ]


def test_labels_may_be_anything() -> None:
    result = bench({1: np.sin, None: np.sin}, np.ones(9), reference=1)
    assert [row.kernel for row in result.measurements] == ["1", "None"]
    assert result[1].status == result[None].status == "ok"
    with pytest.raises(UsageError, match="two functions have one name: 1, '1'"):
        bench({1: np.sin, "1": np.cos}, np.ones(9))


def test_one_writes_and_another_returns() -> None:
    x = np.random.default_rng(1).random(50)

    def writes(a: Array, out: Array) -> None:
        np.multiply(a, 2, out=out)

    def returns(a: Array, out: Array) -> Array:
        return a * 2

    def both(a: Array, out: Array) -> Array:
        return np.multiply(a, 2, out=out)

    def reason(*functions: Callable[..., Any]) -> str:
        race = {one.__name__: one for one in functions}
        return bench(race, x, np.zeros(50)).measurements[1].reason

    told = "let all of them return or write results"
    assert reason(returns, writes).endswith(f"; returns does not write into argument 1: {told}")
    assert reason(writes, returns).endswith(f"; does not write into argument 1: {told}")
    assert reason(both, returns).endswith(f"; does not write into argument 1: {told}")
    assert "let all" not in reason(writes, lambda a, out: writes(2 * a, out))
    assert "returns complex128[50]" in reason(np.add, lambda a, out: a + 0j)


def test_inputs_that_are_not_finite_are_varied_too() -> None:
    x = np.random.default_rng(1).random(500)
    x[7], x[8] = np.nan, np.inf
    kept: list[Array] = []

    def old(a: Array) -> Array:
        kept.append(a + 1)
        return kept[0]

    result = bench({"a": lambda a: a + 1, "b": lambda a: 1 + a, "old": old}, x)
    assert [row.status for row in result.measurements] == ["ok", "ok", "incorrect"]
    assert "same_inputs" not in result["b"].flag_names


def test_places_are_compared_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts: list[bool] = []
    numbers = arrays.ArrayLibrary.numbers

    def noted(self: Any, flat: Array, *, host: bool) -> Array:
        hosts.append(host)
        return numbers(self, flat, host=host)

    one, other = np.ones(5), np.ones(5)
    monkeypatch.setattr(arrays.ArrayLibrary, "numbers", noted)
    assert results.errors(one, other) == (0, 0)
    monkeypatch.setattr(
        arrays.ArrayLibrary, "device", lambda self, one: "cpu" if one is other else "cuda:0"
    )
    assert results.errors(one, other) == (0, 0)
    assert hosts == [False, False, True, True]


def test_a_slow_function_is_called_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "LONG_US", 5e4)
    calls = [0, 0]

    def slow(i: int, a: Array) -> Array:
        calls[i] += 1
        sleep(0.06)
        return a + 1

    race = {"a": lambda a: slow(0, a), "b": lambda a: slow(1, a)}
    assert bench(race, np.ones(9), timing={**BRIEF, "slow_s": 0.05})["b"].status == "ok"
    assert calls[1] <= 16
    calls[:] = 0, 0
    assert rooflab.do_bench(lambda: slow(0, np.ones(9)), warmup=1, rep=1) >= 60
    assert calls[0] <= 4


# What is refused ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (({},), {}, "no function is given"),
        ((3,), {}, "no function: give bench"),
        ((np.sin, (i for i in range(3))), {}, "generator"),
        ((np.sin, np.ones(3)), {"flops": -1}, "flops=-1: give a number from 0 on"),
        ((np.sin, np.ones(3)), {"bytes": "many"}, "bytes='many'"),
        ((np.sin, np.ones(3)), {"precision": "fp31"}, "unknown precision 'fp31'"),
        ((np.sin, np.ones(3)), {"cache": "hot"}, "choose cold or warm"),
        ((np.sin, np.ones(3)), {"tolerance": -1}, "tolerance=-1: give a relative error"),
        ((np.copy, np.array([1, "a"], object)), {}, "holds object: give arrays of numbers"),
        ((np.sort, np.array(["b", "a"])), {}, "holds <U1: give arrays of numbers"),
        ((sum, iter([1, 2])), {}, "list_iterator, which is empty after one call"),
        ((np.sin, np.ones(3)), {"tolerance": "x"}, "tolerance='x'"),
        ((np.sin, np.ones(3)), {"kwargs": [1]}, "kwargs are a mapping"),
        ((np.sin, np.ones(3)), {"make": np.ones}, "belong together"),
        ((np.sin, np.ones(3)), {"make": np.ones, "sizes": [3]}, "leave out one"),
        (({"a": np.sin}, np.ones(3)), {"reference": "b"}, "no function 'b'"),
        ((np.sin, np.ones(3)), {"flops": 10**400}, "give a number from 0 on"),
        ((np.sin, np.ones(3)), {"device": 0}, "unknown device '0'"),
        ((np.sin, np.ones(3)), {"device": ""}, "unknown device ''"),
        ((np.sin, np.ones(3)), {"timing": 3}, "timing must be a section"),
        ((np.sin,), {"make": np.ones, "sizes": [1.5]}, "give whole numbers from 1"),
        ((np.sin,), {"make": np.ones, "sizes": [0]}, "give whole numbers from 1"),
        ((np.sin,), {"make": np.ones, "sizes": 64}, "sizes=64: give whole numbers from 1"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        bench(*arguments, **options)


def test_a_coroutine_and_a_wrong_time_are_refused() -> None:
    async def later() -> None:
        pass

    with pytest.raises(UsageError, match="coroutine"):
        bench(later)
    with pytest.raises(UsageError, match=r"timing\.min_rounds"):
        rooflab.bench(np.sin, np.ones(3), timing={"min_rounds": 0})


# Cheats ------------------------------------------------------------------------------------------


def by_pointer() -> Callable[..., Array]:
    kept: dict[Any, Array] = {}

    def cheat(a: Array, b: Array) -> Array:
        key = a.ctypes.data, b.ctypes.data
        return kept.setdefault(key, a @ b) if key not in kept else kept[key]

    return cheat


def by_content() -> Callable[..., Array]:
    kept: dict[Any, Array] = {}

    def cheat(a: Array, b: Array) -> Array:
        key = float(a.sum()), float(b.sum())
        if key not in kept:
            kept[key] = a @ b
        return kept[key]

    return cheat


def first_only() -> Callable[..., Array]:
    kept: list[Array] = []

    def cheat(a: Array, b: Array) -> Array:
        if not kept:
            kept.append(a @ b)
        return kept[0]

    return cheat


def when_it_is_sure() -> Callable[..., Array]:
    """It keeps what it is asked for three times in a row."""
    last: list[Any] = [None, 0, None]

    def cheat(a: Array, b: Array) -> Array:
        content = float(a.sum()), float(b.sum())
        last[1] = last[1] + 1 if last[0] == content else 0
        last[0] = content
        if last[1] < 2:
            last[2] = a @ b
        return last[2]

    return cheat


class Lazy(np.ndarray):
    """It computes when it is looked at."""

    work: Any = None

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return function(*(one.work() if isinstance(one, Lazy) else one for one in args), **kwargs)


def lazy_array(a: Array, b: Array) -> Array:
    c = np.empty((len(a), b.shape[1])).view(Lazy)
    c.work = lambda: a @ b
    return c


class LazyDict(dict[str, Any]):
    def values(self) -> Any:
        return [self["a"] @ self["b"]]


def half(a: Array, b: Array) -> Array:
    c = np.zeros((len(a), b.shape[1]))
    c[: len(a) // 2] = a[: len(a) // 2] @ b
    return c


def single_precision(a: Array, b: Array) -> Array:
    return (a.astype("float32") @ b.astype("float32")).astype("float64")


CHEATS: dict[str, tuple[Callable[..., Any], str]] = {
    "by_pointer": (by_pointer(), "wrong|not had before"),
    "by_content": (by_content(), "wrong|not had before"),
    "first_only": (first_only(), "wrong|not had before"),
    "when_it_is_sure": (when_it_is_sure(), "wrong|not had before"),
    "lazy_array": (lazy_array, "differs from numpy"),
    "lazy_dict": (lambda a, b: LazyDict(a=a, b=b), "returns 2 arrays|differs"),
    "half": (half, "differs from numpy"),
    "single_precision": (single_precision, "differs from numpy"),
    "zeros": (lambda a, b: np.zeros((len(a), b.shape[1])), "differs from numpy"),
    "nan": (lambda a, b: np.full((len(a), b.shape[1]), np.nan), "differs from numpy"),
    "nothing": (lambda a, b: None, "returns 0 arrays, and numpy returns 1"),
    "smaller": (lambda a, b: (a @ b)[:5], r"returns float64\[5x300\]"),
}


def test_no_cheat_is_ok() -> None:
    a, b = np.random.default_rng(1).random((2, 300, 300))
    functions = {"numpy": np.matmul} | {name: cheat for name, (cheat, _) in CHEATS.items()}
    result = bench(functions, a, b)
    assert result["numpy"].status == "ok", result["numpy"].reason
    for name, (_, reason) in CHEATS.items():
        assert result[name].status == "incorrect", name
        assert re.search(reason, result[name].reason), (name, result[name].reason)


def test_kept_complex_results_are_found() -> None:
    a, b = np.random.default_rng(1).random((2, 100, 100)) + 1j
    result = bench({"numpy": np.matmul, "first": first_only(), "pointer": by_pointer()}, a, b)
    assert [row.status for row in result.measurements] == ["ok", "incorrect", "incorrect"]


# do_bench ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rep": float("inf")}, "rep=inf: give milliseconds"),
        ({"rep": float("nan")}, "rep=nan: give milliseconds"),
        ({"warmup": -1}, "warmup=-1: give milliseconds"),
        ({"quantiles": [2]}, "give numbers from 0 to 1"),
        ({"quantiles": 0.5}, "quantiles=0.5: give numbers"),
    ],
)
def test_do_bench_refuses_wrong_numbers_before_it_calls(
    options: dict[str, Any], message: str
) -> None:
    def called() -> None:
        raise AssertionError

    with pytest.raises(UsageError, match=message):
        rooflab.do_bench(called, **options)


def test_do_bench_is_as_triton_has_it(x: Array, w: Array) -> None:
    def work() -> Array:
        return x @ w

    quick: dict[str, Any] = {"warmup": 1, "rep": 5}
    every = rooflab.do_bench(work, **quick, return_mode="all")
    assert len(every) >= 8
    assert 0 < min(every) < 100
    assert isinstance(rooflab.do_bench(work, **quick), float)
    low, high = rooflab.do_bench(work, **quick, quantiles=[0.2, 0.8])
    assert low <= high
    assert isinstance(rooflab.do_bench(work, **quick, quantiles=[0.5]), float)
    with pytest.raises(UsageError, match="return_mode='best'"):
        rooflab.do_bench(work, return_mode="best")  # type: ignore[arg-type]


def test_a_slow_flush_is_made_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large last-level cache takes the host long to overwrite."""
    flushes: list[int] = []

    def slow(device: Any) -> Callable[[], None]:
        def flush() -> None:
            flushes.append(1)
            sleep(0.02)

        return flush

    monkeypatch.setattr(subject, "flusher", slow)
    some = np.random.default_rng(1).random(100)
    rounds = {**BRIEF, "min_rounds": 4, "max_rounds": 4, "max_s": 9.0, "round_s": 1.0}
    result = bench(lambda: some + 1, timing={**rounds, "round_samples": 32})
    assert result.row.rounds == 4
    assert 4 * 8 <= len(flushes) <= 4 * 13 + 5
