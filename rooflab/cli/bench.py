"""``rooflab bench``: the functions that are marked in a file."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rooflab.cli import app, console
from rooflab.cli.runs import (
    FailOn,
    FailOns,
    Threshold,
    compare_points,
    refuse_unwritable,
    write_text,
)
from rooflab.errors import UsageError

if TYPE_CHECKING:
    from rooflab.functions.bench import Result


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
    threshold: Threshold = None,
    fail_on: FailOns = None,
) -> None:
    """Time the functions that a Python file marks, and show how close to the roof they are."""
    from rooflab.api import load
    from rooflab.functions.bench import joined
    from rooflab.functions.marked import marked, run
    from rooflab.report.export import EXPORTERS
    from rooflab.report.terminal import remarks, sentences

    path, _, name = file.partition(":")
    if not path.endswith(".py"):
        raise UsageError(f"{path[:200]} is not a Python file: rooflab bench FILE.py")
    refuse_unwritable(json or "-")
    if not compare and (threshold is not None or fail_on):
        raise UsageError("--threshold and --fail-on are for --compare BASE")
    base = load(compare) if compare else None
    out = partial(console.out().print, markup=False, soft_wrap=True)
    show = console.note if json == "-" else out
    results, failed = _timed(run(marked(Path(path), name), device), show)
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
        screen = console.err() if json == "-" else console.out()
        compare_points([base, together], threshold, fail_on or [FailOn.slow], None, "-", screen)
    if failed or any(row.status != "ok" for row in together.measurements):
        raise typer.Exit(3)


def _timed(races: Iterable[Result | str], show: Callable[[str], None]) -> tuple[list[Result], bool]:
    """The results, each shown as it comes, and whether a function failed."""
    from rooflab.functions.bench import line

    results, failed = [], False
    for result in races:
        if isinstance(result, str):
            failed = True
            console.fail(result)
            continue
        results.append(result)
        for row in result.measurements:
            show(line(row))
    return results, failed
