from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from fake import FakeDevice, exact
from synthetic import gemm

from rooflab.devices import registry as opening
from rooflab.errors import UsageError
from rooflab.kernels import sources
from rooflab.kernels.base import Kernel, Operands, Variant, is_file
from rooflab.kernels.registry import Registry, register
from rooflab.measure.buffers import allocate


def named(*names: str, workload: str = "gemm") -> Registry:
    return Registry(exact(name, 0.5, workload=workload) for name in names)


def kernel(name: str, device_kind: str = "cuda", **other: Any) -> Kernel:
    return Kernel(name, "backend", device_kind, "", ("fp32",), lambda d, o: lambda: None, **other)


def test_names_globs_and_order() -> None:
    registry = named("naive", "coalesced", "tiled", "tiled_2d")
    assert [k.name for k in registry.select(["tiled*", "naive"], "exact", "gemm")] == [
        "tiled",
        "tiled_2d",
        "naive",
    ]
    assert len(registry.select(["*", "tiled"], "exact", "gemm")) == 4


def test_near_matches_are_offered() -> None:
    registry = named("naive", "coalesced", "tiled")
    with pytest.raises(UsageError, match=r"for gemm matches 'tyled': did you mean tiled\?"):
        registry.select(["tyled"], "exact", "gemm")
    with pytest.raises(UsageError, match=r"matches 'zzz': there are naive, coalesced, tiled"):
        registry.select(["tiled", "zzz"], "exact", "gemm")


def test_a_kernel_of_another_device_is_explained() -> None:
    registry = named("naive")
    registry.add(kernel("cublas"))
    registry.add(kernel("blas", "cpu"))
    with pytest.raises(
        UsageError, match=r"'cublas' needs an NVIDIA GPU .* on exact there are naive"
    ):
        registry.select(["cublas"], "exact", "gemm")
    with pytest.raises(UsageError, match=r"'blas' needs --device cpu; on exact there are naive"):
        registry.select(["blas"], "exact", "gemm")


def test_a_kernel_of_another_workload_is_explained_with_what_to_type() -> None:
    registry = named("naive", "tiled")
    registry.add(exact("stream", 0.5, workload="triad"))
    registry.add(exact("stream", 0.5, workload="add"))
    with pytest.raises(UsageError) as caught:
        registry.select(["stream"], "exact", "gemm")
    assert str(caught.value) == (
        "kernel 'stream' computes add, triad, not gemm: rooflab sweep add --kernel stream"
    )
    # Where one of that name is there, it is the one that is meant.
    registry.add(exact("tiled", 0.5, workload="add"))
    assert [k.workload for k in registry.select(["tiled"], "exact", "gemm")] == ["gemm"]
    assert [k.workload for k in registry.select(["*"], "exact", "add")] == ["add", "add"]


def test_a_workload_without_kernels_says_so() -> None:
    with pytest.raises(UsageError, match="there is no kernel for sum on exact"):
        named("naive").select(["*"], "exact", "sum")
    with pytest.raises(UsageError, match="'naive' computes gemm, not sum: rooflab sweep gemm"):
        named("naive").select(["naive"], "exact", "sum")


def test_a_second_kernel_of_one_name_is_refused() -> None:
    registry = named("naive")
    with pytest.raises(UsageError, match="two exact kernels for gemm are called 'naive'"):
        registry.add(exact("naive", 0.1))
    registry.add(kernel("naive"))
    registry.add(exact("naive", 0.1, workload="add"))
    assert len(registry.all()) == 3


def test_kernels_are_found_by_device_workload_and_name() -> None:
    registry = named("naive")
    found = registry.get("exact", "gemm", "naive")
    assert found is not None
    assert found.id == "gemm/naive"
    assert registry.get("exact", "add", "naive") is None
    assert registry.get("cuda", "gemm", "naive") is None


def test_the_library_of_a_workload() -> None:
    registry = named("naive")
    assert registry.library("exact", "gemm") is None
    registry.add(kernel("best", "exact", library=True))
    best = registry.library("exact", "gemm")
    assert best is not None
    assert best.name == "best"
    assert registry.library("exact", "add") is None


def test_a_decorated_function_is_a_kernel() -> None:
    registry = Registry()

    @register(
        "mine",
        backend="m",
        device_kind="exact",
        title="T",
        precisions=("fp32",),
        choices={"layout": ("nn",)},
        registry=registry,
    )
    def mine(device: object, operands: object) -> Any:
        return lambda: None

    (found,) = registry.select(["mine"], "exact", "gemm")
    assert found.prepare is mine
    assert found.refuses(gemm(2, 2, 2)) == ""
    assert found.refuses(gemm(2, 2, 2, layout="tn")) == "mine supports layout nn only"
    assert found.refuses(gemm(2, 2, 2, "fp64")) == "mine does not support fp64"


