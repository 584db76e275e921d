"""Arguments that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

RESULTS: Final = Path("results")

RunPath = Annotated[
    Path | None,
    typer.Argument(metavar="[RUN]", help="Run folder; default: the newest in results/."),
]
OutFile = Annotated[str, typer.Option("--out", "-o", help="Output file; - is stdout.")]
