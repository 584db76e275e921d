"""Tensors of PyTorch as arguments and results: views, sparse, of 8 bits, modules. On a CPU too."""

from __future__ import annotations

from typing import Any

import pytest

import rooflab
from rooflab.functions import arrays, call, results
from rooflab.functions.call import Arguments
from rooflab.functions.results import copied

pytestmark = pytest.mark.gpu

BRIEF: dict[str, Any] = {
    "warmup_s": 0,
    "min_rounds": 3,
    "max_rounds": 3,
    "round_s": 0.001,
    "energy_s": 0,
    "burst_rest_s": 0,
}


@pytest.fixture
def place(torch: Any) -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def test_tensors_are_copied_with_their_strides(torch: Any, place: str) -> None:
    base = torch.arange(240.0, device=place).reshape(12, 20)
    views = [base, base.T, base[:, ::2], base[3:, 1], base[:1].expand(5, 20), base[:0]]
    for view in views:
        copy = arrays.of(view).copy(view)
        assert (copy == view).all()
        assert not view.numel() or copy.stride() == view.stride()
        assert not view.numel() or copy.data_ptr() != view.data_ptr()
        assert arrays.of(view).memory_bytes(view) <= 240 * 4
    leaf = torch.ones(4, 6, device=place)[:, ::2].requires_grad_()
    assert arrays.of(leaf).copy(leaf).requires_grad
    column = torch.ones(30, 20, device=place).T
    assert arrays.of(column).nudge(column, 0.5)
    assert 1 <= (column < 1).sum() <= 16


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_and_eight_bit_tensors(torch: Any, place: str) -> None:
    eye = torch.eye(50, device=place)
    sizes = {"coo": 50 * 4 + 2 * 50 * 8, "csr": 50 * 4 + (51 + 50) * 8, "csc": 50 * 4 + 101 * 8}
    for layout, size in sizes.items():
        sparse = getattr(eye, f"to_sparse_{layout}")()
        copy = arrays.of(sparse).copy(sparse)
        assert results.errors(copy, eye) == (0, 0)
        assert arrays.of(sparse).memory_bytes(sparse) == size
        assert sum(one.bytes for one in call.operands([sparse], [])) == size
    small = torch.rand(90, device=place).to(torch.float8_e5m2)
    assert call.precision_of([small], None).name == "fp8"
    assert arrays.of(small).nudge(small, 0.5)
    assert results.errors(small, small.clone()) == (0, 0)
    assert results.errors(small, small.float().add(1).to(small.dtype))[0] > 0


@pytest.mark.filterwarnings("ignore:Sparse")
def test_races_of_odd_tensors(torch: Any, place: str) -> None:
    x = torch.rand(50, 50, device=place)
    for given in (x[:, ::2], x.to_sparse_csr(), x.to_sparse_coo(), x[:1].expand(50, 50)):
        race = {"a": lambda v: 2 * v, "b": lambda v: v + v}
        result = rooflab.bench(race, given, timing=BRIEF)
        assert [row.status for row in result.measurements] == ["ok", "ok"], result
        assert "unverified" not in result["b"].flag_names
    lazy = {
        "a": lambda v: v.conj(),
        "b": lambda v: v.conj().resolve_conj(),
        "wrong": lambda v: v + 1j,
    }
    result = rooflab.bench(lazy, x.to(torch.complex64)[:, ::2], timing=BRIEF)
    found = [row.status for row in result.measurements]
    assert found == ["ok", "ok", "incorrect"], result
    eight = {"a": lambda v: v.float() + 1, "b": lambda v: 1 + v.float()}
    result = rooflab.bench(eight, x.to(torch.float8_e5m2), timing=BRIEF)
    assert [row.status for row in result.measurements] == ["ok", "ok"], result
    assert "same_inputs" not in result["b"].flag_names


def test_modules_are_copied_on_request(torch: Any, place: str) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(20, 20), torch.nn.BatchNorm1d(20)).to(place)
    layer[1].bias = layer[0].bias  # one parameter of two layers
    before = {name: one.clone() for name, one in layer.state_dict().items()}
    x = torch.rand(20, 20, device=place)
    given = Arguments((layer, x), modules=True)
    (other, _) = copied(given).args
    assert other is not layer
    assert other[1].bias is other[0].bias is not layer[0].bias
    assert isinstance(other[0].weight, torch.nn.Parameter)
    apply: Any = lambda m, v: m(v)  # noqa: E731
    assert given.kept(apply) == []
    assert len(Arguments((layer, x)).kept(apply)) == 7 - 1
    rooflab.bench(apply, layer, x, modules=True, timing=BRIEF)
    after = layer.state_dict()
    assert all(torch.equal(after[name], one) for name, one in before.items())
