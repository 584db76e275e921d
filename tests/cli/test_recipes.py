"""What docs/architecture.md says of additions is true: each is made in one file, from outside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
from commands import Rooflab, only_run
from measured import CPU

import rooflab
from rooflab import figures
from rooflab.errors import UsageError
from rooflab.figures import FIGURES
from rooflab.model.precision import PRECISIONS

OWN = Path(__file__).parent.parent / "data" / "own"


@pytest.fixture(autouse=True)
def files(elsewhere: Path) -> Iterator[None]:
    for path in OWN.iterdir():
        if path.is_file():
            shutil.copy(path, elsewhere)
    tables: list[dict[str, Any]] = [PRECISIONS, FIGURES]
    known = [dict(table) for table in tables]
    yield
    for table, before in zip(tables, known, strict=True):
        for name in table.keys() - before.keys():
            del table[name]


def test_a_precision(rooflab: Rooflab) -> None:
    """One entry: it is swept, verified, named by its title, written and read."""
    code, out, err = rooflab("sweep", "add", "-k", "half.py", "-p", "fp16_sum16", "--sizes", "2^12")
    assert code == 0, err
    assert "add FP16 in FP16" in out
    (row,) = only_run().measurements
    assert (row.status, row.problem.precision, row.bytes) == ("ok", "fp16_sum16", 3 * 2 * 4096)


def test_a_figure() -> None:
    """One file: it is drawn by its option, and in the folder of a run that it suits."""
    kind = run_path("share.py")["KIND"]
    run = rooflab.load(CPU)
    drawn = run.plot("share.svg", share=True)
    (axes,) = drawn.axes
    assert axes.get_title(loc="left") == "FP32"
    assert axes.get_ylabel() == "% of roof"
    assert {round(y, 2) for line in axes.lines for y in line.get_ydata()} >= {
        round(row.roof_percent, 2) for row in run.ok if row.roof_percent
    }
    assert Path("share.svg").read_text().startswith("<?xml")
    assert kind.suits(run)
    with pytest.raises(UsageError, match="there is a figure 'share' already"):
        figures.register(kind)
