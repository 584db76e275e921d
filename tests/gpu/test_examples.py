"""Every example is right on a GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numba_here
import pytest

import rooflab

pytestmark = pytest.mark.gpu

TIMING = {"energy_s": 0, "device_warmup_s": 0, "contexts": 1, "min_rounds": 3, "max_rounds": 3}

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.[cp][uy]")), ids=lambda path: path.stem)
def test_example(path: Path) -> None:
    from rooflab.kernels.sources import load_file

    if path.stem == "numba_cuda" and (reason := numba_here.lacks()):
        pytest.skip(reason)
    for workload in dict.fromkeys(kernel.workload for kernel in load_file(path)):
        shape: dict[str, Any]
        shape = {"shapes": "1000x1023"} if workload in ("softmax", "rmsnorm") else {"sizes": [5000]}
        run = rooflab.sweep(workload, kernels=str(path), timing=TIMING, **shape)
        assert {row.status for row in run.measurements} == {"ok"}, [
            (row.kernel, row.reason) for row in run.measurements
        ]


@pytest.mark.filterwarnings("ignore:.*:DeprecationWarning")  # of PyTorch itself
def test_the_notebook() -> None:
    """Its cells, one after the other."""
    pytest.importorskip("torch")
    cells = json.loads((EXAMPLES / "functions" / "bench.ipynb").read_text())["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    space: dict[str, Any] = {}
    for i, text in enumerate(code):
        exec(compile(text, f"<cell {i}>", "exec"), space)
    assert [row.status for row in space["sizes"].measurements] == ["ok"] * 6
