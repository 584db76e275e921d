"""kernels, devices, doctor, --help, --version."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import fake
import pytest
from commands import Rooflab, joined, started

from rooflab import __version__
from rooflab.workloads import catalogue


def test_kernels(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("kernels")
    assert code == 0
    title, _, heading, *_ = out.splitlines()
    assert title in catalogue()
    assert heading.split() == ["kernel", "on", "precisions", "what", "it", "is"]
    assert " fast " in out
    assert "80% of the roof" in out
    assert "absent ✗" in out
    assert "✗ absent (exact): nobody has it: pip install it" in out.splitlines()


def test_kernels_by_glob(rooflab: Rooflab) -> None:
    _, out, _ = rooflab("kernels", "sl*")
    assert " slow " in out
    assert " fast " not in out
    code, _, err = rooflab("kernels", "zz*")
    assert code == 2
    assert err == "error: no kernel matches 'zz*' (list: rooflab kernels)"


def test_kernels_of_one_workload(rooflab: Rooflab) -> None:
    _, out, _ = rooflab("kernels", "-w", "add")
    assert out.splitlines()[0] == "add"
    assert " slow " not in out
    code, _, err = rooflab("kernels", "-w", "addd")
    assert code == 2
    assert err == "error: no workload 'addd': did you mean add? (list: rooflab workloads)"


def test_the_kernels_of_a_workload_that_is_named_in_place_of_one(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("kernels", "gemm")
    assert (code, out.splitlines()[0]) == (0, "gemm")
    assert out == rooflab("kernels", "-w", "gemm")[1]


def test_what_a_kernel_teaches_and_where_it_stands(rooflab: Rooflab) -> None:
    _, short, _ = rooflab("kernels", "tiled", "-w", "gemm")
    _, long, _ = rooflab("kernels", "tiled", "-w", "gemm", "--verbose")
    assert "03_tiled.cu" not in short
    assert "03_tiled.cu" in long.replace("\n", "").replace(" ", "")
    assert len(long.split()) > len(short.split()) + 5


def test_workloads(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("workloads")
    assert code == 0
    lines = out.splitlines()
    names = [line.split(":")[0] for line in lines if not line.startswith(" ")]
    assert names[:8] == ["gemm", "gemv", "add", "copy", "triad", "sum", "softmax", "rmsnorm"]
    assert names[8:12] == ["layernorm", "cross_entropy", "swiglu", "rope"]
    assert names[12:17] == ["attention", "grouped_gemm", "w4a16", "block_gemm", "adamw"]
    assert names[17:19] == ["rmsnorm_backward", "layernorm_backward"]
    assert names[19:21] == ["cross_entropy_backward", "attention_backward"]
    assert names[21:23] == ["embedding", "quantize"]
    assert names[23:27] == ["route", "sort_experts", "combine", "linear"]
    assert names[27:31] == ["blur", "fft", "spectrum", "filter"]
    entry = "(long long rows, long long columns, const Input* x, const int* targets, Output* y)"
    assert f"    a .cu file's entry: {entry}" in lines
    assert any("const Input* w, const Accumulate* rstd, Output* dx" in line for line in lines)
    assert any("float* scales, __nv_fp8_e4m3* q)" in line for line in lines)
    assert "gemm: matrix product: C = alpha·op(A)·op(B) + beta·C" in lines
    operands = "a (batch, m, k); b (batch, k, n); c (batch, m, n), out"
    assert f"    FLOPs 2·M·N·K·batch; operands {operands}" in lines
    operands = "x (m, k); w (n, k/2); scales (n, k/128); y (m, n), out"
    assert f"    FLOPs 2·M·N·K; operands {operands}" in lines
    assert any("operands x (gpus, elements); y (gpus, elements·gpus), out" in one for one in lines)
    assert "    m [--sizes]: rows of C" in lines
    triad = "(long long elements, Accumulate alpha, const Input* a, const Input* b, Output* c)"
    assert f"    a .cu file's entry: {triad}" in lines
    assert "    alpha: factor of the product, 1.0 by default" in lines
    assert lines[-2].endswith('types of the precision: #include "types.cuh".')
    assert lines[-1].startswith("Bytes are compulsory")


def test_some_workloads(rooflab: Rooflab) -> None:
    for names in (["gemm"], ["gemm", "add"]):
        code, out, _ = rooflab("workloads", *names)
        assert code == 0
        assert [line.split(":")[0] for line in out.splitlines() if line[0] not in " IB"] == names
    code, _, err = rooflab("workloads", "gem")
    assert (code, err.startswith("error: no workload 'gem': did you mean ")) == (2, True)


def test_devices(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("devices", "fake:FakeDevice")
    assert code == 0
    assert (
        out
        == """\
Exact 1000 (fake:FakeDevice)
facts

  fact        value   source, or why it is missing
 ──────────────────────────────────────────────────
  threads     2       the test
  max clock   –       an exact device has no clock

