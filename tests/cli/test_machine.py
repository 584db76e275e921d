"""kernels, devices, doctor, --help, --version."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import fake  # noqa: F401  registers kernels
import pytest

from rooflab import __version__

Rooflab = Callable[..., tuple[int, str, str]]


def test_kernels(rooflab: Rooflab) -> None:
    code, out, _ = rooflab("kernels")
    assert code == 0
    assert out.splitlines()[0].split() == ["kernel", "on", "precisions", "what", "it", "is"]
    assert " fast " in out
    assert "80% of the roof" in out
    assert out.endswith("✗ absent (exact): nobody has it: pip install it")


def test_kernels_by_glob(rooflab: Rooflab) -> None:
    _, out, _ = rooflab("kernels", "s*")
    assert "slow" in out
    assert "fast" not in out
    code, _, err = rooflab("kernels", "q*")
    assert code == 2
    assert err == "error: no kernel matches 'q*' (list: rooflab kernels)"


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


def test_version(rooflab: Rooflab) -> None:
    assert rooflab("--version") == (0, f"rooflab {__version__}", "")


def test_unknown_commands_and_options_exit_2(rooflab: Rooflab) -> None:
    assert rooflab("sweeep")[0] == 2
    assert rooflab("sweep", "--kernels", "x")[0] == 2


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
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == ""
    assert "rooflab" in done.stdout
