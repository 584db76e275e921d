"""The command ``rooflab report``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflab.cli import app, console
from rooflab.cli.options import RESULTS


@app.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Run folders; default: the newest in results/."),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file.")] = Path("report.html"),
) -> None:
    """Write runs as one HTML page: figures, diagnosis, all rows; it needs no network."""
    from rooflab.report.html import page
    from rooflab.runs import store

    runs = [store.load(path) for path in paths or [store.newest(RESULTS)]]
    for warning in (warning for run in runs for warning in run.warnings):
        console.warn(warning)
    page.write(runs, out)
    console.note(str(out))
