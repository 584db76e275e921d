"""The commands of the pages for beginners, in order, in one folder: what can run without a GPU."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import EXACT, Rooflab, joined
from measured import LADDER

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(
    r"(?:as\s+`(?P<file>[\w.]+)`:\n\n)?^```(?P<kind>\w+)\n(?P<body>.*?)^```", re.M | re.S
)
COMMAND = re.compile(r"(?P<words>rooflab .*?)(?:\s+#\s*(?P<note>.*))?$")
NVRTC = re.compile(r"NVRTC [\d.]+")


@pytest.mark.slow  # two sweeps of the CPU, each of which measures its roofs
@pytest.mark.pictures
@pytest.mark.parametrize("page", ["start", "tutorial"])
def test_every_command_does_what_the_page_says(rooflab: Rooflab, page: str) -> None:
    checked = 0
    said = ""
    for block in BLOCK.finditer((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")):
        if block["file"]:
            Path(block["file"]).write_text(block["body"], encoding="utf-8")
        elif block["kind"] == "text":
            if (compiler := NVRTC.search(said)) and compiler[0] not in block["body"]:
                continue  # another version may use other registers
            for line in block["body"].splitlines():
                assert joined(line) in said, f"not printed: {line}"
        elif block["kind"] == "sh":
            for words, note in commands(block["body"]):
                said = run(rooflab, words, note)
                checked += 1
    assert checked >= 5


def commands(body: str) -> Iterator[tuple[list[str], str]]:
    for line in body.splitlines():
        if found := COMMAND.match(line):
            yield shlex.split(found["words"])[1:], found["note"] or ""


def run(rooflab: Rooflab, words: list[str], note: str) -> str:
    """Run a command; returns what it prints, with single blanks."""
    if note == "needs a GPU":
        # It asks for nothing but a GPU; a measured run then stands for its result.
        code, out, err = rooflab(*words, *EXACT)
        assert (code, out) == (2, "")
        assert "needs an NVIDIA GPU (see: rooflab doctor)" in err
        parent = Path(words[words.index("--out") + 1])
        shutil.copytree(LADDER, parent / LADDER.name)
        return ""
    if words[0] == "check":
        words = [*words, "--compiler", "nvrtc"]  # as on the page, whatever else is installed
    expanded = [name for word in words for name in sorted(map(str, Path().glob(word))) or [word]]
    code, out, err = rooflab(*expanded)
    expected = int(note.removeprefix("exit code ")) if note.startswith("exit code") else 0
    # What `doctor` finds, and thus its exit code, depends on the machine.
    assert code == expected or words == ["doctor"], err
    return joined(f"{out}\n{err}")
