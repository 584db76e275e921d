"""compare, of several devices: does it pay to use the GPU, and from which size on?"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from commands import Rooflab

from rooflab import api
from rooflab.runs import store


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run of each test device."""
    out = tmp_path_factory.mktemp("measured")
    shapes = ["8x8x8x40", "64x64x64x40"]
    brief = {
        "warmup_s": 0,
        "warmup_launches": 1,
        "round_samples": 2,
        "max_rounds": 3,
        "min_rounds": 3,
    }
    streamed = {"host": ["none", "pinned", "pageable"], "chunk": [1, 10], "streams": [1, 3]}

    def swept(kernel: str, device: str, **parameters: Any) -> Path:
        parameters |= {"kernels": kernel, "shapes": shapes, "precisions": "fp32"}
        return api.sweep(device=device, out=out, timing=brief, **parameters).path

    return {
        "cpu": swept("slow", "fake:FakeDevice"),
        "gpu": swept("fast", "fake:Streaming", **streamed),
    }


def renamed(folder: Path, to: str, kind: str, name: str, threads: int | None) -> Path:
    """A copy of the run, in ``to``, as if another device had measured it."""
    folder = Path(shutil.copytree(folder, to))
    path = folder / store.MANIFEST
    content = json.loads(path.read_text())
    content["device"] |= {"kind": kind, "name": name}
    content["device"]["facts"]["threads"]["value"] = threads
    path.write_text(json.dumps(content))
    return folder


@pytest.fixture
def cpu(measured: dict[str, Path]) -> Path:
    return renamed(measured["cpu"], "cpu", "cpu", "AMD EPYC", 16)


@pytest.fixture
def gpu(measured: dict[str, Path]) -> Path:
    return renamed(measured["gpu"], "gpu", "cuda", "NVIDIA H200", None)


SENTENCES = """\
gemm FP32, layout nn, batch 40, without transfers: H200 beats EPYC (16 threads) at every size \
measured on both (8x8x8x40 to 64x64x64x40); at 64x64x64x40 it is 4.0 times as fast.
gemm FP32, layout nn, batch 40, with pinned host memory: H200 beats EPYC (16 threads) at every \
size measured on both (8x8x8x40 to 64x64x64x40); at 64x64x64x40 it is 1.5 times as fast.
gemm FP32, layout nn, batch 40, with pageable host memory: H200 beats EPYC (16 threads) at every \
size measured on both (8x8x8x40 to 64x64x64x40); at 64x64x64x40 it is 1.5 times as fast."""


@pytest.mark.slow
def test_a_sentence_for_each_place_of_the_operands(rooflab: Rooflab, cpu: Path, gpu: Path) -> None:
    assert rooflab("compare", cpu, gpu) == (0, SENTENCES, "")


def test_a_file_goes_by_its_suffix(rooflab: Rooflab, cpu: Path, gpu: Path) -> None:
    for name in ("r.txt", "r.md", "r.json"):
        assert rooflab("compare", cpu, gpu, "-o", name) == (0, "", name)
    assert Path("r.txt").read_text() == SENTENCES + "\n"
    assert Path("r.md").read_text().replace("\\", "") == (
        "".join(f"- {line}\n" for line in SENTENCES.splitlines())
    )
    content = json.loads(Path("r.json").read_text())
    assert [race["sentence"] for race in content] == SENTENCES.splitlines()
    assert [race["host"] for race in content] == ["none", "pinned", "pageable"]
    assert rooflab("compare", cpu, gpu, "-o", "r.csv")[0] == 2


def test_a_job_summary_is_the_list_and_junit_is_refused(
    rooflab: Rooflab, cpu: Path, gpu: Path
) -> None:
    lines = [f"- {line}" for line in SENTENCES.splitlines()]
    assert rooflab("compare", cpu, gpu, "-f", "github") == (0, "\n".join(lines), "")
    for words in (["-f", "junit"], ["-o", "x.xml"]):
        code, out, err = rooflab("compare", cpu, gpu, *words)
        assert (code, out) == (2, "")
        assert err == ("error: junit is for two runs of one device: use --format github or json")
    assert not Path("x.xml").exists()


def test_each_number_of_threads_is_a_device(rooflab: Rooflab, cpu: Path, gpu: Path) -> None:
    alone = renamed(cpu, "alone", "cpu", "AMD EPYC", 1)
    code, out, _ = rooflab("compare", alone, cpu, gpu)
    lines = out.splitlines()
    assert (code, len(lines)) == (0, 6)
    assert all("EPYC (1 thread)" in line for line in lines[:3])
    assert lines[3:] == SENTENCES.splitlines()
    # Two runs of one CPU are compared point by point, as ever.
    code, out, _ = rooflab("compare", alone, cpu)
    assert code == 0
    assert out.endswith("2 points in common: 2 SAME.")


def test_options_for_one_device_are_refused(rooflab: Rooflab, cpu: Path, gpu: Path) -> None:
    for words in (["--threshold", "1"], ["--fail-on", "slow"]):
        code, out, err = rooflab("compare", cpu, gpu, *words)
        assert (code, out) == (2, "")
        assert err == "error: --threshold and --fail-on are for two runs of one device"


def test_wrong_runs_get_one_line(rooflab: Rooflab, cpu: Path, gpu: Path) -> None:
    assert rooflab("compare", cpu) == (
        2,
        "",
        "error: compare needs two runs or more: rooflab compare BASE NEW",
    )
    code, _, err = rooflab("compare", cpu, cpu, cpu)
    assert (code, err) == (
        2,
        "error: these runs are of one device: give two runs, or add a run of another device",
    )
    (gpu / store.MEASUREMENTS).write_text(
        (gpu / store.MEASUREMENTS).read_text().replace(",fp32,", ",fp64,")
    )
    code, _, err = rooflab("compare", cpu, gpu)
    assert code == 2
    assert err.endswith(
        "EPYC (16 threads) and H200 have no problem of the same precision in common"
    )
