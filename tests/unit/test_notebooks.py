"""What a notebook shows of the results: one line, a picture, or a table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from measured import COUNTED, CPU, FLEET

import rooflab
from rooflab import api
from rooflab.runs import store


def test_results_are_shown_in_a_line() -> None:
    run = rooflab.load(COUNTED)
    shown = {
        repr(run): f"<rooflab.Run {COUNTED} on NVIDIA H200: ",
        repr(store.load(COUNTED)): f"<rooflab.Run {COUNTED} on NVIDIA H200: ",
        repr(run.explain()): f"<rooflab.Explanations of {len(run.explain())} rows: print() shows",
        repr(run.compare(run)): f"<rooflab.Comparison of {COUNTED} and {COUNTED}: ",
        repr(api.load_fleet(FLEET)): "<rooflab.Fleet ",
    }
    for text, start in shown.items():
        assert text.startswith(start)
        assert "\n" not in text
        assert len(text) < 400
    races = rooflab.load(CPU).compare(run)
    assert repr(races) == str(races)


def test_figures_are_pictures_without_magic() -> None:
    figure: Any = rooflab.load(COUNTED).plot()
    assert figure._repr_png_().startswith(b"\x89PNG")


CELL = """
import rooflab
from rooflab.errors import UsageError
for _ in range(2):  # a cell is run again and again
    @rooflab.kernel(workload="add", device="cpu", precisions=["fp32"])
    def mine(operands, stream):
        return lambda: None
try:
    rooflab.sweep("add", kernels=["mine", "numpy"], sizes=[64], device="cpu")
except UsageError as error:
    print(error)
"""


def test_a_kernel_in_a_cell_says_at_once_what_to_do(elsewhere: Path) -> None:
    script = elsewhere / "script.py"
    script.write_text(CELL)
    for arguments in (["-c", CELL], [str(script)]):
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
        assert done.stdout.startswith("kernel mine cannot run here: the process that measures")
        assert "%%writefile mine.py" in done.stdout
        assert done.stderr == ""
    assert not Path("results").exists()
