"""The command ``rooflab report``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflab.cli import app, console
from rooflab.cli.options import RESULTS

if TYPE_CHECKING:
    from collections.abc import Sequence


@app.command()
def report(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...",
            help="Run folders, or the folder of one fleet; default: the newest run in results/.",
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="HTML file.")] = Path("report.html"),
    threshold: Annotated[
        float | None,
        typer.Option(
            min=0.0,
            max=100.0,
            help="Of a fleet: ignore smaller differences, in %.",
            show_default="1",
        ),
    ] = None,
) -> None:
    """Write runs, or a fleet, as one HTML page that needs no network: figures, verdicts, rows."""
    from rooflab.errors import UsageError
    from rooflab.runs.store import is_fleet

    if out.suffix.lower() not in ("", ".html", ".htm"):
        raise UsageError(f"a report is an HTML file: --out {out.stem[:80]}.html")
    given = paths or []
    fleets = [path for path in given if is_fleet(path)]
    if fleets:
        _fleet(fleets, given, out, threshold)
    else:
        _runs(given, out, threshold)
    console.note(str(out))


def _runs(paths: Sequence[Path], out: Path, threshold: float | None) -> None:
    from rooflab.errors import UsageError
    from rooflab.report.html import page
    from rooflab.runs import store

    if threshold is not None:
        raise UsageError("--threshold is for fleets; for two runs: rooflab compare --threshold")
    runs = [store.load(path) for path in paths or [store.newest(RESULTS)]]
    for warning in (warning for run in runs for warning in run.warnings):
        console.warn(warning)
    page.write(runs, out)


def _fleet(
    fleets: Sequence[Path], paths: Sequence[Path], out: Path, threshold: float | None
) -> None:
    """The page of one fleet; raises ``UsageError`` if there is anything else."""
    from rooflab import api
    from rooflab.errors import UsageError

    if len(paths) > 1:
        raise UsageError(
            f"{str(fleets[0])[:200]} is a fleet and has a page of its own: report it alone"
        )
    given = {} if threshold is None else {"threshold_percent": threshold}
    api.report_fleet(fleets[0], out, **given)
