"""What commands print on committed runs, as one SVG that loads nothing."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

from rich.console import Console
from rich.text import Text

from rooflab.cli import console, main

COLUMNS: Final = 100

FONT: Final = re.compile(r"\s*@font-face \{.*?\n\s*\}", re.DOTALL)
"""Rich's template asks a server for its type."""

FAMILY: Final = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


class Terminal(Console):
    """Lines that are too long continue on the next one, as on a terminal."""

    def print(self, *objects: Any, **options: Any) -> None:
        super().print(*objects, **options | {"soft_wrap": False})


def recording(commands: Sequence[Sequence[str]], root: Path) -> str:
    """The commands and their output, run in ``root``."""
    recorded = Terminal(
        record=True,
        width=COLUMNS,
        file=io.StringIO(),
        force_terminal=True,
        legacy_windows=False,
        color_system="truecolor",
        highlight=False,
        emoji=False,
        no_color=False,
        _environ={"TERM": "xterm-256color"},
    )
    with chdir(root), patch.object(console, "_console", lambda stderr: recorded):
        for words in commands:
            recorded.print(Text.assemble(("$ ", "green"), (" ".join(words), "bold")))
            _run(words)
    return _alone(recorded.export_svg(title="rooflab", unique_id="terminal"))


def _run(words: Sequence[str]) -> None:
    """Run one command line; all of its output goes to the console."""
    rest = io.StringIO()
    try:
        with redirect_stdout(rest), redirect_stderr(rest):
            main(list(words[1:]))
    except SystemExit as ended:
        if ended.code:
            raise RuntimeError(f"{' '.join(words)}: exit code {ended.code}") from ended
    if rest.getvalue():
        raise RuntimeError(f"{' '.join(words)} printed outside of the console")


def _alone(svg: str) -> str:
    """Without fonts of other servers, and without blanks at the ends of lines."""
    plain = FONT.sub("", svg).replace("Fira Code, monospace", FAMILY)
    return "\n".join(line.rstrip() for line in plain.splitlines()) + "\n"
