"""Every shipped kernel compiles, on a machine without a GPU.

By default the first and the last file of each folder do so once, of those that take a moment.
Marked ``slow``: the others, and all precisions, layouts and architectures, and some variants.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import groupby, product
from pathlib import Path

import pytest

from rooflab.devices.cuda import compiler, cutlass_headers
from rooflab.devices.cuda.compiler import Compiled
from rooflab.devices.cuda.launches import LIMITS
from rooflab.errors import LaunchError
from rooflab.files import kernel_name, kernels_dir
from rooflab.kernels.cuda_file.header import Configuration
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.kernels.cutlass import proposals
from rooflab.model.problem import Problem
from rooflab.workloads import build, find
from rooflab.workloads.gemm import Gemm
from rooflab.workloads.linear import EPILOGUES, Linear

ARCHS = {"8.0": "sm_80", "9.0": "sm_90a", "12.0": "sm_120"}
FILES = {
    str(path.relative_to(kernels_dir()).with_name(kernel_name(path))): read_file(path)
    for path in sorted(kernels_dir().rglob("*.cu"))
}
QUICK = {name: file for name, file in FILES.items() if not file.header.needs}
CUTE = {name: file for name, file in FILES.items() if Path(name).parent.name == "cute"}

CUTLASS = (
    ("gemm/cutlass/cutlass_tf32", "tf32", "tn", "sm_80"),
    ("gemm/cutlass/cutlass_fp16", "fp16_fp32", "tt", "sm_90a"),
    ("gemm/cutlass/cutlass_bf16", "bf16", "nt", "sm_80"),
)
CHAMPIONS = {
    "gemm/hopper/champion": "bf16",
    "gemm/hopper/early": "bf16",
    "gemm/hopper/large": "bf16",
    "gemm/hopper/split": "fp32_3xtf32",
    "gemm/hopper/dmma": "fp64",
    "gemm/serpentine": "fp32",
    "gemm/producers": "fp32",
    "gemm/fed": "fp32",
    "gemm/few_rows": "bf16",
    "gemm/hopper/skinny": "bf16",
    "grouped_gemm/persistent": "bf16",
    "w4a16/rows": "bf16",
    "w4a16/wgmma": "bf16",
    "block_gemm/wgmma": "fp8",
    "attention/wgmma": "bf16",
    "attention_backward/wgmma": "bf16",
    "linear/wgmma": "bf16",
}
"""Kernels of which no variant may spill registers, in a precision."""


def archs(file: CudaFile) -> list[str]:
    """The architectures that a file is for."""
    header = file.header
    return [
        arch
        for capability, arch in ARCHS.items()
        if header.compute_capability in ("", capability)
        and float(capability) >= float(header.min_compute_capability)
    ]


def problems(file: CudaFile, precision: str) -> list[Problem]:
    """One for each layout or epilogue, where the workload has such."""
    kind = find(file.header.workload)
    limits = {name.lower(): most for name, most in file.header.limits.items()}
    extents = {
        p.name: min(128, limits.get(p.name, 128))
        for p in kind.parameters().values()
        if p.kind == "extent"
    }
    for setting in {"layout", "epilogue"} & kind.parameters().keys():
        choices = file.header.choices.get(setting, kind.parameters()[setting].choices)
        return [build(kind.workload, precision, {**extents, setting: one}) for one in choices]
    return [build(kind.workload, precision, extents)]


def check(compiled: Compiled) -> None:
    assert compiled.cubin.read_bytes().startswith(b"\x7fELF")
    assert "warning" not in compiled.log
    assert "Performance Loss" not in compiled.log  # each wgmma waits for the one before
    assert compiled.registers > 0


def require(reason: str) -> None:
    """Skip for ``reason``; in CI fail."""
    if reason:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


@pytest.fixture(autouse=True, scope="module")
def empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A compiler whose cache has nothing from before."""
    require(compiler.unavailable())
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ROOFLAB_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


# By default --------------------------------------------------------------------------------------


def by_default(file: CudaFile) -> tuple[str, str, str]:
    """Precision, variant and architecture: the last, the first, and the oldest that it is for."""
    header = file.header
    return header.precisions[-1], header.all_variants[0].title, archs(file)[0]


