"""The commands of docs/llm.md run, and the first prints what the page says."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import Rooflab, joined
from documents import ROOT, commands, example

PAGE = "docs/llm.md"


def test_every_command_runs_and_prints_what_the_page_says(
    rooflab: Rooflab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").symlink_to(ROOT / "results")
    printed = []
    for words in commands(PAGE):
        code, out, err = rooflab(*words)
        assert code == 0, err
        printed.append(joined(out))
    assert len(printed) == 5
    assert (tmp_path / "tokens.png").exists()
    for line in example(PAGE, "text").splitlines():
        assert joined(line) in printed[0]