def test_a_kernel_refuses_what_it_and_all_of_its_variants_refuse() -> None:
    def variant(name: str, least: int) -> Variant:
        def unsupported(problem: Any) -> str:
            return f"{name} needs M >= {least}" if problem.extents["m"] < least else ""

        return Variant(name, lambda d, o: lambda: None, lambda d, p: None, unsupported)

    one = kernel("many", variants=(variant("large", 64), variant("small", 8)))
    assert one.refuses(gemm(8, 8, 8)) == ""
    assert one.refuses(gemm(4, 8, 8)) == "large needs M >= 64"
    odd = kernel("even", unsupported=lambda problem: "odd" if problem.extents["m"] % 2 else "")
    assert odd.refuses(gemm(3, 8, 8)) == "odd"
    assert odd.refuses(gemm(4, 8, 8)) == ""


@pytest.mark.parametrize(
    ("precisions", "other", "told"),
    [
        (("fp23",), {}, "kernel 'x': unknown precision 'fp23'; choose from fp64"),
        (
            ("fp32",),
            {"choices": {"layout": ("nn", "xy")}},
            "kernel 'x': unknown layout 'xy'; choose from nn, nt, tn, tt",
        ),
        (("fp32",), {"choices": {"order": ("nn",)}}, "kernel 'x': gemm has no choice of 'order'"),
        (("fp32",), {"choices": {"alpha": ("1",)}}, "kernel 'x': gemm has no choice of 'alpha'"),
        (
            ("fp32",),
            {"workload": "sum", "choices": {"layout": ("nn",)}},
            "kernel 'x': sum has no choice of 'layout'",
        ),
        (("fp32",), {"workload": "gem"}, "no workload 'gem': did you mean"),
    ],
)
def test_mistakes_are_refused_at_registration(
    precisions: tuple[str, ...], other: Mapping[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        Kernel("x", "b", "cpu", "", precisions, lambda d, o: lambda: None, **other)


def test_a_mistake_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"kernel 'x' \(.*mine\.cu\): unknown precision"):
        Kernel("x", "b", "cuda", "", ("fp23",), lambda d, o: lambda: None, source=Path("mine.cu"))


def test_operands_are_found_by_name() -> None:
    operands = allocate(FakeDevice(), gemm(2, 3, 4), 0)
    assert list(operands) == ["a", "b", "c"]
    assert len(operands) == 3
    assert operands["a"] is operands.a
    with pytest.raises(AttributeError, match="gemm has no operand 'x'"):
        _ = operands.x
    assert isinstance(operands, Operands)
    assert not hasattr(operands, "__array__")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("tiled", False),
        ("tiled*", False),
        ("mine.cu", True),
        ("mine.py", True),
        ("mine.py:fast", True),
        ("./mine", True),
        ("folder/mine.cu", True),
        ("cute_gemm", False),
        ("mine.cuh", False),
    ],
)
def test_what_is_a_file(name: str, file: bool) -> None:
    assert is_file(name) is file


@pytest.fixture
def broken_package(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry = EntryPoint("mine", "no_such_module", "rooflab.kernels")
    monkeypatch.setattr(opening, "entry_points", lambda group: [entry])
    opening.installed.cache_clear()
    yield
    opening.installed.cache_clear()


@pytest.mark.usefixtures("broken_package")
def test_a_package_that_cannot_be_imported_is_named(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert sources.discover().select(["tiled"], "cuda", "gemm")
        told = caplog.text
        sources.discover()
    assert "the kernels of no_such_module cannot be loaded (ModuleNotFoundError: No mod" in told
    assert "pip uninstall no_such_module" in told
    assert caplog.text == told  # once


def test_shipped_kernels_have_names_of_their_own_and_say_what_they_are() -> None:
    kernels = sources.discover().all()
    keys = [(kernel.device_kind, kernel.id) for kernel in kernels]
    assert len(set(keys)) == len(keys)
    assert all(kernel.title for kernel in kernels)
    workloads = "gemm add copy triad sum gemv softmax rmsnorm blur fft spectrum filter attention "
    workloads += "grouped_gemm w4a16 layernorm cross_entropy swiglu rope adamw embedding quantize "
    workloads += "block_gemm rmsnorm_backward layernorm_backward cross_entropy_backward "
    workloads += "attention_backward route sort_experts combine linear"
    for kind in ("cpu", "cuda"):
        assert set(workloads.split()) <= {k.workload for k in kernels if k.device_kind == kind}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("mine.txt", "kernel file mine.txt is neither .cu nor .py"),
        ("nowhere.cu", "nowhere.cu cannot be read: No such file"),
        ("nowhere.py", "nowhere.py cannot be read: no such file"),
        ("bad\0name.cu", "is not a valid file name"),
        ("x" * 5000 + ".cu", "is not a valid file name"),
    ],
)
def test_files_that_are_none_are_named(spec: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        sources.load_file(spec)