def ends_of_courses() -> list[str]:
    """The first and the last file of each folder: between them they include what all do."""
    folders = groupby(QUICK, lambda name: Path(name).parent)
    return sorted(
        {name for _, names in folders for some in (list(names),) for name in (some[0], some[-1])}
    )


BY_DEFAULT = ends_of_courses()


@pytest.mark.parametrize(
    "name",
    [
        *BY_DEFAULT,
        *(pytest.param(one, marks=pytest.mark.slow) for one in QUICK if one not in BY_DEFAULT),
    ],
)
def test_a_kernel_compiles(name: str) -> None:
    """In its last layout; the slow tests build others."""
    file = QUICK[name]
    precision, _, arch = by_default(file)
    problem = problems(file, precision)[-1]
    compiled = file.compile(problem, file.header.all_variants[0], arch)
    check(compiled)
    assert compiled.spill_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision"),
    [*CHAMPIONS.items(), ("gemm/hopper/champion", "tf32"), ("gemm/hopper/large", "tf32")],
)
def test_no_variant_of_a_champion_spills(name: str, precision: str) -> None:
    """Sums in local memory, or products that wait for each other, would be correct, and slow.

    Reading C needs the most registers.
    """
    file = FILES[name]
    problem = problems(file, precision)[0]
    tried: list[Problem] = [problem]
    if isinstance(problem, Gemm):
        tried = [replace(problem, beta=1.0)]
    if isinstance(problem, Linear):
        tried = [replace(problem, epilogue=one) for one in EPILOGUES]
    for problem, choice in product(tried, file.header.all_variants):
        compiled = file.compile(problem, choice, "sm_90a")
        check(compiled)
        assert compiled.spill_bytes == 0
        assert " 0 bytes stack frame" in compiled.log
        assert "wgmma.mma_async instructions are serialized" not in compiled.log
        assert compiled.registers * math.prod(file.geometry(problem, choice).block) <= 65536


@pytest.mark.slow
def test_a_kernel_of_cutlass_compiles() -> None:
    require(cutlass_headers.unavailable())
    file = FILES["gemm/cutlass/cutlass_simt"]
    problem = build("gemm", "fp32", {"m": 128, "n": 128, "k": 128})
    compiled = file.compile(problem, file.header.variants[0], "sm_80")
    check(compiled)
    assert compiled.spill_bytes == 0
    (info,) = file.as_kernel().builds()
    assert (info["variant"], info["registers"]) == ("256x128", compiled.registers)


# Slow --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Build:
    """One compilation of a file."""

    name: str
    precision: str
    variant: str
    arch: str

    def run(self) -> list[Compiled]:
        """The first variant and precision for the newest architecture in all layouts, else one."""
        file = FILES[self.name]
        header = file.header
        newest = archs(file)[-1]
        first = (fitting(file, newest)[0].title, header.precisions[0], newest)
        several = (self.variant, self.precision, self.arch) == first
        (choice,) = (one for one in file.header.all_variants if one.title == self.variant)
        return [
            file.compile(problem, choice, self.arch)
            for problem in problems(file, self.precision)[0 if several else -1 :]
        ]


def supports(choice: Configuration, precision: str) -> bool:
    return not choice.precisions or precision in choice.precisions


def fitting(file: CudaFile, arch: str) -> list[Configuration]:
    """The variants whose dynamic shared memory a block of ``arch`` can have."""
    most = LIMITS[compiler.capability_of(arch)].shared_bytes_per_block
    problem = problems(file, file.header.precisions[0])[0]
    return [
        one for one in file.header.all_variants if file.geometry(problem, one).shared_bytes <= most
    ]


def builds(name: str, file: CudaFile) -> Iterator[Build]:
    """The first variant in every precision for the newest architecture, in one for the others.

    The last variant in one precision for the newest: variants differ in numbers only. Those of
    champions and of mma have tests of their own. Only those that fit are meant. What the default
    test builds is not built again.
    """
    newest = archs(file)[-1]
    first, *others = fitting(file, newest)
    others = others[-1:]
    possible = [one for one in file.header.precisions if supports(first, one)]
    of_newest = [Build(name, one, first.title, newest) for one in possible]
    if len(possible) > 1 and by_default(file) == (possible[-1], first.title, newest):
        of_newest.pop()
    yield from of_newest
    yield from (Build(name, possible[0], first.title, arch) for arch in archs(file)[:-1])
    for choice in others if name not in (*CHAMPIONS, "gemm/mma") else ():
        precision = next(one for one in file.header.precisions if supports(choice, one))
        yield Build(name, precision, choice.title, newest)


