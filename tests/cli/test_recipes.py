"""What docs/architecture.md says of additions is true: each is made in one file, from outside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Rooflab, joined, only_run, started

from rooflab.model.precision import PRECISIONS

OWN = Path(__file__).parent.parent / "data" / "own"


@pytest.fixture(autouse=True)
def files(elsewhere: Path) -> Iterator[None]:
    for path in OWN.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere)
    known = dict(PRECISIONS)
    yield
    for name in PRECISIONS.keys() - known.keys():
        del PRECISIONS[name]


def test_a_precision(rooflab: Rooflab) -> None:
    """One entry: it is swept, verified, named by its title, written and read."""
    code, out, err = rooflab("sweep", "add", "-k", "half.py", "-p", "fp16_sum16", "--sizes", "2^12")
    assert code == 0, err
    assert "add FP16 in FP16" in out
    (row,) = only_run().measurements
    assert (row.status, row.problem.precision, row.bytes) == ("ok", "fp16_sum16", 3 * 2 * 4096)


SECTIONS = """
workload = "add"
kernels = "adder"
precisions = ["fp32"]
timing.max_rounds = 8

[chip]
sizes = [4096]

[cuda]
sizes = [8192]
"""


def finished(*arguments: str) -> tuple[int, str, str]:
    """The exit code of a process, and what it printed."""
    with started(*arguments) as process:
        out, err = process.communicate()
        return process.returncode, out, err


@pytest.mark.processes
def test_a_device_kind(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of an installed package: swept by its name, with its section, costs and words."""
    info = elsewhere / "chip-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chip\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[rooflab.devices]\nchip = chip:Chip\n[rooflab.kernels]\nchip = chip\n"
    )
    (elsewhere / "sections.toml").write_text(SECTIONS)
    monkeypatch.syspath_prepend(elsewhere)
    sweep = ("sweep", "--config", "sections.toml", "--device", "chip")
    code, _, err = finished(*sweep)
    assert code == 0, err
    run = only_run()
    (row,) = run.measurements
    assert (row.status, row.kernel, row.problem.size) == ("ok", "adder", "4096")
    assert (row.time_us, row.roof_percent) == pytest.approx((1000, 49.152))
    assert (run.manifest.device.kind, run.manifest.device.name) == ("chip", "Chip 1")
    assert "about 2.0 h" in finished(*sweep, "--dry-run")[1]
    assert "Chip 1 (chip)" in finished("devices", "chip")[1]
    code, _, err = finished("sweep", "add", "-k", "adder", "--device", "cpu")
    assert (code, "kernel 'adder' needs a chip; on cpu" in joined(err)) == (2, True)
