"""Arrays and containers: copies with the same strides, few changed numbers, exact comparison."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from dataclasses import InitVar, dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rooflab.functions import arrays, call, results
from rooflab.functions.call import Arguments

NUMPY = arrays.ArrayLibrary(np)
BASE = np.arange(240.0).reshape(12, 20)


@pytest.mark.parametrize(
    "view",
    [
        BASE,
        BASE.T,
        BASE[:, ::2],
        BASE[::-2, 3:],
        BASE.reshape(3, 4, 20).transpose(2, 0, 1),
        np.broadcast_to(BASE[0], (5, 20)),
        BASE[:0],
        BASE[0, 0:1].reshape(()),
    ],
)
def test_a_copy_has_the_same_numbers_and_strides(view: Any) -> None:
    copy = NUMPY.copy(view)
    assert (copy == view).all()
    assert not view.size or copy.strides == view.strides
    assert not np.shares_memory(copy, view)
    assert NUMPY.memory_bytes(view) <= BASE.nbytes


@pytest.mark.parametrize("chance", [0.0, 0.5, 0.999999])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(), (1,), (7,), (100,), (30, 50), (50, 30), (2, 3, 4)])
def test_a_few_numbers_are_nudged_whatever_the_order(
    shape: tuple[int, ...], order: Any, chance: float
) -> None:
    array = np.ones(shape, order=order)
    assert NUMPY.nudge(array, chance)
    assert 1 <= (array < 1).sum() <= max(1, 16 * len(shape))
    nothing = np.ones((0, 3))
    assert NUMPY.nudge(nothing, chance)


def test_views_with_gaps_and_columns_are_timed_as_they_are() -> None:
    import rooflab

    seen = set()

    def look(a: Any) -> Any:
        seen.add(a.strides)
        return a + 1

    brief = {"warmup_s": 0, "min_rounds": 3, "max_rounds": 3, "round_s": 0.001}
    rooflab.bench({"a": look, "b": look}, np.ones((60, 60))[:, ::3], device="cpu", timing=brief)
    assert seen == {(480, 24)}


# Comparison --------------------------------------------------------------------------------------


def test_results_are_compared_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    one = np.random.default_rng(1).random((70, 30))
    other = one * (1 + 1e-3 * np.random.default_rng(2).random((70, 30)))
    whole = results.errors(one, other)
    norm = np.linalg.norm(one - other) / np.linalg.norm(other)
    assert whole == pytest.approx((norm, abs(one - other).max() / other.max()))
    monkeypatch.setattr(arrays, "PIECE", 64)
    assert results.errors(one, other) == pytest.approx(whole)
    assert results.errors(one, np.asfortranarray(one)) == (0, 0)
    for place in (0, 2099):
        hole = one.copy()
        hole.reshape(-1)[place] = np.nan
        assert results.errors(hole, one)[0] == np.inf
        assert results.errors(one, hole)[1] == np.inf
        assert results.errors(hole, hole) == (0, 0)


# Containers --------------------------------------------------------------------------------------


@dataclass
class Made:
    rows: InitVar[int]
    inside: Any
    also: Any = field(init=False)

    def __post_init__(self, rows: int) -> None:
        self.also = np.ones(rows)


@dataclass(frozen=True, slots=True)
class Frozen:
    inside: Any


def test_odd_containers_are_copied() -> None:
    x = np.ones(3)
    lists: defaultdict[str, Any] = defaultdict(list, a=x)
    given = [lists, OrderedDict(b=x), Made(4, x), Frozen(x)]
    factory, ordered, made, frozen = arrays.changed(given, np.copy)
    assert factory["a"] is ordered["b"] is made.inside is frozen.inside is not x
    assert factory["new"] == []
    assert list(lists) == ["a"]
    assert type(ordered) is OrderedDict
    assert made.also is not given[2].also  # type: ignore[attr-defined]
    assert (made.also == 1).all()


# What a function names ---------------------------------------------------------------------------

WEIGHTS = np.ones((2, 50))
weights = np.ones(7)
NAMES = np.array(["no", "numbers"])


class Layer:
    weights = None

    def __init__(self) -> None:
        self.scale = np.ones(9)

    def double(self, v: Any) -> Any:
        return 2 * v * WEIGHTS[0]


def test_arrays_that_a_function_names_are_found() -> None:
    from functools import partial

    inner = np.ones(5)
    assert call.named_arrays(lambda: inner.sum() + WEIGHTS[0, 0])[1] is WEIGHTS
    assert call.named_arrays(lambda m: m.weights) == []  # an attribute, not the global array
    assert call.named_arrays(lambda: NAMES) == []
    assert call.named_arrays(Layer().double)[0] is WEIGHTS
    assert call.named_arrays(partial(np.add, inner))[0] is inner
    assert call.named_arrays(inner.sum)[0] is inner
    assert call.named_arrays(np.sum) == []
    tree: dict[str, Any] = {"leaf": inner}
    tree["root"] = [tree]
    assert call.named_arrays(lambda: tree) == [inner]
    x = np.ones(5)
    assert Arguments((x,)).kept(lambda a: a + inner)[0] is inner
    assert Arguments((inner,)).kept(lambda a: a + inner) == []


# PyTorch -----------------------------------------------------------------------------------------


def test_the_precision_of_products_has_two_names(monkeypatch: pytest.MonkeyPatch) -> None:
    class Matmul:
        fp32_precision = "tf32"

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mix of the legacy and new APIs")

    class Older:
        allow_tf32 = True

    cuda = SimpleNamespace(matmul=Matmul())
    assert not call._allows_tf32()
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(backends=SimpleNamespace(cuda=cuda)))
    assert call._allows_tf32()
    cuda.matmul.fp32_precision = "ieee"
    assert not call._allows_tf32()
    cuda.matmul = Older()
    assert call._allows_tf32()
