"""``rooflab bench``: the functions that are marked in a file."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from rooflab.cli import app, console
from rooflab.errors import UsageError


@app.command()
def bench(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py[:NAME]",
            help="Functions that @rooflab.benchmark marks; NAME is one, or a race.",
        ),
    ],
    device: Annotated[
        str | None, typer.Option(help="By default where the arguments are: cpu, cuda:1.")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write a run folder, as sweep does.")] = None,
    json: Annotated[str | None, typer.Option(help="Write all rows as JSON; - is stdout.")] = None,
    compare: Annotated[
        Path | None, typer.Option(metavar="BASE", help="Compare with a run; exit 3 if one is SLOW.")
    ] = None,
) -> None:
    """Time the functions that a Python file marks, and show how close to the roof they are."""
    from rooflab.api import load
    from rooflab.cli.runs import FailOn, compare_points, refuse_unwritable, write_text
    from rooflab.functions.bench import joined, line
    from rooflab.functions.marked import marked, run
    from rooflab.report.export import EXPORTERS
    from rooflab.report.terminal import remarks, sentences

    path, _, name = file.partition(":")
    if not path.endswith(".py"):
        raise UsageError(f"{path[:200]} is not a Python file: rooflab bench FILE.py")
    refuse_unwritable(json or "-")
    base = load(compare) if compare else None
    results, failed = [], False
    out = partial(console.out().print, markup=False, soft_wrap=True)
    show = console.note if json == "-" else out
    for result in run(marked(Path(path), name), device):
        if isinstance(result, str):
            failed = True
            console.fail(result)
            continue
        results.append(result)
        for row in result.measurements:
            show(line(row))
    if not results:
        raise typer.Exit(3)
    together = joined(results)
    for remark in remarks(together.ok):
        console.warn(remark)
    for sentence in sentences(together.ok) if len(together.manifest.kernels) > 1 else ():
        show(sentence)
    if save:
        console.note(f"{together.save(save).path}/")
    if json:
        write_text(json, EXPORTERS["json"](together))
    if base:
        compare_points([base, together], 0.5, [FailOn.slow], None, "-")
    if failed or any(row.status != "ok" for row in together.measurements):
        raise typer.Exit(3)
