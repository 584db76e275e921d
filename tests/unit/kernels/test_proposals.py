"""CUTLASS's kernels that nvMatmulHeuristics proposes: what is asked, and what is raced. No GPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import pytest
import synthetic

from rooflab.kernels.cuda_file.kernel import CudaFile
from rooflab.kernels.cutlass import proposals

Layout = IntEnum("Layout", ["TT_ROW_MAJOR", "TN_ROW_MAJOR", "NT_ROW_MAJOR", "NN_ROW_MAJOR"])


def proposal(m: int, n: int, cluster: tuple[int, int] = (2, 1), **other: int) -> dict[str, Any]:
    values = {"split_k": 1, "swizzle_factor": 1, "cta_order": 0, **other}
    one = SimpleNamespace(
        cta_tile_m=m, cta_tile_n=n, cluster_m=cluster[0], cluster_n=cluster[1], **values
    )
    return {"kernel": one, "runtime": 1e-5}


class Package(SimpleNamespace):
    """The parts of nvMatmulHeuristics that are used; ``asked`` is the last question."""

    NvMatmulHeuristicsTarget = SimpleNamespace(CUTLASS3=4)
    NvMatmulHeuristicsFlags = SimpleNamespace(PERF_MODEL_BASED_AUTO_TUNING=8)
    NvMatmulHeuristicsNvidiaGpu = SimpleNamespace(H200_SXM=9003)
    NvMatmulHeuristicsMatmulLayout = Layout

    def NvMatmulHeuristicsInterfaceEx(self, **options: int) -> Package:  # noqa: N802
        assert options == {"backend": 4, "flags": 8, "gpu": 9003}
        return self

    def makeNvMatmulHeuristicsProblem(self, *problem: Any) -> tuple[Any, ...]:  # noqa: N802
        return problem

    def get(self, problem: Any, count: int, precision: str) -> list[dict[str, Any]]:
        self.asked = (problem, count, precision)
        return list(self.found)


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    one = Package(found=[], asked=None)
    monkeypatch.setitem(sys.modules, "nvMatmulHeuristics", one)
    monkeypatch.setattr(proposals, "find_spec", lambda name: one)
    proposals.choices.cache_clear()
    yield one
    proposals.choices.cache_clear()


@pytest.mark.parametrize(
    ("precision", "layout", "letters", "types"),
    [
        ("bf16", "nn", "TT", "TST"),
        ("bf16", "nt", "TN", "TST"),
        ("fp16", "tn", "NT", "HSH"),
        ("fp16_fp32", "tt", "NN", "HSS"),
        ("tf32", "nt", "TN", "SSS"),
        ("fp8", "nt", "TN", "QQTST"),
    ],
)
def test_the_problem_is_asked_in_blas_words(
    package: Package, precision: str, layout: str, letters: str, types: str
) -> None:
    package.found = [proposal(128, 128)]
    proposals.choices(synthetic.gemm(256, 128, 64, precision, layout=layout, batch=3))
    assert package.asked == ((256, 128, 64, Layout[f"{letters}_ROW_MAJOR"], 3), 8, types)


def test_each_schedule_that_a_tile_allows_is_raced_once(package: Package) -> None:
    package.found = [
        proposal(256, 128, (1, 2)),  # too large for one group of warps
        proposal(128, 128, cta_order=1, swizzle_factor=4),
        proposal(128, 128, cta_order=1, swizzle_factor=4),  # differs in what the file sets itself
        proposal(64, 128),  # too few rows for two groups
        proposal(128, 128, split_k=2),
    ]
    found = proposals.choices(synthetic.gemm(512, 512, 512, "bf16"))
    assert [one.name for one in found] == [
        "256x128 1x2 swizzle 1 m",
        "128x128 2x1 swizzle 4 n",
        "128x128 2x1 pingpong swizzle 4 n",
        "64x128 2x1 pingpong swizzle 1 m",
        "128x128 2x1 stream-k swizzle 1 m",
    ]
    assert found[2].macros == {
        "TILE_M": 128,
        "TILE_N": 128,
        "CLUSTER_M": 2,
        "CLUSTER_N": 1,
        "PINGPONG": 1,
        "STREAM_K": 0,
        "FAST_ACCUMULATE": 0,
    }
    assert (found[2].raster, found[2].swizzle) == ("n", 4)
    assert found[4].macros["STREAM_K"] == 1


def test_sums_of_fp8_stay_in_the_tensor_cores(package: Package) -> None:
    package.found = [proposal(128, 128)]
    found = proposals.choices(synthetic.gemm(512, 512, 512, "fp8", layout="nt"))
    assert all(one.macros["FAST_ACCUMULATE"] for one in found)


def test_tiles_that_cutlass_does_not_make_are_left_out(package: Package) -> None:
    package.found = [proposal(192, 32), proposal(192, 128)]
    found = proposals.choices(synthetic.gemm(512, 512, 512, "bf16"))
    assert [one.name for one in found] == ["192x32 2x1 pingpong swizzle 1 m"]


def test_what_is_not_proposed(package: Package) -> None:
    one = synthetic.gemm(512, 512, 512, "bf16")
    assert "proposes no kernels that CUTLASS makes for 512" in proposals.KERNEL.refuses(one)
    proposals.choices.cache_clear()
    package.found = [proposal(64, 64)]
    kernel = proposals.KERNEL
    assert not kernel.refuses(one) and not kernel.variants[0].unsupported(one)
    assert "proposes 1 kernels" in kernel.variants[1].unsupported(one)


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proposals, "find_spec", lambda name: None)
    monkeypatch.setattr(CudaFile, "unavailable", lambda self, device: "")
    reason = "nvidia-matmul-heuristics is not installed: pip install 'rooflab[heuristics]'"
    assert proposals.unavailable(None) == reason


def test_the_kernel_offers_all_that_may_be_proposed() -> None:
    kernel = proposals.KERNEL
    assert len(kernel.variants) == 2 * proposals.PROPOSALS
    assert kernel.variant == kernel.variants[0].name == "proposal 1"
    assert kernel.refuses(synthetic.gemm(512, 512, 512, "fp32"))
    assert "layout nt only" in kernel.refuses(synthetic.gemm(512, 512, 512, "tf32", layout="nn"))
    assert not kernel.refuses(synthetic.gemm(512, 512, 512, "bf16"))
