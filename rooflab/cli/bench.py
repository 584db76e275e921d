"""``rooflab bench``: the functions that are marked in a file."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
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
    from rooflab.functions.marked import Unmeasured
    from rooflab.runs.store import RunData


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
    from rooflab.report.terminal import remarks
    from rooflab.runs.compare import check_threshold
    from rooflab.runs.store import refuse_run

    path, _, name = file.partition(":")
    if not path.endswith(".py"):
        raise UsageError(f"{path[:200]} is not a Python file: rooflab bench FILE.py")
    refuse_unwritable(json or "-")
    if save:
        refuse_run(save)
    if not compare and (threshold is not None or fail_on):
        raise UsageError("--threshold and --fail-on are for --compare BASE")
    check_threshold(threshold)
    base = load(compare) if compare else None
    out = partial(console.out().print, markup=False, soft_wrap=True)
    with _prints_elsewhere() if json == "-" else nullcontext():
        show = console.note if json == "-" else out
        results, failures = _timed(run(marked(Path(path), name), device), show)
    together = joined(results) if results else None
    for remark in remarks(together.ok) if together else ():
        console.warn(remark)
    new: RunData | None = together
    if save and together:
        new = together.save(save)
        console.note(f"{new.path}/")
    if json:
        write_text(json, EXPORTERS["json"](together) if together else "[]\n")
    if base and new:
        screen = console.err() if json == "-" else console.out()
        compare_points([base, new], threshold, fail_on or [FailOn.slow], None, "-", screen)
    if any(one.usage for one in failures):
        raise typer.Exit(2)
    if failures or not new or any(row.status != "ok" for row in new.measurements):
        raise typer.Exit(3)


def _timed(
    races: Iterable[Result | Unmeasured], show: Callable[[str], None]
) -> tuple[list[Result], list[Unmeasured]]:
    """The results, each shown as it comes, and what failed."""
    from rooflab.functions.marked import Unmeasured

    results: list[Result] = []
    failures: list[Unmeasured] = []
    for result in races:
        if isinstance(result, Unmeasured):
            failures.append(result)
            console.fail(result.text)
        else:
            results.append(result)
            for text in str(result).splitlines():
                show(text)
    return results, failures


@contextmanager
def _prints_elsewhere() -> Iterator[None]:
    """What a user's code prints goes to stderr: stdout is for JSON."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
