"""What docs/architecture.md says of additions is true: each is made in one file, from outside."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import Rooflab, only_run

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
