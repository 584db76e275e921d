"""What docs/architecture.md says of additions is true: each is made in one file, from outside."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import numpy as np
import pytest
from commands import Rooflab, joined, only_run, started
from measured import CPU

import rooflab
from rooflab import figures, files, workloads
from rooflab.errors import UsageError
from rooflab.figures import FIGURES
from rooflab.kernels.cuda_file import kernel as cuda_file
from rooflab.model.measurement import COLUMNS, FLAGS, FOLLOWING
from rooflab.model.precision import PRECISIONS
from rooflab.runs.table import frame

OWN = Path(__file__).parent.parent / "data" / "own"


@pytest.fixture(autouse=True)
def own_files(elsewhere: Path) -> Iterator[None]:
    for path in OWN.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere)
    tables: list[dict[str, Any]] = [PRECISIONS, FIGURES, COLUMNS, FLAGS, FOLLOWING]
    known = [set(one) for one in tables]
    yield
    for one, names in zip(tables, known, strict=True):
        for name in one.keys() - names:
            del one[name]


WORKLOAD = """
from dataclasses import dataclass
from typing import ClassVar

from rooflab.workloads.elementwise import Elementwise


@dataclass(frozen=True, kw_only=True)
class Negation(Elementwise):
    workload: ClassVar = "negation"
    title: ClassVar = "negated array"
    formula: ClassVar = "C = -A"
    work: ClassVar = "elements"
    names: ClassVar = ("a", "c")

    @property
    def flops(self):
        return self.elements

    @property
    def tolerance(self):
        return 0.0

    def reference(self, arrays, inputs):
        return {"c": -inputs["a"]}
"""


def test_a_workload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file of the package. ``test_own_workload`` has one from outside."""
    (tmp_path / "negation.py").write_text(WORKLOAD)
    monkeypatch.setattr(workloads, "__path__", [*workloads.__path__, str(tmp_path)])
    found = {kind.workload for kind in workloads.builtin()}
    monkeypatch.delitem(sys.modules, "rooflab.workloads.negation")
    assert found == {*workloads.catalogue(), "negation"}


def test_a_cuda_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One file in the folder of its workload, called without the number of its rung."""
    header = 'workload = "add"\nentry = "f"\nprecisions = ["fp32"]\nblock = [32]\ntile = [32]'
    file = tmp_path / "kernels" / "add" / "07_mine.cu"
    file.parent.mkdir(parents=True)
    file.write_text(f"/*\n{header}\n*/")
    for module in (files, cuda_file):
        monkeypatch.setattr(module, "kernels_dir", lambda: tmp_path / "kernels")
    (kernel,) = cuda_file.shipped_kernels()
    assert kernel.id == "add/mine"


def test_a_precision(rooflab: Rooflab) -> None:
    """One entry: it is swept, verified, named by its title, written and read."""
    code, out, err = rooflab("sweep", "add", "-k", "half.py", "-p", "fp16_sum16", "--sizes", "2^12")
    assert code == 0, err
    assert "add FP16 in FP16" in out
    (row,) = only_run().measurements
    assert (row.status, row.problem.precision, row.bytes) == ("ok", "fp16_sum16", 3 * 2 * 4096)


SWEEP = ("sweep", "add", "-k", "fast", "-p", "fp32", "--sizes", "1000")


def test_a_column(rooflab: Rooflab) -> None:
    """One function: it is written, read, exported and in the table for pandas."""
    code, _, err = rooflab(*SWEEP, "-k", "rounds.py")
    assert code == 0, err
    run = only_run()
    (row,) = run.measurements
    assert row.rounds
    assert row.own["flop_per_round"] == 1000 / row.rounds
    assert frame(run.measurements, run.manifest).flop_per_round.tolist() == [1000 / row.rounds]
    assert f'"flop_per_round": {1000 / row.rounds}' in rooflab("export", "--format", "json")[1]
    # Who lacks the file reads the other columns.
    del COLUMNS["flop_per_round"]
    (same,) = only_run().measurements
    assert (same.time_us, same.own) == (row.time_us, {})


def test_a_flag(rooflab: Rooflab) -> None:
    """One function: rows have it, and it is explained wherever flags are."""
    code, _, err = rooflab(*SWEEP, "-k", "errorless.py")
    assert code == 0, err
    (row,) = only_run().measurements
    assert "errorless" in row.flag_names
    assert "errorless (1 of 1 rows): its result has no error at all" in err


def test_a_counter(rooflab: Rooflab) -> None:
    """One line: it is measured with the others, in a pass after timing; columns may follow."""
    counting = ("-k", "instructions.py", "--device", "fake:Counting")
    code, _, err = rooflab(*SWEEP, *counting, "--counters")
    assert code == 0, err
    (row,) = only_run().measurements
    assert row.own["warp_instructions"] == 32
    assert row.own["bytes_per_instruction"] == 12000 / 32


def test_a_counter_of_a_run_that_was_not_counted(rooflab: Rooflab) -> None:
    counting = ("-k", "instructions.py", "--device", "fake:Counting")
    assert rooflab(*SWEEP, *counting)[0] == 0
    (row,) = only_run().measurements
    assert row.own == {}
    code, _, err = rooflab("counters", only_run().path, *counting)
    assert code == 0, err
    (row,) = only_run().measurements
    assert (row.own["warp_instructions"], row.own["bytes_per_instruction"]) == (32, 12000 / 32)


FAILING = """
import rooflab

@rooflab.column("broken", "fails")
def broken(row):
    return row.time_us / 0

@rooflab.column("fast", "a number too")
def fast(row):
    return row.time_us > 0

@rooflab.column("words", "no number")
def words(row):
    return "many"

@rooflab.flag("fails too")
def odd(row):
    raise ValueError("no")
"""


def test_a_column_or_a_flag_that_fails_costs_no_row(rooflab: Rooflab) -> None:
    Path("failing.py").write_text(FAILING)
    code, _, err = rooflab(*SWEEP, "-k", "failing.py")
    assert code == 0, err
    (row,) = only_run().measurements
    assert (row.status, row.own) == ("ok", {"fast": 1.0})
    assert row.flag_names[-1] == "own_failed"
    told = (
        "own_failed (1 of 1 rows): a column or flag of your own failed: broken: ZeroDivisionError"
    )
    assert told in joined(err)


@pytest.mark.parametrize("name", ["time_us", "size"])
def test_a_column_that_is_there_is_refused(rooflab: Rooflab, name: str) -> None:
    text = (OWN / "rounds.py").read_text().replace("flop_per_round", name)
    Path("taken.py").write_text(text)
    code, _, err = rooflab(*SWEEP, "-k", "taken.py")
    assert code == 2
    assert f"there is a column '{name}': choose another name" in err


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


def test_a_figure() -> None:
    """One file: it is drawn by its option, and in the folder of a run that it suits."""
    kind = run_path("share.py")["KIND"]
    run = rooflab.load(CPU)
    drawn = run.plot("share.svg", share=True)
    (axes,) = drawn.axes
    assert axes.get_title(loc="left") == "FP32"
    assert axes.get_ylabel() == "% of roof"
    drawn_percent = [y for line in axes.lines for y in np.asarray(line.get_ydata())]
    assert {round(y, 2) for y in drawn_percent} >= {
        round(row.roof_percent, 2) for row in run.ok if row.roof_percent
    }
    assert Path("share.svg").read_text().startswith("<?xml")
    assert kind.suits(run)
    with pytest.raises(UsageError, match="there is a figure 'share' already"):
        figures.register(kind)
