"""The command ``rooflab explain``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from rooflab.cli import app, console
from rooflab.cli.options import RESULTS
from rooflab.errors import UsageError

SHOWN: Final = 10
"""Explanations that are shown unless ``--all`` is given; each is of one or more rows."""


@app.command()
def explain(
    path: Annotated[
        Path | None,
        typer.Argument(metavar="[RUN]", help="Run folder; default: the newest in results/."),
    ] = None,
    kernel: Annotated[str, typer.Argument(metavar="[KERNEL]", help="Only this kernel.")] = "",
    size: Annotated[str, typer.Argument(metavar="[SIZE]", help="Only this size.")] = "",
    every: Annotated[bool, typer.Option("--all", help="Show every row separately.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Write all rows as JSON.")] = False,
) -> None:
    """Say what holds each kernel back and what to try; the most time to save first."""
    from rooflab.report import explain as report
    from rooflab.runs import store

    if Path(kernel).is_dir() and kernel:
        raise UsageError("explain takes one run: rooflab explain RUN KERNEL SIZE")
    run = store.load(path or store.newest(RESULTS))
    for warning in run.warnings:
        console.warn(warning)
    found = report.explanations(run, kernel, size)
    if as_json:
        sys.stdout.write(report.to_json(found))
        return
    groups = [[one] for one in found] if every else report.alike(found)
    for group in groups if every else groups[:SHOWN]:
        _print([*report.paragraphs(group[0]), *filter(None, [report.others(group)])])
    if rest := 0 if every else sum(map(len, groups[SHOWN:])):
        console.note(f"{rest} more rows: add --all, or name a kernel and a size")


def _print(lines: list[str]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    out = console.out()
    heading, *others = lines
    # A terminal breaks lines between words; other programs get whole lines.
    if out.is_terminal:
        out.print(Text(heading, style="bold"))
        for line in others:
            out.print(Padding(Text(line), (0, 0, 0, 2)))
        out.print()
    else:
        out.print("\n  ".join(lines) + "\n", markup=False, soft_wrap=True)
