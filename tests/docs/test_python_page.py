"""The examples of docs/python.md, run in order as one script."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
TESTS = Path(__file__).resolve().parents[1]


def quick(block: str) -> str:
    """The same on the CPU with given roofs: to measure them takes long, and other pages do."""
    return re.sub(r'^(?!@)(.*\bdevices?=)"cpu"', r'\1"cheats.quick:Quick"', block, flags=re.M)


@pytest.mark.slow
def test_every_example_runs() -> None:
    """In a plain script without a main guard, as a user would paste them."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) >= 6
    script = Path("page.py")
    script.write_text("\n".join(map(quick, blocks)), encoding="utf-8")
    assert script.read_text().count("cheats.quick") == 6
    ended = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{TESTS.parent}{os.pathsep}{TESTS}"},
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert Path("roofline.svg").is_file()
    assert "numpy 1000 ok" in ended.stdout
