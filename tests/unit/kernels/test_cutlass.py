"""CUTLASS kernels: headers, what they refuse, and the guard before a launch. No CUTLASS, no GPU."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import synthetic

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda import compiler, cutlass_headers
from rooflab.errors import KernelError, UsageError
from rooflab.files import kernels_dir
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file.kernel import read_file, shipped_kernels
from rooflab.kernels.cutlass.report import MAGIC, PARAMS_LIMIT, REPORT, check_report
from rooflab.model.problem import Problem

KERNELS = {kernel.name: kernel for kernel in shipped_kernels() if kernel.backend == "cutlass"}

MINIMAL = """
launch = "plan"
rung = 9
precisions = ["fp16"]
variants = [
  { name = "64x64", TILE_M = 64, TILE_N = 64 },
  { name = "split", TILE_M = 64, splits = 2 },
]
"""


def write(folder: Path, header: str) -> Path:
    path = folder / "mine.cu"
    path.write_text(f"/*{header}*/\n", encoding="utf-8")
    return path


def device(compute_capability: str) -> Device:
    facts = {"compute_capability": compute_capability}
    return cast(Device, SimpleNamespace(id="cuda:0", name="Some GPU", fact=facts.get))


def problem(m: int, n: int, k: int, precision: str, layout: str, batch: int = 1) -> Problem:
    return synthetic.gemm(m, n, k, precision, layout=layout, batch=batch)


def test_shipped_kernels_have_variants() -> None:
    assert next(iter(KERNELS)) == "cutlass_simt"
    for kernel in KERNELS.values():
        assert kernel.teaches
        assert kernel.variant == kernel.variants[0].name
        for precision in kernel.precisions:
            one = problem(256, 256, 256, precision, "nt")
            assert any(not variant.unsupported(one) for variant in kernel.variants), precision


def test_a_variant_is_a_line(tmp_path: Path) -> None:
    file = read_file(write(tmp_path, MINIMAL))
    plain, split = file.header.variants
    assert (plain.name, plain.macros, plain.splits) == ("64x64", {"TILE_M": 64, "TILE_N": 64}, 1)
    assert (split.macros, split.splits) == ({"TILE_M": 64}, 2)
    assert [variant.name for variant in file.as_kernel().variants] == ["64x64", "split"]


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("TILE_M = 64,", "tile_m = 64,", r"variants: .*'tile_m'.* write variants = "),
        ('"split"', '"64x64"', r"two variants are called 64x64"),
        ("splits = 2", "splits = 0", r"variants: .*greater than 0"),
        ("splits = 2", 'raster = "k"', r"variants: .*'auto', 'm' or 'n'"),
        ("rung = 9", "rnug = [1]", r"'rnug' is not a key, did you mean 'rung'"),
        ('launch = "plan"', 'launch = "plane"', r"launch: Input should be 'grid' or 'plan'"),
        ("splits = 2", 'precisions = ["fp61"]', r"fp61 is not one of fp64"),
    ],
)
def test_a_wrong_header_says_what_to_write(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        read_file(write(tmp_path, MINIMAL.replace(before, after)))


# Only the extents along which rows are contiguous matter: A and B's by the layout, and C's N.
@pytest.mark.parametrize(
    ("kernel", "precision", "layout", "shape", "told"),
    [
        ("cutlass_simt", "fp32", "nn", (7, 127, 513), ""),
        ("cutlass_fp16", "fp16", "nn", (129, 8, 513), "cutlass_fp16 needs K to be a multiple of 8"),
        ("cutlass_fp16", "fp16", "nn", (129, 8, 512), ""),
        ("cutlass_fp16", "fp16", "tn", (129, 8, 513), "needs M to be a multiple of 8, it is 129"),
        ("cutlass_fp16", "fp16", "tn", (128, 8, 513), ""),
        ("cutlass_fp16", "fp16", "nn", (129, 12, 512), "needs N to be a multiple of 8, it is 12"),
        ("cutlass_fp16", "fp16", "nt", (129, 12, 512), "needs N to be a multiple of 8, it is 12"),
        ("cutlass_fp16", "fp16_fp32", "nt", (129, 12, 512), ""),
        ("cutlass_fp16", "fp16_fp32", "tt", (128, 12, 4), "needs K to be a multiple of 8, it is 4"),
        ("cutlass_tf32", "tf32", "tn", (4, 4, 1), ""),
        ("cutlass_hopper", "bf16", "tn", (8, 8, 1), ""),
        ("cutlass_hopper", "tf32", "nn", (8, 8, 8), "supports TF32 in layout nt only"),
        ("cutlass_hopper", "tf32", "nt", (1, 4, 6), "needs K to be a multiple of 4, it is 6"),
    ],
)
def test_rows_must_be_whole_accesses(
    kernel: str, precision: str, layout: str, shape: tuple[int, int, int], told: str
) -> None:
    refused = KERNELS[kernel].refuses(problem(*shape, precision, layout))
    assert told in refused
    assert bool(told) == bool(refused)


def test_a_split_k_takes_no_batch(tmp_path: Path) -> None:
    _, split = read_file(write(tmp_path, MINIMAL)).as_kernel().variants
    assert not split.unsupported(problem(64, 64, 64, "fp16", "nt"))
    assert "batch is 3" in split.unsupported(problem(64, 64, 64, "fp16", "nt", 3))


def test_a_variant_is_for_its_own_precisions(tmp_path: Path) -> None:
    header = MINIMAL.replace("splits = 2", 'precisions = ["fp16"]').replace(
        'precisions = ["fp16"]\n', 'precisions = ["fp16", "bf16"]\n'
    )
    plain, choosy = read_file(write(tmp_path, header)).as_kernel().variants
    assert not choosy.unsupported(problem(64, 64, 64, "fp16", "nt"))
    assert choosy.unsupported(problem(64, 64, 64, "bf16", "nt")) == "split is for fp16"
    assert not plain.unsupported(problem(64, 64, 64, "bf16", "nt"))


def test_a_variant_may_need_wider_rows_than_the_others(tmp_path: Path) -> None:
    header = MINIMAL.replace("splits = 2", "access_bytes = 16")
    plain, wide = read_file(write(tmp_path, header)).as_kernel().variants
    assert not plain.unsupported(problem(64, 64, 7, "fp16", "nt"))
    told = wide.unsupported(problem(64, 64, 7, "fp16", "nt"))
    assert told == "split needs K to be a multiple of 8, it is 7"


@pytest.mark.parametrize(
    ("name", "capability", "told"),
    [
        ("cutlass_simt", "7.5", "cutlass_simt needs compute capability 8.0, Some GPU has 7.5"),
        ("cutlass_hopper", "8.0", "cutlass_hopper requires exactly compute capability 9.0"),
        ("cutlass_hopper", "10.0", "cutlass_hopper requires exactly compute capability 9.0"),
        ("cutlass_hopper", "", "does not report its compute capability"),
    ],
)
def test_an_architecture_is_refused(name: str, capability: str, told: str) -> None:
    assert told in KERNELS[name].unavailable(device(capability))


@pytest.mark.parametrize(
    ("version", "told"),
    [
        (None, f"CUTLASS is not installed: {cutlass_headers.install_line()}"),
        ("4.1.9", "CUTLASS 4.1.9 in somewhere is not >=4.2,<4.3: pip install"),
        ("4.3.0", "CUTLASS 4.3.0 in somewhere is not >=4.2,<4.3: pip install"),
        ("4.10.0", "CUTLASS 4.10.0 in somewhere is not"),
    ],
)
def test_a_missing_or_unknown_cutlass_is_told(
    version: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = compiler.Library("CUTLASS", version, (Path("somewhere"),)) if version else None
    monkeypatch.setattr(cutlass_headers, "library", lambda: found)
    monkeypatch.setattr(compiler, "unavailable", lambda: "")
    assert KERNELS["cutlass_simt"].unavailable(device("9.0")).startswith(told)


def test_the_version_is_read_from_the_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "include" / "cutlass"
    folder.mkdir(parents=True)
    (folder / "version.h").write_text(
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 1\n"
        "#define CUTLASS_VERSION ((CUTLASS_MAJOR)*100)\n"
    )
    monkeypatch.setenv("CUTLASS_PATH", str(tmp_path))
    cutlass_headers.library.cache_clear()
    try:
        assert cutlass_headers.library() == compiler.Library(
            "CUTLASS", "4.2.1", (tmp_path / "include",)
        )
    finally:
        cutlass_headers.library.cache_clear()


def test_each_part_of_cudas_headers_is_searched_on_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packages that have one part only must not hide a whole toolkit."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    package, toolkit = tmp_path / "package", tmp_path / "toolkit" / "include"
    for folder in (package, toolkit):
        (folder / "crt").mkdir(parents=True)
        (folder / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 12090\n")
    (toolkit / "crt" / "mma.h").touch()
    (toolkit / "cuda" / "std").mkdir(parents=True)
    (toolkit / "cuda" / "std" / "type_traits").touch()
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda part: str(package))
    monkeypatch.setattr(compiler, "version", lambda: (12, 9))
    monkeypatch.setattr("sys.path", [])
    monkeypatch.setenv("CUDA_PATH", str(toolkit.parent))
    compiler.cuda_headers.cache_clear()
    try:
        assert compiler.cuda_headers() == compiler.Library("CUDA", "12090", (package, toolkit))
    finally:
        compiler.cuda_headers.cache_clear()


def test_headers_of_another_cuda_version_are_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as those that the package of nvcc 13 needs, beside NVRTC 12."""
    pathfinder = pytest.importorskip("cuda.pathfinder")
    for name, number in (("cu13", 13000), ("cuda_runtime", 12090)):
        folder = tmp_path / "nvidia" / name / "include"
        folder.mkdir(parents=True)
        (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION {number}\n")
    newer = str(tmp_path / "nvidia" / "cu13" / "include")
    monkeypatch.setattr(pathfinder, "find_nvidia_header_directory", lambda part: newer)
    monkeypatch.setattr(compiler, "version", lambda: (12, 9))
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    compiler.cuda_headers.cache_clear()
    try:
        found = compiler.cuda_headers()
    finally:
        compiler.cuda_headers.cache_clear()
    assert found is not None
    assert (found.folders[0].parts[-2], found.version) == ("cuda_runtime", "12090")


def test_only_the_newest_plan_keeps_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan holds GPU memory; the buffer copies of one problem share one."""

    class FakePlan:
        def bind(self, operands: Operands) -> Launch:
            return lambda: None

    made: list[weakref.ref[FakePlan]] = []

    def make_plan(*arguments: object) -> FakePlan:
        plan = FakePlan()
        made.append(weakref.ref(plan))
        return plan

    monkeypatch.setattr("rooflab.kernels.cutlass.plan.make_plan", make_plan)
    file = read_file(kernels_dir() / "gemm" / "cutlass" / "43_cutlass_fp16.cu")
    for size in (64, 64, 128):
        operands = Operands(problem(size, size, size, "fp16", "nt"), {}, {})
        file.prepare(device("9.0"), operands)
    assert [plan() is None for plan in made] == [True, False]


# The guard ---------------------------------------------------------------------------------------


def report() -> Any:
    """What a plan for Hopper reports, shortened to one address and one descriptor."""
    one = np.zeros(1, REPORT)[0]
    one["magic"], one["takes_problem"] = MAGIC, 1
    one["params_bytes"], one["shared_bytes"], one["threads"] = 1792, 230400, 384
    one["grid"], one["cluster"] = (2, 66, 1), (2, 1, 1)
    one["pointers"], one["descriptors"] = 1, 2
    one["workspace_bytes"], one["zeroed_offset"], one["zeroed_bytes"] = 4096, 3072, 1024
    one["pointer"][0] = (1600, 2)
    for i in range(2):
        one["descriptor"][i] = (128 + 256 * i, i, 1, 3, 3, (64, 128, 1, 0, 0), (8,) * 5, (16,) * 4)
    return one


def test_layouts_are_those_of_the_device() -> None:
    source = (kernels_dir() / "include" / "cutlass_plan.cuh").read_text(encoding="utf-8")
    assert f"sizeof(Report) == {REPORT.itemsize}" in source
    assert f"REPORT_MAGIC = {MAGIC:#x}" in source
    assert f"PARAMS_LIMIT = {PARAMS_LIMIT}" in source


def test_a_sound_report_passes() -> None:
    check_report(report(), "mine")


def set_field(*path: str | int, to: int) -> Callable[[Any], None]:
    def change(one: Any) -> None:
        for step in path[:-1]:
            one = one[step]
        one[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (set_field("magic", to=0), "its plan reports 0x0 instead of 0x524c4301"),
        (set_field("params_bytes", to=5000), "parameters have 5000 bytes, 4096 are possible"),
        (set_field("params_bytes", to=0), "parameters have 0 bytes"),
        (set_field("threads", to=2048), "its grid is 2x66x1 blocks of 2048 threads"),
        (set_field("grid", 1, to=0), "its grid is 2x0x1 blocks"),
        (set_field("zeroed_bytes", to=2048), "its counters are outside its workspace"),
        (set_field("descriptors", to=5), "it has 1 addresses and 5 descriptors"),
        (set_field("pointer", 0, "offset", to=1790), "its address of C is at 1790 of 1792 bytes"),
        (set_field("pointer", 0, "operand", to=7), "its address is that of operand 7"),
        (set_field("pointer", 0, "offset", to=384), "its TMA descriptor of B at 384 overlaps"),
        (set_field("descriptor", 1, "offset", to=400), "descriptor of B is at 400 of 1792 bytes"),
        (set_field("descriptor", 1, "offset", to=1728), "descriptor of B is at 1728 of 1792"),
        (set_field("descriptor", 1, "offset", to=192), "descriptor of B at 192 overlaps another"),
        (set_field("descriptor", 0, "rank", to=6), "TMA descriptor has 6 dimensions"),
        (set_field("descriptor", 0, "swizzle", to=9), "swizzle 9"),
        (set_field("descriptor", 0, "box", 1, to=512), "box"),
        (set_field("pointer", 0, "operand", to=0), "it has no place for C"),
    ],
)
def test_a_report_that_cannot_be_is_refused(
    change: Callable[[Any], None], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cutlass_headers, "library", lambda: compiler.Library("CUTLASS", "4.2.7", ())
    )
    one = report()
    change(one)
    with pytest.raises(KernelError) as caught:
        check_report(one, "cutlass_hopper 128x256")
    message = str(caught.value)
    assert message.startswith("cutlass_hopper 128x256 cannot be launched: ")
    assert told in message
    assert "CUTLASS 4.2.7 is installed, >=4.2,<4.3 is tested" in message
    assert "\n" not in message
