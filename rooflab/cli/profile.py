"""``rooflab profile``: the roofline of a whole program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rooflab.cli import app


@app.command(
    context_settings={"allow_extra_args": True, "allow_interspersed_args": False},
)
def profile(
    context: typer.Context,
    program: Annotated[
        str, typer.Argument(metavar="SCRIPT.py", help="The program; its arguments follow.")
    ] = "",
    module: Annotated[
        bool, typer.Option("-m", help="SCRIPT is the name of a module, as for python -m.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the run folder is written.")] = Path("results"),
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Count FLOPs and bytes.")
    ] = True,
) -> None:
    """Run a Python program and show what its kernels could take at their roofs.

    All kernels are timed while it runs undisturbed; once they repeat, some launches are counted.
    """
    from rooflab.programs.script import start

    options = {"module": module, "out": str(out), "counters": counters}
    start(program, context.args, options)