ceilings

  ceiling         value   from       formula
 ──────────────────────────────────────────────
  DRAM         0.1 GB/s   measured   given
  fp32        1 GFLOP/s   measured   given
  fp64      0.5 GFLOP/s   measured   given [1]

[1] half of it"""
    )


def test_devices_as_json(rooflab: Rooflab) -> None:
    _, out, _ = rooflab("devices", "fake:FakeDevice", "--json")
    (device,) = json.loads(out)
    assert device["id"] == "fake:FakeDevice"
    assert device["facts"]["threads"]["value"] == 2
    assert device["ceilings"][1]["value"] == 1e9


def test_doctor(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("doctor")
    assert code == 0
    assert f"✓ rooflab: {__version__}" in out
    assert "✓ CUDA kernel files: " in out
    assert "CUDA device" in out
    assert "✓ CPU kernels: " in out
    assert out.count("PyTorch is not installed: ") <= 1  # whatever the number of its kernels


def test_doctor_where_even_looking_is_forbidden(
    rooflab: Rooflab, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exists = Path.exists

    def guarded(path: Path) -> bool:
        if path.name == "closed":
            raise PermissionError(13, "Permission denied")
        return exists(path)

    monkeypatch.setattr(Path, "exists", guarded)
    monkeypatch.setenv("ROOFLAB_CACHE_DIR", str(elsewhere / "closed"))
    code, out, _ = rooflab("doctor")
    assert code == 0
    assert "compiled kernels: " in out


def test_version(rooflab: Rooflab) -> None:
    assert rooflab("--version") == (0, f"rooflab {__version__}", "")


@pytest.mark.parametrize(
    ("device", "says"),
    [
        ("gpu", "unknown device 'gpu': type auto, cpu, cuda or cuda:N (list: rooflab devices)"),
        ("nowhere:Device", "no device nowhere:Device: No module named 'nowhere'"),
        ("fake:Nobody", "no device fake:Nobody: module 'fake' has no attribute 'Nobody'"),
        ("os:abort", "os:abort is not a rooflab.devices.base.Device"),
        ("raising:Device", "no device raising:Device: ValueError: on import"),
        ("leaving:Device", "no device leaving:Device: SystemExit: 0"),
        ("unready:Device", "no device unready:Device: RuntimeError: on opening"),
    ],
)
def test_a_device_that_is_none_is_one_line(
    rooflab: Rooflab,
    elsewhere: Path,
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    says: str,
) -> None:
    Path("raising.py").write_text("raise ValueError('on import')")
    Path("leaving.py").write_text("raise SystemExit(0)")
    Path("unready.py").write_text(
        "import fake\n"
        "class Device(fake.FakeDevice):\n"
        "    def __init__(self):\n"
        "        raise RuntimeError('on opening')\n"
    )
    monkeypatch.syspath_prepend(elsewhere)
    for arguments in (("devices", device), ("sweep", "--device", device)):
        assert rooflab(*arguments) == (2, "", f"error: {says}")


def test_unknown_commands_and_options_exit_2(rooflab: Rooflab) -> None:
    code, _, err = rooflab("sweeep")
    assert (code, joined(err)) == (
        2,
        "error: No such command 'sweeep'. Did you mean 'sweep'? (see: rooflab --help)",
    )
    code, _, err = rooflab("sweep", "--kernels", "x")
    assert code == 2
    assert "No such option: --kernels" in err


HEAVY = ("cupy", "matplotlib", "numba", "numpy", "pandas", "pynvml")


@pytest.mark.parametrize("arguments", [["--help"], ["sweep", "--help"], ["--version"]])
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    script = (
        "import sys, atexit\n"
        f"atexit.register(lambda: print(*[m for m in {HEAVY} if m in sys.modules],"
        " file=sys.stderr))\n"
        "from rooflab.cli import main\n"
        "main(sys.argv[1:])"
    )
    with started(*arguments, command=[sys.executable, "-c", script]) as process:
        out, err = process.communicate()
    assert (process.returncode, err.strip()) == (0, "")
    assert "rooflab" in out


def test_links_between_all_devices(rooflab: Rooflab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(fake.__file__).parent))
    code, out, err = rooflab("devices", "fake:Grouped", "--links")
    assert code == 0, err
    assert "GB/s, measured, one way, from rows to columns" in out
    assert out.count("0.0300") == 4 * 3
    assert err.count("no active NVLink") == 1
    code, out, _ = rooflab("devices", "fake:Grouped", "--links", "--json")
    assert len(json.loads(out)) == 4 * 3
    code, _, err = rooflab("devices", "fake:FakeDevice", "--links")
    assert (code, err) == (
        2,
        "error: Exact 1000 is the only one here: there are no links to measure",
    )
