from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint

import pytest
from fake import exact
from rooflab.problem import PRECISIONS, Problem

from rooflab import backends
from rooflab.errors import UsageError
from rooflab.registry import Kernel, Registry, kernel


def named(*names: str) -> Registry:
    return Registry(exact(name, 0.5) for name in names)


def test_names_globs_and_order() -> None:
    registry = named("naive", "coalesced", "tiled", "tiled_2d")
    assert [k.name for k in registry.select(["tiled*", "naive"], "exact")] == [
        "tiled",
        "tiled_2d",
        "naive",
    ]
    assert len(registry.select(["*", "tiled"], "exact")) == 4


def test_near_matches_are_offered() -> None:
    registry = named("naive", "coalesced", "tiled")
    with pytest.raises(UsageError, match=r"no kernel matches 'tyled': did you mean tiled?"):
        registry.select(["tyled"], "exact")
    with pytest.raises(UsageError, match=r"no kernel matches 'zzz': there are naive, coalesced"):
        registry.select(["tiled", "zzz"], "exact")


def test_a_kernel_of_another_device_is_explained() -> None:
    registry = named("naive")
    registry.add(Kernel("cublas", "cublas", "cuda", "", ("fp32",), lambda d, o: lambda: None))
    with pytest.raises(
        UsageError, match=r"'cublas' needs an NVIDIA GPU .* on exact there are naive"
    ):
        registry.select(["cublas"], "exact")


def test_a_second_kernel_of_one_name_is_refused() -> None:
    registry = named("naive")
    with pytest.raises(UsageError, match="two exact kernels are called 'naive'"):
        registry.add(exact("naive", 0.1))
    registry.add(Kernel("naive", "cuda", "cuda", "", ("fp32",), lambda d, o: lambda: None))


def test_a_decorated_function_is_a_kernel() -> None:
    registry = Registry()

    @kernel(
        "mine",
        backend="m",
        device_kind="exact",
        title="T",
        precisions=["fp32"],
        layouts=["nn"],
        registry=registry,
    )
    def mine(device: object, operands: object) -> object:
        return lambda: None

    (found,) = registry.select(["mine"], "exact")
    assert found.prepare is mine
    assert found.refuses(Problem(2, 2, 2)) == ""
    assert found.refuses(Problem(2, 2, 2, layout="tn")) == "mine takes layout nn only"
    assert found.refuses(Problem(2, 2, 2, PRECISIONS["fp64"])) == "mine has no fp64"


def test_unknown_precisions_are_refused_at_registration() -> None:
    with pytest.raises(UsageError, match="kernel 'x': unknown precision 'fp23'; choose from fp64"):
        Kernel("x", "b", "cpu", "", ("fp23",), lambda d, o: lambda: None)


@pytest.fixture
def broken_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry = EntryPoint("mine", "no_such_module", "rooflab.kernels")
    monkeypatch.setattr(backends, "entry_points", lambda group: [entry])
    backends._load_packages.cache_clear()
    yield
    backends._load_packages.cache_clear()


@pytest.mark.usefixtures("broken_package")
def test_a_package_that_cannot_be_imported_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert backends.discover().select(["tiled"], "cuda")
    told = " ".join(capsys.readouterr().err.split())
    assert "the kernels of no_such_module cannot be loaded (ModuleNotFoundError: No module" in told
    backends.discover()
    assert capsys.readouterr().err == ""
