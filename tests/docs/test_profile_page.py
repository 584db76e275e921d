"""The session of docs/profile.md is what the command prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rooflab.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "profile.md"


def test_the_session_is_what_the_command_prints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    text = PAGE.read_text(encoding="utf-8")
    (words,) = re.findall(r"^rooflab (profile --roofs .*)$", text, re.M)
    (block,) = re.findall(r"^```text\n(.*?)^```", text, re.M | re.S)
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "96")
    name, *rest = words.split()
    with pytest.raises(SystemExit) as ended:
        main([name, "--out", str(tmp_path / "run"), *rest])
    assert ended.value.code == 0
    *lines, folder = (line.rstrip() for line in capfd.readouterr().err.strip().splitlines())
    assert Path(folder) == tmp_path / "run"
    assert [line for line in lines if line] == [line for line in block.splitlines() if line]
