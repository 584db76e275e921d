"""The examples of docs/bench.md, run in order as one script, and its test by pytest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "bench.md"

# Roofs are measured in a moment.
SMALL_CACHE = """
from rooflab.devices.cpu.device import CpuDevice
CpuDevice.last_level_cache_bytes = lambda device: 2**20
"""


def python(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_every_example_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    assert len(blocks) == 7
    Path("page.py").write_text("\n".join(blocks), encoding="utf-8")
    ended = python("page.py")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert Path("sizes.png").is_file()
    assert "% of its roof (compute)" in ended.stdout
    assert "times as fast as einsum" in ended.stdout
    assert "16000000 stated FLOPs, stated bytes" in ended.stdout

    # What it is imported for, and what that needs: each import of the whole page takes ten seconds.
    needed = re.sub(r"^print.*\n", "", blocks[0], flags=re.M)
    Path("page.py").write_text("\n".join([SMALL_CACHE, needed, *blocks[5:]]), encoding="utf-8")
    ended = python("-m", "pytest", "page.py", "--roofline-save", "base", "-p", "no:cacheprovider")
    assert ended.returncode == 0, ended.stdout[-2000:]
    assert "test_matmul 200x200,200x200 fp64" in ended.stdout
    ended = python("-m", "rooflab", "bench", "page.py:product", "--json", "rows.json")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "einsum" in ended.stdout