def test_a_variant_that_does_not_fit_is_refused_before_it_is_launched() -> None:
    file = FILES["gemm/mma"]
    largest = next(one for one in file.header.variants if one.title == "128x128")
    assert largest not in fitting(file, "sm_120")
    problem = problems(file, "tf32")[0]
    with pytest.raises(LaunchError, match="104448 bytes of shared memory per block"):
        file.compile(problem, largest, "sm_120")


EVERYTHING = [one for name, file in QUICK.items() for one in builds(name, file)]


@pytest.mark.slow
@pytest.mark.parametrize("one", EVERYTHING, ids=lambda one: "-".join(vars(one).values()))
def test_every_kernel_compiles_in_every_precision_and_for_every_architecture(one: Build) -> None:
    for compiled in one.run():
        check(compiled)
        if not FILES[one.name].header.variants:  # of variants one that spills loses the race
            assert compiled.spill_bytes == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "layout"),
    [("fp64", "nn"), ("fp64", "nt"), ("tf32", "nn"), ("bf16", "nn"), ("fp16_fp32", "nt")],
)
def test_tensor_cores_by_warp_spill_nothing(precision: str, layout: str) -> None:
    """Its sums and fragments nearly fill the registers: spills would cost much of its speed."""
    file = FILES["gemm/mma"]
    problem = build("gemm", precision, {"m": 128, "n": 128, "k": 128, "layout": layout})
    for choice in file.header.variants:
        if supports(choice, precision):
            assert file.compile(problem, choice, "sm_90a").spill_bytes == 0, choice.title


@pytest.mark.slow
def test_kernels_in_cute_compile(tmp_path: Path) -> None:
    """As one source: what they share takes most of the time, and is compiled once.

    Each is in a namespace of its own, below the header that all of them include.
    """
    require(cutlass_headers.unavailable())
    include = '#include "cute_gemm.cuh"'
    first = next(iter(CUTE.values())).source.read_text()
    lines = [first.partition("*/")[0], "*/", include]
    for file in CUTE.values():
        assert f"\n{include}\n" in file.source.read_text()
        lines.append(f'namespace of_{file.name} {{\n#include "{file.source}"\n}}')
    together = tmp_path / "together.cu"
    together.write_text("\n".join(lines))

    file = read_file(together)
    problem = problems(file, file.header.precisions[0])[0]
    compiled = file.compile(problem, file.header.all_variants[0], "sm_90a")
    check(compiled)
    entries = re.findall(r"Compiling entry function '(\w+)'", compiled.log)
    assert sorted(entries) == sorted(file.header.entry for file in CUTE.values())
    assert compiled.log.count(" 0 bytes spill stores, 0 bytes spill loads") == len(CUTE)
    assert "bytes smem" not in compiled.log


@pytest.mark.slow
@pytest.mark.parametrize(("name", "precision", "layout", "arch"), CUTLASS)
def test_the_tensor_cores_of_cutlass_2_compile(
    name: str, precision: str, layout: str, arch: str
) -> None:
    require(cutlass_headers.unavailable())
    problem = build("gemm", precision, {"m": 128, "n": 128, "k": 128, "layout": layout})
    compiled = FILES[name].compile(problem, FILES[name].header.variants[0], arch)
    check(compiled)
    assert compiled.spill_bytes == 0


@pytest.mark.slow
def test_what_is_proposed_for_hopper_compiles() -> None:
    """All that is proposed for a problem is the kernel of one file; the smallest compiles."""
    require(cutlass_headers.unavailable())
    require("" if find_spec("nvMatmulHeuristics") else "nvidia-matmul-heuristics is missing")
    problem = build("gemm", "bf16", {"m": 16, "n": 16, "k": 16, "layout": "nt"})
    file = FILES["gemm/cutlass/cutlass_hopper"]
    compiled = file.compile(problem, proposals.choices(problem)[0], "sm_90a")
    check(compiled)
    assert compiled.spill_bytes == 0
