"""The example of docs/judge.md, and its lists of fields."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "judge.md"


@pytest.mark.slow
def test_the_example_and_the_fields() -> None:
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    Path("mine.py").write_text(block, encoding="utf-8")
    (command,) = re.findall(r"^rooflab (judge .*)$", text, re.M)
    ended = subprocess.run(
        [sys.executable, "-m", "rooflab", *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    whole, problem = re.findall(r"(?:^\| .*\n)+", text, re.M)[:2]
    assert fields(whole) == [*document]
    assert fields(problem) == [*document["problems"][0]]


def fields(table: str) -> list[str]:
    """The names in the first column."""
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
