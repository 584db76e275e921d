"""Files with host code of their own: what their headers may say, how they are called. No GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from synthetic import gemm

from rooflab.devices.base import Device, Launch
from rooflab.devices.cuda import compiler, driver, nvcc
from rooflab.devices.cuda.nvcc import Nvcc
from rooflab.errors import KernelError, UsageError
from rooflab.kernels.base import Operands
from rooflab.kernels.cuda_file import host
from rooflab.kernels.cuda_file.kernel import CudaFile, read_file
from rooflab.kernels.sources import load_file
from rooflab.workloads import build

MINIMAL = """
launcher = "run"
precisions = ["fp32"]
"""

SOME = Nvcc(Path("/opt/nvcc"), (13, 0), Path("/opt/g++"))


def read(folder: Path, *lines: str, body: str = "") -> CudaFile:
    path = folder / "mine.cu"
    path.write_text("\n".join(["/*", MINIMAL, *lines, "*/", body]), encoding="utf-8")
    return read_file(path, SOME)


# Headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("block = [32]", "'block' is for kernels without a launcher, which does that itself"),
        ('entry = "mine"', "'entry' is for kernels without a launcher"),
        ("shared_bytes = 8", "'shared_bytes' is for kernels without a launcher"),
        ('arguments = ["m", "lda", "a", "b", "c"]', "arguments: lda is not one of m, n, k, alpha"),
        ('arguments = ["m", "a", "c"]', "arguments: b is not among them"),
        ('launcher = "a b"', "launcher: it is not the name of a function"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "mine.cu"
    kept = [one for one in MINIMAL.splitlines() if line.split()[0] not in one]
    path.write_text("\n".join(["/*", *kept, line, "*/"]))
    with pytest.raises(UsageError) as caught:
        read_file(path)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("line", ['arguments = ["m"]', 'libraries = ["x.so"]', 'options = ["-lx"]'])
def test_what_host_code_may_say_is_not_for_others(tmp_path: Path, line: str) -> None:
    path = tmp_path / "mine.cu"
    path.write_text(f'/*\nentry = "f"\nprecisions = ["fp32"]\nblock = [1]\ntile = [1, 1]\n{line}*/')
    with pytest.raises(UsageError, match="launcher"):
        read_file(path)


def test_any_option_is_the_authors(tmp_path: Path) -> None:
    options = [
        "-Icommon",
        "-lcublas",
        "-std=c++20",
        "--expt-relaxed-constexpr",
        "-w",
        "-Xptxas",
        "-O1",
    ]
    assert read(tmp_path, f"options = {options}").header.options == options


def test_it_is_watched_like_a_python_file(tmp_path: Path) -> None:
    read(tmp_path)
    (found,) = load_file(tmp_path / "mine.cu", SOME)
    assert found.untrusted
    assert found.foreign
    assert found.launch_shape(gemm(8, 8, 8), "", 132) is None


# What it is given --------------------------------------------------------------------------------


def test_arguments_are_the_workloads_and_the_stream(tmp_path: Path) -> None:
    header, problem = read(tmp_path).header, gemm(8, 16, 32, alpha=2.0)
    text = host.text(problem, header)
    assert "return run(m, n, k, alpha, a, b, beta, c, stream);" in text
    assert "rooflab_launch(long long m, long long n, long long k, double alpha, rooflab::P" in text


def test_arguments_may_be_chosen_and_named_twice(tmp_path: Path) -> None:
    header = read(tmp_path, 'arguments = ["m", "n", "k", "a", "k", "b", "n", "c"]').header
    problem = gemm(8, 16, 32)
    assert "return run(m, n, k, a, k, b, n, c);" in host.text(problem, header)
    arrays = {
        name: SimpleNamespace(data=SimpleNamespace(ptr=at)) for at, name in enumerate("abc", 7)
    }
    operands = Operands(problem, arrays, {})
    assert host.values(operands, header, ctypes.c_void_p(99)) == [8, 16, 32, 7, 8, 9]
    assert len(host.types(problem, header)) == 6


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"alpha": 2.0}, "mine is not told alpha, which is 2 and not 1"),
        ({"beta": 0.5}, "mine is not told beta, which is 0.5 and not 0"),
        ({"batch": 3}, "mine computes one of a batch at a time, batch is 3"),
        ({}, ""),
    ],
)
def test_what_it_is_not_told_is_skipped(tmp_path: Path, changed: dict[str, Any], told: str) -> None:
    file = read(tmp_path, 'arguments = ["m", "n", "k", "a", "b", "c"]')
    assert file.unsupported(gemm(8, 8, 8, **changed)).startswith(told)
    all_of_it = read(
        tmp_path, 'arguments = ["batch", "m", "n", "k", "alpha", "a", "b", "beta", "c", "stream"]'
    )
    assert not all_of_it.unsupported(gemm(8, 8, 8, **changed))


def test_the_default_covers_what_a_workload_counts_together(tmp_path: Path) -> None:
    file = read(tmp_path, 'workload = "add"')
    assert not file.unsupported(build("add", "fp32", {"columns": 8, "rows": 4, "batch": 2}))


def test_other_keys_limit_it_as_they_limit_others(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        "constraints = { K = 64 }",
        'layouts = ["nt"]',
        "variants = [{ S = 1 }, { S = 2 }]",
    )
    found = file.as_kernel()
    assert "multiple of 64" in found.refuses(gemm(8, 8, 8, layout="nt"))
    assert "layout nt only" in found.refuses(gemm(8, 8, 64))
    assert [variant.name for variant in found.variants] == ["S=1", "S=2"]


# How it is built ---------------------------------------------------------------------------------


def test_without_nvcc_it_says_what_to_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read(tmp_path)
    file = read_file(tmp_path / "mine.cu")
    monkeypatch.setattr(nvcc, "_candidates", lambda: iter([Path("/nowhere/nvcc")]))
    assert (
        "only nvcc compiles a launcher: there is no nvcc: set CUDA_PATH, or pip"
        in file.uncompilable()
    )
    monkeypatch.setattr(nvcc, "find_nvcc", lambda driver: SOME)
    assert file.uncompilable().endswith("leave out --compiler nvrtc")
    assert read(tmp_path).uncompilable() == ""


def test_its_hash_has_what_it_includes_and_links(tmp_path: Path) -> None:
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "part.h").write_text("int x;")
    (tmp_path / "libx.so").write_bytes(b"one")
    lines = ('options = ["-Icommon"]', 'libraries = ["libx.so"]')
    file = read(tmp_path, *lines, body='#include "part.h"')
    seen = {file.fingerprint(), compiler.source_sha256(file.source)}
    (tmp_path / "libx.so").write_bytes(b"two")
    seen |= {file.fingerprint(), compiler.source_sha256(file.source)}
    (tmp_path / "common" / "part.h").write_text("int y;")
    seen |= {file.fingerprint(), compiler.source_sha256(file.source)}
    assert len(seen) == 6


class Linked:
    """Stands for a library, and remembers what it was called with."""

    def __init__(self, status: int) -> None:
        self.status, self.calls = status, list[Any]()
        self.argtypes: Any = None

    def __call__(self, *given: Any) -> int:
        values = [one.value if isinstance(one, ctypes.c_void_p) else one for one in given]
        self.calls.append(tuple(values))
        return self.status


def linked_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, linked: Linked, arguments: str, *, main: int
) -> Launch:
    """The current stream is 55, ``main`` that of the device."""
    cupy = pytest.importorskip("cupy")
    compiled = SimpleNamespace(cubin=tmp_path / "mine.so")
    monkeypatch.setattr(CudaFile, "compile", lambda *_: compiled)
    monkeypatch.setattr(driver, "share", lambda: None)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace(rooflab_launch=linked))
    monkeypatch.setattr(cupy.cuda, "get_current_stream", lambda: SimpleNamespace(ptr=55))
    facts, stream = {"compute_capability": "9.0"}, SimpleNamespace(ptr=main)
    device = cast(Device, SimpleNamespace(id="cuda:0", fact=facts.get, stream=stream))
    arrays = {
        name: SimpleNamespace(data=SimpleNamespace(ptr=at)) for at, name in enumerate("abc", 7)
    }
    operands = Operands(gemm(8, 16, 32), arrays, {})
    return read(tmp_path, f"arguments = {arguments}").prepare(device, operands)


@pytest.mark.parametrize("status", [0, 1])
def test_a_launch_is_a_call_on_the_current_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    linked, arguments = Linked(status), '["m", "a", "b", "c", "stream"]'
    launch = linked_launch(tmp_path, monkeypatch, linked, arguments, main=1)
    assert not linked.calls
    if status:
        with pytest.raises(KernelError, match=r"mine\.cu: run returned 1: cudaErrorInvalidValue"):
            launch()
    else:
        launch()
    assert linked.calls == [(8, 7, 8, 9, 55)]
    assert linked.argtypes == [ctypes.c_longlong, *[ctypes.c_void_p] * 4]


@pytest.mark.parametrize("main", [55, 1])
def test_without_a_stream_it_is_on_that_of_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, main: int
) -> None:
    linked, arguments = Linked(0), '["m", "a", "b", "c"]'
    launch = linked_launch(tmp_path, monkeypatch, linked, arguments, main=main)
    if main == 55:
        launch()
    else:
        with pytest.raises(KernelError, match="run takes no stream: without it operands can"):
            launch()
    assert linked.calls == [(8, 7, 8, 9)] * (main == 55)


def test_it_is_loaded_beside_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it need not be linked with it."""
    opened: list[tuple[str, Any]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name, mode=None: opened.append((name, mode)))
    driver.share()
    assert opened == [("libcuda.so.1", ctypes.RTLD_GLOBAL)]
