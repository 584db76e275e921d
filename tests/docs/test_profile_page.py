"""The sessions of docs/profile.md are what the commands print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rooflab.cli import main

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "profile.md").read_text(encoding="utf-8")
SESSIONS = re.findall(r"^```sh\nrooflab ([^\n]*)\n```\n\n```text\n(.*?)^```", TEXT, re.M | re.S)
TRACE = "examples/programs/train_step.json.gz"


def test_there_are_sessions() -> None:
    assert [words.split()[0] for words, _ in SESSIONS] == ["show", "compare"]


@pytest.mark.parametrize(("words", "block"), SESSIONS, ids=[words for words, _ in SESSIONS])
def test_a_session_is_what_the_command_prints(
    words: str, block: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """All of it, or its begin if the block ends with an ellipsis."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "96")
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    assert ended.value.code == 0
    printed = [line.rstrip() for line in capfd.readouterr().out.splitlines() if line.strip()]
    shown = [line.rstrip() for line in block.splitlines() if line.strip()]
    if shown[-1] == "…":
        shown.pop()
        printed = printed[: len(shown)]
    assert printed == shown and len(shown) > 5


def test_a_trace_with_the_roofs_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (words,) = re.findall(rf"^rooflab (profile --roofs \S+ {re.escape(TRACE)})", TEXT, re.M)
    monkeypatch.chdir(ROOT)
    name, *rest = words.split()
    with pytest.raises(SystemExit) as ended:
        main([name, "--out", str(tmp_path / "run"), *rest])
    assert ended.value.code == 0
    printed = capfd.readouterr().err
    assert "One step takes 28.6 ms" in printed and str(tmp_path / "run") in printed
