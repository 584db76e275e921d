"""Code in the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def example(page: str, language: str) -> str:
    """The first block of a language on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page} has no block of {language}"
    return found[1]


def commands(page: str) -> Iterator[list[str]]:
    """The words after ``rooflab`` of each command line on a page."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        for line in block.splitlines():
            if line.startswith("rooflab "):
                yield shlex.split(line, comments=True)[1:]
